//! What can be done with a model that is not trained?
//!
//! Ask it well. An [`PromptMethod`] is a way of asking: what it is told before it plays, what it is asked beside playing, and what
//! is kept of the answers. Trained policies are played by the approach they were trained with (`reflexion`).
//!
//! | name | told beside the task | asked beside playing |
//! |---|---|---|
//! | `react` | nothing: every episode is a clean slate; think, then act | – |
//! | `cot` | to reason step by step in a set order; a clean slate too | – |
//! | `reflexion` | its own notes on all earlier episodes | one reflection after each episode |
//! | `a-mem` | the notes nearest to what it sees now, and those linked to them | after each episode keywords, context and tags of a note; then links and changes to the notes near it |
//! | `memento` | its plan for this episode | before each episode a plan, next to the cases nearest to it, good and bad |
//!
//! Sources: ReAct (2210.03629), zero-shot chain of thought (2205.11916), Reflexion (2303.11366), A-MEM (2502.12110), Memento
//! (2508.16153). The texts are ours.

mod a_mem;
mod cot;
mod memento;

use crate::{
    Embeddings, EpisodeConfig, EpisodicMemory, Error, Memory, MemoryMode, Result, prompt::PromptForm, prompt::PromptSet,
};
use a_mem::{NoteMemory, NoteStore};
use cot::ChainOfThought;
use mage_env::{Error as EnvError, Hash};
use memento::{CaseBank, CaseMemory};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// A way of asking a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PromptMethod {
    /// Think, then act; every episode is a clean slate.
    React,
    /// The same, reasoning step by step in a set order.
    Cot,
    /// Notes to itself after each episode.
    Reflexion,
    /// A collection of notes that describe, link and change each other.
    AMem,
    /// A bank of cases, and a plan made from those nearest.
    Memento,
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryScope {
    /// Each meta-episode's own: nothing passes from one task to another.
    #[default]
    MetaEpisode,
    /// All tasks', in the order they are played: what was learned in one is known in the next.
    Shared,
}

impl PromptMethod {
    /// All of them.
    pub const ALL: [PromptMethod; 5] =
        [PromptMethod::React, PromptMethod::Cot, PromptMethod::Reflexion, PromptMethod::AMem, PromptMethod::Memento];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            PromptMethod::React => "react",
            PromptMethod::Cot => "cot",
            PromptMethod::Reflexion => "reflexion",
            PromptMethod::AMem => "a-mem",
            PromptMethod::Memento => "memento",
        }
    }

    /// An approach by name.
    pub fn named(name: &str) -> std::result::Result<Self, EnvError> {
        let known = PromptMethod::ALL.map(PromptMethod::name);
        PromptMethod::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| EnvError::unknown("method", name, known))
    }

    /// The settings with this approach's memory in them.
    #[must_use]
    pub fn configure(self, settings: EpisodeConfig) -> EpisodeConfig {
        let memory = match self {
            PromptMethod::React | PromptMethod::Cot => MemoryMode::None,
            PromptMethod::Reflexion | PromptMethod::AMem | PromptMethod::Memento => MemoryMode::ReflectionOnly,
        };
        EpisodeConfig { memory, ..settings }
    }

    /// Whether it has a memory that could be shared.
    pub fn can_share(self) -> bool {
        matches!(self, PromptMethod::AMem | PromptMethod::Memento)
    }

    /// Whether the settings say all about it.
    fn is_plain(self) -> bool {
        matches!(self, PromptMethod::React | PromptMethod::Reflexion)
    }
}

/// Makes the memories of an approach, each for one meta-episode.
pub struct MemoryFactory {
    approach: PromptMethod,
    scope: MemoryScope,
    embeddings: Arc<dyn Embeddings>,
    settings: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    /// What shared memories have in common.
    notes: Arc<Mutex<NoteStore>>,
    cases: Arc<Mutex<CaseBank>>,
}

impl MemoryFactory {
    /// Memories of `approach`, retrieving by `embeddings`. The settings should come from [`PromptMethod::configure`].
    pub fn new(
        approach: PromptMethod,
        scope: MemoryScope,
        embeddings: Arc<dyn Embeddings>,
        settings: Arc<EpisodeConfig>,
        prompts: Arc<PromptSet>,
    ) -> Result<Self> {
        let refuse = |problem: String| Err(Error::Config { field: "method", problem });
        if scope == MemoryScope::Shared && !approach.can_share() {
            return refuse(format!("{} has no memory that tasks could share", approach.name()));
        }
        if settings.prompt_form == PromptForm::Compact && !approach.is_plain() {
            return refuse(format!("{} needs full prompts; compact ones have no room for it", approach.name()));
        }
        settings.validate()?;
        let (notes, cases) = Default::default();
        Ok(MemoryFactory { approach, scope, embeddings, settings, prompts, notes, cases })
    }

    /// Which approach.
    pub fn prompt_method(&self) -> PromptMethod {
        self.approach
    }

    /// Whose memory.
    pub fn scope(&self) -> MemoryScope {
        self.scope
    }

    /// What records know the method by. Where the settings say all, it is their hash.
    pub fn method_hash(&self) -> Hash {
        if self.approach.is_plain() {
            return Hash::of(&*self.settings);
        }
        let embeddings = if self.approach == PromptMethod::Cot { "" } else { self.embeddings.id() };
        Hash::of(&(&*self.settings, self.approach, self.scope, embeddings))
    }

    /// A memory for one meta-episode.
    pub fn make(&self) -> Box<dyn Memory> {
        let (settings, prompts) = (Arc::clone(&self.settings), Arc::clone(&self.prompts));
        let (embeddings, shared) = (Arc::clone(&self.embeddings), self.scope == MemoryScope::Shared);
        match self.approach {
            PromptMethod::React | PromptMethod::Reflexion => Box::new(EpisodicMemory::new(settings, prompts)),
            PromptMethod::Cot => Box::new(ChainOfThought::new(prompts)),
            PromptMethod::AMem => {
                let store = if shared { Arc::clone(&self.notes) } else { Arc::default() };
                Box::new(NoteMemory::new(settings, prompts, embeddings, store, shared))
            }
            PromptMethod::Memento => {
                let bank = if shared { Arc::clone(&self.cases) } else { Arc::default() };
                Box::new(CaseMemory::new(settings, prompts, embeddings, bank, shared))
            }
        }
    }
}
