//! Which answers are possible, as the card reads it?
//!
//! A trie of answers is put into the card's memory when something is first drawn at one of its nodes. From then on, rows
//! only name the node that they are at; the card reads there what may be drawn, and says which node follows. DeviceTries lie one
//! after the other. Nothing on the card refers to them between steps, so when there is no room for another, all are
//! forgotten, and those that the step at hand names are put there anew.

use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::{CudaError, Result};
use crate::step_inputs::{Candidates, GpuLogitQuery};
use crate::stream::Stream;
use std::collections::HashMap;
use std::sync::Arc;

/// A trie of answers. Its words are first, for each node, the word where that begins (so the first word is how many nodes
/// there are). A node is how many candidates it has, these, and for each of them the number of the node that follows it.
/// Where all tokens are candidates, it is [`TokenTrie::ALL`], a token, the number of the node that follows this one, and that of
/// the node that follows all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenTrie<'a> {
    /// Stands for the words: they are read, and checked, only where this was not met before.
    pub id: u64,
    /// The nodes.
    pub data: &'a [u32],
}

impl TokenTrie<'_> {
    /// Says that all tokens are candidates.
    pub const ALL_TOKENS: u32 = u32::MAX;

    /// Refuses words that lead outside themselves, and candidates that are not in a vocabulary of so many.
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        let wrong = |problem: String| Err(CudaError::new("reading a trie of answers", problem));
        let nodes = self.data.first().map_or(0, |n| *n as usize);
        let Some(starts) = self.data.get(..nodes).filter(|s| !s.is_empty()) else {
            return wrong(format!("{nodes} nodes in {} words", self.data.len()));
        };
        for (number, start) in starts.iter().enumerate() {
            let node = self.data.get(*start as usize..).and_then(|words| {
                let (count, rest) = words.split_first()?;
                match *count {
                    Self::ALL_TOKENS => Some((&[][..], rest.get(1..3)?)),
                    count => {
                        rest.split_at_checked(count as usize).and_then(|(c, rest)| Some((c, rest.get(..c.len())?)))
                    }
                }
            });
            let Some((candidates, following)) = node else {
                return wrong(format!("node {number} is not within its {} words", self.data.len()));
            };
            if let Some(token) = candidates.iter().find(|t| **t as usize >= vocabulary) {
                return wrong(format!("token {token} of {vocabulary}, at node {number}"));
            }
            if let Some(next) = following.iter().find(|n| **n as usize >= nodes) {
                return wrong(format!("node {next} of {nodes}, after node {number}"));
            }
        }
        Ok(())
    }
}

/// Words that there is room for at first.
pub(crate) const WORDS: usize = 1 << 20;
/// The most words: numbers of 32 bits say where nodes are.
const MOST_WORDS: usize = 1 << 31;

/// The tries that lie on the card.
pub(crate) struct DeviceTries {
    laid: Laid,
    words: DeviceBuffer<u32>,
}

impl DeviceTries {
    /// With room for so many words.
    pub(crate) fn new(card: &Arc<CudaDevice>, words: usize) -> Result<Self> {
        Ok(DeviceTries { laid: Laid::default(), words: DeviceBuffer::new(card, words)? })
    }

