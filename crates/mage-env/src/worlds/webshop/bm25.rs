//! Search index with BM25 ranking.
//!
//! BM25 as in Pyserini's default searcher on Lucene 9 (k1 = 0.9, b = 0.4), with identical operations and precision: document
//! lengths use Lucene's lossy one-byte encoding, repeated query terms are weighted by their count, and ties are broken by
//! product id.

use super::analyzer::{counted_terms, for_each_term};
use std::{cmp::Ordering, collections::HashMap};

const K1: f32 = 0.9;
const B: f32 = 0.4;

/// An inverted index over documents numbered from 0.
#[derive(Debug)]
pub struct SearchIndex {
    terms: HashMap<Box<str>, u32>,
    /// Offset of each term's postings; one more entry than terms.
    starts: Vec<u32>,
    documents: Vec<u32>,
    frequencies: Vec<u16>,
    /// Encoded length of each document.
    lengths: Vec<u8>,
    /// Rank of each document by id.
    id_ranks: Vec<u32>,
    /// By encoded length: 1 / (k1 · (1 − b + b · length / mean length)).
    inverse_norms: Box<[f32; 256]>,
    tokens: u64,
}

/// A search hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchHit {
    /// Document index.
    pub document: u32,
    /// BM25 score.
    pub score: f32,
}

impl SearchIndex {
    /// Indexes `texts`. Ties between equal scores are broken by `ids`.
    pub fn build<'a, S: AsRef<str>>(
        texts: impl IntoIterator<Item = S>,
        ids: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut terms: HashMap<Box<str>, u32> = HashMap::new();
        let mut postings: Vec<Vec<(u32, u16)>> = Vec::new();
        let mut lengths = Vec::new();
        let mut tokens = 0_u64;
        for (document, text) in texts.into_iter().enumerate() {
            let document = document as u32;
            let mut length = 0_u32;
            for_each_term(text.as_ref(), |term| {
                length += 1;
                let id = match terms.get(term) {
                    Some(id) => *id,
                    None => {
                        let id = terms.len() as u32;
                        terms.insert(term.into(), id);
                        postings.push(Vec::new());
                        id
                    }
                };
                let list = &mut postings[id as usize];
                match list.last_mut() {
                    Some((d, n)) if *d == document => *n = n.saturating_add(1),
                    _ => list.push((document, 1)),
                }
            });
            tokens += u64::from(length);
            lengths.push(encode_length(length));
        }
        let total: usize = postings.iter().map(Vec::len).sum();
        let mut index = SearchIndex {
            starts: Vec::with_capacity(postings.len() + 1),
            documents: Vec::with_capacity(total),
            frequencies: Vec::with_capacity(total),
            id_ranks: id_ranks(ids),
            inverse_norms: inverse_norms(tokens, lengths.len()),
            terms,
            lengths,
            tokens,
        };
        index.starts.push(0);
        for list in postings {
            index.documents.extend(list.iter().map(|p| p.0));
            index.frequencies.extend(list.iter().map(|p| p.1));
            index.starts.push(index.documents.len() as u32);
        }
        index
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Number of distinct terms.
    pub fn terms(&self) -> usize {
        self.terms.len()
    }

    /// Number of tokens in all documents.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Distinct terms of a text: the sorted ids of indexed terms, and the number of all distinct terms.
    pub(super) fn distinct_terms(&self, text: &str) -> (Vec<u32>, usize) {
        let terms = counted_terms(text);
        let mut known: Vec<u32> = terms.iter().filter_map(|(term, _)| self.terms.get(term.as_str()).copied()).collect();
        known.sort_unstable();
        (known, terms.len())
    }

    /// Memory use in bytes, without spare capacity of the term map.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<(Box<str>, u32)>() + 1;
        let terms: usize = self.terms.keys().map(|term| term.len() + entry).sum();
        let integers = self.starts.len() + self.documents.len() + self.id_ranks.len();
        terms + integers * size_of::<u32>() + self.frequencies.len() * size_of::<u16>() + self.lengths.len()
    }

    /// The `k` best documents for a bag-of-words query, best first.
    pub fn search(&self, query: &str, k: usize) -> Vec<SearchHit> {
        let mut scores = vec![0.0_f64; self.len()];
        let mut touched: Vec<u32> = Vec::new();
        for (term, count) in counted_terms(query) {
            let Some(id) = self.terms.get(term.as_str()) else { continue };
            let range = self.starts[*id as usize] as usize..self.starts[*id as usize + 1] as usize;
            let weight = count as f32 * self.inverse_document_frequency(range.len());
            for (document, frequency) in self.documents[range.clone()].iter().zip(&self.frequencies[range]) {
                let norm = self.inverse_norms[usize::from(self.lengths[*document as usize])];
                // Scores are positive, so 0 marks an untouched document.
                let score = &mut scores[*document as usize];
                if *score == 0.0 {
                    touched.push(*document);
                }
                *score += f64::from(weight - weight / (1.0 + f32::from(*frequency) * norm));
            }
        }
        let mut hits: Vec<SearchHit> = touched
            .into_iter()
            .map(|document| SearchHit { document, score: scores[document as usize] as f32 })
            .collect();
        let better = |a: &SearchHit, b: &SearchHit| self.order(a, b);
        if hits.len() > k {
            hits.select_nth_unstable_by(k, better);
            hits.truncate(k);
        }
        hits.sort_unstable_by(better);
        hits
    }

    fn order(&self, a: &SearchHit, b: &SearchHit) -> Ordering {
        let rank = |h: &SearchHit| self.id_ranks[h.document as usize];
        b.score.total_cmp(&a.score).then_with(|| rank(a).cmp(&rank(b)))
    }

    fn inverse_document_frequency(&self, documents_with_term: usize) -> f32 {
        let (n, df) = (self.len() as f64, documents_with_term as f64);
        (1.0 + (n - df + 0.5) / (df + 0.5)).ln() as f32
    }
}

