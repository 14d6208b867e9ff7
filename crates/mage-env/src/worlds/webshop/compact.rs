//! What does a small model see of a shop?
//!
//! A fixed number of words from a small vocabulary, all of them read off the page and the goal by rule: which page, how much of
//! the goal stands in each title, whether the price is within the limit, which option values the goal names. Everything on a
//! page has a word by position, so that one word is an action.

use super::{
    catalogue::{Choice, Product},
    goals::Goal,
    session::{Place, Session, Wanted},
    shop::Shop,
};
use std::collections::HashSet;

/// How many results have a word.
const ITEMS: usize = 10;
/// How many option values have a word; those the goal names come first.
const VALUES: usize = 24;
/// How many words an observation has.
const WORDS: usize = 3 + VALUES;
/// Result pages from this one on share a word.
const LAST_PAGE: i64 = 6;
/// How many words a reflection has: score, page and place of what was bought.
pub(super) const REFLECTION_WORDS: usize = 3;

/// Every word.
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
        .chain(numbered("I", 1..=ITEMS))
        .chain(numbered("V", 1..=VALUES))
        .collect()
}

/// What is seen.
pub(super) fn observation(shop: &Shop, session: &Session) -> String {
    let goal = &session.goal;
    let mut words: Vec<String> = match session.place {
        Place::Index => vec!["index".to_owned()],
        Place::Sub(_) => vec!["more".to_owned()],
        Place::Results => {
            let judged = session.shown_results().iter().flat_map(|p| {
                let product = shop.catalogue().product(*p);
                [grade(session.wanted(shop), shop.title_terms(*p)), affordable(goal, product)]
            });
            ["results".to_owned(), page_word(session.page_number)].into_iter().chain(judged).collect()
        }
        Place::Item => {
            let (Some(number), Some(product)) = (session.product(), session.product_on_page(shop)) else {
                return String::new();
            };
            let values = values(session, product);
            let words = values.iter().map(|(_, standing)| standing.word().to_owned());
            ["item".to_owned(), grade(session.wanted(shop), shop.title_terms(number)), affordable(goal, product)]
                .into_iter()
                .chain(words)
                .collect()
        }
        Place::Done => {
            let score = session.bought.map_or(0.0, |s| s.total);
            let at = session.product().and_then(|p| session.results.iter().position(|r| *r == p)).unwrap_or(0);
            let page = page_word((at / ITEMS) as i64 + 1);
            vec!["done".to_owned(), format!("s{}", (score * 10.0) as u32), page, format!("I{}", at % ITEMS + 1)]
        }
    };
    words.resize(WORDS, "_".to_owned());
    words.join(" ")
}

/// The words for what can be done, each with the action it stands for.
pub(super) fn actions(shop: &Shop, session: &Session) -> Vec<(String, String)> {
    let named = |word: &str, button: &str| (word.to_owned(), format!("click[{button}]"));
    let mut actions = Vec::new();
    match session.place {
        Place::Done => {}
        Place::Index => actions.push(("SEARCH".to_owned(), search_for(&session.goal))),
        Place::Results => {
            actions.push(named("HOME", "back to search"));
            if session.page_number > 1 {
                actions.push(named("PREV", "< prev"));
            }
            actions.push(named("NEXT", "next >"));
            let ids = session.shown_results().iter().map(|p| shop.catalogue().product(*p).asin.to_lowercase());
            actions.extend(ids.enumerate().map(|(i, id)| named(&format!("I{}", i + 1), &id)));
        }
        Place::Sub(_) => actions.extend([named("HOME", "back to search"), named("PREV", "< prev")]),
        Place::Item => {
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

/// The search that needs no wording of one's own: the goal itself.
pub(super) fn search_for(goal: &Goal) -> String {
    format!("search[{}]", goal.text.replace('\n', " ").to_lowercase())
}

/// How an option value stands to the goal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Named by the goal, and nothing is chosen in its place.
    Want,
    /// Chosen.
    Have,
    Other,
}

impl Standing {
    fn word(self) -> &'static str {
        match self {
            Standing::Want => "want",
            Standing::Have => "have",
            Standing::Other => "other",
        }
    }
}

/// The option values that have a word, in the words' order.
fn values<'a>(session: &Session, product: &'a Product) -> Vec<(&'a str, Standing)> {
    let named = session.named(|| named_values(&session.goal, product));
    let mut named = named.iter().copied();
    let mut values: Vec<(bool, &str, Standing)> = Vec::new();
    let mut seen = HashSet::new();
    for option in &product.options {
        let chosen = session.chosen.iter().find(|(n, _)| *n == option.name).map(|(_, v)| &**v);
        for value in &option.values {
            let named = named.next().unwrap_or(false);
            if !seen.insert(&**value) {
                continue;
            }
            let standing = match chosen {
                Some(chosen) if chosen == &**value => Standing::Have,
                None if named => Standing::Want,
                _ => Standing::Other,
            };
            values.push((named, value, standing));
        }
    }
    values.sort_by_key(|(named, ..)| !named);
    values.into_iter().take(VALUES).map(|(_, value, standing)| (value, standing)).collect()
}

/// Whether the goal names each value of each option.
fn named_values(goal: &Goal, product: &Product) -> Vec<bool> {
    let goal = goal.text.to_lowercase();
    let of_option = |option: &Choice| {
        let label = format!("{}: ", option.name);
        option.values.iter().map(|value| names_value(&goal, &label, value)).collect::<Vec<_>>()
    };
    product.options.iter().flat_map(of_option).collect()
}

/// Whether the goal names this value: after the option's label (`name: `) where that occurs at all, else as words of their own.
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

/// How many ninths of the goal's words stand in the title.
fn grade(wanted: &Wanted, title: &[u32]) -> String {
    let shared = title.iter().filter(|term| wanted.terms.binary_search(term).is_ok()).count();
    format!("m{}", 9 * shared / wanted.count.max(1))
}

fn affordable(goal: &Goal, product: &Product) -> String {
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