    /// Finds the nodes that asks name. DeviceTries that are not on the card yet go there, in the order of the stream. Says whether
    /// kernels find all of them elsewhere now.
    pub(crate) fn find(&mut self, stream: &Stream, asks: &[GpuLogitQuery<'_>], vocabulary: usize) -> Result<bool> {
        let moved = self.put(stream, asks, vocabulary);
        if moved.is_err() {
            // What is known here may not be there.
            self.laid.forget();
        }
        moved
    }

    fn put(&mut self, stream: &Stream, asks: &[GpuLogitQuery<'_>], vocabulary: usize) -> Result<bool> {
        let DeviceTries { laid, words } = self;
        let room = laid.find(asks, vocabulary, words.len())?;
        let moves = room > words.len();
        words.reserve(room)?;
        let new = laid.unsent();
        if !new.is_empty() {
            words.put_at(stream, laid.sent, new)?;
            laid.sent = laid.words.len();
        }
        Ok(moves)
    }

    /// Where kernels find them.
    pub(crate) fn on_card(&self) -> u64 {
        self.words.at(0)
    }

    /// The word where the node is that ask number `i` of those last found names; 0 where it names none.
    pub(crate) fn node(&self, i: usize) -> u32 {
        self.laid.nodes.get(i).copied().unwrap_or(0)
    }
}

/// Which words the card has, and where tries begin among them; knows of no card.
#[derive(Default)]
struct Laid {
    words: Vec<u32>,
    /// How many of them are on the card.
    sent: usize,
    starts: HashMap<u64, usize>,
    /// Where the nodes are that asks name.
    nodes: Vec<u32>,
}

impl Laid {
    fn forget(&mut self) {
        self.words.clear();
        self.sent = 0;
        self.starts.clear();
    }

    fn unsent(&self) -> &[u32] {
        &self.words[self.sent..]
    }

    /// Finds the nodes that asks name, where there is room for so many words. Says for how many there must be room: at
    /// least for as many again as these tries have, where all begin anew with them, so that this stays rare.
    fn find(&mut self, asks: &[GpuLogitQuery<'_>], vocabulary: usize, room: usize) -> Result<usize> {
        self.look_up(asks, vocabulary)?;
        if self.words.len() <= room {
            return Ok(room);
        }
        self.forget();
        self.look_up(asks, vocabulary)?;
        if self.words.len() > MOST_WORDS {
            let problem = format!("{} words, of {MOST_WORDS} at most", self.words.len());
            return Err(CudaError::new("reading tries of answers", problem));
        }
        Ok(room.max(2 * self.words.len()))
    }

    /// The same without regard to room.
    fn look_up(&mut self, asks: &[GpuLogitQuery<'_>], vocabulary: usize) -> Result<()> {
        let Laid { words, starts, nodes, .. } = self;
        nodes.clear();
        for ask in asks {
            let Candidates::TrieNode(trie, node) = ask.candidates else {
                nodes.push(0);
                continue;
            };
            let start = match starts.get(&trie.id) {
                Some(start) => *start,
                None => {
                    trie.check(vocabulary)?;
                    let start = words.len();
                    words.extend_from_slice(trie.data);
                    starts.insert(trie.id, start);
                    start
                }
            };
            // From the words that were checked: those given now may be others.
            let count = words[start];
            if node >= count {
                return Err(CudaError::new("reading a trie of answers", format!("node {node} of {count}")));
            }
            nodes.push((start + words[start + node as usize] as usize) as u32);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Candidates and what follows each, node by node. Where all tokens are candidates, it is one of them, what follows it,
    /// and what follows all others.
    pub(crate) fn words(nodes: &[(&[u32], &[u32])]) -> Vec<u32> {
        let mut words = vec![0; nodes.len()];
        for (i, (tokens, following)) in nodes.iter().enumerate() {
            words[i] = words.len() as u32;
            words.push(if following.len() > tokens.len() { TokenTrie::ALL_TOKENS } else { tokens.len() as u32 });
            words.extend(tokens.iter().chain(*following));
        }
        words
    }

    /// A root with these candidates, each of which ends the answer.
    fn star(tokens: &[u32]) -> Vec<u32> {
        let leaf: (&[u32], &[u32]) = (&[], &[]);
        let following: Vec<u32> = (1..=tokens.len() as u32).collect();
        let root = (tokens, &following[..]);
        words(&[&[root][..], &vec![leaf; tokens.len()]].concat())
    }

    fn ask(id: u64, data: &[u32], node: u32) -> GpuLogitQuery<'_> {
        GpuLogitQuery {
            token: None,
            candidates: Candidates::TrieNode(TokenTrie { id, data }, node),
            ..GpuLogitQuery::score(0, None)
        }
    }

    /// What is on the card, copied there as `DeviceTries` does.
    fn send(laid: &mut Laid, card: &mut Vec<u32>, room: usize) {
        card.resize(room, 0);
        card[laid.sent..laid.words.len()].copy_from_slice(laid.unsent());
        laid.sent = laid.words.len();
    }

    #[test]
    fn a_trie_is_sent_once_and_found_again() {
        let (a, b) = (star(&[3, 5]), star(&[2, 4, 6]));
        let (mut laid, mut card) = (Laid::default(), Vec::new());
        assert_eq!(laid.find(&[ask(7, &a, 0), GpuLogitQuery::score(1, Some(&[1])), ask(9, &b, 0)], 7, 64).unwrap(), 64);
        assert_eq!(laid.unsent().len(), a.len() + b.len());
        send(&mut laid, &mut card, 64);
        let node = |i: usize, laid: &Laid, card: &[u32]| card[laid.nodes[i] as usize..][..3].to_vec();
        assert_eq!((node(0, &laid, &card), laid.nodes[1], node(2, &laid, &card)), (vec![2, 3, 5], 0, vec![3, 2, 4]));
        // Other nodes of the same, and nothing to send.
        laid.find(&[ask(9, &b, 3), ask(7, &a, 0)], 7, 64).unwrap();
        assert!(laid.unsent().is_empty());
        assert_eq!((node(0, &laid, &card)[0], node(1, &laid, &card)), (0, vec![2, 3, 5]));
    }

    #[test]
    fn where_there_is_no_room_for_another_all_begin_anew() {
        let tries: Vec<Vec<u32>> = (0..50).map(|i| star(&[i, i + 1])).collect();
        let each = tries[0].len();
        let room = 5 * each + 1;
        let (mut laid, mut card, mut sent) = (Laid::default(), Vec::new(), 0);
        for (i, trie) in tries.iter().enumerate() {
            // Each is met in two steps.
            let asks: Vec<GpuLogitQuery<'_>> = (i.saturating_sub(1)..=i).map(|j| ask(j as u64, &tries[j], 0)).collect();
            assert_eq!(laid.find(&asks, 51, room).unwrap(), room, "there is room for those of a step");
            sent += laid.unsent().len();
            send(&mut laid, &mut card, room);
            for (ask, node) in asks.iter().zip(&laid.nodes) {
                let Candidates::TrieNode(trie, _) = ask.candidates else { panic!("{ask:?}") };
                assert_eq!(card[*node as usize..][..5], trie.data[trie.data[0] as usize..][..5]);
            }
            assert_eq!(laid.words.len() % trie.len(), 0);
        }
        assert!((51 * each..=65 * each).contains(&sent), "{} were sent for 50", sent / each);
    }

    #[test]
    fn tries_that_would_take_more_than_half_of_the_room_get_twice_what_they_need() {
        let (old, a, b) = (star(&[1]), star(&[1, 2, 3]), star(&[4, 5, 6]));
        let mut laid = Laid::default();
        laid.find(&[ask(0, &old, 0)], 7, a.len()).unwrap();
        laid.sent = old.len();
        let room = laid.find(&[ask(1, &a, 0), ask(2, &b, 0)], 7, a.len()).unwrap();
        assert_eq!((room, laid.sent), (2 * (a.len() + b.len()), 0));
        assert_eq!(laid.unsent(), [a, b].concat());
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let good = words(&[(&[1, 4], &[1, 1]), (&[], &[]), (&[9], &[0, 2])]);
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
        let error = Laid::default().find(&[ask(0, &good, 3)], 5, 64).unwrap_err().to_string();
        assert!(error.contains("node 3 of 3"), "{error}");
    }
}
