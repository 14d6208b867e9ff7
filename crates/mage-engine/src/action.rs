//! Which answers are possible here?
//!
//! An [`ActionSet`] is a trie of token sequences. It is part of the policy: log-probabilities and entropies are taken
//! after it, in sampling and in the loss alike. It comes into force when thinking has ended.
//!
//! Its places are numbered, and it can be had as one list of numbers ([`ActionSet::words`]): a device that has memory of
//! its own keeps that, is told where an answer stands and says where the token it draws leads.

use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The tokens possible at one place, in ascending order. Shared, because thousands of training tokens have the same.
pub type Allowed = Arc<[u32]>;

/// A set of possible answers, each a sequence of tokens.
#[derive(Clone, Debug)]
pub struct ActionSet(Arc<Trie>);

#[derive(Debug)]
struct Trie {
    id: u64,
    nodes: Vec<Node>,
    thinking_ends: Option<u32>,
    /// Made when a device first asks for them.
    words: OnceLock<Vec<u32>>,
}

#[derive(Debug)]
struct Node {
    tokens: Allowed,
    next: Vec<u32>,
}

/// How many sets there have been.
static SETS: AtomicU64 = AtomicU64::new(0);

impl ActionSet {
    /// Marks, in [`words`](Self::words), a place where every token is possible.
    pub const EVERYTHING: u32 = u32::MAX;

    /// The set of `answers`. With `end`, every answer is followed by that token (the one that ends a turn), which is
    /// then sampled like any other; without, an answer is complete at its last token. With `thinking_ends`, everything
    /// is possible until that token has been written.
    pub fn new<A: AsRef<[u32]>>(
        answers: impl IntoIterator<Item = A>,
        end: Option<u32>,
        thinking_ends: Option<u32>,
    ) -> Result<Self> {
        let mut answers: Vec<Vec<u32>> =
            answers.into_iter().map(|a| a.as_ref().iter().copied().chain(end).collect()).collect();
        answers.sort();
        answers.dedup();
        if answers.is_empty() {
            return Err(Error::invalid("action set", "it has no answers; give at least one, or no set at all"));
        }
        if answers[0].is_empty() {
            return Err(Error::invalid("action set", "an answer has no tokens; give an end token or leave it out"));
        }
        if let Some(w) = answers.windows(2).find(|w| w[1].starts_with(&w[0])) {
            return Err(Error::invalid(
                "action set",
                format!(
                    "answer {:?} is the beginning of {:?}, so its end cannot be seen; give an end token",
                    w[0], w[1]
                ),
            ));
        }
        let mut nodes = Vec::new();
        grow(&answers, 0, &mut nodes);
        let id = SETS.fetch_add(1, Ordering::Relaxed);
        Ok(ActionSet(Arc::new(Trie { id, nodes, thinking_ends, words: OnceLock::new() })))
    }

    /// A number that only this set and its clones have, for as long as the process lives.
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

    /// The trie as a device keeps it. First, for each place, the word where it begins (so the first word is the number of
    /// places). A place begins with the number of tokens possible there; these follow in ascending order, and then, for
    /// each of them, the place that it leads to. Where everything is possible, there is [`EVERYTHING`](Self::EVERYTHING)
    /// instead of a number, then the token that ends this, the place that it leads to, and the one that all others do.
    /// Nothing depends on where in the device's memory they come to lie.
    ///
    /// ```
    /// # use mage_engine::ActionSet;
    /// let set = ActionSet::new([[3], [5]], None, Some(9))?;
    /// let (root, ends, thinking) = (&[2, 3, 5, 1, 2], &[0], &[ActionSet::EVERYTHING, 9, 0, 3]);
    /// assert_eq!(set.words(), [&[4, 9, 10, 11][..], root, ends, ends, thinking].concat());
    /// # Ok::<(), mage_engine::Error>(())
    /// ```
    pub fn words(&self) -> &[u32] {
        let Trie { nodes, thinking_ends, words, .. } = &*self.0;
        words.get_or_init(|| {
            let mut words = vec![0; self.places()];
            for (place, node) in nodes.iter().enumerate() {
                words[place] = words.len() as u32;
                words.push(node.tokens.len() as u32);
                words.extend_from_slice(&node.tokens);
                words.extend_from_slice(&node.next);
            }
            if let Some(ends) = *thinking_ends {
                let thinking = nodes.len();
                words[thinking] = words.len() as u32;
                words.extend([Self::EVERYTHING, ends, 0, thinking as u32]);
            }
            words
        })
    }

