//! Which words of a product's title are nouns?
//!
//! The original asks a statistical tagger. Here one rule decides, the same on every machine: a word counts as a noun or
//! name unless it belongs to a closed class (articles, prepositions, pronouns, auxiliaries, number words), has no letters
//! at its start, or is written in lower case and looks like an adjective, an adverb or a participle. Words with a capital
//! stay in: taggers take most capitalised words of a headline for names.
//!
//! It matters only for purchases of another product than the one the goal was made from.

use unicode_segmentation::UnicodeSegmentation;

/// The nouns of a title in lower case, in order, repeats included.
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
    if lower.chars().nth(1).is_none() || CLOSED.binary_search(&lower.as_str()).is_ok() {
        return false;
    }
    first.is_uppercase() || !(DESCRIBING.binary_search(&lower.as_str()).is_ok() || looks_describing(&lower))
}

/// Endings that few English nouns have.
fn looks_describing(word: &str) -> bool {
    const ENDINGS: [&str; 13] =
        ["able", "ible", "less", "ful", "ous", "ive", "ish", "est", "ical", "ly", "ed", "ier", "proof"];
    word.chars().count() > 4 && ENDINGS.iter().any(|e| word.ends_with(e))
}

/// Words of closed classes, sorted.
const CLOSED: [&str; 101] = [
    "about", "above", "across", "after", "all", "along", "also", "am", "among", "an", "and", "any", "are", "around",
    "as", "at", "be", "been", "before", "behind", "below", "between", "both", "but", "by", "can", "could", "did", "do",
    "does", "down", "during", "each", "eight", "every", "few", "five", "for", "four", "from", "had", "has", "have",
    "he", "her", "his", "how", "if", "in", "inside", "into", "is", "it", "its", "just", "many", "may", "more", "most",
    "my", "nine", "no", "not", "of", "off", "on", "one", "only", "or", "our", "out", "over", "per", "seven", "she",
    "six", "so", "some", "ten", "than", "that", "the", "their", "these", "they", "this", "those", "three", "through",
    "to", "two", "under", "up", "very", "was", "we", "were", "will", "with", "without", "you",
];

/// Frequent adjectives without a telling ending, sorted.
const DESCRIBING: [&str; 62] = [
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
    fn lists_are_sorted_for_searching() {
        assert!(CLOSED.is_sorted() && DESCRIBING.is_sorted());
    }

    #[test]
    fn names_and_things_stay_and_the_rest_goes() {
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
