//! Prompt methods: prompting schemes without training.
//!
//! A [`PromptMethod`] determines the instructions before an action, the additional requests, and the memory made from
//! their completions. Trained policies use the prompt method that they were trained with (`reflexion`).
//!
//! | name | in the prompt, apart from the task | additional requests |
//! |---|---|---|
//! | `react` | nothing: episodes are independent; reason, then act | – |
//! | `cot` | an instruction to reason in a fixed order of steps; episodes are independent | – |
//! | `reflexion` | its reflections on all earlier episodes | one reflection after each episode |
//! | `a-mem` | the notes most similar to the current observation, and notes linked to them | after each episode: keywords, context and tags of a note; then links to similar notes and revisions of them |
//! | `memento` | its plan for this episode | before each episode: a plan, given the most similar successful and failed cases |
//!
//! Sources: ReAct (2210.03629), zero-shot chain of thought (2205.11916), Reflexion (2303.11366), A-MEM (2502.12110),
//! Memento (2508.16153). The prompts are our own.

mod a_mem;
mod cot;
mod memento;

use crate::{
    Embeddings, EpisodeConfig, Error, Memory, MemoryMode, Result, memory::EpisodicMemory, prompt::PromptForm,
    prompt::PromptSet,
};
use a_mem::{NoteMemory, NoteStore};
use cot::ChainOfThought;
use mage_env::{Error as EnvError, Hash};
use memento::{CaseBank, CaseMemory};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A prompting scheme without training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromptMethod {
    /// Reason, then act; episodes are independent.
    React,
    /// As `React`, with an instruction to reason in a fixed order of steps.
    Cot,
    /// A reflection after each episode.
    Reflexion,
    /// Notes that describe, link and revise each other.
    AMem,
    /// A case bank and a plan made from the most similar cases.
    Memento,
}

/// Which meta-episodes share a memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryScope {
    /// One memory per meta-episode.
    #[default]
    MetaEpisode,
    /// One memory for all tasks, in the order in which they are played.
    Shared,
}

impl PromptMethod {
    /// All prompt methods.
    pub const ALL: [PromptMethod; 5] =
        [PromptMethod::React, PromptMethod::Cot, PromptMethod::Reflexion, PromptMethod::AMem, PromptMethod::Memento];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            PromptMethod::React => "react",
            PromptMethod::Cot => "cot",
            PromptMethod::Reflexion => "reflexion",
            PromptMethod::AMem => "a-mem",
            PromptMethod::Memento => "memento",
        }
    }

    /// The prompt method with a name.
    pub fn named(name: &str) -> std::result::Result<Self, EnvError> {
        let known = PromptMethod::ALL.map(PromptMethod::name);
        PromptMethod::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| EnvError::unknown("method", name, known))
    }

    /// The configuration with the memory mode of this prompt method.
    #[must_use]
    pub fn configure(self, config: EpisodeConfig) -> EpisodeConfig {
        let memory = match self {
            PromptMethod::React | PromptMethod::Cot => MemoryMode::None,
            PromptMethod::Reflexion | PromptMethod::AMem | PromptMethod::Memento => MemoryMode::ReflectionOnly,
        };
        EpisodeConfig { memory, ..config }
    }

    /// Whether its memory can be shared between tasks.
    pub fn can_share(self) -> bool {
        matches!(self, PromptMethod::AMem | PromptMethod::Memento)
    }

    /// Whether the episode configuration determines it completely.
    fn is_plain(self) -> bool {
        matches!(self, PromptMethod::React | PromptMethod::Reflexion)
    }
}

/// Creates the memories of a prompt method, one per meta-episode.
pub struct MemoryFactory {
    prompt_method: PromptMethod,
    scope: MemoryScope,
    embeddings: Arc<dyn Embeddings>,
    config: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    /// Storage of shared memories.
    notes: Arc<Mutex<NoteStore>>,
    cases: Arc<Mutex<CaseBank>>,
}

/// The content of a shared memory at some time.
pub struct SharedMemory {
    notes: NoteStore,
    cases: CaseBank,
}

impl MemoryFactory {
    /// Memories of `prompt_method` with retrieval by `embeddings`. `config` should come from
    /// [`PromptMethod::configure`].
    pub fn new(
        prompt_method: PromptMethod,
        scope: MemoryScope,
        embeddings: Arc<dyn Embeddings>,
        config: Arc<EpisodeConfig>,
        prompts: Arc<PromptSet>,
    ) -> Result<Self> {
        let invalid = |problem: String| Err(Error::Config { field: "method", problem });
        if scope == MemoryScope::Shared && !prompt_method.can_share() {
            return invalid(format!("{} has no memory that tasks can share", prompt_method.name()));
        }
        if config.prompt_form == PromptForm::Compact && !prompt_method.is_plain() {
            return invalid(format!(
                "{} needs full prompts; it does not support compact prompts",
                prompt_method.name()
            ));
        }
        config.validate()?;
        let (notes, cases) = Default::default();
        Ok(MemoryFactory { prompt_method, scope, embeddings, config, prompts, notes, cases })
    }

    /// The prompt method.
    pub fn prompt_method(&self) -> PromptMethod {
        self.prompt_method
    }

    /// The scope.
    pub fn scope(&self) -> MemoryScope {
        self.scope
    }

    /// The hash of the prompt method in trajectory keys: the hash of the configuration if that determines it
    /// completely.
    pub fn method_hash(&self) -> Hash {
        if self.prompt_method.is_plain() {
            return Hash::of(&*self.config);
        }
        let embeddings = if self.prompt_method == PromptMethod::Cot { "" } else { self.embeddings.id() };
        Hash::of(&(&*self.config, self.prompt_method, self.scope, embeddings))
    }

    /// A copy of the shared memory, if memories are shared.
    pub fn shared_memory(&self) -> Option<SharedMemory> {
        let copy = || SharedMemory { notes: lock(&self.notes).clone(), cases: lock(&self.cases).clone() };
        (self.scope == MemoryScope::Shared).then(copy)
    }

    /// Replaces the content of the shared memory.
    pub fn restore(&self, memory: SharedMemory) {
        *lock(&self.notes) = memory.notes;
        *lock(&self.cases) = memory.cases;
    }

    /// A memory for one meta-episode.
    pub fn make(&self) -> Box<dyn Memory> {
        let (config, prompts) = (Arc::clone(&self.config), Arc::clone(&self.prompts));
        let (embeddings, shared) = (Arc::clone(&self.embeddings), self.scope == MemoryScope::Shared);
        match self.prompt_method {
            PromptMethod::React | PromptMethod::Reflexion => Box::new(EpisodicMemory::new(config, prompts)),
            PromptMethod::Cot => Box::new(ChainOfThought::new(prompts)),
            PromptMethod::AMem => {
                let store = if shared { Arc::clone(&self.notes) } else { Arc::default() };
                Box::new(NoteMemory::new(config, prompts, embeddings, store, shared))
            }
            PromptMethod::Memento => {
                let bank = if shared { Arc::clone(&self.cases) } else { Arc::default() };
                Box::new(CaseMemory::new(config, prompts, embeddings, bank, shared))
            }
        }
    }
}

/// Locks a store. A panic of one meta-episode must not fail the others.
fn lock<T>(store: &Mutex<T>) -> MutexGuard<'_, T> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}
