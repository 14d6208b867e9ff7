//! What must work before a run directory is touched?

use super::{TrainEnv, TrainEvent};
use crate::{
    Error, Result,
    engines::{self, Engines},
    policy::codec::PromptCodec,
    recipe::Recipe,
    rollout::Rollout,
    train::length_probe::LengthProbe,
    train::warmstart::WarmStart,
};
use mage_core::EpisodeConfig;
use mage_engine::{AdapterName, SamplingParams};
use mage_env::{EnvInfo, Hash};
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};
use tokio::runtime::Runtime;

/// Threads for environments and for waiting; 0 takes as many as there are.
pub fn runtime(threads: usize) -> Result<Runtime> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let started = builder.worker_threads(threads).thread_name("rollout").enable_all().build();
    started.map_err(|e| Error::Stopped(format!("starting threads: {e}")))
}

/// Meta-episodes that are played to see whether the model can take them in.
const SURVEYED: usize = 4;

/// What is made before a run directory is touched.
pub(crate) struct TrainContext {
    pub(crate) engines: Engines,
    pub(crate) speech: Arc<PromptCodec>,
    pub(crate) school: WarmStart,
    pub(crate) settings: Arc<EpisodeConfig>,
}

impl TrainContext {
    pub(crate) fn rollout(
        &self,
        setting: &TrainEnv,
        settings: Arc<EpisodeConfig>,
        params: SamplingParams,
        label: String,
        refills: u32,
    ) -> Rollout {
        Rollout {
            env_spec: Arc::clone(&setting.env_spec),
            prompts: Arc::clone(&setting.prompts),
            method: Hash::of(&*settings),
            settings,
            speech: Arc::clone(&self.speech),
            sampler: Arc::clone(&self.engines.sampler),
            params,
            weights: AdapterName::default(),
            label,
            refills,
        }
    }

    /// Imitation; `false` when somebody asked to stop.
    pub(crate) fn warm_up(
        &mut self,
        recipe: &Recipe,
        steps: u64,
        stop: &AtomicU8,
        each: &mut dyn FnMut(TrainEvent),
    ) -> Result<bool> {
        for step in 0..steps {
            if stop.load(Ordering::Relaxed) > 0 {
                return Ok(false);
            }
            let loss = self.school.step(recipe, step, &mut *self.engines.trainer, &self.speech)?;
            each(TrainEvent::Warmstart { step: step + 1, steps, loss });
        }
        Ok(true)
    }

    pub(crate) fn new(recipe: &Recipe, setting: &TrainEnv, env_info: &EnvInfo) -> Result<Self> {
        setting.env_spec.check(&setting.population)?;
        let turns = setting.env_spec.max_turns(&setting.population, &recipe.env.split)?;
        let settings = Arc::new(recipe.settings(&EnvInfo { max_turns: turns, ..env_info.clone() }));
        settings.validate()?;
        let engines = engines::start(recipe, env_info, &setting.notices)?;
        engines.trainer.caps().check(&recipe.loss(0))?;
        let speech = Arc::new(PromptCodec::new(Arc::clone(&engines.renderer), recipe.play.form, recipe.play.thinking)?);
        if let Some(talk) = LengthProbe::survey(recipe, setting, (*settings).clone(), &speech, SURVEYED)? {
            talk.fits(recipe, engines.context)?;
        }
        let school = WarmStart::new(
            recipe,
            Arc::clone(&setting.env_spec),
            Arc::clone(&setting.prompts),
            Arc::clone(&settings),
            setting.population.clone(),
            &speech,
            engines.context,
        )?;
        Ok(TrainContext { engines, speech, school, settings })
    }
}
