//! What can be done with a model that is not trained?
//!
//! Ask it well. An [`Approach`] is a way of asking: what it is told before it plays, what it is asked beside playing, and what
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

mod cases;
mod notes;
mod steps;

use crate::{Embeddings, EpisodicMemory, Error, Memory, MemoryMode, Result, Settings, prompt::PromptSet, prompt::Size};
use cases::{CaseBank, CaseMemory};
use mage_env::{Error as EnvError, Hash};
use notes::{NoteMemory, NoteStore};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use steps::StepByStep;

/// A way of asking a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Approach {
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

impl Approach {
    /// All of them.
    pub const ALL: [Approach; 5] =
        [Approach::React, Approach::Cot, Approach::Reflexion, Approach::AMem, Approach::Memento];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Approach::React => "react",
            Approach::Cot => "cot",
            Approach::Reflexion => "reflexion",
            Approach::AMem => "a-mem",
            Approach::Memento => "memento",
        }
    }

    /// An approach by name.
    pub fn named(name: &str) -> std::result::Result<Self, EnvError> {
        let known = Approach::ALL.map(Approach::name);
        Approach::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| EnvError::unknown("method", name, known))
    }

    /// The settings with this approach's memory in them.
    #[must_use]
    pub fn settings(self, settings: Settings) -> Settings {
        let memory = match self {
            Approach::React | Approach::Cot => MemoryMode::None,
            Approach::Reflexion | Approach::AMem | Approach::Memento => MemoryMode::ReflectionOnly,
        };
        Settings { memory, ..settings }
    }

    /// Whether it has a memory that could be shared.
    pub fn can_share(self) -> bool {
        matches!(self, Approach::AMem | Approach::Memento)
    }

    /// Whether the settings say all about it.
    fn is_plain(self) -> bool {
        matches!(self, Approach::React | Approach::Reflexion)
    }
}

/// Makes the memories of an approach, each for one meta-episode.
pub struct MemoryMaker {
    approach: Approach,
    scope: MemoryScope,
    embeddings: Arc<dyn Embeddings>,
    settings: Arc<Settings>,
    prompts: Arc<PromptSet>,
    /// What shared memories have in common.
    notes: Arc<Mutex<NoteStore>>,
    cases: Arc<Mutex<CaseBank>>,
}

impl MemoryMaker {
    /// Memories of `approach`, retrieving by `embeddings`. The settings should come from [`Approach::settings`].
    pub fn new(
        approach: Approach,
        scope: MemoryScope,
        embeddings: Arc<dyn Embeddings>,
        settings: Arc<Settings>,
        prompts: Arc<PromptSet>,
    ) -> Result<Self> {
        let refuse = |problem: String| Err(Error::Settings { place: "method", problem });
        if scope == MemoryScope::Shared && !approach.can_share() {
            return refuse(format!("{} has no memory that tasks could share", approach.name()));
        }
        if settings.size == Size::Compact && !approach.is_plain() {
            return refuse(format!("{} needs full prompts; compact ones have no room for it", approach.name()));
        }
        settings.check()?;
        let (notes, cases) = Default::default();
        Ok(MemoryMaker { approach, scope, embeddings, settings, prompts, notes, cases })
    }

    /// Which approach.
    pub fn approach(&self) -> Approach {
        self.approach
    }

    /// Whose memory.
    pub fn scope(&self) -> MemoryScope {
        self.scope
    }

    /// What records know the method by. Where the settings say all, it is their hash.
    pub fn method(&self) -> Hash {
        if self.approach.is_plain() {
            return Hash::of(&*self.settings);
        }
        let embeddings = if self.approach == Approach::Cot { "" } else { self.embeddings.id() };
        Hash::of(&(&*self.settings, self.approach, self.scope, embeddings))
    }

    /// A memory for one meta-episode.
    pub fn make(&self) -> Box<dyn Memory> {
        let (settings, prompts) = (Arc::clone(&self.settings), Arc::clone(&self.prompts));
        let (embeddings, shared) = (Arc::clone(&self.embeddings), self.scope == MemoryScope::Shared);
        match self.approach {
            Approach::React | Approach::Reflexion => Box::new(EpisodicMemory::new(settings, prompts)),
            Approach::Cot => Box::new(StepByStep::new(prompts)),
            Approach::AMem => {
                let store = if shared { Arc::clone(&self.notes) } else { Arc::default() };
                Box::new(NoteMemory::new(settings, prompts, embeddings, store, shared))
            }
            Approach::Memento => {
                let bank = if shared { Arc::clone(&self.cases) } else { Arc::default() };
                Box::new(CaseMemory::new(settings, prompts, embeddings, bank, shared))
            }
        }
    }
}
