//! The environment of a run: everything outside its recipe.

use crate::{Result, TaskSet, recipe::Recipe, rollout::MetaEpisodeBuilder};
use mage_core::{
    EpisodeConfig,
    prompt::{PromptForm, PromptSet},
};
use mage_env::{EnvInfo, EnvSpec, Population, Seed};
use mage_remote::StatusLog;
use std::sync::Arc;

/// The environment of a run and everything else that is not in its recipe.
#[derive(Clone)]
pub struct TrainEnv {
    /// Builds the environments.
    pub env_spec: Arc<dyn EnvSpec>,
    /// Prompt templates.
    pub prompts: Arc<PromptSet>,
    /// Opponents and options.
    pub population: Population,
    /// Commit of this build, if known; recorded in the run directory.
    pub commit: Option<String>,
    /// Receives status messages of engines.
    pub status_log: StatusLog,
}

impl TrainEnv {
    /// Maximum turns per episode in a split: the given number, or the environment's limit if that is 0.
    pub fn max_turns(&self, split: &str, given: u32) -> Result<u32> {
        if given > 0 { Ok(given) } else { Ok(self.env_spec.max_turns(&self.population, split)?) }
    }

    /// The environment's description with a recipe's turn limit.
    fn info(&self, recipe: &Recipe, split: &str) -> Result<EnvInfo> {
        Ok(EnvInfo { max_turns: self.max_turns(split, recipe.play.max_turns)?, ..self.env_spec.info() })
    }

    /// Episode configuration of training.
    pub fn episode_config(&self, recipe: &Recipe) -> Result<EpisodeConfig> {
        let config = recipe.episode_config(&self.info(recipe, &recipe.env.split)?, recipe.play.episodes);
        config.validate()?;
        Ok(config)
    }

    /// Episode configuration of an evaluation of `episodes` episodes on a split. If compact prompts have fewer memory
    /// slots, they contain the latest episodes.
    pub fn eval_episode_config(&self, recipe: &Recipe, split: &str, episodes: u32) -> Result<EpisodeConfig> {
        let config = recipe.episode_config(&self.info(recipe, split)?, episodes);
        let slots = (config.prompt_form == PromptForm::Compact).then_some(config.slots);
        let recall_limit = slots.filter(|slots| episodes as usize > slots + 1).or(config.recall_limit);
        let config = EpisodeConfig { recall_limit, ..config };
        config.validate()?;
        Ok(config)
    }

    /// The first `tasks` tasks of a recipe's evaluation.
    pub fn eval_task_set(&self, recipe: &Recipe, tasks: usize) -> Result<TaskSet> {
        let seed = eval_seed(recipe.seed);
        TaskSet::new(&*self.env_spec, &self.population, &recipe.eval.split, tasks, seed)
    }

    /// Meta-episodes of this environment.
    pub fn meta_episodes(&self, config: EpisodeConfig) -> MetaEpisodeBuilder {
        MetaEpisodeBuilder::new(Arc::clone(&self.env_spec), Arc::clone(&self.prompts), config)
    }
}

/// Seed of the task set and of the agent in an evaluation.
pub fn eval_seed(seed: u64) -> Seed {
    Seed::new(seed).child("evaluation")
}
