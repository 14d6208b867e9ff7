//! Game generator.
//!
//! A room is generated in two steps: a *floor plan* determines receptacles and their locations, as in the official games;
//! then objects are placed and a task is chosen. In-domain tasks use the training floor plans with other objects; unseen
//! rooms have floor plans of their own. A game is accepted only if the expert solves it.

use super::{
    expert,
    goal::{TaskGoal, TaskType},
    object_tables::{self, OPENABLE, ROOM_TEMPLATES, RoomTemplate},
    scene::{Household, HouseholdObject, ObjectProperties, Receptacle},
    world::HouseholdWorld,
};
use crate::{Rng, Seed};
use rand::{RngExt, seq::IndexedRandom};
use serde::Deserialize;
use std::fmt::Write;

/// Set of floor plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoomSplit {
    /// The training floor plans.
    #[default]
    Seen,
    /// Held-out floor plans.
    Unseen,
}

/// Training floor plans per room type; as many as in the official games.
const SEEN_PLANS: u32 = 27;
/// Held-out floor plans per room type.
const UNSEEN_PLANS: u32 = 9;
/// Maximum solution length of a generated game: the turn limit of an episode, and the longest official walkthrough.
const MAX_SOLUTION_LEN: usize = 10;

/// A generated game.
#[derive(Clone, Debug)]
pub struct GeneratedGame {
    /// The household and the task.
    pub household: Household,
    /// Number of the floor plan.
    pub floor_plan: u32,
    /// The expert's solution.
    pub walkthrough: Vec<String>,
}

/// Generates a game whose task type is one of `kinds` (any type if empty). The seed determines the game.
pub fn generate(rooms: RoomSplit, kinds: &[TaskType], seed: Seed) -> GeneratedGame {
    let kinds = if kinds.is_empty() { &TaskType::ALL[..] } else { kinds };
    let kind = *kinds.choose(&mut seed.child("task").rng()).expect("not empty");
    let mut tries = 0..;
    loop {
        let attempt = seed.child("try").at(tries.next().expect("endless"));
        let Some((household, floor_plan)) = household(rooms, kind, attempt) else { continue };
        let world = HouseholdWorld::new(&household);
        if world.won(world.start()) {
            continue;
        }
        if let Some(plan) = expert::solve(&world, world.start()).filter(|w| w.len() <= MAX_SOLUTION_LEN) {
            let walkthrough = plan.into_iter().map(|c| world.format_command(c)).collect();
            return GeneratedGame { household, floor_plan, walkthrough };
        }
    }
}

/// Generates a room with objects and a task of this type; `None` if the room admits no such task.
fn household(rooms: RoomSplit, kind: TaskType, seed: Seed) -> Option<(Household, u32)> {
    let mut rng = seed.rng();
    let supports = |r: &&RoomTemplate| match kind {
        TaskType::Look => !r.lamps.is_empty(),
        TaskType::Heat => has(r, "Microwave"),
        TaskType::Cool => has(r, "Fridge"),
        TaskType::Clean => has(r, "SinkBasin"),
        TaskType::Place | TaskType::Two => true,
    };
    let suitable: Vec<&RoomTemplate> = ROOM_TEMPLATES.iter().filter(supports).collect();
    let room = *suitable.choose(&mut rng).expect("every task type has a room type");
    let number = match rooms {
        RoomSplit::Seen => rng.random_range(0..SEEN_PLANS),
        RoomSplit::Unseen => rng.random_range(SEEN_PLANS..SEEN_PLANS + UNSEEN_PLANS),
    };
    let floor_plan = room.first_plan + number;
    let mut home = place_furniture(room, floor_plan);
    place_objects(&mut home, room, &mut rng);
    choose_task(&mut home, kind, &mut rng)?;
    Some((home, floor_plan))
}

fn has(room: &RoomTemplate, furniture: &str) -> bool {
    room.furniture.iter().any(|(f, min, _)| *f == furniture && *min > 0)
}

