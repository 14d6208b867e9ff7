//! The prefix cache: a tree of KV-cache blocks keyed by token ids.
//!
//! A node is a block of at most [`BLOCK_SIZE`] tokens that follow those of its parent; a root stands for one set of weights.
//! Full blocks are shared. If only the start of a block matches, the caller copies the block. Unreferenced leaves form an LRU
//! list for eviction.

use mage_engine::model::BLOCK_SIZE;
use std::collections::BTreeMap;

/// No node.
pub(crate) const NONE: u32 = u32::MAX;
/// Pads the key of a partly filled block; no token has this id.
const NO_TOKEN: u32 = u32::MAX;

type BlockTokens = [u32; BLOCK_SIZE];

#[derive(Clone, Debug)]
struct PrefixNode {
    parent: u32,
    block: u32,
    tokens: BlockTokens,
    len: u8,
    children: u32,
    /// Sequences that reference this node plus children that are referenced.
    refs: u32,
    /// The step that computes the block. Other sequences may use it from the next step on.
    computed_at: u64,
    /// Neighbours in the LRU list.
    lru_prev: u32,
    lru_next: u32,
    in_lru: bool,
}

/// The prefix tree. It knows blocks by id only.
#[derive(Debug, Default)]
pub(crate) struct PrefixTree {
    nodes: Vec<PrefixNode>,
    free: Vec<u32>,
    by_tokens: BTreeMap<(u32, BlockTokens), u32>,
    lru_head: Option<u32>,
    lru_tail: Option<u32>,
    /// Nodes with a block.
    num_blocks: usize,
    /// Nodes with a block that are referenced or have a referenced descendant.
    referenced: usize,
}

/// A child of a node whose first `len` tokens match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartialMatch {
    pub(crate) node: u32,
    pub(crate) block: u32,
    pub(crate) len: usize,
}

impl PrefixTree {
    /// Adds a root with one reference.
    pub(crate) fn add_root(&mut self) -> u32 {
        self.alloc_node(NONE, NONE, [NO_TOKEN; BLOCK_SIZE], 0, 0, 1)
    }

    fn alloc_node(
        &mut self,
        parent: u32,
        block: u32,
        tokens: BlockTokens,
        len: u8,
        computed_at: u64,
        refs: u32,
    ) -> u32 {
        let node = PrefixNode {
            parent,
            block,
            tokens,
            len,
            children: 0,
            refs,
            computed_at,
            lru_prev: NONE,
            lru_next: NONE,
            in_lru: false,
        };
        match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }

    fn at(&self, node: u32) -> &PrefixNode {
        &self.nodes[node as usize]
    }

    fn at_mut(&mut self, node: u32) -> &mut PrefixNode {
        &mut self.nodes[node as usize]
    }

    /// The block of a node.
    pub(crate) fn block(&self, node: u32) -> u32 {
        self.at(node).block
    }

    /// Whether a node's block was computed before step `now`.
    pub(crate) fn is_ready(&self, node: u32, now: u64) -> bool {
        self.at(node).computed_at < now
    }

    /// Number of blocks in the tree.
    pub(crate) fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Number of blocks that can be evicted, now or after their descendants.
    pub(crate) fn num_evictable(&self) -> usize {
        self.num_blocks - self.referenced
    }

    /// The child with exactly these tokens, a full block.
    pub(crate) fn child(&self, node: u32, tokens: &[u32]) -> Option<u32> {
        let tokens: BlockTokens = tokens.try_into().ok()?;
        self.by_tokens.get(&(node, tokens)).copied()
    }

    /// The children with the longest match of the start of `tokens`: among all, and among those computed before step `now`.
    /// Only children near `tokens` in key order are searched.
    pub(crate) fn partial_matches(
        &self,
        node: u32,
        tokens: &[u32],
        now: u64,
    ) -> (Option<PartialMatch>, Option<PartialMatch>) {
        /// Neighbours searched on each side for one that is ready.
        const NEIGHBOURS: usize = 4;
        if tokens.is_empty() || self.at(node).children == 0 {
            return (None, None);
        }
        let mut key = [0; BLOCK_SIZE];
        let n = tokens.len().min(BLOCK_SIZE);
        key[..n].copy_from_slice(&tokens[..n]);
        // In key order, the best match is adjacent to the position of `key`.
        let below = self.by_tokens.range((node, [0; BLOCK_SIZE])..(node, key)).rev().take(NEIGHBOURS);
        let above = self.by_tokens.range((node, key)..=(node, [NO_TOKEN; BLOCK_SIZE])).take(NEIGHBOURS);
        let (mut best, mut ready): (Option<PartialMatch>, Option<PartialMatch>) = (None, None);
        for &child in below.chain(above).map(|(_, child)| child) {
            let c = self.at(child);
            let len = c.tokens[..c.len as usize].iter().zip(&tokens[..n]).take_while(|(a, b)| a == b).count();
            let start = Some(PartialMatch { node: child, block: c.block, len }).filter(|s| s.len > 0);
            let longer = |a: Option<PartialMatch>| a.map_or(0, |s| s.len) < len;
            if longer(best) {
                best = start;
            }
            if c.computed_at < now && longer(ready) {
                ready = start;
            }
        }
        (best, ready)
    }

