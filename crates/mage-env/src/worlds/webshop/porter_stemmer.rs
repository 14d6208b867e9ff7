//! Porter stemmer.
//!
//! Porter's algorithm (1980) with the author's two later changes (*-bli* becomes *-ble*, *-logi* becomes *-log*), as in
//! Lucene's English analysis. It operates on bytes: every byte that is not an ASCII vowel is a consonant, and a run of
//! consonants counts once, so non-ASCII letters are handled correctly.

/// Reduces a lower-case word to its stem, in place. Words of fewer than three letters stay as they are.
pub(super) fn stem(word: &mut String) {
    if word.len() < 3 || word.chars().take(3).count() < 3 {
        return;
    }
    let mut w = StemBuffer(std::mem::take(word).into_bytes());
    w.plurals();
    w.past_and_progressive();
    w.final_y();
    w.replace_suffix(STEP_2);
    w.replace_suffix(STEP_3);
    w.residual_suffix();
    w.final_e();
    *word = String::from_utf8(w.0).expect("only ASCII suffixes are replaced");
}

struct StemBuffer(Vec<u8>);

/// Suffixes with their replacements; of suffixes that share an ending the longer comes first.
type SuffixRules = &'static [(&'static str, &'static str)];

const STEP_2: SuffixRules = &[
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
];

const STEP_3: SuffixRules =
    &[("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")];

const STEP_4: [&str; 19] = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
];

impl StemBuffer {
    fn is_consonant(&self, i: usize) -> bool {
        match self.0[i] {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => i == 0 || !self.is_consonant(i - 1),
            _ => true,
        }
    }

    /// Porter's measure *m*: the number of vowel-consonant transitions in the first `len` bytes.
    fn measure(&self, len: usize) -> usize {
        let mut after_vowel = false;
        let mut m = 0;
        for i in 0..len {
            let consonant = self.is_consonant(i);
            m += usize::from(after_vowel && consonant);
            after_vowel = !consonant;
        }
        m
    }

    fn has_vowel(&self, len: usize) -> bool {
        (0..len).any(|i| !self.is_consonant(i))
    }

    fn ends_in_double_consonant(&self) -> bool {
        let n = self.0.len();
        n >= 2 && self.0[n - 1] == self.0[n - 2] && self.is_consonant(n - 1)
    }

    /// Whether the first `len` bytes end in consonant, vowel, consonant, where the last is not w, x or y.
    fn ends_in_short_syllable(&self, len: usize) -> bool {
        len >= 3
            && self.is_consonant(len - 1)
            && !self.is_consonant(len - 2)
            && self.is_consonant(len - 3)
            && !matches!(self.0[len - 1], b'w' | b'x' | b'y')
    }

    /// The length without `suffix`, if the word ends in it.
    fn without(&self, suffix: &str) -> Option<usize> {
        self.0.ends_with(suffix.as_bytes()).then(|| self.0.len() - suffix.len())
    }

    fn replace_from(&mut self, at: usize, ending: &str) {
        self.0.truncate(at);
        self.0.extend_from_slice(ending.as_bytes());
    }

    fn plurals(&mut self) {
        if let Some(at) = self.without("sses").or_else(|| self.without("ies")) {
            self.0.truncate(at + if self.0.ends_with(b"sses") { 2 } else { 1 });
        } else if self.0.ends_with(b"s") && !self.0.ends_with(b"ss") {
            self.0.pop();
        }
    }

    fn past_and_progressive(&mut self) {
        if let Some(at) = self.without("eed") {
            if self.measure(at) > 0 {
                self.0.pop();
            }
            return;
        }
        let Some(at) = self.without("ed").or_else(|| self.without("ing")).filter(|at| self.has_vowel(*at)) else {
            return;
        };
        self.0.truncate(at);
        if ["at", "bl", "iz"].iter().any(|s| self.without(s).is_some()) {
            self.0.push(b'e');
        } else if self.ends_in_double_consonant() {
            if !matches!(self.0[at - 1], b'l' | b's' | b'z') {
                self.0.pop();
            }
        } else if self.measure(at) == 1 && self.ends_in_short_syllable(at) {
            self.0.push(b'e');
        }
    }

    fn final_y(&mut self) {
        if let Some(at) = self.without("y").filter(|at| self.has_vowel(*at)) {
            self.replace_from(at, "i");
        }
    }

    /// Replaces the first suffix of the list that the word ends in, if the stem before it has a positive measure.
    fn replace_suffix(&mut self, rules: SuffixRules) {
        let found = rules.iter().find_map(|(suffix, ending)| Some((self.without(suffix)?, ending)));
        if let Some((at, ending)) = found.filter(|(at, _)| self.measure(*at) > 0) {
            self.replace_from(at, ending);
        }
    }

    fn residual_suffix(&mut self) {
        let found = STEP_4.iter().find_map(|suffix| {
            let at = self.without(suffix)?;
            // "ion" is removed only after s or t; no other suffix of the list matches such a word.
            (*suffix != "ion" || (at > 0 && matches!(self.0[at - 1], b's' | b't'))).then_some(at)
        });
        if let Some(at) = found.filter(|at| self.measure(*at) > 1) {
            self.0.truncate(at);
        }
    }

    fn final_e(&mut self) {
        if let Some(at) = self.without("e") {
            let m = self.measure(at);
            if m > 1 || (m == 1 && !self.ends_in_short_syllable(at)) {
                self.0.truncate(at);
            }
        }
        if self.0.ends_with(b"ll") && self.measure(self.0.len()) > 1 {
            self.0.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn stems_equal_the_examples_of_the_paper() {
        let pairs = "caresses caress ponies poni ties ti caress caress cats cat feed feed agreed agre plastered plaster \
            bled bled motoring motor sing sing conflated conflat troubled troubl sized size hopping hop tanned tan \
            falling fall hissing hiss fizzed fizz failing fail filing file happy happi sky sky relational relat \
            conditional condit rational ration valenci valenc hesitanci hesit digitizer digit conformabli conform \
            radicalli radic differentli differ vileli vile analogousli analog vietnamization vietnam predication predic \
            operator oper feudalism feudal decisiveness decis hopefulness hope callousness callous formaliti formal \
            sensitiviti sensit sensibiliti sensibl triplicate triplic formative form formalize formal electriciti \
            electr electrical electr hopeful hope goodness good revival reviv allowance allow inference infer airliner \
            airlin gyroscopic gyroscop adjustable adjust defensible defens irritant irrit replacement replac adjustment \
            adjust dependent depend adoption adopt homologou homolog communism commun activate activ angulariti angular \
            homologous homolog effective effect bowdlerize bowdler probate probat rate rate cease ceas controll control \
            roll roll analogy analog reasonably reason dry dry dries dri complements complement";
        let words: Vec<&str> = pairs.split_whitespace().collect();
        for pair in words.chunks(2) {
            let mut word = pair[0].to_owned();
            stem(&mut word);
            assert_eq!(word, pair[1], "{}", pair[0]);
        }
    }

    #[test]
    fn short_words_are_unchanged_and_non_ascii_words_are_stemmed() {
        for (word, expected) in
            [("as", "as"), ("es", "es"), ("éa", "éa"), ("cafés", "café"), ("18x18", "18x18"), ("日本s", "日本")]
        {
            let mut w = word.to_owned();
            stem(&mut w);
            assert_eq!(w, expected);
        }
    }
}
