//! Storage of trajectories during and after interrupted scripted evaluations.

use mage_core::{EpisodeConfig, prompt::PromptLibrary};
use mage_env::{
    Env, EnvId, EnvInfo, EnvSpec, Error as EnvError, Population, Registry, Result as EnvResult, Seed, Task,
};
use mage_train::{
    TaskSet,
    eval::{Evaluator, store::TrajectoryStore},
    policy::NamedPolicy,
    rollout::MetaEpisodeBuilder,
    train::runtime,
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::sleep,
    time::Duration,
};

const TASKS: usize = 40;

/// Kuhn poker with slow builds. The last build counts the trajectories stored so far.
struct SlowKuhn {
    kuhn: Arc<dyn EnvSpec>,
    build_time: Duration,
    store: PathBuf,
    built: AtomicUsize,
    stored_at_last: AtomicUsize,
    /// Number of the build that fails.
    failing_build: Option<usize>,
}

impl EnvSpec for SlowKuhn {
    fn id(&self) -> EnvId {
        self.kuhn.id()
    }
    fn info(&self) -> EnvInfo {
        self.kuhn.info()
    }
    fn build(&self, task: &Task) -> EnvResult<Box<dyn Env>> {
        let nth = self.built.fetch_add(1, Ordering::SeqCst) + 1;
        if nth == TASKS {
            let text = std::fs::read_to_string(&self.store).unwrap_or_default();
            self.stored_at_last.store(text.lines().count(), Ordering::SeqCst);
        }
        if Some(nth) == self.failing_build {
            return Err(EnvError::Invalid { location: "environment".to_owned(), problem: "injected fault".to_owned() });
        }
        sleep(self.build_time);
        self.kuhn.build(task)
    }
    fn check(&self, population: &Population) -> EnvResult<()> {
        self.kuhn.check(population)
    }
    fn default_population(&self) -> Population {
        self.kuhn.default_population()
    }
}

fn slow_evaluator(
    store: PathBuf,
    build_time: Duration,
    failing_build: Option<usize>,
) -> (Arc<SlowKuhn>, Arc<Evaluator>) {
    let kuhn = Arc::clone(Registry::builtin().get("kuhn").unwrap());
    let (built, stored_at_last) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let env_spec = Arc::new(SlowKuhn { kuhn, build_time, store, built, stored_at_last, failing_build });
    let population = env_spec.default_population();
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let config = EpisodeConfig::compact(&env_spec.info(), 2);
    let evaluator = Evaluator {
        builder: MetaEpisodeBuilder::new(Arc::clone(&env_spec) as Arc<dyn EnvSpec>, prompts, config),
        policy: NamedPolicy {
            max_in_flight: 2,
            ..NamedPolicy::scripted(&*env_spec, "random", &population, "train", 2).unwrap()
        },
        task_set: TaskSet::new(&*env_spec, &population, "train", TASKS, Seed::new(1)).unwrap(),
        seed: Seed::new(2),
        exact_max_states: 0,
        policy_must_not_fail: true,
        stop: Arc::default(),
    };
    (env_spec, Arc::new(evaluator))
}

/// A kill loses a moment of play, not hundreds of tasks.
#[test]
fn finished_tasks_are_stored_while_others_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trajectories.jsonl");
    let (env_spec, evaluator) = slow_evaluator(path.clone(), Duration::from_millis(80), None);
    let mut store = TrajectoryStore::open(&path).unwrap();
    evaluator.run_into(runtime(2).unwrap().handle(), &mut store, |_, _| {}).unwrap();
    assert_eq!(store.len(), TASKS);
    let stored = env_spec.stored_at_last.load(Ordering::SeqCst);
    assert!(stored >= TASKS - 8, "{stored} of {TASKS} were stored when the last one started");
}

#[test]
fn a_failed_task_does_not_stop_the_others_and_is_retried_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trajectories.jsonl");
    let (env_spec, evaluator) = slow_evaluator(path.clone(), Duration::ZERO, Some(30));
    let runtime = runtime(2).unwrap();
    let mut store = TrajectoryStore::open(&path).unwrap();
    let mut errors = Vec::new();
    evaluator.run_into(runtime.handle(), &mut store, |_, trajectory| errors.extend(trajectory.error)).unwrap();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("injected fault"), "{errors:?}");
    assert_eq!((store.len(), env_spec.built.load(Ordering::SeqCst)), (TASKS - 1, TASKS));
    evaluator.run_into(runtime.handle(), &mut store, |_, _| {}).unwrap();
    assert_eq!(
        (store.len(), env_spec.built.load(Ordering::SeqCst)),
        (TASKS, TASKS + 1),
        "only the failed task is played"
    );
}
