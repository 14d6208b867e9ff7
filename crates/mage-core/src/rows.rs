//! How do records become rows and results?

use crate::{
    EpisodeResult, MetaResult, Penalty, Phase, RequestKind, RewardRule, Trajectory, Transition, history::Episode,
};
use mage_env::{Anchor, End, Seed};

/// The trainable calls of a record as rows, in the order the calls were made; `calls` tells which call each row is.
///
/// A record with an error gives no rows: what could not be finished is not learned from.
pub fn rows(
    record: &Trajectory,
    place: MetaEpisodeIndex,
    rewards: &RewardRule,
    penalty: &Penalty,
) -> Vec<IndexedTransition> {
    if record.error.is_some() {
        return Vec::new();
    }
    let rewards: Vec<Vec<f32>> = record.episodes.iter().map(|e| episode_rewards(e, rewards)).collect();
    let trainable = record.calls.iter().enumerate().filter(|(_, c)| c.trainable);
    trainable
        .map(|(index, call)| {
            let playing = call.purpose == RequestKind::Play;
            let (episode, turn) = (call.episode as usize, call.turn as usize);
            let anchor = match playing {
                true => anchor_key(&record.episodes[episode].turns[turn].anchor),
                false => reflection_key(),
            };
            let tokens = call.answer.tokens.as_ref().map_or(0, |t| t.response.len() as u32);
            let row = Transition {
                group: place.group,
                meta_episode: place.meta_episode,
                episode: call.episode,
                turn: call.turn,
                phase: if playing { Phase::Play } else { Phase::Reflect },
                anchor,
                opponent: place.opponent,
                reward: if playing { rewards[episode][turn] } else { 0.0 },
                penalty: penalty.of(call.invalid.is_none(), tokens),
            };
            IndexedTransition { call: index, row }
        })
        .collect()
}

/// Where a meta-episode stands among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaEpisodeIndex {
    /// Its group.
    pub group: u32,
    /// Its own number, unique over all groups.
    pub meta_episode: u32,
    /// Who sat opposite, as a number of the caller's choice.
    pub opponent: u32,
}

/// A row, and the index of its call in the record.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedTransition {
    /// Which of the record's calls.
    pub call: usize,
    /// The row.
    pub row: Transition,
}

fn episode_rewards(episode: &Episode, rule: &RewardRule) -> Vec<f32> {
    let steps: Vec<f32> = episode.turns.iter().map(|t| t.reward).collect();
    rule.apply(episode.end.unwrap_or(End::Truncated), &steps)
}

/// A hash of an anchor's text, for grouping rows.
pub fn anchor_key(anchor: &Anchor) -> u64 {
    Seed::new(0).child("state").child(&anchor.0).value()
}

/// The anchor that all reflections share; no state has it.
fn reflection_key() -> u64 {
    Seed::new(0).child("reflection").value()
}

impl Trajectory {
    /// What it came to, for metrics; `None` for a record with an error, which is not a result.
    pub fn result(&self) -> Option<MetaResult> {
        if self.error.is_some() {
            return None;
        }
        let episodes = self.episodes.iter().map(|e| EpisodeResult {
            ending: e.end.unwrap_or(End::Truncated).into(),
            score: f64::from(e.score()),
            answers: e.turns.len() as u32,
            invalid: e.turns.iter().filter(|t| !t.valid).count() as u32,
        });
        Some(MetaResult {
            opponent: self.task.opponent.as_ref().map(|o| o.name.clone()),
            seat: self.task.seat,
            episodes: episodes.collect(),
            stopped_after_win: self.stopped_early,
        })
    }
}
