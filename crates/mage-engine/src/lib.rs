//! *Which tokens come next, and how do weights change?*
//!
//! The seam between training loops and engines: what a [`Sampler`] and a [`Trainer`] promise, how messages become tokens
//! ([`Renderer`]), what is trained on ([`TokenForest`]) and what a token costs ([`Loss`]). Nothing here knows of
//! environments or algorithms: engines get per-token numbers and masks.

mod action;
mod chat;
mod error;
mod forest;
mod loss;
mod message;
mod renderer;
mod sampler;
mod scripted;
mod template;
mod trainer;
mod wait;
mod weights;

pub use action::{ActionCursor, ActionSet, Allowed};
pub use chat::{ChatAnswer, ChatPolicy, ChatRequest, RenderedPolicy, Usage};
pub use error::{Error, Result, truncate_chars};
pub use forest::{PerToken, Segment, TokenClass, TokenForest, TokenInputs};
pub use loss::{EntropyTerm, KlForm, KlTerm, Loss, Objective, Reduction, TokenCost};
pub use message::{Message, Role};
pub use renderer::{ControlTokens, Renderer, Thinking};
pub use sampler::{
    BoxFuture, FinishReason, LogProbs, Sample, SampleRequest, Sampler, SamplerCaps, SamplingParams, ScoreRequest,
    Scores,
};
pub use scripted::ScriptedEngine;
pub use trainer::{Decay, LossReport, OptimStep, Schedule, StepReport, Trainer, TrainerCaps};
pub use wait::{block_on, for_each_in_flight};
pub use weights::{AdapterName, WeightVersion, WeightsId};
