//! Compact observations and actions.
//!
//! An observation is a fixed number of words from a small vocabulary, derived from the page and the goal by rules: the page,
//! how many of the goal's terms each title contains, whether the price is within the limit, and which option values the goal
//! names. Every clickable element has a word by position, so that one word is an action.

use super::{
    catalogue::{Product, ProductOption},
    goals::ShoppingGoal,
    session::{GoalTerms, Page, Session},
    shop::Shop,
};
use std::collections::HashSet;

/// Results that have a word.
const MAX_ITEMS: usize = 10;
/// Option values that have a word; values named by the goal come first.
const MAX_VALUES: usize = 24;
/// Words in an observation.
const OBSERVATION_WORDS: usize = 3 + MAX_VALUES;
/// Results pages from this one on share a word.
const LAST_PAGE: i64 = 6;
/// Words in a reflection: score, results page and position of the purchased product.
pub(super) const REFLECTION_WORDS: usize = 3;

/// The vocabulary.
pub(super) fn vocabulary() -> Vec<String> {
    let plain = [
        "index", "results", "item", "more", "done", "ok", "dear", "want", "have", "other", "SEARCH", "HOME", "PREV",
        "NEXT", "DESC", "FEAT", "REV", "ATTR", "BUY",
    ];
    let numbered =
        |letter: &'static str, range: std::ops::RangeInclusive<usize>| range.map(move |i| format!("{letter}{i}"));
    plain
        .map(str::to_owned)
        .into_iter()
        .chain(numbered("m", 0..=9))
        .chain(numbered("s", 0..=10))
        .chain(numbered("P", 1..=LAST_PAGE as usize))
        .chain(numbered("I", 1..=MAX_ITEMS))
        .chain(numbered("V", 1..=MAX_VALUES))
        .collect()
}

/// The compact observation of a session.
pub(super) fn observation(shop: &Shop, session: &Session) -> String {
    let goal = &session.goal;
    let mut words: Vec<String> = match session.page {
        Page::Index => vec!["index".to_owned()],
        Page::Sub(_) => vec!["more".to_owned()],
        Page::Results => {
            let rated = session.shown_results().iter().flat_map(|p| {
                let product = shop.catalogue().product(*p);
                [title_match(session.goal_terms(shop), shop.title_terms(*p)), affordable(goal, product)]
            });
            ["results".to_owned(), page_word(session.page_number)].into_iter().chain(rated).collect()
        }
        Page::Item => {
            let (Some(number), Some(product)) = (session.product(), session.product_on_page(shop)) else {
                return String::new();
            };
            let values = values(session, product);
            let words = values.iter().map(|(_, status)| status.word().to_owned());
            [
                "item".to_owned(),
                title_match(session.goal_terms(shop), shop.title_terms(number)),
                affordable(goal, product),
            ]
            .into_iter()
            .chain(words)
            .collect()
        }
        Page::Done => {
            let score = session.bought.map_or(0.0, |s| s.total);
            let at = session.product().and_then(|p| session.results.iter().position(|r| *r == p)).unwrap_or(0);
            let page = page_word((at / MAX_ITEMS) as i64 + 1);
            vec!["done".to_owned(), format!("s{}", (score * 10.0) as u32), page, format!("I{}", at % MAX_ITEMS + 1)]
        }
    };
    words.resize(OBSERVATION_WORDS, "_".to_owned());
    words.join(" ")
}

/// The available action words, each with its action.
pub(super) fn actions(shop: &Shop, session: &Session) -> Vec<(String, String)> {
    let named = |word: &str, button: &str| (word.to_owned(), format!("click[{button}]"));
    let mut actions = Vec::new();
    match session.page {
        Page::Done => {}
        Page::Index => actions.push(("SEARCH".to_owned(), instruction_search(&session.goal))),
        Page::Results => {
            actions.push(named("HOME", "back to search"));
            if session.page_number > 1 {
                actions.push(named("PREV", "< prev"));
            }
            actions.push(named("NEXT", "next >"));
            let ids = session.shown_results().iter().map(|p| shop.catalogue().product(*p).asin.to_lowercase());
            actions.extend(ids.enumerate().map(|(i, id)| named(&format!("I{}", i + 1), &id)));
        }
        Page::Sub(_) => actions.extend([named("HOME", "back to search"), named("PREV", "< prev")]),
        Page::Item => {
            actions.extend([
                named("HOME", "back to search"),
                named("PREV", "< prev"),
                named("DESC", "description"),
                named("FEAT", "features"),
                named("REV", "reviews"),
            ]);
            if session.show_attributes {
                actions.push(named("ATTR", "attributes"));
            }
            actions.push(named("BUY", "buy now"));
            let values = session.product_on_page(shop).map_or_else(Vec::new, |p| values(session, p));
            actions.extend(values.iter().enumerate().map(|(i, (value, _))| named(&format!("V{}", i + 1), value)));
        }
    }
    actions
}

