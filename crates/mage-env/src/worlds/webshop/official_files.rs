//! What do the official files say?
//!
//! Three JSON files in one folder: `items_shuffle*.json`, the products as a list; `items_ins_v2*.json`, attributes and
//! synthetic wishes by id; and optionally `items_human_ins*.json`, wishes people wrote. Each comes whole or cut to the
//! first 1,000 products. Products are read one at a time, so that the list of 1.18 million needs no second copy in memory.

use super::{
    catalogue::{Catalogue, Findings, HumanWish, Product, Wish},
    official_json::{ById, RawHumanWish, RawNote, RawProduct},
};
use crate::{Error, Result};
use serde::{
    Deserializer,
    de::{DeserializeSeed, SeqAccess, Visitor},
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
        let (products, findings) = read_products(open(&self.products)?, &place, options, |product| {
            if let Some(note) = notes.remove(&*product.asin) {
                product.attributes = note.attributes;
                product.wish = note.wish;
            }
            product.human_wishes = human.remove(&*product.asin).unwrap_or_default();
        })?;
        catalogue_of(products, findings, &place)
    }
}

/// Reads a catalogue from the text of a product list and of an attribute file.
pub fn catalogue_from_text(products: &str, attributes: &str) -> Result<Catalogue> {
    let options = ReadOptions { limit: None, skip_duplicates: false };
    let mut notes = read_attributes(attributes.as_bytes(), "attributes")?;
    let (products, findings) = read_products(products.as_bytes(), "products", options, |product| {
        if let Some(note) = notes.remove(&*product.asin) {
            product.attributes = note.attributes;
            product.wish = note.wish;
        }
    })?;
    catalogue_of(products, findings, "products")
}

fn catalogue_of(products: Vec<Product>, findings: Findings, place: &str) -> Result<Catalogue> {
    if products.is_empty() {
        let problem = match findings.unusable_ids {
            0 => "the catalogue is empty: there is no product in the list".to_owned(),
            n => format!("the catalogue is empty: each of its {n} entries has an `asin` that is \"nan\" or too long"),
        };
        return Err(Error::invalid(place, problem));
    }
    let same = |(a, b)| Error::invalid(place, format!("products {a} and {b} have the same id"));
    Ok(Catalogue::new(products).map_err(same)?.with_findings(findings))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

fn name_of(path: &Path) -> String {
    path.display().to_string()
}

/// Reads the list of products, and says what was odd about it; `finish` adds what other files know of one.
fn read_products(
    input: impl Read,
    place: &str,
    options: ReadOptions,
    finish: impl FnMut(&mut Product),
) -> Result<(Vec<Product>, Findings)> {
    let mut reader = ProductList {
        options,
        finish,
        products: Vec::new(),
        findings: Findings::default(),
        seen: HashMap::new(),
        stopped: None,
    };
    let mut json = serde_json::Deserializer::from_reader(input);
    let read = (&mut reader).deserialize(&mut json);
    match (reader.stopped, read) {
        (Some(Stop::Limit), _) => return Ok((reader.products, reader.findings)),
        (Some(Stop::Problem(at, problem)), _) => {
            return Err(Error::invalid(format!("{place}: product {at}"), problem));
        }
        (None, read) => read.map_err(|e| Error::invalid(place, format!("not a list of products: {e}")))?,
    }
    json.end().map_err(|e| Error::invalid(place, format!("there is something after the list: {e}")))?;
    Ok((reader.products, reader.findings))
}

struct ProductList<F> {
    options: ReadOptions,
    finish: F,
    products: Vec<Product>,
    findings: Findings,
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
            self.findings.unusable_ids += 1;
            return Ok(());
        }
        if raw.asin.is_empty() {
            return Err("field `asin`: it is empty".to_owned());
        }
        // Clicks arrive in lower case, so they could not tell two ids apart that differ in case only.
        let id = raw.asin.to_lowercase().into_boxed_str();
        if let Some(first) = self.seen.get(&id) {
            return match self.options.skip_duplicates {
                true => {
                    self.findings.duplicates += 1;
                    Ok(())
                }
                false => Err(format!(
                    "field `asin`: {} is the id of product {first} already, upper and lower case being the same; set \
                     duplicates=skip to keep the first of them",
                    raw.asin
                )),
            };
        }
        self.seen.insert(id, at);
        self.findings.without_price += u64::from(!raw.has_price());
        let mut product = raw.into_product()?;
        (self.finish)(&mut product);
        self.products.push(product);
        Ok(())
    }
}

/// What the attribute file knows of a product.
struct Note {
    attributes: Vec<Box<str>>,
    wish: Option<Wish>,
}

