//! Scripted agents.
//!
//! [`OracleShopper`] knows the target product and options and buys it directly: an upper bound and a source of expert play.
//! [`HeuristicShopper`] knows only its prompt: it searches for the instruction, takes the affordable result whose title
//! shares most terms with the goal, chooses the options that the goal names, and buys. Its reflections state the position and
//! score of the purchase: later episodes repeat a perfect purchase and skip others.

use super::{
    action,
    catalogue::Product,
    compact::instruction_search,
    goals::{GoalOptions, ShoppingGoal},
    page::PRODUCTS_PER_PAGE,
    score::option_matches,
    session::{Page, Session},
    shop::{SeededGoals, Shop},
};
use crate::{PromptView, ScriptedAgent};
use std::{cmp::Ordering, sync::Arc};

/// Buys the target product from any state of the session.
pub(super) struct OracleShopper {
    shop: Arc<Shop>,
    seeded: Arc<SeededGoals>,
    start: Session,
    /// Searches that find the product, with its results page; the search that has a compact word comes first.
    searches: Vec<(usize, String)>,
}

impl OracleShopper {
    /// An agent for one goal.
    pub(super) fn new(
        shop: Arc<Shop>,
        seeded: Arc<SeededGoals>,
        goal: Arc<ShoppingGoal>,
        show_attributes: bool,
    ) -> Self {
        let product = shop.catalogue().product(goal.product);
        let searches = [
            instruction_search(&goal),
            // Brackets would end the action.
            format!("search[{}]", product.title.replace(['\n', '[', ']'], " ").to_lowercase()),
            format!("search[<q> {}]", product.query),
        ];
        let rank = |search: &str| {
            let words = search.trim_start_matches("search[").strip_suffix(']').unwrap_or("");
            shop.search(words).iter().position(|p| *p == goal.product)
        };
        let searches = searches.into_iter().filter_map(|s| Some((rank(&s)? / PRODUCTS_PER_PAGE, s))).collect();
        OracleShopper { shop, seeded, start: Session::new(goal, show_attributes), searches }
    }

    /// The instruction search if actions are compact words; else the search with the lowest results page, and of equals the
    /// instruction, then the title, then the listing of the product's query.
    fn search(&self, seen: &PromptView<'_>) -> Option<&str> {
        let instruction = instruction_search(&self.start.goal);
        let compact =
            self.searches.first().filter(|(_, s)| *s == instruction && seen.legal.iter().any(|a| a == "SEARCH"));
        compact.or_else(|| self.searches.iter().min_by_key(|(page, _)| *page)).map(|(_, search)| search.as_str())
    }

    /// The next action towards the purchase.
    fn next(&self, session: &Session, seen: &PromptView<'_>) -> Option<String> {
        let goal = &session.goal;
        let click = |name: &str| Some(format!("click[{name}]"));
        match session.page() {
            Page::Done => None,
            Page::Index => self.search(seen).map(str::to_owned),
            Page::Sub(_) => click("< prev"),
            Page::Item if session.product() != Some(goal.product) => click("< prev"),
            Page::Item => {
                let product = self.shop.catalogue().product(goal.product);
                let chosen = |value: &str| session.chosen.iter().any(|(_, v)| **v == *value);
                let missing = values_to_choose(product, &goal.options).find(|v| !chosen(v));
                missing.map_or_else(|| click("buy now"), click)
            }
            Page::Results => {
                let found = session.results.iter().position(|p| *p == goal.product);
                let page = found.map(|at| (at / PRODUCTS_PER_PAGE) as i64 + 1);
                match page.map(|page| page.cmp(&session.page_number)) {
                    None => click("back to search"),
                    Some(Ordering::Less) => click("< prev"),
                    Some(Ordering::Greater) => click("next >"),
                    Some(Ordering::Equal) => click(&self.shop.catalogue().product(goal.product).asin.to_lowercase()),
                }
            }
        }
    }
}

/// For each requested option, its value or, if the scoring would not count that value, another one that counts.
fn values_to_choose<'a>(product: &'a Product, wanted: &'a GoalOptions) -> impl Iterator<Item = &'a str> {
    let all: Vec<(Option<&str>, &str)> = match wanted {
        GoalOptions::Pairs(pairs) => pairs.iter().map(|(n, v)| (Some(&**n), &**v)).collect(),
        GoalOptions::Values(values) => values.iter().map(|v| (None, &**v)).collect(),
    };
    all.into_iter().filter_map(move |(name, value)| {
        let offered = product.options.iter().filter(|o| name.is_none_or(|n| *o.name == *n)).flat_map(|o| &o.values);
        let exact = offered.clone().find(|v| ***v == *value && option_matches(name, value, v));
        exact.or_else(|| offered.clone().find(|v| option_matches(name, value, v))).map(|v| &**v)
    })
}

impl ScriptedAgent for OracleShopper {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let mut session = self.start.clone();
        for action in seen.history.iter().filter_map(|a| action::parse(a).ok()) {
            session.act(&self.shop, &self.seeded.prices, &action);
        }
        self.next(&session, seen).or_else(|| seen.legal.first().cloned()).unwrap_or_default()
    }

    fn reflect(&mut self, _finished: &str) -> String {
        "_".to_owned()
    }
}

/// Prefix of a reflection on a perfect purchase.
const PERFECT: &str = "s10 ";

/// Chooses by the compact observation alone.
pub(super) struct HeuristicShopper;

impl ScriptedAgent for HeuristicShopper {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let words: Vec<&str> = seen.observation.split(' ').collect();
        match words[0] {
            "index" => "SEARCH".to_owned(),
            "results" => {
                let location_of =
                    |reflection: &'_ String| reflection.split_once(' ').map(|(_, location)| location.to_owned());
                let perfect =
                    seen.memory.iter().find(|reflection| reflection.starts_with(PERFECT)).and_then(location_of);
                if let Some(location) = perfect {
                    let item = location.strip_prefix(words[1]).map(str::trim_start);
                    return item.map_or_else(|| "NEXT".to_owned(), str::to_owned);
                }
                let tried = |item: usize| {
                    let location = format!("{} I{}", words[1], item + 1);
                    seen.memory.iter().any(|reflection| reflection.ends_with(&location))
                };
                let offered = words[2..].chunks(2).enumerate().filter(|(i, pair)| pair[0] != "_" && !tried(*i));
                // The best title match, and of equals the first result; too expensive products only as a last resort.
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

    /// Score and position of the purchase.
    fn reflect(&mut self, finished: &str) -> String {
        match finished.strip_prefix("done ") {
            Some(rest) => rest.split(' ').take(3).collect::<Vec<_>>().join(" "),
            None => "_".to_owned(),
        }
    }
}
