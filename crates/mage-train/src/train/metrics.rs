//! What is written down about an update?

use super::Training;
use crate::{
    eval::evaluator::EvalResult,
    recipe::{PLAY, REFLECT},
    train::health::HealthMetrics,
};
use mage_core::{RequestKind, Trajectory};
use mage_engine::{LossReport, StepReport, TokenClass};
use std::collections::BTreeMap;

/// What an update's optimiser steps reported.
#[derive(Default)]
pub(super) struct OptimReports {
    reports: Vec<LossReport>,
    steps: Vec<StepReport>,
    learning_rate: f32,
}

impl OptimReports {
    pub(super) fn note(&mut self, report: LossReport, step: StepReport, learning_rate: f32) {
        self.reports.push(report);
        self.steps.push(step);
        self.learning_rate = learning_rate;
    }

    /// `charged` are the kinds of tokens that have a reference: of others no divergence is known.
    fn put(&self, charged: &[(&str, TokenClass)], put: &mut impl FnMut(String, f64)) {
        let n = self.reports.len().max(1) as f64;
        let mean = |of: &dyn Fn(&LossReport) -> f64| self.reports.iter().map(of).sum::<f64>() / n;
        put("loss".into(), mean(&|r| r.loss));
        put("ratio/clip_frac".into(), mean(&|r| r.clip_fraction));
        put("ratio/max".into(), self.reports.iter().map(|r| r.max_ratio).fold(0.0, f64::max));
        put("mismatch_kl/mean".into(), mean(&|r| r.mismatch_kl));
        // Before the first step sampler and trainer have the same weights: what is left is the engines' own disagreement.
        put("mismatch_kl/first".into(), self.reports.first().map_or(0.0, |r| r.mismatch_kl));
        put("tokens/trained".into(), self.reports.iter().map(|r| r.tokens as f64).sum());
        for (name, class) in charged {
            let known: Vec<f64> = self.reports.iter().filter_map(|r| r.kl.get(class).copied()).collect();
            if !known.is_empty() {
                put(format!("kl/{name}"), known.iter().sum::<f64>() / known.len() as f64);
            }
        }
        let steps = self.steps.len().max(1) as f64;
        put("optim/grad_norm".into(), self.steps.iter().map(|s| s.grad_norm).sum::<f64>() / steps);
        put("optim/lr".into(), f64::from(self.learning_rate));
        put("optim/skipped".into(), self.steps.iter().filter(|s| s.skipped.is_some()).count() as f64);
    }
}

pub(super) fn add_judgement(metrics: &mut BTreeMap<String, f64>, judgement: &EvalResult) {
    for (n, (score, won)) in judgement.score.iter().zip(&judgement.won).enumerate() {
        metrics.insert(format!("eval/episode_{}/score", n + 1), score.mean);
        metrics.insert(format!("eval/episode_{}/se", n + 1), score.se);
        metrics.insert(format!("eval/episode_{}/won", n + 1), won.mean);
    }
}

impl Training {
    /// An update's line of metrics. Nothing in it depends on the clock.
    pub(super) fn measure(&self, records: &[Trajectory], learned: &OptimReports) -> BTreeMap<String, f64> {
        let mut m = BTreeMap::new();
        let mut put = |key: String, value: f64| _ = m.insert(key, value);
        let good: Vec<&Trajectory> = records.iter().filter(|r| r.error.is_none()).collect();
        put("update".into(), self.progress.update as f64);
        put("episodes".into(), self.progress.episodes as f64);
        put("played".into(), records.iter().map(|r| r.episodes.len()).sum::<usize>() as f64);
        put("errors".into(), (records.len() - good.len()) as f64);
        for n in 0..self.parts.settings.episodes as usize {
            let episodes: Vec<_> = good.iter().filter_map(|r| r.episodes.get(n)).collect();
            let over = episodes.len().max(1) as f64;
            put(format!("episode_{}/score", n + 1), episodes.iter().map(|e| f64::from(e.score())).sum::<f64>() / over);
            put(format!("episode_{}/won", n + 1), episodes.iter().filter(|e| e.won()).count() as f64 / over);
        }
        let (mut surprise, mut play_tokens, mut reflect_tokens, mut reflections) = (0.0, 0_u64, 0_u64, 0_u64);
        for call in good.iter().flat_map(|r| &r.requests) {
            let Some(tokens) = &call.completion.tokens else { continue };
            if call.kind == RequestKind::Play {
                surprise -= tokens.logprobs.iter().map(|l| f64::from(*l)).sum::<f64>();
                play_tokens += tokens.response.len() as u64;
            } else {
                reflect_tokens += tokens.response.len() as u64;
                reflections += 1;
            }
        }
        // The mean surprise of what was sampled is the entropy, up to luck.
        put("entropy".into(), surprise / play_tokens.max(1) as f64);
        put("tokens/play".into(), play_tokens as f64);
        put("tokens/reflect".into(), reflect_tokens as f64 / reflections.max(1) as f64);
        let (bad, acted) = good.iter().map(|r| r.invalid_actions()).fold((0, 0), |(b, a), (x, y)| (b + x, a + y));
        put("invalid_action".into(), f64::from(bad) / f64::from(acted.max(1)));
        let counted: Option<Vec<(u32, u32)>> = good.iter().map(|r| self.parts.school.factual(r)).collect();
        if let Some(counted) = counted.filter(|_| reflections > 0) {
            let (right, all) = counted.into_iter().fold((0, 0), |(r, a), (x, y)| (r + x, a + y));
            put("factual".into(), f64::from(right) / f64::from(all.max(1)));
        }
        let loss = &self.recipe.loss;
        let classes = [("play", PLAY, loss.kl_play), ("reflect", REFLECT, loss.kl_reflect)];
        let charged: Vec<_> = classes.iter().filter(|(_, _, cost)| *cost > 0.0).map(|(n, c, _)| (*n, *c)).collect();
        learned.put(&charged, &mut put);
        m
    }

    /// What there is to look out for.
    pub(super) fn signs(
        &self,
        metrics: &BTreeMap<String, f64>,
        records: &[Trajectory],
        gathered_ahead: bool,
    ) -> HealthMetrics {
        let at = |key: &str| metrics.get(key).copied();
        HealthMetrics {
            done: self.progress.update as f64 / self.recipe.optim.updates.max(1) as f64,
            entropy: at("entropy").unwrap_or(1.0),
            kl_play: at("kl/play").unwrap_or(0.0),
            kl_reflect: at("kl/reflect").unwrap_or(0.0),
            mismatch_kl: engines_apart(metrics, gathered_ahead),
            invalid: at("invalid_action").unwrap_or(0.0),
            factual: at("factual"),
            skipped: at("optim/skipped").unwrap_or(0.0) > 0.0,
            errors: records.iter().filter(|r| r.error.is_some()).count(),
        }
    }
}

/// How far engines are apart that have the same weights. A batch that was gathered ahead was played by the weights before
/// these, and says nothing of it.
fn engines_apart(metrics: &BTreeMap<String, f64>, gathered_ahead: bool) -> f64 {
    if gathered_ahead { 0.0 } else { metrics.get("mismatch_kl/first").copied().unwrap_or(0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_held_against_each_other_by_batches_of_the_same_weights() {
        let metrics = BTreeMap::from([("mismatch_kl/first".to_owned(), 0.3)]);
        assert_eq!((engines_apart(&metrics, false), engines_apart(&metrics, true)), (0.3, 0.0));
    }
}
