//! How does a new model learn the form of an answer?
//!
//! By imitating a user's [transcripts](Transcripts), or generated play: a teacher's actions, some of them replaced by any legal one so that nothing is ruled out,
//! and reflections that state the facts.

use crate::{
    Player, Result,
    policy::codec::PromptCodec,
    recipe::{Aggregation, Recipe},
    train::samples::{TokenizedSample, forest},
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

/// Makes play to imitate.
pub struct WarmStart {
    env_spec: Arc<dyn EnvSpec>,
    prompts: Arc<PromptSet>,
    settings: Arc<EpisodeConfig>,
    population: Population,
    split: String,
    seats: u8,
    teacher: Option<Arc<dyn ScriptedAgentFactory>>,
    uniform: f64,
    transcripts: Option<Transcripts>,
}

impl WarmStart {
    /// The school a recipe asks for.
    pub fn new(
        recipe: &Recipe,
        env_spec: Arc<dyn EnvSpec>,
        prompts: Arc<PromptSet>,
        settings: Arc<EpisodeConfig>,
        population: Population,
        speech: &PromptCodec,
        context: usize,
    ) -> Result<Self> {
        let transcripts = match recipe.warmstart.transcripts.as_str() {
            "" => None,
            path => Some(Transcripts::read(Path::new(path), speech, context)?),
        };
        let teacher = match recipe.warmstart.expert.as_str() {
            "" | "random" => None,
            name => Some(env_spec.scripted_agent(&ScriptedAgentQuery {
                name,
                population: &population,
                split: &recipe.env.split,
                episodes: settings.episodes,
            })?),
        };
        let seats = env_spec.info().seats;
        let split = recipe.env.split.clone();
        let uniform = recipe.warmstart.epsilon;
        Ok(WarmStart { env_spec, prompts, settings, population, split, seats, teacher, uniform, transcripts })
    }

    /// One meta-episode played by the teacher.
    pub fn play(&self, seed: Seed) -> Result<Trajectory> {
        let task = self.population.draw(&self.split, self.seats, seed.child("task"))?;
        let settings = Arc::clone(&self.settings);
        let mut player = match &self.teacher {
            None => Player::random(Arc::clone(&settings), seed),
            Some(maker) => {
                let teacher = maker.make(&task, seed.child("teacher"));
                Player::teacher(Arc::clone(&settings), teacher, self.uniform, seed.child("stray"))
            }
        };
        let env = self.env_spec.build(&task)?;
        let mut meta = MetaEpisode::new(task, env, Arc::clone(&self.prompts), settings, seed)?;
        loop {
            match meta.advance()? {
                Next::Request(call) => {
                    let answer = player.answer(&call, &meta)?;
                    meta.submit(call.id, Ok(answer))?;
                }
                Next::Done(record) => return Ok(*record),
            }
        }
    }

    /// How many of a record's reflections state the facts as the teacher would, of how many; `None` without a teacher.
    pub fn factual(&self, record: &Trajectory) -> Option<(u32, u32)> {
        let maker = self.teacher.as_ref()?;
        let mut teacher = maker.make(&record.task, Seed::new(0));
        let reflections = record.requests.iter().filter(|c| c.kind == RequestKind::Reflect);
        let counted = reflections.map(|call| {
            let finished = &record.episodes[call.episode as usize - 1];
            let facts = teacher.reflect(&finished.last_observation().compact);
            let said = match self.settings.prompt_form {
                PromptForm::Compact => call.completion.text.as_str(),
                PromptForm::Full => parse::last_tag(&call.completion.text, "remark").unwrap_or_default(),
            };
            u32::from(said.split_whitespace().eq(facts.split_whitespace()))
        });
        Some(counted.fold((0, 0), |(right, all), one| (right + one, all + 1)))
    }

    /// A step's worth of play as a batch to imitate.
    pub fn batch(&self, count: usize, seed: Seed, speech: &PromptCodec) -> Result<TokenForest> {
        let records: Vec<Trajectory> =
            (0..count).into_par_iter().map(|i| self.play(seed.at(i as u64))).collect::<Result<_>>()?;
        let mut answers = Vec::new();
        for call in records.iter().flat_map(|r| &r.requests) {
            let limit =
                if call.kind == RequestKind::Play { self.settings.play_tokens } else { self.settings.reflect_tokens };
            let request = crate::train::samples::request_of(call, limit);
            let response = speech.answer_tokens(&request, &call.completion.text)?;
            answers.push((speech.prompt(&call.messages)?, speech.masks(&request, &response)?, response));
        }
        let answered = answers.iter().map(|(prompt, allowed, response)| TokenizedSample {
            prompt,
            response,
            train: PerToken { allowed: allowed.clone(), ..PerToken::default() },
        });
        Ok(forest(answered, Aggregation::Token))
    }

    /// One step of imitation; the loss before it.
    pub fn step(&self, recipe: &Recipe, step: u64, trainer: &mut dyn Trainer, speech: &PromptCodec) -> Result<f64> {
        let (seed, count) = (Seed::new(recipe.seed).child("warmstart"), recipe.warmstart.batch_size);
        let batch = match &self.transcripts {
            Some(transcripts) => transcripts.batch(step, count, seed),
            None => self.batch(count, seed.at(step), speech)?,
        };
        let report = trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?;
        trainer.optim_step(&recipe.warmstart_step(step))?;
        Ok(report.loss)
    }
}
