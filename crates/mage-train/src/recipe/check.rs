//! Can a recipe work at all?

use super::Recipe;
use crate::{Error, Result};
use mage_core::prompt::PromptForm;
use mage_native::EngineOptions;

/// Meta-episodes an update may have: all of them are held in memory at once.
const MOST_META_EPISODES: usize = 1 << 20;

/// Which numbers a key takes.
#[derive(Clone, Copy)]
enum Range {
    /// 0 and more.
    NotNegative,
    /// More than 0.
    Positive,
    /// From 0 to 1.
    Share,
    /// More than 0, up to 1.
    SomeShare,
    /// From 0, below 1.
    Decay,
}

impl Range {
    fn has(self, v: f64) -> bool {
        v.is_finite()
            && match self {
                Range::NotNegative => v >= 0.0,
                Range::Positive => v > 0.0,
                Range::Share => (0.0..=1.0).contains(&v),
                Range::SomeShare => v > 0.0 && v <= 1.0,
                Range::Decay => (0.0..1.0).contains(&v),
            }
    }

    fn words(self) -> &'static str {
        match self {
            Range::NotNegative => "give 0 or more",
            Range::Positive => "give more than 0",
            Range::Share => "give a number from 0 to 1",
            Range::SomeShare => "give more than 0, and at most 1",
            Range::Decay => "give a number from 0 up to, but not, 1",
        }
    }
}

impl Recipe {
    /// Refuses what cannot work, naming the key.
    pub fn check(&self) -> Result<()> {
        self.check_counts()?;
        self.check_ranges()?;
        if self.warmstart.steps > 0 && self.warmstart.batch_size == 0 {
            return wrong("warmstart.batch_size", "0 would be none; give at least 1, or no steps");
        }
        if self.play.form == PromptForm::Full && self.model.path.is_empty() {
            return wrong("model.path", "full prompts need a model that reads; give a checkpoint's folder");
        }
        self.method.validate()?;
        self.penalty.validate()?;
        self.reward.rule(&self.env.name)?;
        self.loss(0).check()?;
        self.optim_step(0).check()?;
        crate::engines::remote::check(self)
    }