    /// How many places answers can be at: the nodes, from the root on, and then, where there is thinking, that.
    fn places(&self) -> usize {
        self.0.nodes.len() + usize::from(self.0.thinking_ends.is_some())
    }

    /// The start of an answer.
    pub fn start(&self) -> ActionCursor {
        let at = if self.0.thinking_ends.is_some() { self.0.nodes.len() as u32 } else { 0 };
        ActionCursor { set: self.clone(), at }
    }

    /// What was possible at each token of an `answer` that was sampled under this set: what a training row carries.
    pub fn masks(&self, answer: &[u32]) -> Result<Vec<Option<Allowed>>> {
        let mut cursor = self.start();
        answer
            .iter()
            .enumerate()
            .map(|(i, &token)| {
                let allowed = cursor.allowed().cloned();
                if !cursor.advance(token) {
                    return Err(Error::invalid(
                        format!("answer token {i}"),
                        format!("{token} is outside the action set it is said to be sampled under"),
                    ));
                }
                Ok(allowed)
            })
            .collect()
    }

    /// The largest token id in the set, for checks against a vocabulary.
    pub fn max_token(&self) -> u32 {
        self.0.nodes.iter().flat_map(|n| n.tokens.iter().copied()).max().unwrap_or(0)
    }
}

/// Builds the node for `answers`, which agree in their first `depth` tokens, and those below it.
fn grow(answers: &[Vec<u32>], depth: usize, nodes: &mut Vec<Node>) -> u32 {
    let id = nodes.len() as u32;
    nodes.push(Node { tokens: Arc::new([]), next: Vec::new() });
    let mut tokens = Vec::new();
    let mut next = Vec::new();
    for branch in answers.chunk_by(|a, b| a.get(depth) == b.get(depth)) {
        if let Some(&token) = branch[0].get(depth) {
            tokens.push(token);
            next.push(grow(branch, depth + 1, nodes));
        }
    }
    nodes[id as usize] = Node { tokens: tokens.into(), next };
    id
}

/// A place in an answer.
#[derive(Clone, Debug)]
pub struct ActionCursor {
    set: ActionSet,
    /// A node, or the number after the last one while thinking.
    at: u32,
}

impl ActionCursor {
    /// The set that the answer is of.
    pub fn set(&self) -> &ActionSet {
        &self.set
    }

    /// The number of this place in the [`words`](ActionSet::words) of the set.
    pub fn place(&self) -> u32 {
        self.at
    }

    /// The tokens possible next; `None` while thinking, where everything is.
    pub fn allowed(&self) -> Option<&Allowed> {
        self.node().map(|n| &n.tokens)
    }

    /// Whether the answer is complete.
    pub fn complete(&self) -> bool {
        self.allowed().is_some_and(|a| a.is_empty())
    }

    /// Takes one token; `false` (and no movement) where it is not possible.
    pub fn advance(&mut self, token: u32) -> bool {
        match self.following(token) {
            Some(place) => {
                self.at = place;
                true
            }
            None => false,
        }
    }

    /// Takes one token that a device has drawn here, and with which, it says, it has come to `place`; `false` (and no
    /// movement) where the set has no such place. Unlike [`advance`](Self::advance), this looks for nothing.
    ///
    /// ```
    /// # use mage_engine::ActionSet;
    /// let mut walk = ActionSet::new([[3, 4], [5, 4]], None, None)?.start();
    /// let mut told = walk.clone();
    /// assert!(walk.advance(5) && told.arrive(5, walk.place()));
    /// assert_eq!(told.allowed().map(|a| a.to_vec()), Some(vec![4]));
    /// assert!(!told.arrive(4, 1000));
    /// # Ok::<(), mage_engine::Error>(())
    /// ```
    pub fn arrive(&mut self, token: u32, place: u32) -> bool {
        if place as usize >= self.set.places() {
            return false;
        }
        debug_assert_eq!(self.following(token), Some(place), "token {token} at place {}", self.at);
        self.at = place;
        true
    }

    /// Nothing while thinking.
    fn node(&self) -> Option<&Node> {
        self.set.0.nodes.get(self.at as usize)
    }

