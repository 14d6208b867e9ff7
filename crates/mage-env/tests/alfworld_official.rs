//! Official games and recordings of the original. These tests need the data.

use mage_env::{
    EnvId, EnvSpec, Error, OptionMap, Population, Seed, Task,
    alfworld::{AlfworldGame, AlfworldSpec, GameDataset, HouseholdWorld, RoomSplit, TaskType, generate, solve},
};
use mage_testing::data_path;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::Path,
    sync::Arc,
};

fn official(options: &[(&str, serde_json::Value)]) -> Task {
    let options =
        options.iter().fold(OptionMap::default().with("source", "official"), |o, (k, v)| o.with(k, v.clone()));
    Task { env: EnvId::new("alfworld"), options, opponent: None, seat: 0, seed: Seed::new(7) }
}

pub(crate) fn every_recorded_step_is_equal() {
    let folder = data_path("alfworld");
    let report = AlfworldSpec::default().conform(&folder.join("textworld_traces.jsonl.gz"), Some(&folder)).unwrap();
    assert!(report.passed(), "{:#?}", report.first);
    assert_eq!((report.compared["episodes"], report.compared["steps"]), (268, 4052));
}

pub(crate) fn every_walkthrough_wins_and_the_expert_is_as_short() {
    let folder = data_path("alfworld");
    let mut counts: BTreeMap<String, [u32; 6]> = BTreeMap::new();
    let play = |name: &str, bytes: &[u8]| {
        let game = AlfworldGame::read(bytes, name)?;
        let world = HouseholdWorld::new(&game.household);
        let mut state = world.start().clone();
        for command in &game.walkthrough {
            assert!(!world.won(&state) && world.step(&mut state, command).1, "{name}: {command}");
        }
        assert!(world.won(&state), "{name}");

        let plan = solve(&world, world.start()).expect("solvable");
        let mut state = world.start().clone();
        for command in &plan {
            assert!(world.is_admissible(&state, *command), "{name}: {command:?}");
            world.apply(&mut state, *command);
        }
        assert!(world.won(&state), "{name}");
        assert_eq!(plan.len(), game.walkthrough.len(), "{name}: {plan:?}, {:?}", game.walkthrough);
        assert!(plan.len() <= 10, "{name}");

        let kind = TaskType::ALL.iter().position(|k| *k == world.goal().kind).unwrap();
        assert!(name.contains(world.goal().kind.folder()), "{name}");
        counts.entry(name.split('/').nth(1).unwrap().to_owned()).or_default()[kind] += 1;
        Ok::<_, Error>(ControlFlow::Continue(()))
    };
    GameDataset::open(&folder).unwrap().visit(play).unwrap();
    let expected = [
        ("train", [790, 308, 650, 459, 533, 813]),
        ("valid_seen", [35, 13, 27, 16, 25, 24]),
        ("valid_train", [46, 19, 37, 25, 28, 45]),
        ("valid_unseen", [24, 18, 31, 23, 21, 17]),
    ];
    assert_eq!(counts, expected.map(|(split, n)| (split.to_owned(), n)).into());
}

pub(crate) fn splits_are_sorted_shared_and_sampled_without_replacement() {
    let folder = data_path("alfworld");
    let env_spec = AlfworldSpec::default();
    let (_, population) = env_spec.populations().into_iter().find(|(name, _)| *name == "official").unwrap();
    let population = Population { options: population.options.with("data", folder.to_str().unwrap()), ..population };
    env_spec.check(&population).unwrap();
    for (split, size) in [("in-domain", 140), ("out-of-domain", 134)] {
        let draw = |i| population.sample_task(split, 1, Seed::new(i)).unwrap();
        let mut tasks: Vec<Task> = (0..size + 10).map(draw).collect();
        env_spec.assign_without_replacement(&mut tasks, 0, Seed::new(1)).unwrap();
        let names: Vec<String> = tasks.iter().map(|t| t.options.0["game"].as_str().unwrap().to_owned()).collect();
        let distinct: BTreeSet<&String> = names[..size as usize].iter().collect();
        assert_eq!(distinct.len() as u64, size, "every game occurs before any repeats");
        let mut later: Vec<Task> = (0..20).map(draw).collect();
        env_spec.assign_without_replacement(&mut later, size - 10, Seed::new(1)).unwrap();
        let again: Vec<&str> = later.iter().map(|t| t.options.0["game"].as_str().unwrap()).collect();
        assert_eq!(again, names[size as usize - 10..], "the same sequence from another offset");
        tasks.iter().for_each(|t| drop(env_spec.build(t).unwrap()));
        assert!(Arc::ptr_eq(&env_spec.world(&tasks[0]).unwrap(), &env_spec.world(&tasks[0]).unwrap()));
    }
    let only = official(&[
        ("data", folder.to_str().unwrap().into()),
        ("split", "valid_seen".into()),
        ("tasks", vec!["cool"].into()),
    ]);
    assert!(
        (0..20).all(
            |i| env_spec.world(&Task { seed: Seed::new(i), ..only.clone() }).unwrap().goal().kind == TaskType::Cool
        )
    );
}