    fn check_counts(&self) -> Result<()> {
        let at_least_one = [
            ("play.episodes", u64::from(self.play.episodes)),
            ("rollout.groups", self.rollout.groups as u64),
            ("rollout.group_size", self.rollout.group_size as u64),
            ("optim.minibatches", self.optim.minibatches as u64),
            ("optim.epochs", u64::from(self.optim.epochs)),
            ("eval.episodes", u64::from(self.eval.episodes)),
            ("eval.tasks", self.eval.tasks as u64),
            ("eval.final_tasks", self.eval.final_tasks as u64),
            ("checkpoint.every", self.checkpoint.every),
            ("checkpoint.keep", self.checkpoint.keep as u64),
            ("vllm.max_in_flight", self.vllm.max_in_flight as u64),
            ("vllm.keep_versions", self.vllm.keep_versions as u64),
        ];
        if let Some((key, _)) = at_least_one.into_iter().find(|(_, v)| *v == 0) {
            return wrong(key, "0 would be none; give at least 1");
        }
        if self.engine.threads > EngineOptions::MAX_THREADS {
            let problem =
                format!("{} are more than {}; 0 takes all cores", self.engine.threads, EngineOptions::MAX_THREADS);
            return wrong("engine.threads", problem);
        }
        let (groups, members) = (self.rollout.groups, self.rollout.group_size);
        let meta_episodes = groups.checked_mul(members).filter(|n| *n <= MOST_META_EPISODES);
        let Some(meta_episodes) = meta_episodes else {
            let problem = format!(
                "{groups} groups of {members} are more meta-episodes than fit into an update; {MOST_META_EPISODES} do"
            );
            return wrong("rollout.groups", problem);
        };
        for (key, tasks) in [("eval.tasks", self.eval.tasks), ("eval.final_tasks", self.eval.final_tasks)] {
            if tasks > MOST_META_EPISODES {
                return wrong(key, format!("{tasks} tasks are more than a panel can have: {MOST_META_EPISODES}"));
            }
        }
        if self.warmstart.batch_size > MOST_META_EPISODES {
            return wrong(
                "warmstart.batch_size",
                format!("{} are more than a step can have: {MOST_META_EPISODES}", self.warmstart.batch_size),
            );
        }
        if self.optim.minibatches > meta_episodes {
            return wrong(
                "optim.minibatches",
                format!("{} parts of {meta_episodes} meta-episodes", self.optim.minibatches),
            );
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<()> {
        use Range::{Decay, NotNegative, Positive, Share, SomeShare};
        let (loss, optim, health) = (&self.loss, &self.optim, &self.health);
        let numbers = [
            ("model.init_std", f64::from(self.model.init_std), NotNegative),
            ("warmstart.epsilon", self.warmstart.epsilon, Share),
            ("warmstart.learning_rate", f64::from(self.warmstart.learning_rate), NotNegative),
            ("warmstart.min_lr_ratio", f64::from(self.warmstart.min_lr_ratio), Share),
            // At 0 every member of a group would do the same: there would be nothing to compare.
            ("rollout.temperature", f64::from(self.rollout.temperature), Positive),
            ("rollout.top_p", f64::from(self.rollout.top_p), SomeShare),
            ("eval.temperature", f64::from(self.eval.temperature), NotNegative),
            ("eval.top_p", f64::from(self.eval.top_p), SomeShare),
            ("loss.clip_low", f64::from(loss.clip_low), Share),
            ("loss.clip_high", f64::from(loss.clip_high), NotNegative),
            ("loss.dual_clip", f64::from(loss.dual_clip), NotNegative),
            ("loss.entropy", f64::from(loss.entropy), NotNegative),
            ("loss.entropy_end", f64::from(loss.entropy_end), NotNegative),
            ("loss.entropy_reflect", f64::from(loss.entropy_reflect), NotNegative),
            ("loss.kl_play", f64::from(loss.kl_play), NotNegative),
            ("loss.kl_reflect", f64::from(loss.kl_reflect), NotNegative),
            ("optim.learning_rate", f64::from(optim.learning_rate), NotNegative),
            ("optim.min_lr_ratio", f64::from(optim.min_lr_ratio), Share),
            ("optim.beta1", f64::from(optim.beta1), Decay),
            ("optim.beta2", f64::from(optim.beta2), Decay),
            ("optim.weight_decay", f64::from(optim.weight_decay), NotNegative),
            ("optim.max_grad_norm", f64::from(optim.max_grad_norm), NotNegative),
            ("trajectories.fraction", self.trajectories.fraction, Share),
            ("engine.lora_alpha", f64::from(self.engine.lora_alpha), NotNegative),
            ("health.min_entropy", health.min_entropy, NotNegative),
            ("health.max_kl", health.max_kl, NotNegative),
            ("health.max_invalid", health.max_invalid, Share),
            ("health.min_factual", health.min_factual, Share),
            ("health.max_mismatch_kl", health.max_mismatch_kl, NotNegative),
            ("health.stall_timeout", health.stall_timeout, Positive),
            ("tinker.timeout", self.tinker.timeout, Positive),
            ("vllm.request_timeout", self.vllm.request_timeout, Positive),
            ("vllm.tolerance", f64::from(self.vllm.tolerance), Positive),
        ];
        match numbers.into_iter().find(|(_, v, range)| !range.has(*v)) {
            Some((key, v, range)) => wrong(key, format!("{} will not do: {}", v as f32, range.words())),
            None => Ok(()),
        }
    }
}

fn wrong(key: &str, problem: impl Into<String>) -> Result<()> {
    Err(Error::Recipe { place: key.to_owned(), problem: problem.into() })
}

#[cfg(test)]
mod tests {
    use crate::recipe::Composer;

    #[test]
    fn what_cannot_work_is_refused_by_its_key() {
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
            "rollout.group_size=9223372036854775807",
            "eval.tasks=100000000000",
            "optim.minibatches=1000",
            "play.episodes=0",
            "warmstart.epsilon=1.5",
            "model.init_std=nan",
        ] {
            let mut composer = Composer::new();
            composer.add("kuhn").unwrap();
            composer.set(set).unwrap();
            let said = composer.finish().map_or_else(|e| e.to_string(), |r| r.check().unwrap_err().to_string());
            let key = set.split('=').next().unwrap();
            assert!(said.contains(key) || set.starts_with("rollout.group_size"), "{set}: {said}");
        }
    }
}
