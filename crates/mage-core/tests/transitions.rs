//! From trajectories to transitions, returns and advantages.

use crate::common::{drive, kuhn, kuhn_task};
use mage_core::{
    CreditConfig, EpisodeConfig, EpisodeEnding, Estimator, MetaEpisodeIndex, Penalty, RequestKind, RewardRule,
    Trajectory, TransitionKind, advantages, assign_credit, transitions,
};

fn play(actions: [&str; 3]) -> Trajectory {
    drive(kuhn(kuhn_task("aggressive", 0), EpisodeConfig::default()), |request| match request.body.kind {
        RequestKind::Play => format!("<action>{}</action>", actions[request.episode as usize]),
        _ if request.episode == 1 => "nothing to say".to_owned(),
        _ => "<remark>noted</remark>".to_owned(),
    })
}

const INDEX: MetaEpisodeIndex = MetaEpisodeIndex { group: 4, meta_episode: 9, opponent: 2 };

#[test]
fn transitions_match_requests_in_order() {
    let trajectory = play(["BET", "BET", "BET"]);
    let penalty = Penalty { invalid: 0.5, length: None };
    let indexed = transitions(&trajectory, INDEX, &RewardRule::Score { scale: 5.0 }, &penalty);
    assert_eq!(indexed.len(), trajectory.requests.len());
    for r in &indexed {
        let request = &trajectory.requests[r.request];
        assert_eq!((r.transition.group, r.transition.meta_episode, r.transition.opponent), (4, 9, 2));
        assert_eq!((r.transition.episode, r.transition.turn), (request.episode, request.turn));
        assert_eq!(r.transition.kind == TransitionKind::Play, request.kind == RequestKind::Play);
        assert_eq!(r.transition.penalty, if request.invalid.is_some() { 0.5 } else { 0.0 });
    }
    assert_eq!(indexed.iter().filter(|r| r.transition.penalty > 0.0).count(), 1, "one reflection has no tags");
    // The rewards of an episode sum to its score in the chosen unit.
    for (n, episode) in trajectory.episodes.iter().enumerate() {
        let sum: f32 = indexed.iter().filter(|r| r.transition.episode == n as u32).map(|r| r.transition.reward).sum();
        assert_eq!(sum, 5.0 * episode.score());
    }
}

#[test]
fn equal_states_share_an_anchor_and_reflections_share_another() {
    let trajectory = play(["BET", "PASS", "PASS"]);
    let indexed = transitions(&trajectory, INDEX, &RewardRule::Score { scale: 1.0 }, &Penalty::NONE);
    let anchors: Vec<_> = indexed.iter().map(|r| (r.transition.kind, r.transition.anchor)).collect();
    for (i, a) in anchors.iter().enumerate() {
        for (j, b) in anchors.iter().enumerate() {
            let same = match (a.0, b.0) {
                (TransitionKind::Reflect, TransitionKind::Reflect) => true,
                (TransitionKind::Play, TransitionKind::Play) => {
                    let anchor = |r: &mage_core::IndexedTransition| {
                        trajectory.episodes[r.transition.episode as usize].turns[r.transition.turn as usize]
                            .anchor
                            .clone()
                    };
                    anchor(&indexed[i]) == anchor(&indexed[j])
                }
                _ => false,
            };
            assert_eq!(a.1 == b.1, same);
        }
    }
}

#[test]
fn transitions_give_finite_advantages() {
    let all: Vec<_> = [["BET", "BET", "BET"], ["PASS", "PASS", "PASS"], ["PASS", "BET", "PASS"]]
        .into_iter()
        .enumerate()
        .flat_map(|(i, actions)| {
            let index = MetaEpisodeIndex { meta_episode: i as u32, ..INDEX };
            transitions(&play(actions), index, &RewardRule::Score { scale: 1.0 }, &Penalty::NONE)
        })
        .map(|r| r.transition)
        .collect();
    let advantages = advantages(&all, &assign_credit(&all, &CreditConfig::default()), &Estimator::default());
    assert_eq!(advantages.len(), all.len());
    assert!(advantages.iter().any(|a| *a != 0.0) && advantages.iter().all(|a| a.is_finite()));
}

#[test]
fn results_match_episodes_and_errors_have_none() {
    let mut trajectory = play(["BET", "BET", "BET"]);
    let result = trajectory.result().unwrap();
    assert_eq!(result.opponent.as_deref(), Some("aggressive"));
    for (r, e) in result.episodes.iter().zip(&trajectory.episodes) {
        assert_eq!(r.ending == EpisodeEnding::Won, e.won());
        assert_eq!(r.score, f64::from(e.score()));
    }
    trajectory.error = Some("lost connection".to_owned());
    assert!(trajectory.result().is_none());
    assert!(transitions(&trajectory, INDEX, &RewardRule::Score { scale: 1.0 }, &Penalty::NONE).is_empty());
}