fn read_attributes(input: impl Read, place: &str) -> Result<HashMap<String, Note>> {
    let ById(raw): ById<RawNote> =
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

fn read_human(input: impl Read, place: &str) -> Result<HashMap<String, Vec<HumanWish>>> {
    let ById(raw): ById<Vec<RawHumanWish>> =
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
    use super::super::catalogue::Choice;
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
    fn mistakes_name_file_entry_and_field() {
        let second =
            |from: &str, to: &str| problem(&format!("[{GOOD}, {}]", GOOD.replace("B01", "B02").replace(from, to)));
        let missing = second("\"category\": \"garden\", ", "");
        assert!(missing.contains("products: product 1") && missing.contains("missing field `category`"), "{missing}");
        for (from, to, expected) in [
            (
                "\"name\": \"Cup\"",
                "\"name\": 7",
                "field `name`: invalid type: integer `7`, expected a string at line 4",
            ),
            ("\"B02\"", "12", "field `asin`: invalid type: integer `12`, expected a string at line"),
            (
                "\"$1,299.50 to $1,400\"",
                "9.5",
                "field `pricing`: invalid type: floating point `9.5`, expected a string",
            ),
            ("\"garden\"", "null", "field `category`: invalid type: null, expected a string"),
            ("\"garden\"", "[\"garden\"]", "field `category`: invalid type: sequence, expected a string"),
            ("{\"Color\"", "[1], \"x\": {\"Color\"", "field `customization_options`: invalid type: sequence"),
            (
                "\"value\": \"Blue\"",
                "\"value\": 5",
                "field `customization_options`: field `value`: invalid type: integer",
            ),
            ("\"Holds tea.\"", "{}", "field `small_description`: it must be a text or a list of texts"),
        ] {
            let said = second(from, to);
            assert!(said.starts_with(&format!("products: product 1: {expected}")), "{said}");
        }
        let price = second("$1,299.50 to $1,400", "cheap");
        assert!(price.contains("product 1: field `pricing`: `cheap` has no `$`"), "{price}");
        let twice = problem(&format!("[{GOOD}, {GOOD}]"));
        assert!(twice.contains("product 1: field `asin`: B01 is the id of product 0 already"), "{twice}");
        let twice = problem(&format!("[{GOOD}, {}]", GOOD.replace("B01", "b01")));
        assert!(
            twice.contains("product 1: field `asin`: b01 is the id of product 0 already, upper and lower case"),
            "{twice}"
        );
        assert!(problem("[]").contains("the catalogue is empty"));
        assert!(problem(&format!("[{GOOD}, ")).contains("products: product 1"));
        assert!(problem(&format!("[{GOOD}")).contains("product 1"));
        assert!(problem("{}").contains("not a list of products"));
        assert!(problem(&format!("[{GOOD}] x")).contains("after the list"));
    }

    #[test]
    fn what_is_odd_about_a_list_is_counted() {
        let free = |asin: &str, price: &str| {
            GOOD.replace("B01", asin).replace("\"pricing\": \"$1,299.50 to $1,400\", ", price)
        };
        let odd = [free("B02", ""), free("B03", "\"pricing\": null, "), free("nan", ""), free("B0123456789", "")];
        let catalogue = products(&format!("[{GOOD}, {}]", odd.join(", "))).unwrap();
        assert_eq!(catalogue.findings(), Findings { without_price: 2, duplicates: 0, unusable_ids: 2 });
        assert_eq!(catalogue.product(1).price.tag(), "$100.0");
        let said = catalogue.findings().sentences();
        assert_eq!(said[0], "2 entries of the product list without a price: each costs $100, as in the original");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(PRODUCTS[0]), format!("[{GOOD}, {GOOD}, {}]", GOOD.replace("B01", "b01")))
            .unwrap();
        std::fs::write(dir.path().join(ATTRIBUTES[0]), "{}").unwrap();
        let files = OfficialFiles::in_folder(dir.path()).unwrap();
        let read = files.read(ReadOptions { limit: None, skip_duplicates: true }).unwrap();
        assert_eq!((read.products().len(), read.findings().duplicates), (1, 2));
        assert!(problem(&format!("[{}]", odd[2])).contains("each of its 1 entries has an `asin` that is \"nan\""));
    }

    #[test]
    fn attribute_files_are_checked_too() {
        let text = format!("[{GOOD}]");
        let err = |a: &str| catalogue_from_text(&text, a).unwrap_err().to_string();
        assert!(err("[1]").contains("attributes: not attributes by id"));
        let wrong = err(r#"{"B00": {}, "B01": {"attributes": ["tea", 7]}}"#);
        assert!(wrong.contains("B01: field `attributes`: invalid type: integer `7`, expected a string"), "{wrong}");
        let wrong = err(r#"{"B01": 3}"#);
        assert!(wrong.contains("B01: invalid type: integer `3`, expected an object with attributes"), "{wrong}");
        let wrong = read_human(r#"{"B01": [{"instruction": "x", "instruction_options": []}]}"#.as_bytes(), "human");
        let wrong = wrong.map(drop).unwrap_err().to_string();
        assert!(wrong.contains("human: not wishes by id: B01: missing field `instruction_attributes`"), "{wrong}");
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
