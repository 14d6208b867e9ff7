//! Goals.
//!
//! A goal is a target product, requested attributes and options, and a price limit, stated in one sentence. Prices of
//! products with a price range and all limits are sampled with Python's RNG in the original's order, so that a seed yields
//! the original's goals in the original's order.

use super::catalogue::{Catalogue, Product};
use crate::{Error, Result, mt19937::PythonRandom};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Source of the instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalKind {
    /// Synthetic instructions: one goal per combination of a product's options.
    #[default]
    Synthetic,
    /// Instructions written by people.
    Human,
}

/// A shopping goal.
#[derive(Clone, Debug, PartialEq)]
pub struct ShoppingGoal {
    /// Index of the target product.
    pub product: u32,
    /// The instruction.
    pub text: String,
    /// Requested attributes.
    pub attributes: Vec<Box<str>>,
    /// Requested options.
    pub options: GoalOptions,
    /// Price limit.
    pub price_limit: f64,
}

/// Requested options. Synthetic goals state name and value, human goals only the value; scoring differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GoalOptions {
    /// Name and value.
    Pairs(Vec<(Box<str>, Box<str>)>),
    /// Values alone.
    Values(Vec<Box<str>>),
}

impl GoalOptions {
    /// Number of options.
    pub fn len(&self) -> usize {
        match self {
            GoalOptions::Pairs(pairs) => pairs.len(),
            GoalOptions::Values(values) => values.len(),
        }
    }

    /// Whether no option is requested.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A goal without sampled values: a product, and the index of its instruction or option combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoalId {
    pub(super) product: u32,
    pub(super) variant: u32,
}

/// Maximum number of option combinations of a product.
const MAX_COMBINATIONS: usize = 1_000_000;

/// All goals of a catalogue, in the catalogue's order.
pub(super) fn goal_ids(catalogue: &Catalogue, kind: GoalKind) -> Result<Vec<GoalId>> {
    let mut ids = Vec::new();
    for (number, product) in catalogue.products().iter().enumerate() {
        let variants = match kind {
            GoalKind::Human => product.human_instructions.len(),
            GoalKind::Synthetic if product.instruction.is_none() => 0,
            GoalKind::Synthetic => combinations(product)?,
        };
        let wanted =
            |v: &u32| kind == GoalKind::Synthetic || !product.human_instructions[*v as usize].attributes.is_empty();
        let of_product = (0..variants as u32).filter(wanted);
        ids.extend(of_product.map(|variant| GoalId { product: number as u32, variant }));
    }
    Ok(ids)
}

fn combinations(product: &Product) -> Result<usize> {
    let total = product.options.iter().try_fold(1_usize, |n, o| n.checked_mul(o.values.len()));
    total.filter(|n| *n <= MAX_COMBINATIONS).ok_or_else(|| {
        Error::invalid(
            format!("product {}", product.asin),
            format!("field `customization_options`: more than {MAX_COMBINATIONS} combinations of options"),
        )
    })
}

/// Prices and price limits sampled with one seed of the original.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeededPrices {
    /// By product.
    prices: Vec<f64>,
    /// By goal, in tens; 0 for no limit.
    limits: Vec<u8>,
}

/// Price limit of goals without one.
pub(super) const NO_LIMIT: f64 = 1_000_000.0;

impl SeededPrices {
    pub(super) fn new(catalogue: &Catalogue, ids: &[GoalId], kind: GoalKind, seed: u32) -> Self {
        let mut random = PythonRandom::new(seed);
        let price = |p: &Product| p.price.high.map_or(p.price.low, |high| random.uniform(p.price.low, high));
        let prices: Vec<f64> = catalogue.products().iter().map(price).collect();
        let mut limit = |product: u32| sample_price_limit(prices[product as usize], &mut random);
        let limits = match kind {
            GoalKind::Human => ids.iter().map(|id| limit(id.product)).collect(),
            GoalKind::Synthetic => {
                // One sample for all goals of a product, even if an option without values leaves it without goals.
                let limit_of =
                    |(number, p): (usize, &Product)| if p.instruction.is_some() { limit(number as u32) } else { 0 };
                let of_product: Vec<u8> = catalogue.products().iter().enumerate().map(limit_of).collect();
                ids.iter().map(|id| of_product[id.product as usize]).collect()
            }
        };
        SeededPrices { prices, limits }
    }

    /// Price of a product.
    pub(super) fn price(&self, product: u32) -> f64 {
        self.prices[product as usize]
    }

    fn limit(&self, goal: usize) -> Option<f64> {
        Some(f64::from(self.limits[goal]) * 10.0).filter(|l| *l > 0.0)
    }
}

/// The larger of two samples from the next four multiples of 10 above the price, in tens; 0 above 980.
fn sample_price_limit(price: f64, random: &mut PythonRandom) -> u8 {
    let above: Vec<u8> = (1..100).filter(|tens| f64::from(*tens) * 10.0 > price).take(4).collect();
    if above.len() < 2 { 0 } else { random.sample(&above, 2).into_iter().max().unwrap_or(0) }
}

/// The order of `count` goals for a seed of the original.
pub(super) fn shuffled(count: usize, seed: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    PythonRandom::new(seed).shuffle(&mut order);
    order
}

/// Builds a goal; `number` is its index among all goals.
pub(super) fn build_goal(
    catalogue: &Catalogue,
    id: GoalId,
    kind: GoalKind,
    prices: &SeededPrices,
    number: usize,
) -> ShoppingGoal {
    let product = catalogue.product(id.product);
    let limit = prices.limit(number);
    let (text, attributes, options) = goal_requirements(product, id.variant, kind);
    let limit_text = limit.map_or_else(String::new, |l| format!(", and price lower than {l:.2} dollars"));
    let (text, price_limit) = (format!("{text}{limit_text}"), limit.unwrap_or(NO_LIMIT));
    ShoppingGoal { product: id.product, text, attributes: attributes.to_vec(), options, price_limit }
}

