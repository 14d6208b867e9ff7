//! What does the host tell the kernels, and what do they answer?
//!
//! Everything small that changes from one step to the next goes to the card as one packet of 32-bit words. What stays, as tries of
//! answers do, goes there on its own when it is first met.

use crate::token_trie::TokenTrie;

/// Which tokens are candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Candidates<'a> {
    /// All.
    All,
    /// Those of a list.
    List(&'a [u32]),
    /// Those at a node of a trie, by its number.
    TrieNode(TokenTrie<'a>, u32),
}

impl<'a> Candidates<'a> {
    /// Those of a list, where there is one, else all.
    pub fn from_list(tokens: Option<&'a [u32]>) -> Self {
        tokens.map_or(Candidates::All, Candidates::List)
    }

    /// What travels with the packet.
    pub(crate) fn listed(&self) -> &'a [u32] {
        match self {
            Candidates::List(tokens) => tokens,
            Candidates::All | Candidates::TrieNode(..) => &[],
        }
    }
}

/// What is asked about a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuLogitQuery<'a> {
    /// The token asked about; nothing draws one.
    pub token: Option<u32>,
    /// The candidates.
    pub candidates: Candidates<'a>,
    /// How many of the likeliest stay; 0 is all.
    pub top_k: u32,
    /// 0 takes the likeliest.
    pub temperature: f32,
    /// The share of the mass that stays.
    pub top_p: f32,
    /// The least weight that stays, relative to the likeliest.
    pub min_p: f32,
    /// Where on the line from 0 to 1 the drawn token lies.
    pub uniform: f32,
}

impl<'a> GpuLogitQuery<'a> {
    /// How likely a token is.
    pub fn score(token: u32, allowed: Option<&'a [u32]>) -> Self {
        let candidates = Candidates::from_list(allowed);
        GpuLogitQuery {
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

/// What a row answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct GpuLogitResult {
    /// The token asked about, or drawn.
    pub token: u32,
    /// Its log-probability among the candidates; not a number where logits are not finite.
    pub logprob: f32,
    /// Drawn: its log-probability in the distribution drawn from. Scored: the entropy.
    pub aux: f32,
    /// One more than the number of the node that follows; 0 where nothing was drawn at a node.
    following: u32,
}

impl GpuLogitResult {
    /// Drawn at a node of a trie: the number of the node that follows it with the drawn token.
    pub fn next_node(&self) -> Option<u32> {
        self.following.checked_sub(1)
    }
}

/// Threads that read a row of logits together.
pub(crate) const READERS: usize = 512;
/// Words of an ask on the card.
pub(crate) const ASK: usize = 8;
const DRAW: u32 = u32::MAX;
const ALL: u32 = TokenTrie::ALL_TOKENS;
const NODE: u32 = u32::MAX - 1;

/// Words on their way to the card.
#[derive(Default)]
pub(crate) struct GpuStepInputs {
    pub(crate) words: Vec<u32>,
}

impl GpuStepInputs {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
    }

    /// Adds words and says where they start.
    pub(crate) fn put(&mut self, words: impl IntoIterator<Item = u32>) -> usize {
        let at = self.words.len();
        self.words.extend(words);
        at
    }

    /// Leaves room for words to be written later and says where it starts.
    pub(crate) fn leave(&mut self, count: usize) -> usize {
        let at = self.words.len().next_multiple_of(4);
        self.words.resize(at + count, 0);
        at
    }

    /// Writes ask number `i` of those that start at `asks`; its list goes to the end. Where it names a node, this is at the
    /// word `node` of the tries on the card.
    pub(crate) fn ask(&mut self, asks: usize, i: usize, ask: &GpuLogitQuery<'_>, node: u32) {
        let (list, count) = match ask.candidates {
            Candidates::All => (0, ALL),
            Candidates::List(tokens) => (self.put(tokens.iter().copied()) as u32, tokens.len() as u32),
            Candidates::TrieNode(..) => (node, NODE),
        };
        let at = asks + i * ASK;
        self.words[at..at + ASK].copy_from_slice(&[
            ask.token.unwrap_or(DRAW),
            list,
            count,
            ask.top_k,
            ask.temperature.to_bits(),
            ask.top_p.to_bits(),
            ask.min_p.to_bits(),
            ask.uniform.to_bits(),
        ]);
    }
}
