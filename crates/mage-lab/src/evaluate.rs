//! How good is an agent?
//!
//! Plays every task of a [`Panel`] with one agent, on all cores, in an order and with luck that depend on nothing but the
//! seed.

use crate::{Panel, Player, Result, store::RecordStore};
use mage_core::{EpisodeRecord, MetaEpisode, Next, RecordKey, Settings, prompt::PromptSet};
use mage_env::{EnvFactory, Hash, Population, ReferenceMaker, ReferenceQuery, Seed, Task};
use rayon::prelude::*;
use std::sync::Arc;

/// An agent on a panel.
pub struct Evaluation {
    /// Makes the environments.
    pub factory: Arc<dyn EnvFactory>,
    /// What the agent is shown.
    pub prompts: Arc<PromptSet>,
    /// How meta-episodes are played.
    pub settings: Arc<Settings>,
    /// The tasks.
    pub panel: Panel,
    /// The agent.
    pub agent: Agent,
    /// The agent's luck.
    pub seed: Seed,
}

/// An agent that needs no model.
#[derive(Clone)]
pub enum Agent {
    /// Any legal action.
    Random,
    /// One of the environment's own.
    Reference {
        /// Its name.
        name: String,
        /// Its name and a hash of what it was told about the tasks to come.
        id: String,
        /// Makes it for each task.
        maker: Arc<dyn ReferenceMaker>,
    },
}

impl Agent {
    /// Looks an agent up by name.
    pub fn find(
        factory: &dyn EnvFactory,
        name: &str,
        population: &Population,
        split: &str,
        episodes: u32,
    ) -> Result<Self> {
        if name == "random" {
            return Ok(Agent::Random);
        }
        let maker = factory.reference(&ReferenceQuery { name, population, split, episodes })?;
        let told = Hash::of(&(population, split, episodes)).to_string();
        Ok(Agent::Reference { name: name.to_owned(), id: format!("{name}@{}", &told[..12]), maker })
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        match self {
            Agent::Random => "random",
            Agent::Reference { name, .. } => name,
        }
    }

    /// What records call it: two agents of one name that were told different things are two agents.
    pub fn id(&self) -> &str {
        match self {
            Agent::Random => "random",
            Agent::Reference { id, .. } => id,
        }
    }
}

/// How many meta-episodes are played between two visits to the disk.
const CHUNK: usize = 512;

impl Evaluation {
    /// Plays the whole panel and hands each record to `each`, in the panel's order.
    pub fn run(&self, mut each: impl FnMut(&EpisodeRecord)) -> Result<()> {
        self.play_missing(
            |_| false,
            |records| {
                records.iter().for_each(&mut each);
                Ok(())
            },
        )
    }

    /// Plays what is not in the store yet and adds it there; `each` is told of every record added. Kill it at any time
    /// and call it again: nothing finished is repeated.
    pub fn run_into(&self, store: &mut RecordStore, mut each: impl FnMut(&EpisodeRecord)) -> Result<()> {
        let done: Vec<bool> =
            self.panel.tasks().iter().enumerate().map(|(i, t)| store.contains(&self.key(i, t))).collect();
        self.play_missing(
            |i| done[i],
            |records| {
                store.append(records)?;
                records.iter().for_each(&mut each);
                Ok(())
            },
        )
    }

    /// The key of the record of the `index`-th task.
    pub fn key(&self, index: usize, task: &Task) -> RecordKey {
        RecordKey {
            panel: self.panel.hash(),
            task: task.hash(),
            method: Hash::of(&*self.settings),
            weights: self.agent.id().to_owned(),
            seed: self.seed.child("agent").at(index as u64),
        }
    }

    fn play_missing(
        &self,
        done: impl Fn(usize) -> bool,
        mut keep: impl FnMut(&[EpisodeRecord]) -> Result<()>,
    ) -> Result<()> {
        let missing: Vec<usize> = (0..self.panel.tasks().len()).filter(|i| !done(*i)).collect();
        for chunk in missing.chunks(CHUNK) {
            let records: Result<Vec<EpisodeRecord>> = chunk.par_iter().map(|i| self.play(*i)).collect();
            keep(&records?)?;
        }
        Ok(())
    }

    fn play(&self, index: usize) -> Result<EpisodeRecord> {
        let task = &self.panel.tasks()[index];
        let key = self.key(index, task);
        let settings = Arc::clone(&self.settings);
        let mut player = match &self.agent {
            Agent::Random => Player::random(Arc::clone(&settings), key.seed),
            Agent::Reference { maker, .. } => {
                Player::reference(Arc::clone(&settings), maker.make(task, key.seed.child("reference")))?
            }
        };
        let env = self.factory.build(task)?;
        let mut meta = MetaEpisode::new(task.clone(), env, Arc::clone(&self.prompts), settings, key.seed)?;
        loop {
            match meta.advance()? {
                Next::Call(call) => {
                    let answer = player.answer(&call, &meta)?;
                    meta.answer(call.id, Ok(answer))?;
                }
                Next::Done(record) => return Ok(EpisodeRecord { key, ..*record }),
            }
        }
    }
}
