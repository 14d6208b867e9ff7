//! Play of a person against a model.
//!
//! A [`HumanPlayer`] takes the seat of the opponents that the policy was trained against. The policy plays a
//! meta-episode: it keeps its memory between episodes.

use crate::{Error, Result, policy::NamedPolicy, recipe::Recipe, rollout::MetaEpisodeBuilder, train::TrainEnv};
use futures_executor::block_on;
use mage_core::{EpisodeConfig, Trajectory, prompt::PromptForm};
use mage_env::{HumanPlayer, Seed};
use std::sync::Arc;

/// A model that plays against a person.
pub struct PolicyHost {
    meta_episodes: MetaEpisodeBuilder,
    policy: NamedPolicy,
    env: TrainEnv,
    split: String,
}

impl PolicyHost {
    /// Play with the settings of a recipe's evaluation, in meta-episodes of `episodes` episodes.
    pub fn new(policy: NamedPolicy, recipe: &Recipe, env: TrainEnv, episodes: u32) -> Result<Self> {
        let mut config = env.eval_episode_config(recipe, &recipe.eval.split, recipe.eval.episodes)?;
        let max_episodes = config.slots as u32 + 1;
        if config.prompt_form == PromptForm::Compact && episodes > max_episodes {
            let problem = format!("the prompt has memory slots for {max_episodes} episodes, not {episodes}");
            return Err(Error::Recipe { location: policy.name, problem });
        }
        config.episodes = episodes;
        let meta_episodes = env.meta_episodes(config);
        Ok(PolicyHost { meta_episodes, policy, split: recipe.eval.split.clone(), env })
    }

    /// The configuration of its meta-episodes.
    pub fn episode_config(&self) -> &EpisodeConfig {
        self.meta_episodes.config()
    }

    /// Plays one meta-episode against `human`, from a seat of the opponents.
    pub fn play(&self, human: Arc<dyn HumanPlayer>, seed: Seed) -> Result<Trajectory> {
        let task = self.env.population.sample_task(&self.split, self.env.env_spec.info().seats, seed)?;
        let env = self.env.env_spec.build_with_human(&task, human)?.ok_or_else(|| Error::Recipe {
            location: "env.name".to_owned(),
            problem: format!("{} has no seat for an opponent", task.env),
        })?;
        let seed = seed.child("agent");
        let mut policy = self.policy.start(self.meta_episodes.config(), &task, seed)?;
        block_on(self.meta_episodes.play_in(env, &task, seed, &mut *policy, &())).into_result()
    }
}
