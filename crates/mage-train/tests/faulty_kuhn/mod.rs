//! Kuhn poker whose environments fail in chosen tasks.

use mage_env::{
    Anchor, Env, EnvId, EnvInfo, EnvSpec, Error as EnvError, GameTree, Observation, ParsedAction, Population, Registry,
    Result as EnvResult, Step, Task,
};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Injected failure.
#[allow(dead_code, reason = "test binaries use a subset")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The environment cannot be built.
    Build,
    /// Building it panics.
    PanicInBuild,
    /// Its reset panics.
    PanicInReset,
    /// Its first step panics.
    PanicInStep,
    /// The reset of its second episode panics.
    PanicInLaterEpisode,
    /// Enumerating its game tree panics.
    PanicInGameTree,
}

/// Chooses the fault of the next environment of a task.
type FaultOf = Box<dyn Fn(&Task) -> Option<Fault> + Send + Sync>;

/// Kuhn poker with failures.
pub(crate) struct FaultyKuhn {
    kuhn: Arc<dyn EnvSpec>,
    fault: FaultOf,
    /// Number of faulty environments so far.
    #[allow(dead_code, reason = "test binaries use a subset")]
    pub(crate) faults: AtomicU64,
}

impl FaultyKuhn {
    /// Kuhn poker; `fault` is called once per environment.
    pub(crate) fn new(fault: impl Fn(&Task) -> Option<Fault> + Send + Sync + 'static) -> Self {
        let kuhn = Arc::clone(Registry::builtin().get("kuhn").unwrap());
        FaultyKuhn { kuhn, fault: Box::new(fault), faults: AtomicU64::new(0) }
    }
}

/// A number that a task determines.
pub(crate) fn task_number(task: &Task) -> u64 {
    u64::from_str_radix(&task.hash().to_string()[..8], 16).unwrap()
}

impl EnvSpec for FaultyKuhn {
    fn id(&self) -> EnvId {
        self.kuhn.id()
    }
    fn info(&self) -> EnvInfo {
        self.kuhn.info()
    }
    fn build(&self, task: &Task) -> EnvResult<Box<dyn Env>> {
        let env = self.kuhn.build(task)?;
        let Some(fault) = (self.fault)(task) else { return Ok(env) };
        self.faults.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Build => {
                Err(EnvError::Invalid { location: "environment".to_owned(), problem: "injected fault".to_owned() })
            }
            Fault::PanicInBuild => panic!("injected panic in build"),
            _ => Ok(Box::new(FaultyEnv { env, fault })),
        }
    }
    fn check(&self, population: &Population) -> EnvResult<()> {
        self.kuhn.check(population)
    }
    fn default_population(&self) -> Population {
        self.kuhn.default_population()
    }
}

struct FaultyEnv {
    env: Box<dyn Env>,
    fault: Fault,
}

impl Env for FaultyEnv {
    fn reset(&mut self, episode: u32) -> Observation {
        assert!(self.fault != Fault::PanicInReset, "injected panic in reset");
        assert!(self.fault != Fault::PanicInLaterEpisode || episode == 0, "injected panic in a later reset");
        self.env.reset(episode)
    }
    fn parse(&self, text: &str) -> ParsedAction {
        self.env.parse(text)
    }
    fn step(&mut self, action: &ParsedAction) -> Step {
        assert!(self.fault != Fault::PanicInStep, "injected panic in step");
        self.env.step(action)
    }
    fn legal(&self) -> Option<Vec<String>> {
        self.env.legal()
    }
    fn anchor(&self) -> Anchor {
        self.env.anchor()
    }
    fn game_tree(&self, episode: u32, limit: usize) -> Option<GameTree> {
        assert!(self.fault != Fault::PanicInGameTree, "injected panic in game_tree");
        self.env.game_tree(episode, limit)
    }
}
