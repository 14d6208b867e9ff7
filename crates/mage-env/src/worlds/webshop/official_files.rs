//! Reader of the official files.
//!
//! Three JSON files in one directory: `items_shuffle*.json`, a list of products; `items_ins_v2*.json`, attributes and
//! synthetic instructions by id; and optionally `items_human_ins*.json`, instructions written by people. Each exists in full
//! and as a subset of 1,000 products. Products are deserialized one at a time, so that the list of 1.18 million products is
//! in memory only once.

use super::{
    catalogue::{Catalogue, CatalogueWarnings, HumanInstruction, Instruction, Product},
    official_json::{ById, RawAttributes, RawHumanInstruction, RawProduct},
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

/// Options for reading the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadOptions {
    /// Maximum number of list entries to read.
    pub limit: Option<usize>,
    /// Skip entries with a duplicate id, as the original does silently, instead of returning an error.
    pub skip_duplicates: bool,
}

/// The official files of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfficialFiles {
    /// Product list.
    pub products: PathBuf,
    /// Attributes and synthetic instructions.
    pub attributes: PathBuf,
    /// Instructions written by people, if present.
    pub human: Option<PathBuf>,
}

/// Names of each file, in search order.
const PRODUCTS: [&str; 2] = ["items_shuffle.json", "items_shuffle_1000.json"];
const ATTRIBUTES: [&str; 2] = ["items_ins_v2.json", "items_ins_v2_1000.json"];
const HUMAN: [&str; 2] = ["items_human_ins.json", "items_human_ins_1000subset.json"];

impl OfficialFiles {
    /// Finds the files in a directory.
    pub fn in_folder(folder: &Path) -> Result<Self> {
        let find = |names: [&str; 2]| names.iter().map(|n| folder.join(n)).find(|p| p.is_file());
        let require = |names: [&str; 2]| {
            find(names).ok_or_else(|| {
                Error::invalid(
                    folder.display().to_string(),
                    format!("neither {} nor {} exists in this directory of WebShop data", names[0], names[1]),
                )
            })
        };
        Ok(OfficialFiles { products: require(PRODUCTS)?, attributes: require(ATTRIBUTES)?, human: find(HUMAN) })
    }

    /// Reads the catalogue.
    pub fn read(&self, options: ReadOptions) -> Result<Catalogue> {
        let mut attributes_by_asin = read_attributes(open(&self.attributes)?, &path_text(&self.attributes))?;
        let mut human = match &self.human {
            Some(path) => read_human(open(path)?, &path_text(path))?,
            None => HashMap::new(),
        };
        let origin = path_text(&self.products);
        let (products, warnings) = read_products(open(&self.products)?, &origin, options, |product| {
            if let Some(entry) = attributes_by_asin.remove(&*product.asin) {
                product.attributes = entry.attributes;
                product.instruction = entry.instruction;
            }
            product.human_instructions = human.remove(&*product.asin).unwrap_or_default();
        })?;
        build_catalogue(products, warnings, &origin)
    }
}

/// Parses a catalogue from the texts of a product list and an attribute file.
pub fn catalogue_from_text(products: &str, attributes: &str) -> Result<Catalogue> {
    let options = ReadOptions { limit: None, skip_duplicates: false };
    let mut attributes_by_asin = read_attributes(attributes.as_bytes(), "attributes")?;
    let (products, warnings) = read_products(products.as_bytes(), "products", options, |product| {
        if let Some(entry) = attributes_by_asin.remove(&*product.asin) {
            product.attributes = entry.attributes;
            product.instruction = entry.instruction;
        }
    })?;
    build_catalogue(products, warnings, "products")
}

