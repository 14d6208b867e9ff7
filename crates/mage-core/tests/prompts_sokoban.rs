//! Golden prompts of Sokoban. After an intended change: `UPDATE_EXPECT=1 cargo test -p mage-core --test integration
//! sokoban`, and review the diff.

use crate::common::{drive, transcript};
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, MetaEpisode, RequestKind, Trajectory,
    prompt::{PromptForm, PromptLibrary, vocabulary},
};
use mage_env::{EnvId, OptionMap, Registry, Seed, Task};
use std::sync::Arc;

fn play(config: EpisodeConfig, seed: u64, completions: &[&str]) -> Trajectory {
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
    let prompt_form = config.prompt_form;
    let meta = MetaEpisode::new(task, env, prompts, Arc::new(config), Seed::new(5)).unwrap();
    let mut completions = completions.iter().cycle();
    drive(meta, |request| match (request.body.kind, prompt_form) {
        (RequestKind::Play, _) => (*completions.next().unwrap()).to_owned(),
        (_, PromptForm::Full) => format!("<remark>Plan {}: push the other box first.</remark>", request.episode),
        (_, PromptForm::Compact) => "stuck 1 END".to_owned(),
    })
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/sokoban/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

const COMPLETIONS: [&str; 4] = [
    "Up first. <action>up, left</action>",
    "I cannot say.",
    "<think>down?</think><action>Down, Right, Right, Up</action>",
    "<action>left,left,left</action>",
];

fn short(memory: MemoryMode) -> EpisodeConfig {
    EpisodeConfig { episodes: 2, max_turns: 4, memory, ..EpisodeConfig::default() }
}

#[test]
fn full_prompts_with_reflections_match_golden() {
    golden("full_reflection_only").assert_eq(&transcript(&play(short(MemoryMode::ReflectionOnly), 11, &COMPLETIONS)));
}

#[test]
fn full_prompts_with_histories_and_reflections_match_golden() {
    golden("full_history_and_reflection").assert_eq(&transcript(&play(
        short(MemoryMode::HistoryAndReflection),
        12,
        &COMPLETIONS,
    )));
}

#[test]
fn compact_prompts_match_golden() {
    let env_info = Registry::builtin().get("sokoban").unwrap().info();
    let config = EpisodeConfig { max_turns: 3, ..EpisodeConfig::compact(&env_info, 2) };
    assert_eq!(config.play_tokens, 4, "three moves and the end word");
    let trajectory = play(config, 11, &["up left right", "down", "left up up"]);
    golden("compact").assert_eq(&transcript(&trajectory));
}

#[test]
fn compact_prompts_use_the_vocabulary_and_have_fixed_length() {
    let env_info = Registry::builtin().get("sokoban").unwrap().info();
    let words = vocabulary(&env_info);
    for seed in 0..20 {
        let trajectory = play(EpisodeConfig::compact(&env_info, 3), seed, &["up left right", "down", "left up up"]);
        for request in &trajectory.requests {
            let prompt: Vec<&str> = request.messages[0].content.split(' ').collect();
            assert!(prompt.iter().all(|w| words.contains(&(*w).to_owned())), "{prompt:?}");
            // Four rows of four cells and three row ends; before them two reflections of two words, none in reflection
            // prompts.
            let expected = if request.kind == RequestKind::Play { 1 + 2 * 2 + 19 + 1 } else { 2 + 19 + 1 };
            assert_eq!(prompt.len(), expected, "{prompt:?}");
        }
    }
}
