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
pub use approach::{Approach, MemoryMaker, MemoryScope};
pub use call::{Answer, Call, CallId, Finish, Message, Purpose, Request, Role, Tokens, Usage};
pub use credit::{Assignment, Credit, Credited, Recursion, Reflection, credit, returns};
pub use embeddings::{Embeddings, Lexical, cosine, nearest};
pub use error::{Error, Result};
pub use interval::{Bootstrap, Interval, Mean, Rate};
pub use memory::{Asking, EpisodicMemory, Finished, Memory, MemoryMode, Query, RecallOrder, read_reflection};
pub use meta::{MetaEpisode, Next};
pub use method::Method;
pub use metrics::{
    Against, AgainstAt, AtEpisode, Ceiling, Ending, EpisodeResult, MetaResult, PairedAt, PairedRate, Slice, Summary,
    Unplayed, against, compare, pass_at_k, share_of_gap, summarise,
};
pub use penalty::{LengthPenalty, Penalty, PenaltyMode};
pub use record::{CallRecord, EpisodeRecord, RecordKey};
pub use reward::{RewardPreset, RewardRule, Rewards};
pub use row::{Phase, Row};
pub use rows::{RowOfCall, RowPlace, anchor_key, rows};
pub use settings::Settings;
