//! `token_set_ratio` of thefuzz: similarity of two texts as word sets.
//!
//! Shared words increase the similarity; the remaining words are compared by edit distance. 100 means that one set contains
//! the other.

use super::python_format;
use std::collections::BTreeSet;

/// Similarity from 0 to 100.
pub(super) fn token_set_ratio(a: &str, b: &str) -> i64 {
    let (a, b) = (processed(a), processed(b));
    let words_a: BTreeSet<&str> = a.split_ascii_whitespace().collect();
    let words_b: BTreeSet<&str> = b.split_ascii_whitespace().collect();
    if words_a.is_empty() || words_b.is_empty() {
        return 0;
    }
    let joined = |words: Vec<&str>| words.join(" ");
    let shared: Vec<&str> = words_a.intersection(&words_b).copied().collect();
    let only_a = joined(words_a.difference(&words_b).copied().collect());
    let only_b = joined(words_b.difference(&words_a).copied().collect());
    if !shared.is_empty() && (only_a.is_empty() || only_b.is_empty()) {
        return 100;
    }
    let shared = joined(shared).len();
    let gap = usize::from(shared > 0);
    let (with_a, with_b) = (shared + gap + only_a.len(), shared + gap + only_b.len());
    let mut best = similarity(edits(only_a.as_bytes(), only_b.as_bytes()), with_a + with_b);
    if shared > 0 {
        best = best.max(similarity(gap + only_a.len(), shared + with_a));
        best = best.max(similarity(gap + only_b.len(), shared + with_b));
    }
    python_format::round(best)
}

/// Lower-case text without non-ASCII characters; characters other than letters, digits and underscores become spaces.
fn processed(text: &str) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().filter(char::is_ascii).map(|c| if word(c) { c.to_ascii_lowercase() } else { ' ' }).collect()
}

fn similarity(distance: usize, length: usize) -> f64 {
    if length == 0 { 100.0 } else { 100.0 - 100.0 * distance as f64 / length as f64 }
}

/// Insertions and deletions that turn `a` into `b`, by the longest common subsequence.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row = vec![0_usize; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    a.len() + b.len() - 2 * row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ratios_equal_those_of_thefuzz() {
        // thefuzz 0.22.1, fuzz.token_set_ratio.
        let cases = [
            ("easy clean", "easy to clean", 100),
            ("wash cold", "machine wash", 62),
            ("navy blue", "('color', 'navy blue')", 100),
            ("tan", "('color', 'titanium')", 35),
            ("machine washable", "machine wash", 86),
            ("long lasting", "long-lasting!", 100),
            ("", "anything", 0),
            ("ÄÖÜ", "äöü", 0),
            ("eco friendly", "eco friendlie", 88),
        ];
        for (a, b, expected) in cases {
            assert_eq!(token_set_ratio(a, b), expected, "{a:?} {b:?}");
        }
    }

    proptest! {
        #[test]
        fn the_ratio_is_symmetric_bounded_and_100_for_equal_texts(a in ".{0,30}", b in "[a-c ]{0,12}") {
            let ratio = token_set_ratio(&a, &b);
            prop_assert!((0..=100).contains(&ratio));
            prop_assert_eq!(ratio, token_set_ratio(&b, &a));
            if b.contains(|c: char| c != ' ') {
                prop_assert_eq!(token_set_ratio(&b, &b), 100);
            }
        }
    }
}
