//! Options of the ALFWorld environment.

use super::{generator::RoomSplit, goal::TaskType};
use crate::{Error, OptionDoc, Result};
use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer},
};
use std::{fmt, path::PathBuf};

/// Options of ALFWorld.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlfworldOptions {
    /// Source of the games.
    pub source: GameSource,
    /// Floor plans of generated games.
    pub rooms: RoomSplit,
    /// Task types, one or a list; all if empty.
    #[serde(deserialize_with = "one_or_many")]
    pub tasks: Vec<TaskType>,
    /// Split of the official games.
    pub split: Option<String>,
    /// Directory of the official games.
    pub data: Option<PathBuf>,
    /// Play only this official game, by its path below the directory.
    pub game: Option<String>,
    /// Skip unreadable files.
    pub skip_bad: bool,
}

/// Accepts one task type or a list.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<TaskType>, D::Error> {
    struct OneOrManyVisitor;

    impl<'de> de::Visitor<'de> for OneOrManyVisitor {
        type Value = Vec<TaskType>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a task type or a list of task types")
        }

        fn visit_str<E: de::Error>(self, one: &str) -> std::result::Result<Self::Value, E> {
            TaskType::deserialize(one.into_deserializer()).map(|kind| vec![kind])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, several: A) -> std::result::Result<Self::Value, A::Error> {
            Vec::deserialize(de::value::SeqAccessDeserializer::new(several))
        }
    }

    deserializer.deserialize_any(OneOrManyVisitor)
}

/// Source of the games.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GameSource {
    /// The generator.
    #[default]
    Generated,
    /// The official game files.
    Official,
}

impl AlfworldOptions {
    /// Validates the options without reading files.
    pub fn check(&self) -> Result<()> {
        let official = self.split.is_some() || self.data.is_some() || self.game.is_some() || self.skip_bad;
        if self.source == GameSource::Generated && official {
            let problem = "`split`, `data`, `game` and `skip_bad` apply to game files only; set source = \"official\"";
            return Err(Error::invalid("options of alfworld", problem));
        }
        Ok(())
    }

    /// The split to read; the default is `train`.
    pub fn split(&self) -> &str {
        self.split.as_deref().unwrap_or("train")
    }
}

/// Documentation of each option.
pub(super) fn docs() -> Vec<OptionDoc> {
    let doc = OptionDoc::new;
    vec![
        doc("source", "generated (default) | official", "generated households, or ALFWorld's game files"),
        doc(
            "rooms",
            "seen (default) | unseen",
            "floor plans of generated games: the training plans, or held-out plans",
        ),
        doc("tasks", "all six (default), or one or a list of place, look, clean, heat, cool, two", "task types"),
        doc("split", "train (default) | valid_seen | valid_unseen | valid_train", "split of the official games"),
        doc(
            "data",
            "a directory",
            "directory of json_2.1.1/ or its archives; default: $MAGE_DATA/alfworld (data/alfworld if unset), then $ALFWORLD_DATA",
        ),
        doc("game", "a path below the directory", "play only this official game"),
        doc("skip_bad", "false (default) | true", "skip unreadable official files instead of failing"),
    ]
}
