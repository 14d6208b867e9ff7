//! Tests of the command line with recordings of the original engines, official data, and tools of the machine.

mod common;
mod file_faults;
mod official_data;

use mage_testing::{data, run, tests};
use std::process::ExitCode;

fn main() -> ExitCode {
    run([
        (
            data("alfworld"),
            tests![
                official_data::textworld_recordings_are_replayed,
                official_data::generated_games_can_be_played_and_invalid_files_are_reported,
            ],
        ),
        (data("sokoban"), tests![official_data::boxoban_levels_are_solvable_within_their_maximum_turns]),
        (data("webshop"), tests![official_data::webshop_recordings_are_replayed]),
        (file_faults::requirement(), tests![file_faults::nothing_is_lost_by_faults_of_file_operations]),
    ])
}
