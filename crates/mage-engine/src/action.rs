//! Action masks: the legal completions of a request, as a trie of token sequences.
//!
//! The mask is part of the policy: log-probs and entropies are computed after it, in sampling and in the loss. It
//! applies after the thinking phase.
//!
//! A GPU keeps the trie in its own memory in the flat layout of [`ActionSet::trie_data`]. It receives the current node
//! of a sequence and returns the node that the sampled token leads to.

use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Legal next tokens in ascending order. Shared, because thousands of training tokens have the same mask.
pub type Allowed = Arc<[u32]>;

/// A set of legal completions, each a sequence of tokens.
#[derive(Clone, Debug)]
pub struct ActionSet(Arc<Trie>);

#[derive(Debug)]
struct Trie {
    id: u64,
    nodes: Vec<TrieNode>,
    think_end: Option<u32>,
    /// Flat layout, built on first use.
    data: OnceLock<Vec<u32>>,
}

#[derive(Debug)]
struct TrieNode {
    tokens: Allowed,
    next: Vec<u32>,
}

/// Next id of an action set.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl ActionSet {
    /// Marks a node of [`trie_data`](Self::trie_data) at which every token is legal.
    pub const ALL_TOKENS: u32 = u32::MAX;

    /// Builds the set of `completions`. With `end`, every completion is followed by that end-of-turn token, which is
    /// sampled like any other; without it, a completion is complete at its last token. With `think_end`, every token is
    /// legal until that token has been generated.
    pub fn new<A: AsRef<[u32]>>(
        completions: impl IntoIterator<Item = A>,
        end: Option<u32>,
        think_end: Option<u32>,
    ) -> Result<Self> {
        let mut completions: Vec<Vec<u32>> =
            completions.into_iter().map(|a| a.as_ref().iter().copied().chain(end).collect()).collect();
        completions.sort();
        completions.dedup();
        if completions.is_empty() {
            return Err(Error::invalid("action set", "no completions; pass at least one, or no action set"));
        }
        if completions[0].is_empty() {
            return Err(Error::invalid("action set", "a completion has no tokens; pass an end token or remove it"));
        }
        if let Some(w) = completions.windows(2).find(|w| w[1].starts_with(&w[0])) {
            return Err(Error::invalid(
                "action set",
                format!("completion {:?} is a prefix of {:?} and would be ambiguous; pass an end token", w[0], w[1]),
            ));
        }
        let mut nodes = Vec::new();
        build_node(&completions, 0, &mut nodes);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(ActionSet(Arc::new(Trie { id, nodes, think_end, data: OnceLock::new() })))
    }

    /// Id shared by this set and its clones, unique in the process.
    ///
    /// ```
    /// # use mage_engine::ActionSet;
    /// let set = ActionSet::new([[1], [2]], None, None)?;
    /// assert_eq!(set.id(), set.clone().id());
    /// assert_ne!(set.id(), ActionSet::new([[1], [2]], None, None)?.id());
    /// # Ok::<(), mage_engine::Error>(())
    /// ```
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The trie in the flat, position-independent layout used on GPUs. First the offset of each node, so that the first
    /// word is the number of nodes. A node is the count of its legal tokens, these tokens in ascending order, and the
    /// next node for each. The thinking node has [`ALL_TOKENS`](Self::ALL_TOKENS) instead of a count, then the token
    /// that ends thinking, the next node for it, and the next node for every other token.
    ///
    /// ```
    /// # use mage_engine::ActionSet;
    /// let set = ActionSet::new([[3], [5]], None, Some(9))?;
    /// let (root, leaf, thinking) = (&[2, 3, 5, 1, 2], &[0], &[ActionSet::ALL_TOKENS, 9, 0, 3]);
    /// assert_eq!(set.trie_data(), [&[4, 9, 10, 11][..], root, leaf, leaf, thinking].concat());
    /// # Ok::<(), mage_engine::Error>(())
    /// ```
    pub fn trie_data(&self) -> &[u32] {
        let Trie { nodes, think_end, data, .. } = &*self.0;
        data.get_or_init(|| {
            let mut data = vec![0; self.num_nodes()];
            for (i, node) in nodes.iter().enumerate() {
                data[i] = data.len() as u32;
                data.push(node.tokens.len() as u32);
                data.extend_from_slice(&node.tokens);
                data.extend_from_slice(&node.next);
            }
            if let Some(end) = *think_end {
                let thinking = nodes.len();
                data[thinking] = data.len() as u32;
                data.extend([Self::ALL_TOKENS, end, 0, thinking as u32]);
            }
            data
        })
    }

    /// Number of trie nodes, including the thinking node if there is one.
    fn num_nodes(&self) -> usize {
        self.0.nodes.len() + usize::from(self.0.think_end.is_some())
    }

    /// A cursor at the start of a completion.
    pub fn start(&self) -> ActionCursor {
        let node = if self.0.think_end.is_some() { self.0.nodes.len() as u32 } else { 0 };
        ActionCursor { set: self.clone(), node }
    }

    /// The mask of each token of a `completion` sampled under this set, for training.
    pub fn masks(&self, completion: &[u32]) -> Result<Vec<Option<Allowed>>> {
        let mut cursor = self.start();
        completion
            .iter()
            .enumerate()
            .map(|(i, &token)| {
                let allowed = cursor.allowed().cloned();
                if !cursor.advance(token) {
                    return Err(Error::invalid(
                        format!("completion token {i}"),
                        format!("{token} is outside the action set of its request"),
                    ));
                }
                Ok(allowed)
            })
            .collect()
    }

    /// The largest token id in the set, to check it against a vocabulary.
    pub(crate) fn max_token(&self) -> u32 {
        self.0.nodes.iter().flat_map(|n| n.tokens.iter().copied()).max().unwrap_or(0)
    }
}

