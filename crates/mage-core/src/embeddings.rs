//! Text similarity, for retrieval from memories.
//!
//! [`Lexical`] is built in: it needs no model and is deterministic. For semantic similarity, implement [`Embeddings`]
//! with an embedding model behind an endpoint.

use crate::Result;
use std::collections::{BTreeMap, HashSet};

/// A measure of text similarity.
pub trait Embeddings: Send + Sync {
    /// Its identity, for the hash of a prompt method.
    fn id(&self) -> &str;

    /// Similarity of each document to the query (larger is closer), in the order of the documents.
    fn similarity(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>>;
}

/// Indices of the `count` documents most similar to the query, most similar first. Ties keep their order.
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

/// Cosine similarity of two vectors of equal length; 0 if one of them is zero.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { (dot(a, b) / norms) as f32 } else { 0.0 }
}

/// Lexical similarity: the cosine of TF-IDF vectors over hashed words, word bigrams and character n-grams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lexical;

/// Length of character n-grams.
const NGRAM: usize = 4;

impl Embeddings for Lexical {
    fn id(&self) -> &str {
        "lexical"
    }

    fn similarity(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>> {
        let documents: Vec<BTreeMap<u64, f64>> = documents.iter().map(|d| features(d)).collect();
        let query = features(query);
        let mut document_counts: BTreeMap<u64, u32> = BTreeMap::new();
        for feature in documents.iter().flat_map(BTreeMap::keys) {
            *document_counts.entry(*feature).or_default() += 1;
        }
        let all = documents.len() as f64;
        // Smoothed, so that features of all documents keep a positive weight.
        let idf = |f: &u64| ((1.0 + all) / (1.0 + f64::from(document_counts.get(f).copied().unwrap_or(0)))).ln() + 1.0;
        let tf_idf = |text: &BTreeMap<u64, f64>| -> BTreeMap<u64, f64> {
            text.iter().map(|(f, count)| (*f, (1.0 + count.ln()) * idf(f))).collect()
        };
        let norm = |text: &BTreeMap<u64, f64>| text.values().map(|w| w * w).sum::<f64>().sqrt();
        let query = tf_idf(&query);
        let similarity = |document: &BTreeMap<u64, f64>| {
            let document = tf_idf(document);
            let norms = norm(&query) * norm(&document);
            let shared: f64 = query.iter().filter_map(|(f, w)| Some(w * document.get(f)?)).sum();
            if norms > 0.0 { (shared / norms) as f32 } else { 0.0 }
        };
        Ok(documents.iter().map(similarity).collect())
    }
}

/// Counts of the features of a text, by hash.
fn features(text: &str) -> BTreeMap<u64, f64> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let mut counts = BTreeMap::new();
    let mut add = |kind: u8, parts: &[&str]| *counts.entry(hash(kind, parts)).or_insert(0.0) += 1.0;
    for word in &words {
        add(0, &[word]);
        let starts: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
        let mut seen = HashSet::new();
        for ngram in starts.windows(NGRAM + 1).map(|w| &word[w[0]..w[NGRAM]]) {
            if starts.len() > NGRAM + 1 && seen.insert(ngram) {
                add(1, &[ngram]);
            }
        }
    }
    for pair in words.windows(2) {
        add(2, pair);
    }
    counts
}

/// FNV-1a over the kind and the parts, each followed by a byte that does not occur in UTF-8.
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
    fn equal_texts_have_similarity_one_and_unrelated_texts_zero() {
        let documents =
            ["put a clean mug in the cabinet", "heat an egg in the microwave", "PUT a CLEAN mug, in the cabinet!"];
        let near = similarity("put a clean mug in the cabinet", &documents);
        assert!((near[0] - 1.0).abs() < 1e-6 && (near[2] - 1.0).abs() < 1e-6, "{near:?}");
        assert!(near[1] < 0.3, "{near:?}");
        assert_eq!(similarity("zyx", &["abc", ""]), [0.0, 0.0]);
    }

    #[test]
    fn rare_words_have_more_weight() {
        let documents = ["red shoe size nine", "red shoe with velvet", "red shoe of leather"];
        let near = similarity("a red velvet hat", &documents);
        assert!(near[1] > near[0] && near[1] > near[2], "{near:?}");
    }

    #[test]
    fn word_parts_are_matched() {
        let near = similarity("microwaves", &["the microwave is warm", "the cupboard is warm"]);
        assert!(near[0] > 0.1 && near[1] == 0.0, "{near:?}");
    }

    #[test]
    fn nearest_keeps_the_order_of_ties_and_limits_the_count() {
        let documents = ["same", "other", "same"];
        assert_eq!(nearest(&Lexical, "same", &documents, 2).unwrap(), [0, 2]);
        assert_eq!(nearest(&Lexical, "same", &documents, 9).unwrap(), [0, 2, 1]);
        assert!(nearest(&Lexical, "same", &[], 2).unwrap().is_empty());
    }

    #[test]
    fn cosine_of_parallel_orthogonal_and_zero_vectors() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 3.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 3.0]), 0.0);
    }

    proptest! {
        #[test]
        fn similarity_of_any_text_is_between_0_and_1(query in any::<String>(), documents in prop::collection::vec(any::<String>(), 0..5)) {
            let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
            for near in similarity(&query, &documents) {
                prop_assert!((0.0..=1.000_001).contains(&near));
            }
        }
    }
}
