//! Baselines: means over comparable transitions.
//!
//! Transitions are divided into buckets (by a key) and buckets into units (by [`BaselineUnit`]); each unit counts once.
//! All sums run over sorted terms, so permuting the transitions changes no bit of the result.

use super::{AdvantageNorm, BaselineScope, BaselineUnit};
use crate::Transition;
use std::collections::HashMap;

/// Added to a standard deviation before dividing by it.
const EPSILON: f64 = 1e-6;

impl BaselineScope {
    pub(super) fn key(self, transition: &Transition) -> u32 {
        match self {
            BaselineScope::Group => transition.group,
            BaselineScope::Opponent => transition.opponent,
            BaselineScope::All => 0,
        }
    }
}

impl BaselineUnit {
    /// The bucket key of a transition's score.
    pub(super) fn key(self, scope: BaselineScope) -> impl Fn(&Transition) -> (u32, u32) {
        move |t| (scope.key(t), if self == BaselineUnit::EpisodeIndex { t.episode } else { 0 })
    }
}

/// The result for a transition without others to compare with.
#[derive(Clone, Copy)]
pub(super) enum SingletonRule {
    /// 0: it is its own mean.
    Zero,
    /// Its value, if it is the only transition in the scope.
    KeepValue(BaselineScope),
}

/// Each value minus the mean of its bucket, divided by the standard deviation if `norm` says so.
pub(super) fn center<K: Ord>(
    transitions: &[Transition],
    values: &[f64],
    key: impl Fn(&Transition) -> K,
    unit: BaselineUnit,
    norm: AdvantageNorm,
    singleton: SingletonRule,
) -> Vec<f64> {
    map_buckets(transitions, values, key, unit, singleton, |bucket| {
        let mean = bucket.mean();
        let scale = match norm {
            AdvantageNorm::Mean => 1.0,
            AdvantageNorm::MeanStd => bucket.standard_deviation(mean) + EPSILON,
        };
        bucket.members.iter().map(|m| (m.value - mean) / scale).collect()
    })
}

/// Each value minus the mean of the other units of its bucket. A bucket with one unit is compared with its own mean.
pub(super) fn leave_one_out<K: Ord>(
    transitions: &[Transition],
    values: &[f64],
    key: impl Fn(&Transition) -> K,
    unit: BaselineUnit,
    singleton: SingletonRule,
) -> Vec<f64> {
    map_buckets(transitions, values, key, unit, singleton, |bucket| {
        let mean = bucket.mean();
        let n = bucket.units.len() as f64;
        let baselines: Vec<f64> =
            bucket.units.iter().map(|own| if n > 1.0 { (n * mean - own) / (n - 1.0) } else { mean }).collect();
        bucket.members.iter().map(|m| m.value - baselines[m.unit]).collect()
    })
}

/// A transition in a bucket.
struct BucketMember {
    value: f64,
    /// Index into [`Bucket::units`].
    unit: usize,
    /// Its weight in the bucket's mean; weights sum to 1.
    weight: f64,
}

/// Transitions that are compared with each other.
struct Bucket {
    members: Vec<BucketMember>,
    /// The value of each unit.
    units: Vec<f64>,
}

impl Bucket {
    fn mean(&self) -> f64 {
        mean(self.units.iter().copied())
    }

    /// The standard deviation over members, by weight. It includes deviations of members from their own unit; otherwise
    /// units with equal means would divide these deviations by zero. With one transition per unit this is the sample
    /// standard deviation. With a single unit it is 1, which leaves the differences unscaled.
    fn standard_deviation(&self, mean: f64) -> f64 {
        let n = self.units.len() as f64;
        if n < 2.0 {
            return 1.0;
        }
        (sum(self.members.iter().map(|m| m.weight * (m.value - mean).powi(2))) * n / (n - 1.0)).sqrt()
    }
}

/// Divides the transitions into buckets, applies `f` to each bucket and returns its values in the order of the
/// transitions.
fn map_buckets<K: Ord>(
    transitions: &[Transition],
    values: &[f64],
    key: impl Fn(&Transition) -> K,
    unit: BaselineUnit,
    singleton: SingletonRule,
    f: impl Fn(&Bucket) -> Vec<f64>,
) -> Vec<f64> {
    let mut order: Vec<usize> = (0..transitions.len()).collect();
    order.sort_by_cached_key(|&i| (key(&transitions[i]), transitions[i].meta_episode, transitions[i].episode));
    let mut out = vec![0.0; transitions.len()];
    for bucket in order.chunk_by(|&a, &b| key(&transitions[a]) == key(&transitions[b])) {
        let results = f(&build_bucket(transitions, values, bucket, unit));
        for (&i, x) in bucket.iter().zip(results) {
            out[i] = x;
        }
    }
    if let SingletonRule::KeepValue(scope) = singleton {
        let mut in_scope: HashMap<u32, usize> = HashMap::new();
        for t in transitions {
            *in_scope.entry(scope.key(t)).or_default() += 1;
        }
        for (i, t) in transitions.iter().enumerate() {
            if in_scope[&scope.key(t)] == 1 {
                out[i] = values[i];
            }
        }
    }
    out
}

/// `members` are sorted by meta-episode and episode.
fn build_bucket(transitions: &[Transition], values: &[f64], members: &[usize], unit: BaselineUnit) -> Bucket {
    let same_meta = |&a: &usize, &b: &usize| transitions[a].meta_episode == transitions[b].meta_episode;
    let same_episode = |a: &usize, b: &usize| same_meta(a, b) && transitions[*a].episode == transitions[*b].episode;
    let same_unit = |a: &usize, b: &usize| match unit {
        BaselineUnit::Transition => false,
        BaselineUnit::Episode | BaselineUnit::EpisodeIndex => same_episode(a, b),
        BaselineUnit::MetaEpisode => same_meta(a, b),
    };
    let mut bucket = Bucket { members: Vec::with_capacity(members.len()), units: Vec::new() };
    let units = members.chunk_by(same_unit).count() as f64;
    for of_unit in members.chunk_by(same_unit) {
        let episodes = of_unit.chunk_by(same_episode).count() as f64;
        for episode in of_unit.chunk_by(same_episode) {
            let weight = 1.0 / (units * episodes * episode.len() as f64);
            bucket.members.extend(episode.iter().map(|&i| BucketMember {
                value: values[i],
                unit: bucket.units.len(),
                weight,
            }));
        }
        let episode_mean = |e: &[usize]| mean(e.iter().map(|&i| values[i]));
        bucket.units.push(mean(of_unit.chunk_by(same_episode).map(episode_mean)));
    }
    bucket
}

fn sorted(terms: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut terms: Vec<f64> = terms.collect();
    terms.sort_by(f64::total_cmp);
    terms
}

fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    sorted(terms).iter().sum()
}

/// The mean of at least one value.
fn mean(terms: impl Iterator<Item = f64>) -> f64 {
    let terms = sorted(terms);
    terms.iter().sum::<f64>() / terms.len() as f64
}
