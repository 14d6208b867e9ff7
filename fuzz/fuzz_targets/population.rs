//! Fuzz target: a population that is accepted can be written, and its tasks can be sampled, built and played.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_env::{Grouping, Population, Registry, Seed};
use std::sync::LazyLock;

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::builtin);

/// Environments without files: an option may name any path, which the fuzzer must not read.
const GAMES: [&str; 2] = ["kuhn", "tictactoe"];

fuzz_target!(|text: &str| {
    let Ok(population) = Population::from_toml(text, "fuzz") else { return };
    let written = toml::to_string(&population).unwrap();
    assert_eq!(Population::from_toml(&written, "again").unwrap(), population);
    if !GAMES.contains(&population.env.as_str()) {
        return;
    }
    let env_spec = REGISTRY.get(population.env.as_str()).unwrap();
    if env_spec.check(&population).is_err() {
        return;
    }
    for split in population.splits().map(str::to_owned).collect::<Vec<_>>() {
        let seats = env_spec.info().seats;
        let group = population.sample_group(&split, seats, Seed::new(1), 2, Grouping::default());
        let Ok(task) = population.sample_task(&split, seats, Seed::new(1)) else {
            assert!(group.is_err());
            continue;
        };
        let Ok(mut env) = env_spec.build(&task) else { continue };
        env.reset(0);
        for _ in 0..20 {
            let Some(action) = env.legal().and_then(|legal| legal.first().cloned()) else { break };
            if env.step(&env.parse(&action)).end.is_some() {
                break;
            }
        }
    }
});
