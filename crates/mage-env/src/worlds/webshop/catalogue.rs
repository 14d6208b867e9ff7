//! Products and the catalogue.

use super::python_format;
use std::collections::HashMap;

/// A product.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// Product id, at most ten characters.
    pub asin: Box<str>,
    /// Title of its page.
    pub title: Box<str>,
    /// Description; may be empty.
    pub description: Box<str>,
    /// Bullet points of its features page.
    pub bullets: Vec<Box<str>>,
    /// A price or a price range.
    pub price: Price,
    /// Options in page order; names and values are lower-case.
    pub options: Vec<ProductOption>,
    /// Attributes, a few words each. Hidden from agents and used for scoring.
    pub attributes: Vec<Box<str>>,
    /// Category (department).
    pub category: Box<str>,
    /// The search query that found it when the catalogue was scraped. Products with the same query are of one type.
    pub query: Box<str>,
    /// Category path, separated by ›.
    pub product_category: Box<str>,
    /// Synthetic instruction, if any.
    pub instruction: Option<Instruction>,
    /// Instructions written by people.
    pub human_instructions: Vec<HumanInstruction>,
}

/// A product option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductOption {
    /// Name, such as "color" or "size".
    pub name: Box<str>,
    /// The values.
    pub values: Vec<Box<str>>,
}

/// A synthetic instruction. Goals add options and a price limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Text.
    pub text: Box<str>,
    /// Requested attributes.
    pub attributes: Vec<Box<str>>,
}

/// An instruction written by a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HumanInstruction {
    /// Text.
    pub text: Box<str>,
    /// Requested attributes.
    pub attributes: Vec<Box<str>>,
    /// Requested option values.
    pub options: Vec<Box<str>>,
}

/// Price of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// The price, or the lower end.
    pub low: f64,
    /// The upper end of a range.
    pub high: Option<f64>,
}

impl Price {
    /// The price as shown on the page.
    pub fn tag(&self) -> String {
        match self.high {
            None => format!("${}", python_format::float(self.low)),
            Some(high) => format!("${} to ${}", python_format::float(self.low), python_format::float(high)),
        }
    }
}

impl Product {
    /// The indexed text: title, description, the first bullet point and all options.
    pub(super) fn search_text(&self) -> String {
        let options: Vec<String> =
            self.options.iter().map(|o| format!("{}: {}", o.name, o.values.join(", "))).collect();
        let first_bullet = self.bullets.first().map_or("", |b| b);
        [&*self.title, &*self.description, first_bullet, &*options.join(", and ")].join(" ").to_lowercase()
    }
}

/// Irregularities of a product list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogueWarnings {
    /// Products without a price, which cost $100, as in the original.
    pub without_price: u64,
    /// Entries skipped because of a duplicate id.
    pub duplicates: u64,
    /// Entries skipped because their id is "nan" or longer than ten characters, as in the original.
    pub unusable_ids: u64,
}

impl CatalogueWarnings {
    /// One message per kind of irregularity.
    pub fn messages(&self) -> Vec<String> {
        let all = [
            (self.without_price, "without a price: each costs $100, as in the original"),
            (self.duplicates, "skipped because of a duplicate id"),
            (self.unusable_ids, "skipped because of an id that is \"nan\" or longer than ten characters"),
        ];
        let message = |(count, problem): &(u64, &str)| {
            format!("{count} {} of the product list {problem}", if *count == 1 { "entry" } else { "entries" })
        };
        all.iter().filter(|(count, _)| *count > 0).map(message).collect()
    }
}

/// All products, by index and by id.
#[derive(Clone, Debug)]
pub struct Catalogue {
    products: Vec<Product>,
    by_asin: HashMap<Box<str>, u32>,
    warnings: CatalogueWarnings,
}

impl Catalogue {
    /// Creates a catalogue. If two products have the same id, returns their indices.
    pub fn new(products: Vec<Product>) -> Result<Self, (usize, usize)> {
        let mut by_asin = HashMap::with_capacity(products.len());
        for (i, product) in products.iter().enumerate() {
            // Arguments of clicks are lower-cased.
            if let Some(earlier) = by_asin.insert(product.asin.to_lowercase().into_boxed_str(), i as u32) {
                return Err((earlier as usize, i));
            }
        }
        Ok(Catalogue { products, by_asin, warnings: CatalogueWarnings::default() })
    }

    /// Attaches the irregularities found when the list was read.
    #[must_use]
    pub(crate) fn with_warnings(self, warnings: CatalogueWarnings) -> Self {
        Catalogue { warnings, ..self }
    }

    /// Irregularities of the list.
    pub fn warnings(&self) -> CatalogueWarnings {
        self.warnings
    }

    /// The products, in the order of the list.
    pub fn products(&self) -> &[Product] {
        &self.products
    }

    /// The product with this index.
    pub fn product(&self, number: u32) -> &Product {
        &self.products[number as usize]
    }

    /// The index of the product with this id, ignoring case.
    pub fn find(&self, asin: &str) -> Option<u32> {
        self.by_asin.get(asin.to_lowercase().as_str()).copied()
    }
}
