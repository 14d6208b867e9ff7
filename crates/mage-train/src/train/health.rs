//! Is something going wrong?
//!
//! Says so in plain words, once for each sort of trouble until it is over.

use crate::recipe::Watch;
use mage_engine::TrainerCaps;
use std::collections::BTreeSet;

/// What is looked at after an update.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signs {
    /// Updates done, of all.
    pub done: f64,
    /// Mean entropy of actions, in nats.
    pub entropy: f64,
    /// Divergence of actions from the reference.
    pub kl_play: f64,
    /// Divergence of reflections from the reference.
    pub kl_reflect: f64,
    /// Divergence of what was sampled from what is trained, before the first step.
    pub mismatch: f64,
    /// Share of invalid actions.
    pub invalid: f64,
    /// Share of reflections that state the facts.
    pub factual: Option<f64>,
    /// Whether a step was skipped because numbers were not finite.
    pub skipped: bool,
    /// Meta-episodes that could not be played.
    pub errors: usize,
}

/// Remembers what was said.
pub struct Watchdog {
    said: BTreeSet<&'static str>,
    /// Whether the engine takes an entropy bonus.
    bonus: bool,
    /// Whether it takes a penalty on divergence.
    penalty: bool,
}

impl Watchdog {
    /// One that advises nothing the engine would refuse.
    pub fn new(engine: &TrainerCaps) -> Self {
        Watchdog { said: BTreeSet::new(), bonus: engine.entropy, penalty: !engine.kl.is_empty() }
    }

    /// New trouble, in plain words.
    pub fn look(&mut self, limits: &Watch, signs: &Signs) -> Vec<String> {
        let lost = signs.factual.is_some_and(|f| f < limits.factual);
        let troubles = [
            (
                "entropy",
                signs.done < 0.5 && signs.entropy < limits.entropy,
                format!(
                    "actions have become certain early (entropy {:.3} nats): nothing new is tried any more; {}",
                    signs.entropy,
                    match self.bonus {
                        true => "raise loss.entropy",
                        false => "lower optim.learning_rate (this engine has no entropy bonus)",
                    }
                ),
            ),
            (
                "kl_play",
                signs.kl_play > limits.kl,
                format!(
                    "actions drift away from the reference (divergence {:.2} nats a token); raise loss.kl_play or lower \
                     optim.learning_rate",
                    signs.kl_play
                ),
            ),
            (
                "kl_reflect",
                signs.kl_reflect > limits.kl,
                format!(
                    "reflections drift away from the reference (divergence {:.2} nats a token); raise loss.kl_reflect or lower \
                     optim.learning_rate",
                    signs.kl_reflect
                ),
            ),
            (
                "mismatch",
                signs.mismatch > limits.mismatch,
                format!(
                    "what was sampled is not what is trained (divergence {:.4} nats a token before any step): the engines \
                     disagree; see `mage doctor --engine`",
                    signs.mismatch
                ),
            ),
            (
                "invalid",
                signs.invalid > limits.invalid,
                format!(
                    "{:.0} % of actions are invalid; play.mask_actions rules them out, on engines that take masks",
                    100.0 * signs.invalid
                ),
            ),
            (
                "factual",
                lost,
                format!(
                    "only {:.0} % of reflections state the facts; {}",
                    100.0 * signs.factual.unwrap_or(0.0),
                    match self.penalty {
                        true => "raise loss.kl_reflect if there were more, else warmstart.steps",
                        false =>
                            "lower optim.learning_rate if there were more, else teach it before (`mage warmstart`)",
                    }
                ),
            ),
            (
                "finite",
                signs.skipped,
                "a step was skipped because its numbers were not finite; lower optim.learning_rate if it goes on"
                    .to_owned(),
            ),
            (
                "errors",
                signs.errors > 0,
                format!("{} meta-episodes could not be played and are left out; see the episode records", signs.errors),
            ),
        ];
        let mut out = Vec::new();
        for (name, is, text) in troubles {
            if !is {
                self.said.remove(name);
            } else if self.said.insert(name) {
                out.push(text);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Watchdog {
        Watchdog { said: BTreeSet::new(), bonus: true, penalty: true }
    }

    #[test]
    fn nothing_is_advised_that_the_engine_refuses() {
        let mut dog = Watchdog::new(&mage_remote::tinker::Backend::Jax.trainer_caps(256));
        let signs = Signs { entropy: 0.0, factual: Some(0.1), ..Signs::default() };
        let said = dog.look(&Watch::default(), &signs);
        assert!(said.len() == 2 && said.iter().all(|text| text.contains("optim.learning_rate")), "{said:?}");
        assert!(said.iter().all(|text| !text.contains("raise")), "{said:?}");
    }

    #[test]
    fn trouble_is_named_once_until_it_is_over() {
        let mut dog = new();
        let bad = Signs { entropy: 0.01, done: 0.2, ..Signs::default() };
        assert!(dog.look(&Watch::default(), &bad)[0].contains("loss.entropy"));
        assert!(dog.look(&Watch::default(), &bad).is_empty());
        assert!(dog.look(&Watch::default(), &Signs { entropy: 0.5, ..bad }).is_empty());
        assert_eq!(dog.look(&Watch::default(), &bad).len(), 1);
        let late = Signs { done: 0.9, ..bad };
        assert!(new().look(&Watch::default(), &late).is_empty(), "certainty is fine at the end");
        let signs =
            Signs { kl_play: 2.0, kl_reflect: 2.0, invalid: 0.5, factual: Some(0.1), skipped: true, errors: 3, ..late };
        assert_eq!(new().look(&Watch::default(), &signs).len(), 6);
    }
}