/// Builds the subtree for `completions`, which share their first `depth` tokens, and returns its root.
fn build_node(completions: &[Vec<u32>], depth: usize, nodes: &mut Vec<TrieNode>) -> u32 {
    let id = nodes.len() as u32;
    nodes.push(TrieNode { tokens: Arc::new([]), next: Vec::new() });
    let mut tokens = Vec::new();
    let mut next = Vec::new();
    for branch in completions.chunk_by(|a, b| a.get(depth) == b.get(depth)) {
        if let Some(&token) = branch[0].get(depth) {
            tokens.push(token);
            next.push(build_node(branch, depth + 1, nodes));
        }
    }
    nodes[id as usize] = TrieNode { tokens: tokens.into(), next };
    id
}

/// Position of a partial completion in an [`ActionSet`].
#[derive(Clone, Debug)]
pub struct ActionCursor {
    set: ActionSet,
    /// Index of a node; one past the last trie node during thinking.
    node: u32,
}

impl ActionCursor {
    /// The action set.
    pub fn set(&self) -> &ActionSet {
        &self.set
    }

    /// Index of the current node in [`trie_data`](ActionSet::trie_data).
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The legal next tokens; `None` during thinking, when every token is legal.
    pub fn allowed(&self) -> Option<&Allowed> {
        self.trie_node().map(|n| &n.tokens)
    }

    /// Whether the completion is complete.
    pub fn complete(&self) -> bool {
        self.allowed().is_some_and(|a| a.is_empty())
    }

    /// Advances by one token. Returns `false` and does not move if the token is illegal.
    pub fn advance(&mut self, token: u32) -> bool {
        match self.next_node(token) {
            Some(node) => {
                self.node = node;
                true
            }
            None => false,
        }
    }

    /// Advances by a token sampled on a device, to the `node` that the device reported. Returns `false` and does not
    /// move if the set has no such node. Unlike [`advance`](Self::advance), this does not search for the token.
    ///
    /// ```
    /// # use mage_engine::ActionSet;
    /// let mut host = ActionSet::new([[3, 4], [5, 4]], None, None)?.start();
    /// let mut device = host.clone();
    /// assert!(host.advance(5) && device.advance_to(5, host.node()));
    /// assert_eq!(device.allowed().map(|a| a.to_vec()), Some(vec![4]));
    /// assert!(!device.advance_to(4, 1000));
    /// # Ok::<(), mage_engine::Error>(())
    /// ```
    pub fn advance_to(&mut self, token: u32, node: u32) -> bool {
        if node as usize >= self.set.num_nodes() {
            return false;
        }
        debug_assert_eq!(self.next_node(token), Some(node), "token {token} at node {}", self.node);
        self.node = node;
        true
    }

    /// The current trie node; `None` during thinking.
    fn trie_node(&self) -> Option<&TrieNode> {
        self.set.0.nodes.get(self.node as usize)
    }

