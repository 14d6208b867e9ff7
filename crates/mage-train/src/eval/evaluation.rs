//! How good is an agent?
//!
//! Plays every task of a [`TaskSet`] with one agent, on all cores, in an order and with luck that depend on nothing but the
//! seed.

use super::ModelAgent;
use crate::{
    Error, Player, Result, TaskSet,
    eval::store::{TrajectoryStore, read_trajectories},
};
use mage_core::{EpisodeConfig, MemoryFactory, MetaEpisode, Next, Trajectory, TrajectoryKey, prompt::PromptSet};
use mage_env::{EnvSpec, Hash, Population, ScriptedAgentFactory, ScriptedAgentQuery, Seed, Task};
use rayon::prelude::*;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

/// An agent on a panel.
pub struct Evaluation {
    /// Makes the environments.
    pub env_spec: Arc<dyn EnvSpec>,
    /// What the agent is shown.
    pub prompts: Arc<PromptSet>,
    /// How meta-episodes are played.
    pub settings: Arc<EpisodeConfig>,
    /// What agents remember by; the memory in the settings where there is nothing else.
    pub memories: Option<Arc<MemoryFactory>>,
    /// The tasks.
    pub panel: TaskSet,
    /// The agent.
    pub agent: Agent,
    /// The agent's luck.
    pub seed: Seed,
    /// Anything but 0 asks to stop: tasks that are finished are kept, those under way are given up, and the evaluation ends with
    /// [`Error::Interrupted`].
    pub stop: Arc<AtomicU8>,
}

/// Who plays.
#[derive(Clone)]
pub enum Agent {
    /// A model.
    Model(ModelAgent),
    /// Any legal action.
    Random,
    /// One of the environment's own.
    Reference {
        /// Its name.
        name: String,
        /// Its name and a hash of what it was told about the tasks to come.
        id: String,
        /// Makes it for each task.
        maker: Arc<dyn ScriptedAgentFactory>,
    },
}

impl Agent {
    /// Looks an agent that needs no model up by name.
    pub fn find(
        env_spec: &dyn EnvSpec,
        name: &str,
        population: &Population,
        split: &str,
        episodes: u32,
    ) -> Result<Self> {
        if name == "random" {
            return Ok(Agent::Random);
        }
        let maker = env_spec.scripted_agent(&ScriptedAgentQuery { name, population, split, episodes })?;
        let told = Hash::of(&(population, split, episodes)).to_string();
        Ok(Agent::Reference { name: name.to_owned(), id: format!("{name}@{}", &told[..12]), maker })
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        match self {
            Agent::Model(model) => &model.name,
            Agent::Random => "random",
            Agent::Reference { name, .. } => name,
        }
    }

    /// What records call it: two agents of one name that were told different things are two agents.
    pub fn id(&self) -> &str {
        match self {
            Agent::Model(model) => &model.id,
            Agent::Random => "random",
            Agent::Reference { id, .. } => id,
        }
    }
}

/// What is played by rule goes to the disk about as often as this: who kills it loses so much play, or one task a core.
const VISIT: Duration = Duration::from_millis(250);

/// The agent's luck in the `index`-th task of a panel.
pub fn agent_seed(seed: Seed, index: usize) -> Seed {
    seed.child("agent").at(index as u64)
}

impl Evaluation {
    /// Plays the whole panel and hands each record to `each`: in the panel's order where no model is asked, as they come
    /// otherwise.
    pub fn run(self: &Arc<Self>, mut each: impl FnMut(&Trajectory)) -> Result<()> {
        let all: Vec<usize> = (0..self.panel.tasks().len()).collect();
        self.play_all(&all, |records| {
            records.iter().for_each(&mut each);
            Ok(())
        })
    }

