//! Tests against recordings of the original engines and official data.

mod alfworld_official;
mod kuhn_openspiel;
mod sokoban_levels;
mod sokoban_reference;
mod webshop_original;

use mage_testing::{data, run, slow, tests};
use std::process::ExitCode;

fn main() -> ExitCode {
    run([
        (
            data("games/kuhn_openspiel.json"),
            tests![kuhn_openspiel::all_58_histories_match_openspiel, kuhn_openspiel::cfr_matches_openspiel],
        ),
        (data("sokoban/reference_rooms.jsonl.gz"), tests![sokoban_reference::recorded_rooms_and_steps_are_equal]),
        (
            data("sokoban/boxoban"),
            tests![
                sokoban_levels::all_levels_load,
                sokoban_levels::five_hundred_levels_are_solved,
                sokoban_levels::solver_and_table_agree_along_random_walks,
            ],
        ),
        (
            data("sokoban/boxoban").and(slow(cfg!(feature = "long"), "five thousand levels")),
            tests![sokoban_levels::all_levels_are_solved],
        ),
        (
            data("webshop"),
            tests![
                webshop_original::every_search_returns_the_recorded_fifty_hits_in_order,
                webshop_original::every_page_clickable_and_partial_score_equals_the_recording,
                webshop_original::the_index_has_the_terms_of_the_original,
                webshop_original::goals_and_prices_equal_those_of_the_original_seed,
                webshop_original::official_instructions_are_in_one_split_only,
                webshop_original::thirteen_human_instructions_exist_for_these_products,
            ],
        ),
        (
            data("alfworld"),
            tests![
                alfworld_official::every_recorded_step_is_equal,
                alfworld_official::every_walkthrough_wins_and_the_expert_is_as_short,
                alfworld_official::splits_are_sorted_shared_and_sampled_without_replacement,
                alfworld_official::invalid_files_are_named_errors_and_skipped_only_on_request,
                alfworld_official::archives_contain_the_same_games_as_directories,
            ],
        ),
    ])
}