fn id_ranks<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<u32> {
    let ids: Vec<&str> = ids.into_iter().collect();
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|i| ids[*i as usize]);
    let mut ranks = vec![0; ids.len()];
    for (rank, i) in order.into_iter().enumerate() {
        ranks[i as usize] = rank as u32;
    }
    ranks
}

fn inverse_norms(tokens: u64, documents: usize) -> Box<[f32; 256]> {
    let mean = (tokens as f64 / documents.max(1) as f64) as f32;
    let mut norms = Box::new([0.0; 256]);
    for (byte, norm) in norms.iter_mut().enumerate() {
        *norm = 1.0 / (K1 * ((1.0 - B) + B * decode_length(byte as u8) as f32 / mean));
    }
    norms
}

/// Lengths below this are encoded exactly.
const EXACT_LENGTHS: u32 = 255 - encode_float(i32::MAX as u32);

/// Lucene's one-byte encoding of a length: exact if small, else four significant bits.
fn encode_length(length: u32) -> u8 {
    if length < EXACT_LENGTHS { length as u8 } else { (EXACT_LENGTHS + encode_float(length - EXACT_LENGTHS)) as u8 }
}

/// Decodes a length.
fn decode_length(byte: u8) -> u32 {
    let byte = u32::from(byte);
    if byte < EXACT_LENGTHS { byte } else { EXACT_LENGTHS + decode_float(byte - EXACT_LENGTHS) }
}

/// Encodes the four highest bits as an unsigned float.
const fn encode_float(n: u32) -> u32 {
    let bits = u32::BITS - n.leading_zeros();
    if bits < 4 {
        return n;
    }
    let shift = bits - 4;
    ((n >> shift) & 0x07) | ((shift + 1) << 3)
}

fn decode_float(packed: u32) -> u32 {
    let (mantissa, shift) = (packed & 0x07, packed >> 3);
    if shift == 0 { mantissa } else { (mantissa | 0x08) << (shift - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_encoded_as_in_lucene() {
        assert_eq!(EXACT_LENGTHS, 24);
        for length in 0..40 {
            assert_eq!(decode_length(encode_length(length)), length);
        }
        // Values of Lucene's SmallFloat.byte4ToInt.
        assert_eq!(
            [decode_length(40), decode_length(60), decode_length(100), decode_length(255)],
            [40, 120, 3096, 2013265944]
        );
        for length in [41, 107, 1000, 123_456] {
            let encoded = decode_length(encode_length(length));
            assert!(encoded <= length && encoded * 9 > length * 8, "{length} became {encoded}");
        }
    }

    #[test]
    fn ranking_prefers_frequent_and_rare_terms_and_short_texts_and_breaks_ties_by_id() {
        let texts = ["red shoes", "red red shoes for long walks in the rain", "blue hat", "red shoes", "green scarf"];
        let index = SearchIndex::build(texts, ["B3", "B1", "B2", "B0", "B4"]);
        let found = |q: &str, k| index.search(q, k).iter().map(|h| h.document).collect::<Vec<_>>();
        assert_eq!(found("shoe", 10), [3, 0, 1]);
        assert_eq!(found("shoe", 2), [3, 0]);
        assert_eq!(found("red hat", 10)[0], 2);
        assert_eq!(found("red red hat", 10)[0], 2, "a word's weight grows with its count");
        assert_eq!(found("the", 10), [0; 0]);
        assert_eq!(found("", 10), [0; 0]);
        assert_eq!((index.tokens(), index.terms(), index.len()), (14, 9, 5));
        // 13 postings, 10 starts, 5 ranks, 5 lengths and 9 terms of 36 letters.
        assert_eq!(index.bytes(), 13 * 6 + 10 * 4 + 5 * 4 + 5 + 9 * 25 + 36);
    }

    #[test]
    fn an_empty_index_finds_nothing() {
        let index = SearchIndex::build([""; 0], []);
        assert!(index.is_empty() && index.search("anything", 5).is_empty());
    }
}
