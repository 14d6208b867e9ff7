//! Comparison of the embedded engine with running engines.

mod live_engines;

use live_engines::ENGINES;
use mage_testing::{run, tests, variables};
use std::process::ExitCode;

fn main() -> ExitCode {
    run([(
        variables(&ENGINES, "run python3 conformance/engines/run.py, which starts the engines"),
        tests![
            live_engines::all_engines_agree_on_log_probabilities,
            live_engines::one_update_changes_the_adapter_as_in_the_embedded_engine,
        ],
    )])
}
