//! What can be set?

use super::{generator::Rooms, goal::TaskKind};
use crate::{Error, OptionDoc, Result};
use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer},
};
use std::{fmt, path::PathBuf};

/// Settings of ALFWorld.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlfworldOptions {
    /// Where games come from.
    pub games: Games,
    /// Which rooms generated games use.
    pub rooms: Rooms,
    /// Which sorts of task, one or a list; all if empty.
    #[serde(deserialize_with = "one_or_several")]
    pub tasks: Vec<TaskKind>,
    /// Which split of the official games.
    pub split: Option<String>,
    /// The folder of the official games.
    pub data: Option<PathBuf>,
    /// Only this official game, by its path below the folder.
    pub game: Option<String>,
    /// Leave out files that cannot be read.
    pub skip_bad: bool,
}

/// A single sort of task may stand without brackets.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<TaskKind>, D::Error> {
    struct OneOrSeveral;

    impl<'de> de::Visitor<'de> for OneOrSeveral {
        type Value = Vec<TaskKind>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sort of task or a list of them")
        }

        fn visit_str<E: de::Error>(self, one: &str) -> std::result::Result<Self::Value, E> {
            TaskKind::deserialize(one.into_deserializer()).map(|kind| vec![kind])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, several: A) -> std::result::Result<Self::Value, A::Error> {
            Vec::deserialize(de::value::SeqAccessDeserializer::new(several))
        }
    }

    deserializer.deserialize_any(OneOrSeveral)
}

/// Where games come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Games {
    /// Made up.
    #[default]
    Generated,
    /// Read from files.
    Official,
}

impl AlfworldOptions {
    /// What is wrong with them, short of reading files.
    pub fn check(&self) -> Result<()> {
        let official = self.split.is_some() || self.data.is_some() || self.game.is_some() || self.skip_bad;
        if self.games == Games::Generated && official {
            let problem = "`split`, `data`, `game` and `skip_bad` are about files; set games = \"official\" with them";
            return Err(Error::invalid("options of alfworld", problem));
        }
        Ok(())
    }

    /// The split to read.
    pub fn split(&self) -> &str {
        self.split.as_deref().unwrap_or("train")
    }
}

/// A line about each setting.
pub(super) fn docs() -> Vec<OptionDoc> {
    let doc = OptionDoc::new;
    vec![
        doc("games", "generated (default) | official", "made-up households, or ALFWorld's own game files"),
        doc("rooms", "seen (default) | unseen", "floor plans of generated games: those of training, or others"),
        doc(
            "tasks",
            "all six (default), or one or a list of place, look, clean, heat, cool, two",
            "which sorts of task are set",
        ),
        doc("split", "train (default) | valid_seen | valid_unseen | valid_train", "which of the official games"),
        doc(
            "data",
            "a folder",
            "where json_2.1.1/ or archives of it are; else alfworld under MAGE_DATA (else data), else ALFWORLD_DATA",
        ),
        doc("game", "a path below the folder", "only this official game"),
        doc("skip_bad", "false (default) | true", "leave out official files that cannot be read, instead of failing"),
    ]
}
