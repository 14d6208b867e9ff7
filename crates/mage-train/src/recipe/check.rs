//! Validation of recipes.

use super::Recipe;
use crate::{
    Error, Result,
    engines::check_model_shape,
    limits::{MAX_EPISODES, MAX_PLAYED_EPISODES, MAX_TASKS, too_many_episodes},
};
use mage_core::prompt::PromptForm;
use mage_native::EngineOptions;

/// Largest number of seconds of a timeout: three years.
const MAX_SECONDS: f64 = 1e8;

/// A counted key with its value and its inclusive bounds.
pub(super) struct CountCheck {
    pub(super) key: &'static str,
    value: u64,
    pub(super) min: u64,
    pub(super) max: u64,
}

/// Valid range of a numeric key.
#[derive(Clone, Copy)]
pub(super) enum ValueRange {
    /// 0 or more.
    NonNegative,
    /// More than 0.
    Positive,
    /// From 0 to 1.
    Fraction,
    /// A duration: more than 0, at most [`MAX_SECONDS`].
    Seconds,
    /// More than 0, at most 1.
    PositiveFraction,
    /// From 0, below 1.
    Decay,
}

impl ValueRange {
    fn contains(self, v: f64) -> bool {
        v.is_finite()
            && match self {
                ValueRange::NonNegative => v >= 0.0,
                ValueRange::Positive => v > 0.0,
                ValueRange::Seconds => v > 0.0 && v <= MAX_SECONDS,
                ValueRange::Fraction => (0.0..=1.0).contains(&v),
                ValueRange::PositiveFraction => v > 0.0 && v <= 1.0,
                ValueRange::Decay => (0.0..1.0).contains(&v),
            }
    }

    fn requirement(self) -> &'static str {
        match self {
            ValueRange::NonNegative => "it must be 0 or more",
            ValueRange::Positive => "it must be more than 0",
            ValueRange::Seconds => "it must be more than 0 and at most 100 million seconds",
            ValueRange::Fraction => "it must be from 0 to 1",
            ValueRange::PositiveFraction => "it must be more than 0 and at most 1",
            ValueRange::Decay => "it must be at least 0 and less than 1",
        }
    }

    /// The bounds as keywords of JSON Schema.
    pub(super) fn schema(self) -> &'static [(&'static str, f64)] {
        match self {
            ValueRange::NonNegative => &[("minimum", 0.0)],
            ValueRange::Positive => &[("exclusiveMinimum", 0.0)],
            ValueRange::Seconds => &[("exclusiveMinimum", 0.0), ("maximum", MAX_SECONDS)],
            ValueRange::Fraction => &[("minimum", 0.0), ("maximum", 1.0)],
            ValueRange::PositiveFraction => &[("exclusiveMinimum", 0.0), ("maximum", 1.0)],
            ValueRange::Decay => &[("minimum", 0.0), ("exclusiveMaximum", 1.0)],
        }
    }
}

impl Recipe {
    /// Checks all values; an error names the key.
    pub fn check(&self) -> Result<()> {
        self.check_counts()?;
        self.check_ranges()?;
        if self.warmstart.steps > 0 && self.warmstart.batch_size == 0 {
            return wrong("warmstart.batch_size", "it must be at least 1, or set warmstart.steps = 0");
        }
        if self.play.form == PromptForm::Full && self.model.path.is_empty() {
            return wrong(
                "model.path",
                "play.form = \"full\" needs a pretrained model; set a checkpoint folder or a Hub name",
            );
        }
        if self.model.path.is_empty() {
            check_model_shape(self)?;
        }
        self.method.validate().map_err(|e| match e {
            mage_env::Error::Invalid { location, problem } => {
                Error::Recipe { location: format!("method.{location}"), problem }
            }
            other => other.into(),
        })?;
        self.penalty.validate()?;
        self.reward.rule(&self.env.name)?;
        self.loss(0).check()?;
        self.optim_step(0).check()?;
        crate::engines::remote::check(self)
    }

