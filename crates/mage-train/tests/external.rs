//! Comparison of the embedded engine with running engines.

mod live_engines;

use live_engines::ENGINES;
use mage_testing::{run, tests, variables};
use std::process::ExitCode;

fn main() -> ExitCode {
    let engines = |names: &[&str]| {
        let names = [&ENGINES[..], names].concat();
        variables(&names, "run python3 conformance/engines/run.py, which starts the engines")
    };
    run([
        (
            engines(&[]),
            tests![
                live_engines::all_engines_agree_on_log_probabilities,
                live_engines::one_update_changes_the_adapter_as_in_the_embedded_engine,
            ],
        ),
        (engines(&["MAGE_OTHER_MODEL"]), tests![live_engines::full_models_are_pushed]),
        (engines(&["MAGE_TIED_MODEL"]), tests![live_engines::a_stale_lm_head_is_detected]),
    ])
}
