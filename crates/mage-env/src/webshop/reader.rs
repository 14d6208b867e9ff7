//! What do the official files say?
//!
//! Three JSON files in one folder: `items_shuffle*.json`, the products as a list; `items_ins_v2*.json`, attributes and
//! synthetic wishes by id; and optionally `items_human_ins*.json`, wishes people wrote. Each comes whole or cut to the
//! first 1,000 products. Products are read one at a time, so that the list of 1.18 million needs no second copy in memory.

use super::catalogue::{Catalogue, Choice, HumanWish, Price, Product, Wish};
use crate::{Error, Result};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

/// How to read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadOptions {
    /// Only the first so many entries of the list.
    pub limit: Option<usize>,
    /// Leave out entries whose id has occurred, as the original does without a word, instead of refusing the file.
    pub skip_duplicates: bool,
}

/// The official files of one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfficialFiles {
    /// The products.
    pub products: PathBuf,
    /// Attributes and synthetic wishes.
    pub attributes: PathBuf,
    /// Wishes people wrote, if there are any.
    pub human: Option<PathBuf>,
}

/// File names of each sort, in the order they are looked for.
const PRODUCTS: [&str; 2] = ["items_shuffle.json", "items_shuffle_1000.json"];
const ATTRIBUTES: [&str; 2] = ["items_ins_v2.json", "items_ins_v2_1000.json"];
const HUMAN: [&str; 2] = ["items_human_ins.json", "items_human_ins_1000subset.json"];

impl OfficialFiles {
    /// Finds them in a folder.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let find = |names: [&str; 2]| names.iter().map(|n| folder.join(n)).find(|p| p.is_file());
        let need = |names: [&str; 2]| {
            find(names).ok_or_else(|| {
                Error::invalid(
                    folder.display().to_string(),
                    format!("there is no {} and no {} in this folder of WebShop data", names[0], names[1]),
                )
            })
        };
        Ok(OfficialFiles { products: need(PRODUCTS)?, attributes: need(ATTRIBUTES)?, human: find(HUMAN) })
    }

    /// Reads the catalogue.
    pub fn read(&self, options: ReadOptions) -> Result<Catalogue> {
        let mut notes = read_attributes(open(&self.attributes)?, &name_of(&self.attributes))?;
        let mut human = match &self.human {
            Some(path) => read_human(open(path)?, &name_of(path))?,
            None => HashMap::new(),
        };
        let place = name_of(&self.products);
        let products = read_products(open(&self.products)?, &place, options, |product| {
            if let Some(note) = notes.remove(&*product.asin) {
                product.attributes = note.attributes;
                product.wish = note.wish;
            }
            product.human_wishes = human.remove(&*product.asin).unwrap_or_default();
        })?;
        catalogue_of(products, &place)
    }
}

/// Reads a catalogue from the text of a product list and of an attribute file.
pub fn catalogue_from_text(products: &str, attributes: &str) -> Result<Catalogue> {
    let options = ReadOptions { limit: None, skip_duplicates: false };
    let mut notes = read_attributes(attributes.as_bytes(), "attributes")?;
    let products = read_products(products.as_bytes(), "products", options, |product| {
        if let Some(note) = notes.remove(&*product.asin) {
            product.attributes = note.attributes;
            product.wish = note.wish;
        }
    })?;
    catalogue_of(products, "products")
}

