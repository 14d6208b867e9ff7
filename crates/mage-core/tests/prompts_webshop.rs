//! Golden prompts of WebShop, in the generated shop. After an intended change:
//! `UPDATE_EXPECT=1 cargo test -p mage-core --test integration webshop`, and review the diff.

use crate::common::{drive, transcript};
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, MetaEpisode, RequestKind, Trajectory,
    prompt::{PromptForm, PromptLibrary, vocabulary},
};
use mage_env::{EnvId, OptionMap, Registry, Seed, Task};
use std::sync::Arc;

fn task() -> Task {
    Task { env: EnvId::new("webshop"), options: OptionMap::default(), opponent: None, seat: 0, seed: Seed::new(11) }
}

/// Buys the third result, which fails, with an invalid action on the way; then the first.
fn play(config: EpisodeConfig, actions: &[&str]) -> Trajectory {
    let env = Registry::builtin().build(&task()).unwrap();
    let prompts = PromptLibrary::builtin().get("webshop").unwrap();
    let prompt_form = config.prompt_form;
    let mut actions = actions.iter().cycle();
    let meta = MetaEpisode::new(task(), env, prompts, Arc::new(config), Seed::new(5)).unwrap();
    drive(meta, |request| match (request.body.kind, prompt_form) {
        (RequestKind::Play, PromptForm::Full) => format!("<action>{}</action>", actions.next().unwrap()),
        (RequestKind::Play, PromptForm::Compact) => (*actions.next().unwrap()).to_owned(),
        (_, PromptForm::Full) => format!("<remark>Note {}: not that one.</remark>", request.episode),
        (_, PromptForm::Compact) => "s5 P1 I3 END".to_owned(),
    })
}

const FAILED_PURCHASE: [&str; 8] =
    ["SEARCH", "NEXT", "I3", "click[features]", "click[no such thing]", "click[< prev]", "search[wool socks]", "I1"];

fn config(memory: MemoryMode) -> EpisodeConfig {
    EpisodeConfig { episodes: 2, max_turns: 8, memory, ..EpisodeConfig::default() }
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/webshop/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

#[test]
fn full_prompts_with_reflections_match_golden() {
    golden("full_reflection_only").assert_eq(&transcript(&play(config(MemoryMode::ReflectionOnly), &FAILED_PURCHASE)));
}

#[test]
fn full_prompts_with_histories_and_reflections_match_golden() {
    golden("full_history_and_reflection")
        .assert_eq(&transcript(&play(config(MemoryMode::HistoryAndReflection), &FAILED_PURCHASE)));
}

#[test]
fn compact_prompts_use_the_vocabulary_and_have_fixed_length() {
    let env_info = Registry::builtin().get("webshop").unwrap().info();
    let words = vocabulary(&env_info);
    let trajectory =
        play(EpisodeConfig { episodes: 2, ..EpisodeConfig::compact(&env_info, 2) }, &["SEARCH", "I3", "V1", "BUY"]);
    golden("compact").assert_eq(&transcript(&trajectory));
    let lengths: Vec<usize> = trajectory
        .requests
        .iter()
        .filter(|c| c.kind == RequestKind::Play)
        .map(|c| {
            let prompt: Vec<&str> = c.messages[0].content.split(' ').collect();
            assert!(prompt.iter().all(|w| words.contains(&(*w).to_owned())), "{prompt:?}");
            assert!(c.allowed.as_ref().unwrap().contains(&c.completion.text), "{:?}", c.allowed);
            prompt.len()
        })
        .collect();
    assert!(lengths.iter().all(|n| *n == lengths[0]), "{lengths:?}");
}

#[test]
fn older_pages_are_truncated_and_the_newest_is_complete() {
    let trajectory = play(config(MemoryMode::ReflectionOnly), &FAILED_PURCHASE);
    let third = &trajectory.requests[2].messages[0].content;
    let shown: Vec<&str> = third.lines().filter(|l| l.starts_with("Turn ")).collect();
    assert!(shown[0].contains(" … (") && shown[0].matches("[SEP]").count() == 14, "{}", shown[0]);
    assert!(!shown[1].contains(" … (") && shown[1].matches("[SEP]").count() > 20, "{}", shown[1]);
}

#[test]
fn prompts_above_the_limit_keep_the_last_turn_and_reflections() {
    // Unparsable completions do not lengthen a prompt; long searches do.
    let long = format!("search[{}]", "warm socks ".repeat(800));
    let trajectory = play(EpisodeConfig { max_turns: 4, ..config(MemoryMode::HistoryAndReflection) }, &[&long]);
    let prompts: Vec<&str> = trajectory.requests.iter().map(|c| c.messages[0].content.as_str()).collect();
    assert!(prompts[1].len() > 8_000 && prompts[1].contains("Turn 1:"));
    assert!(prompts[3].contains("(2 earlier turns are not shown.)") && !prompts[3].contains("Turn 2:"));
    let next_episode = prompts[5];
    assert!(
        next_episode.contains("Your note: Note 1") && !next_episode.contains("It began so:"),
        "memory contains reflections only"
    );
}
