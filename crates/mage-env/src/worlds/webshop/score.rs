//! Scoring of purchases.
//!
//! The score is the fraction of requested attributes, options and price that the purchase meets, times a product type factor.
//! Quirks of the original are reproduced: a text that contains a color word is reduced to that word, and an option of a
//! synthetic goal is compared as Python prints the pair of name and value.

use super::{
    catalogue::Product,
    goals::{GoalOptions, ShoppingGoal},
    nouns::nouns,
    python_format,
    token_set_ratio::token_set_ratio,
};
use std::{borrow::Cow, collections::HashSet};

/// Texts with a larger `token_set_ratio` match.
const MATCH_THRESHOLD: i64 = 85;

/// Score of a purchase and its parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PurchaseScore {
    /// Total from 0 to 1; 1 is a perfect purchase.
    pub total: f64,
    /// Fraction of requested attributes met (`r_att`).
    pub attributes: f64,
    /// Fraction of requested options met (`r_option`); `None` if none are requested.
    pub options: Option<f64>,
    /// Whether the price is within the limit (`r_price`).
    pub price: bool,
    /// Product type factor (`r_type`): 1, 0.5, 0.1 or 0.
    pub product_type: f64,
    /// Whether both products have the same query.
    pub query_match: bool,
    /// Whether their category paths share at least two categories.
    pub category_match: bool,
    /// Fraction of the target title's nouns in the purchased title.
    pub title: f64,
}

/// Scores the purchase of `bought` at `price` with the chosen option values; `wanted` is the target product.
pub fn score<'v>(
    goal: &ShoppingGoal,
    wanted: &Product,
    bought: &Product,
    price: f64,
    chosen: impl IntoIterator<Item = &'v str>,
) -> PurchaseScore {
    let chosen: Vec<&str> = chosen.into_iter().collect();
    let attribute_hits = goal.attributes.iter().filter(|a| has_attribute(bought, a)).count();
    let option_hits = option_hits(&goal.options, &chosen);
    let price_met = price <= goal.price_limit;
    let (num_attributes, options) = (goal.attributes.len(), goal.options.len());
    let met = attribute_hits + option_hits + usize::from(price_met);
    let mut score = type_score(wanted, bought);
    score.attributes = attribute_hits as f64 / num_attributes.max(1) as f64;
    score.options = (options > 0).then(|| option_hits as f64 / options as f64);
    score.price = price_met;
    score.total = met as f64 / (num_attributes + options + 1) as f64 * score.product_type;
    score
}

/// Whether the product's attributes or texts contain the attribute.
fn has_attribute(product: &Product, wanted: &str) -> bool {
    product.attributes.iter().any(|a| token_set_ratio(a, wanted) > MATCH_THRESHOLD)
        || product.title.to_lowercase().contains(wanted)
        || product.bullets.join(" ").to_lowercase().contains(wanted)
        || product.description.to_lowercase().contains(wanted)
}

fn option_hits(wanted: &GoalOptions, chosen: &[&str]) -> usize {
    let chosen: Vec<&str> = chosen.iter().map(|c| normalize_color(c)).collect();
    let met = |wanted: &str| chosen.iter().any(|c| token_set_ratio(c, wanted) > MATCH_THRESHOLD);
    match wanted {
        GoalOptions::Pairs(pairs) => pairs.iter().filter(|(name, value)| met(&normalize_option(name, value))).count(),
        GoalOptions::Values(values) => values.iter().filter(|v| met(normalize_color(v))).count(),
    }
}

/// Whether choosing `value` meets a requested option; human goals have no option name.
pub(super) fn option_matches(name: Option<&str>, wanted: &str, value: &str) -> bool {
    let wanted = name.map_or(Cow::Borrowed(normalize_color(wanted)), |name| normalize_option(name, wanted));
    token_set_ratio(normalize_color(value), &wanted) > MATCH_THRESHOLD
}

