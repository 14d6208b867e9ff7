//! Interface between training loops and engines: the [`Sampler`] and [`Trainer`] traits, chat rendering ([`Renderer`]),
//! training batches ([`TokenForest`]), action masks ([`ActionSet`]) and per-token losses ([`Loss`]).
//!
//! [`model`] holds the data that the CPU engine and the GPU crate share.
//!
//! This crate does not depend on environments or methods: engines receive tokens, per-token values and masks.

mod action;
mod chat;
mod error;
mod forest;
mod loss;
mod message;
pub mod model;
mod renderer;
mod sampler;
mod template;
mod trainer;
mod weights;

pub use action::{ActionCursor, ActionSet, Allowed};
pub use chat::{ChatCompletion, ChatModel, ChatRequest, ChatUsage};
pub use error::{Error, Hint, Result, truncate_chars};
pub use forest::{PerToken, Segment, TokenClass, TokenForest, TokenInputs};
pub use loss::{EntropyTerm, KlForm, KlTerm, Loss, Objective, Reduction, TokenLoss};
pub use message::{ChatMessage, ChatRole};
pub use renderer::{ControlTokenIds, Renderer, Thinking};
pub use sampler::{
    BoxFuture, FinishReason, LogprobsMode, Sample, SampleRequest, Sampler, SamplerCaps, SamplingParams, ScoreRequest,
    Scores,
};
pub use trainer::{LossReport, LrDecay, LrSchedule, OptimStep, StepReport, Trainer, TrainerCaps};
pub use weights::{WeightVersion, WeightsId, WeightsName};
