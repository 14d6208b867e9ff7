//! Recipes: the complete configuration of a training run.
//!
//! A [`Recipe`] is composed from TOML files, left to right, and from `a.b=c` overrides; all other keys have their
//! defaults. An unknown key is an error that suggests the nearest known one.

mod builtin;
mod check;
mod compose;
mod explain;
mod keys;
mod schema;
mod section;
mod sections;
mod value_type;

pub use builtin::{BuiltinRecipe, builtin_methods, builtin_names, builtin_recipes, recipe_text};
pub use compose::{Composer, differences, key_values};
pub use explain::{RecipeField, explain};
pub use keys::is_key;
pub use schema::schema;
pub use sections::{
    Aggregation, CheckpointConfig, EngineConfig, EngineKind, EnvConfig, EvalConfig, HealthThresholds, LossConfig,
    ModelConfig, OptimConfig, PlayConfig, PolicyLoss, RolloutConfig, TinkerConfig, TrajectoryConfig, VllmConfig,
    WarmStartConfig,
};

use mage_core::{EpisodeConfig, Method, Penalty, RewardSpec, prompt::PromptForm};
use mage_engine::{EntropyTerm, KlTerm, Loss, LrDecay, LrSchedule, Objective, OptimStep, SamplingParams, TokenClass};
use mage_env::EnvInfo;
use serde::{Deserialize, Serialize};

/// Token class of actions in losses.
pub const PLAY: TokenClass = TokenClass(0);
/// Token class of reflections in losses.
pub const REFLECT: TokenClass = TokenClass(1);

/// The configuration of a training run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    /// Seed of all random streams.
    pub seed: u64,
    /// See [`RewardSpec`].
    pub reward: RewardSpec,
    /// See [`EnvConfig`].
    pub env: EnvConfig,
    /// See [`PlayConfig`].
    pub play: PlayConfig,
    /// See [`ModelConfig`].
    pub model: ModelConfig,
    /// See [`WarmStartConfig`].
    pub warmstart: WarmStartConfig,
    /// See [`Method`].
    pub method: Method,
    /// See [`Penalty`].
    pub penalty: Penalty,
    /// See [`RolloutConfig`].
    pub rollout: RolloutConfig,
    /// See [`LossConfig`].
    pub loss: LossConfig,
    /// See [`OptimConfig`].
    pub optim: OptimConfig,
    /// See [`EvalConfig`].
    pub eval: EvalConfig,
    /// See [`CheckpointConfig`].
    pub checkpoint: CheckpointConfig,
    /// See [`TrajectoryConfig`].
    pub trajectories: TrajectoryConfig,
    /// See [`EngineConfig`].
    pub engine: EngineConfig,
    /// See [`TinkerConfig`].
    pub tinker: TinkerConfig,
    /// See [`VllmConfig`].
    pub vllm: VllmConfig,
    /// See [`HealthThresholds`].
    pub health: HealthThresholds,
}

impl Recipe {
    /// The recipe as TOML with every value.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("recipes are plain data")
    }

    /// Sampling parameters of training.
    pub fn sampling(&self) -> SamplingParams {
        let r = &self.rollout;
        SamplingParams { temperature: r.temperature, top_p: r.top_p, top_k: r.top_k, ..SamplingParams::default() }
    }

    /// Sampling parameters of evaluation.
    pub fn eval_sampling(&self) -> SamplingParams {
        let e = &self.eval;
        match e.greedy {
            true => SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            false => SamplingParams {
                temperature: e.temperature,
                top_p: e.top_p,
                top_k: e.top_k,
                ..SamplingParams::default()
            },
        }
    }

    /// Configuration of meta-episodes of `episodes` episodes. [`TrainEnv`](crate::train::TrainEnv) supplies the
    /// turn limit in `env_info`.
    pub(crate) fn episode_config(&self, env_info: &EnvInfo, episodes: u32) -> EpisodeConfig {
        let base = match self.play.form {
            PromptForm::Compact => EpisodeConfig { slots: self.slots(), ..EpisodeConfig::compact(env_info, episodes) },
            PromptForm::Full => EpisodeConfig { episodes, max_turns: env_info.max_turns, ..EpisodeConfig::default() },
        };
        let nonzero_or = |value: u32, default: u32| if value == 0 { default } else { value };
        EpisodeConfig {
            memory: if self.method.memory { self.play.memory } else { mage_core::MemoryMode::None },
            mask_actions: self.play.mask_actions,
            play_tokens: nonzero_or(self.play.play_tokens, base.play_tokens),
            reflect_tokens: nonzero_or(self.play.reflect_tokens, base.reflect_tokens),
            ..base
        }
    }

    /// Number of memory slots of a compact prompt. Training and evaluation use the same number, so that token positions
    /// agree.
    fn slots(&self) -> usize {
        self.play.episodes.max(self.eval.episodes).saturating_sub(1) as usize
    }

    /// The loss of an update.
    pub fn loss(&self, update: u64) -> Loss {
        let l = &self.loss;
        let progress = update as f32 / self.optim.updates.saturating_sub(1).max(1) as f32;
        let entropy = l.entropy + (l.entropy_end - l.entropy) * progress.min(1.0);
        let dual = (l.dual_clip != 0.0).then_some(l.dual_clip);
        let term = |class, coefficient| EntropyTerm { class: Some(class), coefficient };
        let kl = |class, coefficient| KlTerm { class: Some(class), form: l.kl_form, coefficient };
        Loss {
            objective: match l.objective {
                PolicyLoss::Ppo => Objective::PpoClip { low: l.clip_low, high: l.clip_high, dual },
                PolicyLoss::Cispo => Objective::Cispo { low: l.clip_low, high: l.clip_high },
                PolicyLoss::ImportanceSampling => Objective::ImportanceSampling,
            },
            entropy: [term(PLAY, entropy), term(REFLECT, l.entropy_reflect)]
                .into_iter()
                .filter(|t| t.coefficient != 0.0)
                .collect(),
            kl: [kl(PLAY, l.kl_play), kl(REFLECT, l.kl_reflect)].into_iter().filter(|t| t.coefficient != 0.0).collect(),
        }
    }

    /// Optimiser steps of the whole run.
    fn total_steps(&self) -> u64 {
        self.optim.updates * u64::from(self.optim.epochs) * self.optim.minibatches as u64
    }

    /// Optimiser parameters of step `step` of the run.
    pub fn optim_step(&self, step: u64) -> OptimStep {
        let o = &self.optim;
        let decay = LrDecay::Linear { total: self.total_steps(), min_lr_ratio: o.min_lr_ratio };
        let schedule = LrSchedule { peak: o.learning_rate, warmup_steps: o.warmup_steps, decay };
        OptimStep {
            learning_rate: schedule.at(step),
            beta1: o.beta1,
            beta2: o.beta2,
            weight_decay: o.weight_decay,
            max_grad_norm: o.max_grad_norm,
            max_nonfinite_steps: o.max_nonfinite_steps,
            ..OptimStep::default()
        }
    }

    /// Optimiser parameters of step `step` of the warm start.
    pub fn warmstart_step(&self, step: u64) -> OptimStep {
        let w = &self.warmstart;
        let decay = LrDecay::Cosine { total: w.steps, min_lr_ratio: w.min_lr_ratio };
        let schedule = LrSchedule { peak: w.learning_rate, warmup_steps: (w.steps / 20).min(20), decay };
        OptimStep { learning_rate: schedule.at(step), ..self.optim_step(0) }
    }
}
