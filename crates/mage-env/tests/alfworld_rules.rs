//! Rules and texts of ALFWorld: every quirk in a hand-made household, and random play in generated ones. Expected texts were
//! observed in the original.

use mage_env::{
    Env, ParsedAction, Seed,
    alfworld::{
        AlfworldEnv, Household, HouseholdObject, HouseholdState, HouseholdWorld, NOTHING_HAPPENS, ObjectProperties,
        Receptacle, RoomSplit, TaskGoal, TaskType, generate, initial_observation, problem, read_problem, solve,
    },
};
use rand::{RngExt, seq::IndexedRandom};
use std::{collections::BTreeSet, sync::Arc};

/// A kitchen: two counter tops at one location, a fridge, a microwave, a sink and a drawer.
fn kitchen(kind: TaskType, object: &str, target: &str) -> Household {
    let receptacle = |id: &str, kind: &str, location, openable| Receptacle {
        id: format!("{id}_bar_1"),
        kind: format!("{kind}type"),
        location,
        openable,
    };
    let can = |letters: &str| ObjectProperties {
        pickupable: letters.contains('p'),
        cleanable: letters.contains('c'),
        heatable: letters.contains('h'),
        coolable: letters.contains('l'),
        toggleable: letters.contains('t'),
        sliceable: letters.contains('s'),
        receptacle_object: letters.contains('v'),
    };
    let object_in = |id: &str, letters: &str, receptacle: usize, location: usize| HouseholdObject {
        kind: Some(format!("{}type", id.split('_').next().unwrap())),
        id: id.to_owned(),
        properties: can(letters),
        locations: vec![location],
        inside: vec![receptacle],
        ..HouseholdObject::default()
    };
    let mut objects = vec![
        object_in("apple_bar_a", "pchls", 2, 2),
        object_in("apple_bar_b", "pchls", 0, 1),
        object_in("knife_bar_a", "pc", 0, 1),
        object_in("bowl_bar_a", "pclv", 0, 1),
        object_in("egg_bar_a", "pchls", 0, 1),
        object_in("desklamp_bar_a", "t", 5, 5),
        object_in("pan_bar_a", "pclv", 0, 1),
    ];
    objects[3].contents = vec![4];
    objects[6].inside.push(3);
    objects[0].cool = true;
    let can_contain = ["countertop", "fridge", "microwave", "sinkbasin", "drawer"]
        .iter()
        .flat_map(|r| ["apple", "egg", "bowl", "pan", "knife"].map(|t| (format!("{r}type"), format!("{t}type"))));
    let no = [("drawertype", "appletype"), ("fridgetype", "knifetype"), ("microwavetype", "knifetype")];
    Household {
        agent: "agent1".to_owned(),
        locations: (0..6).map(|i| format!("loc_bar_{i}")).collect(),
        start: 0,
        receptacles: vec![
            receptacle("countertop", "countertop", 1, false),
            Receptacle { id: "countertop_bar_2".to_owned(), ..receptacle("countertop", "countertop", 1, false) },
            receptacle("fridge", "fridge", 2, true),
            receptacle("microwave", "microwave", 3, true),
            Receptacle { id: "sink_bar_1_bar_sinkbasin".to_owned(), ..receptacle("sink", "sinkbasin", 4, false) },
            receptacle("drawer", "drawer", 5, true),
        ],
        objects,
        can_contain: can_contain.filter(|(r, t)| !no.contains(&(r.as_str(), t.as_str()))).collect(),
        goal: TaskGoal { kind, object: format!("{object}type"), target: format!("{target}type") },
        task: "Your task is to: have a look around.".to_owned(),
    }
}

struct Play {
    world: HouseholdWorld,
    state: HouseholdState,
}

impl Play {
    fn new(household: &Household) -> Self {
        let world = HouseholdWorld::new(household);
        Play { state: world.start().clone(), world }
    }

    fn feedback(&mut self, command: &str) -> String {
        self.world.step(&mut self.state, command).0
    }

    /// Executes commands, all of which must be admissible.
    fn run(&mut self, commands: &[&str]) -> &mut Self {
        for c in commands {
            let (feedback, allowed) = self.world.step(&mut self.state, c);
            assert!(allowed && feedback != NOTHING_HAPPENS, "{c}");
        }
        self
    }

    fn admissible(&self) -> Vec<String> {
        self.world.admissible_commands(&self.state).into_iter().map(|c| self.world.format_command(c)).collect()
    }
}

