//! Fuzz target: arbitrary WebShop actions never panic, and the total reward of an episode stays within [0, 1].

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_env::{EnvSpec, ParsedAction, Seed, webshop::WebshopSpec};

fuzz_target!(|text: &str| {
    let mut population = WebshopSpec.default_population();
    population.set("products", 60.into());
    let seed = Seed::new(text.len() as u64 % 16);
    let mut env = WebshopSpec.build(&population.sample_task("train", 1, seed).unwrap()).unwrap();
    env.reset(0);
    let mut total_reward = 0.0;
    for line in text.lines().take(30) {
        let action = env.parse(line);
        let allowed = matches!(&action, ParsedAction::Act(a) if env.allows(a));
        let step = env.step(&action);
        assert_eq!(allowed, step.valid);
        total_reward += step.reward;
        let _ = (env.anchor(), env.legal(), env.compact_legal());
    }
    assert!((0.0..=1.0).contains(&total_reward));
});
