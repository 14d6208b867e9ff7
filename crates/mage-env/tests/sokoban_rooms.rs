//! Generated rooms: solvability, determinism, splits and option errors.

use mage_env::{
    End, EnvId, OptionMap, Outcome, ParsedAction, Population, Registry, Seed, Task,
    sokoban::{Generator, RoomConfig, SokobanBoard, SokobanEpisode, SolvabilityChecker, plan, shortest_path},
};

/// Checks that every room's shortest solution lies within the window. The forward search is independent of the
/// generator's retrograde table; the solution is replayed by the rules.
fn every_room_is_solvable_within_the_window(seeds: impl Iterator<Item = u32>, boxes: usize) {
    let config = RoomConfig { boxes, ..RoomConfig::default() };
    let mut generator = Generator::new(config).unwrap();
    for seed in seeds {
        let room = generator.room(seed).unwrap();
        let (board, start) = SokobanBoard::new(&room.level).unwrap();
        let path = shortest_path(&board, start, config.max_solution).expect("solvable");
        assert!(path.len() as u32 >= config.min_solution, "seed {seed}: {} moves", path.len());
        assert_eq!(room.solution, Some(path.len() as u32));
        let mut play = SokobanEpisode::new(&board, start);
        let mut solvable = SolvabilityChecker::new(config.search_depth);
        let (last, before) = path.split_last().unwrap();
        for direction in before {
            assert_eq!(play.step(&board, Some(*direction), 30, &mut solvable).termination, None, "seed {seed}");
        }
        assert!(play.step(&board, Some(*last), 30, &mut solvable).solved, "seed {seed}");
    }
}

#[test]
fn rooms_are_solvable_within_the_window() {
    for boxes in 1..=3 {
        every_room_is_solvable_within_the_window((0..200).chain([u32::MAX]), boxes);
    }
}

#[test]
#[cfg_attr(not(feature = "long"), ignore = "ten thousand rooms; run with --features long")]
fn ten_thousand_rooms_are_solvable_within_the_window() {
    every_room_is_solvable_within_the_window(0..10_000, 2);
    every_room_is_solvable_within_the_window(0..2_000, 1);
    every_room_is_solvable_within_the_window(0..2_000, 3);
}

#[test]
fn a_seed_determines_its_room_regardless_of_generator_history() {
    let mut used = Generator::new(RoomConfig::default()).unwrap();
    for seed in [5, 3, 3, 9, 5] {
        let fresh = Generator::new(RoomConfig::default()).unwrap().room(seed).unwrap();
        assert_eq!(used.room(seed).unwrap(), fresh);
    }
}

#[test]
fn rooms_larger_than_64_cells_are_generated_and_planned() {
    let config = RoomConfig {
        rows: 11,
        cols: 11,
        boxes: 2,
        search_depth: 20,
        min_solution: 3,
        max_solution: 60,
        keep_out_of_window: false,
    };
    let mut generator = Generator::new(config).unwrap();
    for seed in 0..5 {
        let room = generator.room(seed).unwrap();
        let (board, start) = SokobanBoard::new(&room.level).unwrap();
        assert_eq!(plan(&board, start).map(|p| p.len() as u32), room.solution);
    }
}

#[test]
fn infeasible_configurations_are_rejected() {
    let err = |s: RoomConfig| match Generator::new(s).map(|mut g| g.room(1)) {
        Err(e) | Ok(Err(e)) => e.to_string(),
        Ok(Ok(room)) => panic!("{room:?}"),
    };
    let base = RoomConfig::default();
    assert!(err(RoomConfig { rows: 3, ..base }).contains("at least 4"));
    assert!(err(RoomConfig { rows: 99, cols: 99, ..base }).contains("127 cells"));
    assert!(err(RoomConfig { boxes: 0, ..base }).contains("number of boxes: 0"));
    assert!(err(RoomConfig { min_solution: 9, max_solution: 8, ..base }).contains("9 to 8 moves"));
    assert!(err(RoomConfig { rows: 4, cols: 4, boxes: 3, ..base }).contains("no 4x4 room with 3 boxes"));
}

fn task(population: &Population, split: &str, seed: u64) -> Task {
    population.sample_task(split, 1, Seed::new(seed)).unwrap()
}

#[test]
fn splits_differ_in_boxes_and_rooms() {
    let registry = Registry::builtin();
    let population = registry.get("sokoban").unwrap().default_population();
    registry.get("sokoban").unwrap().check(&population).unwrap();
    let boxes = |split: &str| -> Vec<usize> {
        let count = |seed| {
            let start = registry.build(&task(&population, split, seed)).unwrap().reset(0);
            start.compact.chars().filter(|c| *c == '$').count()
        };
        (0..40).map(count).collect()
    };
    assert!(boxes("train").iter().chain(&boxes("in-domain")).all(|n| *n == 2));
    let other = boxes("out-of-domain");
    assert!(other.contains(&1) && other.contains(&3) && !other.contains(&2));
    let seeds = |split: &str| task(&population, split, 1).options.0["seeds"].clone();
    assert_eq!(seeds("train"), serde_json::json!([0, 65_535]));
    assert_eq!(seeds("in-domain"), serde_json::json!([65_536, 4_294_967_295_u64]));
}