    /// The place that a token leads to, where it is possible.
    fn following(&self, token: u32) -> Option<u32> {
        match self.node() {
            Some(node) => node.tokens.binary_search(&token).ok().map(|i| node.next[i]),
            None => Some(if self.set.0.thinking_ends == Some(token) { 0 } else { self.at }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_trie_walks_its_answers_and_nothing_else() {
        let set = ActionSet::new([vec![5, 6], vec![5, 7, 8], vec![2]], Some(9), None).unwrap();
        let mut c = set.start();
        assert_eq!(&c.allowed().unwrap()[..], [2, 5]);
        assert!(!c.advance(6));
        assert!(c.advance(5));
        assert_eq!(&c.allowed().unwrap()[..], [6, 7]);
        assert!(c.advance(6) && !c.complete() && c.advance(9) && c.complete());
        assert!(!c.advance(9), "nothing follows a complete answer");
        assert_eq!(set.max_token(), 9);
    }

    #[test]
    fn thinking_is_free_until_it_ends() {
        let set = ActionSet::new([[1], [2]], None, Some(100)).unwrap();
        let masks = set.masks(&[7, 1, 100, 2]).unwrap();
        assert!(masks[..3].iter().all(Option::is_none));
        assert_eq!(&masks[3].as_ref().unwrap()[..], [1, 2]);
        assert!(set.masks(&[100, 3]).unwrap_err().to_string().contains("answer token 1"));
    }

    #[test]
    fn ambiguous_and_empty_sets_are_refused() {
        assert!(ActionSet::new([vec![1], vec![1, 2]], None, None).unwrap_err().to_string().contains("end token"));
        assert!(ActionSet::new([vec![1], vec![1, 2]], Some(0), None).is_ok());
        assert!(ActionSet::new(Vec::<Vec<u32>>::new(), None, None).is_err());
        assert!(ActionSet::new([Vec::<u32>::new()], None, None).is_err());
    }

    /// The tokens that are possible at a place, as its words say, and where each leads; nothing where all are.
    fn read(words: &[u32], place: u32) -> Option<(&[u32], &[u32])> {
        let node = &words[words[place as usize] as usize..];
        (node[0] != ActionSet::EVERYTHING).then(|| node[1..].split_at(node[0] as usize)).map(|(tokens, rest)| {
            let count = tokens.len();
            (tokens, &rest[..count])
        })
    }

    /// Where a token leads, as the words say.
    fn walk(words: &[u32], place: u32, token: u32) -> Option<u32> {
        match read(words, place) {
            Some((tokens, next)) => tokens.iter().position(|t| *t == token).map(|i| next[i]),
            None => {
                let node = &words[words[place as usize] as usize..];
                Some(if node[1] == token { node[2] } else { node[3] })
            }
        }
    }

    proptest! {
        #[test]
        fn words_lead_where_the_cursor_goes(
            answers in prop::collection::vec(prop::collection::vec(0_u32..6, 0..5), 1..12),
            thinks in any::<bool>(),
            tokens in prop::collection::vec(0_u32..8, 0..24),
        ) {
            let set = ActionSet::new(&answers, Some(6), thinks.then_some(2)).unwrap();
            let words = set.words();
            prop_assert_eq!(words[0] as usize, set.places());
            let (mut cursor, mut told) = (set.start(), set.start());
            for token in tokens {
                let before = cursor.place();
                prop_assert_eq!(read(words, before).map(|n| n.0), cursor.allowed().map(|a| &a[..]));
                let next = walk(words, before, token);
                prop_assert_eq!(cursor.advance(token), next.is_some());
                prop_assert_eq!(cursor.place(), next.unwrap_or(before));
                if let Some(next) = next {
                    prop_assert!(told.arrive(token, next));
                }
                prop_assert_eq!((told.place(), told.complete()), (cursor.place(), cursor.complete()));
            }
        }
    }

    #[test]
    fn a_place_that_the_set_has_not_is_refused() {
        for (thinks, places) in [(None, 3), (Some(9), 4)] {
            let mut cursor = ActionSet::new([[1], [2]], None, thinks).unwrap().start();
            let before = cursor.place();
            assert!(!cursor.arrive(1, places) && !cursor.arrive(1, u32::MAX));
            assert_eq!(cursor.place(), before);
        }
    }
}