fn build_catalogue(products: Vec<Product>, warnings: CatalogueWarnings, origin: &str) -> Result<Catalogue> {
    if products.is_empty() {
        let problem = match warnings.unusable_ids {
            0 => "the catalogue is empty: the list contains no products".to_owned(),
            n => format!("the catalogue is empty: each of its {n} entries has an `asin` that is \"nan\" or too long"),
        };
        return Err(Error::invalid(origin, problem));
    }
    let duplicate = |(a, b)| Error::invalid(origin, format!("products {a} and {b} have the same id"));
    Ok(Catalogue::new(products).map_err(duplicate)?.with_warnings(warnings))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Reads the product list and counts its irregularities. `finish` adds the data of the other files to a product.
fn read_products(
    input: impl Read,
    origin: &str,
    options: ReadOptions,
    finish: impl FnMut(&mut Product),
) -> Result<(Vec<Product>, CatalogueWarnings)> {
    let mut reader = ProductList {
        options,
        finish,
        products: Vec::new(),
        warnings: CatalogueWarnings::default(),
        first_seen: HashMap::new(),
        stopped: None,
    };
    let mut json = serde_json::Deserializer::from_reader(input);
    let read = (&mut reader).deserialize(&mut json);
    match (reader.stopped, read) {
        (Some(StopReason::Limit), _) => return Ok((reader.products, reader.warnings)),
        (Some(StopReason::Problem(at, problem)), _) => {
            return Err(Error::invalid(format!("{origin}: product {at}"), problem));
        }
        (None, read) => read.map_err(|e| Error::invalid(origin, format!("not a list of products: {e}")))?,
    }
    json.end().map_err(|e| Error::invalid(origin, format!("unexpected text after the list: {e}")))?;
    Ok((reader.products, reader.warnings))
}

struct ProductList<F> {
    options: ReadOptions,
    finish: F,
    products: Vec<Product>,
    warnings: CatalogueWarnings,
    /// Index of the first entry with each id.
    first_seen: HashMap<Box<str>, usize>,
    /// Why reading stopped before the end of the list.
    stopped: Option<StopReason>,
}

enum StopReason {
    /// The limit was reached; the rest of the list is not read.
    Limit,
    /// The entry with this index is invalid.
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
                _ if self.options.limit == Some(at) => StopReason::Limit,
                Ok(None) => return Ok(()),
                Ok(Some(entry)) => match self.add(at, entry) {
                    Ok(()) => continue,
                    Err(problem) => StopReason::Problem(at, problem),
                },
                Err(e) => StopReason::Problem(at, e.to_string()),
            };
            self.stopped = Some(stop);
            break;
        }
        Err(serde::de::Error::custom("stopped"))
    }
}

impl<F: FnMut(&mut Product)> ProductList<F> {
    fn add(&mut self, at: usize, raw: RawProduct) -> std::result::Result<(), String> {
        // The original skips these scraping failures.
        if &*raw.asin == "nan" || raw.asin.chars().count() > 10 {
            self.warnings.unusable_ids += 1;
            return Ok(());
        }
        if raw.asin.is_empty() {
            return Err("field `asin`: empty".to_owned());
        }
        // Clicks are lower-cased, so ids that differ only in case would be ambiguous.
        let id = raw.asin.to_lowercase().into_boxed_str();
        if let Some(first) = self.first_seen.get(&id) {
            return match self.options.skip_duplicates {
                true => {
                    self.warnings.duplicates += 1;
                    Ok(())
                }
                false => Err(format!(
                    "field `asin`: {} is already the id of product {first} (ids ignore case); set duplicates=skip to \
                     keep the first product",
                    raw.asin
                )),
            };
        }
        self.first_seen.insert(id, at);
        self.warnings.without_price += u64::from(!raw.has_price());
        let mut product = raw.into_product()?;
        (self.finish)(&mut product);
        self.products.push(product);
        Ok(())
    }
}

/// Data of a product in the attribute file.
struct ProductAttributes {
    attributes: Vec<Box<str>>,
    instruction: Option<Instruction>,
}

fn read_attributes(input: impl Read, origin: &str) -> Result<HashMap<String, ProductAttributes>> {
    let ById(raw): ById<RawAttributes> =
        serde_json::from_reader(input).map_err(|e| Error::invalid(origin, format!("not attributes by id: {e}")))?;
    raw.into_iter()
        .map(|(asin, entry)| {
            let attributes = entry.attributes.unwrap_or_else(|| vec!["DUMMY_ATTR".into()]);
            let instruction = match (entry.instruction, entry.instruction_attributes) {
                (None, _) => None,
                (Some(text), Some(attributes)) if !attributes.is_empty() => Some(Instruction { text, attributes }),
                (Some(_), _) => {
                    return Err(Error::invalid(
                        format!("{origin}: {asin}"),
                        "field `instruction_attributes`: missing or empty, but `instruction` is present",
                    ));
                }
            };
            Ok((asin, ProductAttributes { attributes, instruction }))
        })
        .collect()
}

