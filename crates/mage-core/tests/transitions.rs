//! From a played meta-episode to rows, returns and advantages.

mod common;

use common::{drive, kuhn, kuhn_task};
use mage_core::{
    CreditConfig, EpisodeConfig, EpisodeEnding, Estimator, MetaEpisodeIndex, Penalty, RequestKind, RewardRule,
    Trajectory, TransitionKind, advantages, assign_credit, transitions,
};

fn play(answers: [&str; 3]) -> Trajectory {
    drive(kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default()), |call| match call.body.kind {
        RequestKind::Play => format!("<action>{}</action>", answers[call.episode as usize]),
        _ if call.episode == 1 => "nothing to say".to_owned(),
        _ => "<remark>noted</remark>".to_owned(),
    })
}

const PLACE: MetaEpisodeIndex = MetaEpisodeIndex { group: 4, meta_episode: 9, opponent: 2 };

#[test]
fn rows_stand_for_the_calls_in_order() {
    let record = play(["BET", "BET", "BET"]);
    let penalty = Penalty { invalid: 0.5, length: None };
    let rows = transitions(&record, PLACE, &RewardRule::Score { scale: 5.0 }, &penalty);
    assert_eq!(rows.len(), record.requests.len());
    for r in &rows {
        let call = &record.requests[r.request];
        assert_eq!((r.transition.group, r.transition.meta_episode, r.transition.opponent), (4, 9, 2));
        assert_eq!((r.transition.episode, r.transition.turn), (call.episode, call.turn));
        assert_eq!(r.transition.kind == TransitionKind::Play, call.kind == RequestKind::Play);
        assert_eq!(r.transition.penalty, if call.invalid.is_some() { 0.5 } else { 0.0 });
    }
    assert_eq!(rows.iter().filter(|r| r.transition.penalty > 0.0).count(), 1, "one reflection had no tags");
    // Each episode's rewards add up to its score in the chosen unit.
    for (n, episode) in record.episodes.iter().enumerate() {
        let sum: f32 = rows.iter().filter(|r| r.transition.episode == n as u32).map(|r| r.transition.reward).sum();
        assert_eq!(sum, 5.0 * episode.score());
    }
}

#[test]
fn equal_states_share_an_anchor_and_reflections_have_their_own() {
    let record = play(["BET", "PASS", "PASS"]);
    let rows = transitions(&record, PLACE, &RewardRule::Score { scale: 1.0 }, &Penalty::NONE);
    let anchors: Vec<_> = rows.iter().map(|r| (r.transition.kind, r.transition.anchor)).collect();
    for (i, a) in anchors.iter().enumerate() {
        for (j, b) in anchors.iter().enumerate() {
            let same = match (a.0, b.0) {
                (TransitionKind::Reflect, TransitionKind::Reflect) => true,
                (TransitionKind::Play, TransitionKind::Play) => {
                    let anchor = |r: &mage_core::IndexedTransition| {
                        record.episodes[r.transition.episode as usize].turns[r.transition.turn as usize].anchor.clone()
                    };
                    anchor(&rows[i]) == anchor(&rows[j])
                }
                _ => false,
            };
            assert_eq!(a.1 == b.1, same);
        }
    }
}

#[test]
fn rows_go_straight_into_credit_and_advantages() {
    let all: Vec<_> = [["BET", "BET", "BET"], ["PASS", "PASS", "PASS"], ["PASS", "BET", "PASS"]]
        .into_iter()
        .enumerate()
        .flat_map(|(i, answers)| {
            let place = MetaEpisodeIndex { meta_episode: i as u32, ..PLACE };
            transitions(&play(answers), place, &RewardRule::Score { scale: 1.0 }, &Penalty::NONE)
        })
        .map(|r| r.transition)
        .collect();
    let advantages = advantages(&all, &assign_credit(&all, &CreditConfig::default()), &Estimator::default());
    assert_eq!(advantages.len(), all.len());
    assert!(advantages.iter().any(|a| *a != 0.0) && advantages.iter().all(|a| a.is_finite()));
}

#[test]
fn results_say_how_each_episode_went_and_errors_are_no_results() {
    let mut record = play(["BET", "BET", "BET"]);
    let result = record.result().unwrap();
    assert_eq!(result.opponent.as_deref(), Some("aggressive"));
    for (r, e) in result.episodes.iter().zip(&record.episodes) {
        assert_eq!(r.ending == EpisodeEnding::Won, e.won());
        assert_eq!(r.score, f64::from(e.score()));
    }
    record.error = Some("lost connection".to_owned());
    assert!(record.result().is_none());
    assert!(transitions(&record, PLACE, &RewardRule::Score { scale: 1.0 }, &Penalty::NONE).is_empty());
}