/// Places the receptacles and fixtures, which the floor plan number determines.
fn place_furniture(room: &RoomTemplate, floor_plan: u32) -> Household {
    let mut rng = Seed::new(u64::from(floor_plan)).child("alfworld plan").rng();
    let mut home = Household {
        agent: "agent1".to_owned(),
        locations: Vec::new(),
        start: 0,
        receptacles: Vec::new(),
        objects: Vec::new(),
        can_contain: Vec::new(),
        goal: TaskGoal { kind: TaskType::Place, object: String::new(), target: String::new() },
        task: String::new(),
    };
    home.start = new_location(&mut home, &mut rng);
    for (name, min, max) in room.furniture {
        for _ in 0..rng.random_range(*min..=*max) {
            // Some receptacles share the location of the previous one.
            let shared = home.receptacles.last().filter(|_| rng.random_bool(0.2)).map(|r| r.location);
            let location = shared.unwrap_or_else(|| new_location(&mut home, &mut rng));
            let id = match name.strip_suffix("Basin") {
                Some(base) => format!("{}_bar_{}", new_id(&home, base, &mut rng), name.to_lowercase()),
                None => new_id(&home, name, &mut rng),
            };
            home.receptacles.push(Receptacle {
                id,
                kind: type_name(name),
                location,
                openable: OPENABLE.contains(name),
            });
        }
    }
    for name in room.fixtures {
        let location = new_location(&mut home, &mut rng);
        let id = new_id(&home, name, &mut rng);
        home.objects.push(HouseholdObject {
            id,
            kind: Some(type_name(name)),
            locations: vec![location],
            ..HouseholdObject::default()
        });
    }
    for kind in object_tables::OBJECT_TYPES.iter() {
        let present = |r: &&&str| home.receptacles.iter().any(|f| f.kind == type_name(r));
        home.can_contain.extend(kind.receptacles.iter().filter(present).map(|r| (type_name(r), type_name(kind.name))));
    }
    home
}

/// Places the portable objects.
fn place_objects(home: &mut Household, room: &RoomTemplate, rng: &mut Rng) {
    let lamp = ObjectProperties { toggleable: true, ..ObjectProperties::default() };
    if let Some(stand) = pick_receptacle(home, room.lamps, rng) {
        add_object(home, "DeskLamp", lamp, stand, rng);
    }
    for (name, max) in room.objects {
        if rng.random_bool(0.3) {
            continue;
        }
        let kind = object_tables::find(name);
        for _ in 0..rng.random_range(1..=*max) {
            // Mostly in one of its usual receptacles.
            let usual = if rng.random_bool(0.8) { kind.receptacles.len().min(4) } else { kind.receptacles.len() };
            let Some(receptacle) = pick_receptacle(home, &kind.receptacles[..usual], rng) else { continue };
            let object = add_object(home, name, kind.properties, receptacle, rng);
            let receptacle_kind = home.receptacles[receptacle].kind.as_str();
            home.objects[object].cool =
                kind.properties.coolable && receptacle_kind == "fridgetype" && rng.random_bool(0.05);
            // As in the official games, an object on a burner is sometimes also listed on a countertop.
            let overlap = matches!(receptacle_kind, "stoveburnertype" | "coffeemachinetype") && rng.random_bool(0.2);
            if let Some(second) = pick_receptacle(home, &["CounterTop"], rng).filter(|_| overlap) {
                home.objects[object].inside.push(second);
            }
            let receptacle_object =
                home.objects[..object].iter().position(|t| t.properties.receptacle_object && t.inside == [receptacle]);
            if let Some(receptacle_object) =
                receptacle_object.filter(|_| !kind.properties.receptacle_object && rng.random_bool(0.1))
            {
                home.objects[receptacle_object].contents.push(object);
            }
        }
    }
}

fn add_object(
    home: &mut Household,
    name: &str,
    properties: ObjectProperties,
    receptacle: usize,
    rng: &mut Rng,
) -> usize {
    let locations = vec![home.receptacles[receptacle].location];
    let id = new_id(home, name, rng);
    home.objects.push(HouseholdObject {
        id,
        kind: Some(type_name(name)),
        properties,
        locations,
        inside: vec![receptacle],
        ..HouseholdObject::default()
    });
    home.objects.len() - 1
}

/// Samples a receptacle of these types: first a type that is present, then a receptacle of that type.
fn pick_receptacle(home: &Household, kinds: &[&str], rng: &mut Rng) -> Option<usize> {
    let of_kind = |kind: &&&str| home.receptacles.iter().any(|r| r.kind == type_name(kind));
    let present: Vec<&&str> = kinds.iter().filter(of_kind).collect();
    let kind = type_name(present.choose(rng)?);
    let all: Vec<usize> = (0..home.receptacles.len()).filter(|r| home.receptacles[*r].kind == kind).collect();
    all.choose(rng).copied()
}

/// Chooses the goal and the task sentence.
fn choose_task(home: &mut Household, kind: TaskType, rng: &mut Rng) -> Option<()> {
    let min_count = if kind == TaskType::Two { 2 } else { 1 };
    let suitable = |t: &ObjectProperties| match kind {
        TaskType::Clean => t.cleanable,
        TaskType::Heat => t.heatable,
        TaskType::Cool => t.coolable,
        TaskType::Place | TaskType::Look | TaskType::Two => true,
    };
    let count = |name: &str| home.objects.iter().filter(|t| t.kind.as_deref() == Some(&type_name(name))).count();
    let objects: Vec<_> =
        object_tables::OBJECT_TYPES.iter().filter(|k| suitable(&k.properties) && count(k.name) >= min_count).collect();
    let object = objects.choose(rng)?;
    let target = if kind == TaskType::Look {
        home.objects.iter().find(|t| t.properties.toggleable)?;
        "DeskLamp"
    } else {
        // A heated object does not go into the microwave, nor a cooled one into the fridge.
        let circular = |r: &str| matches!((kind, r), (TaskType::Heat, "Microwave") | (TaskType::Cool, "Fridge"));
        let possible = |r: &&&str| home.receptacles.iter().any(|f| f.kind == type_name(r)) && !circular(r);
        let targets: Vec<&str> = object.receptacles.iter().filter(possible).copied().collect();
        *targets.choose(rng)?
    };
    home.goal = TaskGoal { kind, object: type_name(object.name), target: type_name(target) };
    home.task = sentence(kind, &object.name.to_lowercase(), &target.to_lowercase(), rng.random_bool(0.5));
    Some(())
}

