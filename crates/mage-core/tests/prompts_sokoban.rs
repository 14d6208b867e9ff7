//! Golden prompts of Sokoban. After a deliberate change: `UPDATE_EXPECT=1 cargo test -p mage-core --test prompts_sokoban`,
//! and read the difference.

mod common;

use common::drive;
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, MetaEpisode, RequestKind, Trajectory,
    prompt::{PromptForm, PromptLibrary, vocabulary},
};
use mage_env::{EnvId, OptionMap, Registry, Seed, Task};
use std::{fmt::Write, sync::Arc};

fn play(settings: EpisodeConfig, seed: u64, answers: &[&str]) -> Trajectory {
    let registry = Registry::builtin();
    let task = Task {
        env: EnvId::new("sokoban"),
        options: OptionMap::default(),
        opponent: None,
        seat: 0,
        seed: Seed::new(seed),
    };
    let env = registry.build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("sokoban").unwrap();
    let size = settings.prompt_form;
    let meta = MetaEpisode::new(task, env, prompts, Arc::new(settings), Seed::new(5)).unwrap();
    let mut answers = answers.iter().cycle();
    drive(meta, |call| match (call.body.kind, size) {
        (RequestKind::Play, _) => (*answers.next().unwrap()).to_owned(),
        (_, PromptForm::Full) => format!("<remark>Plan {}: push the other box first.</remark>", call.episode),
        (_, PromptForm::Compact) => "stuck 1 END".to_owned(),
    })
}

fn transcript(record: &Trajectory) -> String {
    let mut out = String::new();
    for call in &record.requests {
        let _ = writeln!(out, "======== {:?}, episode {}, turn {}", call.kind, call.episode, call.turn);
        let _ = writeln!(out, "{}", call.messages[0].content);
        let _ = writeln!(out, "-------- answer: {}", call.completion.text);
        if let Some(why) = &call.invalid {
            let _ = writeln!(out, "-------- invalid: {why}");
        }
    }
    out
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/sokoban/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

const TURNS: [&str; 4] = [
    "Up first. <action>up, left</action>",
    "I cannot say.",
    "<think>down?</think><action>Down, Right, Right, Up</action>",
    "<action>left,left,left</action>",
];

fn short(memory: MemoryMode) -> EpisodeConfig {
    EpisodeConfig { episodes: 2, max_turns: 4, memory, ..EpisodeConfig::default() }
}

#[test]
fn full_prompts_with_reflections() {
    golden("full_reflection_only").assert_eq(&transcript(&play(short(MemoryMode::ReflectionOnly), 11, &TURNS)));
}

#[test]
fn full_prompts_with_both() {
    golden("full_history_and_reflection").assert_eq(&transcript(&play(
        short(MemoryMode::HistoryAndReflection),
        12,
        &TURNS,
    )));
}

#[test]
fn compact_prompts() {
    let env_info = Registry::builtin().get("sokoban").unwrap().info();
    let settings = EpisodeConfig { max_turns: 3, ..EpisodeConfig::compact(&env_info, 2) };
    assert_eq!(settings.play_tokens, 4, "three moves and the end");
    let record = play(settings, 11, &["up left right", "down", "left up up"]);
    golden("compact").assert_eq(&transcript(&record));
}

#[test]
fn compact_prompts_use_the_vocabulary_and_keep_every_word_in_its_place() {
    let env_info = Registry::builtin().get("sokoban").unwrap().info();
    let words = vocabulary(&env_info);
    for seed in 0..20 {
        let record = play(EpisodeConfig::compact(&env_info, 3), seed, &["up left right", "down", "left up up"]);
        for call in &record.requests {
            let prompt: Vec<&str> = call.messages[0].content.split(' ').collect();
            assert!(prompt.iter().all(|w| words.contains(&(*w).to_owned())), "{prompt:?}");
            // Four rows of four, three row ends; before them two notes of two words, or none when looking back.
            let expected = if call.kind == RequestKind::Play { 1 + 2 * 2 + 19 + 1 } else { 2 + 19 + 1 };
            assert_eq!(prompt.len(), expected, "{prompt:?}");
        }
    }
}
