//! Warm start: supervised training on expert play or on transcripts, before RL.
//!
//! Generated play consists of an expert's actions and of reflections that state the facts. With probability epsilon, an
//! action is replaced by a random legal one, so that no action has probability zero. A user's
//! [transcripts](Transcripts) replace generated play.

use crate::{
    Error, Result,
    policy::{ScriptedPolicy, codec::PromptCodec},
    recipe::{Aggregation, Recipe},
    rollout::MetaEpisodeBuilder,
    train::TrainEnv,
    train::samples::{TokenizedSample, mask_request, token_forest},
    train::transcripts::Transcripts,
};
use futures_executor::block_on;
use mage_core::{EpisodeConfig, RequestKind, Trajectory, parse, prompt::PromptForm};
use mage_engine::{Loss, Objective, PerToken, TokenForest, Trainer};
use mage_env::{EnvSpec, Population, ScriptedAgentFactory, ScriptedAgentQuery, Seed, Task};
use rayon::prelude::*;
use std::{path::Path, sync::Arc};

/// Generates batches for supervised training.
pub struct WarmStart {
    env_spec: Arc<dyn EnvSpec>,
    meta_episodes: MetaEpisodeBuilder,
    population: Population,
    split: String,
    expert: Option<Arc<dyn ScriptedAgentFactory>>,
    epsilon: f64,
    /// Seed of the order of start states in environments with a finite set of them.
    deal_seed: Seed,
    transcripts: Option<Transcripts>,
}

impl WarmStart {
    /// The warm start of a recipe.
    pub fn new(
        recipe: &Recipe,
        env: &TrainEnv,
        meta_episodes: MetaEpisodeBuilder,
        codec: &PromptCodec,
        max_seq_len: usize,
    ) -> Result<Self> {
        let transcripts = match recipe.warmstart.transcripts.as_str() {
            "" => None,
            path => Some(Transcripts::read(Path::new(path), codec, max_seq_len)?),
        };
        let expert = match recipe.warmstart.expert.as_str() {
            "" | "random" => None,
            name => {
                let query = ScriptedAgentQuery {
                    name,
                    population: &env.population,
                    split: &recipe.env.split,
                    episodes: meta_episodes.config().episodes,
                };
                let of_key = |e: mage_env::Error| Error::Recipe {
                    location: "warmstart.expert".to_owned(),
                    problem: e.to_string(),
                };
                Some(env.env_spec.scripted_agent(&query).map_err(of_key)?)
            }
        };
        Ok(WarmStart {
            env_spec: Arc::clone(&env.env_spec),
            meta_episodes,
            population: env.population.clone(),
            split: recipe.env.split.clone(),
            expert,
            epsilon: recipe.warmstart.epsilon,
            deal_seed: Seed::new(recipe.seed).child("warmstart").child("deal"),
            transcripts,
        })
    }

    fn episode_config(&self) -> &EpisodeConfig {
        self.meta_episodes.config()
    }

    /// Samples one meta-episode of expert play. A failure of the environment is in the trajectory.
    fn play(&self, task: &Task, seed: Seed) -> Result<Trajectory> {
        let config = Arc::clone(self.meta_episodes.config());
        let mut policy = match &self.expert {
            None => ScriptedPolicy::random(config, seed),
            Some(factory) => {
                let expert = factory.make(task, seed.child("expert"));
                ScriptedPolicy::expert(config, expert, self.epsilon, seed.child("epsilon"))
            }
        };
        block_on(self.meta_episodes.play(task, seed, &mut policy, &())).into_result()
    }

    /// Number of reflections of a trajectory that equal the expert's, and number of all; `None` without an expert.
    pub fn count_factual(&self, trajectory: &Trajectory) -> Option<(u32, u32)> {
        let factory = self.expert.as_ref()?;
        let mut expert = factory.make(&trajectory.task, Seed::new(0));
        let reflections = trajectory.requests.iter().filter(|r| r.kind == RequestKind::Reflect);
        let factual = reflections.map(|record| {
            let episode = &trajectory.episodes[record.episode as usize - 1];
            let expected = expert.reflect(&episode.last_observation().compact);
            let reflection = match self.episode_config().prompt_form {
                PromptForm::Compact => record.completion.text.as_str(),
                PromptForm::Full => parse::last_tag(&record.completion.text, "remark").unwrap_or_default(),
            };
            u32::from(reflection.split_whitespace().eq(expected.split_whitespace()))
        });
        Some(factual.fold((0, 0), |(count, total), one| (count + one, total + 1)))
    }

    /// The `index`-th batch of `count` generated meta-episodes, without those whose environment failed. If all failed,
    /// the first failure is the error.
    pub fn batch(&self, index: u64, count: usize, seed: Seed, codec: &PromptCodec) -> Result<TokenForest> {
        let (seats, seeds) = (self.env_spec.info().seats, (0..count as u64).map(|i| seed.at(i)));
        let mut tasks: Vec<Task> = seeds
            .clone()
            .map(|seed| Ok(self.population.sample_task(&self.split, seats, seed.child("task"))?))
            .collect::<Result<_>>()?;
        self.env_spec.assign_without_replacement(&mut tasks, index * count as u64, self.deal_seed)?;
        let jobs: Vec<(Task, Seed)> = tasks.into_iter().zip(seeds).collect();
        let trajectories: Vec<Trajectory> =
            jobs.par_iter().map(|(task, seed)| self.play(task, *seed)).collect::<Result<_>>()?;
        if let Some(problem) = trajectories.first().and_then(|t| t.error.as_ref())
            && trajectories.iter().all(|t| t.error.is_some())
        {
            return Err(Error::Stopped(format!("expert play failed: {problem}")));
        }
        let mut tokenized = Vec::new();
        for record in trajectories.iter().filter(|t| t.error.is_none()).flat_map(|t| &t.requests) {
            let request = mask_request(record, self.episode_config().max_tokens(record.kind));
            let response = codec.response_tokens(&request, &record.completion.text)?;
            tokenized.push((codec.prompt(&record.messages)?, codec.masks(&request, &response)?, response));
        }
        let samples = tokenized.iter().map(|(prompt, allowed, response)| TokenizedSample {
            prompt,
            response,
            train: PerToken { allowed: allowed.clone(), ..PerToken::default() },
        });
        Ok(token_forest(samples, Aggregation::Token))
    }

    /// One optimiser step; returns the loss before it.
    pub fn step(&self, recipe: &Recipe, step: u64, trainer: &mut dyn Trainer, codec: &PromptCodec) -> Result<f64> {
        let (seed, count) = (Seed::new(recipe.seed).child("warmstart"), recipe.warmstart.batch_size);
        let batch = match &self.transcripts {
            Some(transcripts) => transcripts.batch(step, count, seed),
            None => self.batch(step, count, seed.at(step), codec)?,
        };
        let report = trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?;
        trainer.optim_step(&recipe.warmstart_step(step))?;
        Ok(report.loss)
    }
}
