//! What is on sale?

use super::python_format;
use std::collections::HashMap;

/// One product, as the shop keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// Its id, at most ten characters.
    pub asin: Box<str>,
    /// Its name, the page's headline.
    pub title: Box<str>,
    /// A text about it; may be empty.
    pub description: Box<str>,
    /// The lines of its features page.
    pub bullets: Vec<Box<str>>,
    /// What it costs: one price, or the two ends of a range.
    pub price: Price,
    /// What can be chosen, in the page's order: a name and its values, all lower case.
    pub options: Vec<Choice>,
    /// What it is like, in a few words each; hidden from buyers, and what purchases are judged by.
    pub attributes: Vec<Box<str>>,
    /// The department.
    pub category: Box<str>,
    /// The search that led to it when the catalogue was made; products with the same one are of one kind.
    pub query: Box<str>,
    /// Its shelf: departments within departments, separated by ›.
    pub shelf: Box<str>,
    /// A synthetic wish for it, if there is one.
    pub wish: Option<Wish>,
    /// Wishes people wrote for it.
    pub human_wishes: Vec<HumanWish>,
}

/// Something to choose about a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What is chosen: "color", "size".
    pub name: Box<str>,
    /// The values.
    pub values: Vec<Box<str>>,
}

/// A wish made from a product's attributes; options and a price limit are added when goals are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// In words.
    pub text: Box<str>,
    /// The attributes it asks for.
    pub attributes: Vec<Box<str>>,
}

/// A wish as somebody wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HumanWish {
    /// In words.
    pub text: Box<str>,
    /// The attributes it asks for.
    pub attributes: Vec<Box<str>>,
    /// The option values it asks for.
    pub options: Vec<Box<str>>,
}

/// What a product costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// The price, or the lower end.
    pub low: f64,
    /// The upper end of a range.
    pub high: Option<f64>,
}

impl Price {
    /// As the page shows it.
    pub fn tag(&self) -> String {
        match self.high {
            None => format!("${}", python_format::float(self.low)),
            Some(high) => format!("${} to ${}", python_format::float(self.low), python_format::float(high)),
        }
    }
}

impl Product {
    /// What the search engine reads of it: title, description, the first bullet and all options.
    pub(super) fn searchable(&self) -> String {
        let options: Vec<String> =
            self.options.iter().map(|o| format!("{}: {}", o.name, o.values.join(", "))).collect();
        let first_bullet = self.bullets.first().map_or("", |b| b);
        [&*self.title, &*self.description, first_bullet, &*options.join(", and ")].join(" ").to_lowercase()
    }
}

/// What a list of products had that a user should know of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Products without a price: they cost $100, as in the original.
    pub without_price: u64,
    /// Entries left out because their id had occurred.
    pub duplicates: u64,
    /// Entries left out because their id is "nan" or has more than ten characters, as in the original.
    pub unusable_ids: u64,
}

impl Findings {
    /// A sentence on each that occurred.
    pub fn sentences(&self) -> Vec<String> {
        let all = [
            (self.without_price, "without a price: each costs $100, as in the original"),
            (self.duplicates, "left out because of an id that had occurred"),
            (self.unusable_ids, "left out because of an id that is \"nan\" or has more than ten characters"),
        ];
        let said = |(count, what): &(u64, &str)| {
            format!("{count} {} of the product list {what}", if *count == 1 { "entry" } else { "entries" })
        };
        all.iter().filter(|(count, _)| *count > 0).map(said).collect()
    }
}

/// All products, by number and by id.
#[derive(Clone, Debug)]
pub struct Catalogue {
    products: Vec<Product>,
    by_asin: HashMap<Box<str>, u32>,
    findings: Findings,
}

impl Catalogue {
    /// A catalogue of products whose ids differ; fails with the numbers of two that share one.
    pub fn new(products: Vec<Product>) -> Result<Self, (usize, usize)> {
        let mut by_asin = HashMap::with_capacity(products.len());
        for (i, product) in products.iter().enumerate() {
            // Clicks arrive in lower case.
            if let Some(earlier) = by_asin.insert(product.asin.to_lowercase().into_boxed_str(), i as u32) {
                return Err((earlier as usize, i));
            }
        }
        Ok(Catalogue { products, by_asin, findings: Findings::default() })
    }

    /// The same with what was found when its list was read.
    #[must_use]
    pub fn with_findings(self, findings: Findings) -> Self {
        Catalogue { findings, ..self }
    }

    /// What its list had that a user should know of.
    pub fn findings(&self) -> Findings {
        self.findings
    }

    /// The products, in their own order.
    pub fn products(&self) -> &[Product] {
        &self.products
    }

    /// One product.
    pub fn product(&self, number: u32) -> &Product {
        &self.products[number as usize]
    }

    /// The number of the product with this id, in any case.
    pub fn find(&self, asin: &str) -> Option<u32> {
        self.by_asin.get(asin.to_lowercase().as_str()).copied()
    }
}
