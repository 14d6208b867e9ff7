//! Which shop, which goals, and how are they shown?

use super::{
    generator::{DEFAULT_PRODUCTS, generate},
    goals::GoalKind,
    official_files::{OfficialFiles, ReadOptions},
    shop::Shop,
    splits::Split,
};
use crate::{Error, OptionDoc, Result, Seed};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The settings of a shop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebshopOptions {
    /// Where the products come from.
    pub catalogue: Source,
    /// The folder of the official files; `$MAGE_DATA/webshop` when left out.
    pub data: Option<PathBuf>,
    /// How many products: of a generated catalogue, or the first so many of an official one.
    pub products: Option<usize>,
    /// Decides a generated catalogue.
    pub catalogue_seed: u64,
    /// What to do with a product whose id has occurred.
    pub duplicates: Duplicates,
    /// Whose wishes.
    pub goals: GoalKind,
    /// Which part of the goals.
    pub split: Split,
    /// One goal, by its place in the original's shuffled list; drawn from the split when left out.
    pub goal: Option<u32>,
    /// The original's seed, which decides prices, limits and that list.
    pub worker: u32,
    /// How pages are shown.
    pub observation: ObservationForm,
    /// Whether product pages lead to their attributes.
    pub show_attributes: bool,
    /// Reproduce the released code's fault: after a purchase the next episode is about another goal.
    pub faithful: bool,
}

/// Where products come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Made up from a seed.
    #[default]
    Generated,
    /// Read from the official files.
    Official,
}

/// What to do with a product whose id has occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Duplicates {
    /// Refuse the catalogue.
    #[default]
    Refuse,
    /// Keep the first, as the original does.
    Skip,
}

/// How pages are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObservationForm {
    /// As MAGE does: without the goal, each part in quotes.
    #[default]
    Quoted,
    /// The original's `text`.
    Text,
    /// The original's `text_rich`.
    TextRich,
}

/// What decides a shop, whatever is done in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShopKey {
    Generated { seed: u64, products: usize },
    Official { folder: PathBuf, read: ReadOptions },
}

/// A catalogue somebody asks to be made up may not be larger than the official one.
const MOST_GENERATED: usize = 2_000_000;

impl WebshopOptions {
    /// Which shop.
    pub(super) fn shop_key(&self) -> Result<ShopKey> {
        if self.products == Some(0) {
            return Err(Error::invalid("option products", "a shop needs at least one product"));
        }
        if self.catalogue == Source::Generated {
            let products = self.products.unwrap_or(DEFAULT_PRODUCTS);
            if products > MOST_GENERATED {
                return Err(Error::invalid("option products", format!("at most {MOST_GENERATED} can be made up")));
            }
            return Ok(ShopKey::Generated { seed: self.catalogue_seed, products });
        }
        let folder = data_folder(self.data.as_deref()).ok_or_else(|| {
            Error::invalid(
                "option data",
                "the official catalogue needs the folder of its files: set data=DIR, or MAGE_DATA to the folder above \
                 `webshop`, or put them into data/webshop; catalogue=generated needs no files",
            )
        })?;
        let read = ReadOptions { limit: self.products, skip_duplicates: self.duplicates == Duplicates::Skip };
        Ok(ShopKey::Official { folder, read })
    }
}

impl ShopKey {
    /// Opens the shop.
    pub(super) fn open(&self) -> Result<Shop> {
        match self {
            ShopKey::Generated { seed, products } => Shop::new(generate(Seed::new(*seed), *products)),
            ShopKey::Official { folder, read } => Shop::new(OfficialFiles::in_folder(folder)?.read(*read)?),
        }
    }
}

/// The folder of the official files: the one named, else `$MAGE_DATA/webshop`, else `data/webshop` where that exists.
pub(super) fn data_folder(named: Option<&Path>) -> Option<PathBuf> {
    let from_environment = || std::env::var_os("MAGE_DATA").map(|d| Path::new(&d).join("webshop"));
    let here = || Some(Path::new("data/webshop").to_owned()).filter(|folder| folder.is_dir());
    named.map(Path::to_owned).or_else(from_environment).or_else(here)
}

/// What tools print about the settings.
pub(super) fn docs() -> Vec<OptionDoc> {
    let doc = OptionDoc::new;
    vec![
        doc(
            "catalogue",
            "generated (default) | official",
            "products made up from a seed, or read from WebShop's files",
        ),
        doc("data", "a folder ($MAGE_DATA/webshop, data/webshop)", "where WebShop's files are"),
        doc("products", "a number (1000, or all)", "how many products"),
        doc("catalogue_seed", "a number (0)", "decides a generated catalogue"),
        doc("duplicates", "refuse (default) | skip", "what to do with a product whose id has occurred"),
        doc("goals", "synthetic (default) | human", "wishes made by rule, or written by people (official files only)"),
        doc("split", "train | in-domain | out-of-domain | reference-train | reference-validation", "which goals"),
        doc("goal", "a number", "one goal: its place in the original's list at seed `worker`"),
        doc(
            "worker",
            "a number (0)",
            "the original's seed: decides prices in ranges, price limits and its list of goals",
        ),
        doc("observation", "quoted (default) | text | text_rich", "pages as MAGE shows them, or as WebShop does"),
        doc("show_attributes", "false (default) | true", "product pages lead to a page of their attributes"),
        doc(
            "faithful",
            "false (default) | true",
            "after a purchase the next episode is about another goal, as released",
        ),
    ]
}
