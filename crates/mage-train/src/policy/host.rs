//! How does one play against a trained policy?
//!
//! A [`HumanPlayer`] takes the place of the opponents the policy was trained on; the policy meets it as it met them, over several
//! episodes, with its own notes in between.

use crate::{
    Error, Result,
    engines::{self, SamplerOptions},
    policy::codec::PromptCodec,
    recipe::Recipe,
    rollout::Rollout,
    run_dir::last_model,
    train::TrainEnv,
};
use mage_core::Trajectory;
use mage_engine::AdapterName;
use mage_env::{Hash, HumanPlayer, Seed};
use mage_native::Device;
use std::{path::Path, sync::Arc};

/// A trained policy that waits for company.
pub struct PolicyHost {
    rollout: Rollout,
    setting: TrainEnv,
    split: String,
    seats: u8,
}

impl PolicyHost {
    /// The newest policy of a run, for meta-episodes of `episodes`, computed on `device`.
    pub fn open(run: &Path, recipe: &Recipe, setting: TrainEnv, episodes: u32, device: Device) -> Result<Self> {
        let env_info = setting.env_spec.info();
        let mut settings = recipe.eval_settings(&env_info);
        let room = settings.slots as u32 + 1;
        if recipe.play.form == mage_core::prompt::PromptForm::Compact && episodes > room {
            let problem = format!("its prompt has room for {room} episodes, not {episodes}");
            return Err(Error::Run { path: run.to_owned(), problem });
        }
        settings.episodes = episodes;
        let place = SamplerOptions { device, threads: recipe.engine.threads, notices: setting.notices.clone() };
        let (sampler, renderer) = engines::sampler(&last_model(run)?.to_string_lossy(), place)?;
        let rollout = Rollout {
            env_spec: Arc::clone(&setting.env_spec),
            prompts: Arc::clone(&setting.prompts),
            method: Hash::of(&settings),
            settings: Arc::new(settings),
            speech: Arc::new(PromptCodec::new(renderer, recipe.play.form, recipe.play.thinking)?),
            sampler,
            params: recipe.eval_sampling(),
            weights: AdapterName::default(),
            label: "policy".to_owned(),
            refills: 0,
        };
        Ok(PolicyHost { rollout, split: recipe.eval.split.clone(), seats: env_info.seats, setting })
    }

    /// Plays one meta-episode against `guest`, from the seats the policy was trained for.
    pub fn play(&self, guest: Arc<dyn HumanPlayer>, seed: Seed) -> Result<Trajectory> {
        let task = self.setting.population.draw(&self.split, self.seats, seed)?;
        let env = self.setting.env_spec.build_with_human(&task, guest)?.ok_or_else(|| Error::Recipe {
            place: "env.name".to_owned(),
            problem: format!("{} has no other seat to sit down in", task.env),
        })?;
        let runtime = crate::train::runtime(1)?;
        runtime.block_on(self.rollout.play_in(env, &task, seed.child("agent"), |_| (), |_, _| ()))
    }
}