fn read_human(input: impl Read, origin: &str) -> Result<HashMap<String, Vec<HumanInstruction>>> {
    let ById(raw): ById<Vec<RawHumanInstruction>> =
        serde_json::from_reader(input).map_err(|e| Error::invalid(origin, format!("not instructions by id: {e}")))?;
    let instruction = |w: RawHumanInstruction| HumanInstruction {
        text: w.instruction,
        attributes: w.instruction_attributes,
        options: w.instruction_options,
    };
    Ok(raw.into_iter().map(|(asin, list)| (asin, list.into_iter().map(instruction).collect())).collect())
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::ProductOption;
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
    fn products_are_normalized_as_in_the_original() {
        let catalogue = products(&format!("[{GOOD}]")).unwrap();
        let cup = catalogue.product(catalogue.find("b01").unwrap());
        assert_eq!(cup.price.tag(), "$1299.5 to $1400.0");
        assert_eq!(cup.options, [ProductOption { name: "color".into(), values: vec!["blue".into()] }]);
        assert_eq!((&*cup.query, cup.bullets.len(), &*cup.attributes[0]), ("cups", 1, "dish washer"));
        assert_eq!(cup.search_text(), "cup  holds tea. color: blue");
    }

    #[test]
    fn errors_name_file_entry_and_field() {
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
            ("\"Holds tea.\"", "{}", "field `small_description`: expected a text or a list of texts"),
        ] {
            let message = second(from, to);
            assert!(message.starts_with(&format!("products: product 1: {expected}")), "{message}");
        }
        let price = second("$1,299.50 to $1,400", "cheap");
        assert!(price.contains("product 1: field `pricing`: `cheap` has no `$`"), "{price}");
        let twice = problem(&format!("[{GOOD}, {GOOD}]"));
        assert!(twice.contains("product 1: field `asin`: B01 is already the id of product 0"), "{twice}");
        let twice = problem(&format!("[{GOOD}, {}]", GOOD.replace("B01", "b01")));
        assert!(
            twice.contains("product 1: field `asin`: b01 is already the id of product 0 (ids ignore case)"),
            "{twice}"
        );
        assert!(problem("[]").contains("the catalogue is empty"));
        assert!(problem(&format!("[{GOOD}, ")).contains("products: product 1"));
        assert!(problem(&format!("[{GOOD}")).contains("product 1"));
        assert!(problem("{}").contains("not a list of products"));
        assert!(problem(&format!("[{GOOD}] x")).contains("after the list"));
    }

    #[test]
    fn irregularities_of_a_list_are_counted() {
        let free = |asin: &str, price: &str| {
            GOOD.replace("B01", asin).replace("\"pricing\": \"$1,299.50 to $1,400\", ", price)
        };
        let odd = [free("B02", ""), free("B03", "\"pricing\": null, "), free("nan", ""), free("B0123456789", "")];
        let catalogue = products(&format!("[{GOOD}, {}]", odd.join(", "))).unwrap();
        assert_eq!(catalogue.warnings(), CatalogueWarnings { without_price: 2, duplicates: 0, unusable_ids: 2 });
        assert_eq!(catalogue.product(1).price.tag(), "$100.0");
        let messages = catalogue.warnings().messages();
        assert_eq!(messages[0], "2 entries of the product list without a price: each costs $100, as in the original");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(PRODUCTS[0]), format!("[{GOOD}, {GOOD}, {}]", GOOD.replace("B01", "b01")))
            .unwrap();
        std::fs::write(dir.path().join(ATTRIBUTES[0]), "{}").unwrap();
        let files = OfficialFiles::in_folder(dir.path()).unwrap();
        let read = files.read(ReadOptions { limit: None, skip_duplicates: true }).unwrap();
        assert_eq!((read.products().len(), read.warnings().duplicates), (1, 2));
        assert!(problem(&format!("[{}]", odd[2])).contains("each of its 1 entries has an `asin` that is \"nan\""));
    }

    #[test]
    fn attribute_files_are_validated() {
        let text = format!("[{GOOD}]");
        let err = |a: &str| catalogue_from_text(&text, a).unwrap_err().to_string();
        assert!(err("[1]").contains("attributes: not attributes by id"));
        let wrong = err(r#"{"B00": {}, "B01": {"attributes": ["tea", 7]}}"#);
        assert!(wrong.contains("B01: field `attributes`: invalid type: integer `7`, expected a string"), "{wrong}");
        let wrong = err(r#"{"B01": 3}"#);
        assert!(wrong.contains("B01: invalid type: integer `3`, expected an object with attributes"), "{wrong}");
        let wrong = read_human(r#"{"B01": [{"instruction": "x", "instruction_options": []}]}"#.as_bytes(), "human");
        let wrong = wrong.map(drop).unwrap_err().to_string();
        assert!(
            wrong.contains("human: not instructions by id: B01: missing field `instruction_attributes`"),
            "{wrong}"
        );
        let instruction = err(r#"{"B01": {"attributes": [], "instruction": "Find me cups"}}"#);
        assert!(instruction.contains("attributes: B01: field `instruction_attributes`"), "{instruction}");
        assert_eq!(&*catalogue_from_text(&text, "{}").unwrap().product(0).attributes[0], "DUMMY_ATTR");
    }

    #[test]
    fn a_missing_directory_error_names_the_expected_files() {
        let e = OfficialFiles::in_folder(Path::new("/no/such/folder")).unwrap_err().to_string();
        assert!(e.contains("items_shuffle.json") && e.contains("/no/such/folder"), "{e}");
    }
}
