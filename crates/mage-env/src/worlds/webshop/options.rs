//! Options of the WebShop environment.

use super::{
    generator::{DEFAULT_PRODUCTS, generate},
    goals::GoalKind,
    official_files::{OfficialFiles, ReadOptions},
    shop::Shop,
    splits::GoalSplit,
};
use crate::{Error, OptionDoc, Result, Seed};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Options of WebShop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebshopOptions {
    /// Source of the catalogue.
    pub catalogue: CatalogueSource,
    /// Directory of the official files; default `$MAGE_DATA/webshop`.
    pub data: Option<PathBuf>,
    /// Number of products: of a generated catalogue, or the first entries of an official one.
    pub products: Option<usize>,
    /// Seed of a generated catalogue.
    pub catalogue_seed: u64,
    /// Treatment of duplicate product ids.
    pub duplicates: DuplicatePolicy,
    /// Source of the instructions.
    pub goals: GoalKind,
    /// Split of the goals.
    pub split: GoalSplit,
    /// Play only this goal of the original's shuffled list; default: sample from the split.
    pub goal_index: Option<u32>,
    /// Seed of the original, which determines prices, limits and the shuffled list.
    pub goal_seed: u32,
    /// Text format of pages.
    pub observation: ObservationFormat,
    /// Whether product pages link to the product's attributes.
    pub show_attributes: bool,
    /// Reproduce a defect of the released code: after a purchase the next episode has another goal.
    pub faithful: bool,
}

/// Source of the catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatalogueSource {
    /// The generator.
    #[default]
    Generated,
    /// The official files.
    Official,
}

/// Treatment of duplicate product ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DuplicatePolicy {
    /// Return an error.
    #[default]
    Error,
    /// Keep the first product, as the original does.
    Skip,
}

/// Text format of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObservationFormat {
    /// MAGE's format: without the goal, each text in quotes.
    #[default]
    Quoted,
    /// The original's `text` format.
    Text,
    /// The original's `text_rich` format.
    TextRich,
}

/// Key of a shop: the options that determine its catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShopKey {
    Generated { seed: u64, products: usize },
    Official { folder: PathBuf, read: ReadOptions },
}

/// Maximum size of a generated catalogue; the official one is smaller.
const MAX_GENERATED_PRODUCTS: usize = 2_000_000;

impl WebshopOptions {
    /// The key of the shop.
    pub(super) fn shop_key(&self) -> Result<ShopKey> {
        if self.products == Some(0) {
            return Err(Error::invalid("option products", "a catalogue needs at least one product"));
        }
        if self.catalogue == CatalogueSource::Generated {
            let products = self.products.unwrap_or(DEFAULT_PRODUCTS);
            if products > MAX_GENERATED_PRODUCTS {
                return Err(Error::invalid(
                    "option products",
                    format!("at most {MAX_GENERATED_PRODUCTS} products can be generated"),
                ));
            }
            return Ok(ShopKey::Generated { seed: self.catalogue_seed, products });
        }
        let folder = data_folder(self.data.as_deref()).ok_or_else(|| {
            Error::invalid(
                "option data",
                "the directory of the official catalogue is not set: set data=DIR, set MAGE_DATA to the directory that \
                 contains webshop/, or create data/webshop; catalogue=generated needs no files",
            )
        })?;
        let read = ReadOptions { limit: self.products, skip_duplicates: self.duplicates == DuplicatePolicy::Skip };
        Ok(ShopKey::Official { folder, read })
    }
}

impl ShopKey {
    /// Builds the shop.
    pub(super) fn open(&self) -> Result<Shop> {
        match self {
            ShopKey::Generated { seed, products } => Shop::new(generate(Seed::new(*seed), *products)),
            ShopKey::Official { folder, read } => Shop::new(OfficialFiles::in_folder(folder)?.read(*read)?),
        }
    }
}

/// Directory of the official files: `path` if given, else `$MAGE_DATA/webshop`, else `data/webshop` if it exists.
pub(super) fn data_folder(path: Option<&Path>) -> Option<PathBuf> {
    let from_environment = || std::env::var_os("MAGE_DATA").map(|d| Path::new(&d).join("webshop"));
    let here = || Some(Path::new("data/webshop").to_owned()).filter(|folder| folder.is_dir());
    path.map(Path::to_owned).or_else(from_environment).or_else(here)
}

/// Documentation of each option.
pub(super) fn docs() -> Vec<OptionDoc> {
    let doc = OptionDoc::new;
    vec![
        doc("catalogue", "generated (default) | official", "generated products, or WebShop's files"),
        doc("data", "a directory ($MAGE_DATA/webshop, data/webshop)", "directory of WebShop's files"),
        doc("products", "a count (1000, or all)", "number of products"),
        doc("catalogue_seed", "an integer (0)", "seed of a generated catalogue"),
        doc("duplicates", "error (default) | skip", "treatment of duplicate product ids"),
        doc(
            "goals",
            "synthetic (default) | human",
            "synthetic instructions, or written by people (official files only)",
        ),
        doc(
            "split",
            "train | in-domain | out-of-domain | reference-train | reference-validation",
            "split of the goals",
        ),
        doc("goal_index", "an index", "play only this goal of the original's shuffled list for `goal_seed`"),
        doc(
            "goal_seed",
            "an integer (0)",
            "seed of the original: determines prices in ranges, price limits and the order of its goals",
        ),
        doc("observation", "quoted (default) | text | text_rich", "text format of pages: MAGE's, or WebShop's"),
        doc("show_attributes", "false (default) | true", "product pages link to a page of their attributes"),
        doc("faithful", "false (default) | true", "after a purchase the next episode has another goal, as released"),
    ]
}
