//! Inputs and results of inference steps over a paged KV cache.

/// Tokens per KV-cache block. The CPU's vectors and the GPU's attention tiles are made for this size.
pub const BLOCK_SIZE: usize = 16;

/// One sequence's slice of a step.
#[derive(Clone, Copy, Debug)]
pub struct SequenceSlice {
    /// Start of its new tokens in those of the step.
    pub token_offset: usize,
    /// Number of new tokens.
    pub num_tokens: usize,
    /// Position of the first new token.
    pub start_position: usize,
    /// Start of its block table in those of the step. The table covers every token up to the last new one.
    pub block_table_offset: usize,
    /// How many of its last tokens have logit queries.
    pub num_logits: usize,
}

/// Result of a query about one row of logits. GPU kernels write it (`LogitResult` in `sampling.cu`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct LogitResult {
    /// The scored or sampled token.
    pub token: u32,
    /// Its log-probability under the policy (masked, before temperature and filters); NaN if the logits are not finite.
    pub logprob: f32,
    /// Sampled: its log-probability in the distribution sampled from. Scored: the entropy.
    pub aux: f32,
    /// Sampled at an action-trie node: the index of the node that follows, plus one. 0: the device tracks no node.
    pub next_node_plus_one: u32,
}

impl LogitResult {
    /// Whether the logits were finite.
    pub fn is_finite(&self) -> bool {
        self.logprob.is_finite() && self.aux.is_finite()
    }

    /// The action-trie node reached, if the device tracks it.
    pub fn next_node(&self) -> Option<u32> {
        self.next_node_plus_one.checked_sub(1)
    }
}
