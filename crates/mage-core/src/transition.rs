//! Transitions: the trainable requests of a trajectory, reduced to the fields that credit assignment needs.
//!
//! This crate computes returns and advantages from transitions. The caller keeps the tokens, in the same order.

use serde::{Deserialize, Serialize};

/// Whether a transition is an action or an auxiliary request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionKind {
    /// An action in an episode.
    Play,
    /// Any other request (reflection, note, plan). It belongs to the episode that follows it.
    Reflect,
}

/// One trainable request.
///
/// The transitions of a meta-episode are in request order: play transitions of episode 0, reflections of episode 1,
/// play transitions of episode 1, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// The group: meta-episodes whose returns are compared.
    pub group: u32,
    /// The meta-episode, unique over all groups.
    pub meta_episode: u32,
    /// The episode, from 0. A reflection belongs to the episode after it.
    pub episode: u32,
    /// The turn within the episode, from 0. For other requests: the turn that follows.
    pub turn: u32,
    /// Play or reflect.
    pub kind: TransitionKind,
    /// The state: a hash of the anchor text. All reflections share one value.
    pub anchor: u64,
    /// Caller-defined id of the opponent; 0 without an opponent. Use one id per pair of opponent and seat to keep seats
    /// apart when pooling over opponents.
    pub opponent: u32,
    /// The environment's reward, after outcome rewards were applied; 0 for reflections.
    pub reward: f32,
    /// The deduction for this transition alone (invalid completion, length); not negative.
    pub penalty: f32,
}
