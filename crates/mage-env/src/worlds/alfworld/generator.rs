//! How is a household made up?
//!
//! A room is built in two steps: a *plan* fixes furniture and where one stands to use it, like a floor plan of the
//! official games; then things are strewn about and a task is chosen. In-domain tasks use the plans of training with
//! other things in other places; unseen rooms have plans of their own. A game is kept only if the expert solves it.

use super::{
    expert,
    goal::{Goal, TaskKind},
    object_tables::{self, OPENABLE, ROOMS, Room},
    scene::{Household, Receptacle, Thing, Traits},
    world::World,
};
use crate::{Rng, Seed};
use rand::{RngExt, seq::IndexedRandom};
use serde::Deserialize;
use std::fmt::Write;

/// Which plans are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rooms {
    /// Those of training.
    #[default]
    Seen,
    /// Others.
    Unseen,
}

/// How many plans of each sort of room are for training; as many as in the official games.
const SEEN_PLANS: u32 = 27;
/// How many more are for unseen rooms.
const UNSEEN_PLANS: u32 = 9;
/// The longest solution a generated game may have: an episode's turns, and the longest official walkthrough.
pub const LONGEST: usize = 10;

/// A generated game.
#[derive(Clone, Debug)]
pub struct Made {
    /// The home and the task.
    pub household: Household,
    /// The number of the floor plan.
    pub plan: u32,
    /// The expert's solution.
    pub walkthrough: Vec<String>,
}

/// Makes up a game whose task is one of `kinds` (all, if empty). The same seed always gives the same game.
pub fn generate(rooms: Rooms, kinds: &[TaskKind], seed: Seed) -> Made {
    let kinds = if kinds.is_empty() { &TaskKind::ALL[..] } else { kinds };
    let kind = *kinds.choose(&mut seed.child("task").rng()).expect("not empty");
    let mut tries = 0..;
    loop {
        let attempt = seed.child("try").at(tries.next().expect("endless"));
        let Some((household, plan)) = household(rooms, kind, attempt) else { continue };
        let world = World::new(&household);
        if world.won(world.start()) {
            continue;
        }
        if let Some(way) = expert::solve(&world, world.start()).filter(|w| w.len() <= LONGEST) {
            let walkthrough = way.into_iter().map(|c| world.write(c)).collect();
            return Made { household, plan, walkthrough };
        }
    }
}

/// A room with things in it and a task of this kind, if the room happens to allow one.
fn household(rooms: Rooms, kind: TaskKind, seed: Seed) -> Option<(Household, u32)> {
    let mut rng = seed.rng();
    let suits = |r: &&Room| match kind {
        TaskKind::Look => !r.lamps.is_empty(),
        TaskKind::Heat => has(r, "Microwave"),
        TaskKind::Cool => has(r, "Fridge"),
        TaskKind::Clean => has(r, "SinkBasin"),
        TaskKind::Place | TaskKind::Two => true,
    };
    let suitable: Vec<&Room> = ROOMS.iter().filter(suits).collect();
    let room = *suitable.choose(&mut rng).expect("every task has its rooms");
    let number = match rooms {
        Rooms::Seen => rng.random_range(0..SEEN_PLANS),
        Rooms::Unseen => rng.random_range(SEEN_PLANS..SEEN_PLANS + UNSEEN_PLANS),
    };
    let plan = room.first_plan + number;
    let mut home = furnish(room, plan);
    strew(&mut home, room, &mut rng);
    choose_task(&mut home, kind, &mut rng)?;
    Some((home, plan))
}

fn has(room: &Room, furniture: &str) -> bool {
    room.furniture.iter().any(|(f, least, _)| *f == furniture && *least > 0)
}

