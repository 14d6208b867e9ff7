//! Conversion of trajectories to transitions and results.

use crate::{
    EpisodeResult, MetaEpisodeResult, Penalty, RequestKind, RewardRule, Trajectory, Transition, TransitionKind,
    episode::Episode,
};
use mage_env::{Anchor, End, Seed};

/// The transitions of a trajectory, in request order, each with the index of its request.
///
/// A trajectory with an error has none: unfinished meta-episodes are not trained on.
pub fn transitions(
    trajectory: &Trajectory,
    index: MetaEpisodeIndex,
    rewards: &RewardRule,
    penalty: &Penalty,
) -> Vec<IndexedTransition> {
    if trajectory.error.is_some() {
        return Vec::new();
    }
    let rewards: Vec<Vec<f32>> = trajectory.episodes.iter().map(|e| episode_rewards(e, rewards)).collect();
    let trainable = trajectory.requests.iter().enumerate().filter(|(_, r)| r.trainable);
    trainable
        .map(|(i, request)| {
            let is_play = request.kind == RequestKind::Play;
            let (episode, turn) = (request.episode as usize, request.turn as usize);
            let anchor = match is_play {
                true => anchor_hash(&trajectory.episodes[episode].turns[turn].anchor),
                false => reflection_hash(),
            };
            let tokens = request.completion.tokens.as_ref().map_or(0, |t| t.response.len() as u32);
            let transition = Transition {
                group: index.group,
                meta_episode: index.meta_episode,
                episode: request.episode,
                turn: request.turn,
                kind: if is_play { TransitionKind::Play } else { TransitionKind::Reflect },
                anchor,
                opponent: index.opponent,
                reward: if is_play { rewards[episode][turn] } else { 0.0 },
                penalty: penalty.amount(request.invalid.is_none(), tokens),
            };
            IndexedTransition { request: i, transition }
        })
        .collect()
}

/// The position of a meta-episode in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaEpisodeIndex {
    /// Its group.
    pub group: u32,
    /// Its index, unique over all groups.
    pub meta_episode: u32,
    /// Caller-defined id of the opponent.
    pub opponent: u32,
}

/// A transition with the index of its request in the trajectory.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedTransition {
    /// Index into [`Trajectory::requests`].
    pub request: usize,
    /// The transition.
    pub transition: Transition,
}

fn episode_rewards(episode: &Episode, rule: &RewardRule) -> Vec<f32> {
    let steps: Vec<f32> = episode.turns.iter().map(|t| t.reward).collect();
    rule.apply(episode.end.unwrap_or(End::Truncated), &steps)
}

/// A hash of an anchor's text, for grouping transitions by state.
fn anchor_hash(anchor: &Anchor) -> u64 {
    Seed::new(0).child("state").child(&anchor.0).value()
}

/// The anchor hash of all reflections; no state has it.
fn reflection_hash() -> u64 {
    Seed::new(0).child("reflection").value()
}

impl Trajectory {
    /// The result for metrics; `None` if the trajectory has an error.
    pub fn result(&self) -> Option<MetaEpisodeResult> {
        if self.error.is_some() {
            return None;
        }
        let episodes = self.episodes.iter().map(|e| EpisodeResult {
            ending: e.end.unwrap_or(End::Truncated).into(),
            score: f64::from(e.score()),
            actions: e.turns.len() as u32,
            invalid: e.turns.iter().filter(|t| !t.valid).count() as u32,
            expected: e.expected,
        });
        Some(MetaEpisodeResult {
            opponent: self.task.opponent.as_ref().map(|o| o.name.clone()),
            seat: self.task.seat,
            episodes: episodes.collect(),
            stopped_after_win: self.stopped_early,
        })
    }
}
