//! Properties of credit and advantages for arbitrary transitions.

use crate::credit_support::{REFLECTION, play};
use mage_core::{
    AdvantageNorm, AnchorScope, AssignedCredit, BaselineScope, BaselineUnit, CreditAssignment, CreditConfig,
    CreditSignal, Estimator, Gigpo, Grpo, PenaltyMode, ReflectionScore, ReturnRecursion, ReturnToGo, Rloo, Transition,
    TransitionKind, advantages, assign_credit,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const UNITS: [BaselineUnit; 4] =
    [BaselineUnit::Transition, BaselineUnit::Episode, BaselineUnit::MetaEpisode, BaselineUnit::EpisodeIndex];

/// Turns of an episode: (reward, penalty, anchor).
type Turns = Vec<(f32, f32, u64)>;
/// Episodes of a meta-episode: (reflected on before?, turns).
type Episodes = Vec<(bool, Turns)>;
/// Values by meta-episode and episode.
type ByEpisode = BTreeMap<u32, BTreeMap<u32, Vec<f64>>>;

/// Groups of meta-episodes with arbitrary numbers of episodes and turns; one opponent per group.
fn batch(reward: impl Strategy<Value = f32>) -> impl Strategy<Value = Vec<Transition>> {
    let turn = (reward, prop_oneof![Just(0.0_f32), Just(0.5), Just(0.25)], 0_u64..3);
    let episode = (any::<bool>(), prop::collection::vec(turn, 1..4));
    let meta = prop::collection::vec(episode, 1..4);
    prop::collection::vec((0_u32..2, prop::collection::vec(meta, 1..4)), 1..4).prop_map(|groups| lay_out(&groups))
}

fn lay_out(groups: &[(u32, Vec<Episodes>)]) -> Vec<Transition> {
    let mut transitions = Vec::new();
    let mut id = 0;
    for (group, (opponent, members)) in groups.iter().enumerate() {
        for member in members {
            for (n, (reflected, turns)) in member.iter().enumerate() {
                let at = |turn: usize| Transition {
                    group: group as u32,
                    meta_episode: id,
                    opponent: *opponent,
                    ..play(n as u32, turn as u32, 0.0)
                };
                if n > 0 && *reflected {
                    transitions.push(Transition {
                        kind: TransitionKind::Reflect,
                        anchor: REFLECTION,
                        penalty: 0.25,
                        ..at(0)
                    });
                }
                for (t, &(reward, penalty, anchor)) in turns.iter().enumerate() {
                    transitions.push(Transition { reward, penalty, anchor, ..at(t) });
                }
            }
            id += 1;
        }
    }
    transitions
}

fn any_batch() -> impl Strategy<Value = Vec<Transition>> {
    batch(-10.0_f32..10.0)
}

fn any_credit() -> impl Strategy<Value = CreditConfig> {
    use CreditAssignment::{Cumulative, Differential, FinalOnly, Single};
    (
        prop::sample::select(vec![Differential, Cumulative, Single, FinalOnly]),
        prop::sample::select(vec![ReturnRecursion::Paper, ReturnRecursion::Released]),
        0.0..=1.0_f64,
        0.0..=1.0_f64,
        prop::sample::select(vec![ReflectionScore::Faithful, ReflectionScore::Corrected]),
        prop::sample::select(vec![
            PenaltyMode::PerTransition,
            PenaltyMode::EpisodeReward,
            PenaltyMode::EpisodeLevelOnly,
        ]),
        any::<bool>(),
    )
        .prop_map(|(assignment, recursion, gamma_step, gamma_traj, reflection, penalty, omit_previous_return)| {
            CreditConfig { assignment, recursion, gamma_step, gamma_traj, reflection, penalty, omit_previous_return }
        })
}

fn any_estimator() -> impl Strategy<Value = Estimator> {
    let scope = prop::sample::select(vec![BaselineScope::Group, BaselineScope::Opponent, BaselineScope::All]);
    let norm = prop::sample::select(vec![AdvantageNorm::Mean, AdvantageNorm::MeanStd]);
    let baseline = prop::sample::select(UNITS.to_vec());
    let anchors = prop::sample::select(vec![AnchorScope::Global, AnchorScope::Local]);
    let signal = prop::sample::select(vec![CreditSignal::Score, CreditSignal::Return]);
    (0..4, scope, norm, baseline, anchors, signal, 0.0..2.0_f64).prop_map(
        |(kind, scope, norm, baseline, anchors, signal, step_weight)| match kind {
            0 => Estimator::ReturnToGo(ReturnToGo { scope }),
            1 => Estimator::Gigpo(Gigpo { scope, step_weight, norm, baseline, anchors }),
            2 => Estimator::Grpo(Grpo { scope, norm, baseline, signal }),
            _ => Estimator::Rloo(Rloo { scope, baseline, signal }),
        },
    )
}

fn scope_key(scope: BaselineScope, transition: &Transition) -> u32 {
    match scope {
        BaselineScope::Group => transition.group,
        BaselineScope::Opponent => transition.opponent,
        BaselineScope::All => 0,
    }
}

fn average(xs: impl IntoIterator<Item = f64>) -> f64 {
    let xs: Vec<f64> = xs.into_iter().collect();
    xs.iter().sum::<f64>() / xs.len() as f64
}

/// The sum over units of the level's mean within each unit, per bucket: an independent implementation with maps.
fn sums_over_units(transitions: &[Transition], level: &[f64], scope: BaselineScope, unit: BaselineUnit) -> Vec<f64> {
    let mut buckets: BTreeMap<(u32, u32), ByEpisode> = BTreeMap::new();
    let mut in_scope: BTreeMap<u32, usize> = BTreeMap::new();
    for (transition, &x) in transitions.iter().zip(level) {
        let s = scope_key(scope, transition);
        *in_scope.entry(s).or_default() += 1;
        let index = if unit == BaselineUnit::EpisodeIndex { transition.episode } else { 0 };
        let members = buckets.entry((s, index)).or_default();
        members.entry(transition.meta_episode).or_default().entry(transition.episode).or_default().push(x);
    }
    buckets.retain(|(s, _), _| in_scope[s] > 1);
    let of_bucket = |metas: &ByEpisode| -> f64 {
        let episodes = || metas.values().flat_map(BTreeMap::values);
        match unit {
            BaselineUnit::Transition => episodes().flatten().sum(),
            BaselineUnit::Episode | BaselineUnit::EpisodeIndex => episodes().map(|e| average(e.clone())).sum(),
            BaselineUnit::MetaEpisode => metas.values().map(|m| average(m.values().map(|e| average(e.clone())))).sum(),
        }
    };
    buckets.values().map(of_bucket).collect()
}

fn sums_over_rows<K: Ord>(transitions: &[Transition], level: &[f64], key: impl Fn(&Transition) -> K) -> Vec<f64> {
    let mut sums: BTreeMap<K, f64> = BTreeMap::new();
    for (transition, x) in transitions.iter().zip(level) {
        *sums.entry(key(transition)).or_default() += x;
    }
    sums.into_values().collect()
}

fn all_zero(sums: &[f64], level: &[f64]) -> bool {
    let scale = 1.0 + level.iter().map(|x| x.abs()).sum::<f64>();
    sums.iter().all(|s| s.abs() < 1e-9 * scale)
}

proptest! {
    #[test]
    fn every_level_sums_to_zero_over_its_units(transitions in any_batch(), config in any_credit(), estimator in any_estimator()) {
        let levels = estimator.levels(&transitions, &assign_credit(&transitions, &config));
        match estimator {
            Estimator::ReturnToGo(ReturnToGo { scope }) => {
                let sums = sums_over_rows(&transitions, &levels.step, |r| (scope_key(scope, r), r.episode));
                prop_assert!(all_zero(&sums, &levels.step), "{sums:?}");
                prop_assert!(levels.episode.iter().all(|x| *x == 0.0));
            }
            Estimator::Gigpo(Gigpo { scope, baseline, anchors, .. }) => {
                let sums = sums_over_units(&transitions, &levels.episode, scope, baseline);
                prop_assert!(all_zero(&sums, &levels.episode), "{sums:?}");
                let local = |r: &Transition| if anchors == AnchorScope::Local { r.episode } else { 0 };
                let sums = sums_over_rows(&transitions, &levels.step, |r| (scope_key(scope, r), r.anchor, local(r)));
                prop_assert!(all_zero(&sums, &levels.step), "{sums:?}");
            }
            Estimator::Grpo(Grpo { scope, baseline, .. }) | Estimator::Rloo(Rloo { scope, baseline, .. }) => {
                let sums = sums_over_units(&transitions, &levels.episode, scope, baseline);
                prop_assert!(all_zero(&sums, &levels.episode), "{sums:?}");
                prop_assert!(levels.step.iter().all(|x| *x == 0.0));
            }
        }
    }

    #[test]
    fn permuting_transitions_changes_no_bit(
        (transitions, order) in any_batch().prop_flat_map(|transitions| {
            let order: Vec<usize> = (0..transitions.len()).collect();
            (Just(transitions), Just(order).prop_shuffle())
        }),
        config in any_credit(),
        estimator in any_estimator(),
    ) {
        let shuffled: Vec<Transition> = order.iter().map(|&i| transitions[i].clone()).collect();
        let (straight, mixed) = (assign_credit(&transitions, &config), assign_credit(&shuffled, &config));
        let (a, b) = (advantages(&transitions, &straight, &estimator), advantages(&shuffled, &mixed, &estimator));
        // Levels have more precision than advantages and would reveal another order of summation.
        let (levels, mixed_levels) = (estimator.levels(&transitions, &straight), estimator.levels(&shuffled, &mixed));
        for (position, &i) in order.iter().enumerate() {
            prop_assert_eq!(straight.returns[i].to_bits(), mixed.returns[position].to_bits());
            prop_assert_eq!(straight.scores[i].to_bits(), mixed.scores[position].to_bits());
            prop_assert_eq!(a[i].to_bits(), b[position].to_bits());
            prop_assert_eq!(levels.episode[i].to_bits(), mixed_levels.episode[position].to_bits());
            prop_assert_eq!(levels.step[i].to_bits(), mixed_levels.step[position].to_bits());
        }
    }

    #[test]
    fn credit_of_a_meta_episode_is_independent_of_others(transitions in any_batch(), config in any_credit()) {
        // A meta-episode alone has the same credit as in the batch.
        let together = assign_credit(&transitions, &config);
        for id in transitions.iter().map(|r| r.meta_episode).collect::<BTreeSet<_>>() {
            let own: Vec<usize> = (0..transitions.len()).filter(|&i| transitions[i].meta_episode == id).collect();
            let alone = assign_credit(&own.iter().map(|&i| transitions[i].clone()).collect::<Vec<_>>(), &config);
            for (position, &i) in own.iter().enumerate() {
                prop_assert_eq!(alone.returns[position], together.returns[i]);
                prop_assert_eq!(alone.scores[position], together.scores[i]);
            }
        }
    }

    #[test]
    fn differential_returns_telescope(mut transitions in any_batch(), released in any::<bool>()) {
        transitions.iter_mut().for_each(|r| r.penalty = 0.0);
        let recursion = if released { ReturnRecursion::Released } else { ReturnRecursion::Paper };
        let config = CreditConfig { recursion, gamma_step: 1.0, gamma_traj: 1.0, ..CreditConfig::default() };
        let credited = assign_credit(&transitions, &config);
        let reward = |meta: u32, episode: u32| -> f64 {
            let of = transitions.iter().filter(|r| (r.meta_episode, r.episode) == (meta, episode));
            of.map(|r| f64::from(r.reward)).sum()
        };
        for (t, &g) in transitions.iter().zip(&credited.returns) {
            let last = transitions.iter().filter(|r| r.meta_episode == t.meta_episode).map(|r| r.episode).max().unwrap();
            let before = if t.episode == 0 { 0.0 } else { reward(t.meta_episode, t.episode - 1) };
            let want = reward(t.meta_episode, last) - before;
            prop_assert!((f64::from(g) - want).abs() < 1e-4, "{g} instead of {want}");
        }
    }

    #[test]
    fn recursions_agree_without_turn_discount(transitions in any_batch(), config in any_credit()) {
        let of = |recursion| assign_credit(&transitions, &CreditConfig { recursion, gamma_step: 1.0, ..config }).returns;
        for (p, r) in of(ReturnRecursion::Paper).into_iter().zip(of(ReturnRecursion::Released)) {
            prop_assert!((p - r).abs() < 1e-3, "{p} against {r}");
        }
    }

    #[test]
    fn differential_equals_cumulative_with_free_failures_and_early_stop(
        lengths in prop::collection::vec(1_u32..5, 1..5), won in any::<bool>(), config in any_credit(),
    ) {
        // Failures have reward 0; only the last episode can be won.
        let mut transitions = Vec::new();
        for (n, &turns) in lengths.iter().enumerate() {
            let last = won && n + 1 == lengths.len();
            transitions.extend((0..turns).map(|t| play(n as u32, t, if last && t + 1 == turns { 10.0 } else { 0.0 })));
        }
        let of = |assignment| assign_credit(&transitions, &CreditConfig { assignment, ..config });
        prop_assert_eq!(of(CreditAssignment::Differential), of(CreditAssignment::Cumulative));
    }

    #[test]
    fn return_to_go_is_invariant_to_a_constant_reward(
        rewards in prop::collection::vec(prop::collection::vec(-2.0_f32..2.0, 3), 2..6),
        turns in 1_u32..4,
        constant in -10.0_f32..10.0,
    ) {
        // All members play three episodes. The constant appears in the first improvement only; without turn discount it
        // is equal for all transitions of the first episode, and the mean removes it.
        let config = CreditConfig { gamma_step: 1.0, ..CreditConfig::default() };
        let advantages_with = |shift: f32| {
            let mut transitions = Vec::new();
            for (m, member) in rewards.iter().enumerate() {
                let shifted: Vec<f32> = member.iter().map(|r| r + shift).collect();
                transitions.extend(crate::credit_support::meta_episode(m as u32, &shifted, turns));
            }
            advantages(&transitions, &assign_credit(&transitions, &config), &Estimator::default())
        };
        for (a, b) in advantages_with(0.0).into_iter().zip(advantages_with(constant)) {
            prop_assert!((a - b).abs() < 1e-4, "{a} became {b}");
        }
    }

    #[test]
    fn finite_rewards_give_finite_advantages(
        transitions in batch(prop_oneof![Just(f32::MAX), Just(f32::MIN), Just(f32::MIN_POSITIVE), prop::num::f32::NORMAL]),
        config in any_credit(),
        estimator in any_estimator(),
    ) {
        let credited = assign_credit(&transitions, &config);
        prop_assert!(credited.returns.iter().chain(&credited.scores).all(|x| x.is_finite()));
        prop_assert!(advantages(&transitions, &credited, &estimator).iter().all(|x| x.is_finite()));
    }
}

#[test]
fn a_constant_reward_matters_if_numbers_of_episodes_differ() {
    // The counterpart of the property above: member 0 stops after its first episode, member 1 continues.
    let advantages_with = |shift: f32| {
        let transitions = [
            crate::credit_support::meta_episode(0, &[1.0 + shift], 1),
            crate::credit_support::meta_episode(1, &[shift, 1.0 + shift], 1),
        ]
        .concat();
        advantages(
            &transitions,
            &assign_credit(&transitions, &CreditConfig::default()),
            &Estimator::Gigpo(Gigpo::RELEASED),
        )
    };
    assert_ne!(advantages_with(0.0), advantages_with(1.0));
}

#[test]
fn zero_sum_checks_detect_uncentred_levels() {
    // Sums of uncentred levels are not zero.
    let transitions =
        [crate::credit_support::meta_episode(0, &[1.0], 2), crate::credit_support::meta_episode(1, &[3.0], 1)].concat();
    let credited: AssignedCredit = assign_credit(&transitions, &CreditConfig::default());
    let raw: Vec<f64> = credited.scores.iter().map(|&x| f64::from(x)).collect();
    for unit in UNITS {
        assert!(!all_zero(&sums_over_units(&transitions, &raw, BaselineScope::Group, unit), &raw));
    }
    // A level centred over transitions is not centred over episodes.
    let by_transition = Estimator::Gigpo(Gigpo::RELEASED).levels(&transitions, &credited).episode;
    assert!(all_zero(
        &sums_over_units(&transitions, &by_transition, BaselineScope::Group, BaselineUnit::Transition),
        &by_transition
    ));
    assert!(!all_zero(
        &sums_over_units(&transitions, &by_transition, BaselineScope::Group, BaselineUnit::Episode),
        &by_transition
    ));
}