/// The furniture of a plan, the same whenever the plan is used.
fn furnish(room: &Room, plan: u32) -> Household {
    let mut rng = Seed::new(u64::from(plan)).child("alfworld plan").rng();
    let mut home = Household {
        agent: "agent1".to_owned(),
        locations: Vec::new(),
        start: 0,
        receptacles: Vec::new(),
        things: Vec::new(),
        fits: Vec::new(),
        goal: Goal { kind: TaskKind::Place, thing: String::new(), target: String::new() },
        task: String::new(),
    };
    home.start = new_location(&mut home, &mut rng);
    for (name, least, most) in room.furniture {
        for _ in 0..rng.random_range(*least..=*most) {
            // A few stand so close to the one before that both are in reach.
            let shared = home.receptacles.last().filter(|_| rng.random_bool(0.2)).map(|r| r.at);
            let at = shared.unwrap_or_else(|| new_location(&mut home, &mut rng));
            let id = match name.strip_suffix("Basin") {
                Some(base) => format!("{}_bar_{}", new_id(&home, base, &mut rng), name.to_lowercase()),
                None => new_id(&home, name, &mut rng),
            };
            home.receptacles.push(Receptacle { id, kind: type_name(name), at, openable: OPENABLE.contains(name) });
        }
    }
    for name in room.fixtures {
        let at = new_location(&mut home, &mut rng);
        let id = new_id(&home, name, &mut rng);
        home.things.push(Thing { id, kind: Some(type_name(name)), at: vec![at], ..Thing::default() });
    }
    for kind in object_tables::KINDS.iter() {
        let present = |r: &&&str| home.receptacles.iter().any(|f| f.kind == type_name(r));
        home.fits.extend(kind.fits.iter().filter(present).map(|r| (type_name(r), type_name(kind.name))));
    }
    home
}

/// Puts things about.
fn strew(home: &mut Household, room: &Room, rng: &mut Rng) {
    let lamp = Traits { toggleable: true, ..Traits::default() };
    if let Some(stand) = pick_place(home, room.lamps, rng) {
        put(home, "DeskLamp", lamp, stand, rng);
    }
    for (name, most) in room.things {
        if rng.random_bool(0.3) {
            continue;
        }
        let kind = object_tables::find(name);
        for _ in 0..rng.random_range(1..=*most) {
            // Mostly in one of its usual places.
            let usual = if rng.random_bool(0.8) { kind.fits.len().min(4) } else { kind.fits.len() };
            let Some(place) = pick_place(home, &kind.fits[..usual], rng) else { continue };
            let thing = put(home, name, kind.traits, place, rng);
            let place_kind = home.receptacles[place].kind.as_str();
            home.things[thing].cool = kind.traits.coolable && place_kind == "fridgetype" && rng.random_bool(0.05);
            // What stands on a burner is also counted among what is on the counter, now and then, as officially.
            let overlap = matches!(place_kind, "stoveburnertype" | "coffeemachinetype") && rng.random_bool(0.2);
            if let Some(also) = pick_place(home, &["CounterTop"], rng).filter(|_| overlap) {
                home.things[thing].inside.push(also);
            }
            let vessel = home.things[..thing].iter().position(|t| t.traits.vessel && t.inside == [place]);
            if let Some(vessel) = vessel.filter(|_| !kind.traits.vessel && rng.random_bool(0.1)) {
                home.things[vessel].contents.push(thing);
            }
        }
    }
}

fn put(home: &mut Household, name: &str, traits: Traits, place: usize, rng: &mut Rng) -> usize {
    let at = vec![home.receptacles[place].at];
    let id = new_id(home, name, rng);
    home.things.push(Thing { id, kind: Some(type_name(name)), traits, at, inside: vec![place], ..Thing::default() });
    home.things.len() - 1
}

/// One of the receptacles of these kinds: first a kind that is there, then one of it.
fn pick_place(home: &Household, kinds: &[&str], rng: &mut Rng) -> Option<usize> {
    let of_kind = |kind: &&&str| home.receptacles.iter().any(|r| r.kind == type_name(kind));
    let there: Vec<&&str> = kinds.iter().filter(of_kind).collect();
    let kind = type_name(there.choose(rng)?);
    let all: Vec<usize> = (0..home.receptacles.len()).filter(|r| home.receptacles[*r].kind == kind).collect();
    all.choose(rng).copied()
}

