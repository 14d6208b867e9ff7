//! Plain data of a language model and of its steps, shared by the CPU engine and the GPU crate.
//!
//! [`ParamLayout`] and [`LoraLayout`] say where each tensor lies in a flat parameter buffer. [`SequenceSlice`] and
//! [`LogitResult`] are the input and output of inference steps, [`PackedChunk`], [`TokenLogprob`] and [`AdamWParams`]
//! those of training passes and optimiser steps. How they are computed is up to each device.

mod lora;
mod params;
mod step;
mod training;

pub use lora::{LoraConfig, LoraGroupLayout, LoraLayout, LoraProjectionLayout, Projection, ProjectionGroup};
pub use params::{LayerLayout, ParamLayout, ParamTensor};
pub use step::{BLOCK_SIZE, LogitResult, SequenceSlice};
pub use training::{AdamWParams, PackedChunk, Prediction, TokenLogprob};
