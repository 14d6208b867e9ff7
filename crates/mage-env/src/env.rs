//! The environment interface: one agent's view of a task, text in and text out.
//!
//! An [`Env`] is a game with the other seats filled, or a world. It is object safe, because rollouts hold thousands of
//! different environments.

use crate::GameTree;
use serde::{Deserialize, Serialize};

/// A task that can be played for several episodes.
pub trait Env: Send {
    /// Starts episode `episode` (from 0). The task determines opponent, seat and start. All later randomness comes from
    /// streams derived from (seed, episode, turn), so episodes do not repeat each other's chance events.
    fn reset(&mut self, episode: u32) -> Observation;

    /// Parses an action from the agent's text (tags already removed). Never fails: unreadable text is
    /// [`ParsedAction::Invalid`] with a reason.
    fn parse(&self, text: &str) -> ParsedAction;

    /// Executes an action. An invalid action leaves the state unchanged and uses up the turn.
    fn step(&mut self, action: &ParsedAction) -> Step;

    /// The legal actions in canonical form, or `None` where any text is accepted.
    fn legal(&self) -> Option<Vec<String>>;

    /// Whether a canonical action is legal now. The default accepts the listed actions; an environment may accept
    /// others.
    fn allows(&self, action: &str) -> bool {
        self.legal().is_none_or(|legal| legal.iter().any(|a| a == action))
    }

    /// The legal actions as compact words, one word each; [`parse`](Env::parse) reads both forms. The default is the
    /// canonical form.
    fn compact_legal(&self) -> Option<Vec<String>> {
        self.legal()
    }

    /// The words of composite actions, where any short sequence of them is an action.
    fn action_phrase(&self) -> Option<ActionPhrase> {
        None
    }

    /// The current state without history.
    fn anchor(&self) -> Anchor;

    /// A drawing of the state for people. It replaces the observation's text, so it must contain the same information
    /// and no more.
    fn render(&self) -> Option<String> {
        None
    }

    /// The game tree of episode `episode` for exact policy evaluation, if rules and opponents allow it and it has at
    /// most `limit` nodes. Agents never see it.
    fn game_tree(&self, _episode: u32, _limit: usize) -> Option<GameTree> {
        None
    }
}

/// Actions that are short sequences of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionPhrase {
    /// The words.
    pub words: &'static [&'static str],
    /// Maximum number of words of an action; the minimum is one.
    pub max_words: usize,
}

/// An observation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Observation {
    /// Sentences for a language model or a person.
    pub text: String,
    /// Words of the environment's compact vocabulary, separated by single spaces.
    pub compact: String,
}

/// An agent's action as parsed by the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParsedAction {
    /// An action in its canonical form.
    Act(String),
    /// Text that is not a legal action.
    Invalid {
        /// The reason, in words an agent can learn from.
        reason: String,
    },
}

impl ParsedAction {
    /// An invalid action.
    pub fn invalid(reason: impl Into<String>) -> Self {
        ParsedAction::Invalid { reason: reason.into() }
    }
}

/// The result of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The next observation.
    pub observation: Observation,
    /// Reward of this step in the environment's unit (chips, points).
    pub reward: f32,
    /// Whether the action was legal.
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
        /// The outcome for the agent.
        outcome: Outcome,
        /// The score in the environment's unit.
        score: f32,
    },
    /// By the turn limit.
    Truncated,
}

/// The outcome of an episode for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The agent won.
    Won,
    /// The agent lost.
    Lost,
    /// A draw.
    Draw,
}

/// A state without history. Transitions are grouped by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Anchor(pub String);
