//! The meta-episode's behaviour, driven by hand.

mod common;

use common::{drive, kuhn, kuhn_task};
use mage_core::{
    Completion, EpisodeConfig, Error, FinishedEpisode, Memory, MemoryMode, MemoryStep, Message, MetaEpisode, Next,
    RecallOrder, RecallQuery, RequestBody, RequestKind, Result,
    prompt::{MemoryBlock, PromptLibrary},
};
use mage_env::{End, Outcome, Registry, Seed};
use proptest::prelude::*;
use std::sync::Arc;

const BET: &str = "<action>BET</action>";
const NOTE: &str = "<remark>noted</remark>";

fn model(call: &mage_core::Request) -> String {
    if call.body.kind == RequestKind::Play { BET } else { NOTE }.to_owned()
}

#[test]
fn phases_follow_the_paper() {
    let record = drive(kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default()), model);
    let phases: Vec<_> = record.requests.iter().map(|c| (c.kind, c.episode)).collect();
    // Always betting first ends each hand at the first decision; no reflection follows the last episode.
    let (play, reflect) = (RequestKind::Play, RequestKind::Reflect);
    assert_eq!(phases, [(play, 0), (reflect, 1), (play, 1), (reflect, 2), (play, 2)]);
    assert!(!record.stopped_early);
}

#[test]
fn without_memory_every_episode_is_a_clean_slate() {
    let settings = EpisodeConfig { memory: MemoryMode::None, episodes: 5, ..EpisodeConfig::default() };
    let record = drive(kuhn(kuhn_task("conservative", 1), settings), model);
    assert!(record.requests.iter().all(|c| c.kind == RequestKind::Play));
    assert!(record.requests.iter().all(|c| !c.messages[0].content.contains("Episode")));
    // The first prompt of a later episode is what it would be in a first episode with the same cards.
    let same_start = |i: usize| record.requests.iter().find(|c| c.episode == i as u32).unwrap();
    for (i, episode) in record.episodes.iter().enumerate() {
        for (j, other) in record.episodes.iter().enumerate() {
            if episode.start == other.start {
                assert_eq!(same_start(i).messages, same_start(j).messages);
            }
        }
    }
}

#[test]
fn early_stop_ends_at_the_first_win() {
    let settings = |early_stop| EpisodeConfig { early_stop, episodes: 10, ..EpisodeConfig::default() };
    let stopped = drive(kuhn(kuhn_task("conservative", 0), settings(true)), model);
    let full = drive(kuhn(kuhn_task("conservative", 0), settings(false)), model);
    let first_win = full.episodes.iter().position(mage_core::episode::Episode::won).unwrap();
    assert!(first_win < 9, "the seed must show the difference");
    assert_eq!(stopped.episodes.len(), first_win + 1);
    assert_eq!(stopped.episodes[..], full.episodes[..=first_win]);
    assert!(stopped.stopped_early && !full.stopped_early);
}

#[test]
fn running_out_of_turns_truncates() {
    let settings = EpisodeConfig { max_turns: 2, ..EpisodeConfig::default() };
    let record = drive(kuhn(kuhn_task("aggressive", 0), settings), |call| {
        if call.body.kind == RequestKind::Play { "no tags".to_owned() } else { NOTE.to_owned() }
    });
    assert!(record.episodes.iter().all(|e| e.end == Some(End::Truncated) && e.turns.len() == 2 && e.score() == 0.0));
    assert_eq!(record.invalid_actions(), (6, 6));
    assert!(record.requests[0].invalid.as_deref().unwrap().contains("no <action>"));
}

