//! Golden prompts of Tic-Tac-Toe. After an intended change: `UPDATE_EXPECT=1 cargo test -p mage-core --test
//! prompts_tictactoe`, and review the diff.

use crate::common::{drive, transcript};
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, MetaEpisode, RequestKind, Trajectory,
    prompt::{PromptForm, PromptLibrary, vocabulary},
};
use mage_env::{EnvId, OpponentSpec, OptionMap, Registry, Seed, Task};
use std::sync::Arc;

/// Plays cells in a fixed order, empty or not; some completions cannot be parsed.
fn play(config: EpisodeConfig, opponent: &str, seat: u8) -> Trajectory {
    let task = Task {
        env: EnvId::new("tictactoe"),
        options: OptionMap::default(),
        opponent: Some(OpponentSpec::of_kind(opponent)),
        seat,
        seed: Seed::new(11),
    };
    let env = Registry::builtin().build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("tictactoe").unwrap();
    let prompt_form = config.prompt_form;
    let meta = MetaEpisode::new(task, env, prompts, Arc::new(config), Seed::new(5)).unwrap();
    let moves = ["(1, 3)", "(2,2)", "(2, 2)", "the corner", "(4, 1)", "(3,1)", "(2,1)", "(2,3)", "(3,2)"];
    let mut plays = 0;
    drive(meta, |request| match (request.body.kind, prompt_form) {
        (RequestKind::Play, PromptForm::Full) => {
            plays += 1;
            format!("<think>Hm.</think><action>{}</action>", moves[(plays - 1) % moves.len()])
        }
        (RequestKind::Play, PromptForm::Compact) => request.body.allowed.as_ref().unwrap().last().unwrap().clone(),
        (_, PromptForm::Full) => format!("<remark>Note {} on my opponent.</remark>", request.episode),
        (_, PromptForm::Compact) => {
            // All facts of the prompt except the first player.
            let facts = request.body.messages[0].content.trim_start_matches("BOS REFLECT ").trim_end_matches(" GO");
            format!("{} END", facts.split_once(' ').unwrap().1)
        }
    })
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/tictactoe/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

#[test]
fn full_prompts_with_reflections_match_golden() {
    golden("full_reflection_only").assert_eq(&transcript(&play(EpisodeConfig::default(), "preferred_1", 0)));
}

#[test]
fn full_prompts_without_memory_match_golden() {
    let config = EpisodeConfig { memory: MemoryMode::None, episodes: 2, ..EpisodeConfig::default() };
    golden("full_none").assert_eq(&transcript(&play(config, "preferred_4", 1)));
}

#[test]
fn full_prompts_with_histories_and_reflections_match_golden() {
    let config = EpisodeConfig { memory: MemoryMode::HistoryAndReflection, episodes: 2, ..EpisodeConfig::default() };
    golden("full_history_and_reflection").assert_eq(&transcript(&play(config, "preferred_3", 1)));
}

#[test]
fn compact_prompts_match_golden() {
    let env_info = Registry::builtin().get("tictactoe").unwrap().info();
    let trajectory = play(EpisodeConfig::compact(&env_info, 3), "preferred_1", 0);
    golden("compact").assert_eq(&transcript(&trajectory));
}

#[test]
fn compact_prompts_use_the_vocabulary_and_have_fixed_length() {
    let env_info = Registry::builtin().get("tictactoe").unwrap().info();
    let words = vocabulary(&env_info);
    for opponent in ["preferred_2", "perfect", "random"] {
        for seat in [0, 1] {
            let trajectory = play(EpisodeConfig::compact(&env_info, 3), opponent, seat);
            for request in &trajectory.requests {
                let prompt: Vec<&str> = request.messages[0].content.split(' ').collect();
                assert!(prompt.iter().all(|w| words.contains(&(*w).to_owned())), "{prompt:?}");
                let expected = if request.kind == RequestKind::Play { 1 + 2 * 10 + 9 + 1 } else { 2 + 11 + 1 };
                assert_eq!(prompt.len(), expected, "{prompt:?}");
                assert!(request.invalid.is_none(), "{:?}", request.invalid);
            }
        }
    }
}