    /// The node that a token leads to; `None` if it is illegal.
    fn next_node(&self, token: u32) -> Option<u32> {
        match self.trie_node() {
            Some(node) => node.tokens.binary_search(&token).ok().map(|i| node.next[i]),
            None => Some(if self.set.0.think_end == Some(token) { 0 } else { self.node }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cursor_accepts_exactly_the_completions() {
        let set = ActionSet::new([vec![5, 6], vec![5, 7, 8], vec![2]], Some(9), None).unwrap();
        let mut c = set.start();
        assert_eq!(&c.allowed().unwrap()[..], [2, 5]);
        assert!(!c.advance(6));
        assert!(c.advance(5));
        assert_eq!(&c.allowed().unwrap()[..], [6, 7]);
        assert!(c.advance(6) && !c.complete() && c.advance(9) && c.complete());
        assert!(!c.advance(9), "no token follows a complete completion");
        assert_eq!(set.max_token(), 9);
    }

    #[test]
    fn every_token_is_legal_during_thinking() {
        let set = ActionSet::new([[1], [2]], None, Some(100)).unwrap();
        let masks = set.masks(&[7, 1, 100, 2]).unwrap();
        assert!(masks[..3].iter().all(Option::is_none));
        assert_eq!(&masks[3].as_ref().unwrap()[..], [1, 2]);
        assert!(set.masks(&[100, 3]).unwrap_err().to_string().contains("completion token 1"));
    }

    #[test]
    fn ambiguous_and_empty_sets_are_rejected() {
        assert!(ActionSet::new([vec![1], vec![1, 2]], None, None).unwrap_err().to_string().contains("end token"));
        assert!(ActionSet::new([vec![1], vec![1, 2]], Some(0), None).is_ok());
        assert!(ActionSet::new(Vec::<Vec<u32>>::new(), None, None).is_err());
        assert!(ActionSet::new([Vec::<u32>::new()], None, None).is_err());
    }

    /// The legal tokens of a node in flat layout and the next node for each; `None` if every token is legal.
    fn read_node(data: &[u32], node: u32) -> Option<(&[u32], &[u32])> {
        let node = &data[data[node as usize] as usize..];
        (node[0] != ActionSet::ALL_TOKENS).then(|| node[1..].split_at(node[0] as usize)).map(|(tokens, rest)| {
            let count = tokens.len();
            (tokens, &rest[..count])
        })
    }

    /// The next node in flat layout.
    fn next_in_data(data: &[u32], node: u32, token: u32) -> Option<u32> {
        match read_node(data, node) {
            Some((tokens, next)) => tokens.iter().position(|t| *t == token).map(|i| next[i]),
            None => {
                let node = &data[data[node as usize] as usize..];
                Some(if node[1] == token { node[2] } else { node[3] })
            }
        }
    }

    proptest! {
        #[test]
        fn flat_layout_agrees_with_the_cursor(
            completions in prop::collection::vec(prop::collection::vec(0_u32..6, 0..5), 1..12),
            thinking in any::<bool>(),
            tokens in prop::collection::vec(0_u32..8, 0..24),
        ) {
            let set = ActionSet::new(&completions, Some(6), thinking.then_some(2)).unwrap();
            let data = set.trie_data();
            prop_assert_eq!(data[0] as usize, set.num_nodes());
            let (mut cursor, mut device) = (set.start(), set.start());
            for token in tokens {
                let before = cursor.node();
                prop_assert_eq!(read_node(data, before).map(|n| n.0), cursor.allowed().map(|a| &a[..]));
                let next = next_in_data(data, before, token);
                prop_assert_eq!(cursor.advance(token), next.is_some());
                prop_assert_eq!(cursor.node(), next.unwrap_or(before));
                if let Some(next) = next {
                    prop_assert!(device.advance_to(token, next));
                }
                prop_assert_eq!((device.node(), device.complete()), (cursor.node(), cursor.complete()));
            }
        }
    }

    #[test]
    fn unknown_nodes_are_rejected() {
        for (think_end, num_nodes) in [(None, 3), (Some(9), 4)] {
            let mut cursor = ActionSet::new([[1], [2]], None, think_end).unwrap().start();
            let before = cursor.node();
            assert!(!cursor.advance_to(1, num_nodes) && !cursor.advance_to(1, u32::MAX));
            assert_eq!(cursor.node(), before);
        }
    }
}
