//! Static part of a game.
//!
//! A [`HouseholdWorld`] is a compiled [`Household`]: objects and receptacles are indexed in the original's order and named,
//! and every lookup of rules and texts is precomputed. All environments of a game share it.

use super::{
    goal::{TaskGoal, TaskType},
    scene::Household,
    state::{HouseholdState, ObjectFlag, StateLayout},
};
use std::collections::HashMap;

/// A game compiled for play.
#[derive(Debug)]
pub struct HouseholdWorld {
    pub(super) goal: TaskGoal,
    pub(super) task: Box<str>,
    pub(super) receptacles: Box<[CompiledReceptacle]>,
    pub(super) objects: Box<[CompiledObject]>,
    /// Receptacles sorted by name.
    pub(super) receptacles_by_name: Box<[u16]>,
    /// The receptacles at each location, in the original's order.
    pub(super) receptacles_at: Box<[Box<[u16]>]>,
    /// All named entities, sorted by name.
    names: Box<[Entity]>,
    /// Per object, one bit for each receptacle that may contain it.
    can_contain: Box<[u64]>,
    pub(super) layout: StateLayout,
    pub(super) start: HouseholdState,
}

/// A receptacle of a compiled game.
#[derive(Debug)]
pub(super) struct CompiledReceptacle {
    pub(super) name: Box<str>,
    pub(super) location: u16,
    pub(super) openable: bool,
    pub(super) appliance: Appliance,
    /// Whether the goal refers to its type.
    pub(super) is_target: bool,
}

/// Appliance function of a receptacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appliance {
    None,
    Sink,
    Microwave,
    Fridge,
}

/// An object of a compiled game.
#[derive(Debug)]
pub(super) struct CompiledObject {
    pub(super) name: Box<str>,
    /// Its rank by name.
    pub(super) rank: u16,
    pub(super) properties: super::scene::ObjectProperties,
    pub(super) knife: bool,
    /// Whether the goal refers to its type.
    pub(super) is_goal_object: bool,
    /// Whether it is a lamp of the type in a [`TaskType::Look`] goal.
    pub(super) is_goal_lamp: bool,
    pub(super) contents: Box<[u16]>,
}

/// An entity that a command can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entity {
    Receptacle(u16),
    Object(u16),
}

impl HouseholdWorld {
    /// Compiles a household.
    pub fn new(household: &Household) -> Self {
        let h = household;
        let receptacle_order = order_by(&h.receptacles, |r| &r.id);
        let object_order = order_by(&h.objects, |o| &o.id);
        let receptacle_index = inverse(&receptacle_order);
        let object_index = inverse(&object_order);
        let names = names(h);

        let receptacles: Box<[CompiledReceptacle]> = receptacle_order
            .iter()
            .map(|i| &h.receptacles[*i])
            .map(|r| CompiledReceptacle {
                name: names[r.id.as_str()].clone(),
                location: r.location as u16,
                openable: r.openable,
                appliance: match r.kind.as_str() {
                    "sinktype" | "sinkbasintype" => Appliance::Sink,
                    "microwavetype" => Appliance::Microwave,
                    "fridgetype" => Appliance::Fridge,
                    _ => Appliance::None,
                },
                is_target: h.goal.kind != TaskType::Look && r.kind == h.goal.target,
            })
            .collect();
        let mut objects: Box<[CompiledObject]> = object_order
            .iter()
            .map(|i| &h.objects[*i])
            .map(|o| {
                let kind = o.kind.as_deref();
                CompiledObject {
                    name: names[o.id.as_str()].clone(),
                    rank: 0,
                    properties: o.properties,
                    knife: matches!(kind, Some("knifetype" | "butterknifetype")),
                    is_goal_object: kind == Some(h.goal.object.as_str()),
                    is_goal_lamp: h.goal.kind == TaskType::Look
                        && o.properties.toggleable
                        && kind == Some(h.goal.target.as_str()),
                    contents: sorted(o.contents.iter().map(|c| object_index[*c])),
                }
            })
            .collect();
        let by_name = order_by(&objects, |o| &o.name);
        by_name.iter().enumerate().for_each(|(rank, o)| objects[*o].rank = rank as u16);

        let mut receptacles_at = vec![Vec::new(); h.locations.len()];
        receptacles.iter().enumerate().for_each(|(i, r)| receptacles_at[usize::from(r.location)].push(i as u16));

        let layout = StateLayout::new(receptacles.len(), objects.len(), h.locations.len());
        let mut start = HouseholdState::new(&layout, h.start as u16);
        for (index, i) in object_order.iter().enumerate() {
            let (o, index) = (&h.objects[*i], index as u16);
            o.locations.iter().for_each(|l| start.set_located(&layout, index, *l as u16, true));
            o.inside.iter().for_each(|r| start.set_inside(&layout, index, receptacle_index[*r], true));
            start.set_flag(&layout, ObjectFlag::Cool, index, o.cool);
        }
        let mut world = HouseholdWorld {
            goal: h.goal.clone(),
            task: h.task.as_str().into(),
            receptacles_by_name: order_by(&receptacles, |r| &r.name).into_iter().map(|i| i as u16).collect(),
            can_contain: can_contain(h, &receptacle_order, &object_order),
            receptacles_at: receptacles_at.into_iter().map(Vec::into_boxed_slice).collect(),
            names: Box::default(),
            receptacles,
            objects,
            layout,
            start,
        };
        let all = (0..world.receptacles.len()).map(|i| Entity::Receptacle(i as u16));
        let mut all: Vec<Entity> = all.chain((0..world.objects.len()).map(|i| Entity::Object(i as u16))).collect();
        all.sort_by(|a, b| world.name(*a).cmp(world.name(*b)));
        world.names = all.into();
        world
    }

