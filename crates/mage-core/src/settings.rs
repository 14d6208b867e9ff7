//! How is a meta-episode played?

use crate::{
    Error, MemoryMode, RecallOrder, Result,
    prompt::{CONTROL_WORDS, PromptForm, RecalledEpisode},
};
use serde::{Deserialize, Serialize};

/// Everything about a meta-episode that is not the task, the model or the credit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EpisodeConfig {
    /// How many episodes of the same task are played.
    pub episodes: u32,
    /// How many turns an episode may take.
    pub max_turns: u32,
    /// Stop at the first win. On when counting Pass@k as the paper does; off in training and for curves by episode.
    pub early_stop: bool,
    /// What past episodes leave behind.
    pub memory: MemoryMode,
    /// In which order they are recalled.
    pub recall: RecallOrder,
    /// At most so many of them.
    pub recall_limit: Option<usize>,
    /// Which form of prompt.
    pub size: PromptForm,
    /// How many words each past episode takes in a compact prompt.
    pub slot_words: usize,
    /// How many past episodes a compact prompt has room for at least; blank ones keep every word in its place.
    pub slots: usize,
    /// Constrain actions to the legal ones. Masks belong to the policy.
    pub mask_actions: bool,
    /// How long an action's answer may be.
    pub play_tokens: u32,
    /// How long a reflection's answer may be.
    pub reflect_tokens: u32,
    /// How many characters of a reflection are kept.
    pub reflection_chars: usize,
}

impl Default for EpisodeConfig {
    /// The paper's: three episodes, reflections only, full prompts.
    fn default() -> Self {
        EpisodeConfig {
            episodes: 3,
            max_turns: 8,
            early_stop: false,
            memory: MemoryMode::ReflectionOnly,
            recall: RecallOrder::Oldest,
            recall_limit: None,
            size: PromptForm::Full,
            slot_words: 0,
            slots: 0,
            mask_actions: false,
            play_tokens: 4096,
            reflect_tokens: 4096,
            reflection_chars: 2000,
        }
    }
}

impl EpisodeConfig {
    /// Settings for a compact model of an environment: actions of a word or a few, a slot for each past episode. Where an
    /// action may have several words, the answer has room for the word that ends it.
    pub fn compact(env_info: &mage_env::EnvInfo, episodes: u32) -> Self {
        EpisodeConfig {
            episodes,
            max_turns: env_info.max_turns,
            size: PromptForm::Compact,
            slot_words: env_info.compact_reflection_words,
            slots: episodes.saturating_sub(1) as usize,
            mask_actions: true,
            play_tokens: if env_info.max_compact_action_words == 1 {
                1
            } else {
                env_info.max_compact_action_words as u32 + 1
            },
            reflect_tokens: env_info.compact_reflection_words as u32 + 1,
            ..EpisodeConfig::default()
        }
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        let wrong = |place, problem: &str| Err(Error::Config { place, problem: problem.to_owned() });
        if self.episodes == 0 {
            return wrong("episodes", "a meta-episode has at least one episode");
        }
        if self.max_turns == 0 {
            return wrong("max_turns", "an episode has at least one turn");
        }
        if self.size == PromptForm::Compact && self.memory.keeps_history() {
            return wrong("memory", "compact prompts have room for reflections only; use full prompts for histories");
        }
        Ok(())
    }

    /// Past episodes as they stand in a compact prompt: each exactly [`slot_words`](EpisodeConfig::slot_words) words, blanks
    /// (`_`) where there is nothing to say. What an agent wrote can steer nothing: a control word in it reads `?`.
    pub(crate) fn compact_slots(&self, entries: &[RecalledEpisode]) -> Vec<String> {
        let reflections = entries.iter().map(|e| e.reflection.as_deref().unwrap_or(""));
        let blanks = self.slots.saturating_sub(entries.len());
        reflections
            .chain(std::iter::repeat_n("", blanks))
            .map(|text| {
                let harmless = |w| if CONTROL_WORDS.contains(&w) && w != "_" { "?" } else { w };
                let words = text.split_whitespace().map(harmless).chain(std::iter::repeat("_"));
                words.take(self.slot_words).collect::<Vec<_>>().join(" ")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reflections_fill_their_slots_and_steer_nothing() {
        let settings = EpisodeConfig { slot_words: 4, slots: 2, ..EpisodeConfig::default() };
        let written = RecalledEpisode {
            number: 1,
            result: String::new(),
            reflection: Some("K GO BOS ? J".to_owned()),
            start: None,
            history: None,
        };
        assert_eq!(settings.compact_slots(&[written]), ["K ? ? ?", "_ _ _ _"]);
    }
}
