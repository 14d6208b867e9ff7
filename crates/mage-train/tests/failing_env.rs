//! Training runs whose environment fails for some tasks, or for all.

use crate::faulty_kuhn::{Fault, FaultyKuhn, task_number};
use mage_core::{EpisodeConfig, Trajectory, prompt::PromptLibrary};
use mage_env::{EnvSpec, Seed, Task};
use mage_train::{
    Evaluator, TaskSet,
    eval::store::TrajectoryStore,
    policy::NamedPolicy,
    recipe::{Composer, Recipe},
    rollout::MetaEpisodeBuilder,
    train::{TrainEnv, TrainEvent, Training, runtime},
};
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
};

fn recipe() -> Recipe {
    let mut composer = Composer::new();
    composer.add("kuhn").unwrap();
    for key_value in [
        "optim.updates=3",
        "warmstart.steps=0",
        "warmstart.expert=random",
        "rollout.groups=8",
        "rollout.group_size=4",
        // One thread, so that the retry of a task is its second build.
        "engine.threads=1",
        "engine.device=cpu",
        "eval.every=0",
        "eval.final_tasks=8",
        "eval.exact_max_states=0",
    ] {
        composer.set(key_value).unwrap();
    }
    composer.finish().unwrap()
}

/// Kuhn poker that fails on every `every`-th task.
fn failing_kuhn(fault: Fault, every: u64) -> Arc<FaultyKuhn> {
    Arc::new(FaultyKuhn::new(move |task| task_number(task).is_multiple_of(every).then_some(fault)))
}

fn train(env_spec: &Arc<FaultyKuhn>, recipe: Recipe, dir: &Path) -> (Result<(), String>, Vec<TrainEvent>) {
    let env = TrainEnv {
        population: env_spec.default_population(),
        prompts: PromptLibrary::builtin().get("kuhn").unwrap(),
        env_spec: Arc::clone(env_spec) as Arc<dyn EnvSpec>,
        commit: None,
        status_log: Default::default(),
    };
    let mut events = Vec::new();
    let result = Training::create(recipe, env, [dir.to_owned()], Arc::new(AtomicU8::new(0)))
        .and_then(|mut training| training.run(&mut |event| events.push(event)))
        .map(|outcome| assert!(outcome.after.is_some()))
        .map_err(|e| e.to_string());
    (result, events)
}

/// Failed meta-episodes, by update.
fn errors(events: &[TrainEvent]) -> Vec<f64> {
    events
        .iter()
        .filter_map(|e| match e {
            TrainEvent::Updated { metrics, .. } => Some(metrics["errors"]),
            _ => None,
        })
        .collect()
}

#[test]
fn meta_episodes_that_keep_failing_are_left_out_of_the_batch() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // A panic at each point where a rollout calls the environment.
    let faults = [Fault::PanicInBuild, Fault::PanicInReset, Fault::PanicInStep];
    let env_spec = Arc::new(FaultyKuhn::new(move |task| {
        let number = task_number(task);
        number.is_multiple_of(4).then(|| faults[(number / 4 % 3) as usize])
    }));
    let (result, events) = train(&env_spec, recipe(), &run);
    result.unwrap();
    let errors = errors(&events);
    assert_eq!(errors.len(), 3);
    let total = errors.iter().sum::<f64>();
    assert!(total > 0.0 && total < 96.0, "{errors:?}");
    let warned =
        events.iter().any(|e| matches!(e, TrainEvent::Warning { text } if text.contains("meta-episodes failed")));
    assert!(warned, "a warning reports them");
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert!(!metrics.contains("null") && !metrics.contains("NaN"), "{metrics}");
}

#[test]
fn a_failed_build_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let builds: Mutex<HashMap<u64, u64>> = Mutex::default();
    let env_spec = Arc::new(FaultyKuhn::new(move |task| {
        let number = task_number(task);
        let mut builds = builds.lock().unwrap();
        let count = builds.entry(number).or_default();
        *count += u64::from(number.is_multiple_of(4));
        (*count % 2 == 1).then_some(Fault::Build)
    }));
    let mut recipe = recipe();
    // A group shares one task: with groups of one, the second build is the retry.
    (recipe.rollout.groups, recipe.rollout.group_size) = (32, 1);
    let (result, events) = train(&env_spec, recipe, &dir.path().join("run"));
    result.unwrap();
    assert!(env_spec.faults.load(Ordering::Relaxed) > 0, "some builds failed");
    assert_eq!(errors(&events), [0.0; 3]);
}

#[test]
fn a_run_in_which_every_meta_episode_fails_stops_with_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let (result, _) = train(&failing_kuhn(Fault::PanicInStep, 1), recipe(), &dir.path().join("run"));
    let error = result.unwrap_err();
    assert!(error.contains("failed") && error.contains("injected panic"), "{error}");
}

