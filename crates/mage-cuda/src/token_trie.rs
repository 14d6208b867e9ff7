//! Action-mask tries in GPU memory.
//!
//! A trie is uploaded when a token is first sampled at one of its nodes. From then on, requests only name their node;
//! the sampling kernel reads the candidates there and returns the next node. Tries are stored one after the other.
//! Nothing on the device refers to them between steps, so when the buffer is full, all tries are dropped and those of
//! the current step are uploaded again.

use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::{CudaError, Result};
use crate::step_inputs::{Candidates, KernelLogitQuery};
use crate::stream::Stream;
use mage_engine::ActionSet;
use std::collections::HashMap;
use std::sync::Arc;

/// A trie of token sequences. The data starts with the offset of each node (so the first word is the number of nodes).
/// A node is its number of candidates, the candidates, and for each the index of the next node. If all tokens are
/// candidates, a node is [`ActionSet::ALL_TOKENS`], a token, the index of the node after it, and the index of the node
/// after all other tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenTrie<'a> {
    /// Identifies the data, which is only read and checked if the id is new.
    pub id: u64,
    /// The nodes.
    pub data: &'a [u32],
}

impl TokenTrie<'_> {
    /// Rejects offsets outside the data, and candidates outside the vocabulary.
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        let invalid = |problem: String| Err(CudaError::new("checking a token trie", problem));
        let nodes = self.data.first().map_or(0, |n| *n as usize);
        let Some(offsets) = self.data.get(..nodes).filter(|s| !s.is_empty()) else {
            return invalid(format!("{nodes} nodes in {} words", self.data.len()));
        };
        for (index, offset) in offsets.iter().enumerate() {
            let node = self.data.get(*offset as usize..).and_then(|data| {
                let (count, rest) = data.split_first()?;
                match *count {
                    ActionSet::ALL_TOKENS => Some((&[][..], rest.get(1..3)?)),
                    count => {
                        rest.split_at_checked(count as usize).and_then(|(c, rest)| Some((c, rest.get(..c.len())?)))
                    }
                }
            });
            let Some((candidates, next_nodes)) = node else {
                return invalid(format!("node {index} is not within its {} words", self.data.len()));
            };
            if let Some(token) = candidates.iter().find(|t| **t as usize >= vocabulary) {
                return invalid(format!("token {token} of {vocabulary}, at node {index}"));
            }
            if let Some(next) = next_nodes.iter().find(|n| **n as usize >= nodes) {
                return invalid(format!("node {next} of {nodes}, after node {index}"));
            }
        }
        Ok(())
    }
}

/// Initial capacity in words.
pub(crate) const INITIAL_WORDS: usize = 1 << 20;
/// Maximum capacity: node offsets are 32-bit.
const MAX_WORDS: usize = 1 << 31;

/// The tries on the device.
pub(crate) struct DeviceTries {
    cache: TrieCache,
    buffer: DeviceBuffer<u32>,
}

impl DeviceTries {
    /// Allocates a buffer of this many words.
    pub(crate) fn new(device: &Arc<CudaDevice>, capacity: usize) -> Result<Self> {
        Ok(DeviceTries { cache: TrieCache::default(), buffer: DeviceBuffer::new(device, capacity)? })
    }

