//! Golden prompts of ALFWorld, on a generated game. After an intended change: `UPDATE_EXPECT=1 cargo test -p mage-core
//! --test integration alfworld`, and review the diff.

use crate::common::{drive, transcript};
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, MetaEpisode, RequestKind, Trajectory,
    prompt::{PromptForm, PromptLibrary, vocabulary},
};
use mage_env::{EnvId, OptionMap, Registry, Seed, Task};
use std::sync::Arc;

/// Cycles through `completions`; if empty, through the legal commands.
fn play(config: EpisodeConfig, seed: u64, completions: &[&str]) -> Trajectory {
    let registry = Registry::builtin();
    let (env, options) = (EnvId::new("alfworld"), OptionMap::default().with("tasks", vec!["heat"]));
    let task = Task { env, options, opponent: None, seat: 0, seed: Seed::new(seed) };
    let env = registry.build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("alfworld").unwrap();
    let prompt_form = config.prompt_form;
    let none = completions.is_empty();
    let meta = MetaEpisode::new(task, env, prompts, Arc::new(config), Seed::new(5)).unwrap();
    let mut completions = completions.iter().cycle();
    drive(meta, |request| match (request.body.kind, prompt_form) {
        (RequestKind::Play, _) if none => {
            let allowed = request.body.allowed.as_ref().unwrap();
            allowed[(7 * request.turn as usize + 3) % allowed.len()].clone()
        }
        (RequestKind::Play, _) => (*completions.next().unwrap()).to_owned(),
        (_, PromptForm::Full) => format!("<remark>Note {}: look into the fridge first.</remark>", request.episode),
        (_, PromptForm::Compact) => "plate 3 fridge 1 END".to_owned(),
    })
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/alfworld/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

const COMPLETIONS: [&str; 4] = [
    "<think>Cold things are in the fridge.</think><action>go to fridge 1</action>",
    "<action>Open Fridge 1</action>",
    "I cannot say.",
    "<action>take the moon from fridge 1</action>",
];

#[test]
fn full_prompts_with_reflections_match_golden() {
    let config = EpisodeConfig { episodes: 2, max_turns: 4, ..EpisodeConfig::default() };
    golden("full_reflection_only").assert_eq(&transcript(&play(config, 2, &COMPLETIONS)));
}

#[test]
fn full_prompts_with_histories_and_reflections_match_golden() {
    let config = EpisodeConfig {
        episodes: 2,
        max_turns: 3,
        memory: MemoryMode::HistoryAndReflection,
        ..EpisodeConfig::default()
    };
    golden("full_history_and_reflection").assert_eq(&transcript(&play(config, 2, &COMPLETIONS)));
}

#[test]
fn compact_prompts_match_golden() {
    let env_info = Registry::builtin().get("alfworld").unwrap().info();
    let solution = [
        "go to fridge 1",
        "open fridge 1",
        "take plate 3 from fridge 1",
        "go to microwave 1",
        "heat plate 3 with microwave 1",
        "go to countertop 1",
        "move plate 3 to countertop 1",
    ];
    let config = EpisodeConfig { max_turns: 7, ..EpisodeConfig::compact(&env_info, 2) };
    golden("compact").assert_eq(&transcript(&play(config, 2, &solution)));
}

#[test]
fn compact_prompts_and_actions_use_the_vocabulary() {
    let env_info = Registry::builtin().get("alfworld").unwrap().info();
    let words = vocabulary(&env_info);
    let known = |text: &str| text.split(' ').all(|w| words.iter().any(|k| k == w));
    for seed in 0..20 {
        for request in play(EpisodeConfig::compact(&env_info, 3), seed, &[]).requests {
            assert!(known(&request.messages[0].content), "{}", request.messages[0].content);
            for action in request.allowed.iter().flatten() {
                assert!(known(action) && action.split(' ').count() <= env_info.max_compact_action_words, "{action}");
            }
        }
    }
}
