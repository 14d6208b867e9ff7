//! What has been computed already?
//!
//! A tree of pages over token ids: a node is one page of at most [`BLOCK_SIZE`] tokens after those of its parent, a root is one
//! set of weights. Full pages are shared as they are; of a page that agrees only at its start, that start is copied.
//! Nothing here knows what a page holds.

use crate::cpu::BLOCK_SIZE;
use std::collections::BTreeMap;

/// No node.
pub(crate) const NONE: u32 = u32::MAX;
/// Fills up the key of a page that is not full; no token has this id.
const NO_TOKEN: u32 = u32::MAX;

type Tokens = [u32; BLOCK_SIZE];

#[derive(Clone, Debug)]
struct Node {
    parent: u32,
    page: u32,
    tokens: Tokens,
    len: u8,
    children: u32,
    /// How many sequences hold this node itself, plus how many of its children are pinned.
    pins: u32,
    /// The step that computes it: others may use it from the next one on.
    born: u64,
    /// Neighbours among the pages that may be given up, oldest first.
    older: u32,
    newer: u32,
    idle: bool,
}

/// The tree. Pages are numbers; whoever owns the memory behind them asks here which may be given up.
#[derive(Debug, Default)]
pub(crate) struct PrefixTree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_tokens: BTreeMap<(u32, Tokens), u32>,
    oldest: Option<u32>,
    newest: Option<u32>,
    /// Nodes with a page.
    pages: usize,
    /// Nodes with a page that are held, or have a descendant that is.
    pinned: usize,
}

/// The best start for new tokens among a node's children that are not fully equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) node: u32,
    pub(crate) page: u32,
    pub(crate) len: usize,
}

impl PrefixTree {
    /// A new root, held.
    pub(crate) fn root(&mut self) -> u32 {
        self.put(NONE, NONE, [NO_TOKEN; BLOCK_SIZE], 0, 0, 1)
    }

