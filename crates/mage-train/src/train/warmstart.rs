//! Warm start: supervised training on expert play or on transcripts, before RL.
//!
//! Generated play consists of an expert's actions and of reflections that state the facts. With probability epsilon, an
//! action is replaced by a random legal one, so that no action has probability zero. A user's
//! [transcripts](Transcripts) replace generated play.

use crate::{
    Player, Result,
    policy::codec::PromptCodec,
    recipe::{Aggregation, Recipe},
    train::samples::{TokenizedSample, mask_request, token_forest},
    train::transcripts::Transcripts,
};
use mage_core::{
    EpisodeConfig, MetaEpisode, Next, RequestKind, Trajectory, parse,
    prompt::{PromptForm, PromptSet},
};
use mage_engine::{Loss, Objective, PerToken, TokenForest, Trainer};
use mage_env::{EnvSpec, Population, ScriptedAgentFactory, ScriptedAgentQuery, Seed};
use rayon::prelude::*;
use std::{path::Path, sync::Arc};

/// Generates batches for supervised training.
pub struct WarmStart {
    env_spec: Arc<dyn EnvSpec>,
    prompts: Arc<PromptSet>,
    episode_config: Arc<EpisodeConfig>,
    population: Population,
    split: String,
    seats: u8,
    expert: Option<Arc<dyn ScriptedAgentFactory>>,
    epsilon: f64,
    transcripts: Option<Transcripts>,
}

impl WarmStart {
    /// The warm start of a recipe.
    pub fn new(
        recipe: &Recipe,
        env_spec: Arc<dyn EnvSpec>,
        prompts: Arc<PromptSet>,
        episode_config: Arc<EpisodeConfig>,
        population: Population,
        codec: &PromptCodec,
        max_seq_len: usize,
    ) -> Result<Self> {
        let transcripts = match recipe.warmstart.transcripts.as_str() {
            "" => None,
            path => Some(Transcripts::read(Path::new(path), codec, max_seq_len)?),
        };
        let expert = match recipe.warmstart.expert.as_str() {
            "" | "random" => None,
            name => Some(env_spec.scripted_agent(&ScriptedAgentQuery {
                name,
                population: &population,
                split: &recipe.env.split,
                episodes: episode_config.episodes,
            })?),
        };
        let seats = env_spec.info().seats;
        let split = recipe.env.split.clone();
        let epsilon = recipe.warmstart.epsilon;
        Ok(WarmStart { env_spec, prompts, episode_config, population, split, seats, expert, epsilon, transcripts })
    }

    /// Samples one meta-episode of expert play.
    pub fn play(&self, seed: Seed) -> Result<Trajectory> {
        let task = self.population.draw(&self.split, self.seats, seed.child("task"))?;
        let episode_config = Arc::clone(&self.episode_config);
        let mut player = match &self.expert {
            None => Player::random(Arc::clone(&episode_config), seed),
            Some(factory) => {
                let expert = factory.make(&task, seed.child("expert"));
                Player::expert(Arc::clone(&episode_config), expert, self.epsilon, seed.child("epsilon"))
            }
        };
        let env = self.env_spec.build(&task)?;
        let mut meta = MetaEpisode::new(task, env, Arc::clone(&self.prompts), episode_config, seed)?;
        loop {
            match meta.advance()? {
                Next::Request(request) => {
                    let completion = player.respond(&request, &meta)?;
                    meta.submit(request.id, Ok(completion))?;
                }
                Next::Done(trajectory) => return Ok(*trajectory),
            }
        }
    }

    /// Number of reflections of a trajectory that equal the expert's, and number of all; `None` without an expert.
    pub fn count_factual(&self, trajectory: &Trajectory) -> Option<(u32, u32)> {
        let factory = self.expert.as_ref()?;
        let mut expert = factory.make(&trajectory.task, Seed::new(0));
        let reflections = trajectory.requests.iter().filter(|r| r.kind == RequestKind::Reflect);
        let factual = reflections.map(|record| {
            let episode = &trajectory.episodes[record.episode as usize - 1];
            let expected = expert.reflect(&episode.last_observation().compact);
            let reflection = match self.episode_config.prompt_form {
                PromptForm::Compact => record.completion.text.as_str(),
                PromptForm::Full => parse::last_tag(&record.completion.text, "remark").unwrap_or_default(),
            };
            u32::from(reflection.split_whitespace().eq(expected.split_whitespace()))
        });
        Some(factual.fold((0, 0), |(count, total), one| (count + one, total + 1)))
    }

    /// A batch of `count` generated meta-episodes.
    pub fn batch(&self, count: usize, seed: Seed, codec: &PromptCodec) -> Result<TokenForest> {
        let trajectories: Vec<Trajectory> =
            (0..count).into_par_iter().map(|i| self.play(seed.at(i as u64))).collect::<Result<_>>()?;
        let mut tokenized = Vec::new();
        for record in trajectories.iter().flat_map(|t| &t.requests) {
            let max_tokens = if record.kind == RequestKind::Play {
                self.episode_config.play_tokens
            } else {
                self.episode_config.reflect_tokens
            };
            let request = mask_request(record, max_tokens);
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
            None => self.batch(count, seed.at(step), codec)?,
        };
        let report = trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?;
        trainer.optim_step(&recipe.warmstart_step(step))?;
        Ok(report.loss)
    }
}
