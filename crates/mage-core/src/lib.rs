//! *What does the agent see, and what was each step worth?*
//!
//! Meta-episodes, prompts, memory, parsing, rewards, returns, advantages, metrics: pure functions over data. Nothing here
//! does I/O, reads a clock, starts a thread or knows an engine's insides.

mod call;
mod error;
pub mod history;
mod memory;
mod meta;
pub mod parse;
pub mod prompt;
mod record;
mod row;
mod settings;

pub use call::{Answer, Call, CallId, Finish, Message, Purpose, Request, Role, Tokens};
pub use error::{Error, Result};
pub use memory::{Asking, EpisodicMemory, Finished, Memory, MemoryMode, Query, RecallOrder, Recorded, read_reflection};
pub use meta::{MetaEpisode, Next, anchor_key};
pub use record::{CallRecord, EpisodeRecord, RecordKey};
pub use row::{Phase, Row};
pub use settings::Settings;
