//! Episodes, and the window of past turns that a prompt shows.

use crate::RequestId;
use mage_env::{Anchor, End, Observation, Outcome, ParsedAction};
use serde::{Deserialize, Serialize};

/// One turn of an episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The request for the action.
    pub request: RequestId,
    /// The state before the action.
    pub anchor: Anchor,
    /// The action.
    pub action: ParsedAction,
    /// Whether the action was legal.
    pub valid: bool,
    /// The environment's reward.
    pub reward: f32,
    /// The observation after the action.
    pub observation: Observation,
}

/// An episode, possibly unfinished.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The initial observation.
    pub start: Observation,
    /// The turns.
    pub turns: Vec<Turn>,
    /// The end, if it has ended.
    pub end: Option<End>,
    /// Its expectation, where the game was enumerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedValue>,
}

/// The expectation of score and win over deals, opponent actions and policy actions, given the policy's memory at the
/// start of the episode; present where the game was enumerated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedValue {
    /// Expected score, in the environment's unit.
    pub score: f64,
    /// Probability of a win.
    pub won: f64,
}

impl Episode {
    /// The score in the environment's unit: the final score or, if truncated, the sum of rewards.
    pub fn score(&self) -> f32 {
        match self.end {
            Some(End::Terminated { score, .. }) => score,
            _ => self.turns.iter().map(|t| t.reward).sum(),
        }
    }

    /// The outcome, if it ended by the rules.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.end {
            Some(End::Terminated { outcome, .. }) => Some(outcome),
            _ => None,
        }
    }

    /// Whether the agent won.
    pub fn won(&self) -> bool {
        self.outcome() == Some(Outcome::Won)
    }

    /// The latest observation.
    pub fn last_observation(&self) -> &Observation {
        self.turns.last().map_or(&self.start, |t| &t.observation)
    }
}

/// The window of past turns that a prompt shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryWindow {
    /// Number of latest turns to show.
    pub turns: usize,
    /// Number of latest turns to show with their observations.
    pub observations: usize,
}

/// A turn as a prompt template sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RenderedTurn {
    /// Index of the turn, from 1.
    pub number: usize,
    /// The action, or an empty string if none could be parsed.
    pub action: String,
    /// Why it was invalid, if so.
    pub invalid: Option<String>,
    /// The observation after the action, if inside the window.
    pub observation: Option<String>,
}

impl HistoryWindow {
    /// Renders the turns inside the window.
    pub(crate) fn render(&self, turns: &[Turn]) -> Vec<RenderedTurn> {
        let total = turns.len();
        let skip = total.saturating_sub(self.turns);
        let shown = turns.iter().enumerate().skip(skip);
        shown
            .map(|(i, t)| {
                let (action, invalid) = match &t.action {
                    ParsedAction::Act(a) if t.valid => (a.clone(), None),
                    ParsedAction::Act(a) => (a.clone(), Some("it is not possible here".to_owned())),
                    ParsedAction::Invalid { reason } => (String::new(), Some(reason.clone())),
                };
                let observed = i + self.observations >= total;
                RenderedTurn {
                    number: i + 1,
                    action,
                    invalid,
                    observation: observed.then(|| t.observation.text.clone()),
                }
            })
            .collect()
    }
}

/// Separator between the parts of a long observation.
const PART_SEPARATOR: &str = " [SEP] ";

/// Truncates all observations except the newest to `max_parts` parts and appends the number of omitted parts.
pub(crate) fn truncate_older(turns: &mut [RenderedTurn], max_parts: Option<usize>) {
    let (Some(max_parts), Some((_newest, older))) = (max_parts, turns.split_last_mut()) else { return };
    for text in older.iter_mut().filter_map(|t| t.observation.as_mut()) {
        let total = text.split(PART_SEPARATOR).count();
        if total > max_parts {
            let kept: Vec<&str> = text.split(PART_SEPARATOR).take(max_parts).collect();
            *text = format!("{} … ({} more)", kept.join(PART_SEPARATOR), total - max_parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_shows_latest_turns_and_hides_older_observations() {
        let turn = |i: u32| Turn {
            request: RequestId(i),
            anchor: Anchor(String::new()),
            action: if i == 8 { ParsedAction::invalid("no tag") } else { ParsedAction::Act(format!("a{i}")) },
            valid: i != 8,
            reward: 0.0,
            observation: Observation { text: format!("o{i}"), compact: String::new() },
        };
        let turns: Vec<Turn> = (0..10).map(turn).collect();
        let shown = HistoryWindow { turns: 4, observations: 2 }.render(&turns);
        let indices: Vec<usize> = shown.iter().map(|t| t.number).collect();
        assert_eq!(indices, [7, 8, 9, 10]);
        assert_eq!(shown[1].observation, None);
        assert_eq!(shown[2].invalid.as_deref(), Some("no tag"));
        assert_eq!(shown[3].observation.as_deref(), Some("o9"));
        assert_eq!(HistoryWindow { turns: 0, observations: 9 }.render(&turns).len(), 0);
        assert_eq!(HistoryWindow { turns: 99, observations: 99 }.render(&turns).len(), 10);
    }

    #[test]
    fn older_observations_are_truncated_and_the_newest_is_kept() {
        let rendered = |text: &str| RenderedTurn {
            number: 1,
            action: String::new(),
            invalid: None,
            observation: Some(text.to_owned()),
        };
        let mut turns = [rendered("a [SEP] b [SEP] c"), rendered("a [SEP] b"), rendered("a [SEP] b [SEP] c")];
        truncate_older(&mut turns, Some(2));
        let observations: Vec<_> = turns.iter().map(|t| t.observation.as_deref().unwrap()).collect();
        assert_eq!(observations, ["a [SEP] b … (1 more)", "a [SEP] b", "a [SEP] b [SEP] c"]);
        truncate_older(&mut turns, None);
        assert_eq!(turns[0].observation.as_deref(), Some("a [SEP] b … (1 more)"));
    }
}
