//! What is on the disk of an evaluation by rule that is under way, or that failed?

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

/// Kuhn poker at tables that take long to set; at the last one somebody looks what was written down so far.
struct SlowHouse {
    kuhn: Arc<dyn EnvSpec>,
    takes: Duration,
    records: PathBuf,
    built: AtomicUsize,
    seen_at_last: AtomicUsize,
    /// The table, by the order in which tables are set, that breaks.
    breaks: Option<usize>,
}

impl EnvSpec for SlowHouse {
    fn id(&self) -> EnvId {
        self.kuhn.id()
    }
    fn info(&self) -> EnvInfo {
        self.kuhn.info()
    }
    fn build(&self, task: &Task) -> EnvResult<Box<dyn Env>> {
        let nth = self.built.fetch_add(1, Ordering::SeqCst) + 1;
        if nth == TASKS {
            let text = std::fs::read_to_string(&self.records).unwrap_or_default();
            self.seen_at_last.store(text.lines().count(), Ordering::SeqCst);
        }
        if Some(nth) == self.breaks {
            return Err(EnvError::Invalid { location: "table".to_owned(), problem: "it has three legs".to_owned() });
        }
        sleep(self.takes);
        self.kuhn.build(task)
    }
    fn check(&self, population: &Population) -> EnvResult<()> {
        self.kuhn.check(population)
    }
    fn default_population(&self) -> Population {
        self.kuhn.default_population()
    }
}

fn house(records: PathBuf, takes: Duration, breaks: Option<usize>) -> (Arc<SlowHouse>, Arc<Evaluation>) {
    let kuhn = Arc::clone(Registry::builtin().get("kuhn").unwrap());
    let (built, seen_at_last) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let env_spec = Arc::new(SlowHouse { kuhn, takes, records, built, seen_at_last, breaks });
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

/// Who is killed in the middle has lost the last moments, not the last hundreds of tasks.
#[test]
fn finished_tasks_are_on_the_disk_while_others_are_played() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    let (house, evaluation) = house(path.clone(), Duration::from_millis(80), None);
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let mut store = TrajectoryStore::open(&path).unwrap();
    two.install(|| evaluation.run_into(&mut store, |_| {})).unwrap();
    assert_eq!(store.len(), TASKS);
    let seen = house.seen_at_last.load(Ordering::SeqCst);
    assert!(seen >= TASKS - 8, "{seen} of {TASKS} were on the disk when the last was begun");
}

#[test]
fn a_task_that_fails_takes_no_other_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    let (house, evaluation) = house(path.clone(), Duration::ZERO, Some(30));
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let mut store = TrajectoryStore::open(&path).unwrap();
    let problem = two.install(|| evaluation.run_into(&mut store, |_| {})).unwrap_err();
    assert!(problem.to_string().contains("three legs"), "{problem}");
    assert!(store.len() >= 29, "{} were kept", store.len());
    let before = (store.len(), house.built.load(Ordering::SeqCst));
    two.install(|| evaluation.run_into(&mut store, |_| {})).unwrap();
    assert_eq!(house.built.load(Ordering::SeqCst) - before.1, TASKS - before.0, "only what was missing is played");
    assert_eq!(store.len(), TASKS);
}
