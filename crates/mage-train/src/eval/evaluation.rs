//! Evaluation of an agent on a task set.
//!
//! Plays every task of a [`TaskSet`] on all cores. Results depend on the seed alone.

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

/// An agent and the task set to evaluate it on.
pub struct Evaluation {
    /// Builds the environments.
    pub env_spec: Arc<dyn EnvSpec>,
    /// Prompt templates.
    pub prompts: Arc<PromptSet>,
    /// Episode configuration.
    pub episode_config: Arc<EpisodeConfig>,
    /// Memory implementation; `None` uses the memory mode of the episode configuration.
    pub memories: Option<Arc<MemoryFactory>>,
    /// The tasks.
    pub task_set: TaskSet,
    /// The agent.
    pub agent: Agent,
    /// Seed of the agent.
    pub seed: Seed,
    /// A value other than 0 requests a stop: finished tasks are kept, running ones are dropped, and the evaluation ends
    /// with [`Error::Interrupted`].
    pub stop: Arc<AtomicU8>,
}

/// The agent to evaluate.
#[derive(Clone)]
pub enum Agent {
    /// A model.
    Model(ModelAgent),
    /// Random legal actions.
    Random,
    /// A scripted agent of the environment.
    Scripted {
        /// Name.
        name: String,
        /// Name with a hash of the population, split and number of episodes it was built for.
        id: String,
        /// Builds the agent of a task.
        factory: Arc<dyn ScriptedAgentFactory>,
    },
}

impl Agent {
    /// The agent without a model of this name.
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
        let factory = env_spec.scripted_agent(&ScriptedAgentQuery { name, population, split, episodes })?;
        let hash = Hash::of(&(population, split, episodes)).to_string();
        Ok(Agent::Scripted { name: name.to_owned(), id: format!("{name}@{}", &hash[..12]), factory })
    }

    /// Display name.
    pub fn name(&self) -> &str {
        match self {
            Agent::Model(model) => &model.name,
            Agent::Random => "random",
            Agent::Scripted { name, .. } => name,
        }
    }

    /// Identifier in trajectories. Scripted agents of one name built for different tasks have different identifiers.
    pub fn id(&self) -> &str {
        match self {
            Agent::Model(model) => &model.id,
            Agent::Random => "random",
            Agent::Scripted { id, .. } => id,
        }
    }
}

/// Approximate interval between writes of scripted play; a kill loses at most this much, or one task per core.
const FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// Seed of the agent in the `index`-th task.
pub fn agent_seed(seed: Seed, index: usize) -> Seed {
    seed.child("agent").at(index as u64)
}

impl Evaluation {
    /// Plays the task set and passes each trajectory to `on_trajectory`: in the order of the task set without a model,
    /// as they finish otherwise.
    pub fn run(self: &Arc<Self>, mut on_trajectory: impl FnMut(&Trajectory)) -> Result<()> {
        let all: Vec<usize> = (0..self.task_set.tasks().len()).collect();
        self.play_all(&all, |trajectories| {
            trajectories.iter().for_each(&mut on_trajectory);
            Ok(())
        })
    }

    /// Plays the tasks that the store has no result of and adds them; `on_trajectory` receives every addition. After an
    /// interruption, another call continues: finished tasks are not repeated, failed ones are retried.
    pub fn run_into(
        self: &Arc<Self>,
        store: &mut TrajectoryStore,
        mut on_trajectory: impl FnMut(&Trajectory),
    ) -> Result<()> {
        let keys = || self.task_set.tasks().iter().enumerate().map(|(i, t)| (i, self.key(i, t)));
        let missing: Vec<usize> = keys().filter(|(_, key)| !store.contains(key)).map(|(i, _)| i).collect();
        if self.needs_replay() && missing.len() < self.task_set.tasks().len() {
            let indices: HashMap<TrajectoryKey, usize> = keys().map(|(i, key)| (key, i)).collect();
            let mut finished = Vec::new();
            for trajectory in read_trajectories(store.path())? {
                let trajectory = trajectory?;
                if let (Some(i), None) = (indices.get(&trajectory.key), &trajectory.error) {
                    finished.push((*i, trajectory));
                }
            }
            finished.sort_by_key(|(i, _)| *i);
            finished.iter().try_for_each(|(i, trajectory)| self.replay(*i, trajectory))?;
        }
        self.play_all(&missing, |trajectories| {
            store.append(trajectories)?;
            trajectories.iter().for_each(&mut on_trajectory);
            Ok(())
        })
    }

