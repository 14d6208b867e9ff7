//! Which answers are possible here?
//!
//! An [`ActionSet`] is a trie of token sequences. It is part of the policy: log-probabilities and entropies are taken
//! after it, in sampling and in the loss alike. It comes into force when thinking has ended.

use crate::{Error, Result};
use std::sync::Arc;

/// The tokens possible at one place, in ascending order. Shared, because thousands of training tokens have the same.
pub type Allowed = Arc<[u32]>;

/// A set of possible answers, each a sequence of tokens.
#[derive(Clone, Debug)]
pub struct ActionSet {
    nodes: Arc<[Node]>,
    thinking_ends: Option<u32>,
}

#[derive(Debug)]
struct Node {
    tokens: Allowed,
    next: Vec<u32>,
}

impl ActionSet {
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
        Ok(ActionSet { nodes: nodes.into(), thinking_ends })
    }

    /// The start of an answer.
    pub fn start(&self) -> ActionCursor {
        ActionCursor { set: self.clone(), at: if self.thinking_ends.is_some() { At::Thinking } else { At::Node(0) } }
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
        self.nodes.iter().flat_map(|n| n.tokens.iter().copied()).max().unwrap_or(0)
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
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Thinking,
    Node(u32),
}

impl ActionCursor {
    /// The tokens possible next; `None` while thinking, where everything is.
    pub fn allowed(&self) -> Option<&Allowed> {
        match self.at {
            At::Thinking => None,
            At::Node(n) => Some(&self.set.nodes[n as usize].tokens),
        }
    }

    /// Whether the answer is complete.
    pub fn complete(&self) -> bool {
        self.allowed().is_some_and(|a| a.is_empty())
    }

    /// Takes one token; `false` (and no movement) where it is not possible.
    pub fn advance(&mut self, token: u32) -> bool {
        match self.at {
            At::Thinking => {
                if self.set.thinking_ends == Some(token) {
                    self.at = At::Node(0);
                }
                true
            }
            At::Node(n) => {
                let node = &self.set.nodes[n as usize];
                match node.tokens.binary_search(&token) {
                    Ok(i) => {
                        self.at = At::Node(node.next[i]);
                        true
                    }
                    Err(_) => false,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
