//! The trajectory store under crashes, damage and concurrent writers.

use mage_core::{EpisodeConfig, Trajectory, prompt::PromptLibrary};
use mage_env::{Registry, Seed};
use mage_train::{
    Error, TaskSet,
    eval::Evaluator,
    eval::store::{TrajectoryStore, read_trajectories},
    policy::NamedPolicy,
    rollout::MetaEpisodeBuilder,
    train::runtime,
};
use std::{fs, io::Write, path::Path, sync::Arc};

fn evaluator(count: usize) -> Arc<Evaluator> {
    let registry = Registry::builtin();
    let env_spec = registry.get("kuhn").unwrap();
    let (population, prompts) = (env_spec.default_population(), PromptLibrary::builtin().get("kuhn").unwrap());
    let config = EpisodeConfig::compact(&env_spec.info(), 2);
    Arc::new(Evaluator {
        builder: MetaEpisodeBuilder::new(Arc::clone(env_spec), prompts, config),
        policy: NamedPolicy::scripted(&**env_spec, "random", &population, "train", 2).unwrap(),
        task_set: TaskSet::new(&**env_spec, &population, "train", count, Seed::new(3)).unwrap(),
        seed: Seed::new(4),
        exact_max_states: 0,
        policy_must_not_fail: true,
        stop: Arc::default(),
    })
}

fn trajectories_with_threads(count: usize, threads: usize) -> Vec<Trajectory> {
    let mut all = Vec::new();
    evaluator(count).run(runtime(threads).unwrap().handle(), |_, t| all.push(t)).unwrap();
    all
}

fn trajectories(count: usize) -> Vec<Trajectory> {
    trajectories_with_threads(count, 2)
}

fn read(path: &Path) -> Vec<Trajectory> {
    read_trajectories(path).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn appended_trajectories_are_read_back_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let all = trajectories(20);
    let mut store = TrajectoryStore::open(&path).unwrap();
    assert_eq!(store.append(&all[..12]).unwrap(), 12);
    assert_eq!(store.append(&all).unwrap(), 8, "finished keys are skipped");
    drop(store);
    let store = TrajectoryStore::open(&path).unwrap();
    assert_eq!((store.len(), store.repaired_bytes()), (20, 0));
    assert!(all.iter().all(|r| store.contains(&r.key)));
    assert_eq!(read(&path), all);
}

#[test]
fn a_truncated_write_loses_at_most_the_last_trajectory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let all = trajectories(3);
    TrajectoryStore::open(&path).unwrap().append(&all).unwrap();
    let bytes = fs::read(&path).unwrap();
    let ends: Vec<usize> = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1).collect();
    for cut in (0..bytes.len()).step_by(37).chain(ends.iter().flat_map(|e| [e - 1, *e])) {
        fs::write(&path, &bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|e| **e <= cut).count();
        assert_eq!(read(&path), all[..whole], "the reader skips a partial line");
        let mut store = TrajectoryStore::open(&path).unwrap();
        assert_eq!(store.len(), whole);
        store.append(&all).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes, "cut at {cut}");
    }
}

#[test]
fn damage_inside_the_file_is_reported_and_the_file_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    TrajectoryStore::open(&path).unwrap().append(&trajectories(3)).unwrap();
    let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    lines[1].truncate(40);
    let damaged = lines.join("\n") + "\n";
    fs::write(&path, &damaged).unwrap();
    let error = TrajectoryStore::open(&path).unwrap_err();
    assert!(matches!(error, Error::Line { line: 2, .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    assert!(read_trajectories(&path).unwrap().nth(1).unwrap().is_err());
}

#[test]
fn a_second_writer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let first = TrajectoryStore::open(&path).unwrap();
    assert!(matches!(TrajectoryStore::open(&path), Err(Error::InUse { .. })));
    drop(first);
    assert!(TrajectoryStore::open(&path).is_ok());
}

#[test]
fn an_interrupted_evaluation_continues_with_the_missing_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, halves) = (dir.path().join("whole.jsonl"), dir.path().join("halves.jsonl"));
    let (evaluator, runtime) = (evaluator(700), runtime(2).unwrap());
    evaluator.run_into(runtime.handle(), &mut TrajectoryStore::open(&whole).unwrap(), |_, _| ()).unwrap();
    let half = fs::read(&whole).unwrap();
    fs::File::create(&halves).unwrap().write_all(&half[..half.len() / 2]).unwrap();
    let mut store = TrajectoryStore::open(&halves).unwrap();
    let stored = store.len();
    assert!(stored > 0 && stored < 700);
    let mut played = 0;
    evaluator.run_into(runtime.handle(), &mut store, |_, _| played += 1).unwrap();
    assert_eq!(played + stored, 700);
    assert_eq!(fs::read(&halves).unwrap(), half, "byte-identical to an uninterrupted evaluation");
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    assert_eq!(trajectories_with_threads(300, 1), trajectories_with_threads(300, 3));
}

#[test]
fn a_file_that_is_not_a_store_is_not_modified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    for text in ["some notes, no line break", "notes\nof two lines", "{\"other\": 1}", "{\"kez"] {
        fs::write(&path, text).unwrap();
        let error = TrajectoryStore::open(&path).unwrap_err();
        assert!(matches!(error, Error::Line { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn scripted_policies_for_different_populations_have_different_keys() {
    let registry = Registry::builtin();
    let env_spec = registry.get("kuhn").unwrap();
    let mut population = env_spec.default_population();
    let id = |p: &mage_env::Population| NamedPolicy::scripted(&**env_spec, "bayes", p, "train", 3).unwrap().id;
    let before = id(&population);
    population.opponents[0].weight = 0.31;
    assert_ne!(before, id(&population));
    assert!(before.starts_with("bayes"));
}

#[test]
fn a_failed_trajectory_is_kept_and_retried() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let all = trajectories(2);
    let failed = Trajectory { error: Some("the model is unreachable".to_owned()), ..all[0].clone() };
    let mut store = TrajectoryStore::open(&path).unwrap();
    assert_eq!(store.append([&failed, &all[1]]).unwrap(), 2);
    assert!(!store.contains(&all[0].key) && store.contains(&all[1].key));
    drop(store);
    let mut store = TrajectoryStore::open(&path).unwrap();
    assert_eq!((store.len(), store.append([&failed, &all[0]]).unwrap()), (1, 2));
    assert_eq!(store.append([&failed, &all[0]]).unwrap(), 0, "finished tasks stay finished");
    assert_eq!(read(&path).len(), 4);
}
