//! What happened in an episode, and how much of it is shown?

use mage_env::{Anchor, End, Observation, Outcome, ParsedAction};
use serde::{Deserialize, Serialize};

use crate::RequestId;

/// One turn of an episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The call that chose the action.
    pub call: RequestId,
    /// The state it was chosen in.
    pub anchor: Anchor,
    /// What was done.
    pub action: ParsedAction,
    /// Whether the environment could do it.
    pub valid: bool,
    /// The environment's own reward.
    pub reward: f32,
    /// What was seen then.
    pub observation: Observation,
}

/// An episode, finished or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// What was seen first.
    pub start: Observation,
    /// What was done.
    pub turns: Vec<Turn>,
    /// How it ended, once it has.
    pub end: Option<End>,
}

impl Episode {
    /// The episode's result in the environment's own unit: the final score, or what was earned until it was cut off.
    pub fn score(&self) -> f32 {
        match self.end {
            Some(End::Terminated { score, .. }) => score,
            _ => self.turns.iter().map(|t| t.reward).sum(),
        }
    }

    /// Who won, if it ended by the rules.
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

    /// What is seen now.
    pub fn now(&self) -> &Observation {
        self.turns.last().map_or(&self.start, |t| &t.observation)
    }
}

/// How much of a trajectory a prompt shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// At most this many of the last turns.
    pub turns: usize,
    /// With what was seen after the last this many of them.
    pub observed: usize,
}

/// A turn as a prompt shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownTurn {
    /// Its number, from 1.
    pub number: usize,
    /// What was done, or the empty text if nothing could be read.
    pub action: String,
    /// Why it was invalid, if it was.
    pub invalid: Option<String>,
    /// What was seen then, if shown.
    pub observation: Option<String>,
}

impl Window {
    /// The part of `turns` inside the window.
    pub fn show(&self, turns: &[Turn]) -> Vec<ShownTurn> {
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
                let observed = i + self.observed >= total;
                ShownTurn { number: i + 1, action, invalid, observation: observed.then(|| t.observation.text.clone()) }
            })
            .collect()
    }
}

/// What separates the parts of a long observation.
const PARTS: &str = " [SEP] ";

/// Cuts every observation but the newest to its first `parts` parts, and says how many are missing.
pub(crate) fn cut_older(turns: &mut [ShownTurn], parts: Option<usize>) {
    let (Some(most), Some((_newest, older))) = (parts, turns.split_last_mut()) else { return };
    for text in older.iter_mut().filter_map(|t| t.observation.as_mut()) {
        let total = text.split(PARTS).count();
        if total > most {
            let kept: Vec<&str> = text.split(PARTS).take(most).collect();
            *text = format!("{} … ({} more)", kept.join(PARTS), total - most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_show_the_end_and_hide_old_observations() {
        let turn = |i: u32| Turn {
            call: RequestId(i),
            anchor: Anchor(String::new()),
            action: if i == 8 { ParsedAction::invalid("no tag") } else { ParsedAction::Act(format!("a{i}")) },
            valid: i != 8,
            reward: 0.0,
            observation: Observation { text: format!("o{i}"), compact: String::new() },
        };
        let turns: Vec<Turn> = (0..10).map(turn).collect();
        let shown = Window { turns: 4, observed: 2 }.show(&turns);
        let numbers: Vec<usize> = shown.iter().map(|t| t.number).collect();
        assert_eq!(numbers, [7, 8, 9, 10]);
        assert_eq!(shown[1].observation, None);
        assert_eq!(shown[2].invalid.as_deref(), Some("no tag"));
        assert_eq!(shown[3].observation.as_deref(), Some("o9"));
        assert_eq!(Window { turns: 0, observed: 9 }.show(&turns).len(), 0);
        assert_eq!(Window { turns: 99, observed: 99 }.show(&turns).len(), 10);
    }

    #[test]
    fn long_observations_are_cut_except_the_newest() {
        let shown = |text: &str| ShownTurn {
            number: 1,
            action: String::new(),
            invalid: None,
            observation: Some(text.to_owned()),
        };
        let mut turns = [shown("a [SEP] b [SEP] c"), shown("a [SEP] b"), shown("a [SEP] b [SEP] c")];
        cut_older(&mut turns, Some(2));
        let seen: Vec<_> = turns.iter().map(|t| t.observation.as_deref().unwrap()).collect();
        assert_eq!(seen, ["a [SEP] b … (1 more)", "a [SEP] b", "a [SEP] b [SEP] c"]);
        cut_older(&mut turns, None);
        assert_eq!(turns[0].observation.as_deref(), Some("a [SEP] b … (1 more)"));
    }
}
