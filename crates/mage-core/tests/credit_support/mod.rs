//! Constructors of transitions.

use mage_core::{Transition, TransitionKind};

/// The anchor of all reflections.
pub(crate) const REFLECTION: u64 = u64::MAX;

/// A play transition of meta-episode and group 0.
pub(crate) fn play(episode: u32, turn: u32, reward: f32) -> Transition {
    Transition {
        group: 0,
        meta_episode: 0,
        episode,
        turn,
        kind: TransitionKind::Play,
        anchor: 1,
        opponent: 0,
        reward,
        penalty: 0.0,
    }
}

/// The reflection before `episode`.
pub(crate) fn reflect(episode: u32) -> Transition {
    Transition { kind: TransitionKind::Reflect, anchor: REFLECTION, ..play(episode, 0, 0.0) }
}

/// A meta-episode with `turns` turns per episode, `rewards` on the last turns, and reflections between episodes.
pub(crate) fn meta_episode(id: u32, rewards: &[f32], turns: u32) -> Vec<Transition> {
    let mut transitions = Vec::new();
    for (n, &reward) in rewards.iter().enumerate() {
        let n = n as u32;
        if n > 0 {
            transitions.push(reflect(n));
        }
        transitions.extend((0..turns).map(|t| play(n, t, if t + 1 == turns { reward } else { 0.0 })));
    }
    transitions.iter_mut().for_each(|r| r.meta_episode = id);
    transitions
}

/// The index of the transition of an episode, turn and kind.
pub(crate) fn find(transitions: &[Transition], episode: u32, turn: u32, kind: TransitionKind) -> usize {
    transitions
        .iter()
        .position(|r| (r.episode, r.turn, r.kind) == (episode, turn, kind))
        .expect("the transition exists")
}

#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{got:?} against {want:?}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() <= tolerance, "value {i}: got {g}, want {w} (all: {got:?})");
    }
}