/// The first color of the list that occurs anywhere in the text, else the text itself.
fn normalize_color(text: &str) -> &str {
    COLORS.iter().find(|c| text.contains(**c)).map_or(text, |c| c)
}

/// The first color of the list that equals the name or the value, else the pair as Python prints it.
fn normalize_option(name: &str, value: &str) -> Cow<'static, str> {
    match COLORS.iter().find(|c| **c == name || **c == value) {
        Some(color) => Cow::Borrowed(color),
        None => Cow::Owned(format!("({}, {})", python_format::repr(name), python_format::repr(value))),
    }
}

fn type_score(wanted: &Product, bought: &Product) -> PurchaseScore {
    let query_match = wanted.query == bought.query;
    let categories =
        |p: &'_ Product| -> HashSet<String> { p.product_category.split('›').map(|s| s.trim().to_owned()).collect() };
    let category_match = categories(wanted).intersection(&categories(bought)).count() >= 2;
    let title = title_score(&wanted.title, &bought.title);
    let product_type = match title {
        0.0 => 0.0,
        t if t < 0.1 => 0.1,
        t if query_match || category_match || t > 0.2 => 1.0,
        _ => 0.5,
    };
    PurchaseScore {
        total: 0.0,
        attributes: 0.0,
        options: None,
        price: false,
        product_type,
        query_match,
        category_match,
        title,
    }
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

/// The original's color words, in its order.
const COLORS: [&str; 102] = [
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
    fn texts_are_reduced_to_the_first_color_of_the_list() {
        assert_eq!(normalize_color("navy blue"), "blue");
        assert_eq!(normalize_color("titanium"), "tan");
        assert_eq!(normalize_color("36w x 32l"), "36w x 32l");
        assert_eq!(normalize_option("color", "red"), "red");
        assert_eq!(normalize_option("color", "navy blue"), "('color', 'navy blue')");
    }

    #[test]
    fn named_options_match_their_value_unless_it_contains_a_color_word() {
        assert!(option_matches(Some("color"), "navy blue", "navy blue"));
        assert!(option_matches(Some("color"), "navy blue", "sky blue"), "both reduce to blue in the original");
        assert!(option_matches(Some("size"), "large", "large"));
        assert!(option_matches(None, "black", "black1901"), "human goals state only values");
        assert!(!option_matches(Some("color"), "titanium", "titanium"), "it reduces to tan, which does not match");
    }

    #[test]
    fn a_perfect_purchase_scores_one_and_partial_matches_less() {
        let catalogue = generate(Seed::new(1), 200);
        let wanted = catalogue.products().iter().find(|p| p.instruction.is_some() && p.options.len() == 2).unwrap();
        let instruction = wanted.instruction.clone().unwrap();
        let pair = |i: usize| (wanted.options[i].name.clone(), wanted.options[i].values[0].clone());
        let goal = ShoppingGoal {
            product: 0,
            text: String::new(),
            attributes: instruction.attributes.clone(),
            options: GoalOptions::Pairs(vec![pair(0), pair(1)]),
            price_limit: 50.0,
        };
        let buy = |price, chosen: &[&str]| score(&goal, wanted, wanted, price, chosen.iter().copied());
        let (first, second) = (&*wanted.options[0].values[0], &*wanted.options[1].values[0]);
        assert_eq!(buy(50.0, &[first, second]).total, 1.0);
        let parts = (instruction.attributes.len() + 3) as f64;
        assert_eq!(buy(50.01, &[first, second]).total, (parts - 1.0) / parts);
        let none = buy(1.0, &[]);
        assert_eq!((none.options, none.total), (Some(0.0), (parts - 2.0) / parts));
        let other = Product {
            title: "Zebra".into(),
            query: "zoo".into(),
            product_category: "Animals".into(),
            attributes: vec![],
            ..wanted.clone()
        };
        let wrong = score(&goal, wanted, &other, 1.0, [first, second]);
        assert_eq!((wrong.product_type, wrong.total), (0.0, 0.0));
    }
}