/// The task sentence in one of the official wordings.
fn sentence(kind: TaskType, x: &str, r: &str, first: bool) -> String {
    let treated = |adjective: &str, verb: &str| match first {
        true => format!("put a {adjective} {x} in {r}"),
        false => format!("{verb} some {x} and put it in {r}"),
    };
    let task = match (kind, first) {
        (TaskType::Place, true) => format!("put a {x} in {r}"),
        (TaskType::Place, false) => format!("put some {x} on {r}"),
        (TaskType::Look, true) => format!("look at {x} under the {r}"),
        (TaskType::Look, false) => format!("examine the {x} with the {r}"),
        (TaskType::Clean, _) => treated("clean", "clean"),
        (TaskType::Heat, _) => treated("hot", "heat"),
        (TaskType::Cool, _) => treated("cool", "cool"),
        (TaskType::Two, true) => format!("put two {x} in {r}"),
        (TaskType::Two, false) => format!("find two {x} and put them in {r}"),
    };
    format!("Your task is to: {task}.")
}

pub(super) fn type_name(name: &str) -> String {
    format!("{}type", name.to_lowercase())
}

/// A new identifier with random coordinates, in the official format.
fn new_id(home: &Household, name: &str, rng: &mut Rng) -> String {
    loop {
        let mut id = name.to_lowercase();
        for _ in 0..3 {
            let centimetres: i32 = rng.random_range(-399..400);
            let sign = if centimetres < 0 { "minus" } else { "plus" };
            let (whole, part) = (centimetres.abs() / 100, centimetres.abs() % 100);
            let _ = write!(id, "_bar__{sign}_{whole:02}_dot_{part:02}");
        }
        let taken = home.objects.iter().any(|t| t.id == id) || home.receptacles.iter().any(|r| r.id.starts_with(&id));
        if !taken {
            return id;
        }
    }
}

fn new_location(home: &mut Household, rng: &mut Rng) -> usize {
    let number = |rng: &mut Rng| {
        let n: i32 = rng.random_range(-14..15);
        if n < 0 { format!("_minus_{}", -n) } else { n.to_string() }
    };
    loop {
        let (x, y) = (number(rng), number(rng));
        let (facing, tilt) = (rng.random_range(0..4), [15, 30, 45, 60][rng.random_range(0..4)]);
        let id = format!("loc_bar_{x}_bar_{y}_bar_{facing}_bar_{tilt}");
        if !home.locations.contains(&id) {
            home.locations.push(id);
            return home.locations.len() - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn games_are_solvable_varied_and_repeatable() {
        let mut floor_plans = [BTreeSet::new(), BTreeSet::new()];
        for (r, rooms) in [RoomSplit::Seen, RoomSplit::Unseen].into_iter().enumerate() {
            for kind in TaskType::ALL {
                for i in 0..25 {
                    let made = generate(rooms, &[kind], Seed::new(i));
                    let world = HouseholdWorld::new(&made.household);
                    assert_eq!(world.goal().kind, kind);
                    let mut s = world.start().clone();
                    assert!(!world.won(&s));
                    made.walkthrough.iter().for_each(|c| assert!(world.step(&mut s, c).1, "{c}"));
                    assert!(world.won(&s), "{}", made.household.task);
                    assert!((2..=MAX_SOLUTION_LEN).contains(&made.walkthrough.len()));
                    floor_plans[r].insert(made.floor_plan);
                    assert_eq!(made.household, generate(rooms, &[kind], Seed::new(i)).household);
                }
            }
        }
        assert!(floor_plans[0].is_disjoint(&floor_plans[1]) && floor_plans[0].len() > 40 && floor_plans[1].len() > 15);
    }

    #[test]
    fn a_floor_plan_determines_its_receptacles() {
        let by_plan = |i| {
            let made = generate(RoomSplit::Unseen, &[], Seed::new(i));
            (made.floor_plan, made.household.receptacles)
        };
        let mut seen = std::collections::BTreeMap::new();
        let mut again = 0;
        for i in 0..60 {
            let (floor_plan, furniture) = by_plan(i);
            again += usize::from(seen.contains_key(&floor_plan));
            assert_eq!(*seen.entry(floor_plan).or_insert_with(|| furniture.clone()), furniture);
        }
        assert!(again > 10);
    }
}
