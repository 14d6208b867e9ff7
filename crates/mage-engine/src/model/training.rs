//! Inputs and results of training passes, and the parameters of AdamW.

use crate::{Allowed, TokenInputs};
use std::ops::Range;

/// A token to predict.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    /// The row of the chunk whose logits predict it.
    pub row: u32,
    /// The token.
    pub token: u32,
    /// The candidates, unless all tokens are.
    pub allowed: Option<Allowed>,
    /// Its loss inputs.
    pub inputs: TokenInputs,
    /// Its index among all predictions of the batch.
    pub index: usize,
}

/// Sequences packed end to end, without padding.
#[derive(Clone, Debug, Default)]
pub struct PackedChunk {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// The position of each token in its sequence.
    pub positions: Vec<u32>,
    /// The rows of each sequence, in order and without gaps.
    pub sequences: Vec<Range<usize>>,
    /// The tokens to predict, at most one per row.
    pub predictions: Vec<Prediction>,
}

impl PackedChunk {
    /// Adds a sequence and returns its first row.
    pub fn push(&mut self, tokens: impl IntoIterator<Item = u32>) -> usize {
        let first = self.tokens.len();
        self.tokens.extend(tokens);
        let rows = first..self.tokens.len();
        self.positions.extend(0..rows.len() as u32);
        self.sequences.push(rows);
        first
    }

    /// Length of the longest sequence.
    pub fn max_len(&self) -> usize {
        self.sequences.iter().map(Range::len).max().unwrap_or(0)
    }
}

/// Statistics of a predicted token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    /// Log-probability of the token.
    pub logprob: f32,
    /// Entropy of the distribution, in nats.
    pub entropy: f32,
    /// Log-sum-exp of the logits.
    pub logsumexp: f32,
}

/// Scalars of an AdamW update of a range of parameters, from an [`OptimStep`](crate::OptimStep) and the gradient norm.
#[derive(Clone, Copy, Debug)]
pub struct AdamWParams {
    /// Learning rate.
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the denominator.
    pub epsilon: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Factor of the gradient (gradient clipping).
    pub grad_scale: f32,
    /// Bias correction `1 − beta1ᵗ`.
    pub correction1: f32,
    /// Bias correction `1 − beta2ᵗ`.
    pub correction2: f32,
}
