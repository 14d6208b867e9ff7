//! What is a buyer sent out for?
//!
//! A goal is a product, the attributes and options wanted, and a price limit, told as one sentence. Prices of products with
//! a range and all limits are drawn with Python's generator in the order the original draws them, so that one seed gives the
//! same goals in the same order.

use super::catalogue::{Catalogue, Product};
use crate::{Error, Result, mt19937::PythonRandom};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Whose wishes are goals made of?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalKind {
    /// Made from attributes by rule, one goal for each combination of a product's options.
    #[default]
    Synthetic,
    /// Written by people.
    Human,
}

/// What a buyer is sent out for.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The product the goal was made from.
    pub product: u32,
    /// The whole sentence.
    pub text: String,
    /// The attributes asked for.
    pub attributes: Vec<Box<str>>,
    /// The options asked for.
    pub options: GoalOptions,
    /// What it may cost.
    pub price_limit: f64,
}

/// OptionMap asked for: synthetic goals name what is chosen, people only say the value. Scoring differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GoalOptions {
    /// Name and value.
    Pairs(Vec<(Box<str>, Box<str>)>),
    /// Values alone.
    Values(Vec<Box<str>>),
}

impl GoalOptions {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            GoalOptions::Pairs(pairs) => pairs.len(),
            GoalOptions::Values(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A goal before anything is drawn: a product, and which of its wishes or combinations of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoalId {
    pub(super) product: u32,
    pub(super) variant: u32,
}

/// A product with more combinations of options than this is taken for a mistake.
const MOST_COMBINATIONS: usize = 1_000_000;

/// All goals of a catalogue, in the catalogue's order.
pub(super) fn goal_ids(catalogue: &Catalogue, kind: GoalKind) -> Result<Vec<GoalId>> {
    let mut ids = Vec::new();
    for (number, product) in catalogue.products().iter().enumerate() {
        let variants = match kind {
            GoalKind::Human => product.human_wishes.len(),
            GoalKind::Synthetic if product.wish.is_none() => 0,
            GoalKind::Synthetic => combinations(product)?,
        };
        let wanted = |v: &u32| kind == GoalKind::Synthetic || !product.human_wishes[*v as usize].attributes.is_empty();
        let of_product = (0..variants as u32).filter(wanted);
        ids.extend(of_product.map(|variant| GoalId { product: number as u32, variant }));
    }
    Ok(ids)
}

fn combinations(product: &Product) -> Result<usize> {
    let total = product.options.iter().try_fold(1_usize, |n, o| n.checked_mul(o.values.len()));
    total.filter(|n| *n <= MOST_COMBINATIONS).ok_or_else(|| {
        Error::invalid(
            format!("product {}", product.asin),
            format!("field `customization_options`: more than {MOST_COMBINATIONS} combinations of options"),
        )
    })
}

/// What one seed of the original decides: prices and limits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Draws {
    /// Of each product.
    prices: Vec<f64>,
    /// Of each goal, in tens; 0 where there is no limit.
    limits: Vec<u8>,
}

/// The limit of goals that have none.
pub(super) const NO_LIMIT: f64 = 1_000_000.0;

impl Draws {
    pub(super) fn new(catalogue: &Catalogue, ids: &[GoalId], kind: GoalKind, seed: u32) -> Self {
        let mut random = PythonRandom::new(seed);
        let price = |p: &Product| p.price.high.map_or(p.price.low, |high| random.uniform(p.price.low, high));
        let prices: Vec<f64> = catalogue.products().iter().map(price).collect();
        let mut limit = |product: u32| draw_limit(prices[product as usize], &mut random);
        let limits = match kind {
            GoalKind::Human => ids.iter().map(|id| limit(id.product)).collect(),
            GoalKind::Synthetic => {
                // One draw for all goals of a product, also where options without values leave it with none.
                let wished = |(number, p): (usize, &Product)| if p.wish.is_some() { limit(number as u32) } else { 0 };
                let of_product: Vec<u8> = catalogue.products().iter().enumerate().map(wished).collect();
                ids.iter().map(|id| of_product[id.product as usize]).collect()
            }
        };
        Draws { prices, limits }
    }

