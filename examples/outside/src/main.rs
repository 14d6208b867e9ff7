//! `mage` with an additional environment, rock-paper-scissors, and an additional Kuhn poker opponent. Try `cargo run -- play rps`.

mod rps;

use mage_env::kuhn::{KuhnSpec, StrategyTable};

fn main() -> std::process::ExitCode {
    let mut app = mage::App::builtin();

    // An environment: rules and prompts.
    app.registry.register(rps::RpsSpec::default());
    app.prompts.add("rps", rps::prompts());

    // An opponent of an existing environment.
    let mut kuhn = KuhnSpec::default();
    kuhn.opponents.add_plain("maniac", "never passes", StrategyTable::by_role([1.0; 3], [1.0; 3]));
    app.registry.register(kuhn);

    mage::main(&app)
}