    /// Adds a block below `parent` with one reference, the caller's. If a child with these tokens exists, returns it as `Err`,
    /// without a new reference.
    pub(crate) fn insert(&mut self, parent: u32, tokens: &[u32], block: u32, computed_at: u64) -> Result<u32, u32> {
        let mut key = [NO_TOKEN; BLOCK_SIZE];
        key[..tokens.len()].copy_from_slice(tokens);
        if let Some(&other) = self.by_tokens.get(&(parent, key)) {
            return Err(other);
        }
        let node = self.alloc_node(parent, block, key, tokens.len() as u8, computed_at, 0);
        self.by_tokens.insert((parent, key), node);
        self.num_blocks += 1;
        self.at_mut(parent).children += 1;
        if self.at(parent).in_lru {
            self.remove_lru(parent);
        }
        self.acquire(node);
        Ok(node)
    }

    /// Adds a reference to a node, which also protects its ancestors.
    pub(crate) fn acquire(&mut self, node: u32) {
        let mut at = node;
        while at != NONE {
            let n = self.at_mut(at);
            n.refs += 1;
            if n.refs > 1 {
                return;
            }
            let (parent, in_lru) = (n.parent, n.in_lru);
            if in_lru {
                self.remove_lru(at);
            }
            if parent != NONE {
                self.referenced += 1;
            }
            at = parent;
        }
    }

    /// Drops one reference to a node.
    pub(crate) fn release(&mut self, node: u32) {
        let mut at = node;
        while at != NONE {
            let n = self.at_mut(at);
            n.refs -= 1;
            if n.refs > 0 {
                return;
            }
            let (parent, children) = (n.parent, n.children);
            if parent != NONE {
                self.referenced -= 1;
                if children == 0 {
                    self.push_lru(at);
                }
            }
            at = parent;
        }
    }

    /// Removes a node that only the caller references and returns its block to the caller.
    pub(crate) fn take(&mut self, node: u32) -> u32 {
        let n = self.at(node);
        debug_assert!(n.refs == 1 && n.children == 0, "the block is shared");
        let block = n.block;
        self.release(node);
        self.remove(node);
        block
    }

