//! Golden prompts of Kuhn poker. After an intended change: `UPDATE_EXPECT=1 cargo test -p mage-core --test
//! prompts_kuhn`, and review the diff.

use crate::common::{drive, kuhn, kuhn_task, transcript};
use expect_test::{ExpectFile, expect_file};
use mage_core::{
    EpisodeConfig, MemoryMode, RequestKind, Trajectory,
    prompt::{PromptForm, vocabulary},
};
use mage_env::Registry;

/// The second completion cannot be parsed; later ones are valid.
fn play(config: EpisodeConfig, opponent: &str, seat: u8) -> Trajectory {
    let mut plays = 0;
    drive(kuhn(kuhn_task(opponent, seat), config.clone()), |request| match (request.body.kind, config.prompt_form) {
        (RequestKind::Play, PromptForm::Full) => {
            plays += 1;
            match plays {
                2 => "I would rather not say.".to_owned(),
                n if n % 2 == 0 => "<think>Hm.</think><action>PASS</action>".to_owned(),
                _ => "<action>BET</action>".to_owned(),
            }
        }
        (RequestKind::Play, PromptForm::Compact) => "BET".to_owned(),
        (_, PromptForm::Full) => format!("<remark>Note {} on my opponent.</remark>", request.episode),
        (_, PromptForm::Compact) => "K ? facing PASS END".to_owned(),
    })
}

fn golden(name: &str) -> ExpectFile {
    expect_file![format!("{}/tests/golden/kuhn/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
}

#[test]
fn full_prompts_with_reflections_match_golden() {
    golden("full_reflection_only").assert_eq(&transcript(&play(EpisodeConfig::default(), "aggressive", 0)));
}

#[test]
fn full_prompts_without_memory_match_golden() {
    let config = EpisodeConfig { memory: MemoryMode::None, ..EpisodeConfig::default() };
    golden("full_none").assert_eq(&transcript(&play(config, "conservative", 1)));
}

#[test]
fn full_prompts_with_histories_match_golden() {
    let config = EpisodeConfig { memory: MemoryMode::HistoryOnly, ..EpisodeConfig::default() };
    golden("full_history_only").assert_eq(&transcript(&play(config, "intermediate", 1)));
}

#[test]
fn full_prompts_with_histories_and_reflections_match_golden() {
    let config = EpisodeConfig { memory: MemoryMode::HistoryAndReflection, ..EpisodeConfig::default() };
    golden("full_history_and_reflection").assert_eq(&transcript(&play(config, "aggressive", 1)));
}

#[test]
fn compact_prompts_match_golden() {
    let env_info = Registry::builtin().get("kuhn").unwrap().info();
    let trajectory = play(EpisodeConfig::compact(&env_info, 3), "conservative", 0);
    golden("compact").assert_eq(&transcript(&trajectory));
}

#[test]
fn compact_prompts_use_the_vocabulary_and_have_fixed_length() {
    let env_info = Registry::builtin().get("kuhn").unwrap().info();
    let words = vocabulary(&env_info);
    for opponent in ["conservative", "aggressive", "intermediate", "uniform"] {
        for seat in [0, 1] {
            let trajectory = play(EpisodeConfig::compact(&env_info, 3), opponent, seat);
            for request in &trajectory.requests {
                let prompt: Vec<&str> = request.messages[0].content.split(' ').collect();
                assert!(prompt.iter().all(|w| words.contains(&(*w).to_owned())), "{prompt:?}");
                let expected = if request.kind == RequestKind::Play { 1 + 2 * 6 + 4 + 1 } else { 9 };
                assert_eq!(prompt.len(), expected, "{prompt:?}");
            }
        }
    }
}
