//! What never changes while a game is played?
//!
//! A [`World`] is a household made ready: things and places numbered in the original's order, names given, and everything
//! that rules and sentences ask for looked up in advance. It is shared by all who play the game.

use super::{
    goal::{Goal, TaskKind},
    scene::Household,
    state::{Mark, Plan, State},
};
use std::collections::HashMap;

/// A game ready to be played.
#[derive(Debug)]
pub struct World {
    pub(super) goal: Goal,
    pub(super) task: Box<str>,
    pub(super) places: Box<[Place]>,
    pub(super) things: Box<[Item]>,
    /// Places in the order of their names.
    pub(super) places_by_name: Box<[u16]>,
    /// The places at each location, in the original's order.
    pub(super) spots: Box<[Box<[u16]>]>,
    /// Everything with a name, in the order of names.
    names: Box<[Named]>,
    /// For each thing, a bit for each place that may hold it.
    fits: Box<[u64]>,
    pub(super) plan: Plan,
    pub(super) start: State,
}

/// A receptacle in a game.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: Box<str>,
    pub(super) at: u16,
    pub(super) openable: bool,
    pub(super) use_for: Use,
    /// Whether the goal is about it.
    pub(super) target: bool,
}

/// What else a receptacle is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Nothing,
    Cleaning,
    Heating,
    Cooling,
}

/// A thing in a game.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) name: Box<str>,
    /// Its place in the order of names.
    pub(super) rank: u16,
    pub(super) traits: super::scene::Traits,
    pub(super) knife: bool,
    /// Whether the goal is about it.
    pub(super) wanted: bool,
    /// Whether it is a lamp the goal is about.
    pub(super) lamp: bool,
    pub(super) contents: Box<[u16]>,
}

/// Something a command can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Place(u16),
    Thing(u16),
}

impl World {
    /// Makes a household ready.
    pub fn new(household: &Household) -> Self {
        let h = household;
        let place_order = order_by(&h.receptacles, |r| &r.id);
        let thing_order = order_by(&h.things, |t| &t.id);
        let place_number = inverse(&place_order);
        let thing_number = inverse(&thing_order);
        let names = names(h);

        let places: Box<[Place]> = place_order
            .iter()
            .map(|i| &h.receptacles[*i])
            .map(|r| Place {
                name: names[r.id.as_str()].clone(),
                at: r.at as u16,
                openable: r.openable,
                use_for: match r.kind.as_str() {
                    "sinktype" | "sinkbasintype" => Use::Cleaning,
                    "microwavetype" => Use::Heating,
                    "fridgetype" => Use::Cooling,
                    _ => Use::Nothing,
                },
                target: h.goal.kind != TaskKind::Look && r.kind == h.goal.target,
            })
            .collect();
        let mut things: Box<[Item]> = thing_order
            .iter()
            .map(|i| &h.things[*i])
            .map(|t| {
                let kind = t.kind.as_deref();
                Item {
                    name: names[t.id.as_str()].clone(),
                    rank: 0,
                    traits: t.traits,
                    knife: matches!(kind, Some("knifetype" | "butterknifetype")),
                    wanted: kind == Some(h.goal.thing.as_str()),
                    lamp: h.goal.kind == TaskKind::Look && t.traits.toggleable && kind == Some(h.goal.target.as_str()),
                    contents: sorted(t.contents.iter().map(|c| thing_number[*c])),
                }
            })
            .collect();
        let by_name = order_by(&things, |t| &t.name);
        by_name.iter().enumerate().for_each(|(rank, t)| things[*t].rank = rank as u16);

        let mut spots = vec![Vec::new(); h.locations.len()];
        places.iter().enumerate().for_each(|(i, p)| spots[usize::from(p.at)].push(i as u16));

        let plan = Plan::new(places.len(), things.len(), h.locations.len());
        let mut start = State::new(&plan, h.start as u16);
        for (number, i) in thing_order.iter().enumerate() {
            let (t, number) = (&h.things[*i], number as u16);
            t.at.iter().for_each(|l| start.set_located(&plan, number, *l as u16, true));
            t.inside.iter().for_each(|r| start.set_inside(&plan, number, place_number[*r], true));
            start.mark(&plan, Mark::Cool, number, t.cool);
        }
        let mut world = World {
            goal: h.goal.clone(),
            task: h.task.as_str().into(),
            places_by_name: order_by(&places, |p| &p.name).into_iter().map(|i| i as u16).collect(),
            fits: fits(h, &place_order, &thing_order),
            spots: spots.into_iter().map(Vec::into_boxed_slice).collect(),
            names: Box::default(),
            places,
            things,
            plan,
            start,
        };
        let all = (0..world.places.len()).map(|i| Named::Place(i as u16));
        let mut all: Vec<Named> = all.chain((0..world.things.len()).map(|i| Named::Thing(i as u16))).collect();
        all.sort_by(|a, b| world.name(*a).cmp(world.name(*b)));
        world.names = all.into();
        world
    }

    /// What is asked for.
    pub fn goal(&self) -> &Goal {
        &self.goal
    }

    /// The task in a sentence.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// How everything stands at first.
    pub fn start(&self) -> &State {
        &self.start
    }

    pub(super) fn name(&self, named: Named) -> &str {
        match named {
            Named::Place(p) => &self.places[usize::from(p)].name,
            Named::Thing(t) => &self.things[usize::from(t)].name,
        }
    }

