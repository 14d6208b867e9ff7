//! Nouns of a product title, by rule.
//!
//! The original uses a statistical tagger. This deterministic rule counts a word as a noun or name unless it belongs to a
//! closed class (articles, prepositions, pronouns, auxiliaries, number words), does not start with a letter, or is
//! lower-case and looks like an adjective, an adverb or a participle. Capitalised words count, since taggers label most
//! capitalised words of a title as names.
//!
//! The rule affects only purchases of a product other than the target.

use unicode_segmentation::UnicodeSegmentation;

/// The nouns of a title, lower-case, in order, with repetitions.
pub(super) fn nouns(title: &str) -> Vec<String> {
    title
        .unicode_words()
        .flat_map(|w| w.split(['\'', '\u{2019}', '_', '.']))
        .filter(|w| is_noun(w))
        .map(str::to_lowercase)
        .collect()
}

fn is_noun(word: &str) -> bool {
    let Some(first) = word.chars().next().filter(|c| c.is_alphabetic()) else { return false };
    let lower = word.to_lowercase();
    if lower.chars().nth(1).is_none() || CLOSED_CLASS_WORDS.binary_search(&lower.as_str()).is_ok() {
        return false;
    }
    first.is_uppercase() || !(ADJECTIVES.binary_search(&lower.as_str()).is_ok() || has_adjective_ending(&lower))
}

/// Endings that few English nouns have.
fn has_adjective_ending(word: &str) -> bool {
    const ENDINGS: [&str; 13] =
        ["able", "ible", "less", "ful", "ous", "ive", "ish", "est", "ical", "ly", "ed", "ier", "proof"];
    word.chars().count() > 4 && ENDINGS.iter().any(|e| word.ends_with(e))
}

/// Words of closed classes, sorted.
const CLOSED_CLASS_WORDS: [&str; 101] = [
    "about", "above", "across", "after", "all", "along", "also", "am", "among", "an", "and", "any", "are", "around",
    "as", "at", "be", "been", "before", "behind", "below", "between", "both", "but", "by", "can", "could", "did", "do",
    "does", "down", "during", "each", "eight", "every", "few", "five", "for", "four", "from", "had", "has", "have",
    "he", "her", "his", "how", "if", "in", "inside", "into", "is", "it", "its", "just", "many", "may", "more", "most",
    "my", "nine", "no", "not", "of", "off", "on", "one", "only", "or", "our", "out", "over", "per", "seven", "she",
    "six", "so", "some", "ten", "than", "that", "the", "their", "these", "they", "this", "those", "three", "through",
    "to", "two", "under", "up", "very", "was", "we", "were", "will", "with", "without", "you",
];

/// Frequent adjectives without such an ending, sorted.
const ADJECTIVES: [&str; 62] = [
    "artificial",
    "big",
    "black",
    "blue",
    "bright",
    "brown",
    "casual",
    "cheap",
    "classic",
    "clean",
    "clear",
    "cold",
    "cool",
    "cute",
    "dark",
    "deep",
    "digital",
    "dry",
    "easy",
    "electric",
    "extra",
    "fast",
    "fine",
    "flat",
    "free",
    "fresh",
    "full",
    "gray",
    "great",
    "green",
    "grey",
    "hard",
    "healthy",
    "heavy",
    "high",
    "hot",
    "large",
    "light",
    "long",
    "loose",
    "low",
    "modern",
    "natural",
    "new",
    "old",
    "organic",
    "pink",
    "plus",
    "portable",
    "pure",
    "purple",
    "quick",
    "red",
    "short",
    "slim",
    "small",
    "smart",
    "soft",
    "strong",
    "warm",
    "white",
    "yellow",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_for_binary_search() {
        assert!(CLOSED_CLASS_WORDS.is_sorted() && ADJECTIVES.is_sorted());
    }

    #[test]
    fn nouns_and_names_are_kept() {
        assert_eq!(
            nouns("Vhomes Lights Reclaimed Wood Console Table"),
            ["vhomes", "lights", "reclaimed", "wood", "console", "table"]
        );
        assert_eq!(
            nouns("a soft and washable shirt for men with 3 pockets, easily folded"),
            ["shirt", "men", "pockets"]
        );
        assert_eq!(nouns("Women's Slip-On Shoes (2 pack) 18x24 x"), ["women", "slip", "shoes", "pack"]);
        assert_eq!(nouns("with the and 42"), [""; 0]);
    }
}
