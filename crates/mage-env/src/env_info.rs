//! What does an environment say about itself?

use serde::Serialize;

/// An environment's own description: what tools print, and what compact models are built from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnvInfo {
    /// What people call it.
    pub title: String,
    /// One line about it.
    pub summary: String,
    /// What a score is counted in, such as "chips per hand".
    pub unit: String,
    /// How many seats an agent may take; 1 in worlds.
    pub seats: u8,
    /// How many turns an episode may take unless a recipe says otherwise.
    pub max_turns: u32,
    /// Settings of the environment.
    pub options: Vec<OptionDoc>,
    /// Kinds of opponents, with a line about each; empty in worlds.
    pub opponents: Vec<(String, String)>,
    /// Every word the environment uses in compact observations and actions.
    pub compact_words: Vec<String>,
    /// How many words the longest compact action has.
    pub max_compact_action_words: usize,
    /// How many words a factual compact reflection has.
    pub compact_reflection_words: usize,
}

/// One setting of an environment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptionDoc {
    /// Its key.
    pub key: String,
    /// What it may be, and what it is when left out.
    pub values: String,
    /// What it does.
    pub about: String,
}

impl OptionDoc {
    /// One setting.
    pub fn new(key: &str, values: &str, about: &str) -> Self {
        OptionDoc { key: key.to_owned(), values: values.to_owned(), about: about.to_owned() }
    }
}
