//! Tests against running engines.

mod common;
mod live_engines;
mod tinker_recording;

use mage_testing::{run, tests, variables};
use std::process::ExitCode;

fn main() -> ExitCode {
    let hint = "run python3 conformance/engines/run.py, which starts the engines";
    let tinker = ["MAGE_TINKER_URL", "MAGE_ENGINE_MODEL"];
    run([
        (
            variables(&tinker, hint),
            tests![
                live_engines::calibration_matches_the_backend,
                live_engines::policy_trains_samples_and_resumes_from_a_checkpoint,
            ],
        ),
        (
            variables(&[&tinker[..], &["MAGE_VLLM_URL"]].concat(), hint),
            tests![live_engines::trained_weights_reach_vllm],
        ),
        (
            variables(&["MAGE_TINKER_URL", "MAGE_RECORD"], "writes into the repository; see tinker_recording.rs"),
            tests![tinker_recording::the_script_is_recorded],
        ),
    ])
}