fn catalogue_of(products: Vec<Product>, place: &str) -> Result<Catalogue> {
    if products.is_empty() {
        return Err(Error::invalid(place, "the catalogue is empty: there is no product with a usable `asin`"));
    }
    // Ids that differ in case only: clicks could not tell them apart.
    Catalogue::new(products)
        .map_err(|(a, b)| Error::invalid(place, format!("products {a} and {b} have the same id but for upper case")))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

fn name_of(path: &Path) -> String {
    path.display().to_string()
}

/// Reads the list of products; `finish` adds what other files know of one.
fn read_products(
    input: impl Read,
    place: &str,
    options: ReadOptions,
    finish: impl FnMut(&mut Product),
) -> Result<Vec<Product>> {
    let mut reader = ProductList { options, finish, products: Vec::new(), seen: HashMap::new(), stopped: None };
    let mut json = serde_json::Deserializer::from_reader(input);
    let read = (&mut reader).deserialize(&mut json);
    match (reader.stopped, read) {
        (Some(Stop::Limit), _) => return Ok(reader.products),
        (Some(Stop::Problem(at, problem)), _) => {
            return Err(Error::invalid(format!("{place}: product {at}"), problem));
        }
        (None, read) => read.map_err(|e| Error::invalid(place, format!("not a list of products: {e}")))?,
    }
    json.end().map_err(|e| Error::invalid(place, format!("there is something after the list: {e}")))?;
    Ok(reader.products)
}

struct ProductList<F> {
    options: ReadOptions,
    finish: F,
    products: Vec<Product>,
    /// The entry each id was first seen in.
    seen: HashMap<Box<str>, usize>,
    /// Why reading ended before the list did.
    stopped: Option<Stop>,
}

enum Stop {
    /// There are as many as were asked for; what follows is not even looked at.
    Limit,
    /// This entry is wrong in this way.
    Problem(usize, String),
}

impl<'de, F: FnMut(&mut Product)> DeserializeSeed<'de> for &mut ProductList<F> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> std::result::Result<(), D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&mut Product)> Visitor<'de> for &mut ProductList<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of products")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        for at in 0.. {
            let stop = match list.next_element::<RawProduct>() {
                _ if self.options.limit == Some(at) => Stop::Limit,
                Ok(None) => return Ok(()),
                Ok(Some(entry)) => match self.take(at, entry) {
                    Ok(()) => continue,
                    Err(problem) => Stop::Problem(at, problem),
                },
                Err(e) => Stop::Problem(at, e.to_string()),
            };
            self.stopped = Some(stop);
            break;
        }
        Err(serde::de::Error::custom("stopped"))
    }
}

impl<F: FnMut(&mut Product)> ProductList<F> {
    fn take(&mut self, at: usize, raw: RawProduct) -> std::result::Result<(), String> {
        // What the original leaves out: scraping failures.
        if &*raw.asin == "nan" || raw.asin.chars().count() > 10 {
            return Ok(());
        }
        if raw.asin.is_empty() {
            return Err("field `asin`: it is empty".to_owned());
        }
        if let Some(first) = self.seen.get(&raw.asin) {
            return match self.options.skip_duplicates {
                true => Ok(()),
                false => Err(format!(
                    "field `asin`: {} is the id of product {first} already; set duplicates=skip to keep the first of them",
                    raw.asin
                )),
            };
        }
        self.seen.insert(raw.asin.clone(), at);
        let mut product = raw.into_product()?;
        (self.finish)(&mut product);
        self.products.push(product);
        Ok(())
    }
}

/// A product as the file has it.
#[derive(Deserialize)]
struct RawProduct {
    asin: Box<str>,
    name: Box<str>,
    full_description: Box<str>,
    small_description: OneOrMany,
    #[serde(default)]
    pricing: Option<Box<str>>,
    customization_options: RawOptions,
    category: Box<str>,
    query: Box<str>,
    product_category: Box<str>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "field `small_description` must be a text or a list of texts")]
enum OneOrMany {
    One(Box<str>),
    Many(Vec<Box<str>>),
}

impl RawProduct {
    fn into_product(self) -> std::result::Result<Product, String> {
        Ok(Product {
            price: read_price(self.pricing.as_deref()).map_err(|e| format!("field `pricing`: {e}"))?,
            asin: self.asin,
            title: self.name,
            description: self.full_description,
            bullets: match self.small_description {
                OneOrMany::One(line) => vec![line],
                OneOrMany::Many(lines) => lines,
            },
            options: self.customization_options.0,
            // What the original puts where nothing is known.
            attributes: vec!["DUMMY_ATTR".into()],
            category: self.category,
            query: self.query.to_lowercase().trim().into(),
            shelf: self.product_category,
            wish: None,
            human_wishes: Vec::new(),
        })
    }
}

