//! Inputs of kernels that change every step.
//!
//! Small inputs of a step go to the device as one buffer of 32-bit words. Action-mask tries are uploaded once and stay
//! on the device.

use crate::token_trie::TokenTrie;
use mage_engine::ActionSet;

/// The tokens that may be sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Candidates<'a> {
    /// The whole vocabulary.
    All,
    /// The tokens of a list.
    List(&'a [u32]),
    /// The tokens at a node of a trie, given by its index.
    TrieNode(TokenTrie<'a>, u32),
}

impl<'a> Candidates<'a> {
    /// The tokens of the list, or the whole vocabulary.
    pub(crate) fn from_list(tokens: Option<&'a [u32]>) -> Self {
        tokens.map_or(Candidates::All, Candidates::List)
    }

    /// The tokens that are uploaded with the step inputs.
    pub(crate) fn list(&self) -> &'a [u32] {
        match self {
            Candidates::List(tokens) => tokens,
            Candidates::All | Candidates::TrieNode(..) => &[],
        }
    }
}

/// A query about one row of logits, as the sampling kernel takes it. Unlike in a request, the uniform variate is drawn
/// and the candidates are a list or a trie node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelLogitQuery<'a> {
    /// The token to score; `None` samples one.
    pub token: Option<u32>,
    /// The candidates.
    pub candidates: Candidates<'a>,
    /// Number of most likely tokens to keep; 0 keeps all.
    pub top_k: u32,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f32,
    /// Probability mass to keep.
    pub top_p: f32,
    /// Minimum weight to keep, relative to the most likely token.
    pub min_p: f32,
    /// Uniform variate in [0, 1) that selects the token.
    pub uniform: f32,
}

impl<'a> KernelLogitQuery<'a> {
    /// Scores a token.
    pub fn score(token: u32, allowed: Option<&'a [u32]>) -> Self {
        let candidates = Candidates::from_list(allowed);
        KernelLogitQuery {
            token: Some(token),
            candidates,
            top_k: 0,
            temperature: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            uniform: 0.0,
        }
    }
}

/// Threads per row of logits.
pub(crate) const LOGIT_THREADS: usize = 512;
/// Words of a `LogitQuery` on the device.
pub(crate) const QUERY_WORDS: usize = 8;
const SAMPLE: u32 = u32::MAX;
const ALL_TOKENS: u32 = ActionSet::ALL_TOKENS;
const TRIE_NODE: u32 = u32::MAX - 1;

/// Step inputs being assembled on the host.
#[derive(Default)]
pub(crate) struct StepInputs {
    pub(crate) data: Vec<u32>,
}

impl StepInputs {
    pub(crate) fn clear(&mut self) {
        self.data.clear();
    }

    /// Appends words and returns their offset.
    pub(crate) fn push(&mut self, values: impl IntoIterator<Item = u32>) -> usize {
        let at = self.data.len();
        self.data.extend(values);
        at
    }

    /// Appends zeros to be overwritten later and returns their offset, which is a multiple of four.
    pub(crate) fn push_zeros(&mut self, count: usize) -> usize {
        let at = self.data.len().next_multiple_of(4);
        self.data.resize(at + count, 0);
        at
    }

    /// Writes query `i` of those at `queries_offset`. Its token list is appended. For a trie node, `node` is its offset
    /// in the device's trie buffer.
    pub(crate) fn set_query(&mut self, queries_offset: usize, i: usize, query: &KernelLogitQuery<'_>, node: u32) {
        let (list, count) = match query.candidates {
            Candidates::All => (0, ALL_TOKENS),
            Candidates::List(tokens) => (self.push(tokens.iter().copied()) as u32, tokens.len() as u32),
            Candidates::TrieNode(..) => (node, TRIE_NODE),
        };
        let at = queries_offset + i * QUERY_WORDS;
        self.data[at..at + QUERY_WORDS].copy_from_slice(&[
            query.token.unwrap_or(SAMPLE),
            list,
            count,
            query.top_k,
            query.temperature.to_bits(),
            query.top_p.to_bits(),
            query.min_p.to_bits(),
            query.uniform.to_bits(),
        ]);
    }
}