    /// Bounds of counts. Beyond the upper ones, memory or time would run out before the first result.
    pub(super) fn counts(&self) -> Vec<CountCheck> {
        const MANY: u64 = 1 << 40;
        let (play, eval, optim, warmstart) = (&self.play, &self.eval, &self.optim, &self.warmstart);
        let (tasks, episodes) = (MAX_TASKS as u64, u64::from(MAX_EPISODES));
        let check = |(key, value, min, max)| CountCheck { key, value, min, max };
        [
            ("play.episodes", u64::from(play.episodes), 1, episodes),
            ("play.max_turns", u64::from(play.max_turns), 0, 100_000),
            ("play.play_tokens", u64::from(play.play_tokens), 0, 1 << 20),
            ("play.reflect_tokens", u64::from(play.reflect_tokens), 0, 1 << 20),
            ("rollout.groups", self.rollout.groups as u64, 1, tasks),
            ("rollout.group_size", self.rollout.group_size as u64, 1, tasks),
            ("rollout.retries", u64::from(self.rollout.retries), 0, 1000),
            ("eval.every", eval.every, 0, MANY),
            ("eval.tasks", eval.tasks as u64, 1, tasks),
            ("eval.final_tasks", eval.final_tasks as u64, 1, tasks),
            ("eval.episodes", u64::from(eval.episodes), 1, episodes),
            ("eval.exact_max_states", eval.exact_max_states as u64, 0, 1_000_000),
            ("warmstart.steps", warmstart.steps, 0, 100_000_000),
            ("warmstart.batch_size", warmstart.batch_size as u64, 0, tasks),
            ("optim.updates", optim.updates, 0, 100_000_000),
            ("optim.epochs", u64::from(optim.epochs), 1, 1000),
            ("optim.minibatches", optim.minibatches as u64, 1, tasks),
            ("optim.warmup_steps", optim.warmup_steps, 0, MANY),
            ("checkpoint.every", self.checkpoint.every, 1, MANY),
            ("checkpoint.keep", self.checkpoint.keep as u64, 1, 1_000_000),
            ("trajectories.every", self.trajectories.every, 0, MANY),
            ("engine.threads", self.engine.threads as u64, 0, EngineOptions::MAX_THREADS as u64),
            ("engine.lora_rank", self.engine.lora_rank as u64, 0, 1 << 16),
            ("vllm.max_in_flight", self.vllm.max_in_flight as u64, 1, 1 << 20),
            ("vllm.keep_versions", self.vllm.keep_versions as u64, 1, 1000),
        ]
        .map(check)
        .into()
    }

    fn check_counts(&self) -> Result<()> {
        for CountCheck { key, value, min, max } in self.counts() {
            if value < min {
                return wrong(key, format!("it must be at least {min}"));
            }
            if value > max {
                return wrong(key, format!("{value} is too large; it must be at most {max}"));
            }
        }
        let (groups, group_size, episodes) = (self.rollout.groups, self.rollout.group_size, self.play.episodes);
        let meta_episodes = groups.saturating_mul(group_size);
        if meta_episodes > MAX_TASKS {
            let problem = format!("{groups} groups of {group_size} exceed the {MAX_TASKS} meta-episodes of an update");
            return wrong("rollout.groups", problem);
        }
        if meta_episodes as u64 * u64::from(episodes) > MAX_PLAYED_EPISODES {
            let problem = format!(
                "{groups} groups of {group_size} meta-episodes of {episodes} episodes exceed the {MAX_PLAYED_EPISODES} \
                 episodes of an update"
            );
            return wrong("rollout.groups", problem);
        }
        for (key, tasks) in [("eval.tasks", self.eval.tasks), ("eval.final_tasks", self.eval.final_tasks)] {
            if let Some(problem) = too_many_episodes(tasks as u64, 1, u64::from(self.eval.episodes)) {
                return wrong(key, problem);
            }
        }
        if self.optim.minibatches > meta_episodes {
            return wrong(
                "optim.minibatches",
                format!("{} exceeds the {meta_episodes} meta-episodes of an update", self.optim.minibatches),
            );
        }
        Ok(())
    }

