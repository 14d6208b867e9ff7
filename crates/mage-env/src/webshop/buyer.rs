//! Who shops by rule?
//!
//! [`Told`] knows the goal's product and options and goes straight there: what is possible, and a source of demonstrations.
//! [`Reader`] knows its prompt alone: it searches for the goal's own words, takes the affordable result whose title shares
//! most with the goal, chooses the options the goal names, and buys. Its notes say where what it bought stood and how good it
//! was: in later episodes it goes back to what was perfect, and passes over what was not.

use super::{
    catalogue::Product,
    compact::search_for,
    goals::{Goal, GoalOptions},
    page::PRODUCTS_PER_PAGE,
    score::meets,
    shop::Shop,
};
use crate::{Reference, Seen};

/// Knows the goal, and carries out a plan made from it.
pub(super) struct Told {
    plan: Vec<String>,
    at: usize,
}

impl Told {
    /// The shortest way to the goal's product that the shop offers.
    pub(super) fn new(shop: &Shop, goal: &Goal) -> Self {
        let product = shop.catalogue().product(goal.product);
        let searches = [
            search_for(goal),
            // Brackets end an action.
            format!("search[{}]", product.title.replace(['\n', '[', ']'], " ").to_lowercase()),
            format!("search[<q> {}]", product.query),
        ];
        let rank = |search: &str| {
            let words = search.trim_start_matches("search[").strip_suffix(']').unwrap_or("");
            shop.search(words).iter().position(|p| *p == goal.product)
        };
        // Of equal ways the plainest: what the instruction says comes first, the shop's own category last.
        let found = searches.into_iter().filter_map(|s| Some((rank(&s)? / PRODUCTS_PER_PAGE, s)));
        let best = found.min_by_key(|(page, _)| *page);
        let mut plan = Vec::new();
        if let Some((page, search)) = best {
            plan.push(search);
            plan.extend(std::iter::repeat_n("click[next >]".to_owned(), page));
            plan.push(format!("click[{}]", product.asin.to_lowercase()));
            plan.extend(values_to_choose(product, &goal.options).map(|v| format!("click[{v}]")));
            plan.push("click[buy now]".to_owned());
        }
        Told { plan, at: 0 }
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

impl Reference for Told {
    fn act(&mut self, seen: &Seen<'_>) -> String {
        if seen.observation.starts_with("index") {
            self.at = 0;
        }
        let action = self.plan.get(self.at).cloned();
        self.at += 1;
        action.unwrap_or_else(|| seen.legal.first().cloned().unwrap_or_default())
    }

    fn reflect(&mut self, _finished: &str) -> String {
        "_".to_owned()
    }
}

/// What a note on a perfect purchase begins with.
const PERFECT: &str = "s10 ";

/// Reads the page as a person in a hurry would.
pub(super) struct Reader;

impl Reference for Reader {
    fn act(&mut self, seen: &Seen<'_>) -> String {
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
