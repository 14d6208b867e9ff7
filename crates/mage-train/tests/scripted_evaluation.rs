//! Storage of trajectories during and after interrupted scripted evaluations.

use mage_core::{EpisodeConfig, prompt::PromptLibrary};
use mage_env::{
    Env, EnvId, EnvInfo, EnvSpec, Error as EnvError, Population, Registry, Result as EnvResult, Seed, Task,
};
use mage_train::{
    TaskSet,
    eval::store::TrajectoryStore,
    eval::{Agent, Evaluation},
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

fn slow_evaluation(
    store: PathBuf,
    build_time: Duration,
    failing_build: Option<usize>,
) -> (Arc<SlowKuhn>, Arc<Evaluation>) {
    let kuhn = Arc::clone(Registry::builtin().get("kuhn").unwrap());
    let (built, stored_at_last) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let env_spec = Arc::new(SlowKuhn { kuhn, build_time, store, built, stored_at_last, failing_build });
    let population = env_spec.default_population();
    let evaluation = Evaluation {
        prompts: PromptLibrary::builtin().get("kuhn").unwrap(),
        episode_config: Arc::new(EpisodeConfig::compact(&env_spec.info(), 2)),
        memories: None,
        task_set: TaskSet::new(&population, "train", 2, TASKS, Seed::new(1)).unwrap(),
        agent: Agent::Random,
        seed: Seed::new(2),
        stop: Arc::default(),
        env_spec: Arc::clone(&env_spec) as Arc<dyn EnvSpec>,
    };
    (env_spec, Arc::new(evaluation))
}

/// A kill loses a moment of play, not hundreds of tasks.
#[test]
fn finished_tasks_are_stored_while_others_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trajectories.jsonl");
    let (env_spec, evaluation) = slow_evaluation(path.clone(), Duration::from_millis(80), None);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let mut store = TrajectoryStore::open(&path).unwrap();
    pool.install(|| evaluation.run_into(&mut store, |_| {})).unwrap();
    assert_eq!(store.len(), TASKS);
    let stored = env_spec.stored_at_last.load(Ordering::SeqCst);
    assert!(stored >= TASKS - 8, "{stored} of {TASKS} were stored when the last one started");
}

#[test]
fn a_failed_task_does_not_discard_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trajectories.jsonl");
    let (env_spec, evaluation) = slow_evaluation(path.clone(), Duration::ZERO, Some(30));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let mut store = TrajectoryStore::open(&path).unwrap();
    let error = pool.install(|| evaluation.run_into(&mut store, |_| {})).unwrap_err();
    assert!(error.to_string().contains("injected fault"), "{error}");
    assert!(store.len() >= 29, "{} were stored", store.len());
    let before = (store.len(), env_spec.built.load(Ordering::SeqCst));
    pool.install(|| evaluation.run_into(&mut store, |_| {})).unwrap();
    assert_eq!(env_spec.built.load(Ordering::SeqCst) - before.1, TASKS - before.0, "only missing tasks are played");
    assert_eq!(store.len(), TASKS);
}
