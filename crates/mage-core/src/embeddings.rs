//! How near are two texts?
//!
//! What memories retrieve by. [`Lexical`] is built in: it needs no model, and the same texts always give the same numbers. An
//! embedding model behind an endpoint is the real thing, and comes from outside.

use crate::Result;
use std::collections::{BTreeMap, HashSet};

/// Says how near texts are.
pub trait Embeddings: Send + Sync {
    /// What tells it from others, for the hash of a method.
    fn id(&self) -> &str;

    /// How near each document is to the query: the larger the nearer, in the documents' order.
    fn similarity(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>>;
}

/// The places of the `count` documents nearest to the query, nearest first; equals keep their order.
///
/// ```
/// use mage_core::{Lexical, nearest};
///
/// let notes = ["the opponent folds a queen", "push the box left", "the opponent never folds"];
/// assert_eq!(nearest(&Lexical, "which box to push?", &notes, 1)?, [1]);
/// # Ok::<(), mage_core::Error>(())
/// ```
pub fn nearest(embeddings: &dyn Embeddings, query: &str, documents: &[&str], count: usize) -> Result<Vec<usize>> {
    if documents.is_empty() || count == 0 {
        return Ok(Vec::new());
    }
    let similarity = embeddings.similarity(query, documents)?;
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by(|a, b| similarity[*b].total_cmp(&similarity[*a]));
    order.truncate(count);
    Ok(order)
}

/// The cosine of the angle between two vectors of equal length; 0 where one has no direction.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
}

/// Words, pairs of words and pieces of words, hashed to numbers and weighted by how rare they are among the documents (TF-IDF):
/// texts are near when they share what few others have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lexical;

/// Letters in a piece of a word.
const PIECE: usize = 4;

impl Embeddings for Lexical {
    fn id(&self) -> &str {
        "lexical"
    }

    fn similarity(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>> {
        let documents: Vec<BTreeMap<u64, f64>> = documents.iter().map(|d| features(d)).collect();
        let query = features(query);
        let mut holders: BTreeMap<u64, u32> = BTreeMap::new();
        for feature in documents.iter().flat_map(BTreeMap::keys) {
            *holders.entry(*feature).or_default() += 1;
        }
        let all = documents.len() as f64;
        // Smoothed, so that what every document has still counts a little.
        let rarity = |f: &u64| ((1.0 + all) / (1.0 + f64::from(holders.get(f).copied().unwrap_or(0)))).ln() + 1.0;
        let weigh = |text: &BTreeMap<u64, f64>| -> BTreeMap<u64, f64> {
            text.iter().map(|(f, count)| (*f, (1.0 + count.ln()) * rarity(f))).collect()
        };
        let length = |text: &BTreeMap<u64, f64>| text.values().map(|w| w * w).sum::<f64>().sqrt();
        let query = weigh(&query);
        let near = |document: &BTreeMap<u64, f64>| {
            let document = weigh(document);
            let lengths = length(&query) * length(&document);
            let shared: f64 = query.iter().filter_map(|(f, w)| Some(w * document.get(f)?)).sum();
            if lengths > 0.0 { (shared / lengths) as f32 } else { 0.0 }
        };
        Ok(documents.iter().map(near).collect())
    }
}

/// How often each feature occurs.
fn features(text: &str) -> BTreeMap<u64, f64> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let mut counts = BTreeMap::new();
    let mut add = |kind: u8, parts: &[&str]| *counts.entry(hash(kind, parts)).or_insert(0.0) += 1.0;
    for word in &words {
        add(0, &[word]);
        let starts: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
        let mut seen = HashSet::new();
        for piece in starts.windows(PIECE + 1).map(|w| &word[w[0]..w[PIECE]]) {
            if starts.len() > PIECE + 1 && seen.insert(piece) {
                add(1, &[piece]);
            }
        }
    }
    for pair in words.windows(2) {
        add(2, pair);
    }
    counts
}

/// FNV-1a over the kind and the parts, each closed by a byte that no text has.
fn hash(kind: u8, parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|p| p.bytes().chain([0xff]));
    std::iter::once(kind)
        .chain(bytes)
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn similarity(query: &str, documents: &[&str]) -> Vec<f32> {
        Lexical.similarity(query, documents).unwrap()
    }

    #[test]
    fn the_same_text_is_nearest_and_an_unrelated_one_is_far() {
        let documents =
            ["put a clean mug in the cabinet", "heat an egg in the microwave", "PUT a CLEAN mug, in the cabinet!"];
        let near = similarity("put a clean mug in the cabinet", &documents);
        assert!((near[0] - 1.0).abs() < 1e-6 && (near[2] - 1.0).abs() < 1e-6, "{near:?}");
        assert!(near[1] < 0.3, "{near:?}");
        assert_eq!(similarity("zyx", &["abc", ""]), [0.0, 0.0]);
    }

    #[test]
    fn what_is_rare_counts_for_more() {
        let documents = ["red shoe size nine", "red shoe with velvet", "red shoe of leather"];
        let near = similarity("a red velvet hat", &documents);
        assert!(near[1] > near[0] && near[1] > near[2], "{near:?}");
    }

    #[test]
    fn pieces_of_words_are_found() {
        let near = similarity("microwaves", &["the microwave is warm", "the cupboard is warm"]);
        assert!(near[0] > 0.1 && near[1] == 0.0, "{near:?}");
    }

    #[test]
    fn equals_keep_their_order_and_counts_are_kept() {
        let documents = ["same", "other", "same"];
        assert_eq!(nearest(&Lexical, "same", &documents, 2).unwrap(), [0, 2]);
        assert_eq!(nearest(&Lexical, "same", &documents, 9).unwrap(), [0, 2, 1]);
        assert!(nearest(&Lexical, "same", &[], 2).unwrap().is_empty());
    }

    #[test]
    fn cosines_know_directions() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 3.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 3.0]), 0.0);
    }

    proptest! {
        #[test]
        fn any_text_gives_numbers_between_0_and_1(query in any::<String>(), documents in prop::collection::vec(any::<String>(), 0..5)) {
            let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
            for near in similarity(&query, &documents) {
                prop_assert!((0.0..=1.000_001).contains(&near));
            }
        }
    }
}
