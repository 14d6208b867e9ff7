//! What is to be done, exactly?
//!
//! A [`Recipe`] says everything a training run depends on. It is put together from TOML files, left to right, and from
//! `a.b=c` settings; what nobody mentions has its default. Keys that do not exist are errors that name the nearest that
//! does.

mod builtin;
mod check;
mod compose;
mod explain;
mod section;
mod sections;

pub use builtin::{builtin_names, paper_names};
pub use compose::{Composer, differences};
pub use explain::{RecipeField, explain};
pub use sections::{
    Aggregation, CheckpointConfig, EngineConfig, EngineKind, EnvConfig, EvalConfig, HealthThresholds, LossConfig,
    ModelConfig, OptimConfig, PlayConfig, PolicyLoss, RolloutConfig, TinkerConfig, TrajectoryConfig, VllmConfig,
    WarmStartConfig,
};

use mage_core::{EpisodeConfig, Method, Penalty, RewardSpec, prompt::PromptForm};
use mage_engine::{EntropyTerm, KlTerm, Loss, LrDecay, LrSchedule, Objective, OptimStep, SamplingParams, TokenClass};
use mage_env::EnvInfo;
use serde::{Deserialize, Serialize};

/// The class of an action's tokens in losses.
pub const PLAY: TokenClass = TokenClass(0);
/// The class of a reflection's tokens.
pub const REFLECT: TokenClass = TokenClass(1);

/// Everything a training run depends on.
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
    /// The recipe as TOML, every value written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("recipes are plain data")
    }

    /// How meta-episodes are played in training.
    pub fn settings(&self, env_info: &EnvInfo) -> EpisodeConfig {
        self.settings_for(env_info, self.play.episodes)
    }

    /// How meta-episodes are played on the panel.
    pub fn eval_settings(&self, env_info: &EnvInfo) -> EpisodeConfig {
        self.settings_for(env_info, self.eval.episodes)
    }

    /// How answers are drawn in training.
    pub fn sampling(&self) -> SamplingParams {
        let r = &self.rollout;
        SamplingParams { temperature: r.temperature, top_p: r.top_p, top_k: r.top_k, ..SamplingParams::default() }
    }

    /// How answers are drawn on the panel.
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

    /// How many places of a game the panel sums over instead of playing once. Answers that filters or a temperature between
    /// the policy's own and none change token by token are played.
    pub fn exact_max_states(&self) -> usize {
        let drawn = self.eval_sampling();
        let unfiltered = drawn.top_p == 1.0 && drawn.top_k == 0;
        let enumerable = drawn.temperature == 0.0 || (drawn.temperature == 1.0 && unfiltered);
        if enumerable { self.eval.exact_max_states } else { 0 }
    }

    fn settings_for(&self, env_info: &EnvInfo, episodes: u32) -> EpisodeConfig {
        let base = match self.play.form {
            PromptForm::Compact => EpisodeConfig { slots: self.slots(), ..EpisodeConfig::compact(env_info, episodes) },
            PromptForm::Full => EpisodeConfig { episodes, max_turns: env_info.max_turns, ..EpisodeConfig::default() },
        };
        let or = |own: u32, other: u32| if own == 0 { other } else { own };
        EpisodeConfig {
            max_turns: or(self.play.max_turns, base.max_turns),
            memory: if self.method.memory { self.play.memory } else { mage_core::MemoryMode::None },
            mask_actions: self.play.mask_actions,
            play_tokens: or(self.play.play_tokens, base.play_tokens),
            reflect_tokens: or(self.play.reflect_tokens, base.reflect_tokens),
            ..base
        }
    }

    /// How many past episodes a compact prompt has room for: the same in training and evaluation, so that every word
    /// keeps its place.
    fn slots(&self) -> usize {
        self.play.episodes.max(self.eval.episodes).saturating_sub(1) as usize
    }

    /// What is minimised at an update.
    pub fn loss(&self, update: u64) -> Loss {
        let l = &self.loss;
        let done = update as f32 / self.optim.updates.saturating_sub(1).max(1) as f32;
        let entropy = l.entropy + (l.entropy_end - l.entropy) * done.min(1.0);
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

    /// Optimiser steps in all updates.
    pub fn total_steps(&self) -> u64 {
        self.optim.updates * u64::from(self.optim.epochs) * self.optim.minibatches as u64
    }

    /// The settings of one optimiser step, counted over all updates.
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

    /// The settings of one step of the warm start.
    pub fn warmstart_step(&self, step: u64) -> OptimStep {
        let w = &self.warmstart;
        let decay = LrDecay::Cosine { total: w.steps, min_lr_ratio: w.min_lr_ratio };
        let schedule = LrSchedule { peak: w.learning_rate, warmup_steps: (w.steps / 20).min(20), decay };
        OptimStep { learning_rate: schedule.at(step), ..self.optim_step(0) }
    }
}
