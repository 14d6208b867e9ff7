//! Training runs whose environment fails for some tasks, or for all.

use mage_core::prompt::PromptLibrary;
use mage_env::{
    Anchor, Env, EnvId, EnvInfo, EnvSpec, Error as EnvError, Observation, ParsedAction, Population, Registry,
    Result as EnvResult, Step, Task,
};
use mage_train::{
    recipe::{Composer, Recipe},
    train::{TrainEnv, TrainEvent, Training},
};
use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

/// Injected failure.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Every first build of a task fails.
    FirstBuild,
    /// The first step panics.
    PanicInStep,
}

/// Kuhn poker that fails on every `every`-th task.
struct FailingKuhn {
    kuhn: Arc<dyn EnvSpec>,
    fault: Fault,
    every: u64,
    builds: Mutex<HashMap<String, u64>>,
    failures: AtomicU64,
}

impl FailingKuhn {
    fn fails(&self, task: &Task) -> bool {
        let hash = task.hash().to_string();
        u64::from_str_radix(&hash[..8], 16).unwrap().is_multiple_of(self.every)
    }
}

impl EnvSpec for FailingKuhn {
    fn id(&self) -> EnvId {
        self.kuhn.id()
    }
    fn info(&self) -> EnvInfo {
        self.kuhn.info()
    }
    fn build(&self, task: &Task) -> EnvResult<Box<dyn Env>> {
        let env = self.kuhn.build(task)?;
        if !self.fails(task) {
            return Ok(env);
        }
        match self.fault {
            Fault::PanicInStep => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Ok(Box::new(PanickingEnv(env)))
            }
            Fault::FirstBuild => {
                let mut builds = self.builds.lock().unwrap();
                let count = builds.entry(task.hash().to_string()).or_default();
                *count += 1;
                if count.is_multiple_of(2) {
                    return Ok(env);
                }
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(EnvError::Invalid { location: "environment".to_owned(), problem: "injected fault".to_owned() })
            }
        }
    }
    fn check(&self, population: &Population) -> EnvResult<()> {
        self.kuhn.check(population)
    }
    fn default_population(&self) -> Population {
        self.kuhn.default_population()
    }
}

struct PanickingEnv(Box<dyn Env>);

impl Env for PanickingEnv {
    fn reset(&mut self, episode: u32) -> Observation {
        self.0.reset(episode)
    }
    fn parse(&self, text: &str) -> ParsedAction {
        self.0.parse(text)
    }
    fn step(&mut self, _: &ParsedAction) -> Step {
        panic!("injected panic")
    }
    fn legal(&self) -> Option<Vec<String>> {
        self.0.legal()
    }
    fn anchor(&self) -> Anchor {
        self.0.anchor()
    }
}

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

fn failing_kuhn(fault: Fault, every: u64) -> Arc<FailingKuhn> {
    let kuhn = Arc::clone(Registry::builtin().get("kuhn").unwrap());
    Arc::new(FailingKuhn { kuhn, fault, every, builds: Mutex::default(), failures: AtomicU64::new(0) })
}

fn train(env_spec: &Arc<FailingKuhn>, recipe: Recipe, dir: &Path) -> (Result<(), String>, Vec<TrainEvent>) {
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
    let env_spec = failing_kuhn(Fault::PanicInStep, 4);
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
    let env_spec = failing_kuhn(Fault::FirstBuild, 4);
    let mut recipe = recipe();
    // A group shares one task: with groups of one, the second build is the retry.
    (recipe.rollout.groups, recipe.rollout.group_size) = (32, 1);
    let (result, events) = train(&env_spec, recipe, &dir.path().join("run"));
    result.unwrap();
    assert!(env_spec.failures.load(Ordering::Relaxed) > 0, "some builds failed");
    assert_eq!(errors(&events), [0.0; 3]);
}

#[test]
fn a_run_in_which_every_meta_episode_fails_stops_with_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let (result, _) = train(&failing_kuhn(Fault::PanicInStep, 1), recipe(), &dir.path().join("run"));
    let error = result.unwrap_err();
    assert!(error.contains("failed") && error.contains("injected panic"), "{error}");
}
