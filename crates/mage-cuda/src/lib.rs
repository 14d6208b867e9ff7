//! *What can the card do?*
//!
//! Qwen3 on an NVIDIA card: bf16 numbers, fp32 sums. Matrix products are cuBLASLt's; everything between them is kernels of
//! our own, compiled by NVRTC when a model is first used. Nothing of CUDA is needed to build this, and where no driver is
//! found, [`Card::open`] says so and what to do.
//!
//! [`Trainer`] goes forward and backward over packed sequences and steps with AdamW; [`Stepper`] takes the next tokens of
//! many sequences in, keys and values lying in pages, and answers what is asked about them. Both work on a [`Model`].
//! This crate knows shapes, numbers and the driver; engines, requests and losses are others' concern.
//!
//! # Unsafe code
//!
//! Every call of the driver is unsafe. Sizes are kept with buffers; tokens, rows, positions, pages, lengths and tries that
//! come from outside are compared with them before anything is started, and kernels get their sizes from the same shapes. Where
//! parameters lie ([`Places`], [`AdapterPlaces`]) is taken on trust.

mod adapter;
mod attention;
mod buffer;
mod card;
mod compile;
mod dense;
mod error;
mod find;
#[cfg(test)]
mod kernel_tests;
mod map;
mod measure;
mod model;
mod packet;
mod pinned;
mod product;
mod record;
mod shape;
mod step;
mod train;
mod tries;

pub use adapter::{Adapter, AdapterPlaces, GROUPS, GroupPlaces, Held, PartPlaces};
pub use buffer::{Buffer, Plain};
pub use card::{Card, CardInfo};
pub use compile::{LARGEST_HEAD, MOST_SHARING, compiling};
pub use error::{CudaError, Result};
pub use find::{Found, Search, search};
pub use measure::{Rates, measure};
pub use model::{Model, Weights};
pub use packet::{Among, Answer, Ask};
pub use shape::{LayerPlaces, Places, Shape};
pub use step::{Part, Step, Stepper};
pub use train::{AdamW, Choice, Prediction, Sequences, Trainer};
pub use tries::Trie;

/// Tokens in a page of keys and values.
pub const PAGE: usize = 16;
/// Rows of a tile of attention.
const TILE: usize = 64;
