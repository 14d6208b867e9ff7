//! Deterministic randomness and content hashes.
//!
//! Every random stream comes from a [`Seed`] derived by name, so results do not depend on thread count or execution
//! order. [`struct@Hash`] identifies tasks, settings and results across platforms.

mod hash;
mod seed;

pub use hash::Hash;
pub use seed::{Rng, Seed, weighted_index};
