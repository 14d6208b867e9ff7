//! The rules and sentences of ALFWorld in a home made by hand, quirk by quirk, and in generated homes at random. What is
//! expected here was seen in the original.

use mage_env::{
    Env, ParsedAction, Seed,
    alfworld::{
        AlfworldEnv, Goal, Household, NOTHING, Receptacle, Rooms, State, TaskKind, Thing, Traits, World, generate,
        opening, problem, read_problem, solve,
    },
};
use rand::{RngExt, seq::IndexedRandom};
use std::{collections::BTreeSet, sync::Arc};

/// A kitchen: two counter tops at one location, a fridge, a microwave, a sink and a drawer.
fn kitchen(kind: TaskKind, thing: &str, target: &str) -> Household {
    let receptacle = |id: &str, kind: &str, at, openable| Receptacle {
        id: format!("{id}_bar_1"),
        kind: format!("{kind}type"),
        at,
        openable,
    };
    let can = |letters: &str| Traits {
        pickupable: letters.contains('p'),
        cleanable: letters.contains('c'),
        heatable: letters.contains('h'),
        coolable: letters.contains('l'),
        toggleable: letters.contains('t'),
        sliceable: letters.contains('s'),
        vessel: letters.contains('v'),
    };
    let thing_in = |id: &str, letters: &str, place: usize, at: usize| Thing {
        kind: Some(format!("{}type", id.split('_').next().unwrap())),
        id: id.to_owned(),
        traits: can(letters),
        at: vec![at],
        inside: vec![place],
        ..Thing::default()
    };
    let mut things = vec![
        thing_in("apple_bar_a", "pchls", 2, 2),
        thing_in("apple_bar_b", "pchls", 0, 1),
        thing_in("knife_bar_a", "pc", 0, 1),
        thing_in("bowl_bar_a", "pclv", 0, 1),
        thing_in("egg_bar_a", "pchls", 0, 1),
        thing_in("desklamp_bar_a", "t", 5, 5),
        thing_in("pan_bar_a", "pclv", 0, 1),
    ];
    things[3].contents = vec![4];
    things[6].inside.push(3);
    things[0].cool = true;
    let fits = ["countertop", "fridge", "microwave", "sinkbasin", "drawer"]
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
        things,
        fits: fits.filter(|(r, t)| !no.contains(&(r.as_str(), t.as_str()))).collect(),
        goal: Goal { kind, thing: format!("{thing}type"), target: format!("{target}type") },
        task: "Your task is to: have a look around.".to_owned(),
    }
}

struct Play {
    world: World,
    state: State,
}

impl Play {
    fn new(household: &Household) -> Self {
        let world = World::new(household);
        Play { state: world.start().clone(), world }
    }

    fn say(&mut self, command: &str) -> String {
        self.world.step(&mut self.state, command).0
    }

    /// Says all of them; none may be refused.
    fn go_through(&mut self, commands: &[&str]) -> &mut Self {
        for c in commands {
            let (seen, allowed) = self.world.step(&mut self.state, c);
            assert!(allowed && seen != NOTHING, "{c}");
        }
        self
    }

    fn offers(&self) -> Vec<String> {
        self.world.admissible(&self.state).into_iter().map(|c| self.world.write(c)).collect()
    }
}

