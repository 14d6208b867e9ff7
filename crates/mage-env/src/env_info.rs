//! Description of an environment.

use serde::Serialize;

/// An environment's description, for tools and for building compact models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnvInfo {
    /// The display name.
    pub title: String,
    /// A one-line summary.
    pub summary: String,
    /// The unit of scores, such as "chips per hand".
    pub unit: String,
    /// Number of seats; 1 in worlds.
    pub seats: u8,
    /// Default turn limit of an episode.
    pub max_turns: u32,
    /// The options.
    pub options: Vec<OptionDoc>,
    /// Opponent kinds with a description; empty in worlds.
    pub opponents: Vec<(String, String)>,
    /// Every word of compact observations and actions.
    pub compact_words: Vec<String>,
    /// Words of the longest compact action.
    pub max_compact_action_words: usize,
    /// Words of a factual compact reflection.
    pub compact_reflection_words: usize,
}

/// One option of an environment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptionDoc {
    /// The key.
    pub key: String,
    /// Accepted values and the default.
    pub values: String,
    /// A description.
    pub description: String,
}

impl OptionDoc {
    /// An option with its description.
    pub fn new(key: &str, values: &str, description: &str) -> Self {
        OptionDoc { key: key.to_owned(), values: values.to_owned(), description: description.to_owned() }
    }
}