    /// Resolves the trie nodes of queries. Uploads new tries in stream order. Returns whether the buffer moved to
    /// another address.
    pub(crate) fn resolve(
        &mut self,
        stream: &Stream,
        queries: &[KernelLogitQuery<'_>],
        vocabulary: usize,
    ) -> Result<bool> {
        let relocated = self.upload(stream, queries, vocabulary);
        if relocated.is_err() {
            // The host's view may differ from the device's.
            self.cache.clear();
        }
        relocated
    }

    fn upload(&mut self, stream: &Stream, queries: &[KernelLogitQuery<'_>], vocabulary: usize) -> Result<bool> {
        let DeviceTries { cache, buffer } = self;
        let capacity = cache.resolve(queries, vocabulary, buffer.len())?;
        let relocates = capacity > buffer.len();
        buffer.reserve(capacity)?;
        let new = cache.pending();
        if !new.is_empty() {
            buffer.upload_at(stream, cache.uploaded, new)?;
            cache.uploaded = cache.data.len();
        }
        Ok(relocates)
    }

    /// Device address of the trie buffer.
    pub(crate) fn device_ptr(&self) -> u64 {
        self.buffer.at(0)
    }

    /// Offset of the trie node of query `i` in the last call of [`resolve`](Self::resolve); 0 if it names none.
    pub(crate) fn node_offset(&self, i: usize) -> u32 {
        self.cache.nodes.get(i).copied().unwrap_or(0)
    }
}

/// Host copy of the trie buffer, with the offset of each trie.
#[derive(Default)]
struct TrieCache {
    data: Vec<u32>,
    /// Number of words already uploaded.
    uploaded: usize,
    offsets: HashMap<u64, usize>,
    /// Node offsets by query.
    nodes: Vec<u32>,
}

impl TrieCache {
    fn clear(&mut self) {
        self.data.clear();
        self.uploaded = 0;
        self.offsets.clear();
    }

    fn pending(&self) -> &[u32] {
        &self.data[self.uploaded..]
    }

    /// Resolves nodes within this capacity and returns the capacity needed. If the tries do not fit, the cache restarts
    /// with those of this step, with room for at least as much again, so that this stays rare.
    fn resolve(&mut self, queries: &[KernelLogitQuery<'_>], vocabulary: usize, capacity: usize) -> Result<usize> {
        self.resolve_nodes(queries, vocabulary)?;
        if self.data.len() <= capacity {
            return Ok(capacity);
        }
        self.clear();
        self.resolve_nodes(queries, vocabulary)?;
        if self.data.len() > MAX_WORDS {
            let problem = format!("{} words, at most {MAX_WORDS} are supported", self.data.len());
            return Err(CudaError::new("caching token tries", problem));
        }
        Ok(capacity.max(2 * self.data.len()))
    }

    /// Resolves nodes regardless of the capacity.
    fn resolve_nodes(&mut self, queries: &[KernelLogitQuery<'_>], vocabulary: usize) -> Result<()> {
        let TrieCache { data, offsets, nodes, .. } = self;
        nodes.clear();
        for query in queries {
            let Candidates::TrieNode(trie, node) = query.candidates else {
                nodes.push(0);
                continue;
            };
            let offset = match offsets.get(&trie.id) {
                Some(offset) => *offset,
                None => {
                    trie.check(vocabulary)?;
                    let offset = data.len();
                    data.extend_from_slice(trie.data);
                    offsets.insert(trie.id, offset);
                    offset
                }
            };
            // From the checked data: the data given now may differ.
            let count = data[offset];
            if node >= count {
                return Err(CudaError::new("resolving a trie node", format!("node {node} of {count}")));
            }
            nodes.push((offset + data[offset + node as usize] as usize) as u32);
        }
        Ok(())
    }
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;

    /// Builds trie data from candidates and next nodes, by node. More next nodes than candidates means that all tokens
    /// are candidates: then these are one token, the node after it, and the node after all others.
    pub(crate) fn trie_words(nodes: &[(&[u32], &[u32])]) -> Vec<u32> {
        let mut data = vec![0; nodes.len()];
        for (i, (tokens, next_nodes)) in nodes.iter().enumerate() {
            data[i] = data.len() as u32;
            data.push(if next_nodes.len() > tokens.len() { ActionSet::ALL_TOKENS } else { tokens.len() as u32 });
            data.extend(tokens.iter().chain(*next_nodes));
        }
        data
    }

    /// A root with these candidates, each of which leads to its own leaf.
    fn star(tokens: &[u32]) -> Vec<u32> {
        let leaf: (&[u32], &[u32]) = (&[], &[]);
        let next_nodes: Vec<u32> = (1..=tokens.len() as u32).collect();
        let root = (tokens, &next_nodes[..]);
        trie_words(&[&[root][..], &vec![leaf; tokens.len()]].concat())
    }

    fn query(id: u64, data: &[u32], node: u32) -> KernelLogitQuery<'_> {
        KernelLogitQuery {
            token: None,
            candidates: Candidates::TrieNode(TokenTrie { id, data }, node),
            ..KernelLogitQuery::score(0, None)
        }
    }

    /// Copies pending words to `memory`, as `DeviceTries` does to the device.
    fn upload(cache: &mut TrieCache, memory: &mut Vec<u32>, capacity: usize) {
        memory.resize(capacity, 0);
        memory[cache.uploaded..cache.data.len()].copy_from_slice(cache.pending());
        cache.uploaded = cache.data.len();
    }

    pub(crate) fn a_trie_is_uploaded_once_and_found_again() {
        let (a, b) = (star(&[3, 5]), star(&[2, 4, 6]));
        let (mut cache, mut memory) = (TrieCache::default(), Vec::new());
        assert_eq!(
            cache.resolve(&[query(7, &a, 0), KernelLogitQuery::score(1, Some(&[1])), query(9, &b, 0)], 7, 64).unwrap(),
            64
        );
        assert_eq!(cache.pending().len(), a.len() + b.len());
        upload(&mut cache, &mut memory, 64);
        let node = |i: usize, cache: &TrieCache, memory: &[u32]| memory[cache.nodes[i] as usize..][..3].to_vec();
        assert_eq!(
            (node(0, &cache, &memory), cache.nodes[1], node(2, &cache, &memory)),
            (vec![2, 3, 5], 0, vec![3, 2, 4])
        );
        // Other nodes of the same tries need no upload.
        cache.resolve(&[query(9, &b, 3), query(7, &a, 0)], 7, 64).unwrap();
        assert!(cache.pending().is_empty());
        assert_eq!((node(0, &cache, &memory)[0], node(1, &cache, &memory)), (0, vec![2, 3, 5]));
    }

    pub(crate) fn a_full_cache_is_cleared_and_refilled() {
        let tries: Vec<Vec<u32>> = (0..50).map(|i| star(&[i, i + 1])).collect();
        let each = tries[0].len();
        let capacity = 5 * each + 1;
        let (mut cache, mut memory, mut total) = (TrieCache::default(), Vec::new(), 0);
        for (i, trie) in tries.iter().enumerate() {
            // Each trie occurs in two steps.
            let queries: Vec<KernelLogitQuery<'_>> =
                (i.saturating_sub(1)..=i).map(|j| query(j as u64, &tries[j], 0)).collect();
            assert_eq!(cache.resolve(&queries, 51, capacity).unwrap(), capacity, "the tries of one step fit");
            total += cache.pending().len();
            upload(&mut cache, &mut memory, capacity);
            for (query, node) in queries.iter().zip(&cache.nodes) {
                let Candidates::TrieNode(trie, _) = query.candidates else { panic!("{query:?}") };
                assert_eq!(memory[*node as usize..][..5], trie.data[trie.data[0] as usize..][..5]);
            }
            assert_eq!(cache.data.len() % trie.len(), 0);
        }
        assert!((51 * each..=65 * each).contains(&total), "{} uploads of 50 tries", total / each);
    }

    pub(crate) fn tries_larger_than_half_of_the_cache_double_its_capacity() {
        let (old, a, b) = (star(&[1]), star(&[1, 2, 3]), star(&[4, 5, 6]));
        let mut cache = TrieCache::default();
        cache.resolve(&[query(0, &old, 0)], 7, a.len()).unwrap();
        cache.uploaded = old.len();
        let capacity = cache.resolve(&[query(1, &a, 0), query(2, &b, 0)], 7, a.len()).unwrap();
        assert_eq!((capacity, cache.uploaded), (2 * (a.len() + b.len()), 0));
        assert_eq!(cache.pending(), [a, b].concat());
    }

    pub(crate) fn invalid_tries_are_rejected() {
        let good = trie_words(&[(&[1, 4], &[1, 1]), (&[], &[]), (&[9], &[0, 2])]);
        let check = |data: &[u32], vocabulary: usize| {
            TokenTrie { id: 0, data }.check(vocabulary).map_err(|e| e.to_string()).err().unwrap_or_default()
        };
        assert_eq!(check(&good, 5), "");
        assert!(check(&good, 4).contains("token 4 of 4, at node 0"));
        assert!(check(&[], 5).contains("0 nodes in 0 words") && check(&[2], 5).contains("2 nodes in 1 words"));
        for len in 1..good.len() {
            assert_ne!(check(&good[..len], 5), "", "{len} words");
        }
        for (i, problem) in
            [(6, "node 1000 of 3, after node 0"), (3, "node 0 is not within"), (1, "node 1 is not within")]
        {
            let mut bad = good.clone();
            bad[i] = 1000;
            assert!(check(&bad, 5).contains(problem), "{}", check(&bad, 5));
        }
        let error = TrieCache::default().resolve(&[query(0, &good, 3)], 5, 64).unwrap_err().to_string();
        assert!(error.contains("node 3 of 3"), "{error}");
    }
}
