//! What did comparable rows get?
//!
//! Rows fall into buckets (by a key), buckets into units (by [`BaselineUnit`]), and each unit counts once. All sums run
//! over sorted terms, so that the result does not depend on the order of the rows, to the last bit.

use super::{AdvantageNorm, BaselineScope, BaselineUnit};
use crate::Transition;
use std::collections::HashMap;

/// Added to a standard deviation before dividing by it.
const EPSILON: f64 = 1e-6;

impl BaselineScope {
    pub(super) fn key(self, row: &Transition) -> u32 {
        match self {
            BaselineScope::Group => row.group,
            BaselineScope::Opponent => row.opponent,
            BaselineScope::All => 0,
        }
    }
}

impl BaselineUnit {
    /// The bucket a row's score is compared in.
    pub(super) fn key(self, scope: BaselineScope) -> impl Fn(&Transition) -> (u32, u32) {
        move |row| (scope.key(row), if self == BaselineUnit::EpisodeIndex { row.episode } else { 0 })
    }
}

/// What happens to a row that has nothing to be compared with.
#[derive(Clone, Copy)]
pub(super) enum Lonely {
    /// It is its own mean, and gets 0.
    Zero,
    /// It keeps its value, if it is the only row in its scope.
    Keeps(BaselineScope),
}

/// Each value minus the mean of its bucket, divided by the spread if `norm` says so.
pub(super) fn centre<K: Ord>(
    rows: &[Transition],
    values: &[f64],
    key: impl Fn(&Transition) -> K,
    unit: BaselineUnit,
    norm: AdvantageNorm,
    lonely: Lonely,
) -> Vec<f64> {
    against(rows, values, key, unit, lonely, |bucket| {
        let mean = bucket.mean();
        let spread = match norm {
            AdvantageNorm::Mean => 1.0,
            AdvantageNorm::MeanStd => bucket.deviation(mean) + EPSILON,
        };
        bucket.members.iter().map(|m| (m.value - mean) / spread).collect()
    })
}

/// Each value minus the mean of the other units of its bucket. A unit without others is compared with its own mean.
pub(super) fn leave_one_out<K: Ord>(
    rows: &[Transition],
    values: &[f64],
    key: impl Fn(&Transition) -> K,
    unit: BaselineUnit,
    lonely: Lonely,
) -> Vec<f64> {
    against(rows, values, key, unit, lonely, |bucket| {
        let mean = bucket.mean();
        let n = bucket.units.len() as f64;
        let others: Vec<f64> =
            bucket.units.iter().map(|own| if n > 1.0 { (n * mean - own) / (n - 1.0) } else { mean }).collect();
        bucket.members.iter().map(|m| m.value - others[m.unit]).collect()
    })
}

/// A row as its bucket sees it.
struct Member {
    value: f64,
    /// Its place in [`Bucket::units`].
    unit: usize,
    /// Its share of the bucket's mean; all shares sum to 1.
    share: f64,
}

/// Rows that are compared with each other.
struct Bucket {
    members: Vec<Member>,
    /// The value of each unit.
    units: Vec<f64>,
}

impl Bucket {
    fn mean(&self) -> f64 {
        mean(self.units.iter().copied())
    }

    /// The standard deviation. Rows that differ from their own unit count too, by their share: else units that happen to
    /// be equal would divide their rows' differences by nothing. With one row per unit this is the sample's deviation; a
    /// single unit has none to speak of, and 1 leaves its rows as they are.
    fn deviation(&self, mean: f64) -> f64 {
        let n = self.units.len() as f64;
        if n < 2.0 {
            return 1.0;
        }
        (sum(self.members.iter().map(|m| m.share * (m.value - mean).powi(2))) * n / (n - 1.0)).sqrt()
    }
}

/// Cuts the rows into buckets, and puts what `judge` says of each bucket's members in the rows' order.
fn against<K: Ord>(
    rows: &[Transition],
    values: &[f64],
    key: impl Fn(&Transition) -> K,
    unit: BaselineUnit,
    lonely: Lonely,
    judge: impl Fn(&Bucket) -> Vec<f64>,
) -> Vec<f64> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_cached_key(|&i| (key(&rows[i]), rows[i].meta_episode, rows[i].episode));
    let mut out = vec![0.0; rows.len()];
    for bucket in order.chunk_by(|&a, &b| key(&rows[a]) == key(&rows[b])) {
        let judged = judge(&gather(rows, values, bucket, unit));
        for (&i, x) in bucket.iter().zip(judged) {
            out[i] = x;
        }
    }
    if let Lonely::Keeps(scope) = lonely {
        let mut in_scope: HashMap<u32, usize> = HashMap::new();
        for row in rows {
            *in_scope.entry(scope.key(row)).or_default() += 1;
        }
        for (i, row) in rows.iter().enumerate() {
            if in_scope[&scope.key(row)] == 1 {
                out[i] = values[i];
            }
        }
    }
    out
}

/// `members` stand in order of meta-episode and episode.
fn gather(rows: &[Transition], values: &[f64], members: &[usize], unit: BaselineUnit) -> Bucket {
    let same_meta = |&a: &usize, &b: &usize| rows[a].meta_episode == rows[b].meta_episode;
    let same_episode = |a: &usize, b: &usize| same_meta(a, b) && rows[*a].episode == rows[*b].episode;
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
            let share = 1.0 / (units * episodes * episode.len() as f64);
            bucket.members.extend(episode.iter().map(|&i| Member {
                value: values[i],
                unit: bucket.units.len(),
                share,
            }));
        }
        let of_episode = |e: &[usize]| mean(e.iter().map(|&i| values[i]));
        bucket.units.push(mean(of_unit.chunk_by(same_episode).map(of_episode)));
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

/// The mean of one or more numbers.
fn mean(terms: impl Iterator<Item = f64>) -> f64 {
    let terms = sorted(terms);
    terms.iter().sum::<f64>() / terms.len() as f64
}
