//! Effect of each option of rewards, credit and estimators.

use crate::credit_support::{assert_close, find, meta_episode, play, reflect};
use mage_core::{
    AdvantageNorm, AnchorScope, AssignedCredit, BaselineScope, BaselineUnit, CreditAssignment, CreditConfig,
    CreditSignal, Estimator, Gigpo, Grpo, LengthPenalty, Method, Penalty, PenaltyMode, ReflectionScore,
    ReturnRecursion, ReturnToGo, RewardPreset, RewardRule, RewardSpec, Rloo, Transition, TransitionKind, advantages,
    assign_credit, returns,
};
use mage_env::{End, Outcome};

fn ended(outcome: Outcome) -> End {
    End::Terminated { outcome, score: 0.0 }
}

#[test]
fn reward_rules_map_outcomes_and_scores() {
    let steps = [-0.1, 1.0, 0.5];
    let rule = RewardRule::Outcome { won: 1.0, lost: 2.0, draw: 3.0, truncated: 4.0 };
    assert_eq!(rule.apply(ended(Outcome::Won), &steps), [0.0, 0.0, 1.0]);
    assert_eq!(rule.apply(ended(Outcome::Lost), &steps), [0.0, 0.0, 2.0]);
    assert_eq!(rule.apply(ended(Outcome::Draw), &steps), [0.0, 0.0, 3.0]);
    assert_eq!(rule.apply(End::Truncated, &steps), [0.0, 0.0, 4.0]);
    assert_eq!(RewardRule::Score { scale: 2.0 }.apply(End::Truncated, &steps), [-0.2, 2.0, 1.0]);
    assert!(rule.apply(End::Truncated, &[]).is_empty());
    assert!(RewardRule::Score { scale: f32::NAN }.validate().is_err());
}

#[test]
fn reward_presets_depend_on_the_environment() {
    let last = |preset: RewardPreset, env: &str, end| preset.rule(env).unwrap().apply(end, &[2.0])[0];
    use RewardPreset::{Code, Paper, Score};
    for env in ["kuhn", "tictactoe", "sokoban", "alfworld", "webshop", "external"] {
        assert_eq!(last(Paper, env, ended(Outcome::Won)), 10.0);
        assert_eq!(last(Paper, env, ended(Outcome::Lost)), -10.0);
        assert_eq!(last(Paper, env, ended(Outcome::Draw)), 0.0);
        assert_eq!(last(Score, env, ended(Outcome::Lost)), 2.0);
    }
    // The turn limit is a failure only in environments without another failure.
    assert_eq!(last(Paper, "tictactoe", End::Truncated), 0.0);
    assert_eq!(last(Paper, "alfworld", End::Truncated), -10.0);
    // As released.
    assert_eq!(last(Code, "kuhn", ended(Outcome::Won)), 10.0); // 5 × 2 chips
    assert_eq!(last(Code, "tictactoe", ended(Outcome::Lost)), -10.0);
    assert_eq!(last(Code, "alfworld", ended(Outcome::Lost)), 0.0);
    assert_eq!(last(Code, "webshop", End::Truncated), 0.0);
    assert_eq!(last(Code, "sokoban", End::Truncated), 2.0);
    let error = Code.rule("chess").unwrap_err().to_string();
    assert!(error.contains("`chess`") && error.contains("kuhn") && error.contains("`score`"), "{error}");
}

