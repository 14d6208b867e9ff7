//! Golden prompts of Kuhn poker. After a deliberate change: `UPDATE_EXPECT=1 cargo test -p mage-core --test prompts_kuhn`,
//! and read the difference.

mod common;

use common::{drive, kuhn, kuhn_task, transcript};
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, RequestKind, Trajectory,
    prompt::{PromptForm, vocabulary},
};
use mage_env::Registry;

/// Plays a little badly: the second answer is unreadable, later ones are fine.
fn play(settings: EpisodeConfig, opponent: &str, seat: u8) -> Trajectory {
    let mut plays = 0;
    drive(kuhn(kuhn_task(opponent, seat), settings.clone()), |call| match (call.body.kind, settings.prompt_form) {
        (RequestKind::Play, PromptForm::Full) => {
            plays += 1;
            match plays {
                2 => "I would rather not say.".to_owned(),
                n if n % 2 == 0 => "<think>Hm.</think><action>PASS</action>".to_owned(),
                _ => "<action>BET</action>".to_owned(),
            }
        }
        (RequestKind::Play, PromptForm::Compact) => "BET".to_owned(),
        (_, PromptForm::Full) => format!("<remark>Note {} on my opponent.</remark>", call.episode),
        (_, PromptForm::Compact) => "K ? facing PASS END".to_owned(),
    })
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/kuhn/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

#[test]
fn full_prompts_with_reflections() {
    golden("full_reflection_only").assert_eq(&transcript(&play(EpisodeConfig::default(), "aggressive", 0)));
}

#[test]
fn full_prompts_without_memory() {
    let settings = EpisodeConfig { memory: MemoryMode::None, ..EpisodeConfig::default() };
    golden("full_none").assert_eq(&transcript(&play(settings, "conservative", 1)));
}

#[test]
fn full_prompts_with_histories() {
    let settings = EpisodeConfig { memory: MemoryMode::HistoryOnly, ..EpisodeConfig::default() };
    golden("full_history_only").assert_eq(&transcript(&play(settings, "intermediate", 1)));
}

#[test]
fn full_prompts_with_both() {
    let settings = EpisodeConfig { memory: MemoryMode::HistoryAndReflection, ..EpisodeConfig::default() };
    golden("full_history_and_reflection").assert_eq(&transcript(&play(settings, "aggressive", 1)));
}

#[test]
fn compact_prompts() {
    let env_info = Registry::builtin().get("kuhn").unwrap().info();
    let record = play(EpisodeConfig::compact(&env_info, 3), "conservative", 0);
    golden("compact").assert_eq(&transcript(&record));
}

#[test]
fn compact_prompts_use_the_vocabulary_and_keep_every_word_in_its_place() {
    let env_info = Registry::builtin().get("kuhn").unwrap().info();
    let words = vocabulary(&env_info);
    for opponent in ["conservative", "aggressive", "intermediate", "uniform"] {
        for seat in [0, 1] {
            let record = play(EpisodeConfig::compact(&env_info, 3), opponent, seat);
            for call in &record.requests {
                let prompt: Vec<&str> = call.messages[0].content.split(' ').collect();
                assert!(prompt.iter().all(|w| words.contains(&(*w).to_owned())), "{prompt:?}");
                let expected = if call.kind == RequestKind::Play { 1 + 2 * 6 + 4 + 1 } else { 9 };
                assert_eq!(prompt.len(), expected, "{prompt:?}");
            }
        }
    }
}
