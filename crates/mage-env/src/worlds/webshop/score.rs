//! How well does a purchase meet a goal?
//!
//! The score is the share of attributes, options and price met, times a factor for whether it is the right kind of thing at
//! all. Quirks of the original that decide scores are kept: colours are reduced to the first colour word found inside
//! them, and a named option of a synthetic goal is compared in the form Python prints a pair in, name included.

use super::{
    catalogue::Product,
    goals::{Goal, GoalOptions},
    nouns::nouns,
    python_format,
    token_set_ratio::token_set_ratio,
};
use std::{borrow::Cow, collections::HashSet};

/// Two texts alike by more than this are taken for the same.
const ALIKE: i64 = 85;

/// A purchase's score and what it is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// From 0 to 1; 1 is a perfect purchase.
    pub total: f64,
    /// The share of attributes met.
    pub attributes: f64,
    /// The share of options met; `None` where none are asked for.
    pub options: Option<f64>,
    /// Whether the price is within the limit.
    pub price: bool,
    /// The right kind of thing: 1, 0.5, 0.1 or 0.
    pub kind: f64,
    /// Whether both come from the same search.
    pub same_query: bool,
    /// Whether they share at least two shelves.
    pub same_shelf: bool,
    /// The share of the wanted title's nouns that the bought title has.
    pub title: f64,
}

/// Scores the purchase of `bought` at `price` with the chosen option values.
pub fn score<'v>(
    goal: &Goal,
    wanted: &Product,
    bought: &Product,
    price: f64,
    chosen: impl IntoIterator<Item = &'v str>,
) -> Score {
    let chosen: Vec<&str> = chosen.into_iter().collect();
    let attribute_hits = goal.attributes.iter().filter(|a| has_attribute(bought, a)).count();
    let option_hits = option_hits(&goal.options, &chosen);
    let within = price <= goal.price_limit;
    let (asked, options) = (goal.attributes.len(), goal.options.len());
    let met = attribute_hits + option_hits + usize::from(within);
    let mut score = kind_of(wanted, bought);
    score.attributes = attribute_hits as f64 / asked.max(1) as f64;
    score.options = (options > 0).then(|| option_hits as f64 / options as f64);
    score.price = within;
    score.total = met as f64 / (asked + options + 1) as f64 * score.kind;
    score
}

/// Attributes are looked for in the product's own, else in its texts.
fn has_attribute(product: &Product, wanted: &str) -> bool {
    product.attributes.iter().any(|a| token_set_ratio(a, wanted) > ALIKE)
        || product.title.to_lowercase().contains(wanted)
        || product.bullets.join(" ").to_lowercase().contains(wanted)
        || product.description.to_lowercase().contains(wanted)
}

fn option_hits(wanted: &GoalOptions, chosen: &[&str]) -> usize {
    let chosen: Vec<&str> = chosen.iter().map(|c| reduced(c)).collect();
    let met = |wanted: &str| chosen.iter().any(|c| token_set_ratio(c, wanted) > ALIKE);
    match wanted {
        GoalOptions::Pairs(pairs) => pairs.iter().filter(|(name, value)| met(&reduced_pair(name, value))).count(),
        GoalOptions::Values(values) => values.iter().filter(|v| met(reduced(v))).count(),
    }
}

/// Whether choosing `value` meets a wanted pair, or a wanted value without a name.
pub(super) fn meets(name: Option<&str>, wanted: &str, value: &str) -> bool {
    let wanted = name.map_or(Cow::Borrowed(reduced(wanted)), |name| reduced_pair(name, wanted));
    token_set_ratio(reduced(value), &wanted) > ALIKE
}

/// The first colour of the list that occurs anywhere in the text, else the text itself.
fn reduced(text: &str) -> &str {
    COLOURS.iter().find(|c| text.contains(**c)).map_or(text, |c| c)
}

/// The first colour of the list that is the name or the value, else the pair as Python prints it.
fn reduced_pair(name: &str, value: &str) -> Cow<'static, str> {
    match COLOURS.iter().find(|c| **c == name || **c == value) {
        Some(colour) => Cow::Borrowed(colour),
        None => Cow::Owned(format!("({}, {})", python_format::repr(name), python_format::repr(value))),
    }
}

fn kind_of(wanted: &Product, bought: &Product) -> Score {
    let same_query = wanted.query == bought.query;
    let shelves = |p: &'_ Product| -> HashSet<String> { p.shelf.split('›').map(|s| s.trim().to_owned()).collect() };
    let same_shelf = shelves(wanted).intersection(&shelves(bought)).count() >= 2;
    let title = title_score(&wanted.title, &bought.title);
    let kind = match title {
        0.0 => 0.0,
        t if t < 0.1 => 0.1,
        t if same_query || same_shelf || t > 0.2 => 1.0,
        _ => 0.5,
    };
    Score { total: 0.0, attributes: 0.0, options: None, price: false, kind, same_query, same_shelf, title }
}