/// Requirements of a goal except for the price limit: text, attributes and options.
pub(super) fn goal_requirements(product: &Product, variant: u32, kind: GoalKind) -> (String, &[Box<str>], GoalOptions) {
    match (kind, &product.instruction) {
        (GoalKind::Synthetic, Some(instruction)) => {
            let pairs = option_combination(product, variant);
            let named: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let with = if named.is_empty() { String::new() } else { format!(" with {}", named.join(", and ")) };
            (format!("{}{with}", instruction.text), &instruction.attributes, GoalOptions::Pairs(pairs))
        }
        _ => {
            let instruction = &product.human_instructions[variant as usize];
            (
                instruction.text.trim_matches('.').to_owned(),
                &instruction.attributes,
                GoalOptions::Values(instruction.options.clone()),
            )
        }
    }
}

/// The options of a combination, sorted by name; the values of the last name change fastest.
pub(super) fn option_combination(product: &Product, combination: u32) -> Vec<(Box<str>, Box<str>)> {
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

/// Sampling weights of the goals in the original, which prefers goals with rare attributes.
pub(super) fn weights(catalogue: &Catalogue, ids: &[GoalId], kind: GoalKind) -> Vec<f64> {
    if kind == GoalKind::Human {
        return vec![1.0; ids.len()];
    }
    let attributes =
        |id: &GoalId| catalogue.product(id.product).instruction.as_ref().map_or(&[][..], |w| &w.attributes);
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
        catalogue::{HumanInstruction, Instruction, Price, ProductOption},
        generator::generate,
    };

    fn shirt() -> Product {
        let mut shirt = generate(Seed::new(0), 1).product(0).clone();
        let choice = |name: &str, values: [&str; 2]| ProductOption {
            name: name.into(),
            values: values.map(Into::into).to_vec(),
        };
        shirt.options = vec![choice("size", ["s", "m"]), choice("color", ["red", "blue"])];
        shirt.instruction = Some(Instruction { text: "Find me a shirt".into(), attributes: vec!["soft".into()] });
        shirt.price = Price { low: 12.0, high: None };
        shirt.human_instructions = vec![
            HumanInstruction { text: "i want it.".into(), attributes: vec![], options: vec![] },
            HumanInstruction {
                text: "i want a shirt.".into(),
                attributes: vec!["soft".into()],
                options: vec!["red".into()],
            },
        ];
        shirt
    }

    #[test]
    fn synthetic_goals_cover_all_option_combinations() {
        let catalogue = Catalogue::new(vec![shirt()]).unwrap();
        let kind = GoalKind::Synthetic;
        let ids = goal_ids(&catalogue, kind).unwrap();
        let prices = SeededPrices::new(&catalogue, &ids, kind, 0);
        let texts: Vec<String> =
            ids.iter().enumerate().map(|(i, id)| build_goal(&catalogue, *id, kind, &prices, i).text).collect();
        let limit = prices.limit(0).unwrap();
        assert!((30.0..=50.0).contains(&limit), "the larger of two of 20, 30, 40 and 50");
        assert_eq!(texts.len(), 4);
        let tail = format!(", and price lower than {limit:.2} dollars");
        assert_eq!(texts[0], format!("Find me a shirt with color: red, and size: s{tail}"));
        assert_eq!(texts[1], format!("Find me a shirt with color: red, and size: m{tail}"));
        assert_eq!(texts[2], format!("Find me a shirt with color: blue, and size: s{tail}"));
    }

    #[test]
    fn human_goals_request_values_and_need_attributes() {
        let catalogue = Catalogue::new(vec![shirt()]).unwrap();
        let ids = goal_ids(&catalogue, GoalKind::Human).unwrap();
        assert_eq!(ids, [GoalId { product: 0, variant: 1 }]);
        let prices = SeededPrices::new(&catalogue, &ids, GoalKind::Human, 3);
        let goal = build_goal(&catalogue, ids[0], GoalKind::Human, &prices, 0);
        assert!(goal.text.starts_with("i want a shirt, and price lower than "), "{}", goal.text);
        assert_eq!(goal.options, GoalOptions::Values(vec!["red".into()]));
        assert_eq!(weights(&catalogue, &ids, GoalKind::Human), [1.0]);
    }

    #[test]
    fn expensive_products_have_no_limit() {
        let mut random = PythonRandom::new(0);
        assert_eq!(sample_price_limit(985.0, &mut random), 0);
        assert_eq!(sample_price_limit(975.0, &mut random), 99);
        let expensive = Product { price: Price { low: 5000.0, high: None }, ..shirt() };
        let catalogue = Catalogue::new(vec![expensive]).unwrap();
        let ids = goal_ids(&catalogue, GoalKind::Synthetic).unwrap();
        let prices = SeededPrices::new(&catalogue, &ids, GoalKind::Synthetic, 0);
        let goal = build_goal(&catalogue, ids[0], GoalKind::Synthetic, &prices, 0);
        assert_eq!((goal.price_limit, goal.text.contains("price")), (NO_LIMIT, false));
    }

    #[test]
    fn too_many_combinations_are_rejected() {
        let mut product = shirt();
        let values: Vec<Box<str>> = (0..200).map(|i| i.to_string().into()).collect();
        product.options = ["a", "b", "c"].map(|n| ProductOption { name: n.into(), values: values.clone() }).to_vec();
        let e = goal_ids(&Catalogue::new(vec![product]).unwrap(), GoalKind::Synthetic).unwrap_err();
        assert!(e.to_string().contains("customization_options"), "{e}");
    }
}