    /// The goal.
    pub fn goal(&self) -> &TaskGoal {
        &self.goal
    }

    /// The task sentence.
    pub fn task(&self) -> &str {
        &self.task
    }

    /// The initial state.
    pub fn start(&self) -> &HouseholdState {
        &self.start
    }

    pub(super) fn name(&self, named: Entity) -> &str {
        match named {
            Entity::Receptacle(r) => &self.receptacles[usize::from(r)].name,
            Entity::Object(o) => &self.objects[usize::from(o)].name,
        }
    }

    /// The entity with this name.
    pub(super) fn entity_named(&self, name: &str) -> Option<Entity> {
        self.names.binary_search_by(|n| self.name(*n).cmp(name)).ok().map(|i| self.names[i])
    }

    pub(super) fn receptacle(&self, receptacle: u16) -> &CompiledReceptacle {
        &self.receptacles[usize::from(receptacle)]
    }

    pub(super) fn object(&self, object: u16) -> &CompiledObject {
        &self.objects[usize::from(object)]
    }

    /// The receptacles at the agent's location.
    pub(super) fn receptacles_here(&self, s: &HouseholdState) -> &[u16] {
        &self.receptacles_at[usize::from(s.location)]
    }

    pub(super) fn can_contain(&self, object: u16, receptacle: u16) -> bool {
        let words = self.receptacles.len().div_ceil(64);
        let (object, receptacle) = (usize::from(object), usize::from(receptacle));
        self.can_contain[object * words + receptacle / 64] >> (receptacle % 64) & 1 == 1
    }

    /// The objects in or on a receptacle, in the original's order.
    pub(super) fn contents<'w>(&'w self, s: &'w HouseholdState, receptacle: u16) -> impl Iterator<Item = u16> + 'w {
        (0..self.objects.len() as u16).filter(move |o| s.inside(&self.layout, *o, receptacle))
    }

    /// Whether the contents of a receptacle can be reached: it has no door, or is open.
    pub(super) fn is_accessible(&self, s: &HouseholdState, receptacle: u16) -> bool {
        !self.receptacle(receptacle).openable || s.open(receptacle)
    }

    /// Whether the goal is satisfied.
    pub fn won(&self, s: &HouseholdState) -> bool {
        let wanted = |o: &u16| self.object(*o).is_goal_object;
        let objects = || (0..self.objects.len() as u16).filter(wanted);
        let flagged = |flag, o| s.has_flag(&self.layout, flag, o);
        let placed = |ready: &dyn Fn(u16) -> bool, count: usize| {
            let targets = (0..self.receptacles.len() as u16).filter(|r| self.receptacle(*r).is_target);
            targets
                .into_iter()
                .any(|r| objects().filter(|o| s.inside(&self.layout, *o, r) && ready(*o)).count() >= count)
        };
        match self.goal.kind {
            TaskType::Place => placed(&|_| true, 1),
            TaskType::Clean => placed(&|o| self.object(o).properties.cleanable && flagged(ObjectFlag::Clean, o), 1),
            TaskType::Heat => placed(&|o| self.object(o).properties.heatable && flagged(ObjectFlag::Hot, o), 1),
            TaskType::Cool => placed(&|o| self.object(o).properties.coolable && flagged(ObjectFlag::Cool, o), 1),
            TaskType::Two => placed(&|_| true, 2),
            TaskType::Look => {
                let lit = |o: u16| {
                    self.object(o).is_goal_lamp
                        && flagged(ObjectFlag::Toggled, o)
                        && self.receptacles_here(s).iter().any(|r| s.inside(&self.layout, o, *r))
                };
                s.held.is_some_and(|o| wanted(&o)) && (0..self.objects.len() as u16).any(lit)
            }
        }
    }
}

/// Indices sorted by a text.
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

/// Display names by identifier. Among equal names, numbers decrease in the order of identifiers.
fn names(h: &Household) -> HashMap<&str, Box<str>> {
    let kinds = h.can_contain.iter().flat_map(|(r, o)| [r, o]);
    let kinds =
        kinds.chain(h.receptacles.iter().map(|r| &r.kind)).chain(h.objects.iter().filter_map(|o| o.kind.as_ref()));
    let mut ids: Vec<&str> = kinds
        .chain([&h.agent])
        .chain(&h.locations)
        .chain(h.receptacles.iter().map(|r| &r.id))
        .chain(h.objects.iter().map(|o| &o.id))
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

fn can_contain(h: &Household, receptacle_order: &[usize], object_order: &[usize]) -> Box<[u64]> {
    let pairs: std::collections::HashSet<(&str, &str)> =
        h.can_contain.iter().map(|(r, o)| (r.as_str(), o.as_str())).collect();
    let words = receptacle_order.len().div_ceil(64);
    let mut bits = vec![0; words * object_order.len()];
    for (o, object) in object_order.iter().enumerate() {
        let Some(kind) = &h.objects[*object].kind else { continue };
        for (r, receptacle) in receptacle_order.iter().enumerate() {
            if pairs.contains(&(h.receptacles[*receptacle].kind.as_str(), kind.as_str())) {
                bits[o * words + r / 64] |= 1 << (r % 64);
            }
        }
    }
    bits.into()
}
