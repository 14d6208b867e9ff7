//! What does one agent face?
//!
//! [`Env`] is a game with the other seats filled, or a world. It is object safe: the machinery above holds thousands
//! of different ones at once.

use crate::GameTree;
use serde::{Deserialize, Serialize};

/// A task that can be attempted again and again.
pub trait Env: Send {
    /// Starts episode `episode` (from 0) of the task. Opponent, seat and start are the task's; all later chance
    /// comes from streams derived from (seed, episode, turn), so luck is never replayed from one episode to the next.
    fn reset(&mut self, episode: u32) -> Observation;

    /// Reads an action from what an agent wrote (tags already removed). Never fails: what cannot be read is
    /// [`ParsedAction::Invalid`] with the reason.
    fn parse(&self, text: &str) -> ParsedAction;

    /// Acts. An invalid action changes nothing but costs the turn.
    fn step(&mut self, action: &ParsedAction) -> Step;

    /// The canonical actions of this moment, or `None` where any text may be sent.
    fn legal(&self) -> Option<Vec<String>>;

    /// Whether an action in canonical form can be carried out now: the listed ones, unless an environment also allows
    /// actions it cannot list.
    fn allows(&self, action: &str) -> bool {
        self.legal().is_none_or(|legal| legal.iter().any(|a| a == action))
    }

    /// The listed actions as compact prompts name them, one word each; [`parse`](Env::parse) reads both. The canonical
    /// ones unless an environment has shorter words for them.
    fn compact_legal(&self) -> Option<Vec<String>> {
        self.legal()
    }

    /// The words that actions are put together from, where any few of them in any order make one.
    fn action_phrase(&self) -> Option<ActionPhrase> {
        None
    }

    /// The current state alone, no history.
    fn anchor(&self) -> Anchor;

    /// The current state for people, where there is something to draw: shown instead of the observation's text, so it
    /// must say as much, and no more than the agent may see.
    fn render(&self) -> Option<String> {
        None
    }

    /// Everything that can happen in episode `episode`, where the rules and the opponents allow to tell and it is no more
    /// than `limit` places. For judging a policy without luck; an agent never gets to see it.
    fn game_tree(&self, _episode: u32, _limit: usize) -> Option<GameTree> {
        None
    }
}

/// Actions that are short sequences of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionPhrase {
    /// The words.
    pub words: &'static [&'static str],
    /// How many of them an action may have; it has at least one.
    pub max_words: usize,
}

/// What an agent is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Observation {
    /// In sentences, for a language model or a person.
    pub text: String,
    /// In words of the environment's compact vocabulary, separated by single spaces.
    pub compact: String,
}

/// An agent's answer as the environment understood it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParsedAction {
    /// An action in its canonical form.
    Act(String),
    /// Nothing that can be done here.
    Invalid {
        /// What was wrong, in words an agent can learn from.
        reason: String,
    },
}

impl ParsedAction {
    /// An invalid action.
    pub fn invalid(reason: impl Into<String>) -> Self {
        ParsedAction::Invalid { reason: reason.into() }
    }
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What is seen now.
    pub observation: Observation,
    /// The environment's own reward of this step, in its own unit (chips, points).
    pub reward: f32,
    /// Whether the action could be carried out.
    pub valid: bool,
    /// Set when the episode is over.
    pub end: Option<End>,
}

/// How an episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By the rules.
    Terminated {
        /// For whom.
        outcome: Outcome,
        /// The result in the environment's own unit.
        score: f32,
    },
    /// By a limit on turns.
    Truncated,
}

/// Who won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The agent.
    Won,
    /// Somebody else.
    Lost,
    /// Nobody.
    Draw,
}

/// A state as rows are grouped by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Anchor(pub String);
