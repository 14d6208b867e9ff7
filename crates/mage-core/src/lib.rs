//! Meta-episodes, prompts, memory and parsing; rewards, returns, advantages and metrics.
//!
//! All functions are pure: this crate does no I/O, reads no clock, starts no thread and does not depend on an engine.

mod advantage;
mod credit;
mod embeddings;
pub mod episode;
mod episode_config;
mod error;
mod interval;
mod json;
mod memory;
mod meta_episode;
mod method;
mod metrics;
pub mod parse;
mod penalty;
pub mod prompt;
mod prompt_method;
mod request;
mod reward;
mod trajectory;
mod transition;
mod transitions;

pub use advantage::{
    AdvantageLevels, AdvantageNorm, AnchorScope, BaselineScope, BaselineUnit, CreditSignal, Estimator, Gigpo, Grpo,
    ReturnToGo, Rloo, advantages,
};
pub use credit::{
    AssignedCredit, CreditAssignment, CreditConfig, ReflectionScore, ReturnRecursion, assign_credit, returns,
};
pub use embeddings::{Embeddings, Lexical, cosine, nearest};
pub use episode_config::EpisodeConfig;
pub use error::{Error, Result};
pub use interval::{ConfidenceInterval, MeanEstimate, RateEstimate};
pub use memory::{FinishedEpisode, Memory, MemoryMode, MemoryStep, RecallOrder, RecallQuery, read_reflection};
pub use meta_episode::{MetaEpisode, Next};
pub use method::Method;
pub use metrics::{
    Ceiling, CeilingComparison, EpisodeEnding, EpisodeGap, EpisodeMetrics, EpisodeResult, MetaEpisodeResult,
    MetricSlice, MetricSummary, PairedEpisode, PairedRate, UnplayedEpisodes, compare_paired, compare_to_ceiling,
    gap_closed, gap_fraction, pass_at_k, summarise,
};
pub use penalty::{LengthPenalty, Penalty, PenaltyMode};
pub use prompt_method::{MemoryFactory, MemoryScope, PromptMethod, SharedMemory};
pub use request::{
    Completion, CompletionTokens, Finish, Message, Request, RequestBody, RequestId, RequestKind, Role, TokenUsage,
};
pub use reward::{RewardPreset, RewardRule, RewardSpec};
pub use trajectory::{RequestRecord, Trajectory, TrajectoryKey};
pub use transition::{Transition, TransitionKind};
pub use transitions::{IndexedTransition, MetaEpisodeIndex, transitions};
