//! Task sets: fixed lists of tasks for evaluation, equal for all methods of a comparison.
//!
//! Opponents and seats appear exactly in the proportions of the population, so that a mean over the task set is a mean
//! over the population.

use crate::Result;
use mage_env::{EnvSpec, Hash, Population, Seed, Task};

/// A fixed list of tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSet {
    tasks: Vec<Task>,
    hash: Hash,
}

impl TaskSet {
    /// `count` tasks of a split, with opponents and seats in proportion, rounded by the largest-remainder method. In
    /// environments with a finite set of start states, these are assigned without replacement.
    pub fn new(env_spec: &dyn EnvSpec, population: &Population, split: &str, count: usize, seed: Seed) -> Result<Self> {
        let opponents = population.in_split(split)?;
        let shares = population.seat_shares(env_spec.info().seats)?;
        let mut cells = Vec::new();
        for (seat, seat_share) in shares.iter().enumerate() {
            if opponents.is_empty() {
                cells.push((None, seat, *seat_share));
            }
            for (weight, spec) in &opponents {
                cells.push((Some((*spec).clone()), seat, weight * seat_share));
            }
        }
        let counts = apportion(&cells.iter().map(|c| c.2).collect::<Vec<_>>(), count);
        let mut tasks = Vec::with_capacity(count);
        for ((opponent, seat, _), n) in cells.into_iter().zip(counts) {
            for _ in 0..n {
                tasks.push(Task {
                    env: population.env.clone(),
                    options: population.options_in(split),
                    opponent: opponent.clone(),
                    seat: seat as u8,
                    seed: seed.child("task_set").at(tasks.len() as u64),
                });
            }
        }
        env_spec.assign_without_replacement(&mut tasks, 0, seed.child("deal"))?;
        let hash = Hash::of(&tasks);
        Ok(TaskSet { tasks, hash })
    }

    /// The tasks.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Hash that identifies the task set.
    pub fn hash(&self) -> Hash {
        self.hash
    }
}

/// Splits `total` in proportion to `shares`, which add up to 1: every part within one of its exact share.
fn apportion(shares: &[f64], total: usize) -> Vec<usize> {
    let exact: Vec<f64> = shares.iter().map(|s| s * total as f64).collect();
    let mut parts: Vec<usize> = exact.iter().map(|x| *x as usize).collect();
    let mut by_remainder: Vec<usize> = (0..shares.len()).collect();
    by_remainder.sort_by(|a, b| exact[*b].fract().total_cmp(&exact[*a].fract()));
    let missing = total.saturating_sub(parts.iter().sum());
    for i in by_remainder.into_iter().cycle().take(missing) {
        parts[i] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_env::Registry;
    use proptest::prelude::*;

    #[test]
    fn opponents_and_seats_appear_in_proportion_to_their_weights() {
        let env_spec = Registry::builtin().get("kuhn").unwrap().clone();
        let population = env_spec.default_population();
        let task_set = |seed| TaskSet::new(&*env_spec, &population, "train", 200, Seed::new(seed)).unwrap();
        let (task_set, again, other) = (task_set(1), task_set(1), task_set(2));
        let count = |name: &str, seat| {
            task_set.tasks().iter().filter(|t| t.seat == seat && t.opponent.as_ref().unwrap().name == name).count()
        };
        assert_eq!(task_set.tasks().len(), 200);
        assert_eq!([count("conservative", 0), count("aggressive", 1), count("intermediate", 0)], [30, 30, 40]);
        assert_eq!(task_set, again);
        assert_ne!(task_set.hash(), other.hash());
    }

    proptest! {
        #[test]
        fn apportioned_counts_sum_to_the_total_and_differ_from_exact_shares_by_less_than_one(weights in prop::collection::vec(0.01_f64..10.0, 1..12), total in 0_usize..500) {
            let sum: f64 = weights.iter().sum();
            let shares: Vec<f64> = weights.iter().map(|w| w / sum).collect();
            let parts = apportion(&shares, total);
            prop_assert_eq!(parts.iter().sum::<usize>(), total);
            for (part, share) in parts.iter().zip(&shares) {
                prop_assert!((*part as f64 - share * total as f64).abs() < 1.0 + 1e-9);
            }
        }
    }
}
