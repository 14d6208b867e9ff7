//! Foreign text in the formats of the report.

/// The text on one line, without control characters: viewers of plain text in a terminal would obey them.
pub(super) fn single_line(text: &str) -> String {
    let line_break = |c| matches!(c, '\n' | '\r' | '\t' | '\u{85}');
    text.chars().filter(|c| line_break(*c) || !c.is_control()).map(|c| if line_break(c) { ' ' } else { c }).collect()
}

/// The text as a part of a file name: lower-case letters, digits and hyphens.
pub(super) fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let slug = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    slug.chars().take(MAX_SLUG).collect::<String>().trim_end_matches('-').to_owned()
}

/// Largest length of a slug. File systems allow names of 255 bytes.
const MAX_SLUG: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(single_line("a\u{1b}[31mb\u{0}c\u{9b}d\u{7f}\r\ne\tf ü"), "a[31mbcd  e f ü");
    }

    #[test]
    fn slugs_are_safe_file_names() {
        assert_eq!(slug("score Kuhn in-domain [ab12]"), "score-kuhn-in-domain-ab12");
        assert_eq!(slug("../../etc/passwd"), "etc-passwd");
        assert_eq!((slug("中文").as_str(), slug(&"abc ".repeat(99)).len()), ("", 99));
    }
}