    /// Plays what is not finished in the store yet and adds it there; `each` is told of every record added. Kill it at any
    /// time and call it again: nothing finished is repeated, and what failed is tried again.
    pub fn run_into(self: &Arc<Self>, store: &mut TrajectoryStore, mut each: impl FnMut(&Trajectory)) -> Result<()> {
        let keys = || self.panel.tasks().iter().enumerate().map(|(i, t)| (i, self.key(i, t)));
        let missing: Vec<usize> = keys().filter(|(_, key)| !store.contains(key)).map(|(i, _)| i).collect();
        if self.needs_the_past() && missing.len() < self.panel.tasks().len() {
            let numbers: HashMap<TrajectoryKey, usize> = keys().map(|(i, key)| (key, i)).collect();
            let mut past = Vec::new();
            for record in read_trajectories(store.path())? {
                let record = record?;
                if let (Some(i), None) = (numbers.get(&record.key), &record.error) {
                    past.push((*i, record));
                }
            }
            past.sort_by_key(|(i, _)| *i);
            past.iter().try_for_each(|(i, record)| self.remember(*i, record))?;
        }
        self.play_all(&missing, |records| {
            store.append(records)?;
            records.iter().for_each(&mut each);
            Ok(())
        })
    }

    /// What records know the method by.
    pub fn method(&self) -> Hash {
        let method = self.memories.as_ref().map_or_else(|| Hash::of(&*self.settings), |m| m.method_hash());
        match &self.agent {
            Agent::Model(model) => super::model_agent::method_hash(method, &model.drawn),
            _ => method,
        }
    }

    /// The key of the record of the `index`-th task.
    pub fn key(&self, index: usize, task: &Task) -> TrajectoryKey {
        TrajectoryKey {
            task_set: self.panel.hash(),
            task: task.hash(),
            method: self.method(),
            weights: self.agent.id().to_owned(),
            seed: agent_seed(self.seed, index),
        }
    }

    fn play_all(self: &Arc<Self>, missing: &[usize], mut keep: impl FnMut(&[Trajectory]) -> Result<()>) -> Result<()> {
        if let Agent::Model(agent) = &self.agent {
            return self.fly(agent, missing, keep);
        }
        // How many are played between two visits is found out on the way; their order is the panel's all the same.
        let (mut rest, mut count) = (missing, rayon::current_num_threads());
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(count.min(rest.len()));
            let begun = Instant::now();
            let one = |i: &usize| (!self.stopped()).then(|| self.play(*i)).transpose();
            let records: Vec<Result<Option<Trajectory>>> = chunk.par_iter().map(one).collect();
            let (mut finished, mut problem) = (Vec::with_capacity(chunk.len()), None);
            for record in records {
                match record {
                    Ok(record) => finished.extend(record),
                    Err(e) => problem = problem.or(Some(e)),
                }
            }
            // What was played beside a task that failed is as good as ever.
            keep(&finished)?;
            if let Some(problem) = problem {
                return Err(problem);
            }
            if finished.len() < chunk.len() {
                return Err(Error::Interrupted);
            }
            count = match begun.elapsed() {
                quick if quick < VISIT / 2 => count * 2,
                slow if slow > VISIT => (count / 2).max(rayon::current_num_threads()),
                _ => count,
            };
            rest = later;
        }
        Ok(())
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) > 0
    }

    /// The `index`-th task, ready to be played.
    pub(super) fn meta_episode(&self, index: usize) -> Result<MetaEpisode> {
        let task = self.panel.tasks()[index].clone();
        let env = self.env_spec.build(&task)?;
        let (prompts, settings) = (Arc::clone(&self.prompts), Arc::clone(&self.settings));
        let seed = agent_seed(self.seed, index);
        Ok(match &self.memories {
            None => MetaEpisode::new(task, env, prompts, settings, seed)?,
            Some(maker) => MetaEpisode::with_memory(task, env, prompts, settings, maker.make(), seed)?,
        })
    }

    /// Plays one task by rule.
    fn play(&self, index: usize) -> Result<Trajectory> {
        let task = &self.panel.tasks()[index];
        let key = self.key(index, task);
        let settings = Arc::clone(&self.settings);
        let mut player = match &self.agent {
            Agent::Reference { maker, .. } => {
                Player::reference(settings, maker.make(task, key.seed.child("reference")))?
            }
            Agent::Random | Agent::Model(_) => Player::random(settings, key.seed),
        };
        let mut meta = self.meta_episode(index)?;
        loop {
            match meta.advance()? {
                Next::Request(call) => {
                    let answer = player.answer(&call, &meta)?;
                    meta.submit(call.id, Ok(answer))?;
                }
                Next::Done(record) => return Ok(Trajectory { key, ..*record }),
            }
        }
    }
}