    fn put(&mut self, parent: u32, page: u32, tokens: Tokens, len: u8, born: u64, pins: u32) -> u32 {
        let node = Node { parent, page, tokens, len, children: 0, pins, born, older: NONE, newer: NONE, idle: false };
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

    fn at(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    fn at_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    /// The page of a node.
    pub(crate) fn page(&self, node: u32) -> u32 {
        self.at(node).page
    }

    /// Whether a node's page was computed before step `now`.
    pub(crate) fn ready(&self, node: u32, now: u64) -> bool {
        self.at(node).born < now
    }

    /// Pages in the tree.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Pages that can be given up, now or after those below them.
    pub(crate) fn spare(&self) -> usize {
        self.pages - self.pinned
    }

    /// The child with exactly these tokens, a full page.
    pub(crate) fn child(&self, node: u32, tokens: &[u32]) -> Option<u32> {
        let tokens: Tokens = tokens.try_into().ok()?;
        self.by_tokens.get(&(node, tokens)).copied()
    }

    /// The children that agree longest with the start of `tokens`: of all near them, and of those computed before step
    /// `now`.
    pub(crate) fn starts(&self, node: u32, tokens: &[u32], now: u64) -> (Option<Start>, Option<Start>) {
        /// Neighbours looked at on each side for one that is ready.
        const NEAR: usize = 4;
        if tokens.is_empty() || self.at(node).children == 0 {
            return (None, None);
        }
        let mut key = [0; BLOCK_SIZE];
        let n = tokens.len().min(BLOCK_SIZE);
        key[..n].copy_from_slice(&tokens[..n]);
        // In the order of tokens, the best is a neighbour of where these would stand.
        let below = self.by_tokens.range((node, [0; BLOCK_SIZE])..(node, key)).rev().take(NEAR);
        let above = self.by_tokens.range((node, key)..=(node, [NO_TOKEN; BLOCK_SIZE])).take(NEAR);
        let (mut best, mut ready): (Option<Start>, Option<Start>) = (None, None);
        for &child in below.chain(above).map(|(_, child)| child) {
            let c = self.at(child);
            let len = c.tokens[..c.len as usize].iter().zip(&tokens[..n]).take_while(|(a, b)| a == b).count();
            let start = Some(Start { node: child, page: c.page, len }).filter(|s| s.len > 0);
            let longer = |a: Option<Start>| a.map_or(0, |s| s.len) < len;
            if longer(best) {
                best = start;
            }
            if c.born < now && longer(ready) {
                ready = start;
            }
        }
        (best, ready)
    }

    /// Adds a page below `parent`, held once by the caller. With exactly these tokens there already, gives that node
    /// instead, unheld.
    pub(crate) fn insert(&mut self, parent: u32, tokens: &[u32], page: u32, born: u64) -> Result<u32, u32> {
        let mut key = [NO_TOKEN; BLOCK_SIZE];
        key[..tokens.len()].copy_from_slice(tokens);
        if let Some(&other) = self.by_tokens.get(&(parent, key)) {
            return Err(other);
        }
        let node = self.put(parent, page, key, tokens.len() as u8, born, 0);
        self.by_tokens.insert((parent, key), node);
        self.pages += 1;
        self.at_mut(parent).children += 1;
        if self.at(parent).idle {
            self.unlist(parent);
        }
        self.hold(node);
        Ok(node)
    }

    /// Keeps a node, and with it all above it.
    pub(crate) fn hold(&mut self, node: u32) {
        let mut at = node;
        while at != NONE {
            let n = self.at_mut(at);
            n.pins += 1;
            if n.pins > 1 {
                return;
            }
            let (parent, idle) = (n.parent, n.idle);
            if idle {
                self.unlist(at);
            }
            if parent != NONE {
                self.pinned += 1;
            }
            at = parent;
        }
    }

    /// Lets go of a node once.
    pub(crate) fn release(&mut self, node: u32) {
        let mut at = node;
        while at != NONE {
            let n = self.at_mut(at);
            n.pins -= 1;
            if n.pins > 0 {
                return;
            }
            let (parent, children) = (n.parent, n.children);
            if parent != NONE {
                self.pinned -= 1;
                if children == 0 {
                    self.list(at);
                }
            }
            at = parent;
        }
    }

    /// Takes a page out that the caller alone holds, for good: the page is the caller's again.
    pub(crate) fn take(&mut self, node: u32) -> u32 {
        let n = self.at(node);
        debug_assert!(n.pins == 1 && n.children == 0, "taking a page that others use");
        let page = n.page;
        self.release(node);
        self.remove(node);
        page
    }

    /// Gives up the page that has been idle longest.
    pub(crate) fn evict(&mut self) -> Option<u32> {
        let node = self.oldest?;
        let page = self.at(node).page;
        self.remove(node);
        Some(page)
    }

    /// Removes an idle node without children.
    fn remove(&mut self, node: u32) {
        let Node { parent, tokens, idle, .. } = *self.at(node);
        debug_assert!(self.at(node).pins == 0 && self.at(node).children == 0);
        if idle {
            self.unlist(node);
        }
        self.by_tokens.remove(&(parent, tokens));
        self.pages -= 1;
        self.free.push(node);
        let p = self.at_mut(parent);
        p.children -= 1;
        if p.children == 0 && p.pins == 0 && p.parent != NONE {
            self.list(parent);
        }
    }

    /// Removes a root that only its maker holds, giving each of its pages to `each`.
    pub(crate) fn remove_root(&mut self, root: u32, mut each: impl FnMut(u32)) {
        let mut stack = vec![root];
        while let Some(node) = stack.pop() {
            let children = self.by_tokens.range((node, [0; BLOCK_SIZE])..=(node, [NO_TOKEN; BLOCK_SIZE]));
            let children: Vec<((u32, Tokens), u32)> = children.map(|(k, c)| (*k, *c)).collect();
            for (key, child) in children {
                self.by_tokens.remove(&key);
                stack.push(child);
            }
            if node != root {
                debug_assert!(self.at(node).pins == 0, "a page of a root that is dropped is in use");
                if self.at(node).idle {
                    self.unlist(node);
                }
                each(self.at(node).page);
                self.pages -= 1;
            }
            self.free.push(node);
        }
    }

    fn list(&mut self, node: u32) {
        let newest = self.newest;
        let n = self.at_mut(node);
        n.idle = true;
        n.newer = NONE;
        n.older = newest.unwrap_or(NONE);
        match newest {
            Some(other) => self.at_mut(other).newer = node,
            None => self.oldest = Some(node),
        }
        self.newest = Some(node);
    }

    fn unlist(&mut self, node: u32) {
        let Node { older, newer, .. } = *self.at(node);
        let some = |n: u32| (n != NONE).then_some(n);
        match some(older) {
            Some(o) => self.at_mut(o).newer = newer,
            None => self.oldest = some(newer),
        }
        match some(newer) {
            Some(n) => self.at_mut(n).older = older,
            None => self.newest = some(older),
        }
        self.at_mut(node).idle = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(of: u32) -> Vec<u32> {
        (0..BLOCK_SIZE as u32).map(|i| of + i).collect()
    }

    #[test]
    fn the_longest_start_is_found() {
        let mut t = PrefixTree::default();
        let root = t.root();
        let a = t.insert(root, &page(0), 10, 1).unwrap();
        assert_eq!(t.insert(root, &page(0), 11, 1), Err(a));
        assert_eq!(t.child(root, &page(0)), Some(a));
        assert!(!t.ready(a, 1) && t.ready(a, 2));
        let mut other = page(0);
        other[9] = 500;
        t.insert(root, &other[..12], 12, 1).unwrap();
        let mut asked = page(0);
        asked[10] = 7;
        let start = |t: &PrefixTree, node, tokens: &[u32]| t.starts(node, tokens, 9).1;
        assert_eq!(start(&t, root, &asked), Some(Start { node: a, page: 10, len: 10 }));
        assert_eq!(t.starts(root, &asked, 1), (start(&t, root, &asked), None));
        asked[9] = 500;
        assert_eq!(start(&t, root, &asked).map(|s| (s.page, s.len)), Some((12, 10)));
        assert_eq!(start(&t, root, &page(0)[..3]).map(|s| s.len), Some(3));
        assert_eq!(start(&t, root, &[99]), None);
        assert_eq!(start(&t, a, &page(0)), None);
    }

    #[test]
    fn what_is_held_stays_and_the_rest_goes_oldest_first() {
        let mut t = PrefixTree::default();
        let root = t.root();
        let a = t.insert(root, &page(0), 1, 0).unwrap();
        let b = t.insert(a, &page(50), 2, 0).unwrap();
        let c = t.insert(root, &page(90), 3, 0).unwrap();
        assert_eq!((t.pages(), t.spare()), (3, 0));
        t.release(a);
        assert_eq!(t.spare(), 0, "a child is held");
        assert_eq!(t.evict(), None);
        t.release(c);
        t.release(b);
        assert_eq!(t.spare(), 3);
        t.hold(c);
        assert_eq!(t.evict(), Some(2));
        assert_eq!(t.evict(), Some(1), "a parent goes after its child");
        assert_eq!(t.evict(), None);
        assert_eq!(t.take(c), 3);
        assert_eq!((t.pages(), t.spare()), (0, 0));
    }

    #[test]
    fn a_root_goes_with_all_its_pages() {
        let mut t = PrefixTree::default();
        let (one, two) = (t.root(), t.root());
        let a = t.insert(one, &page(0), 1, 0).unwrap();
        let b = t.insert(a, &page(3)[..5], 2, 0).unwrap();
        let c = t.insert(two, &page(0), 3, 0).unwrap();
        for n in [a, b, c] {
            t.release(n);
        }
        let mut gone = Vec::new();
        t.remove_root(one, |p| gone.push(p));
        gone.sort_unstable();
        assert_eq!(gone, [1, 2]);
        assert_eq!(t.child(two, &page(0)), Some(c));
        assert_eq!((t.pages(), t.evict(), t.evict()), (1, Some(3), None));
    }
}