/// Exports generated games and checks that the files parse to equal games.
fn exported(folder: &Path, out: &Path, count: u64) -> Vec<std::path::PathBuf> {
    let env_spec = AlfworldSpec::default();
    let population = env_spec.default_population();
    let tasks: Vec<Task> = (0..count).map(|i| population.sample_task("train", 1, Seed::new(i)).unwrap()).collect();
    let files = env_spec.export(&tasks, out, Some(folder)).unwrap();
    for (file, task) in files.iter().zip(&tasks) {
        let game = AlfworldGame::read(&std::fs::read(file).unwrap(), "exported").unwrap();
        let made = generate(RoomSplit::Seen, &[], task.seed.child("household"));
        assert_eq!(
            format!("{:?}", HouseholdWorld::new(&game.household)),
            format!("{:?}", HouseholdWorld::new(&made.household))
        );
        assert_eq!(game.walkthrough, made.walkthrough);
    }
    files
}

pub(crate) fn invalid_files_are_named_errors_and_skipped_only_on_request() {
    let folder = data_path("alfworld");
    let out = tempfile::tempdir().unwrap();
    let files = exported(&folder, out.path(), 6);
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let spoil = |i: usize, text: &str| std::fs::write(&files[i], text).unwrap();
    spoil(0, &text[..text.len() / 2]);
    spoil(1, &text.replacen("Specification in PDDL", "Specification", 1));
    spoil(2, &text.replace("(:goal (and", "(:goal (or"));
    spoil(3, "[1, 2]");
    let root = out.path().to_str().unwrap();
    let task = |skip_bad: bool, i: usize| {
        let name = files[i].strip_prefix(out.path()).unwrap().to_str().unwrap();
        official(&[("data", root.into()), ("game", name.into()), ("skip_bad", skip_bad.into())])
    };
    let expected = [
        "not a game.tw-pddl: EOF while parsing",
        "pddl_domain: unknown rules",
        "none of the six forms",
        "not a game.tw-pddl",
    ];
    for (i, expected) in expected.iter().enumerate() {
        let error = AlfworldSpec::default().world(&task(false, i)).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(files[i].to_str().unwrap()), "{error}");
    }
    let any = |skip_bad: bool| official(&[("data", root.into()), ("skip_bad", skip_bad.into())]);
    let env_spec = AlfworldSpec::default();
    let built = (0..40).filter(|i| env_spec.build(&Task { seed: Seed::new(*i), ..any(false) }).is_ok()).count();
    assert!((1..40).contains(&built), "invalid files are sampled and fail: {built}");
    assert!((0..40).all(|i| env_spec.build(&Task { seed: Seed::new(i), ..any(true) }).is_ok()));
    let mut population = env_spec.default_population();
    assert!(env_spec.warnings(&population, "train").unwrap().is_empty());
    population.options = any(true).options;
    let warnings = env_spec.warnings(&population, "train").unwrap();
    assert_eq!(warnings.len(), 4);
    assert!(warnings.iter().all(|w| w.starts_with("skipped: ") && w.contains("game.tw-pddl")));
}

pub(crate) fn archives_contain_the_same_games_as_directories() {
    let folder = data_path("alfworld");
    let out = tempfile::tempdir().unwrap();
    exported(&folder, out.path(), 4);
    let packed = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(std::fs::File::create(packed.path().join("games.tar")).unwrap());
    tar.append_dir_all("json_2.1.1", out.path().join("json_2.1.1")).unwrap();
    tar.into_inner().unwrap();
    let [tree, archive] = [out.path(), packed.path()].map(|p| GameDataset::open(p).unwrap().split("train").unwrap());
    assert_eq!((tree.len(), archive.len()), (4, 4));
    for (a, b) in tree.games().iter().zip(archive.games()) {
        assert_eq!(a.name(), b.name());
        assert_eq!(format!("{:?}", a.world().unwrap()), format!("{:?}", b.world().unwrap()));
    }
}