/// Chooses what is asked for, and how it is said.
fn choose_task(home: &mut Household, kind: TaskKind, rng: &mut Rng) -> Option<()> {
    let enough = if kind == TaskKind::Two { 2 } else { 1 };
    let suits = |t: &Traits| match kind {
        TaskKind::Clean => t.cleanable,
        TaskKind::Heat => t.heatable,
        TaskKind::Cool => t.coolable,
        TaskKind::Place | TaskKind::Look | TaskKind::Two => true,
    };
    let count = |name: &str| home.things.iter().filter(|t| t.kind.as_deref() == Some(&type_name(name))).count();
    let things: Vec<_> = object_tables::KINDS.iter().filter(|k| suits(&k.traits) && count(k.name) >= enough).collect();
    let thing = things.choose(rng)?;
    let target = if kind == TaskKind::Look {
        home.things.iter().find(|t| t.traits.toggleable)?;
        "DeskLamp"
    } else {
        // Nothing is heated to be left in the microwave, nor cooled to be left in the fridge.
        let circular = |r: &str| matches!((kind, r), (TaskKind::Heat, "Microwave") | (TaskKind::Cool, "Fridge"));
        let there = |r: &&&str| home.receptacles.iter().any(|f| f.kind == type_name(r)) && !circular(r);
        let targets: Vec<&str> = thing.fits.iter().filter(there).copied().collect();
        *targets.choose(rng)?
    };
    home.goal = Goal { kind, thing: type_name(thing.name), target: type_name(target) };
    home.task = sentence(kind, &thing.name.to_lowercase(), &target.to_lowercase(), rng.random_bool(0.5));
    Some(())
}

/// The task in one of the official wordings.
fn sentence(kind: TaskKind, x: &str, r: &str, first: bool) -> String {
    let done = |adjective: &str, verb: &str| match first {
        true => format!("put a {adjective} {x} in {r}"),
        false => format!("{verb} some {x} and put it in {r}"),
    };
    let task = match (kind, first) {
        (TaskKind::Place, true) => format!("put a {x} in {r}"),
        (TaskKind::Place, false) => format!("put some {x} on {r}"),
        (TaskKind::Look, true) => format!("look at {x} under the {r}"),
        (TaskKind::Look, false) => format!("examine the {x} with the {r}"),
        (TaskKind::Clean, _) => done("clean", "clean"),
        (TaskKind::Heat, _) => done("hot", "heat"),
        (TaskKind::Cool, _) => done("cool", "cool"),
        (TaskKind::Two, true) => format!("put two {x} in {r}"),
        (TaskKind::Two, false) => format!("find two {x} and put them in {r}"),
    };
    format!("Your task is to: {task}.")
}

pub(super) fn type_name(name: &str) -> String {
    format!("{}type", name.to_lowercase())
}

/// A fresh identifier with made-up coordinates, spelt as PDDL needs it.
fn new_id(home: &Household, name: &str, rng: &mut Rng) -> String {
    loop {
        let mut id = name.to_lowercase();
        for _ in 0..3 {
            let centimetres: i32 = rng.random_range(-399..400);
            let sign = if centimetres < 0 { "minus" } else { "plus" };
            let (whole, part) = (centimetres.abs() / 100, centimetres.abs() % 100);
            let _ = write!(id, "_bar__{sign}_{whole:02}_dot_{part:02}");
        }
        let taken = home.things.iter().any(|t| t.id == id) || home.receptacles.iter().any(|r| r.id.starts_with(&id));
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
        let mut plans = [BTreeSet::new(), BTreeSet::new()];
        for (r, rooms) in [Rooms::Seen, Rooms::Unseen].into_iter().enumerate() {
            for kind in TaskKind::ALL {
                for i in 0..25 {
                    let made = generate(rooms, &[kind], Seed::new(i));
                    let world = World::new(&made.household);
                    assert_eq!(world.goal().kind, kind);
                    let mut s = world.start().clone();
                    assert!(!world.won(&s));
                    made.walkthrough.iter().for_each(|c| assert!(world.step(&mut s, c).1, "{c}"));
                    assert!(world.won(&s), "{}", made.household.task);
                    assert!((2..=LONGEST).contains(&made.walkthrough.len()));
                    plans[r].insert(made.plan);
                    assert_eq!(made.household, generate(rooms, &[kind], Seed::new(i)).household);
                }
            }
        }
        assert!(plans[0].is_disjoint(&plans[1]) && plans[0].len() > 40 && plans[1].len() > 15);
    }

    #[test]
    fn a_plan_keeps_its_furniture() {
        let by_plan = |i| {
            let made = generate(Rooms::Unseen, &[], Seed::new(i));
            (made.plan, made.household.receptacles)
        };
        let mut seen = std::collections::BTreeMap::new();
        let mut again = 0;
        for i in 0..60 {
            let (plan, furniture) = by_plan(i);
            again += usize::from(seen.contains_key(&plan));
            assert_eq!(*seen.entry(plan).or_insert_with(|| furniture.clone()), furniture);
        }
        assert!(again > 10);
    }
}