/// "$12.99", "$9.99 to $24.00", "$1,299.00$1,499.00"; nothing at all stands for 100.
fn read_price(text: Option<&str>) -> std::result::Result<Price, String> {
    let Some(text) = text.filter(|t| !t.is_empty()) else { return Ok(Price { low: 100.0, high: None }) };
    let mut amounts = text.split('$').skip(1).map(|amount| {
        let digits: String = amount.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
        digits.parse::<f64>().map_err(|_| format!("`{text}` holds no amount after a `$`"))
    });
    let low = amounts.next().ok_or_else(|| format!("`{text}` has no `$`"))??;
    let high = amounts.next().transpose()?;
    amounts.try_for_each(|amount| amount.map(drop))?;
    Ok(Price { low, high })
}

/// Names with their values, in the file's order; the empty text stands for none.
struct RawOptions(Vec<Choice>);

#[derive(Deserialize)]
struct RawValue {
    value: Box<str>,
}

impl<'de> Deserialize<'de> for RawOptions {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = RawOptions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`customization_options` as a map of lists, or an empty text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<RawOptions, E> {
                if text.is_empty() {
                    Ok(RawOptions(Vec::new()))
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }

            fn visit_unit<E>(self) -> std::result::Result<RawOptions, E> {
                Ok(RawOptions(Vec::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<RawOptions, A::Error> {
                let mut options: Vec<Choice> = Vec::new();
                while let Some((name, values)) = map.next_entry::<Box<str>, Option<Vec<RawValue>>>()? {
                    let Some(values) = values else { continue };
                    let name = name.to_lowercase().into_boxed_str();
                    let values =
                        values.iter().map(|v| v.value.trim().replace('/', " | ").to_lowercase().into()).collect();
                    // The last list under a name counts, at the place of the first.
                    match options.iter_mut().find(|o| o.name == name) {
                        Some(earlier) => earlier.values = values,
                        None => options.push(Choice { name, values }),
                    }
                }
                Ok(RawOptions(options))
            }
        }
        d.deserialize_any(Names)
    }
}

/// What the attribute file knows of a product.
struct Note {
    attributes: Vec<Box<str>>,
    wish: Option<Wish>,
}

#[derive(Deserialize)]
struct RawNote {
    attributes: Option<Vec<Box<str>>>,
    instruction: Option<Box<str>>,
    instruction_attributes: Option<Vec<Box<str>>>,
}

fn read_attributes(input: impl Read, place: &str) -> Result<HashMap<String, Note>> {
    let raw: HashMap<String, RawNote> =
        serde_json::from_reader(input).map_err(|e| Error::invalid(place, format!("not attributes by id: {e}")))?;
    raw.into_iter()
        .map(|(asin, note)| {
            let attributes = note.attributes.unwrap_or_else(|| vec!["DUMMY_ATTR".into()]);
            let wish = match (note.instruction, note.instruction_attributes) {
                (None, _) => None,
                (Some(text), Some(attributes)) if !attributes.is_empty() => Some(Wish { text, attributes }),
                (Some(_), _) => {
                    return Err(Error::invalid(
                        format!("{place}: {asin}"),
                        "field `instruction_attributes`: missing or empty although there is an `instruction`",
                    ));
                }
            };
            Ok((asin, Note { attributes, wish }))
        })
        .collect()
}

#[derive(Deserialize)]
struct RawHumanWish {
    instruction: Box<str>,
    instruction_attributes: Vec<Box<str>>,
    instruction_options: Vec<Box<str>>,
}

fn read_human(input: impl Read, place: &str) -> Result<HashMap<String, Vec<HumanWish>>> {
    let raw: HashMap<String, Vec<RawHumanWish>> =
        serde_json::from_reader(input).map_err(|e| Error::invalid(place, format!("not wishes by id: {e}")))?;
    let wish = |w: RawHumanWish| HumanWish {
        text: w.instruction,
        attributes: w.instruction_attributes,
        options: w.instruction_options,
    };
    Ok(raw.into_iter().map(|(asin, wishes)| (asin, wishes.into_iter().map(wish).collect())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"asin": "B01", "name": "Cup", "full_description": "", "small_description": "Holds tea.",
        "pricing": "$1,299.50 to $1,400", "customization_options": {"Color": [{"value": " Red/White "}], "Size": null,
        "COLOR": [{"value": "Blue", "image": "x"}]}, "category": "garden", "query": " Cups ", "product_category": "A › B",
        "images": []}"#;

    fn products(text: &str) -> Result<Catalogue> {
        catalogue_from_text(text, r#"{"B01": {"attributes": ["dish washer"]}}"#)
    }

    fn problem(text: &str) -> String {
        products(text).unwrap_err().to_string()
    }

    #[test]
    fn a_product_is_cleaned_as_the_original_does() {
        let catalogue = products(&format!("[{GOOD}]")).unwrap();
        let cup = catalogue.product(catalogue.find("b01").unwrap());
        assert_eq!(cup.price.tag(), "$1299.5 to $1400.0");
        assert_eq!(cup.options, [Choice { name: "color".into(), values: vec!["blue".into()] }]);
        assert_eq!((&*cup.query, cup.bullets.len(), &*cup.attributes[0]), ("cups", 1, "dish washer"));
        assert_eq!(cup.searchable(), "cup  holds tea. color: blue");
    }

    #[test]
    fn prices_are_read_or_refused() {
        let tag = |t: &str| read_price(Some(t)).map(|p| p.tag());
        assert_eq!(tag("").unwrap(), "$100.0");
        assert_eq!(tag("$5").unwrap(), "$5.0");
        assert_eq!(tag("$1.99$2.50$3").unwrap(), "$1.99 to $2.5");
        assert!(tag("5 dollars").unwrap_err().contains("no `$`"));
        assert!(tag("$abc").unwrap_err().contains("no amount"));
        assert!(tag("$1.2.3").unwrap_err().contains("no amount"));
    }

    #[test]
    fn mistakes_name_file_entry_and_field() {
        let second =
            |from: &str, to: &str| problem(&format!("[{GOOD}, {}]", GOOD.replace("B01", "B02").replace(from, to)));
        let missing = second("\"category\": \"garden\", ", "");
        assert!(missing.contains("products: product 1") && missing.contains("missing field `category`"), "{missing}");
        assert!(
            second("\"name\": \"Cup\"", "\"name\": 7").contains("expected a string"),
            "{}",
            second("\"name\": \"Cup\"", "\"name\": 7")
        );
        let options = second("{\"Color\"", "[1], \"x\": {\"Color\"");
        assert!(options.contains("customization_options"), "{options}");
        assert!(second("\"Holds tea.\"", "{}").contains("`small_description`"));
        let price = second("$1,299.50 to $1,400", "cheap");
        assert!(price.contains("product 1: field `pricing`: `cheap` has no `$`"), "{price}");
        let twice = problem(&format!("[{GOOD}, {GOOD}]"));
        assert!(twice.contains("product 1: field `asin`: B01 is the id of product 0 already"), "{twice}");
        assert!(problem("[]").contains("the catalogue is empty"));
        assert!(problem(&format!("[{GOOD}, ")).contains("products: product 1"));
        assert!(problem(&format!("[{GOOD}")).contains("product 1"));
        assert!(problem("{}").contains("not a list of products"));
        assert!(problem(&format!("[{GOOD}] x")).contains("after the list"));
    }

    #[test]
    fn attribute_files_are_checked_too() {
        let text = format!("[{GOOD}]");
        let err = |a: &str| catalogue_from_text(&text, a).unwrap_err().to_string();
        assert!(err("[1]").contains("attributes: not attributes by id"));
        let wish = err(r#"{"B01": {"attributes": [], "instruction": "Find me cups"}}"#);
        assert!(wish.contains("attributes: B01: field `instruction_attributes`"), "{wish}");
        assert_eq!(&*catalogue_from_text(&text, "{}").unwrap().product(0).attributes[0], "DUMMY_ATTR");
    }

    #[test]
    fn a_missing_folder_says_what_it_should_hold() {
        let e = OfficialFiles::in_folder(Path::new("/no/such/folder")).unwrap_err().to_string();
        assert!(e.contains("items_shuffle.json") && e.contains("/no/such/folder"), "{e}");
    }
}