#[test]
fn the_opening_lists_everything_in_the_order_of_identifiers() {
    let mut play = Play::new(&kitchen(TaskKind::Place, "apple", "sinkbasin"));
    assert_eq!(
        opening(&play.world),
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a \
         countertop 2, a countertop 1, a drawer 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\nYour task is to: have a \
         look around."
    );
    assert_eq!(play.say("look"), "You are in the middle of a room. Looking quickly around you, you see nothing.");
    assert_eq!(play.say("inventory"), "You are not carrying anything.");
    assert!(play.say("help").starts_with("Available commands:\n  look:  ") && play.say("help").ends_with("object\n"));
    assert_eq!(
        play.offers(),
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
fn only_exact_commands_count_and_white_space_around_them_does_not() {
    let mut play = Play::new(&kitchen(TaskKind::Place, "apple", "sinkbasin"));
    for wrong in
        ["", "go", "go to", "Look", "go to fridge", "go to fridge 2", "go to  fridge 1", "go to apple 1", "look now"]
    {
        assert_eq!(play.say(wrong), NOTHING, "{wrong}");
    }
    assert_eq!(play.say("  go to fridge 1\n"), "You arrive at fridge 1. The fridge 1 is closed.");
    assert_eq!(play.say("go to fridge 1"), NOTHING, "one is there already");
    assert_eq!(play.say("take apple 2 from fridge 1"), NOTHING, "it is closed");
    assert_eq!(play.say("open fridge 1"), "You open the fridge 1. The fridge 1 is open. In it, you see a apple 2.");
    assert_eq!(play.say("open fridge 1"), NOTHING);
    assert_eq!(play.say("examine apple 2"), NOTHING, "only what is held can be examined");
    assert_eq!(play.say("close fridge 1"), "You close the fridge 1.");
}

#[test]
fn places_at_one_location_are_all_in_reach() {
    let mut play = Play::new(&kitchen(TaskKind::Place, "apple", "sinkbasin"));
    assert_eq!(
        play.say("go to countertop 1"),
        "You arrive at countertop 1. On the countertop 1, you see nothing.",
        "the first identifier has the highest number"
    );
    assert_eq!(
        play.say("examine countertop 2"),
        "On the countertop 2, you see a apple 1, a bowl 1, a egg 1, a knife 1, and a pan 1."
    );
    assert_eq!(play.say("look"), "You are facing the countertop 2, and countertop 1. Next to it, you see nothing.");
    play.go_through(&["take egg 1 from countertop 2", "move egg 1 to countertop 1"]);
    assert_eq!(play.say("look"), "You are facing the countertop 2, and countertop 1. Next to it, you see a egg 1.");
    play.go_through(&["take egg 1 from countertop 1", "move egg 1 to countertop 2"]);
    assert_eq!(
        play.say("look"),
        "You are facing the countertop 2, and countertop 1. Next to it, you see a egg 1.",
        "taken from the other one and not put back there"
    );
}

#[test]
fn a_thing_may_be_in_two_places_and_stays_in_one_of_them_when_taken() {
    let mut play = Play::new(&kitchen(TaskKind::Place, "pan", "fridge"));
    play.go_through(&["go to countertop 2", "take pan 1 from countertop 2", "go to microwave 1"]);
    assert_eq!(
        play.say("open microwave 1"),
        "You open the microwave 1. The microwave 1 is open. In it, you see a pan 1."
    );
    assert_eq!(play.say("inventory"), "You are carrying: a pan 1.");
}

#[test]
fn what_was_done_to_a_thing_shows_when_it_is_examined() {
    let mut play = Play::new(&kitchen(TaskKind::Place, "egg", "drawer"));
    play.go_through(&["go to countertop 1", "take apple 1 from countertop 2"]);
    assert_eq!(play.say("examine apple 1"), "There's nothing special about apple 1.");
    play.go_through(&["go to microwave 1"]);
    assert_eq!(
        play.say("heat apple 1 with microwave 1"),
        "You heat the apple 1 using the microwave 1.",
        "closed or not"
    );
    assert_eq!(play.say("examine apple 1"), "This is a hot apple 1.");
    play.go_through(&["go to sinkbasin 1"]);
    assert_eq!(play.say("clean apple 1 with sinkbasin 1"), "You clean the apple 1 using the sinkbasin 1.");
    assert_eq!(play.say("examine apple 1"), "This is a hot and clean apple 1.");
    play.go_through(&["go to fridge 1"]);
    assert_eq!(play.say("cool apple 1 with fridge 1"), "You cool the apple 1 using the fridge 1.");
    assert_eq!(play.say("examine apple 1"), "This is a cool and clean apple 1.");
    assert_eq!(play.say("move apple 1 to fridge 1"), NOTHING, "the fridge is closed");
    play.go_through(&["open fridge 1", "move apple 1 to fridge 1", "take apple 2 from fridge 1"]);
    assert_eq!(play.say("examine apple 2"), "This is a cold apple 2.", "cool from the start, and another word for it");
    assert!(play.offers().contains(&"cool apple 2 with fridge 1".to_owned()));
}

#[test]
fn knives_slice_what_is_here_even_behind_a_door() {
    let mut play = Play::new(&kitchen(TaskKind::Place, "egg", "drawer"));
    play.go_through(&["go to countertop 1", "take knife 1 from countertop 2"]);
    assert_eq!(
        play.offers().into_iter().filter(|c| c.starts_with("slice")).collect::<Vec<_>>(),
        ["slice apple 1 with knife 1", "slice egg 1 with knife 1"]
    );
    assert_eq!(play.say("slice apple 1 with knife 1"), "You sliced the apple 1 with the knife 1.");
    play.go_through(&["go to fridge 1"]);
    assert_eq!(play.say("slice apple 2 with knife 1"), "You sliced the apple 2 with the knife 1.");
    play.go_through(&["go to countertop 2", "move knife 1 to countertop 1", "go to fridge 1", "open fridge 1"]);
    play.go_through(&["take apple 2 from fridge 1"]);
    assert_eq!(play.say("examine apple 2"), "This is a cool sliced apple 2.");
    play.go_through(&["go to microwave 1", "heat apple 2 with microwave 1"]);
    assert_eq!(play.say("examine apple 2"), "This is a hot sliced apple 2.");
    play.go_through(&["go to sinkbasin 1", "clean apple 2 with sinkbasin 1"]);
    assert_eq!(play.say("examine apple 2"), "This is a hot and clean sliced apple 2.");
}

#[test]
fn vessels_hide_what_was_done_to_them_and_never_change_what_is_in_them() {
    let mut play = Play::new(&kitchen(TaskKind::Place, "egg", "drawer"));
    play.go_through(&["go to countertop 1", "take bowl 1 from countertop 2", "go to sinkbasin 1"]);
    play.go_through(&["clean bowl 1 with sinkbasin 1"]);
    assert_eq!(play.say("examine bowl 1"), "This is a normal bowl 1. In it, you see a egg 1.");
    assert_eq!(play.say("move bowl 1 to sinkbasin 1"), "You move the bowl 1 to the sinkbasin 1.");
}

#[test]
fn lamps_are_used_through_closed_doors_and_stay_on() {
    let mut play = Play::new(&kitchen(TaskKind::Look, "egg", "desklamp"));
    play.go_through(&["go to drawer 1"]);
    assert_eq!(play.say("use desklamp 1"), "You turn on the desklamp 1.");
    assert_eq!(play.say("use desklamp 1"), "You turn on the desklamp 1.");
    assert!(!play.world.won(&play.state), "nothing is held");
    play.go_through(&["go to countertop 1", "take egg 1 from countertop 2"]);
    assert!(!play.world.won(&play.state), "the lamp is elsewhere");
    play.go_through(&["go to drawer 1"]);
    assert!(play.world.won(&play.state));
}

#[test]
fn goals_are_about_kinds() {
    let solved = |kind, thing: &str, target: &str, commands: &[&str]| {
        let mut play = Play::new(&kitchen(kind, thing, target));
        let before = commands.len() - 1;
        play.go_through(&commands[..before]);
        assert!(!play.world.won(&play.state), "{commands:?}");
        play.go_through(&commands[before..]);
        play.world.won(&play.state)
    };
    let fetch = ["go to countertop 1", "take apple 1 from countertop 2"];
    assert!(solved(
        TaskKind::Place,
        "apple",
        "sinkbasin",
        &[&fetch[..], &["go to sinkbasin 1", "move apple 1 to sinkbasin 1"]].concat()
    ));
    assert!(solved(
        TaskKind::Clean,
        "apple",
        "sinkbasin",
        &[&fetch[..], &["go to sinkbasin 1", "clean apple 1 with sinkbasin 1", "move apple 1 to sinkbasin 1"]].concat()
    ));
    let open = ["go to fridge 1", "open fridge 1"];
    assert!(solved(TaskKind::Two, "apple", "fridge", &[&fetch[..], &open, &["move apple 1 to fridge 1"]].concat()));
    assert!(!solved(TaskKind::Two, "egg", "fridge", &[&fetch[..], &open, &["move apple 1 to fridge 1"]].concat()));
    let cold = ["go to fridge 1", "open fridge 1", "take apple 2 from fridge 1", "go to countertop 1"];
    assert!(solved(TaskKind::Cool, "apple", "countertop", &[&cold[..], &["move apple 2 to countertop 1"]].concat()));
    assert!(!solved(TaskKind::Heat, "apple", "countertop", &[&cold[..], &["move apple 2 to countertop 1"]].concat()));
}

#[test]
fn offers_are_exactly_what_is_allowed_in_the_order_of_words() {
    for i in 0..12 {
        let made = generate(Rooms::Seen, &[], Seed::new(i));
        let mut play = Play::new(&made.household);
        let names: Vec<String> = {
            // Every name a command could use, from the opening and from what is offered along the way.
            let text = problem(&made.household);
            let again = World::new(&read_problem(&text, "x").unwrap());
            let all = opening(&again);
            all.split(['.', ',']).filter_map(|p| p.split(" a ").nth(1)).map(str::to_owned).collect()
        };
        assert!(names.len() > 3);
        let mut rng = Seed::new(i).child("walk").rng();
        for _ in 0..120 {
            let offers = play.offers();
            assert!(offers.is_sorted_by(|a, b| a < b), "{offers:?}");
            let offered: BTreeSet<&str> = offers.iter().map(String::as_str).collect();
            for name in &names {
                for command in [
                    format!("go to {name}"),
                    format!("open {name}"),
                    format!("close {name}"),
                    format!("examine {name}"),
                ] {
                    let mut copy = play.state.clone();
                    let (seen, allowed) = play.world.step(&mut copy, &command);
                    assert_eq!(allowed, offered.contains(command.as_str()), "{command}");
                    assert!(allowed || (seen == NOTHING && copy == play.state));
                }
            }
            let busy: Vec<&String> =
                offers.iter().filter(|c| !c.starts_with("go to") && !c.starts_with("examine")).collect();
            let command =
                if rng.random_bool(0.5) { *busy.choose(&mut rng).unwrap() } else { offers.choose(&mut rng).unwrap() };
            let command = command.as_str();
            assert_ne!(play.say(command), NOTHING, "{command} was offered");
        }
    }
}

#[test]
fn the_expert_solves_games_from_wherever_they_are() {
    let mut longest = 0;
    for i in 0..60 {
        let made = generate(Rooms::Unseen, &[], Seed::new(i));
        let mut play = Play::new(&made.household);
        let mut rng = Seed::new(i).child("mess").rng();
        for _ in 0..40 {
            let command = play.offers().choose(&mut rng).unwrap().clone();
            play.say(&command);
            let way = solve(&play.world, &play.state).expect("nothing is ever lost");
            longest = longest.max(way.len());
        }
        for command in solve(&play.world, &play.state).unwrap() {
            let text = play.world.write(command);
            play.go_through(&[&text]);
        }
        assert!(play.world.won(&play.state));
    }
    assert!((8..=16).contains(&longest), "{longest}");
}

#[test]
fn an_episode_ends_when_the_task_is_done_and_starts_over_the_same() {
    let made = generate(Rooms::Seen, &[TaskKind::Heat], Seed::new(5));
    let mut env = AlfworldEnv::new(Arc::new(World::new(&made.household)));
    let first = env.reset(0);
    let mut last = None;
    for command in &made.walkthrough {
        assert!(env.legal().unwrap().contains(command) && !env.legal().unwrap().contains(&"help".to_owned()));
        let action = env.parse(&format!(" {} ", command.to_uppercase()));
        assert_eq!(action, ParsedAction::Act(command.clone()), "capitals are forgiven");
        let before = env.anchor();
        let step = env.step(&action);
        assert!(step.valid);
        assert_ne!(env.anchor(), before, "every step of a solution changes what is known here");
        last = step.end;
    }
    assert!(matches!(last, Some(mage_env::End::Terminated { outcome: mage_env::Outcome::Won, score: 1.0 })));
    assert_eq!(env.reset(1), first);
    let step = env.step(&env.parse("fly to the moon"));
    assert_eq!((step.valid, step.reward, step.end, step.observation.text.as_str()), (false, 0.0, None, NOTHING));
    assert!(matches!(env.parse("  "), ParsedAction::Invalid { .. }));
}
