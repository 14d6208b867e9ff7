//! The meta-episode state machine.

use crate::common::{drive, kuhn, kuhn_task};
use mage_core::{
    Completion, EpisodeConfig, Error, FinishedEpisode, Memory, MemoryMode, MemoryStep, Message, MetaEpisode, Next,
    RecallOrder, RecallQuery, RequestBody, RequestKind, Result,
    prompt::{MemoryBlock, PromptLibrary},
};
use mage_env::{End, Outcome, Registry, Seed};
use proptest::prelude::*;
use std::sync::Arc;

const BET: &str = "<action>BET</action>";
const REFLECTION: &str = "<remark>noted</remark>";

fn model(request: &mage_core::Request) -> String {
    if request.body.kind == RequestKind::Play { BET } else { REFLECTION }.to_owned()
}

#[test]
fn requests_alternate_play_and_reflection_as_in_the_paper() {
    let trajectory = drive(kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default()), model);
    let requests: Vec<_> = trajectory.requests.iter().map(|c| (c.kind, c.episode)).collect();
    // Always betting first ends each hand at the first decision; no reflection follows the last episode.
    let (play, reflect) = (RequestKind::Play, RequestKind::Reflect);
    assert_eq!(requests, [(play, 0), (reflect, 1), (play, 1), (reflect, 2), (play, 2)]);
    assert!(!trajectory.stopped_early);
}

#[test]
fn episodes_without_memory_are_independent() {
    let config = EpisodeConfig { memory: MemoryMode::None, episodes: 5, ..EpisodeConfig::default() };
    let trajectory = drive(kuhn(kuhn_task("conservative", 1), config), model);
    assert!(trajectory.requests.iter().all(|c| c.kind == RequestKind::Play));
    assert!(trajectory.requests.iter().all(|c| !c.messages[0].content.contains("Episode")));
    // The first prompt of a later episode equals that of a first episode with the same cards.
    let same_start = |i: usize| trajectory.requests.iter().find(|c| c.episode == i as u32).unwrap();
    for (i, episode) in trajectory.episodes.iter().enumerate() {
        for (j, other) in trajectory.episodes.iter().enumerate() {
            if episode.start == other.start {
                assert_eq!(same_start(i).messages, same_start(j).messages);
            }
        }
    }
}

#[test]
fn early_stop_ends_at_the_first_win() {
    let config = |early_stop| EpisodeConfig { early_stop, episodes: 10, ..EpisodeConfig::default() };
    let stopped = drive(kuhn(kuhn_task("conservative", 0), config(true)), model);
    let full = drive(kuhn(kuhn_task("conservative", 0), config(false)), model);
    let first_win = full.episodes.iter().position(mage_core::episode::Episode::won).unwrap();
    assert!(first_win < 9, "the seed must distinguish the cases");
    assert_eq!(stopped.episodes.len(), first_win + 1);
    assert_eq!(stopped.episodes[..], full.episodes[..=first_win]);
    assert!(stopped.stopped_early && !full.stopped_early);
}

#[test]
fn turn_limit_truncates_the_episode() {
    let config = EpisodeConfig { max_turns: 2, ..EpisodeConfig::default() };
    let trajectory = drive(kuhn(kuhn_task("aggressive", 0), config), |request| {
        if request.body.kind == RequestKind::Play { "no tags".to_owned() } else { REFLECTION.to_owned() }
    });
    assert!(
        trajectory.episodes.iter().all(|e| e.end == Some(End::Truncated) && e.turns.len() == 2 && e.score() == 0.0)
    );
    assert_eq!(trajectory.invalid_actions(), (6, 6));
    assert!(trajectory.requests[0].invalid.as_deref().unwrap().contains("no <action>"));
}