#[test]
fn the_initial_observation_lists_receptacles_in_identifier_order() {
    let mut play = Play::new(&kitchen(TaskType::Place, "apple", "sinkbasin"));
    assert_eq!(
        initial_observation(&play.world),
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a \
         countertop 2, a countertop 1, a drawer 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\nYour task is to: have a \
         look around."
    );
    assert_eq!(play.feedback("look"), "You are in the middle of a room. Looking quickly around you, you see nothing.");
    assert_eq!(play.feedback("inventory"), "You are not carrying anything.");
    assert!(
        play.feedback("help").starts_with("Available commands:\n  look:  ")
            && play.feedback("help").ends_with("object\n")
    );
    assert_eq!(
        play.admissible(),
        [
            "go to countertop 1",
            "go to countertop 2",
            "go to drawer 1",
            "go to fridge 1",
            "go to microwave 1",
            "go to sinkbasin 1",
            "help",
            "inventory",
            "look"
        ]
    );
}

#[test]
fn commands_must_be_exact_except_for_surrounding_white_space() {
    let mut play = Play::new(&kitchen(TaskType::Place, "apple", "sinkbasin"));
    for wrong in
        ["", "go", "go to", "Look", "go to fridge", "go to fridge 2", "go to  fridge 1", "go to apple 1", "look now"]
    {
        assert_eq!(play.feedback(wrong), NOTHING_HAPPENS, "{wrong}");
    }
    assert_eq!(play.feedback("  go to fridge 1\n"), "You arrive at fridge 1. The fridge 1 is closed.");
    assert_eq!(play.feedback("go to fridge 1"), NOTHING_HAPPENS, "the agent is already there");
    assert_eq!(play.feedback("take apple 2 from fridge 1"), NOTHING_HAPPENS, "it is closed");
    assert_eq!(
        play.feedback("open fridge 1"),
        "You open the fridge 1. The fridge 1 is open. In it, you see a apple 2."
    );
    assert_eq!(play.feedback("open fridge 1"), NOTHING_HAPPENS);
    assert_eq!(play.feedback("examine apple 2"), NOTHING_HAPPENS, "only held objects can be examined");
    assert_eq!(play.feedback("close fridge 1"), "You close the fridge 1.");
}

#[test]
fn receptacles_at_one_location_are_all_reachable() {
    let mut play = Play::new(&kitchen(TaskType::Place, "apple", "sinkbasin"));
    assert_eq!(
        play.feedback("go to countertop 1"),
        "You arrive at countertop 1. On the countertop 1, you see nothing.",
        "the first identifier has the highest number"
    );
    assert_eq!(
        play.feedback("examine countertop 2"),
        "On the countertop 2, you see a apple 1, a bowl 1, a egg 1, a knife 1, and a pan 1."
    );
    assert_eq!(
        play.feedback("look"),
        "You are facing the countertop 2, and countertop 1. Next to it, you see nothing."
    );
    play.run(&["take egg 1 from countertop 2", "move egg 1 to countertop 1"]);
    assert_eq!(
        play.feedback("look"),
        "You are facing the countertop 2, and countertop 1. Next to it, you see a egg 1."
    );
    play.run(&["take egg 1 from countertop 1", "move egg 1 to countertop 2"]);
    assert_eq!(
        play.feedback("look"),
        "You are facing the countertop 2, and countertop 1. Next to it, you see a egg 1.",
        "taken from the other countertop and not put back there"
    );
}

#[test]
fn an_object_in_two_receptacles_stays_in_one_when_taken() {
    let mut play = Play::new(&kitchen(TaskType::Place, "pan", "fridge"));
    play.run(&["go to countertop 2", "take pan 1 from countertop 2", "go to microwave 1"]);
    assert_eq!(
        play.feedback("open microwave 1"),
        "You open the microwave 1. The microwave 1 is open. In it, you see a pan 1."
    );
    assert_eq!(play.feedback("inventory"), "You are carrying: a pan 1.");
}

#[test]
fn examine_reports_clean_hot_and_cool() {
    let mut play = Play::new(&kitchen(TaskType::Place, "egg", "drawer"));
    play.run(&["go to countertop 1", "take apple 1 from countertop 2"]);
    assert_eq!(play.feedback("examine apple 1"), "There's nothing special about apple 1.");
    play.run(&["go to microwave 1"]);
    assert_eq!(
        play.feedback("heat apple 1 with microwave 1"),
        "You heat the apple 1 using the microwave 1.",
        "the microwave may be closed"
    );
    assert_eq!(play.feedback("examine apple 1"), "This is a hot apple 1.");
    play.run(&["go to sinkbasin 1"]);
    assert_eq!(play.feedback("clean apple 1 with sinkbasin 1"), "You clean the apple 1 using the sinkbasin 1.");
    assert_eq!(play.feedback("examine apple 1"), "This is a hot and clean apple 1.");
    play.run(&["go to fridge 1"]);
    assert_eq!(play.feedback("cool apple 1 with fridge 1"), "You cool the apple 1 using the fridge 1.");
    assert_eq!(play.feedback("examine apple 1"), "This is a cool and clean apple 1.");
    assert_eq!(play.feedback("move apple 1 to fridge 1"), NOTHING_HAPPENS, "the fridge is closed");
    play.run(&["open fridge 1", "move apple 1 to fridge 1", "take apple 2 from fridge 1"]);
    assert_eq!(
        play.feedback("examine apple 2"),
        "This is a cold apple 2.",
        "initially cool, which the original calls cold"
    );
    assert!(play.admissible().contains(&"cool apple 2 with fridge 1".to_owned()));
}

