//! Does every seed give a room worth playing?

use mage_env::{
    End, EnvId, Options, Outcome, ParsedAction, Population, Registry, Seed, Task,
    sokoban::{Board, Generator, Play, RoomSettings, Solvable, plan, shortest_path},
};

/// Every room has a solution, and its shortest one is within the window: found forwards, while the generator looks
/// backwards, and played by the rules.
fn every_room_is_solvable_within_the_window(seeds: impl Iterator<Item = u32>, boxes: usize) {
    let settings = RoomSettings { boxes, ..RoomSettings::default() };
    let mut generator = Generator::new(settings).unwrap();
    for seed in seeds {
        let room = generator.room(seed).unwrap();
        let (board, start) = Board::new(&room.level).unwrap();
        let path = shortest_path(&board, start, settings.max_solution).expect("solvable");
        assert!(path.len() as u32 >= settings.min_solution, "seed {seed}: {} moves", path.len());
        assert_eq!(room.solution, Some(path.len() as u32));
        let mut play = Play::new(&board, start);
        let mut solvable = Solvable::new(settings.search_depth);
        let (last, before) = path.split_last().unwrap();
        for way in before {
            assert_eq!(play.step(&board, Some(*way), 30, &mut solvable).over, None, "seed {seed}");
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
fn a_seed_is_one_room_whatever_was_made_before() {
    let mut used = Generator::new(RoomSettings::default()).unwrap();
    for seed in [5, 3, 3, 9, 5] {
        let fresh = Generator::new(RoomSettings::default()).unwrap().room(seed).unwrap();
        assert_eq!(used.room(seed).unwrap(), fresh);
    }
}

#[test]
fn larger_rooms_than_64_cells_are_made_and_planned() {
    let settings = RoomSettings {
        rows: 11,
        cols: 11,
        boxes: 2,
        search_depth: 20,
        min_solution: 3,
        max_solution: 60,
        keep_misfits: false,
    };
    let mut generator = Generator::new(settings).unwrap();
    for seed in 0..5 {
        let room = generator.room(seed).unwrap();
        let (board, start) = Board::new(&room.level).unwrap();
        assert_eq!(plan(&board, start).map(|p| p.len() as u32), room.solution);
    }
}

#[test]
fn impossible_settings_are_refused() {
    let err = |s: RoomSettings| match Generator::new(s).map(|mut g| g.room(1)) {
        Err(e) | Ok(Err(e)) => e.to_string(),
        Ok(Ok(room)) => panic!("{room:?}"),
    };
    let base = RoomSettings::default();
    assert!(err(RoomSettings { rows: 3, ..base }).contains("at least 4"));
    assert!(err(RoomSettings { rows: 99, cols: 99, ..base }).contains("127 cells"));
    assert!(err(RoomSettings { boxes: 0, ..base }).contains("0 boxes"));
    assert!(err(RoomSettings { min_solution: 9, max_solution: 8, ..base }).contains("9 to 8 moves"));
    assert!(err(RoomSettings { rows: 4, cols: 4, boxes: 3, ..base }).contains("no room of 4 by 4 with 3 boxes"));
}

fn task(population: &Population, split: &str, seed: u64) -> Task {
    population.draw(split, 1, Seed::new(seed)).unwrap()
}

#[test]
fn splits_differ_in_boxes_and_rooms() {
    let registry = Registry::builtin();
    let population = registry.get("sokoban").unwrap().default_population();
    registry.get("sokoban").unwrap().check(&population).unwrap();
    let boxes = |split: &str| -> Vec<usize> {
        let count = |seed| {
            let start = registry.build(&task(&population, split, seed)).unwrap().begin(0);
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
        let first = a.begin(0);
        a.step(&ParsedAction::Act("up left right".to_owned()));
        assert_eq!(a.begin(1), first);
        assert_eq!(b.begin(7), first);
        assert_eq!(a.anchor(), b.anchor());
        assert_eq!(a.anchor().0, first.text);
    }
}

#[test]
fn options_that_make_no_sense_are_named() {
    let registry = Registry::builtin();
    let err = |options: Options| {
        let task = Task { env: EnvId::new("sokoban"), options, opponent: None, seat: 0, seed: Seed::new(1) };
        registry.build(&task).map(drop).unwrap_err().to_string()
    };
    let with = |key: &str, value: serde_json::Value| Options::default().with(key, value);
    assert!(err(with("boxs", 2.into())).contains("unknown field `boxs`"));
    assert!(err(with("boxes", serde_json::json!([]))).contains("empty list"));
    assert!(err(with("seeds", serde_json::json!([5, 5]))).contains("holds no seed"));
    assert!(err(with("moves_per_turn", 0.into())).contains("1 to 100"));
    assert!(err(with("turns", "fair".into())).contains("corrected"));
    let missing = err(with("levels", "no/such/file.txt".into()));
    assert!(missing.starts_with("no/such/file.txt: no such level file or folder") && missing.contains("MAGE_DATA"));
    let folder = std::env::temp_dir().join(format!("mage-sokoban-levels-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let levels = || with("levels", folder.display().to_string().into());
    assert!(err(levels()).contains("no level files in it"));
    std::fs::write(folder.join("mine.xsb"), "#####\n#@$.#\n#####\n\n#####\n#.$@#\n#####\n").unwrap();
    assert!(err(levels().with("level", 2)).contains("its levels are 0 to 1"));
    let task = Task {
        env: EnvId::new("sokoban"),
        options: levels().with("level", 1),
        opponent: None,
        seat: 0,
        seed: Seed::new(1),
    };
    let mut env = registry.build(&task).unwrap();
    assert_eq!(env.begin(0).compact, ". $ @");
    let end = env.step(&env.parse("left")).end;
    assert!(matches!(end, Some(End::Terminated { outcome: Outcome::Won, .. })));
    std::fs::remove_dir_all(&folder).unwrap();
}