fn title_score(wanted: &str, bought: &str) -> f64 {
    let wanted = nouns(wanted);
    if wanted.is_empty() {
        return 0.2;
    }
    let bought: HashSet<String> = nouns(bought).into_iter().collect();
    let shared: HashSet<&String> = wanted.iter().filter(|w| bought.contains(*w)).collect();
    shared.len() as f64 / wanted.len() as f64
}

/// The original's colour words, in its order.
const COLOURS: [&str; 102] = [
    "alabaster",
    "apricot",
    "aqua",
    "ash",
    "asphalt",
    "azure",
    "banana",
    "beige",
    "black",
    "blue",
    "blush",
    "bordeaux",
    "bronze",
    "brown",
    "burgundy",
    "camel",
    "camo",
    "caramel",
    "champagne",
    "charcoal",
    "cheetah",
    "chestnut",
    "chocolate",
    "christmas",
    "coffee",
    "cognac",
    "copper",
    "coral",
    "cranberry",
    "cream",
    "crystal",
    "dark",
    "denim",
    "eggplant",
    "elephant",
    "espresso",
    "fuchsia",
    "gold",
    "granite",
    "grape",
    "graphite",
    "grass",
    "gray",
    "green",
    "grey",
    "heather",
    "indigo",
    "ivory",
    "ivy",
    "khaki",
    "lavender",
    "lemon",
    "leopard",
    "light",
    "lilac",
    "lime",
    "magenta",
    "maroon",
    "mauve",
    "merlot",
    "midnight",
    "mint",
    "mocha",
    "multicolor",
    "mushroom",
    "mustard",
    "natural",
    "navy",
    "nude",
    "olive",
    "orange",
    "peach",
    "pewter",
    "pink",
    "plum",
    "purple",
    "rainbow",
    "red",
    "rose",
    "royal",
    "rust",
    "sand",
    "sapphire",
    "seashell",
    "silver",
    "skull",
    "slate",
    "steel",
    "stone",
    "stonewash",
    "sunflower",
    "tan",
    "taupe",
    "teal",
    "tiger",
    "turquoise",
    "violet",
    "walnut",
    "wheat",
    "white",
    "wine",
    "yellow",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Seed, webshop::generator::generate};

    #[test]
    fn colours_are_reduced_to_the_first_of_the_list() {
        assert_eq!(reduced("navy blue"), "blue");
        assert_eq!(reduced("titanium"), "tan");
        assert_eq!(reduced("36w x 32l"), "36w x 32l");
        assert_eq!(reduced_pair("color", "red"), "red");
        assert_eq!(reduced_pair("color", "navy blue"), "('color', 'navy blue')");
    }

    #[test]
    fn named_options_are_met_by_their_value_but_not_where_a_colour_hides_in_it() {
        assert!(meets(Some("color"), "navy blue", "navy blue"));
        assert!(meets(Some("color"), "navy blue", "sky blue"), "both are blue to the original");
        assert!(meets(Some("size"), "large", "large"));
        assert!(meets(None, "black", "black1901"), "people name values alone");
        assert!(!meets(Some("color"), "titanium", "titanium"), "it is taken for tan, and then not found");
    }

    #[test]
    fn the_right_thing_scores_one_and_parts_of_it_less() {
        let catalogue = generate(Seed::new(1), 200);
        let wanted = catalogue.products().iter().find(|p| p.wish.is_some() && p.options.len() == 2).unwrap();
        let wish = wanted.wish.clone().unwrap();
        let pair = |i: usize| (wanted.options[i].name.clone(), wanted.options[i].values[0].clone());
        let goal = Goal {
            product: 0,
            text: String::new(),
            attributes: wish.attributes.clone(),
            options: GoalOptions::Pairs(vec![pair(0), pair(1)]),
            price_limit: 50.0,
        };
        let buy = |price, chosen: &[&str]| score(&goal, wanted, wanted, price, chosen.iter().copied());
        let (first, second) = (&*wanted.options[0].values[0], &*wanted.options[1].values[0]);
        assert_eq!(buy(50.0, &[first, second]).total, 1.0);
        let parts = (wish.attributes.len() + 3) as f64;
        assert_eq!(buy(50.01, &[first, second]).total, (parts - 1.0) / parts);
        let none = buy(1.0, &[]);
        assert_eq!((none.options, none.total), (Some(0.0), (parts - 2.0) / parts));
        let other = Product {
            title: "Zebra".into(),
            query: "zoo".into(),
            shelf: "Animals".into(),
            attributes: vec![],
            ..wanted.clone()
        };
        let wrong = score(&goal, wanted, &other, 1.0, [first, second]);
        assert_eq!((wrong.kind, wrong.total), (0.0, 0.0));
    }
}