#[test]
fn knives_slice_objects_here_even_in_closed_receptacles() {
    let mut play = Play::new(&kitchen(TaskType::Place, "egg", "drawer"));
    play.run(&["go to countertop 1", "take knife 1 from countertop 2"]);
    assert_eq!(
        play.admissible().into_iter().filter(|c| c.starts_with("slice")).collect::<Vec<_>>(),
        ["slice apple 1 with knife 1", "slice egg 1 with knife 1"]
    );
    assert_eq!(play.feedback("slice apple 1 with knife 1"), "You sliced the apple 1 with the knife 1.");
    play.run(&["go to fridge 1"]);
    assert_eq!(play.feedback("slice apple 2 with knife 1"), "You sliced the apple 2 with the knife 1.");
    play.run(&["go to countertop 2", "move knife 1 to countertop 1", "go to fridge 1", "open fridge 1"]);
    play.run(&["take apple 2 from fridge 1"]);
    assert_eq!(play.feedback("examine apple 2"), "This is a cool sliced apple 2.");
    play.run(&["go to microwave 1", "heat apple 2 with microwave 1"]);
    assert_eq!(play.feedback("examine apple 2"), "This is a hot sliced apple 2.");
    play.run(&["go to sinkbasin 1", "clean apple 2 with sinkbasin 1"]);
    assert_eq!(play.feedback("examine apple 2"), "This is a hot and clean sliced apple 2.");
}

#[test]
fn receptacle_objects_hide_their_flags_and_keep_their_contents() {
    let mut play = Play::new(&kitchen(TaskType::Place, "egg", "drawer"));
    play.run(&["go to countertop 1", "take bowl 1 from countertop 2", "go to sinkbasin 1"]);
    play.run(&["clean bowl 1 with sinkbasin 1"]);
    assert_eq!(play.feedback("examine bowl 1"), "This is a normal bowl 1. In it, you see a egg 1.");
    assert_eq!(play.feedback("move bowl 1 to sinkbasin 1"), "You move the bowl 1 to the sinkbasin 1.");
}

#[test]
fn lamps_are_used_through_closed_doors_and_stay_on() {
    let mut play = Play::new(&kitchen(TaskType::Look, "egg", "desklamp"));
    play.run(&["go to drawer 1"]);
    assert_eq!(play.feedback("use desklamp 1"), "You turn on the desklamp 1.");
    assert_eq!(play.feedback("use desklamp 1"), "You turn on the desklamp 1.");
    assert!(!play.world.won(&play.state), "nothing is held");
    play.run(&["go to countertop 1", "take egg 1 from countertop 2"]);
    assert!(!play.world.won(&play.state), "the lamp is elsewhere");
    play.run(&["go to drawer 1"]);
    assert!(play.world.won(&play.state));
}

#[test]
fn goals_refer_to_types() {
    let solved = |kind, object: &str, target: &str, commands: &[&str]| {
        let mut play = Play::new(&kitchen(kind, object, target));
        let before = commands.len() - 1;
        play.run(&commands[..before]);
        assert!(!play.world.won(&play.state), "{commands:?}");
        play.run(&commands[before..]);
        play.world.won(&play.state)
    };
    let fetch = ["go to countertop 1", "take apple 1 from countertop 2"];
    assert!(solved(
        TaskType::Place,
        "apple",
        "sinkbasin",
        &[&fetch[..], &["go to sinkbasin 1", "move apple 1 to sinkbasin 1"]].concat()
    ));
    assert!(solved(
        TaskType::Clean,
        "apple",
        "sinkbasin",
        &[&fetch[..], &["go to sinkbasin 1", "clean apple 1 with sinkbasin 1", "move apple 1 to sinkbasin 1"]].concat()
    ));
    let open = ["go to fridge 1", "open fridge 1"];
    assert!(solved(TaskType::Two, "apple", "fridge", &[&fetch[..], &open, &["move apple 1 to fridge 1"]].concat()));
    assert!(!solved(TaskType::Two, "egg", "fridge", &[&fetch[..], &open, &["move apple 1 to fridge 1"]].concat()));
    let cold = ["go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to countertop 1"];
    assert!(solved(TaskType::Cool, "apple", "countertop", &[&cold[..], &["move apple 2 to countertop 1"]].concat()));
    assert!(!solved(TaskType::Heat, "apple", "countertop", &[&cold[..], &["move apple 2 to countertop 1"]].concat()));
}