    /// Evicts the least recently used block.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let node = self.lru_head?;
        let block = self.at(node).block;
        self.remove(node);
        Some(block)
    }

    /// Removes an unreferenced leaf.
    fn remove(&mut self, node: u32) {
        let PrefixNode { parent, tokens, in_lru, .. } = *self.at(node);
        debug_assert!(self.at(node).refs == 0 && self.at(node).children == 0);
        if in_lru {
            self.remove_lru(node);
        }
        self.by_tokens.remove(&(parent, tokens));
        self.num_blocks -= 1;
        self.free.push(node);
        let p = self.at_mut(parent);
        p.children -= 1;
        if p.children == 0 && p.refs == 0 && p.parent != NONE {
            self.push_lru(parent);
        }
    }

    /// Removes an otherwise unreferenced root and passes each of its blocks to `each`.
    pub(crate) fn remove_root(&mut self, root: u32, mut each: impl FnMut(u32)) {
        let mut stack = vec![root];
        while let Some(node) = stack.pop() {
            let children = self.by_tokens.range((node, [0; BLOCK_SIZE])..=(node, [NO_TOKEN; BLOCK_SIZE]));
            let children: Vec<((u32, BlockTokens), u32)> = children.map(|(k, c)| (*k, *c)).collect();
            for (key, child) in children {
                self.by_tokens.remove(&key);
                stack.push(child);
            }
            if node != root {
                debug_assert!(self.at(node).refs == 0, "a block of a removed root is in use");
                if self.at(node).in_lru {
                    self.remove_lru(node);
                }
                each(self.at(node).block);
                self.num_blocks -= 1;
            }
            self.free.push(node);
        }
    }

    fn push_lru(&mut self, node: u32) {
        let lru_tail = self.lru_tail;
        let n = self.at_mut(node);
        n.in_lru = true;
        n.lru_next = NONE;
        n.lru_prev = lru_tail.unwrap_or(NONE);
        match lru_tail {
            Some(other) => self.at_mut(other).lru_next = node,
            None => self.lru_head = Some(node),
        }
        self.lru_tail = Some(node);
    }

    fn remove_lru(&mut self, node: u32) {
        let PrefixNode { lru_prev, lru_next, .. } = *self.at(node);
        let some = |n: u32| (n != NONE).then_some(n);
        match some(lru_prev) {
            Some(o) => self.at_mut(o).lru_next = lru_next,
            None => self.lru_head = some(lru_next),
        }
        match some(lru_next) {
            Some(n) => self.at_mut(n).lru_prev = lru_prev,
            None => self.lru_tail = some(lru_prev),
        }
        self.at_mut(node).in_lru = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(of: u32) -> Vec<u32> {
        (0..BLOCK_SIZE as u32).map(|i| of + i).collect()
    }

    #[test]
    fn the_longest_partial_match_is_found() {
        let mut t = PrefixTree::default();
        let root = t.add_root();
        let a = t.insert(root, &block(0), 10, 1).unwrap();
        assert_eq!(t.insert(root, &block(0), 11, 1), Err(a));
        assert_eq!(t.child(root, &block(0)), Some(a));
        assert!(!t.is_ready(a, 1) && t.is_ready(a, 2));
        let mut other = block(0);
        other[9] = 500;
        t.insert(root, &other[..12], 12, 1).unwrap();
        let mut tokens = block(0);
        tokens[10] = 7;
        let start = |t: &PrefixTree, node, tokens: &[u32]| t.partial_matches(node, tokens, 9).1;
        assert_eq!(start(&t, root, &tokens), Some(PartialMatch { node: a, block: 10, len: 10 }));
        assert_eq!(t.partial_matches(root, &tokens, 1), (start(&t, root, &tokens), None));
        tokens[9] = 500;
        assert_eq!(start(&t, root, &tokens).map(|s| (s.block, s.len)), Some((12, 10)));
        assert_eq!(start(&t, root, &block(0)[..3]).map(|s| s.len), Some(3));
        assert_eq!(start(&t, root, &[99]), None);
        assert_eq!(start(&t, a, &block(0)), None);
    }

    #[test]
    fn referenced_blocks_stay_and_others_are_evicted_in_lru_order() {
        let mut t = PrefixTree::default();
        let root = t.add_root();
        let a = t.insert(root, &block(0), 1, 0).unwrap();
        let b = t.insert(a, &block(50), 2, 0).unwrap();
        let c = t.insert(root, &block(90), 3, 0).unwrap();
        assert_eq!((t.num_blocks(), t.num_evictable()), (3, 0));
        t.release(a);
        assert_eq!(t.num_evictable(), 0, "a child is referenced");
        assert_eq!(t.evict(), None);
        t.release(c);
        t.release(b);
        assert_eq!(t.num_evictable(), 3);
        t.acquire(c);
        assert_eq!(t.evict(), Some(2));
        assert_eq!(t.evict(), Some(1), "a parent is evicted after its child");
        assert_eq!(t.evict(), None);
        assert_eq!(t.take(c), 3);
        assert_eq!((t.num_blocks(), t.num_evictable()), (0, 0));
    }

    #[test]
    fn removing_a_root_frees_all_its_blocks() {
        let mut t = PrefixTree::default();
        let (one, two) = (t.add_root(), t.add_root());
        let a = t.insert(one, &block(0), 1, 0).unwrap();
        let b = t.insert(a, &block(3)[..5], 2, 0).unwrap();
        let c = t.insert(two, &block(0), 3, 0).unwrap();
        for n in [a, b, c] {
            t.release(n);
        }
        let mut freed = Vec::new();
        t.remove_root(one, |p| freed.push(p));
        freed.sort_unstable();
        assert_eq!(freed, [1, 2]);
        assert_eq!(t.child(two, &block(0)), Some(c));
        assert_eq!((t.num_blocks(), t.evict(), t.evict()), (1, Some(3), None));
    }
}
