//! Returns, advantages and penalties against independently computed values.

use crate::credit_support::{assert_close, find, meta_episode, play, reflect};
use mage_core::{
    CreditAssignment, CreditConfig, Estimator, Gigpo, LengthPenalty, Method, ReflectionScore, ReturnRecursion,
    TransitionKind, advantages, assign_credit, pass_at_k,
};

/// (rewards, first-turn returns, last-turn returns, first-turn returns under cumulative credit): four turns per
/// episode, γ_step 0.95, γ_traj 0.6, released recursion.
type Vector = (&'static [f32], &'static [f64], &'static [f64], &'static [f64]);
const VECTORS: [Vector; 6] = [
    (&[10.0], &[8.574], &[10.0], &[8.574]),
    (&[-10.0, 10.0], &[0.247, 17.148], &[0.289, 20.0], &[-4.163, 8.574]),
    (&[-10.0, -10.0, 10.0], &[-4.036, 8.821, 17.148], &[-4.707, 10.289, 20.0], &[-10.715, -4.163, 8.574]),
    (&[-10.0, 0.0, 0.0], &[-4.163, 8.574, 0.0], &[-4.856, 10.0, 0.0], &[-8.574, 0.0, 0.0]),
    (&[-10.0, -10.0, -10.0], &[-8.574, 0.0, 0.0], &[-10.0, 0.0, 0.0], &[-15.253, -12.984, -8.574]),
    (&[0.0, 0.0, 10.0], &[2.269, 4.411, 8.574], &[2.646, 5.144, 10.0], &[2.269, 4.411, 8.574]),
];

#[test]
fn returns_match_the_released_recursion() {
    let differential = CreditConfig { recursion: ReturnRecursion::Released, ..CreditConfig::default() };
    let cumulative = CreditConfig { assignment: CreditAssignment::Cumulative, ..differential };
    for (rewards, first, last, lamer) in VECTORS {
        let transitions = meta_episode(0, rewards, 4);
        let at = |credit_of: &CreditConfig, turn| -> Vec<f32> {
            let g = assign_credit(&transitions, credit_of).returns;
            (0..rewards.len() as u32).map(|n| g[find(&transitions, n, turn, TransitionKind::Play)]).collect()
        };
        assert_close(&at(&differential, 0), first, 1e-3);
        assert_close(&at(&differential, 3), last, 1e-3);
        assert_close(&at(&cumulative, 0), lamer, 1e-3);
        // Reflections have the return of the first turn after them.
        let g = assign_credit(&transitions, &differential).returns;
        for n in 1..rewards.len() as u32 {
            assert_eq!(
                g[find(&transitions, n, 0, TransitionKind::Reflect)],
                g[find(&transitions, n, 0, TransitionKind::Play)]
            );
        }
    }
}

#[test]
fn scores_are_improvements() {
    let transitions = meta_episode(0, &[-10.0, -10.0, 10.0], 4);
    let scores = assign_credit(&transitions, &CreditConfig::default()).scores;
    let improvements: Vec<f32> = (0..3).map(|n| scores[find(&transitions, n, 2, TransitionKind::Play)]).collect();
    assert_eq!(improvements, [-10.0, 0.0, 20.0]);
}

#[test]
fn returns_match_equation_seven_by_hand() {
    // R = (−10, 10), two turns each: g(2,1) = 0.95·20 = 19; G(1,2) = −10 + 0.6·19; G(1,1) = 0.95·(−10) + 0.6·19.
    let transitions = meta_episode(0, &[-10.0, 10.0], 2);
    let g = assign_credit(&transitions, &CreditConfig::default()).returns;
    assert_close(&g, &[-9.5 + 11.4, -10.0 + 11.4, 19.0, 19.0, 20.0], 1e-5);
}

#[test]
fn two_meta_episode_example_matches_released_method() {
    // A loses, reflects, wins; B wins at once.
    let mut transitions = vec![play(0, 0, -10.0), reflect(1), play(1, 0, 10.0), play(0, 0, 10.0)];
    transitions[3].meta_episode = 1;
    let config = CreditConfig { reflection: ReflectionScore::Faithful, ..CreditConfig::default() };
    let estimator = Estimator::Gigpo(Gigpo::RELEASED);
    for recursion in [ReturnRecursion::Paper, ReturnRecursion::Released] {
        let credited = assign_credit(&transitions, &CreditConfig { recursion, ..config });
        assert_eq!(credited.scores, [-10.0, 0.0, 20.0, 10.0]);
        assert_close(&credited.returns, &[2.0, 20.0, 20.0, 10.0], 1e-6);
        let levels = estimator.levels(&transitions, &credited);
        assert_eq!(levels.episode, [-15.0, -5.0, 15.0, 5.0]);
        let step: Vec<f32> = levels.step.iter().map(|&x| x as f32).collect();
        assert_close(&step, &[-26.0 / 3.0, 0.0, 28.0 / 3.0, -2.0 / 3.0], 1e-6);
        assert_close(&advantages(&transitions, &credited, &estimator), &[-23.667, -5.0, 24.333, 4.333], 1e-3);
    }
    // `mage_released` is this combination.
    let released = Method::named("mage_released").unwrap();
    let a = advantages(&transitions, &assign_credit(&transitions, &released.credit), &released.estimator);
    assert_close(&a, &[-23.667, -5.0, 24.333, 4.333], 1e-3);
}

#[test]
fn length_penalty_matches_equation_thirteen() {
    let p = LengthPenalty { limit: 3072, weight: 2.0 };
    let expected = [(0, 0.0), (1536, 0.0), (1537, 2.0 / 1536.0), (2304, 1.0), (3072, 2.0), (10_000, 2.0)];
    for (tokens, want) in expected {
        assert!((p.amount(tokens) - want).abs() < 1e-6, "{tokens} tokens: {}", p.amount(tokens));
    }
    assert_eq!(LengthPenalty { limit: 0, weight: 2.0 }.amount(0), 0.0);
}

#[test]
fn pass_at_k_matches_independent_retries() {
    for (p, curve) in [
        (0.105, [0.105, 0.283, 0.426, 0.670]),
        (0.288, [0.288, 0.639, 0.817, 0.967]),
        (0.565, [0.565, 0.918, 0.984, 1.000]),
    ] {
        for (k, want) in [1, 3, 5, 10].into_iter().zip(curve) {
            assert!((pass_at_k(p, k) - want).abs() < 1e-3, "p = {p}, k = {k}: {}", pass_at_k(p, k));
        }
    }
}

#[test]
fn gamma_traj_weights_episodes_in_the_objective() {
    // J = G of the first turn is linear in R: the weight of R in episode n.
    for (gamma_traj, weights) in [(0.6, [0.40, 0.24, 0.36]), (0.9, [0.10, 0.09, 0.81]), (1.0, [0.0, 0.0, 1.0])] {
        for n in 0..3 {
            let mut rewards = [0.0; 3];
            rewards[n] = 1.0;
            let transitions = meta_episode(0, &rewards, 1);
            let g = assign_credit(&transitions, &CreditConfig { gamma_traj, ..CreditConfig::default() }).returns[0];
            assert!((f64::from(g) - weights[n]).abs() < 1e-6, "γ_traj {gamma_traj}, episode {n}: {g}");
        }
    }
}
