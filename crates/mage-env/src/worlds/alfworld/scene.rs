//! What is in a household, as a game file says it or a generator makes it?
//!
//! [`Household`] is a plain description with identifiers; [`World`](super::World) is what play needs, compiled from it.

use super::goal::Goal;

/// A description of a home, the things in it, and what is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Household {
    /// Who acts.
    pub agent: String,
    /// Places to stand at, by identifier.
    pub locations: Vec<String>,
    /// Where the agent stands first: an index into [`locations`](Household::locations).
    pub start: usize,
    /// Furniture and appliances.
    pub receptacles: Vec<Receptacle>,
    /// Everything else.
    pub things: Vec<Thing>,
    /// Which kind of receptacle may hold which kind of thing.
    pub fits: Vec<(String, String)>,
    /// What must be the case in the end.
    pub goal: Goal,
    /// The task in a sentence.
    pub task: String,
}

/// A piece of furniture or an appliance.
#[derive(Clone, Debug, PartialEq)]
pub struct Receptacle {
    /// Lower-case, with the kind before the first `_bar_`.
    pub id: String,
    /// Such as `drawertype`.
    pub kind: String,
    /// Where one stands to use it: an index into [`Household::locations`].
    pub at: usize,
    /// Whether it has a door or lid; it starts closed.
    pub openable: bool,
}

/// Something that is not a receptacle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thing {
    /// Lower-case, with the kind before the first `_bar_`.
    pub id: String,
    /// Such as `appletype`; a few official things have none, and can be put nowhere.
    pub kind: Option<String>,
    /// What can be done with it.
    pub traits: Traits,
    /// Whether it is cool from the start.
    pub cool: bool,
    /// Where it is: indices into [`Household::locations`].
    pub at: Vec<usize>,
    /// What it is in or on: indices into [`Household::receptacles`]. Some official things are in several at once.
    pub inside: Vec<usize>,
    /// What is in it: indices into [`Household::things`]. Never changes, not even when one of them is taken away.
    pub contents: Vec<usize>,
}

/// What can be done with a thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// It can be taken.
    pub pickupable: bool,
    /// It can be cleaned in a sink.
    pub cleanable: bool,
    /// It can be heated in a microwave.
    pub heatable: bool,
    /// It can be cooled in a fridge.
    pub coolable: bool,
    /// It can be switched on.
    pub toggleable: bool,
    /// It can be sliced.
    pub sliceable: bool,
    /// It can hold other things.
    pub vessel: bool,
}