    /// Looks a name up.
    pub(super) fn find(&self, name: &str) -> Option<Named> {
        self.names.binary_search_by(|n| self.name(*n).cmp(name)).ok().map(|i| self.names[i])
    }

    pub(super) fn place(&self, place: u16) -> &Place {
        &self.places[usize::from(place)]
    }

    pub(super) fn thing(&self, thing: u16) -> &Item {
        &self.things[usize::from(thing)]
    }

    /// The places where the agent stands.
    pub(super) fn here(&self, s: &State) -> &[u16] {
        &self.spots[usize::from(s.at)]
    }

    pub(super) fn fits(&self, thing: u16, place: u16) -> bool {
        let words = self.places.len().div_ceil(64);
        let (thing, place) = (usize::from(thing), usize::from(place));
        self.fits[thing * words + place / 64] >> (place % 64) & 1 == 1
    }

    /// What is in or on a place, in the original's order.
    pub(super) fn contents<'w>(&'w self, s: &'w State, place: u16) -> impl Iterator<Item = u16> + 'w {
        (0..self.things.len() as u16).filter(move |t| s.inside(&self.plan, *t, place))
    }

    /// Whether a thing in or on a place can be reached.
    pub(super) fn accessible(&self, s: &State, place: u16) -> bool {
        !self.place(place).openable || s.open(place)
    }

    /// Whether the goal is met.
    pub fn won(&self, s: &State) -> bool {
        let wanted = |t: &u16| self.thing(*t).wanted;
        let things = || (0..self.things.len() as u16).filter(wanted);
        let is = |mark, t| s.is(&self.plan, mark, t);
        let placed = |ready: &dyn Fn(u16) -> bool, count: usize| {
            let targets = (0..self.places.len() as u16).filter(|p| self.place(*p).target);
            targets.into_iter().any(|p| things().filter(|t| s.inside(&self.plan, *t, p) && ready(*t)).count() >= count)
        };
        match self.goal.kind {
            TaskKind::Place => placed(&|_| true, 1),
            TaskKind::Clean => placed(&|t| self.thing(t).traits.cleanable && is(Mark::Clean, t), 1),
            TaskKind::Heat => placed(&|t| self.thing(t).traits.heatable && is(Mark::Hot, t), 1),
            TaskKind::Cool => placed(&|t| self.thing(t).traits.coolable && is(Mark::Cool, t), 1),
            TaskKind::Two => placed(&|_| true, 2),
            TaskKind::Look => {
                let lit = |t: u16| {
                    self.thing(t).lamp
                        && is(Mark::Toggled, t)
                        && self.here(s).iter().any(|p| s.inside(&self.plan, t, *p))
                };
                s.held.is_some_and(|t| wanted(&t)) && (0..self.things.len() as u16).any(lit)
            }
        }
    }
}

/// Indices in the order of a text.
fn order_by<T>(items: &[T], text: impl Fn(&T) -> &str) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| text(&items[*a]).cmp(text(&items[*b])));
    order
}

fn inverse(order: &[usize]) -> Vec<u16> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(new, old)| inverse[*old] = new as u16);
    inverse
}

fn sorted(items: impl Iterator<Item = u16>) -> Box<[u16]> {
    let mut items: Vec<u16> = items.collect();
    items.sort_unstable();
    items.into()
}

/// The display name of everything: along the order of identifiers, numbers of equal names run downwards.
fn names(h: &Household) -> HashMap<&str, Box<str>> {
    let kinds = h.fits.iter().flat_map(|(r, t)| [r, t]);
    let kinds =
        kinds.chain(h.receptacles.iter().map(|r| &r.kind)).chain(h.things.iter().filter_map(|t| t.kind.as_ref()));
    let mut ids: Vec<&str> = kinds
        .chain([&h.agent])
        .chain(&h.locations)
        .chain(h.receptacles.iter().map(|r| &r.id))
        .chain(h.things.iter().map(|t| &t.id))
        .map(String::as_str)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    let stem = |id: &str| {
        let (name, _) = id.split_once("_bar_")?;
        Some(if id.contains("basin") { format!("{name}basin") } else { name.to_owned() })
    };
    let mut left: HashMap<String, usize> = HashMap::new();
    ids.iter().filter_map(|id| stem(id)).for_each(|name| *left.entry(name).or_default() += 1);
    let mut names = HashMap::new();
    for id in ids {
        let Some(name) = stem(id) else { continue };
        let number = left.get_mut(&name).expect("counted above");
        names.insert(id, format!("{name} {number}").into());
        *number -= 1;
    }
    names
}

fn fits(h: &Household, place_order: &[usize], thing_order: &[usize]) -> Box<[u64]> {
    let pairs: std::collections::HashSet<(&str, &str)> = h.fits.iter().map(|(r, t)| (r.as_str(), t.as_str())).collect();
    let words = place_order.len().div_ceil(64);
    let mut bits = vec![0; words * thing_order.len()];
    for (t, thing) in thing_order.iter().enumerate() {
        let Some(kind) = &h.things[*thing].kind else { continue };
        for (p, place) in place_order.iter().enumerate() {
            if pairs.contains(&(h.receptacles[*place].kind.as_str(), kind.as_str())) {
                bits[t * words + p / 64] |= 1 << (p % 64);
            }
        }
    }
    bits.into()
}
