//! Catalogue generator.
//!
//! A generated catalogue has five departments and fifty product types, with titles, texts, options, attributes and
//! instructions of the same form as the official ones, in our own wording. Every product has its own RNG stream, so a
//! larger catalogue begins with the smaller one.

use super::{
    catalogue::{Catalogue, Instruction, Price, Product, ProductOption},
    catalogue_tables::{BRANDS, DEPARTMENTS, Department, OptionTemplate, ProductType, SERIES},
};
use crate::{Rng, Seed};
use rand::{RngExt, seq::IndexedRandom};

/// Default number of products.
pub const DEFAULT_PRODUCTS: usize = 1000;

/// Generates a catalogue of `count` products.
pub fn generate(seed: Seed, count: usize) -> Catalogue {
    let stream = seed.child("webshop catalogue");
    let products = (0..count).map(|i| product(i, &mut stream.at(i as u64).rng())).collect();
    Catalogue::new(products).expect("ids are distinct")
}

fn product(number: usize, rng: &mut Rng) -> Product {
    let department = &DEPARTMENTS[number % DEPARTMENTS.len()];
    let product_type = pick(department.product_types, rng);
    let count = rng.random_range(3..=5);
    let attributes = pick_distinct(department.attributes, count, rng);
    let (brand, series) = (pick(&BRANDS, rng), pick(&SERIES, rng));
    let purpose = pick(department.purposes, rng);
    let shown = rng.random_range(1..=2);
    let title = format!(
        "{brand} {series} {}, {}, for {}",
        product_type.singular,
        attributes[..shown].iter().map(|a| capitalised(a)).collect::<Vec<_>>().join(" and "),
        capitalised(purpose),
    );
    let instruction = rng.random_bool(0.4).then(|| {
        let count = rng.random_range(1..=3);
        instruction(product_type, &pick_distinct(&attributes, count, rng))
    });
    Product {
        asin: id(number),
        title: title.into(),
        description: description(brand, series, product_type, &attributes, purpose, rng).into(),
        bullets: bullets(product_type, &attributes, purpose).into_iter().map(Into::into).collect(),
        price: price(product_type, rng),
        options: product_type.options.iter().map(|template| option(template, rng)).collect(),
        attributes: attributes.iter().map(|a| (*a).into()).collect(),
        category: department.category.into(),
        query: product_type.plural.into(),
        product_category: category_path(department, product_type).into(),
        instruction,
        human_instructions: Vec::new(),
    }
}

/// Product id: `G` and nine base-36 digits.
fn id(number: usize) -> Box<str> {
    // A factor coprime to 36 permutes the indices of a block.
    const SPAN: u64 = 36_u64.pow(5);
    let (block, within) = (number as u64 / SPAN, number as u64 % SPAN);
    let mut rest = block * SPAN + within * 48_271 % SPAN;
    let mut digits = [b'0'; 9];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[(rest % 36) as usize];
        rest /= 36;
    }
    format!("G{}", String::from_utf8_lossy(&digits)).into()
}

fn category_path(department: &Department, product_type: &ProductType) -> String {
    format!("{} › {}", department.category_path, product_type.category_path)
}

fn description(
    brand: &str,
    series: &str,
    product_type: &ProductType,
    attributes: &[&str],
    purpose: &str,
    rng: &mut Rng,
) -> String {
    let opening = match rng.random_range(0..3) {
        0 => format!("The {series} line by {brand} brings you {} that are {}.", product_type.plural, attributes[0]),
        1 => format!("Made by {brand} for {purpose}: a {} you can rely on.", product_type.singular.to_lowercase()),
        _ => format!("{brand} has made {} for years, and it shows.", product_type.plural),
    };
    let middle = format!("Among its strengths: {}.", attributes.join(", "));
    let closing = match rng.random_range(0..3) {
        0 => "Questions are answered within a day.",
        1 => "If it does not suit you, send it back within thirty days.",
        _ => "Please allow for small differences between pictures and goods.",
    };
    format!("{opening} {middle} {closing}")
}

