//! What becomes of a run whose environment fails now and then, or always?

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

/// What goes wrong at a table.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    /// It cannot be set up the first time.
    OnceUnready,
    /// Somebody turns it over in the first turn.
    Panics,
}

/// Kuhn poker in a house of ill repute: every so many tasks have trouble.
struct House {
    kuhn: Arc<dyn EnvSpec>,
    trouble: Trouble,
    every: u64,
    tried: Mutex<HashMap<String, u64>>,
    failures: AtomicU64,
}

impl House {
    fn has_trouble(&self, task: &Task) -> bool {
        let hash = task.hash().to_string();
        u64::from_str_radix(&hash[..8], 16).unwrap().is_multiple_of(self.every)
    }
}

impl EnvSpec for House {
    fn id(&self) -> EnvId {
        self.kuhn.id()
    }
    fn info(&self) -> EnvInfo {
        self.kuhn.info()
    }
    fn build(&self, task: &Task) -> EnvResult<Box<dyn Env>> {
        let table = self.kuhn.build(task)?;
        if !self.has_trouble(task) {
            return Ok(table);
        }
        match self.trouble {
            Trouble::Panics => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Ok(Box::new(Shaky(table)))
            }
            Trouble::OnceUnready => {
                let mut tried = self.tried.lock().unwrap();
                let times = tried.entry(task.hash().to_string()).or_default();
                *times += 1;
                if times.is_multiple_of(2) {
                    return Ok(table);
                }
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(EnvError::Invalid { location: "table".to_owned(), problem: "it has three legs".to_owned() })
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

struct Shaky(Box<dyn Env>);

impl Env for Shaky {
    fn reset(&mut self, episode: u32) -> Observation {
        self.0.reset(episode)
    }
    fn parse(&self, text: &str) -> ParsedAction {
        self.0.parse(text)
    }
    fn step(&mut self, _: &ParsedAction) -> Step {
        panic!("the table was turned over")
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
    for setting in [
        "optim.updates=3",
        "warmstart.steps=0",
        "warmstart.expert=random",
        "rollout.groups=8",
        "rollout.group_size=4",
        // One after the other, so that a second try of a task is the second.
        "engine.threads=1",
        "engine.device=cpu",
        "eval.every=0",
        "eval.final_tasks=8",
        "eval.exact_max_states=0",
    ] {
        composer.set(setting).unwrap();
    }
    composer.finish().unwrap()
}

fn house(trouble: Trouble, every: u64) -> Arc<House> {
    let kuhn = Arc::clone(Registry::builtin().get("kuhn").unwrap());
    Arc::new(House { kuhn, trouble, every, tried: Mutex::default(), failures: AtomicU64::new(0) })
}

fn train(house: &Arc<House>, recipe: Recipe, dir: &Path) -> (Result<(), String>, Vec<TrainEvent>) {
    let setting = TrainEnv {
        population: house.default_population(),
        prompts: PromptLibrary::builtin().get("kuhn").unwrap(),
        env_spec: Arc::clone(house) as Arc<dyn EnvSpec>,
        commit: None,
        status_log: Default::default(),
    };
    let mut heard = Vec::new();
    let ended = Training::create(recipe, setting, dir, Arc::new(AtomicU8::new(0)))
        .and_then(|mut training| training.run(&mut |event| heard.push(event)))
        .map(|outcome| assert!(outcome.after.is_some()))
        .map_err(|e| e.to_string());
    (ended, heard)
}

/// Meta-episodes that could not be played, by update.
fn errors(heard: &[TrainEvent]) -> Vec<f64> {
    heard
        .iter()
        .filter_map(|e| match e {
            TrainEvent::Updated { metrics, .. } => Some(metrics["errors"]),
            _ => None,
        })
        .collect()
}

#[test]
fn a_table_that_fails_for_good_leaves_its_place_empty_and_nobody_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let house = house(Trouble::Panics, 4);
    let (ended, heard) = train(&house, recipe(), &run);
    ended.unwrap();
    let errors = errors(&heard);
    assert_eq!(errors.len(), 3);
    let all = errors.iter().sum::<f64>();
    assert!(all > 0.0 && all < 96.0, "{errors:?}");
    let told = heard.iter().any(|e| matches!(e, TrainEvent::Warning { text } if text.contains("meta-episodes failed")));
    assert!(told, "and it is said");
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert!(!metrics.contains("null") && !metrics.contains("NaN"), "{metrics}");
}

#[test]
fn a_table_that_fails_once_is_set_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let house = house(Trouble::OnceUnready, 4);
    let mut once = recipe();
    // Members of a group share a task: with one each, a second try is the same one's.
    (once.rollout.groups, once.rollout.group_size) = (32, 1);
    let (ended, heard) = train(&house, once, &dir.path().join("run"));
    ended.unwrap();
    assert!(house.failures.load(Ordering::Relaxed) > 0, "there was something to try again");
    assert_eq!(errors(&heard), [0.0; 3]);
}

#[test]
fn a_house_where_nothing_can_be_played_ends_the_run_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (ended, _) = train(&house(Trouble::Panics, 1), recipe(), &dir.path().join("run"));
    let said = ended.unwrap_err();
    assert!(said.contains("failed") && said.contains("the table was turned over"), "{said}");
}
