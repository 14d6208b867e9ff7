//! *What does the agent see, and what was each step worth?*
//!
//! Meta-episodes, prompts, memory, parsing, rewards, returns, advantages, metrics: pure functions over data. Nothing here
//! does I/O, reads a clock, starts a thread or knows an engine's insides.

mod advantage;
mod approach;
mod call;
mod credit;
mod embeddings;
mod error;
pub mod history;
mod interval;
pub mod json;
mod memory;
mod meta;
mod method;
mod metrics;
pub mod parse;
mod penalty;
pub mod prompt;
mod record;
mod reward;
mod row;
mod rows;
mod settings;

pub use advantage::{
    Anchors, BaselineUnit, Estimator, Gigpo, Grpo, Levels, Norm, ReturnToGo, Rloo, Scope, Signal, advantages,
};
pub use approach::{MemoryFactory, MemoryScope, PromptMethod};
pub use call::{
    Completion, CompletionTokens, Finish, Message, Request, RequestBody, RequestId, RequestKind, Role, TokenUsage,
};
pub use credit::{Assignment, Credit, Credited, Recursion, Reflection, credit, returns};
pub use embeddings::{Embeddings, Lexical, cosine, nearest};
pub use error::{Error, Result};
pub use interval::{Bootstrap, Interval, Mean, Rate};
pub use memory::{
    EpisodicMemory, FinishedEpisode, Memory, MemoryMode, MemoryStep, RecallOrder, RecallQuery, read_reflection,
};
pub use meta::{MetaEpisode, Next};
pub use method::Method;
pub use metrics::{
    Against, AgainstAt, AtEpisode, Ceiling, Ending, EpisodeResult, MetaResult, PairedAt, PairedRate, Slice, Summary,
    Unplayed, against, compare, pass_at_k, share_of_gap, summarise,
};
pub use penalty::{LengthPenalty, Penalty, PenaltyMode};
pub use record::{RequestRecord, Trajectory, TrajectoryKey};
pub use reward::{RewardPreset, RewardRule, Rewards};
pub use row::{Phase, Transition};
pub use rows::{IndexedTransition, MetaEpisodeIndex, anchor_key, rows};
pub use settings::EpisodeConfig;