fn bullets(product_type: &ProductType, attributes: &[&str], purpose: &str) -> Vec<String> {
    let first = format!(
        "{}: a {} chosen by people who care.",
        capitalised(attributes[0]),
        product_type.singular.to_lowercase()
    );
    let rest = attributes[1..].iter().map(|a| format!("{}, as it should be.", capitalised(a)));
    std::iter::once(first).chain(rest).chain([format!("Suits {purpose}.")]).collect()
}

fn instruction(product_type: &ProductType, attributes: &[&str]) -> Instruction {
    Instruction {
        text: format!("Look for {} described as {}", product_type.plural, attributes.join(", ")).into(),
        attributes: attributes.iter().map(|a| (*a).into()).collect(),
    }
}

fn price(product_type: &ProductType, rng: &mut Rng) -> Price {
    let (low, high) = product_type.price;
    let cents = *pick(&[0, 49, 95, 99], rng);
    let amount = 100 * rng.random_range(low..high) + cents;
    let wider = rng.random_bool(0.2).then(|| amount + 100 * rng.random_range(2..=10 + low / 2));
    // Computed in cents, so that prices have at most two decimals.
    let dollars = |cents: u32| f64::from(cents) / 100.0;
    Price { low: dollars(amount), high: wider.map(dollars) }
}

/// An option with some of the template's values, in template order.
fn option(template: &OptionTemplate, rng: &mut Rng) -> ProductOption {
    let count = rng.random_range(2..=template.values.len().min(6));
    let mut chosen = pick_distinct(template.values, count, rng);
    chosen.sort_by_key(|v| template.values.iter().position(|x| x == v));
    ProductOption { name: template.name.into(), values: chosen.into_iter().map(Into::into).collect() }
}

fn pick<'a, T>(items: &'a [T], rng: &mut Rng) -> &'a T {
    items.choose(rng).expect("the lists are not empty")
}

/// `count` distinct items, in sampling order.
fn pick_distinct(items: &[&'static str], count: usize, rng: &mut Rng) -> Vec<&'static str> {
    let mut pool = items.to_vec();
    (0..count.min(pool.len())).map(|_| pool.swap_remove(rng.random_range(0..pool.len()))).collect()
}

fn capitalised(text: &str) -> String {
    let word = |w: &str| {
        let mut letters = w.chars();
        letters.next().map_or_else(String::new, |c| c.to_uppercase().chain(letters).collect())
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_larger_catalogue_of_a_seed_begins_with_the_smaller_one() {
        let (small, large) = (generate(Seed::new(3), 50), generate(Seed::new(3), 120));
        assert_eq!(small.products(), &large.products()[..50]);
        assert_ne!(small.products(), generate(Seed::new(4), 50).products());
    }

    #[test]
    fn catalogues_cover_all_categories_and_features() {
        let catalogue = generate(Seed::new(0), DEFAULT_PRODUCTS);
        let products = catalogue.products();
        let count = |f: &dyn Fn(&Product) -> bool| products.iter().filter(|p| f(p)).count();
        assert_eq!(products.iter().map(|p| &p.category).collect::<HashSet<_>>().len(), 5);
        assert_eq!(products.iter().map(|p| &p.query).collect::<HashSet<_>>().len(), 50);
        assert!((300..500).contains(&count(&|p| p.instruction.is_some())));
        assert!((100..300).contains(&count(&|p| p.price.high.is_some())));
        let plain = |x: f64| x.to_string().split_once('.').is_none_or(|(_, cents)| cents.len() <= 2);
        assert!(products.iter().all(|p| plain(p.price.low) && p.price.high.is_none_or(plain)));
        assert_eq!(count(&|p| p.options.is_empty() || p.options.iter().any(|o| o.values.len() < 2)), 0);
        assert!(products.iter().all(|p| p.asin.len() == 10 && p.price.high.is_none_or(|h| h > p.price.low)));
    }

    #[test]
    fn instructions_request_attributes_of_the_product() {
        for product in generate(Seed::new(9), 300).products() {
            for attribute in product.instruction.iter().flat_map(|w| &w.attributes) {
                assert!(product.attributes.contains(attribute));
            }
        }
    }
}