    /// What a product costs.
    pub(super) fn price(&self, product: u32) -> f64 {
        self.prices[product as usize]
    }

    fn limit(&self, goal: usize) -> Option<f64> {
        Some(f64::from(self.limits[goal]) * 10.0).filter(|l| *l > 0.0)
    }
}

/// The larger of two drawn from the next four multiples of 10 above the price, in tens; 0 above 980.
fn draw_limit(price: f64, random: &mut PythonRandom) -> u8 {
    let above: Vec<u8> = (1..100).filter(|tens| f64::from(*tens) * 10.0 > price).take(4).collect();
    if above.len() < 2 { 0 } else { random.sample(&above, 2).into_iter().max().unwrap_or(0) }
}

/// The order of `count` goals at a seed of the original.
pub(super) fn shuffled(count: usize, seed: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    PythonRandom::new(seed).shuffle(&mut order);
    order
}

/// A goal in full; `number` is its place among all goals.
pub(super) fn goal(catalogue: &Catalogue, id: GoalId, kind: GoalKind, draws: &Draws, number: usize) -> Goal {
    let product = catalogue.product(id.product);
    let limit = draws.limit(number);
    let (asked, attributes, options) = asked(product, id.variant, kind);
    let limit_text = limit.map_or_else(String::new, |l| format!(", and price lower than {l:.2} dollars"));
    let (text, price_limit) = (format!("{asked}{limit_text}"), limit.unwrap_or(NO_LIMIT));
    Goal { product: id.product, text, attributes: attributes.to_vec(), options, price_limit }
}

/// What a goal asks for, but for its price limit: in words, and as attributes and options.
pub(super) fn asked(product: &Product, variant: u32, kind: GoalKind) -> (String, &[Box<str>], GoalOptions) {
    match (kind, &product.wish) {
        (GoalKind::Synthetic, Some(wish)) => {
            let pairs = chosen(product, variant);
            let named: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let with = if named.is_empty() { String::new() } else { format!(" with {}", named.join(", and ")) };
            (format!("{}{with}", wish.text), &wish.attributes, GoalOptions::Pairs(pairs))
        }
        _ => {
            let wish = &product.human_wishes[variant as usize];
            (wish.text.trim_matches('.').to_owned(), &wish.attributes, GoalOptions::Values(wish.options.clone()))
        }
    }
}

/// The options of one combination, by name in alphabetical order; the last name's values change fastest.
pub(super) fn chosen(product: &Product, combination: u32) -> Vec<(Box<str>, Box<str>)> {
    let mut options: Vec<_> = product.options.iter().collect();
    options.sort_by(|a, b| a.name.cmp(&b.name));
    let mut rest = combination as usize;
    let mut pairs: Vec<(Box<str>, Box<str>)> = options
        .iter()
        .rev()
        .map(|o| {
            let value = &o.values[rest % o.values.len()];
            rest /= o.values.len();
            (o.name.clone(), value.clone())
        })
        .collect();
    pairs.reverse();
    pairs
}

/// How likely the original is to send a random buyer out for each goal, in proportion: goals with rare attributes more often.
pub(super) fn weights(catalogue: &Catalogue, ids: &[GoalId], kind: GoalKind) -> Vec<f64> {
    if kind == GoalKind::Human {
        return vec![1.0; ids.len()];
    }
    let attributes = |id: &GoalId| catalogue.product(id.product).wish.as_ref().map_or(&[][..], |w| &w.attributes);
    let mut counts: HashMap<&str, f64> = HashMap::new();
    for attribute in ids.iter().flat_map(attributes) {
        *counts.entry(attribute).or_default() += 1.0;
    }
    let weight = |id: &GoalId| {
        let wanted = attributes(id);
        wanted.iter().map(|a| 1.0 / counts[&**a]).sum::<f64>() / wanted.len().max(1) as f64
    };
    ids.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;
    use crate::webshop::{
        catalogue::{Choice, HumanWish, Price, Wish},
        generator::generate,
    };

    fn shirt() -> Product {
        let mut shirt = generate(Seed::new(0), 1).product(0).clone();
        let choice =
            |name: &str, values: [&str; 2]| Choice { name: name.into(), values: values.map(Into::into).to_vec() };
        shirt.options = vec![choice("size", ["s", "m"]), choice("color", ["red", "blue"])];
        shirt.wish = Some(Wish { text: "Find me a shirt".into(), attributes: vec!["soft".into()] });
        shirt.price = Price { low: 12.0, high: None };
        shirt.human_wishes = vec![
            HumanWish { text: "i want it.".into(), attributes: vec![], options: vec![] },
            HumanWish { text: "i want a shirt.".into(), attributes: vec!["soft".into()], options: vec!["red".into()] },
        ];
        shirt
    }

    #[test]
    fn synthetic_goals_go_through_all_combinations() {
        let catalogue = Catalogue::new(vec![shirt()]).unwrap();
        let kind = GoalKind::Synthetic;
        let ids = goal_ids(&catalogue, kind).unwrap();
        let draws = Draws::new(&catalogue, &ids, kind, 0);
        let texts: Vec<String> =
            ids.iter().enumerate().map(|(i, id)| goal(&catalogue, *id, kind, &draws, i).text).collect();
        let limit = draws.limit(0).unwrap();
        assert!((30.0..=50.0).contains(&limit), "the larger of two of 20, 30, 40 and 50");
        assert_eq!(texts.len(), 4);
        let tail = format!(", and price lower than {limit:.2} dollars");
        assert_eq!(texts[0], format!("Find me a shirt with color: red, and size: s{tail}"));
        assert_eq!(texts[1], format!("Find me a shirt with color: red, and size: m{tail}"));
        assert_eq!(texts[2], format!("Find me a shirt with color: blue, and size: s{tail}"));
    }

    #[test]
    fn people_ask_for_values_and_wishes_without_attributes_do_not_count() {
        let catalogue = Catalogue::new(vec![shirt()]).unwrap();
        let ids = goal_ids(&catalogue, GoalKind::Human).unwrap();
        assert_eq!(ids, [GoalId { product: 0, variant: 1 }]);
        let draws = Draws::new(&catalogue, &ids, GoalKind::Human, 3);
        let goal = goal(&catalogue, ids[0], GoalKind::Human, &draws, 0);
        assert!(goal.text.starts_with("i want a shirt, and price lower than "), "{}", goal.text);
        assert_eq!(goal.options, GoalOptions::Values(vec!["red".into()]));
        assert_eq!(weights(&catalogue, &ids, GoalKind::Human), [1.0]);
    }

    #[test]
    fn dear_things_have_no_limit() {
        let mut random = PythonRandom::new(0);
        assert_eq!(draw_limit(985.0, &mut random), 0);
        assert_eq!(draw_limit(975.0, &mut random), 99);
        let dear = Product { price: Price { low: 5000.0, high: None }, ..shirt() };
        let catalogue = Catalogue::new(vec![dear]).unwrap();
        let ids = goal_ids(&catalogue, GoalKind::Synthetic).unwrap();
        let draws = Draws::new(&catalogue, &ids, GoalKind::Synthetic, 0);
        let goal = goal(&catalogue, ids[0], GoalKind::Synthetic, &draws, 0);
        assert_eq!((goal.price_limit, goal.text.contains("price")), (NO_LIMIT, false));
    }

    #[test]
    fn absurd_combinations_are_refused() {
        let mut product = shirt();
        let values: Vec<Box<str>> = (0..200).map(|i| i.to_string().into()).collect();
        product.options = ["a", "b", "c"].map(|n| Choice { name: n.into(), values: values.clone() }).to_vec();
        let e = goal_ids(&Catalogue::new(vec![product]).unwrap(), GoalKind::Synthetic).unwrap_err();
        assert!(e.to_string().contains("customization_options"), "{e}");
    }
}
