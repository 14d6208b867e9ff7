//! Memory: the state that an agent passes from one episode to the next.
//!
//! A [`Memory`] has two operations: [`recall`](Memory::recall) before each action and [`record`](Memory::record) after
//! each episode. Either may need requests of its own: it returns [`MemoryStep::Request`] and is called again with all
//! completions so far, until it returns [`MemoryStep::Done`]. A memory therefore stores no partial conversation and can
//! be replayed.
//!
//! A reflection is the text between `<remark>` and `</remark>` at the end of a completion. Later prompts show it after
//! `Your note:` below the heading `What you remember of earlier episodes of this task:` (template
//! `prompts/shared/memory.jinja`).

use crate::{
    Completion, EpisodeConfig, Message, RequestBody, RequestKind, Result,
    episode::Episode,
    parse,
    prompt::{MemoryBlock, PromptForm, PromptSet, RecalledEpisode, result_text},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The result of a memory operation, or a request that it needs first.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryStep<T> {
    /// The result, with the index and the problem of each unusable completion.
    Done(T, Vec<(usize, String)>),
    /// A request. Call the operation again with its completion appended.
    Request(RequestBody),
}

impl<T> MemoryStep<T> {
    /// The result; all completions were usable.
    pub fn done(result: T) -> Self {
        MemoryStep::Done(result, Vec::new())
    }
}

/// The state to recall memory for.
#[derive(Clone, Copy, Debug)]
pub struct RecallQuery<'a> {
    /// The current episode, from 0.
    pub episode: u32,
    /// The turn, from 0.
    pub turn: u32,
    /// The agent's seat.
    pub seat: u8,
    /// The episode so far.
    pub current: &'a Episode,
}

/// A finished episode to record.
#[derive(Clone, Copy, Debug)]
pub struct FinishedEpisode<'a> {
    /// Its index, from 0.
    pub index: u32,
    /// The agent's seat.
    pub seat: u8,
    /// The episode.
    pub episode: &'a Episode,
}

/// The state that an agent passes from one episode to the next.
pub trait Memory: Send {
    /// The memory block of the next prompt. `completions` answer the requests of this recall.
    fn recall(&mut self, query: &RecallQuery<'_>, completions: &[Completion]) -> Result<MemoryStep<MemoryBlock>>;

    /// Records a finished episode. `completions` answer the requests of this record.
    fn record(&mut self, finished: &FinishedEpisode<'_>, completions: &[Completion]) -> Result<MemoryStep<()>>;

    /// Whether prompts may mention earlier episodes.
    fn reveals_past_episodes(&self) -> bool {
        true
    }

    /// Whether other meta-episodes read the memory, so that the last episode must be recorded too.
    fn is_shared(&self) -> bool {
        false
    }

    /// The content as JSON, for inspection and tests.
    fn contents(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// What an episode passes to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMode {
    /// Nothing: episodes are independent.
    None,
    /// The reflection on it.
    #[default]
    ReflectionOnly,
    /// Its transcript.
    HistoryOnly,
    /// Both.
    HistoryAndReflection,
}

impl MemoryMode {
    /// Whether reflections are written.
    fn reflects(self) -> bool {
        matches!(self, MemoryMode::ReflectionOnly | MemoryMode::HistoryAndReflection)
    }

    /// Whether transcripts are stored.
    pub(crate) fn keeps_history(self) -> bool {
        matches!(self, MemoryMode::HistoryOnly | MemoryMode::HistoryAndReflection)
    }
}

/// Order of recalled episodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecallOrder {
    /// Oldest first; a limit keeps the latest.
    #[default]
    Oldest,
    /// Highest score first; ties oldest first.
    BestFirst,
}

/// The paper's memory: past episodes with their reflections, transcripts or both.
pub(crate) struct EpisodicMemory {
    config: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    /// Scores and episodes, oldest first.
    entries: Vec<(f32, RecalledEpisode)>,
}

impl EpisodicMemory {
    /// An empty memory.
    pub(crate) fn new(config: Arc<EpisodeConfig>, prompts: Arc<PromptSet>) -> Self {
        EpisodicMemory { config, prompts, entries: Vec::new() }
    }

    fn push(&mut self, finished: &FinishedEpisode<'_>, reflection: Option<String>) {
        let history = self.config.memory.keeps_history();
        let recalled = RecalledEpisode {
            number: finished.index + 1,
            result: result_text(finished.episode),
            reflection,
            start: history.then(|| finished.episode.start.text.clone()),
            history: history.then(|| self.prompts.past_turns(&finished.episode.turns)),
        };
        self.entries.push((finished.episode.score(), recalled));
    }
}

impl Memory for EpisodicMemory {
    fn recall(&mut self, _query: &RecallQuery<'_>, _completions: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let mut selected: Vec<&(f32, RecalledEpisode)> = self.entries.iter().collect();
        let count = self.config.recall_limit.unwrap_or(usize::MAX).min(selected.len());
        match self.config.recall {
            RecallOrder::Oldest => drop(selected.drain(..selected.len() - count)),
            RecallOrder::BestFirst => {
                selected.sort_by(|a, b| b.0.total_cmp(&a.0)); // stable: ties stay oldest first
                selected.truncate(count);
            }
        }
        let entries = selected.into_iter().map(|(_, r)| r.clone()).collect();
        Ok(MemoryStep::done(MemoryBlock { entries, notes: String::new() }))
    }

    fn record(&mut self, finished: &FinishedEpisode<'_>, completions: &[Completion]) -> Result<MemoryStep<()>> {
        let mode = self.config.memory;
        if mode == MemoryMode::None {
            return Ok(MemoryStep::done(()));
        }
        if !mode.reflects() {
            self.push(finished, None);
            return Ok(MemoryStep::done(()));
        }
        let Some(completion) = completions.last() else {
            let prompt = self.prompts.reflect(self.config.prompt_form, finished.seat, finished.episode)?;
            return Ok(MemoryStep::Request(RequestBody {
                kind: RequestKind::Reflect,
                messages: vec![Message::user(prompt)],
                allowed: None,
                max_tokens: self.config.reflect_tokens,
                trainable: true,
            }));
        };
        let (text, unusable) = match read_reflection(&completion.text, self.config.prompt_form) {
            Ok(text) => (parse::truncate(&text, self.config.reflection_chars).to_owned(), Vec::new()),
            Err(reason) => (String::new(), vec![(completions.len() - 1, reason)]),
        };
        self.push(finished, Some(text));
        Ok(MemoryStep::Done((), unusable))
    }

    fn reveals_past_episodes(&self) -> bool {
        self.config.memory != MemoryMode::None
    }

    fn contents(&self) -> serde_json::Value {
        let entries: Vec<&RecalledEpisode> = self.entries.iter().map(|(_, r)| r).collect();
        serde_json::to_value(entries).expect("entries are plain data")
    }
}

/// The reflection in a completion, or the reason why there is none. Compact completions have no tags and end at `END`.
pub fn read_reflection(completion: &str, prompt_form: PromptForm) -> std::result::Result<String, String> {
    match prompt_form {
        PromptForm::Full => parse::last_tag(completion, "remark").map(str::to_owned).map_err(|e| e.explain("remark")),
        PromptForm::Compact => {
            let words: Vec<&str> = completion.split_whitespace().take_while(|w| *w != "END").collect();
            if words.is_empty() { Err("the reflection is empty".to_owned()) } else { Ok(words.join(" ")) }
        }
    }
}