#[test]
fn fresh_deals_differ_and_fixed_deals_repeat() {
    let starts = |deal: &str| {
        let mut task = kuhn_task("conservative", 0);
        task.options = task.options.with("deal", deal);
        let config = EpisodeConfig { episodes: 10, ..EpisodeConfig::default() };
        let trajectory = drive(kuhn(task, config), model);
        trajectory.episodes.into_iter().map(|e| e.start.text).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(starts("fixed"), 1);
    assert!(starts("fresh") > 1);
}

#[test]
fn later_prompts_contain_reflections_and_no_hidden_information() {
    let config = EpisodeConfig { episodes: 4, ..EpisodeConfig::default() };
    let trajectory = drive(kuhn(kuhn_task("aggressive", 1), config), |request| {
        if request.body.kind == RequestKind::Play {
            "<action>PASS</action>".to_owned()
        } else {
            format!("<think><remark>wrong</remark></think><remark>reflection-{}</remark>", request.episode)
        }
    });
    for request in &trajectory.requests {
        let text = &request.messages[0].content;
        assert!(!text.contains("aggressive"), "the opponent's name is hidden");
        assert!(!text.contains("wrong"));
        for n in 1..4 {
            let expected = request.kind == RequestKind::Play && request.episode >= n;
            assert_eq!(text.contains(&format!("reflection-{n}")), expected);
        }
    }
    // Passing against a bet folds, so reflection prompts never show the opponent's card.
    let folded = trajectory.requests.iter().filter(|c| c.kind == RequestKind::Reflect);
    for request in folded {
        assert!(request.messages[0].content.contains("stays hidden"));
        assert!(!request.messages[0].content.contains("the opponent holds"));
    }
}

#[test]
fn best_first_recall_orders_by_score_and_limits() {
    let config = EpisodeConfig {
        episodes: 6,
        recall: RecallOrder::BestFirst,
        recall_limit: Some(2),
        ..EpisodeConfig::default()
    };
    let trajectory = drive(kuhn(kuhn_task("intermediate", 0), config), |request| {
        if request.body.kind == RequestKind::Play {
            BET.to_owned()
        } else {
            format!("<remark>reflection-{}</remark>", request.episode)
        }
    });
    let scores: Vec<f32> = trajectory.episodes.iter().map(mage_core::episode::Episode::score).collect();
    let mut order: Vec<usize> = (0..5).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    assert_ne!(order[..2], [0, 1], "the seed must distinguish the cases");
    let last = &trajectory.requests.last().unwrap().messages[0].content;
    let first_shown = last.find(&format!("reflection-{}", order[0] + 1)).unwrap();
    let second_shown = last.find(&format!("reflection-{}", order[1] + 1)).unwrap();
    assert!(first_shown < second_shown);
    assert_eq!(last.matches("reflection-").count(), 2);
}

#[test]
fn long_reflections_are_truncated_on_a_character_boundary() {
    let config = EpisodeConfig { reflection_chars: 7, ..EpisodeConfig::default() };
    let trajectory = drive(kuhn(kuhn_task("aggressive", 0), config), |request| {
        if request.body.kind == RequestKind::Play {
            BET.to_owned()
        } else {
            "<remark>äöüäöüäöü</remark>".to_owned()
        }
    });
    let play = trajectory.requests.iter().find(|c| c.kind == RequestKind::Play && c.episode == 1).unwrap();
    assert!(play.messages[0].content.contains("Your note: äöüäöüä\n"));
}

/// A memory that requests a plan before each episode and two notes after it.
struct Planner;

impl Memory for Planner {
    fn recall(&mut self, query: &RecallQuery<'_>, completions: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        if query.turn > 0 {
            return Ok(MemoryStep::done(MemoryBlock::default()));
        }
        Ok(match completions {
            [] => MemoryStep::Request(request(RequestKind::Plan)),
            [plan, ..] => MemoryStep::done(MemoryBlock { entries: vec![], notes: format!("Plan: {}", plan.text) }),
        })
    }

    fn record(&mut self, _finished: &FinishedEpisode<'_>, completions: &[Completion]) -> Result<MemoryStep<()>> {
        Ok(match completions.len() {
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
fn memories_can_issue_requests() {
    let task = kuhn_task("aggressive", 0);
    let env = Registry::builtin().build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let config = Arc::new(EpisodeConfig { episodes: 2, ..EpisodeConfig::default() });
    let meta = MetaEpisode::with_memory(task, env, prompts, config, Box::new(Planner), Seed::new(1)).unwrap();
    let trajectory = drive(meta, |request| match request.body.kind {
        Play => {
            assert!(request.body.messages[0].content.contains("Plan: be brave"));
            BET.to_owned()
        }
        _ => "be brave".to_owned(),
    });
    let kinds: Vec<_> = trajectory.requests.iter().map(|c| c.kind).collect();
    use RequestKind::{Evolve, Note, Plan, Play};
    assert_eq!(kinds, [Plan, Play, Note, Evolve, Plan, Play]);
}

#[test]
fn completions_of_another_request_are_rejected_without_effect() {
    let mut meta = kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default());
    let Next::Request(request) = meta.advance().unwrap() else { panic!("expected a request") };
    let wrong = mage_core::RequestId(99);
    assert!(matches!(meta.submit(wrong, Ok(Completion::from_text(BET))), Err(Error::NotPending { .. })));
    assert_eq!(meta.advance().unwrap(), Next::Request(request.clone()));
    meta.submit(request.id, Ok(Completion::from_text(BET))).unwrap();
    assert!(meta.submit(request.id, Ok(Completion::from_text(BET))).is_err(), "a request is completed once");
}

#[test]
fn failed_request_ends_the_meta_episode_with_its_error() {
    let mut meta = kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default());
    let Next::Request(request) = meta.advance().unwrap() else { panic!("expected a request") };
    meta.submit(request.id, Err("connection refused".to_owned())).unwrap();
    let Next::Done(trajectory) = meta.advance().unwrap() else { panic!("expected the end") };
    assert_eq!(trajectory.error.as_deref(), Some("connection refused"));
    assert!(!trajectory.stopped_early);
}

#[test]
fn invalid_configs_are_rejected() {
    let env_info = Registry::builtin().get("kuhn").unwrap().info();
    let bad = [
        EpisodeConfig { episodes: 0, ..EpisodeConfig::default() },
        EpisodeConfig { max_turns: 0, ..EpisodeConfig::default() },
        EpisodeConfig { memory: MemoryMode::HistoryOnly, ..EpisodeConfig::compact(&env_info, 3) },
    ];
    for config in bad {
        assert!(config.validate().is_err(), "{config:?}");
    }
}

#[test]
fn trajectories_round_trip_through_json_lines() {
    let trajectory = drive(kuhn(kuhn_task("uniform", 1), EpisodeConfig::default()), model);
    let line = trajectory.to_json_line();
    assert!(!line.contains('\n'));
    assert_eq!(mage_core::Trajectory::from_json_line(&line).unwrap(), trajectory);
    assert!(mage_core::Trajectory::from_json_line(&line[..line.len() / 2]).is_err());
    let outcomes: Vec<_> = trajectory.episodes.iter().map(mage_core::episode::Episode::outcome).collect();
    assert!(outcomes.iter().all(|o| matches!(o, Some(Outcome::Won | Outcome::Lost))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn meta_episode_ends_for_any_completions(completions in prop::collection::vec(any::<String>(), 1..8), seat in 0_u8..2, seed in any::<u64>()) {
        let mut task = kuhn_task("uniform", seat);
        task.seed = Seed::new(seed);
        let mut i = 0;
        let trajectory = drive(kuhn(task, EpisodeConfig::default()), |_| {
            i += 1;
            completions[i % completions.len()].clone()
        });
        prop_assert_eq!(trajectory.episodes.len(), 3);
        prop_assert!(trajectory.episodes.iter().all(|e| e.end.is_some()));
    }
}

#[test]
fn prompts_never_contain_the_seed() {
    let mut task = kuhn_task("uniform", 0);
    task.seed = Seed::new(918_273_645);
    for config in [
        EpisodeConfig::default(),
        EpisodeConfig { memory: MemoryMode::HistoryAndReflection, ..EpisodeConfig::default() },
        EpisodeConfig::compact(&Registry::builtin().get("kuhn").unwrap().info(), 3),
    ] {
        let trajectory = drive(kuhn(task.clone(), config), model);
        for request in &trajectory.requests {
            assert!(!request.messages[0].content.contains("918273645"));
            assert!(!request.messages[0].content.contains("uniform"));
        }
    }
}

#[test]
fn memory_error_is_part_of_the_trajectory() {
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
    let config = Arc::new(EpisodeConfig::default());
    let mut meta = MetaEpisode::with_memory(task, env, prompts, config, Box::new(Broken), Seed::new(1)).unwrap();
    assert!(meta.advance().is_err());
    let Next::Done(trajectory) = meta.advance().unwrap() else { panic!("expected the end") };
    assert_eq!(trajectory.error.as_deref(), Some("memory: lost"));
    assert!(trajectory.result().is_none());
}

#[test]
fn recall_limit_keeps_the_latest_reflections() {
    let config = EpisodeConfig { episodes: 5, recall_limit: Some(2), ..EpisodeConfig::default() };
    let trajectory = drive(kuhn(kuhn_task("intermediate", 0), config), |request| {
        if request.body.kind == RequestKind::Play {
            BET.to_owned()
        } else {
            format!("<remark>reflection-{}</remark>", request.episode)
        }
    });
    let last = &trajectory.requests.last().unwrap().messages[0].content;
    let shown: Vec<bool> = (1..5).map(|n| last.contains(&format!("reflection-{n}"))).collect();
    assert_eq!(shown, [false, false, true, true]);
}
