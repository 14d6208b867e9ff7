//! Play of a person against a trained policy.
//!
//! A [`HumanPlayer`] takes the seat of the opponents that the policy was trained against. The policy plays a
//! meta-episode: it keeps its memory between episodes.

use crate::{
    Error, Result,
    engines::{self, SamplerOptions},
    policy::codec::PromptCodec,
    recipe::Recipe,
    rollout::Rollout,
    run_dir::ModelAddress,
    train::TrainEnv,
};
use mage_core::Trajectory;
use mage_engine::WeightsName;
use mage_env::{Hash, HumanPlayer, Seed};
use mage_native::Device;
use std::sync::Arc;

/// A trained policy that plays against a person.
pub struct PolicyHost {
    rollout: Rollout,
    env: TrainEnv,
    split: String,
    seats: u8,
}

impl PolicyHost {
    /// The policy of a run, for meta-episodes of `episodes` episodes, on `device`.
    pub fn open(policy: &ModelAddress, recipe: &Recipe, env: TrainEnv, episodes: u32, device: Device) -> Result<Self> {
        let env_info = env.env_spec.info();
        let mut episode_config = recipe.eval_episode_config(&env_info);
        let max_episodes = episode_config.slots as u32 + 1;
        if recipe.play.form == mage_core::prompt::PromptForm::Compact && episodes > max_episodes {
            let problem = format!("the prompt has memory slots for {max_episodes} episodes, not {episodes}");
            return Err(Error::Run { path: policy.model.clone(), problem });
        }
        episode_config.episodes = episodes;
        let options = SamplerOptions { device, threads: recipe.engine.threads, status_log: env.status_log.clone() };
        let (sampler, renderer) = engines::sampler(&policy.model.to_string_lossy(), options)?;
        let rollout = Rollout {
            env_spec: Arc::clone(&env.env_spec),
            prompts: Arc::clone(&env.prompts),
            method: Hash::of(&episode_config),
            episode_config: Arc::new(episode_config),
            codec: Arc::new(PromptCodec::new(renderer, recipe.play.form, recipe.play.thinking)?),
            sampler,
            params: recipe.eval_sampling(),
            weights: WeightsName::default(),
            label: "policy".to_owned(),
            retries: 0,
        };
        Ok(PolicyHost { rollout, split: recipe.eval.split.clone(), seats: env_info.seats, env })
    }

    /// Plays one meta-episode against `human`, from a seat that the policy was trained for.
    pub fn play(&self, human: Arc<dyn HumanPlayer>, seed: Seed) -> Result<Trajectory> {
        let task = self.env.population.draw(&self.split, self.seats, seed)?;
        let env = self.env.env_spec.build_with_human(&task, human)?.ok_or_else(|| Error::Recipe {
            location: "env.name".to_owned(),
            problem: format!("{} has no seat for an opponent", task.env),
        })?;
        let runtime = crate::train::runtime(1)?;
        runtime.block_on(self.rollout.play_in(env, &task, seed.child("agent"), |_| (), |_, _| ()))
    }
}
