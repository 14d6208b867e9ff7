//! Text analyzer of the search index.
//!
//! Anserini's English analysis chain on Lucene 9: word segmentation (UAX #29), removal of possessive *'s*, lower-casing, 33
//! stop words, and the Porter stemmer. On the official 1,000 products it yields the original's 107,608 tokens (12,074
//! distinct terms).

use super::porter_stemmer;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};
use unicode_segmentation::UnicodeSegmentation;

/// Lucene's English stop words.
const STOP_WORDS: [&str; 33] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
];

/// Maximum token length in characters; Lucene's tokenizer splits longer words.
const MAX_TOKEN_LENGTH: usize = 255;

/// Calls `each` with every term of the text, in order, with repetitions.
pub(super) fn for_each_term(text: &str, mut each: impl FnMut(&str)) {
    let mut term = String::new();
    for segment in text.split_word_bounds().filter(|s| is_word(s)) {
        for piece in pieces(segment) {
            term.clear();
            term.push_str(without_possessive(piece));
            // Lower-cases each character without context: a final sigma is not special.
            if !term.chars().all(|c| c.is_ascii() && !c.is_ascii_uppercase()) {
                term = term.chars().map(|c| c.to_lowercase().next().unwrap_or(c)).collect();
            }
            if STOP_WORDS.binary_search(&term.as_str()).is_err() {
                porter_stemmer::stem(&mut term);
                each(&term);
            }
        }
    }
}

/// Whether a segment contains a letter, decimal digit or pictograph. Punctuation, fractions, circled numbers and combining
/// marks do not count.
fn is_word(segment: &str) -> bool {
    segment.chars().any(|c| match c {
        '0'..='9' | 'a'..='z' | 'A'..='Z' => true,
        '\0'..='\x7f' => false,
        // Half-width voicing marks are letters by category but behave as marks.
        '\u{ff9e}' | '\u{ff9f}' => false,
        _ => match c.general_category_group() {
            GeneralCategoryGroup::Mark => false,
            GeneralCategoryGroup::Number if !c.is_alphabetic() => {
                c.general_category() == GeneralCategory::DecimalNumber
            }
            _ => c.is_alphabetic() || is_pictograph(c),
        },
    })
}

/// `Extended_Pictographic` of Unicode 12, which Lucene's tokenizer uses; later versions removed some ranges.
const PICTOGRAPHS: [(u32, u32); 78] = [
    (0xa9, 0xa9),
    (0xae, 0xae),
    (0x203c, 0x203c),
    (0x2049, 0x2049),
    (0x2122, 0x2122),
    (0x2139, 0x2139),
    (0x2194, 0x2199),
    (0x21a9, 0x21aa),
    (0x231a, 0x231b),
    (0x2328, 0x2328),
    (0x2388, 0x2388),
    (0x23cf, 0x23cf),
    (0x23e9, 0x23f3),
    (0x23f8, 0x23fa),
    (0x24c2, 0x24c2),
    (0x25aa, 0x25ab),
    (0x25b6, 0x25b6),
    (0x25c0, 0x25c0),
    (0x25fb, 0x25fe),
    (0x2600, 0x2605),
    (0x2607, 0x2612),
    (0x2614, 0x2685),
    (0x2690, 0x2705),
    (0x2708, 0x2712),
    (0x2714, 0x2714),
    (0x2716, 0x2716),
    (0x271d, 0x271d),
    (0x2721, 0x2721),
    (0x2728, 0x2728),
    (0x2733, 0x2734),
    (0x2744, 0x2744),
    (0x2747, 0x2747),
    (0x274c, 0x274c),
    (0x274e, 0x274e),
    (0x2753, 0x2755),
    (0x2757, 0x2757),
    (0x2763, 0x2767),
    (0x2795, 0x2797),
    (0x27a1, 0x27a1),
    (0x27b0, 0x27b0),
    (0x27bf, 0x27bf),
    (0x2934, 0x2935),
    (0x2b05, 0x2b07),
    (0x2b1b, 0x2b1c),
    (0x2b50, 0x2b50),
    (0x2b55, 0x2b55),
    (0x3030, 0x3030),
    (0x303d, 0x303d),
    (0x3297, 0x3297),
    (0x3299, 0x3299),
    (0x1f000, 0x1f0ff),
    (0x1f10d, 0x1f10f),
    (0x1f12f, 0x1f12f),
    (0x1f16c, 0x1f171),
    (0x1f17e, 0x1f17f),
    (0x1f18e, 0x1f18e),
    (0x1f191, 0x1f19a),
    (0x1f1ad, 0x1f1e5),
    (0x1f201, 0x1f20f),
    (0x1f21a, 0x1f21a),
    (0x1f22f, 0x1f22f),
    (0x1f232, 0x1f23a),
    (0x1f23c, 0x1f23f),
    (0x1f249, 0x1f3fa),
    (0x1f400, 0x1f53d),
    (0x1f546, 0x1f64f),
    (0x1f680, 0x1f6ff),
    (0x1f774, 0x1f77f),
    (0x1f7d5, 0x1f7ff),
    (0x1f80c, 0x1f80f),
    (0x1f848, 0x1f84f),
    (0x1f85a, 0x1f85f),
    (0x1f888, 0x1f88f),
    (0x1f8ae, 0x1f8ff),
    (0x1f90c, 0x1f93a),
    (0x1f93c, 0x1f945),
    (0x1f947, 0x1faff),
    (0x1fc00, 0x1fffd),
];

