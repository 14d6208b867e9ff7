//! Who shops by rule?
//!
//! [`Told`] knows the goal's product and options and goes straight there: what is possible, and a source of demonstrations.
//! [`Reader`] knows its prompt alone: it searches for the goal's own words, takes the affordable result whose title shares
//! most with the goal, chooses the options the goal names, and buys. Its notes say where what it bought stood and how good it
//! was: in later episodes it goes back to what was perfect, and passes over what was not.

use super::{
    action,
    catalogue::Product,
    compact::search_for,
    goals::{Goal, GoalOptions},
    page::PRODUCTS_PER_PAGE,
    score::meets,
    session::{Place, Session},
    shop::{Seeded, Shop},
};
use crate::{PromptView, ScriptedAgent};
use std::{cmp::Ordering, sync::Arc};

/// Knows the goal, and goes there from wherever the visit has got to.
pub(super) struct Told {
    shop: Arc<Shop>,
    seeded: Arc<Seeded>,
    start: Session,
    /// Searches that find the product, with the results page it is on; the one that has a word of its own first.
    searches: Vec<(usize, String)>,
}

impl Told {
    /// A buyer for one goal.
    pub(super) fn new(shop: Arc<Shop>, seeded: Arc<Seeded>, goal: Arc<Goal>, show_attributes: bool) -> Self {
        let product = shop.catalogue().product(goal.product);
        let searches = [
            search_for(&goal),
            // Brackets end an action.
            format!("search[{}]", product.title.replace(['\n', '[', ']'], " ").to_lowercase()),
            format!("search[<q> {}]", product.query),
        ];
        let rank = |search: &str| {
            let words = search.trim_start_matches("search[").strip_suffix(']').unwrap_or("");
            shop.search(words).iter().position(|p| *p == goal.product)
        };
        let searches = searches.into_iter().filter_map(|s| Some((rank(&s)? / PRODUCTS_PER_PAGE, s))).collect();
        Told { shop, seeded, start: Session::new(goal, show_attributes), searches }
    }

    /// The plainest search where one word is an action; else the shortest way, and of equal ones the plainest: what the
    /// instruction says comes first, the shop's own category last.
    fn search(&self, seen: &PromptView<'_>) -> Option<&str> {
        let own = search_for(&self.start.goal);
        let by_word = self.searches.first().filter(|(_, s)| *s == own && seen.legal.iter().any(|a| a == "SEARCH"));
        by_word.or_else(|| self.searches.iter().min_by_key(|(page, _)| *page)).map(|(_, search)| search.as_str())
    }

    /// What leads from a page towards the purchase.
    fn next(&self, visit: &Session, seen: &PromptView<'_>) -> Option<String> {
        let goal = &visit.goal;
        let click = |name: &str| Some(format!("click[{name}]"));
        match visit.place() {
            Place::Done => None,
            Place::Index => self.search(seen).map(str::to_owned),
            Place::Sub(_) => click("< prev"),
            Place::Item if visit.product() != Some(goal.product) => click("< prev"),
            Place::Item => {
                let product = self.shop.catalogue().product(goal.product);
                let chosen = |value: &str| visit.chosen.iter().any(|(_, v)| **v == *value);
                let missing = values_to_choose(product, &goal.options).find(|v| !chosen(v));
                missing.map_or_else(|| click("buy now"), click)
            }
            Place::Results => {
                let found = visit.results.iter().position(|p| *p == goal.product);
                let page = found.map(|at| (at / PRODUCTS_PER_PAGE) as i64 + 1);
                match page.map(|page| page.cmp(&visit.page_number)) {
                    None => click("back to search"),
                    Some(Ordering::Less) => click("< prev"),
                    Some(Ordering::Greater) => click("next >"),
                    Some(Ordering::Equal) => click(&self.shop.catalogue().product(goal.product).asin.to_lowercase()),
                }
            }
        }
    }
}

/// For each option asked for, the value itself or, where the shop's own rule would not count it, one that it does.
fn values_to_choose<'a>(product: &'a Product, wanted: &'a GoalOptions) -> impl Iterator<Item = &'a str> {
    let all: Vec<(Option<&str>, &str)> = match wanted {
        GoalOptions::Pairs(pairs) => pairs.iter().map(|(n, v)| (Some(&**n), &**v)).collect(),
        GoalOptions::Values(values) => values.iter().map(|v| (None, &**v)).collect(),
    };
    all.into_iter().filter_map(move |(name, value)| {
        let offered = product.options.iter().filter(|o| name.is_none_or(|n| *o.name == *n)).flat_map(|o| &o.values);
        let exact = offered.clone().find(|v| ***v == *value && meets(name, value, v));
        exact.or_else(|| offered.clone().find(|v| meets(name, value, v))).map(|v| &**v)
    })
}

impl ScriptedAgent for Told {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let mut visit = self.start.clone();
        for action in seen.history.iter().filter_map(|a| action::read(a).ok()) {
            visit.act(&self.shop, &self.seeded.draws, &action);
        }
        self.next(&visit, seen).or_else(|| seen.legal.first().cloned()).unwrap_or_default()
    }

    fn reflect(&mut self, _finished: &str) -> String {
        "_".to_owned()
    }
}

/// What a note on a perfect purchase begins with.
const PERFECT: &str = "s10 ";

/// Reads the page as a person in a hurry would.
pub(super) struct Reader;

impl ScriptedAgent for Reader {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let words: Vec<&str> = seen.observation.split(' ').collect();
        match words[0] {
            "index" => "SEARCH".to_owned(),
            "results" => {
                let place_of = |note: &'_ String| note.split_once(' ').map(|(_, place)| place.to_owned());
                let perfect = seen.memory.iter().find(|note| note.starts_with(PERFECT)).and_then(place_of);
                if let Some(place) = perfect {
                    let item = place.strip_prefix(words[1]).map(str::trim_start);
                    return item.map_or_else(|| "NEXT".to_owned(), str::to_owned);
                }
                let tried = |item: usize| {
                    let place = format!("{} I{}", words[1], item + 1);
                    seen.memory.iter().any(|note| note.ends_with(&place))
                };
                let offered = words[2..].chunks(2).enumerate().filter(|(i, pair)| pair[0] != "_" && !tried(*i));
                // The best grade, and of equals the one found first; what is too dear only if there is nothing else.
                let best = offered.max_by_key(|(i, pair)| (pair[1] == "ok", pair[0], usize::MAX - i));
                best.map_or_else(|| "NEXT".to_owned(), |(i, _)| format!("I{}", i + 1))
            }
            "item" => {
                let wanted = words[3..].iter().position(|w| *w == "want");
                wanted.map_or_else(|| "BUY".to_owned(), |i| format!("V{}", i + 1))
            }
            _ => "PREV".to_owned(),
        }
    }

    /// How good it was, and where it stood.
    fn reflect(&mut self, finished: &str) -> String {
        match finished.strip_prefix("done ") {
            Some(rest) => rest.split(' ').take(3).collect::<Vec<_>>().join(" "),
            None => "_".to_owned(),
        }
    }
}