#[test]
fn a_task_is_the_same_room_in_every_copy_and_episode() {
    let registry = Registry::builtin();
    let population = registry.get("sokoban").unwrap().default_population();
    for seed in 0..20 {
        let task = task(&population, "train", seed);
        let (mut a, mut b) = (registry.build(&task).unwrap(), registry.build(&task).unwrap());
        let first = a.reset(0);
        a.step(&ParsedAction::Act("up left right".to_owned()));
        assert_eq!(a.reset(1), first);
        assert_eq!(b.reset(7), first);
        assert_eq!(a.anchor(), b.anchor());
        assert_eq!(a.anchor().0, first.text);
    }
}

#[test]
fn invalid_options_are_named() {
    let registry = Registry::builtin();
    let err = |options: OptionMap| {
        let task = Task { env: EnvId::new("sokoban"), options, opponent: None, seat: 0, seed: Seed::new(1) };
        registry.build(&task).map(drop).unwrap_err().to_string()
    };
    let with = |key: &str, value: serde_json::Value| OptionMap::default().with(key, value);
    assert!(err(with("boxs", 2.into())).contains("unknown field `boxs`"));
    assert!(err(with("boxes", serde_json::json!([]))).contains("empty list"));
    assert!(err(with("seeds", serde_json::json!([5, 5]))).contains("is an empty range"));
    assert!(err(with("moves_per_action", 0.into())).contains("1 to 100"));
    assert!(err(with("step_rules", "fair".into())).contains("corrected"));
    let missing = err(with("levels", "no/such/file.txt".into()));
    assert!(missing.starts_with("no/such/file.txt: no such level file or directory") && missing.contains("MAGE_DATA"));
    let folder = std::env::temp_dir().join(format!("mage-sokoban-levels-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let levels = || with("levels", folder.display().to_string().into());
    assert!(err(levels()).contains("contains no level files"));
    std::fs::write(folder.join("mine.xsb"), "#####\n#@$.#\n#####\n\n#####\n#.$@#\n#####\n").unwrap();
    assert!(err(levels().with("level", 2)).contains("valid indices are 0 to 1"));
    let task = Task {
        env: EnvId::new("sokoban"),
        options: levels().with("level", 1),
        opponent: None,
        seat: 0,
        seed: Seed::new(1),
    };
    let mut env = registry.build(&task).unwrap();
    assert_eq!(env.reset(0).compact, ". $ @");
    let end = env.step(&env.parse("left")).end;
    assert!(matches!(end, Some(End::Terminated { outcome: Outcome::Won, .. })));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn levels_are_assigned_without_replacement_and_generated_rooms_are_not_assigned() {
    let folder = tempfile::tempdir().unwrap();
    let level = |gap: usize| format!("#{0}###\n#@{1}$.#\n#{0}###\n", "#".repeat(gap + 1), " ".repeat(gap));
    std::fs::write(folder.path().join("mine.xsb"), (0..7).map(level).collect::<Vec<_>>().join("\n")).unwrap();
    let registry = Registry::builtin();
    let env_spec = registry.get("sokoban").unwrap();
    let tasks = |options: &OptionMap, first: u64, count: u64| {
        let task = |i| Task {
            env: EnvId::new("sokoban"),
            options: options.clone(),
            opponent: None,
            seat: 0,
            seed: Seed::new(i),
        };
        let mut tasks: Vec<Task> = (first..first + count).map(task).collect();
        env_spec.assign_without_replacement(&mut tasks, first, Seed::new(3)).unwrap();
        tasks
    };
    let levels = OptionMap::default().with("levels", folder.path().to_str().unwrap());
    let starts =
        |tasks: &[Task]| -> Vec<String> { tasks.iter().map(|t| registry.build(t).unwrap().reset(0).compact).collect() };
    let all = tasks(&levels, 0, 21);
    for pass in starts(&all).chunks(7) {
        assert_eq!(pass.iter().collect::<std::collections::BTreeSet<_>>().len(), 7, "every level before any repeats");
    }
    assert_eq!(starts(&tasks(&levels, 10, 5)), starts(&all)[10..15], "the same sequence from another offset");
    for options in [OptionMap::default(), levels.with("level", 2)] {
        assert!(tasks(&options, 0, 5).iter().all(|t| t.options == options), "{options:?}");
    }
}
