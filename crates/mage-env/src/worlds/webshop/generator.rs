//! What is on sale when there are no official files?
//!
//! A catalogue made up from a seed: five departments, fifty kinds of thing, with titles, texts, options, attributes and
//! wishes of the same shape as the official ones, in wording of our own. Every product is drawn from its own stream, so a
//! larger catalogue begins with the smaller one.

use super::{
    catalogue::{Catalogue, Choice, Price, Product, Wish},
    catalogue_tables::{DEPARTMENTS, Department, Kind, MAKERS, SERIES, Values},
};
use crate::{Rng, Seed};
use rand::{RngExt, seq::IndexedRandom};

/// How many products there are unless somebody says otherwise.
pub const DEFAULT_PRODUCTS: usize = 1000;

/// Makes a catalogue of `count` products.
pub fn generate(seed: Seed, count: usize) -> Catalogue {
    let stream = seed.child("webshop catalogue");
    let products = (0..count).map(|i| product(i, &mut stream.at(i as u64).rng())).collect();
    Catalogue::new(products).expect("ids are numbered")
}

fn product(number: usize, rng: &mut Rng) -> Product {
    let department = &DEPARTMENTS[number % DEPARTMENTS.len()];
    let kind = one(department.kinds, rng);
    let count = rng.random_range(3..=5);
    let attributes = some(department.attributes, count, rng);
    let (maker, series) = (one(&MAKERS, rng), one(&SERIES, rng));
    let purpose = one(department.uses, rng);
    let shown = rng.random_range(1..=2);
    let title = format!(
        "{maker} {series} {}, {}, for {}",
        kind.one,
        attributes[..shown].iter().map(|a| capitalised(a)).collect::<Vec<_>>().join(" and "),
        capitalised(purpose),
    );
    let wish = rng.random_bool(0.4).then(|| {
        let count = rng.random_range(1..=3);
        wish(kind, &some(&attributes, count, rng))
    });
    Product {
        asin: id(number),
        title: title.into(),
        description: description(maker, series, kind, &attributes, purpose, rng).into(),
        bullets: bullets(kind, &attributes, purpose).into_iter().map(Into::into).collect(),
        price: price(kind, rng),
        options: kind.choices.iter().map(|values| choice(values, rng)).collect(),
        attributes: attributes.iter().map(|a| (*a).into()).collect(),
        category: department.category.into(),
        query: kind.many.into(),
        shelf: shelf(department, kind).into(),
        wish,
        human_wishes: Vec::new(),
    }
}

/// Nine digits of base 36 after a G.
fn id(number: usize) -> Box<str> {
    // A factor that shares none with 36 scatters the numbers of a block and gives none twice.
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

fn shelf(department: &Department, kind: &Kind) -> String {
    format!("{} › {}", department.shelf, kind.shelf)
}

fn description(maker: &str, series: &str, kind: &Kind, attributes: &[&str], purpose: &str, rng: &mut Rng) -> String {
    let opening = match rng.random_range(0..3) {
        0 => format!("The {series} line by {maker} brings you {} that are {}.", kind.many, attributes[0]),
        1 => format!("Made by {maker} for {purpose}: a {} you can rely on.", kind.one.to_lowercase()),
        _ => format!("{maker} has made {} for years, and it shows.", kind.many),
    };
    let middle = format!("Among its strengths: {}.", attributes.join(", "));
    let closing = match rng.random_range(0..3) {
        0 => "Questions are answered within a day.",
        1 => "If it does not suit you, send it back within thirty days.",
        _ => "Please allow for small differences between pictures and goods.",
    };
    format!("{opening} {middle} {closing}")
}

fn bullets(kind: &Kind, attributes: &[&str], purpose: &str) -> Vec<String> {
    let first = format!("{}: a {} chosen by people who care.", capitalised(attributes[0]), kind.one.to_lowercase());
    let rest = attributes[1..].iter().map(|a| format!("{}, as it should be.", capitalised(a)));
    std::iter::once(first).chain(rest).chain([format!("Suits {purpose}.")]).collect()
}

fn wish(kind: &Kind, attributes: &[&str]) -> Wish {
    Wish {
        text: format!("Look for {} described as {}", kind.many, attributes.join(", ")).into(),
        attributes: attributes.iter().map(|a| (*a).into()).collect(),
    }
}

fn price(kind: &Kind, rng: &mut Rng) -> Price {
    let (low, high) = kind.price;
    let cents = *one(&[0, 49, 95, 99], rng);
    let amount = 100 * rng.random_range(low..high) + cents;
    let wider = rng.random_bool(0.2).then(|| amount + 100 * rng.random_range(2..=10 + low / 2));
    // Counted in cents, so that no price has more digits than one pays.
    let dollars = |cents: u32| f64::from(cents) / 100.0;
    Price { low: dollars(amount), high: wider.map(dollars) }
}

/// Some of the values, in the list's order.
fn choice(values: &Values, rng: &mut Rng) -> Choice {
    let count = rng.random_range(2..=values.all.len().min(6));
    let mut chosen = some(values.all, count, rng);
    chosen.sort_by_key(|v| values.all.iter().position(|x| x == v));
    Choice { name: values.name.into(), values: chosen.into_iter().map(Into::into).collect() }
}

fn one<'a, T>(items: &'a [T], rng: &mut Rng) -> &'a T {
    items.choose(rng).expect("the lists are not empty")
}

/// `count` different items, in drawn order.
fn some(items: &[&'static str], count: usize, rng: &mut Rng) -> Vec<&'static str> {
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
    fn a_seed_gives_one_catalogue_and_a_larger_one_begins_with_it() {
        let (small, large) = (generate(Seed::new(3), 50), generate(Seed::new(3), 120));
        assert_eq!(small.products(), &large.products()[..50]);
        assert_ne!(small.products(), generate(Seed::new(4), 50).products());
    }

    #[test]
    fn there_is_something_of_everything() {
        let catalogue = generate(Seed::new(0), DEFAULT_PRODUCTS);
        let products = catalogue.products();
        let count = |f: &dyn Fn(&Product) -> bool| products.iter().filter(|p| f(p)).count();
        assert_eq!(products.iter().map(|p| &p.category).collect::<HashSet<_>>().len(), 5);
        assert_eq!(products.iter().map(|p| &p.query).collect::<HashSet<_>>().len(), 50);
        assert!((300..500).contains(&count(&|p| p.wish.is_some())));
        assert!((100..300).contains(&count(&|p| p.price.high.is_some())));
        let plain = |x: f64| x.to_string().split_once('.').is_none_or(|(_, cents)| cents.len() <= 2);
        assert!(products.iter().all(|p| plain(p.price.low) && p.price.high.is_none_or(plain)));
        assert_eq!(count(&|p| p.options.is_empty() || p.options.iter().any(|o| o.values.len() < 2)), 0);
        assert!(products.iter().all(|p| p.asin.len() == 10 && p.price.high.is_none_or(|h| h > p.price.low)));
    }

    #[test]
    fn wishes_ask_for_what_the_product_has() {
        for product in generate(Seed::new(9), 300).products() {
            for attribute in product.wish.iter().flat_map(|w| &w.attributes) {
                assert!(product.attributes.contains(attribute));
            }
        }
    }
}