#[test]
fn admissible_commands_are_exact_and_sorted() {
    for i in 0..12 {
        let made = generate(RoomSplit::Seen, &[], Seed::new(i));
        let mut play = Play::new(&made.household);
        let names: Vec<String> = {
            // Every receptacle name, from the initial observation.
            let text = problem(&made.household);
            let again = HouseholdWorld::new(&read_problem(&text, "x").unwrap());
            let all = initial_observation(&again);
            all.split(['.', ',']).filter_map(|p| p.split(" a ").nth(1)).map(str::to_owned).collect()
        };
        assert!(names.len() > 3);
        let mut rng = Seed::new(i).child("walk").rng();
        for _ in 0..120 {
            let admissible = play.admissible();
            assert!(admissible.is_sorted_by(|a, b| a < b), "{admissible:?}");
            let admissible_set: BTreeSet<&str> = admissible.iter().map(String::as_str).collect();
            for name in &names {
                for command in [
                    format!("go to {name}"),
                    format!("open {name}"),
                    format!("close {name}"),
                    format!("examine {name}"),
                ] {
                    let mut copy = play.state.clone();
                    let (feedback, allowed) = play.world.step(&mut copy, &command);
                    assert_eq!(allowed, admissible_set.contains(command.as_str()), "{command}");
                    assert!(allowed || (feedback == NOTHING_HAPPENS && copy == play.state));
                }
            }
            let effective: Vec<&String> =
                admissible.iter().filter(|c| !c.starts_with("go to") && !c.starts_with("examine")).collect();
            let command = if rng.random_bool(0.5) {
                *effective.choose(&mut rng).unwrap()
            } else {
                admissible.choose(&mut rng).unwrap()
            };
            let command = command.as_str();
            assert_ne!(play.feedback(command), NOTHING_HAPPENS, "{command} was admissible");
        }
    }
}

#[test]
fn the_expert_solves_games_from_any_state() {
    let mut longest = 0;
    for i in 0..60 {
        let made = generate(RoomSplit::Unseen, &[], Seed::new(i));
        let mut play = Play::new(&made.household);
        let mut rng = Seed::new(i).child("mess").rng();
        for _ in 0..40 {
            let command = play.admissible().choose(&mut rng).unwrap().clone();
            play.feedback(&command);
            let plan = solve(&play.world, &play.state).expect("every state is solvable");
            longest = longest.max(plan.len());
        }
        for command in solve(&play.world, &play.state).unwrap() {
            let text = play.world.format_command(command);
            play.run(&[&text]);
        }
        assert!(play.world.won(&play.state));
    }
    assert!((8..=16).contains(&longest), "{longest}");
}

#[test]
fn an_episode_ends_when_the_task_is_done_and_resets_to_the_same_state() {
    let made = generate(RoomSplit::Seen, &[TaskType::Heat], Seed::new(5));
    let mut env = AlfworldEnv::new(Arc::new(HouseholdWorld::new(&made.household)));
    let first = env.reset(0);
    let mut last = None;
    for command in &made.walkthrough {
        assert!(env.legal().unwrap().contains(command) && !env.legal().unwrap().contains(&"help".to_owned()));
        let action = env.parse(&format!(" {} ", command.to_uppercase()));
        assert_eq!(action, ParsedAction::Act(command.clone()), "actions are lower-cased");
        let before = env.anchor();
        let step = env.step(&action);
        assert!(step.valid);
        assert_ne!(env.anchor(), before, "every step of a solution changes the anchor");
        last = step.end;
    }
    assert!(matches!(last, Some(mage_env::End::Terminated { outcome: mage_env::Outcome::Won, score: 1.0 })));
    assert_eq!(env.reset(1), first);
    let step = env.step(&env.parse("fly to the moon"));
    assert_eq!(
        (step.valid, step.reward, step.end, step.observation.text.as_str()),
        (false, 0.0, None, NOTHING_HAPPENS)
    );
    assert!(matches!(env.parse("  "), ParsedAction::Invalid { .. }));
}
