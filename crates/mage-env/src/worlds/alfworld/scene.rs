//! Description of a household, from a game file or the generator.
//!
//! [`Household`] refers to entities by identifier; [`HouseholdWorld`](super::HouseholdWorld) is compiled from it for play.

use super::goal::TaskGoal;

/// Description of a household, its objects and the goal.
#[derive(Clone, Debug, PartialEq)]
pub struct Household {
    /// Identifier of the agent.
    pub agent: String,
    /// Identifiers of the locations.
    pub locations: Vec<String>,
    /// Initial location of the agent: an index into [`locations`](Household::locations).
    pub start: usize,
    /// Receptacles: furniture and appliances.
    pub receptacles: Vec<Receptacle>,
    /// Objects.
    pub objects: Vec<HouseholdObject>,
    /// Pairs of receptacle type and object type that the receptacle can contain.
    pub can_contain: Vec<(String, String)>,
    /// The goal.
    pub goal: TaskGoal,
    /// The task sentence.
    pub task: String,
}

/// A receptacle.
#[derive(Clone, Debug, PartialEq)]
pub struct Receptacle {
    /// Lower-case identifier, with the type before the first `_bar_`.
    pub id: String,
    /// Receptacle type, such as `drawertype`.
    pub kind: String,
    /// Its location: an index into [`Household::locations`].
    pub location: usize,
    /// Whether it has a door or lid. Openable receptacles are initially closed.
    pub openable: bool,
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HouseholdObject {
    /// Lower-case identifier, with the type before the first `_bar_`.
    pub id: String,
    /// Object type, such as `appletype`. A few official objects have none and fit in no receptacle.
    pub kind: Option<String>,
    /// Its properties.
    pub properties: ObjectProperties,
    /// Whether it is initially cool.
    pub cool: bool,
    /// Its locations: indices into [`Household::locations`].
    pub locations: Vec<usize>,
    /// The receptacles that contain it: indices into [`Household::receptacles`]. Some official objects are in several.
    pub inside: Vec<usize>,
    /// The objects it contains: indices into [`Household::objects`]. Static, even when one of them is taken.
    pub contents: Vec<usize>,
}

/// Static properties of an object, as PDDL predicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectProperties {
    /// Can be picked up.
    pub pickupable: bool,
    /// Can be cleaned in a sink.
    pub cleanable: bool,
    /// Can be heated in a microwave.
    pub heatable: bool,
    /// Can be cooled in a fridge.
    pub coolable: bool,
    /// Can be switched on.
    pub toggleable: bool,
    /// Can be sliced.
    pub sliceable: bool,
    /// Can contain other objects (`isReceptacleObject`).
    pub receptacle_object: bool,
}