    /// Valid ranges of other numbers.
    pub(super) fn ranges(&self) -> Vec<(&'static str, f64, ValueRange)> {
        use ValueRange::{Decay, Fraction, NonNegative, Positive, PositiveFraction, Seconds};
        let (loss, optim, health) = (&self.loss, &self.optim, &self.health);
        vec![
            ("model.init_std", f64::from(self.model.init_std), NonNegative),
            ("warmstart.epsilon", self.warmstart.epsilon, Fraction),
            ("warmstart.learning_rate", f64::from(self.warmstart.learning_rate), NonNegative),
            ("warmstart.min_lr_ratio", f64::from(self.warmstart.min_lr_ratio), Fraction),
            // At 0 all meta-episodes of a group would be equal, and all advantages 0.
            ("rollout.temperature", f64::from(self.rollout.temperature), Positive),
            ("rollout.top_p", f64::from(self.rollout.top_p), PositiveFraction),
            ("eval.temperature", f64::from(self.eval.temperature), NonNegative),
            ("eval.top_p", f64::from(self.eval.top_p), PositiveFraction),
            ("loss.clip_low", f64::from(loss.clip_low), Fraction),
            ("loss.clip_high", f64::from(loss.clip_high), NonNegative),
            ("loss.dual_clip", f64::from(loss.dual_clip), NonNegative),
            ("loss.entropy", f64::from(loss.entropy), NonNegative),
            ("loss.entropy_end", f64::from(loss.entropy_end), NonNegative),
            ("loss.entropy_reflect", f64::from(loss.entropy_reflect), NonNegative),
            ("loss.kl_play", f64::from(loss.kl_play), NonNegative),
            ("loss.kl_reflect", f64::from(loss.kl_reflect), NonNegative),
            ("optim.learning_rate", f64::from(optim.learning_rate), NonNegative),
            ("optim.min_lr_ratio", f64::from(optim.min_lr_ratio), Fraction),
            ("optim.beta1", f64::from(optim.beta1), Decay),
            ("optim.beta2", f64::from(optim.beta2), Decay),
            ("optim.weight_decay", f64::from(optim.weight_decay), NonNegative),
            ("optim.max_grad_norm", f64::from(optim.max_grad_norm), NonNegative),
            ("trajectories.fraction", self.trajectories.fraction, Fraction),
            ("engine.lora_alpha", f64::from(self.engine.lora_alpha), NonNegative),
            ("health.min_entropy", health.min_entropy, NonNegative),
            ("health.max_kl", health.max_kl, NonNegative),
            ("health.max_invalid", health.max_invalid, Fraction),
            ("health.min_factual", health.min_factual, Fraction),
            ("health.max_mismatch_kl", health.max_mismatch_kl, NonNegative),
            ("health.stall_timeout", health.stall_timeout, Seconds),
            ("tinker.timeout", self.tinker.timeout, Seconds),
            ("vllm.request_timeout", self.vllm.request_timeout, Seconds),
            ("vllm.tolerance", f64::from(self.vllm.tolerance), Positive),
        ]
    }

    fn check_ranges(&self) -> Result<()> {
        match self.ranges().into_iter().find(|(_, v, range)| !range.contains(*v)) {
            Some((key, v, range)) => wrong(key, format!("{} is out of range: {}", v as f32, range.requirement())),
            None => Ok(()),
        }
    }
}

fn wrong(key: &str, problem: impl Into<String>) -> Result<()> {
    Err(Error::Recipe { location: key.to_owned(), problem: problem.into() })
}

#[cfg(test)]
mod tests {
    use crate::recipe::Composer;

    #[test]
    fn invalid_values_are_refused_by_their_key() {
        for set in [
            "rollout.top_p=0",
            "rollout.temperature=-1",
            "rollout.temperature=0",
            "eval.top_p=1.5",
            "health.stall_timeout=-1",
            "loss.entropy=-5",
            "optim.learning_rate=-1e-3",
            "optim.beta2=1",
            "rollout.groups=100000000000",
            "rollout.groups=5000",
            "rollout.group_size=9223372036854775807",
            "eval.tasks=100000000000",
            "optim.minibatches=1000",
            "play.episodes=0",
            "play.episodes=1001",
            "play.max_turns=100001",
            "eval.episodes=1000000000",
            "eval.every=9223372036854775807",
            "eval.exact_max_states=1000001",
            "warmstart.steps=9223372036854775807",
            "rollout.retries=1001",
            "optim.updates=9223372036854775807",
            "optim.epochs=1001",
            "optim.warmup_steps=9223372036854775807",
            "checkpoint.every=9223372036854775807",
            "checkpoint.keep=1000001",
            "trajectories.every=9223372036854775807",
            "vllm.max_in_flight=1048577",
            "vllm.keep_versions=1001",
            "health.stall_timeout=1e9",
            "tinker.timeout=1e300",
            "vllm.request_timeout=inf",
            "warmstart.epsilon=1.5",
            "model.init_std=nan",
        ] {
            let mut composer = Composer::new();
            composer.add("kuhn").unwrap();
            if set == "rollout.groups=5000" {
                composer.set("play.episodes=1000").unwrap();
            }
            composer.set(set).unwrap();
            let error = composer.finish().map_or_else(|e| e.to_string(), |r| r.check().unwrap_err().to_string());
            let key = set.split('=').next().unwrap();
            assert!(error.contains(key) || set.starts_with("rollout.group_size"), "{set}: {error}");
        }
    }
}