#[test]
fn fresh_deals_differ_and_fixed_deals_do_not() {
    let starts = |deal: &str| {
        let mut task = kuhn_task("conservative", 0);
        task.options = task.options.with("deal", deal);
        let settings = EpisodeConfig { episodes: 10, ..EpisodeConfig::default() };
        let record = drive(kuhn(task, settings), model);
        record.episodes.into_iter().map(|e| e.start.text).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(starts("fixed"), 1);
    assert!(starts("fresh") > 1);
}

#[test]
fn reflections_reach_later_prompts_and_only_what_was_seen_does() {
    let settings = EpisodeConfig { episodes: 4, ..EpisodeConfig::default() };
    let record = drive(kuhn(kuhn_task("aggressive", 1), settings), |call| {
        if call.body.kind == RequestKind::Play {
            "<action>PASS</action>".to_owned()
        } else {
            format!("<think><remark>wrong</remark></think><remark>lesson-{}</remark>", call.episode)
        }
    });
    for call in &record.requests {
        let text = &call.messages[0].content;
        assert!(!text.contains("aggressive"), "the opponent's name is hidden");
        assert!(!text.contains("wrong"));
        for n in 1..4 {
            let expected = call.kind == RequestKind::Play && call.episode >= n;
            assert_eq!(text.contains(&format!("lesson-{n}")), expected);
        }
    }
    // Passing against a bet folds, so no card of the opponent is ever shown to the reflection.
    let folded = record.requests.iter().filter(|c| c.kind == RequestKind::Reflect);
    for call in folded {
        assert!(call.messages[0].content.contains("stays hidden"));
        assert!(!call.messages[0].content.contains("the opponent holds"));
    }
}

#[test]
fn best_first_recall_orders_by_score_and_limits() {
    let settings = EpisodeConfig {
        episodes: 6,
        recall: RecallOrder::BestFirst,
        recall_limit: Some(2),
        ..EpisodeConfig::default()
    };
    let record = drive(kuhn(kuhn_task("intermediate", 0), settings), |call| {
        if call.body.kind == RequestKind::Play {
            BET.to_owned()
        } else {
            format!("<remark>lesson-{}</remark>", call.episode)
        }
    });
    let scores: Vec<f32> = record.episodes.iter().map(mage_core::episode::Episode::score).collect();
    let mut order: Vec<usize> = (0..5).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    assert_ne!(order[..2], [0, 1], "the seed must show the difference");
    let last = &record.requests.last().unwrap().messages[0].content;
    let first_shown = last.find(&format!("lesson-{}", order[0] + 1)).unwrap();
    let second_shown = last.find(&format!("lesson-{}", order[1] + 1)).unwrap();
    assert!(first_shown < second_shown);
    assert_eq!(last.matches("lesson-").count(), 2);
}

#[test]
fn long_reflections_are_cut_on_a_character_boundary() {
    let settings = EpisodeConfig { reflection_chars: 7, ..EpisodeConfig::default() };
    let record = drive(kuhn(kuhn_task("aggressive", 0), settings), |call| {
        if call.body.kind == RequestKind::Play {
            BET.to_owned()
        } else {
            "<remark>äöüäöüäöü</remark>".to_owned()
        }
    });
    let play = record.requests.iter().find(|c| c.kind == RequestKind::Play && c.episode == 1).unwrap();
    assert!(play.messages[0].content.contains("Your note: äöüäöüä\n"));
}

/// Asks for a plan before each episode, and for two notes after it.
struct Planner;

impl Memory for Planner {
    fn recall(&mut self, query: &RecallQuery<'_>, answers: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        if query.turn > 0 {
            return Ok(MemoryStep::done(MemoryBlock::default()));
        }
        Ok(match answers {
            [] => MemoryStep::Request(request(RequestKind::Plan)),
            [plan, ..] => MemoryStep::done(MemoryBlock { entries: vec![], notes: format!("Plan: {}", plan.text) }),
        })
    }

    fn record(&mut self, _finished: &FinishedEpisode<'_>, answers: &[Completion]) -> Result<MemoryStep<()>> {
        Ok(match answers.len() {
            0 => MemoryStep::Request(request(RequestKind::Note)),
            1 => MemoryStep::Request(request(RequestKind::Evolve)),
            _ => MemoryStep::done(()),
        })
    }
}

fn request(kind: RequestKind) -> RequestBody {
    RequestBody {
        kind,
        messages: vec![Message::user(format!("{kind:?}"))],
        allowed: None,
        max_tokens: 9,
        trainable: false,
    }
}

#[test]
fn memories_may_ask_for_calls_of_their_own() {
    let task = kuhn_task("aggressive", 0);
    let env = Registry::builtin().build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let settings = Arc::new(EpisodeConfig { episodes: 2, ..EpisodeConfig::default() });
    let meta = MetaEpisode::with_memory(task, env, prompts, settings, Box::new(Planner), Seed::new(1)).unwrap();
    let record = drive(meta, |call| match call.body.kind {
        Play => {
            assert!(call.body.messages[0].content.contains("Plan: be brave"));
            BET.to_owned()
        }
        _ => "be brave".to_owned(),
    });
    let kinds: Vec<_> = record.requests.iter().map(|c| c.kind).collect();
    use RequestKind::{Evolve, Note, Plan, Play};
    assert_eq!(kinds, [Plan, Play, Note, Evolve, Plan, Play]);
}

#[test]
fn answers_to_the_wrong_call_are_refused_and_change_nothing() {
    let mut meta = kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default());
    let Next::Request(call) = meta.advance().unwrap() else { panic!("a call is due") };
    let wrong = mage_core::RequestId(99);
    assert!(matches!(meta.submit(wrong, Ok(Completion::from_text(BET))), Err(Error::NotPending { .. })));
    assert_eq!(meta.advance().unwrap(), Next::Request(call.clone()));
    meta.submit(call.id, Ok(Completion::from_text(BET))).unwrap();
    assert!(meta.submit(call.id, Ok(Completion::from_text(BET))).is_err(), "a call is answered once");
}

