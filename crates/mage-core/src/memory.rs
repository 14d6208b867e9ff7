//! What does an agent carry from one episode to the next?
//!
//! A [`Memory`] is asked twice: [`recall`](Memory::recall) before each decision, [`record`](Memory::record) after each
//! episode. To answer, it may itself ask for calls to the model: it returns [`MemoryStep::Request`] and is called again with all
//! answers so far, until it is done. So a memory holds no half-finished conversation and can be replayed.

use crate::{
    Completion, EpisodeConfig, Message, RequestBody, RequestKind, Result,
    episode::Episode,
    parse,
    prompt::{MemoryBlock, PromptForm, PromptSet, RecalledEpisode, result_text},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Either the result, or a call that is needed first.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryStep<T> {
    /// Here it is, and which of the answers (from 0) could not be used, and why.
    Done(T, Vec<(usize, String)>),
    /// Ask the model this, then come back with its answer added.
    Request(RequestBody),
}

impl<T> MemoryStep<T> {
    /// The result; every answer was of use.
    pub fn done(result: T) -> Self {
        MemoryStep::Done(result, Vec::new())
    }
}

/// What memory is asked about.
#[derive(Clone, Copy, Debug)]
pub struct RecallQuery<'a> {
    /// The episode being played, from 0.
    pub episode: u32,
    /// The turn, from 0.
    pub turn: u32,
    /// The agent's seat.
    pub seat: u8,
    /// The episode so far.
    pub current: &'a Episode,
}

/// A finished episode to remember.
#[derive(Clone, Copy, Debug)]
pub struct FinishedEpisode<'a> {
    /// Its index, from 0.
    pub index: u32,
    /// The agent's seat.
    pub seat: u8,
    /// What happened.
    pub episode: &'a Episode,
}

/// What an agent carries from one episode to the next.
pub trait Memory: Send {
    /// What to put into the next prompt. `answers` are the answers to what it asked for during this recall.
    fn recall(&mut self, query: &RecallQuery<'_>, answers: &[Completion]) -> Result<MemoryStep<MemoryBlock>>;

    /// Takes in a finished episode. `answers` are the answers to what it asked for during this record.
    fn record(&mut self, finished: &FinishedEpisode<'_>, answers: &[Completion]) -> Result<MemoryStep<()>>;

    /// Whether the agent may know that there were earlier episodes at all.
    fn reveals_past_episodes(&self) -> bool {
        true
    }

    /// Whether the last episode is recorded too, because somebody will read it after this meta-episode.
    fn is_shared(&self) -> bool {
        false
    }

    /// What it holds, for people and tests.
    fn contents(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// What past episodes leave behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMode {
    /// Nothing: every episode is a clean slate.
    None,
    /// The reflection written after it.
    #[default]
    ReflectionOnly,
    /// What happened in it.
    HistoryOnly,
    /// Both.
    HistoryAndReflection,
}

impl MemoryMode {
    /// Whether a reflection is written.
    pub fn reflects(self) -> bool {
        matches!(self, MemoryMode::ReflectionOnly | MemoryMode::HistoryAndReflection)
    }

    /// Whether what happened is kept.
    pub fn keeps_history(self) -> bool {
        matches!(self, MemoryMode::HistoryOnly | MemoryMode::HistoryAndReflection)
    }
}

/// In which order past episodes are recalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecallOrder {
    /// Oldest first; a limit keeps the latest.
    #[default]
    Oldest,
    /// The best-scoring first; equals oldest first.
    BestFirst,
}

/// The paper's memory: past episodes, each with its reflection, its history or both.
pub struct EpisodicMemory {
    settings: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    entries: Vec<(f32, RecalledEpisode)>,
}

impl EpisodicMemory {
    /// An empty one.
    pub fn new(settings: Arc<EpisodeConfig>, prompts: Arc<PromptSet>) -> Self {
        EpisodicMemory { settings, prompts, entries: Vec::new() }
    }

    fn remember(&mut self, finished: &FinishedEpisode<'_>, reflection: Option<String>) {
        let history = self.settings.memory.keeps_history();
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
    fn recall(&mut self, _query: &RecallQuery<'_>, _answers: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let mut chosen: Vec<&(f32, RecalledEpisode)> = self.entries.iter().collect();
        let kept = self.settings.recall_limit.unwrap_or(usize::MAX).min(chosen.len());
        match self.settings.recall {
            RecallOrder::Oldest => drop(chosen.drain(..chosen.len() - kept)), // the latest are worth most
            RecallOrder::BestFirst => {
                chosen.sort_by(|a, b| b.0.total_cmp(&a.0)); // stable: equals stay oldest first
                chosen.truncate(kept);
            }
        }
        let entries = chosen.into_iter().map(|(_, r)| r.clone()).collect();
        Ok(MemoryStep::done(MemoryBlock { entries, notes: String::new() }))
    }

    fn record(&mut self, finished: &FinishedEpisode<'_>, answers: &[Completion]) -> Result<MemoryStep<()>> {
        let mode = self.settings.memory;
        if mode == MemoryMode::None {
            return Ok(MemoryStep::done(()));
        }
        if !mode.reflects() {
            self.remember(finished, None);
            return Ok(MemoryStep::done(()));
        }
        let Some(answer) = answers.last() else {
            let prompt = self.prompts.reflect(self.settings.prompt_form, finished.seat, finished.episode)?;
            return Ok(MemoryStep::Request(RequestBody {
                kind: RequestKind::Reflect,
                messages: vec![Message::user(prompt)],
                allowed: None,
                max_tokens: self.settings.reflect_tokens,
                trainable: true,
            }));
        };
        let (text, unreadable) = match read_reflection(&answer.text, self.settings.prompt_form) {
            Ok(text) => (parse::truncate(&text, self.settings.reflection_chars).to_owned(), Vec::new()),
            Err(reason) => (String::new(), vec![(answers.len() - 1, reason)]),
        };
        self.remember(finished, Some(text));
        Ok(MemoryStep::Done((), unreadable))
    }

    fn reveals_past_episodes(&self) -> bool {
        self.settings.memory != MemoryMode::None
    }

    fn contents(&self) -> serde_json::Value {
        let entries: Vec<&RecalledEpisode> = self.entries.iter().map(|(_, r)| r).collect();
        serde_json::to_value(entries).expect("entries are plain data")
    }
}

/// The reflection in an answer, or why there is none. Compact answers have no tags and end at `END`.
pub fn read_reflection(answer: &str, prompt_form: PromptForm) -> std::result::Result<String, String> {
    match prompt_form {
        PromptForm::Full => parse::last_tag(answer, "remark").map(str::to_owned).map_err(|e| e.explain("remark")),
        PromptForm::Compact => {
            let words: Vec<&str> = answer.split_whitespace().take_while(|w| *w != "END").collect();
            if words.is_empty() { Err("the reflection is empty".to_owned()) } else { Ok(words.join(" ")) }
        }
    }
}