fn is_pictograph(c: char) -> bool {
    let code = u32::from(c);
    let after = PICTOGRAPHS.partition_point(|(first, _)| *first <= code);
    after > 0 && code <= PICTOGRAPHS[after - 1].1 || ('\u{1f1e6}'..='\u{1f1ff}').contains(&c)
}

fn pieces(segment: &str) -> impl Iterator<Item = &str> {
    let mut rest = segment;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = rest.char_indices().nth(MAX_TOKEN_LENGTH).map_or(rest.len(), |(at, _)| at);
        let (piece, left) = rest.split_at(at);
        rest = left;
        Some(piece)
    })
}

fn without_possessive(word: &str) -> &str {
    const ENDINGS: [&str; 6] = ["'s", "'S", "\u{2019}s", "\u{2019}S", "\u{ff07}s", "\u{ff07}S"];
    ENDINGS.iter().find_map(|e| word.strip_suffix(e)).unwrap_or(word)
}

/// Distinct terms of a text with their counts, sorted.
pub(super) fn counted_terms(text: &str) -> Vec<(String, u32)> {
    let mut terms = Vec::new();
    for_each_term(text, |term| terms.push((term.to_owned(), 1)));
    terms.sort_unstable();
    terms.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        kept.1 += u32::from(same);
        same
    });
    terms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        for_each_term(text, |t| out.push(t.to_owned()));
        out
    }

    #[test]
    fn tables_are_sorted_for_binary_search() {
        assert!(STOP_WORDS.is_sorted() && PICTOGRAPHS.is_sorted());
    }

    #[test]
    fn terms_equal_those_of_lucene() {
        assert_eq!(terms("Find me women's Tops, tees & blouses!"), ["find", "me", "women", "top", "tee", "blous"]);
        assert_eq!(terms("36W x 32L 3.5mm wi-fi don't"), ["36w", "x", "32l", "3.5mm", "wi", "fi", "don't"]);
        assert_eq!(terms("price lower than 30.00 dollars"), ["price", "lower", "than", "30.00", "dollar"]);
        assert_eq!(terms("Mother\u{2019}s ½ ② ∙ 😀 ★ 🇫🇷 the"), ["mother", "😀", "★", "🇫🇷"]);
        assert_eq!(terms(" \u{a0} -- (\u{ff9f}\u{2200}\u{ff9f})"), [""; 0]);
    }

    #[test]
    fn overlong_words_are_split() {
        let long = "z".repeat(600);
        assert_eq!(terms(&long).iter().map(String::len).collect::<Vec<_>>(), [255, 255, 90]);
    }
}