#[test]
fn reward_specs_parse_from_recipes() {
    let read = |json: &str| serde_json::from_str::<RewardSpec>(json);
    assert_eq!(read(r#""paper""#).unwrap(), RewardSpec::Preset(RewardPreset::Paper));
    let rule = read(r#"{"kind": "outcome", "won": 1, "lost": -1, "draw": 0, "truncated": 0}"#).unwrap();
    assert_eq!(rule, RewardSpec::Rule(RewardRule::Outcome { won: 1.0, lost: -1.0, draw: 0.0, truncated: 0.0 }));
    assert_eq!(serde_json::from_value::<RewardSpec>(serde_json::to_value(rule).unwrap()).unwrap(), rule);
    let error = read(r#""papr""#).unwrap_err().to_string();
    assert!(error.contains("papr") && error.contains("paper"), "{error}");
    let error = read(r#"{"kind": "score", "scale": 1, "factor": 2}"#).unwrap_err().to_string();
    assert!(error.contains("factor"), "{error}");
    let error = read("3").unwrap_err().to_string();
    assert!(error.contains("reward preset"), "{error}");
}

#[test]
fn mage_equals_lamer_if_failures_cost_nothing() {
    // Lose, lose, win, stop: typical of ALFWorld and WebShop.
    let transitions_of = |preset: RewardPreset| {
        let rule = preset.rule("alfworld").unwrap();
        let reward = |end| rule.apply(end, &[0.0])[0];
        let lose = reward(End::Truncated);
        meta_episode(0, &[lose, lose, reward(ended(Outcome::Won))], 3)
    };
    let of = |transitions: &[Transition], name: &str| assign_credit(transitions, &Method::named(name).unwrap().credit);
    let code = transitions_of(RewardPreset::Code);
    assert_eq!(of(&code, "mage"), of(&code, "lamer"));
    let paper = transitions_of(RewardPreset::Paper);
    assert_ne!(of(&paper, "mage"), of(&paper, "lamer"));
}

#[test]
fn assignments_give_expected_returns_and_scores() {
    // Dense rewards: 1 and 2 in the first episode, 4 and 1 in the second; no discount.
    let transitions = [play(0, 0, 1.0), play(0, 1, 2.0), play(1, 0, 4.0), play(1, 1, 1.0)];
    let of = |assignment| {
        assign_credit(
            &transitions,
            &CreditConfig { assignment, gamma_step: 1.0, gamma_traj: 0.5, ..CreditConfig::default() },
        )
    };
    let d = of(CreditAssignment::Differential);
    assert_eq!((d.returns, d.scores), (vec![4.0, 4.0, 2.0, 2.0], vec![3.0, 3.0, 2.0, 2.0]));
    let c = of(CreditAssignment::Cumulative);
    assert_eq!((c.returns, c.scores), (vec![5.5, 4.5, 5.0, 1.0], vec![3.0, 3.0, 5.0, 5.0]));
    let s = of(CreditAssignment::Single);
    assert_eq!((s.returns, s.scores), (vec![3.0, 2.0, 5.0, 1.0], vec![3.0, 3.0, 5.0, 5.0]));
    let f = of(CreditAssignment::FinalOnly);
    assert_eq!((f.returns, f.scores), (vec![2.5, 2.5, 5.0, 1.0], vec![0.0, 0.0, 5.0, 5.0]));
}

#[test]
fn recursions_discount_later_episodes_differently() {
    let transitions = meta_episode(0, &[0.0, 1.0], 3);
    let first = |recursion| returns(&transitions, &CreditConfig { recursion, ..CreditConfig::default() })[0];
    let (s, t) = (0.95_f32, 0.6_f32);
    assert!((first(ReturnRecursion::Paper) - t * s.powi(2)).abs() < 1e-6);
    assert!((first(ReturnRecursion::Released) - t * s.powi(4)).abs() < 1e-6);
    // With one turn per episode both recursions agree.
    let transitions = meta_episode(0, &[3.0, -1.0, 1.0], 1);
    let of = |recursion| returns(&transitions, &CreditConfig { recursion, ..CreditConfig::default() });
    assert_eq!(of(ReturnRecursion::Paper), of(ReturnRecursion::Released));
}

#[test]
fn discounts_scale_returns_and_are_validated() {
    let transitions = meta_episode(0, &[0.0, 1.0], 2);
    let first = |gamma_step, gamma_traj| {
        returns(&transitions, &CreditConfig { gamma_step, gamma_traj, ..CreditConfig::default() })[0]
    };
    assert_eq!([first(1.0, 1.0), first(0.5, 1.0), first(1.0, 0.5), first(1.0, 0.0)], [1.0, 0.5, 0.5, 0.0]);
    for bad in [-0.1, 1.1, f64::NAN] {
        let error = CreditConfig { gamma_traj: bad, ..CreditConfig::default() }.validate().unwrap_err().to_string();
        assert!(error.contains("credit.gamma_traj"), "{error}");
    }
    assert!(CreditConfig::default().validate().is_ok());
}

#[test]
fn reflection_score_is_zero_or_that_of_the_next_episode() {
    let transitions = meta_episode(0, &[-1.0, 1.0], 2);
    let i = find(&transitions, 1, 0, TransitionKind::Reflect);
    let of = |reflection| assign_credit(&transitions, &CreditConfig { reflection, ..CreditConfig::default() });
    let (faithful, corrected) = (of(ReflectionScore::Faithful), of(ReflectionScore::Corrected));
    assert_eq!((faithful.scores[i], corrected.scores[i]), (0.0, 2.0));
    assert_eq!(faithful.returns, corrected.returns);
    // Before an improvement the faithful reflection has a negative episode-level advantage, the corrected one a
    // positive.
    let both: Vec<Transition> = [meta_episode(0, &[-1.0, 1.0], 1), meta_episode(1, &[1.0], 1)].concat();
    let advantage = |reflection| {
        let credited = assign_credit(&both, &CreditConfig { reflection, ..CreditConfig::default() });
        Estimator::Gigpo(Gigpo::RELEASED).levels(&both, &credited).episode[1]
    };
    assert!(advantage(ReflectionScore::Faithful) < 0.0 && advantage(ReflectionScore::Corrected) > 0.0);
}

#[test]
fn penalty_modes_enter_returns_and_scores() {
    // Two episodes of two turns, no rewards; the first turn of the first episode and the reflection were invalid.
    let mut transitions = vec![play(0, 0, 0.0), play(0, 1, 0.0), reflect(1), play(1, 0, 0.0), play(1, 1, 0.0)];
    transitions[0].penalty = 1.0;
    transitions[2].penalty = 0.5;
    let of = |penalty| {
        assign_credit(
            &transitions,
            &CreditConfig { penalty, gamma_step: 1.0, gamma_traj: 0.5, ..CreditConfig::default() },
        )
    };
    let per_transition = of(PenaltyMode::PerTransition);
    assert_eq!(per_transition.returns, [-1.0, 0.0, -0.5, 0.0, 0.0]);
    assert_eq!(per_transition.scores, [-1.0, 0.0, -0.5, 0.0, 0.0]);
    // In the episode reward: R = (−1, −0.5), so the second episode is credited with the improvement.
    let episode_reward = of(PenaltyMode::EpisodeReward);
    assert_eq!(episode_reward.returns, [-0.75, -0.75, 0.5, 0.5, 0.5]);
    assert_eq!(episode_reward.scores, [-1.0, -1.0, 0.5, 0.5, 0.5]);
    let level_only = of(PenaltyMode::EpisodeLevelOnly);
    assert_eq!(level_only.returns, [0.0; 5]);
    assert_eq!(level_only.scores, [-1.0, 0.0, -0.5, 0.0, 0.0]);
}

#[test]
fn penalties_are_discounted_like_rewards() {
    let mut transitions = meta_episode(0, &[0.0, 0.0], 2);
    let last = find(&transitions, 1, 1, TransitionKind::Play);
    transitions[last].penalty = 1.0;
    let g = returns(&transitions, &CreditConfig { gamma_step: 0.5, gamma_traj: 0.1, ..CreditConfig::default() });
    assert_close(&g, &[-0.05, -0.05, -0.5, -0.5, -1.0], 1e-6);
}

#[test]
fn penalties_are_computed_and_validated() {
    let none = Penalty::NONE;
    let invalid = Penalty { invalid: 0.5, ..none };
    let long = Penalty { length: Some(LengthPenalty { limit: 10, weight: 1.0 }), ..none };
    assert_eq!(
        [none.amount(false, 10), invalid.amount(false, 10), invalid.amount(true, 10), long.amount(true, 10)],
        [0.0, 0.5, 0.0, 1.0]
    );
    assert!(Penalty { invalid: -1.0, ..none }.validate().unwrap_err().to_string().contains("penalty.invalid"));
    let zero = Penalty { length: Some(LengthPenalty { limit: 0, weight: 1.0 }), ..none };
    assert!(zero.validate().unwrap_err().to_string().contains("limit"));
    assert!(Penalty::default().validate().is_ok() && long.validate().is_ok());
}

// Estimators. The meta-episodes of group 0 differ in numbers of turns and episodes; groups 1 and 2 have another
// opponent.

fn two_groups() -> Vec<Transition> {
    let mut transitions = [
        meta_episode(0, &[-1.0, 1.0], 1),
        meta_episode(1, &[1.0, 1.0, -1.0], 3),
        meta_episode(2, &[0.5, -1.0], 2),
        meta_episode(3, &[1.0, 2.0], 1),
        meta_episode(4, &[3.0, 1.0], 2),
    ]
    .concat();
    for r in &mut transitions {
        (r.group, r.opponent) = match r.meta_episode {
            0 | 1 => (0, 7),
            2 | 3 => (1, 8),
            _ => (2, 8),
        };
        r.anchor = if r.kind == TransitionKind::Reflect { r.anchor } else { u64::from(r.turn) };
    }
    transitions
}

fn all_different(estimators: &[Estimator]) -> Vec<Vec<f32>> {
    let transitions = two_groups();
    let credited = assign_credit(&transitions, &CreditConfig::default());
    let results: Vec<Vec<f32>> = estimators.iter().map(|e| advantages(&transitions, &credited, e)).collect();
    for (i, a) in results.iter().enumerate() {
        for (j, b) in results.iter().enumerate().take(i) {
            assert_ne!(a, b, "{:?} and {:?} agree", estimators[i], estimators[j]);
        }
    }
    results
}

#[test]
fn every_estimator_option_changes_the_advantages() {
    let gigpo = Gigpo::default();
    use BaselineUnit::{Episode, EpisodeIndex, MetaEpisode, Transition as PerTransition};
    all_different(&[
        Estimator::default(),
        Estimator::Gigpo(gigpo),
        Estimator::Grpo(Grpo::default()),
        Estimator::Rloo(Rloo::default()),
    ]);
    all_different(
        &[BaselineScope::Group, BaselineScope::Opponent, BaselineScope::All]
            .map(|scope| Estimator::ReturnToGo(ReturnToGo { scope })),
    );
    all_different(
        &[BaselineScope::Group, BaselineScope::Opponent, BaselineScope::All]
            .map(|scope| Estimator::Gigpo(Gigpo { scope, ..gigpo })),
    );
    let units = [PerTransition, Episode, MetaEpisode, EpisodeIndex];
    all_different(&units.map(|baseline| Estimator::Gigpo(Gigpo { baseline, ..gigpo })));
    all_different(&units.map(|baseline| Estimator::Grpo(Grpo { baseline, ..Grpo::default() })));
    all_different(&units.map(|baseline| Estimator::Rloo(Rloo { baseline, ..Rloo::default() })));
    all_different(&[AdvantageNorm::Mean, AdvantageNorm::MeanStd].map(|norm| Estimator::Gigpo(Gigpo { norm, ..gigpo })));
    all_different(
        &[AdvantageNorm::Mean, AdvantageNorm::MeanStd].map(|norm| Estimator::Grpo(Grpo { norm, ..Grpo::default() })),
    );
    all_different(
        &[AnchorScope::Global, AnchorScope::Local].map(|anchors| Estimator::Gigpo(Gigpo { anchors, ..gigpo })),
    );
    all_different(&[0.0, 0.5, 1.0].map(|step_weight| Estimator::Gigpo(Gigpo { step_weight, ..gigpo })));
    all_different(
        &[CreditSignal::Score, CreditSignal::Return].map(|signal| Estimator::Grpo(Grpo { signal, ..Grpo::default() })),
    );
    all_different(
        &[CreditSignal::Score, CreditSignal::Return].map(|signal| Estimator::Rloo(Rloo { signal, ..Rloo::default() })),
    );
}

/// Scores as given, returns 0.
fn scored(scores: &[f32]) -> AssignedCredit {
    AssignedCredit { returns: vec![0.0; scores.len()], scores: scores.to_vec() }
}

#[test]
fn baseline_units_weight_transitions_as_documented() {
    // Meta-episode 0: episode 0 of one turn (score 0), episode 1 of three turns (score 4). Meta-episode 1: one episode
    // of one turn (score 8).
    let mut transitions = vec![play(0, 0, 0.0), play(1, 0, 0.0), play(1, 1, 0.0), play(1, 2, 0.0), play(0, 0, 0.0)];
    transitions[4].meta_episode = 1;
    let scores = scored(&[0.0, 4.0, 4.0, 4.0, 8.0]);
    let means = |baseline| {
        let e = Estimator::Gigpo(Gigpo { baseline, ..Gigpo::RELEASED }).levels(&transitions, &scores).episode;
        [0.0 - e[0], 4.0 - e[1], 8.0 - e[4]] // the baselines
    };
    assert_eq!(means(BaselineUnit::Transition), [4.0; 3]); // 20 / 5 transitions
    assert_eq!(means(BaselineUnit::Episode), [4.0; 3]); // 12 / 3 episodes
    assert_eq!(means(BaselineUnit::MetaEpisode), [5.0; 3]); // (2 + 8) / 2
    assert_eq!(means(BaselineUnit::EpisodeIndex), [4.0, 4.0, 4.0]); // (0 + 8) / 2 and 4 / 1
    // A score of 10 in the long episode distinguishes transitions and episodes.
    let scores = scored(&[0.0, 10.0, 10.0, 10.0, 8.0]);
    let mean =
        |baseline| -Estimator::Gigpo(Gigpo { baseline, ..Gigpo::RELEASED }).levels(&transitions, &scores).episode[0];
    assert!((mean(BaselineUnit::Transition) - 38.0 / 5.0).abs() < 1e-12);
    assert!((mean(BaselineUnit::Episode) - 18.0 / 3.0).abs() < 1e-12);
    assert!((mean(BaselineUnit::MetaEpisode) - (5.0 + 8.0) / 2.0).abs() < 1e-12);
    assert!((mean(BaselineUnit::EpisodeIndex) - 4.0).abs() < 1e-12);
    // The standard deviation uses the weights of the mean. Episodes: (6² + 4² + 2²) / 2. Meta-episodes: 2 · (6.5²/4 +
    // 3.5²/4 + 1.5²/2).
    let deviation = |baseline| {
        let of = |norm| {
            Estimator::Gigpo(Gigpo { baseline, norm, ..Gigpo::RELEASED }).levels(&transitions, &scores).episode[0]
        };
        of(AdvantageNorm::Mean) / of(AdvantageNorm::MeanStd) - 1e-6
    };
    assert!((deviation(BaselineUnit::Episode) - 28.0_f64.sqrt()).abs() < 1e-9);
    assert!((deviation(BaselineUnit::MetaEpisode) - 29.5_f64.sqrt()).abs() < 1e-9);
}

/// One play transition per meta-episode of one group.
fn members(n: u32) -> Vec<Transition> {
    (0..n).map(|m| Transition { meta_episode: m, ..play(0, 0, 0.0) }).collect()
}

#[test]
fn grpo_divides_by_the_sample_deviation() {
    // 1, 2, 3, 6: mean 3, deviation √(14/3).
    let a = advantages(&members(4), &scored(&[1.0, 2.0, 3.0, 6.0]), &Estimator::Grpo(Grpo::default()));
    let s = (14.0_f64 / 3.0).sqrt() + 1e-6;
    assert_close(&a, &[-2.0 / s, -1.0 / s, 0.0, 3.0 / s], 1e-6);
    // Equal scores: zero advantages, no division by zero.
    let a = advantages(&members(3), &scored(&[0.1; 3]), &Estimator::Grpo(Grpo::default()));
    assert_close(&a, &[0.0; 3], 1e-6);
}

#[test]
fn equal_units_with_unequal_transitions_have_bounded_advantages() {
    // Two episodes of equal mean; within each, one turn was penalised. Dividing by the deviation of the means alone (0)
    // would give advantages of a million.
    let mut transitions = vec![play(0, 0, 0.0), play(0, 1, 0.0), play(0, 0, 0.0), play(0, 1, 0.0)];
    transitions[2].meta_episode = 1;
    transitions[3].meta_episode = 1;
    let grpo = Grpo { baseline: BaselineUnit::Episode, ..Grpo::default() };
    let a = advantages(&transitions, &scored(&[1.0, 0.0, 0.0, 1.0]), &Estimator::Grpo(grpo));
    assert!(a.iter().all(|a| a.abs() < 1.0), "{a:?}");
}

#[test]
fn rloo_leaves_its_own_unit_out() {
    let a = advantages(&members(3), &scored(&[1.0, 2.0, 6.0]), &Estimator::Rloo(Rloo::default()));
    assert_close(&a, &[1.0 - 4.0, 2.0 - 3.5, 6.0 - 1.5], 1e-6);
    // A longer member is left out as a whole: its baseline is the other's score, not a mix with its own.
    let mut transitions = vec![play(0, 0, 0.0), play(0, 1, 0.0), play(0, 0, 0.0)];
    transitions[2].meta_episode = 1;
    let scores = scored(&[5.0, 5.0, 1.0]);
    let of = |baseline| advantages(&transitions, &scores, &Estimator::Rloo(Rloo { baseline, ..Rloo::default() }));
    assert_eq!(of(BaselineUnit::EpisodeIndex), [4.0, 4.0, -4.0]);
    assert_eq!(of(BaselineUnit::Transition), [2.0, 2.0, -4.0]);
}

#[test]
fn singletons_keep_their_score_or_get_zero() {
    let transitions = members(1);
    let credited = AssignedCredit { returns: vec![3.0], scores: vec![2.0] };
    let of = |e: Estimator| advantages(&transitions, &credited, &e)[0];
    for baseline in
        [BaselineUnit::Transition, BaselineUnit::Episode, BaselineUnit::MetaEpisode, BaselineUnit::EpisodeIndex]
    {
        // Mean 0 at the episode level, 0 at the anchor level.
        for norm in [AdvantageNorm::Mean, AdvantageNorm::MeanStd] {
            assert_eq!(of(Estimator::Gigpo(Gigpo { baseline, norm, ..Gigpo::default() })), 2.0);
            assert_eq!(of(Estimator::Grpo(Grpo { baseline, norm, ..Grpo::default() })), 2.0);
        }
        assert_eq!(of(Estimator::Rloo(Rloo { baseline, ..Rloo::default() })), 2.0);
    }
    assert_eq!(of(Estimator::default()), 0.0);
    // In a larger scope, a transition alone in its bucket gets 0: here the only second episode of its group.
    let transitions = [play(0, 0, 0.0), play(1, 0, 0.0)];
    let e = Estimator::Gigpo(Gigpo::default()).levels(&transitions, &scored(&[2.0, 5.0]));
    assert_eq!(e.episode, [0.0, 0.0]);
}

#[test]
fn baseline_scopes_pool_as_documented() {
    let mut transitions = members(4);
    for (r, (group, opponent)) in transitions.iter_mut().zip([(0, 5), (1, 5), (2, 6), (2, 6)]) {
        (r.group, r.opponent) = (group, opponent);
    }
    let credited = AssignedCredit { returns: vec![1.0, 3.0, 10.0, 20.0], scores: vec![0.0; 4] };
    let of = |scope| advantages(&transitions, &credited, &Estimator::ReturnToGo(ReturnToGo { scope }));
    assert_eq!(of(BaselineScope::Group), [0.0, 0.0, -5.0, 5.0]);
    assert_eq!(of(BaselineScope::Opponent), [-1.0, 1.0, -5.0, 5.0]);
    assert_eq!(of(BaselineScope::All), [-7.5, -5.5, 1.5, 11.5]);
}

#[test]
fn local_anchors_hold_on_every_turn() {
    // Equal second-turn states in two episodes of two members.
    let mut transitions = Vec::new();
    for m in 0..2 {
        for episode in 0..2 {
            transitions.extend((0..2).map(|turn| Transition {
                meta_episode: m,
                anchor: u64::from(turn),
                ..play(episode, turn, 0.0)
            }));
        }
    }
    let returns: Vec<f32> = transitions.iter().map(|r| (r.meta_episode + 10 * r.episode) as f32).collect();
    let credited = AssignedCredit { scores: vec![0.0; transitions.len()], returns };
    let of = |anchors| advantages(&transitions, &credited, &Estimator::Gigpo(Gigpo { anchors, ..Gigpo::default() }));
    assert_eq!(of(AnchorScope::Global), [-5.5, -5.5, 4.5, 4.5, -4.5, -4.5, 5.5, 5.5]);
    assert_eq!(of(AnchorScope::Local), [-0.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, 0.5]);
}

#[test]
fn methods_are_distinct_valid_and_serialisable() {
    let transitions = two_groups();
    for (i, a) in Method::NAMES.iter().enumerate() {
        let method = Method::named(a).unwrap();
        method.validate().unwrap();
        for b in &Method::NAMES[..i] {
            assert_ne!(method, Method::named(b).unwrap(), "{a} and {b}");
        }
        let json = serde_json::to_string(&method).unwrap();
        assert_eq!(serde_json::from_str::<Method>(&json).unwrap(), method, "{json}");
        assert_eq!(
            advantages(&transitions, &assign_credit(&transitions, &method.credit), &method.estimator).len(),
            transitions.len()
        );
    }
    assert_eq!(Method::named("mage").unwrap(), Method::default());
    let of = |name| assign_credit(&transitions, &Method::named(name).unwrap().credit);
    // Single-episode credit is cumulative credit without later episodes.
    let lamer = Method::named("lamer").unwrap().credit;
    assert_eq!(of("own_episode"), assign_credit(&transitions, &CreditConfig { gamma_traj: 0.0, ..lamer }));
    let error = Method::named("magic").unwrap_err().to_string();
    assert!(error.contains("`mage`"), "{error}");
}

#[test]
fn recipes_reject_unknown_fields() {
    let estimator: Estimator = serde_json::from_str(r#"{"kind": "gigpo", "baseline": "transition"}"#).unwrap();
    assert_eq!(estimator, Estimator::Gigpo(Gigpo::RELEASED));
    let estimator: Estimator = serde_json::from_str(r#"{"kind": "return_to_go"}"#).unwrap();
    assert_eq!(estimator, Estimator::default());
    let unknown = |json: &str| serde_json::from_str::<Method>(json).unwrap_err().to_string();
    assert!(unknown(r#"{"credit": {"gamma": 1}}"#).contains("gamma"));
    assert!(unknown(r#"{"estimator": {"kind": "grpo", "anchors": "local"}}"#).contains("anchors"));
    assert!(unknown(r#"{"estimator": {"kind": "return_to_go", "norm": "mean"}}"#).contains("norm"));
    assert!(serde_json::from_str::<Penalty>(r#"{"lenght": 1}"#).is_err());
    let heavy = Estimator::Gigpo(Gigpo { step_weight: f64::INFINITY, ..Gigpo::default() });
    assert!(heavy.validate().unwrap_err().to_string().contains("step_weight"));
}

#[test]
fn empty_input_gives_empty_output() {
    for name in Method::NAMES {
        let method = Method::named(name).unwrap();
        let credited = assign_credit(&[], &method.credit);
        assert_eq!(credited, AssignedCredit::default());
        assert!(advantages(&[], &credited, &method.estimator).is_empty());
    }
}

#[test]
fn unfinished_meta_episode_has_zero_reflection_credit() {
    let transitions = [play(0, 0, 2.0), reflect(1)];
    let credited = assign_credit(&transitions, &CreditConfig::default());
    assert_eq!((credited.returns, credited.scores), (vec![2.0, 0.0], vec![2.0, 0.0]));
    let last = CreditConfig { assignment: CreditAssignment::FinalOnly, ..CreditConfig::default() };
    assert_eq!(returns(&transitions, &last), [2.0, 0.0]);
}

#[test]
#[should_panic(expected = "pass the result of `assign_credit`")]
fn credit_of_another_length_panics() {
    advantages(&members(2), &scored(&[1.0]), &Estimator::default());
}

#[test]
fn request_within_an_episode_has_the_return_of_its_turn() {
    let credit_of = |turn| {
        let transitions = [
            Transition { reward: 1.0, ..play(0, 0, 0.0) },
            Transition { reward: 2.0, ..play(0, 1, 0.0) },
            Transition { turn, ..reflect(0) },
        ];
        let config =
            CreditConfig { assignment: CreditAssignment::Cumulative, gamma_step: 1.0, ..CreditConfig::default() };
        assign_credit(&transitions, &config).returns[2]
    };
    assert_eq!(credit_of(0), 3.0, "before the episode: the whole episode");
    assert_eq!(credit_of(1), 2.0, "before the second turn: the rest");
}

#[test]
fn omit_previous_return_changes_own_returns_only() {
    // Two turns per episode; episode rewards 4, 1, 8.
    let transitions = meta_episode(0, &[4.0, 1.0, 8.0], 2);
    for recursion in [ReturnRecursion::Paper, ReturnRecursion::Released] {
        let included = CreditConfig { recursion, gamma_step: 0.5, gamma_traj: 0.6, ..CreditConfig::default() };
        let omitted = CreditConfig { omit_previous_return: true, ..included };
        let (with, without) = (assign_credit(&transitions, &included), assign_credit(&transitions, &omitted));
        assert_eq!(with.scores, without.scores);
        for (i, transition) in transitions.iter().enumerate() {
            let previous = [0.0, 4.0, 1.0][transition.episode as usize];
            // R_(n−1) is subtracted on the last turn; earlier turns and the reflection discount it.
            let discount = if transition.kind == TransitionKind::Play && transition.turn == 1 { 1.0 } else { 0.5 };
            assert_close(&[without.returns[i] - with.returns[i]], &[previous * discount], 1e-6);
        }
    }
    let lamer = CreditConfig { assignment: CreditAssignment::Cumulative, ..CreditConfig::default() };
    assert_eq!(
        assign_credit(&transitions, &lamer),
        assign_credit(&transitions, &CreditConfig { omit_previous_return: true, ..lamer })
    );
}
