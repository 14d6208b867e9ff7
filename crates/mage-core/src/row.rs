//! What is one decision worth learning from?
//!
//! A [`Transition`] is one call to the model that will be trained on, reduced to what credit assignment needs. Rows are what
//! the functions in this crate turn into returns and advantages; tokens stay with the caller, in the same order.

use serde::{Deserialize, Serialize};

/// What a call was for, as far as credit is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// An action in an episode.
    Play,
    /// Any other call (a reflection, a note, a plan); it belongs to the episode it will help.
    Reflect,
}

/// One trainable call.
///
/// Rows of one meta-episode stand in the order the calls were made: play rows of episode 0, reflect rows of episode 1,
/// play rows of episode 1, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// The group: meta-episodes that are compared with each other.
    pub group: u32,
    /// The meta-episode, unique over all groups.
    pub meta_episode: u32,
    /// The episode it belongs to, from 0. A reflection belongs to the episode after it.
    pub episode: u32,
    /// The turn within the episode, from 0; for other calls the turn they come before.
    pub turn: u32,
    /// Play or reflect.
    pub phase: Phase,
    /// The state it was made in: a hash of the anchor text (all reflections share one).
    pub anchor: u64,
    /// Who sat opposite, as a number of the caller's choice; 0 where there is nobody. Number pairs of opponent and seat
    /// to keep the seats apart when pooling over opponents.
    pub opponent: u32,
    /// The environment's reward for it, after outcome rewards were applied; 0 for reflections.
    pub reward: f32,
    /// What was deducted for this row alone (invalid answer, length); not negative.
    pub penalty: f32,
}
