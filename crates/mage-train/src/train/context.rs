//! Engine, prompt codec, warm start and episode configuration of a run.

use super::{TrainEnv, TrainEvent};
use crate::{
    Error, Result,
    engines::{self, Engines},
    policy::ModelPolicy,
    policy::codec::PromptCodec,
    recipe::Recipe,
    rollout::{MetaEpisodeBuilder, Rollout},
    train::length_probe::LengthProbe,
    train::warmstart::WarmStart,
};
use mage_core::EpisodeConfig;
use mage_engine::{SamplingParams, WeightsName};
use mage_env::EnvInfo;
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};
use tokio::runtime::Runtime;

/// A runtime for environments and requests; 0 threads uses all cores.
pub fn runtime(threads: usize) -> Result<Runtime> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let started = builder.worker_threads(threads).thread_name("rollout").enable_all().build();
    started.map_err(|e| Error::Stopped(format!("cannot start threads: {e}")))
}

/// Meta-episodes sampled to check that prompts fit into the model's maximum sequence length.
const PROBE_META_EPISODES: usize = 4;

/// The parts of a run that are built before the run directory is written.
pub(crate) struct TrainContext {
    pub(crate) engines: Engines,
    pub(crate) codec: Arc<PromptCodec>,
    pub(crate) warm_start: WarmStart,
    /// Meta-episodes of training.
    pub(crate) meta_episodes: MetaEpisodeBuilder,
}

impl TrainContext {
    pub(crate) fn new(recipe: &Recipe, env: &TrainEnv, env_info: &EnvInfo) -> Result<Self> {
        env.env_spec.check(&env.population)?;
        let meta_episodes = env.meta_episodes(env.episode_config(recipe)?);
        let engines = engines::start(recipe, env_info, &env.status_log)?;
        engines.trainer.caps().check(&recipe.loss(0))?;
        let codec = Arc::new(PromptCodec::new(Arc::clone(&engines.renderer), recipe.play.form, recipe.play.thinking)?);
        let probe = LengthProbe::run(recipe, env, &codec, PROBE_META_EPISODES)?;
        if let Some(probe) = probe {
            probe.check_fits(recipe, engines.max_seq_len)?;
        }
        let warm_start = WarmStart::new(recipe, env, meta_episodes.clone(), &codec, engines.max_seq_len)?;
        Ok(TrainContext { engines, codec, warm_start, meta_episodes })
    }

    /// Episode configuration of training.
    pub(crate) fn episode_config(&self) -> &EpisodeConfig {
        self.meta_episodes.config()
    }

    /// The policy with its current weights.
    pub(crate) fn policy(&self, params: SamplingParams, label: String) -> ModelPolicy {
        ModelPolicy {
            codec: Arc::clone(&self.codec),
            sampler: Arc::clone(&self.engines.sampler),
            params,
            weights: WeightsName::default(),
            label,
        }
    }

    /// Rollouts with the current weights.
    pub(crate) fn rollout(&self, params: SamplingParams, label: String, retries: u32) -> Rollout {
        Rollout { builder: self.meta_episodes.clone(), policy: self.policy(params, label), retries }
    }

    /// Runs the warm start; `false` if a stop was requested.
    pub(crate) fn run_warm_start(
        &mut self,
        recipe: &Recipe,
        steps: u64,
        stop: &AtomicU8,
        on_event: &mut dyn FnMut(TrainEvent),
    ) -> Result<bool> {
        for step in 0..steps {
            if stop.load(Ordering::Relaxed) > 0 {
                return Ok(false);
            }
            let loss = self.warm_start.step(recipe, step, &mut *self.engines.trainer, &self.codec)?;
            on_event(TrainEvent::Warmstart { step: step + 1, steps, loss });
        }
        Ok(true)
    }
}