#[test]
fn a_failed_call_ends_the_meta_episode_with_its_error() {
    let mut meta = kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default());
    let Next::Request(call) = meta.advance().unwrap() else { panic!("a call is due") };
    meta.submit(call.id, Err("connection refused".to_owned())).unwrap();
    let Next::Done(record) = meta.advance().unwrap() else { panic!("nothing can follow") };
    assert_eq!(record.error.as_deref(), Some("connection refused"));
    assert!(!record.stopped_early);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let env_info = Registry::builtin().get("kuhn").unwrap().info();
    let bad = [
        EpisodeConfig { episodes: 0, ..EpisodeConfig::default() },
        EpisodeConfig { max_turns: 0, ..EpisodeConfig::default() },
        EpisodeConfig { memory: MemoryMode::HistoryOnly, ..EpisodeConfig::compact(&env_info, 3) },
    ];
    for settings in bad {
        assert!(settings.validate().is_err(), "{settings:?}");
    }
}

#[test]
fn records_round_trip_through_a_line() {
    let record = drive(kuhn(kuhn_task("uniform", 1), EpisodeConfig::default()), model);
    let line = record.to_json_line();
    assert!(!line.contains('\n'));
    assert_eq!(mage_core::Trajectory::from_json_line(&line).unwrap(), record);
    assert!(mage_core::Trajectory::from_json_line(&line[..line.len() / 2]).is_err());
    let outcomes: Vec<_> = record.episodes.iter().map(mage_core::episode::Episode::outcome).collect();
    assert!(outcomes.iter().all(|o| matches!(o, Some(Outcome::Won | Outcome::Lost))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_the_model_says_the_meta_episode_ends(answers in prop::collection::vec(any::<String>(), 1..8), seat in 0_u8..2, seed in any::<u64>()) {
        let mut task = kuhn_task("uniform", seat);
        task.seed = Seed::new(seed);
        let mut i = 0;
        let record = drive(kuhn(task, EpisodeConfig::default()), |_| {
            i += 1;
            answers[i % answers.len()].clone()
        });
        prop_assert_eq!(record.episodes.len(), 3);
        prop_assert!(record.episodes.iter().all(|e| e.end.is_some()));
    }
}

#[test]
fn the_seed_is_never_shown() {
    let mut task = kuhn_task("uniform", 0);
    task.seed = Seed::new(918_273_645);
    for settings in [
        EpisodeConfig::default(),
        EpisodeConfig { memory: MemoryMode::HistoryAndReflection, ..EpisodeConfig::default() },
        EpisodeConfig::compact(&Registry::builtin().get("kuhn").unwrap().info(), 3),
    ] {
        let record = drive(kuhn(task.clone(), settings), model);
        for call in &record.requests {
            assert!(!call.messages[0].content.contains("918273645"));
            assert!(!call.messages[0].content.contains("uniform"));
        }
    }
}

#[test]
fn after_an_error_there_is_no_clean_record() {
    struct Broken;
    impl Memory for Broken {
        fn recall(&mut self, _: &RecallQuery<'_>, _: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
            Err(Error::Config { field: "memory", problem: "lost".to_owned() })
        }
        fn record(&mut self, _: &FinishedEpisode<'_>, _: &[Completion]) -> Result<MemoryStep<()>> {
            Ok(MemoryStep::done(()))
        }
    }
    let task = kuhn_task("aggressive", 0);
    let env = Registry::builtin().build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let settings = Arc::new(EpisodeConfig::default());
    let mut meta = MetaEpisode::with_memory(task, env, prompts, settings, Box::new(Broken), Seed::new(1)).unwrap();
    assert!(meta.advance().is_err());
    let Next::Done(record) = meta.advance().unwrap() else { panic!("it is over") };
    assert_eq!(record.error.as_deref(), Some("memory: lost"));
    assert!(record.result().is_none());
}

#[test]
fn a_limit_keeps_the_latest_notes() {
    let settings = EpisodeConfig { episodes: 5, recall_limit: Some(2), ..EpisodeConfig::default() };
    let record = drive(kuhn(kuhn_task("intermediate", 0), settings), |call| {
        if call.body.kind == RequestKind::Play {
            BET.to_owned()
        } else {
            format!("<remark>lesson-{}</remark>", call.episode)
        }
    });
    let last = &record.requests.last().unwrap().messages[0].content;
    let shown: Vec<bool> = (1..5).map(|n| last.contains(&format!("lesson-{n}"))).collect();
    assert_eq!(shown, [false, false, true, true]);
}
