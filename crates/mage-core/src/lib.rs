//! *What does the agent see, and what was each step worth?*
//!
//! Meta-episodes, prompts, memory, parsing, rewards, returns, advantages, metrics: pure functions over data. Nothing here
//! does I/O, reads a clock, starts a thread or knows an engine's insides.

mod advantage;
mod credit;
mod interval;
mod method;
mod metrics;
mod penalty;
mod reward;
mod row;

pub use advantage::{
    Anchors, BaselineUnit, Estimator, Gigpo, Grpo, Levels, Norm, ReturnToGo, Rloo, Scope, Signal, advantages,
};
pub use credit::{Assignment, Credit, Credited, Recursion, Reflection, credit, returns};
pub use interval::{Bootstrap, Interval, Mean, Rate};
pub use method::Method;
pub use metrics::{
    Against, AgainstAt, AtEpisode, Ceiling, Ending, EpisodeResult, MetaResult, Slice, Summary, Unplayed, against,
    pass_at_k, share_of_gap, summarise,
};
pub use penalty::{LengthPenalty, Penalty, PenaltyMode};
pub use reward::{RewardPreset, RewardRule, Rewards};
pub use row::{Phase, Row};
