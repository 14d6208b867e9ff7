//! Shared by the Kuhn poker tests: reports, and comparison with published figures to a number of digits.

use mage_env::{EnvSpec, Population, Registry, kuhn::KuhnSpec, solvers::OracleReport};

pub(crate) fn paper_mix() -> Population {
    KuhnSpec::default().default_population()
}

pub(crate) fn report(population: &Population, split: &str, episodes: u32) -> OracleReport {
    let registry = Registry::builtin();
    registry.get("kuhn").unwrap().oracles(population, split, episodes).unwrap().expect("exact opponents")
}

#[track_caller]
pub(crate) fn close(actual: f64, expected: f64, digits: i32) {
    assert!((actual - expected).abs() <= 0.7 * 10_f64.powi(-digits), "{actual} is not {expected}");
}

#[track_caller]
pub(crate) fn row(actual: &[f64], expected: &[f64], digits: i32) {
    assert_eq!(actual.len(), expected.len());
    actual.iter().zip(expected).for_each(|(a, e)| close(*a, *e, digits));
}
