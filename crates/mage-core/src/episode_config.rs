//! Configuration of a meta-episode.

use crate::{
    Error, MemoryMode, RecallOrder, RequestKind, Result,
    prompt::{CONTROL_WORDS, PromptForm, RecalledEpisode},
};
use serde::{Deserialize, Serialize};

/// Parameters of a meta-episode, apart from task, model and credit assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EpisodeConfig {
    /// Number of episodes of the task.
    pub episodes: u32,
    /// Maximum number of turns per episode.
    pub max_turns: u32,
    /// Stop at the first win. On for Pass@k as in the paper; off in training and for curves by episode.
    pub early_stop: bool,
    /// What an episode passes to the next.
    pub memory: MemoryMode,
    /// Order of recalled episodes.
    pub recall: RecallOrder,
    /// Maximum number of recalled episodes.
    pub recall_limit: Option<usize>,
    /// Full or compact prompts.
    pub prompt_form: PromptForm,
    /// Words per past episode in a compact prompt.
    pub slot_words: usize,
    /// Minimum number of past-episode slots in a compact prompt. Blank slots keep every word at a fixed position.
    pub slots: usize,
    /// Constrain actions to legal ones. The mask is part of the policy.
    pub mask_actions: bool,
    /// Maximum tokens of a play completion.
    pub play_tokens: u32,
    /// Maximum tokens of a reflection.
    pub reflect_tokens: u32,
    /// Maximum characters of a reflection in memory.
    pub reflection_chars: usize,
}

impl Default for EpisodeConfig {
    /// As in the paper: three episodes, reflections only, full prompts.
    fn default() -> Self {
        EpisodeConfig {
            episodes: 3,
            max_turns: 8,
            early_stop: false,
            memory: MemoryMode::ReflectionOnly,
            recall: RecallOrder::Oldest,
            recall_limit: None,
            prompt_form: PromptForm::Full,
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
    /// Configuration for a compact model: short actions and one slot per past episode. If an action can have several
    /// words, the token limit includes the end word.
    pub fn compact(env_info: &mage_env::EnvInfo, episodes: u32) -> Self {
        EpisodeConfig {
            episodes,
            max_turns: env_info.max_turns,
            prompt_form: PromptForm::Compact,
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

    /// Maximum tokens of the completion of a request.
    pub fn max_tokens(&self, kind: RequestKind) -> u32 {
        if kind == RequestKind::Play { self.play_tokens } else { self.reflect_tokens }
    }

    /// Rejects invalid configurations.
    pub fn validate(&self) -> Result<()> {
        let invalid = |field, problem: &str| Err(Error::Config { field, problem: problem.to_owned() });
        if self.episodes == 0 {
            return invalid("episodes", "must be at least 1");
        }
        if self.max_turns == 0 {
            return invalid("max_turns", "must be at least 1");
        }
        if self.prompt_form == PromptForm::Compact && self.memory.keeps_history() {
            return invalid("memory", "compact prompts support reflections only; use full prompts for histories");
        }
        Ok(())
    }

    /// Past episodes for a compact prompt: exactly [`slot_words`](EpisodeConfig::slot_words) words each, padded with
    /// blanks (`_`). A control word written by the agent becomes `?`, so that a reflection cannot imitate the prompt.
    pub(crate) fn compact_slots(&self, entries: &[RecalledEpisode]) -> Vec<String> {
        let reflections = entries.iter().map(|e| e.reflection.as_deref().unwrap_or(""));
        let blanks = self.slots.saturating_sub(entries.len());
        reflections
            .chain(std::iter::repeat_n("", blanks))
            .map(|text| {
                let sanitize = |w| if CONTROL_WORDS.contains(&w) && w != "_" { "?" } else { w };
                let words = text.split_whitespace().map(sanitize).chain(std::iter::repeat("_"));
                words.take(self.slot_words).collect::<Vec<_>>().join(" ")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_slots_are_padded_and_control_words_replaced() {
        let config = EpisodeConfig { slot_words: 4, slots: 2, ..EpisodeConfig::default() };
        let written = RecalledEpisode {
            number: 1,
            result: String::new(),
            reflection: Some("K GO BOS ? J".to_owned()),
            start: None,
            history: None,
        };
        assert_eq!(config.compact_slots(&[written]), ["K ? ? ?", "_ _ _ _"]);
    }
}