    /// Identifier of the method in trajectories.
    pub fn method(&self) -> Hash {
        let method = self.memories.as_ref().map_or_else(|| Hash::of(&*self.episode_config), |m| m.method_hash());
        match &self.agent {
            Agent::Model(model) => super::model_agent::method_hash(method, &model.decoding),
            _ => method,
        }
    }

    /// Key of the trajectory of the `index`-th task.
    pub fn key(&self, index: usize, task: &Task) -> TrajectoryKey {
        TrajectoryKey {
            task_set: self.task_set.hash(),
            task: task.hash(),
            method: self.method(),
            weights: self.agent.id().to_owned(),
            seed: agent_seed(self.seed, index),
        }
    }

    fn play_all(self: &Arc<Self>, missing: &[usize], mut store: impl FnMut(&[Trajectory]) -> Result<()>) -> Result<()> {
        if let Agent::Model(agent) = &self.agent {
            return self.play_concurrently(agent, missing, store);
        }
        // The chunk size adapts to the flush interval; the order remains that of the task set.
        let (mut rest, mut chunk_size) = (missing, rayon::current_num_threads());
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(chunk_size.min(rest.len()));
            let started = Instant::now();
            let play = |i: &usize| (!self.stopped()).then(|| self.play(*i)).transpose();
            let results: Vec<Result<Option<Trajectory>>> = chunk.par_iter().map(play).collect();
            let (mut finished, mut error) = (Vec::with_capacity(chunk.len()), None);
            for result in results {
                match result {
                    Ok(trajectory) => finished.extend(trajectory),
                    Err(e) => error = error.or(Some(e)),
                }
            }
            // The other tasks of the chunk are valid even if one failed.
            store(&finished)?;
            if let Some(error) = error {
                return Err(error);
            }
            if finished.len() < chunk.len() {
                return Err(Error::Interrupted);
            }
            chunk_size = match started.elapsed() {
                elapsed if elapsed < FLUSH_INTERVAL / 2 => chunk_size * 2,
                elapsed if elapsed > FLUSH_INTERVAL => (chunk_size / 2).max(rayon::current_num_threads()),
                _ => chunk_size,
            };
            rest = later;
        }
        Ok(())
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) > 0
    }

    /// The meta-episode of the `index`-th task.
    pub(super) fn meta_episode(&self, index: usize) -> Result<MetaEpisode> {
        let task = self.task_set.tasks()[index].clone();
        let env = self.env_spec.build(&task)?;
        let (prompts, episode_config) = (Arc::clone(&self.prompts), Arc::clone(&self.episode_config));
        let seed = agent_seed(self.seed, index);
        Ok(match &self.memories {
            None => MetaEpisode::new(task, env, prompts, episode_config, seed)?,
            Some(memories) => MetaEpisode::with_memory(task, env, prompts, episode_config, memories.make(), seed)?,
        })
    }

    /// Plays one task with a scripted or random agent.
    fn play(&self, index: usize) -> Result<Trajectory> {
        let task = &self.task_set.tasks()[index];
        let key = self.key(index, task);
        let episode_config = Arc::clone(&self.episode_config);
        let mut player = match &self.agent {
            Agent::Scripted { factory, .. } => {
                Player::scripted(episode_config, factory.make(task, key.seed.child("reference")))?
            }
            Agent::Random | Agent::Model(_) => Player::random(episode_config, key.seed),
        };
        let mut meta = self.meta_episode(index)?;
        loop {
            match meta.advance()? {
                Next::Request(request) => {
                    let completion = player.respond(&request, &meta)?;
                    meta.submit(request.id, Ok(completion))?;
                }
                Next::Done(trajectory) => return Ok(Trajectory { key, ..*trajectory }),
            }
        }
    }
}