#[test]
fn an_evaluation_records_panics_of_the_environment_and_continues() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = runtime(2).unwrap();
    let kuhn = FaultyKuhn::new(|_| None);
    let task_set = TaskSet::new(&kuhn, &kuhn.default_population(), "train", 24, Seed::new(3)).unwrap();
    // Tasks of one opponent and seat share their game tree.
    let fails = |fault: Fault, task: &Task| match fault {
        Fault::PanicInGameTree => task.seat == 0,
        _ => task_number(task).is_multiple_of(3),
    };
    let evaluate = |fault: Option<Fault>| {
        let env_spec: Arc<dyn EnvSpec> =
            Arc::new(FaultyKuhn::new(move |task| fault.filter(|fault| fails(*fault, task))));
        let config = EpisodeConfig::compact(&env_spec.info(), 2);
        let policy = NamedPolicy::scripted(&*env_spec, "random", &env_spec.default_population(), "train", 2).unwrap();
        let evaluator = Arc::new(Evaluator {
            builder: MetaEpisodeBuilder::new(env_spec, PromptLibrary::builtin().get("kuhn").unwrap(), config),
            policy,
            task_set: task_set.clone(),
            seed: Seed::new(4),
            exact_max_states: 10_000,
            policy_must_not_fail: true,
            stop: Arc::default(),
        });
        let path = dir.path().join(format!("{fault:?}"));
        let mut played: Vec<Trajectory> = Vec::new();
        let mut store = TrajectoryStore::open(&path).unwrap();
        evaluator.run_into(runtime.handle(), &mut store, |_, trajectory| played.push(trajectory)).unwrap();
        assert_eq!(store.len(), played.iter().filter(|t| t.error.is_none()).count(), "stored");
        played
    };
    let undisturbed = evaluate(None);
    assert!(undisturbed.iter().all(|t| t.error.is_none() && t.episodes.iter().all(|e| e.expected.is_some())));
    for (fault, place) in [
        (Fault::PanicInBuild, "build"),
        (Fault::PanicInReset, "reset"),
        (Fault::PanicInStep, "step"),
        (Fault::PanicInGameTree, "game_tree"),
    ] {
        let played = evaluate(Some(fault));
        let failed: BTreeSet<String> = played.iter().filter_map(|t| t.error.clone()).collect();
        assert_eq!(failed, BTreeSet::from([format!("the meta-episode panicked: injected panic in {place}")]));
        assert_eq!(played.len(), task_set.tasks().len());
        for (trajectory, expected) in played.iter().zip(&undisturbed) {
            let fails = fails(fault, &trajectory.task);
            assert_eq!(trajectory.error.is_some(), fails, "{fault:?}");
            assert!(fails || trajectory == expected, "{fault:?}: other tasks are unaffected");
        }
    }
}

#[test]
fn a_warm_start_leaves_out_meta_episodes_whose_environment_fails() {
    let dir = tempfile::tempdir().unwrap();
    let with_warm_start = || {
        let mut recipe = recipe();
        (recipe.warmstart.steps, recipe.warmstart.batch_size, recipe.optim.updates) = (2, 16, 1);
        recipe
    };
    let env_spec = failing_kuhn(Fault::PanicInStep, 4);
    let (result, _) = train(&env_spec, with_warm_start(), &dir.path().join("some"));
    result.unwrap();
    assert!(env_spec.faults.load(Ordering::Relaxed) > 0, "some tasks failed");
    let (result, _) = train(&failing_kuhn(Fault::PanicInStep, 1), with_warm_start(), &dir.path().join("all"));
    let error = result.unwrap_err();
    assert!(error.contains("failed") && error.contains("injected panic"), "{error}");
}

#[test]
fn the_evaluation_of_a_run_states_why_tasks_failed() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut recipe = recipe();
    recipe.eval.final_tasks = 40;
    train(&failing_kuhn(Fault::PanicInStep, 4), recipe, &run).0.unwrap();
    let outcome: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(run.join("result.json")).unwrap()).unwrap();
    let after = &outcome["after"];
    let failures: Vec<(&String, u64)> =
        after["failures"].as_object().unwrap().iter().map(|(reason, n)| (reason, n.as_u64().unwrap())).collect();
    assert!(failures.iter().all(|(reason, _)| reason.contains("injected panic")), "{failures:?}");
    assert_eq!(failures.iter().map(|(_, n)| n).sum::<u64>(), after["errors"].as_u64().unwrap());
    assert!((1..40).contains(&after["errors"].as_u64().unwrap()));
}
