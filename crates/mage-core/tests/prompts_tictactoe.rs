//! Golden prompts of Tic-Tac-Toe. After a deliberate change: `UPDATE_EXPECT=1 cargo test -p mage-core --test
//! prompts_tictactoe`, and read the difference.

mod common;

use common::{drive, transcript};
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, MetaEpisode, RequestKind, Trajectory,
    prompt::{PromptForm, PromptLibrary, vocabulary},
};
use mage_env::{EnvId, OpponentSpec, OptionMap, Registry, Seed, Task};
use std::sync::Arc;

/// Plays the cells in an order of its own, whether they are empty or not, and is not always readable.
fn play(settings: EpisodeConfig, opponent: &str, seat: u8) -> Trajectory {
    let task = Task {
        env: EnvId::new("tictactoe"),
        options: OptionMap::default(),
        opponent: Some(OpponentSpec::of_kind(opponent)),
        seat,
        seed: Seed::new(11),
    };
    let env = Registry::builtin().build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("tictactoe").unwrap();
    let size = settings.prompt_form;
    let meta = MetaEpisode::new(task, env, prompts, Arc::new(settings), Seed::new(5)).unwrap();
    let wishes = ["(1, 3)", "(2,2)", "(2, 2)", "the corner", "(4, 1)", "(3,1)", "(2,1)", "(2,3)", "(3,2)"];
    let mut plays = 0;
    drive(meta, |call| match (call.body.kind, size) {
        (RequestKind::Play, PromptForm::Full) => {
            plays += 1;
            format!("<think>Hm.</think><action>{}</action>", wishes[(plays - 1) % wishes.len()])
        }
        (RequestKind::Play, PromptForm::Compact) => call.body.allowed.as_ref().unwrap().last().unwrap().clone(),
        (_, PromptForm::Full) => format!("<remark>Note {} on my opponent.</remark>", call.episode),
        (_, PromptForm::Compact) => {
            // The facts: all of what is shown but who began.
            let shown = call.body.messages[0].content.trim_start_matches("BOS BACK ").trim_end_matches(" GO");
            format!("{} END", shown.split_once(' ').unwrap().1)
        }
    })
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/tictactoe/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

#[test]
fn full_prompts_with_reflections() {
    golden("full_reflection_only").assert_eq(&transcript(&play(EpisodeConfig::default(), "preferred_1", 0)));
}

#[test]
fn full_prompts_without_memory() {
    let settings = EpisodeConfig { memory: MemoryMode::None, episodes: 2, ..EpisodeConfig::default() };
    golden("full_none").assert_eq(&transcript(&play(settings, "preferred_4", 1)));
}

#[test]
fn full_prompts_with_both() {
    let settings = EpisodeConfig { memory: MemoryMode::HistoryAndReflection, episodes: 2, ..EpisodeConfig::default() };
    golden("full_history_and_reflection").assert_eq(&transcript(&play(settings, "preferred_3", 1)));
}

#[test]
fn compact_prompts() {
    let env_info = Registry::builtin().get("tictactoe").unwrap().info();
    let record = play(EpisodeConfig::compact(&env_info, 3), "preferred_1", 0);
    golden("compact").assert_eq(&transcript(&record));
}

#[test]
fn compact_prompts_use_the_vocabulary_and_keep_every_word_in_its_place() {
    let env_info = Registry::builtin().get("tictactoe").unwrap().info();
    let words = vocabulary(&env_info);
    for opponent in ["preferred_2", "perfect", "random"] {
        for seat in [0, 1] {
            let record = play(EpisodeConfig::compact(&env_info, 3), opponent, seat);
            for call in &record.requests {
                let prompt: Vec<&str> = call.messages[0].content.split(' ').collect();
                assert!(prompt.iter().all(|w| words.contains(&(*w).to_owned())), "{prompt:?}");
                let expected = if call.kind == RequestKind::Play { 1 + 2 * 10 + 9 + 1 } else { 2 + 11 + 1 };
                assert_eq!(prompt.len(), expected, "{prompt:?}");
                assert!(call.invalid.is_none(), "{:?}", call.invalid);
            }
        }
    }
}
