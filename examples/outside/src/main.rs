//! `mage` with an additional environment, rock-paper-scissors, and an additional Kuhn poker opponent. Try
//! `cargo run -- env show rps --oracles`, then `cargo run --release -- train rps.toml`.

mod rps;

use mage_env::kuhn::{KuhnSpec, StrategyTable};

fn main() -> std::process::ExitCode {
    let mut app = mage::App::builtin();
    app.register(rps::spec());

    // An opponent of an existing environment.
    let mut kuhn = KuhnSpec::default();
    kuhn.opponents.add_plain("maniac", "never passes", StrategyTable::by_role([1.0; 3], [1.0; 3]));
    app.register(kuhn);

    mage::main(&app)
}

#[cfg(test)]
mod tests {
    use mage_env::EnvSpec;

    #[test]
    fn the_added_game_has_ceilings_and_default_prompts() {
        let mut app = mage::App::builtin();
        app.register(super::rps::spec());
        assert!(app.prompts.get("rps").is_ok());
        let rps = app.registry.get("rps").unwrap();
        let ceilings = rps.oracles(&rps.default_population(), "train", 3).unwrap().unwrap();
        assert!(ceilings.mean.memoryless.iter().all(|value| value.abs() < 1e-9));
        let best = &ceilings.mean.sum.by_episode;
        // After one throw, the next is the same with probability 0.66 and each other one with 0.17.
        assert!(best[0].abs() < 1e-9 && (best[1] - 0.49).abs() < 1e-9, "{best:?}");
    }
}