/// The search for the instruction itself.
pub(super) fn instruction_search(goal: &ShoppingGoal) -> String {
    format!("search[{}]", goal.text.replace('\n', " ").to_lowercase())
}

/// Status of an option value with respect to the goal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueStatus {
    /// Named by the goal, and no value of its option is chosen.
    Wanted,
    /// Chosen.
    Chosen,
    Other,
}

impl ValueStatus {
    fn word(self) -> &'static str {
        match self {
            ValueStatus::Wanted => "want",
            ValueStatus::Chosen => "have",
            ValueStatus::Other => "other",
        }
    }
}

/// The option values that have a word, in word order.
fn values<'a>(session: &Session, product: &'a Product) -> Vec<(&'a str, ValueStatus)> {
    let named = session.values_in_goal(|| named_values(&session.goal, product));
    let mut named = named.iter().copied();
    let mut values: Vec<(bool, &str, ValueStatus)> = Vec::new();
    let mut seen = HashSet::new();
    for option in &product.options {
        let chosen = session.chosen.iter().find(|(n, _)| *n == option.name).map(|(_, v)| &**v);
        for value in &option.values {
            let named = named.next().unwrap_or(false);
            if !seen.insert(&**value) {
                continue;
            }
            let status = match chosen {
                Some(chosen) if chosen == &**value => ValueStatus::Chosen,
                None if named => ValueStatus::Wanted,
                _ => ValueStatus::Other,
            };
            values.push((named, value, status));
        }
    }
    values.sort_by_key(|(named, ..)| !named);
    values.into_iter().take(MAX_VALUES).map(|(_, value, status)| (value, status)).collect()
}

/// Whether the goal names each value of each option.
fn named_values(goal: &ShoppingGoal, product: &Product) -> Vec<bool> {
    let goal = goal.text.to_lowercase();
    let of_option = |option: &ProductOption| {
        let label = format!("{}: ", option.name);
        option.values.iter().map(|value| names_value(&goal, &label, value)).collect::<Vec<_>>()
    };
    product.options.iter().flat_map(of_option).collect()
}

/// Whether the goal names this value: after the option's label (`name: `) if the goal contains the label, else as whole words.
fn names_value(goal: &str, label: &str, value: &str) -> bool {
    let ends = |rest: &str| rest.is_empty() || rest.starts_with(", and ");
    let mut labelled = goal.match_indices(label).map(|(at, _)| &goal[at + label.len()..]).peekable();
    if labelled.peek().is_some() {
        return labelled.any(|rest| rest.strip_prefix(value).is_some_and(ends));
    }
    let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    !value.is_empty()
        && goal
            .match_indices(value)
            .any(|(at, _)| edge(goal[..at].chars().next_back()) && edge(goal[at + value.len()..].chars().next()))
}

/// Fraction of the goal's terms in the title, in ninths.
fn title_match(goal: &GoalTerms, title: &[u32]) -> String {
    let shared = title.iter().filter(|term| goal.terms.binary_search(term).is_ok()).count();
    format!("m{}", 9 * shared / goal.count.max(1))
}

fn affordable(goal: &ShoppingGoal, product: &Product) -> String {
    (if product.price.low <= goal.price_limit { "ok" } else { "dear" }).to_owned()
}

fn page_word(page: i64) -> String {
    format!("P{}", page.clamp(1, LAST_PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_label_or_as_words() {
        let goal = "look for shirts with color: navy, and size: x-large, and price lower than 30.00 dollars";
        assert!(names_value(goal, "color: ", "navy") && names_value(goal, "size: ", "x-large"));
        assert!(!names_value(goal, "size: ", "large") && !names_value(goal, "color: ", "nav"));
        let human = "i want an orange pair in size 6";
        assert!(names_value(human, "color: ", "orange") && names_value(human, "size: ", "6"));
        assert!(!names_value(human, "color: ", "range") && !names_value(human, "color: ", ""));
    }
}
