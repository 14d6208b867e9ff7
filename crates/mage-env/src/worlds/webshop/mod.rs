//! WebShop: a shop with a search box, and an instruction to buy something.
//!
//! A re-implementation of princeton-nlp/WebShop's text environment as MAGE uses it: pages, clicks, search, scores and goals are
//! those of the original, without Java and without a language model in the scoring. What stands in for the latter is one
//! function, described in `nouns`. The catalogue comes from the official files, or is made up from a seed.
//!
//! ```
//! use mage_env::{Registry, Seed};
//!
//! let registry = Registry::builtin();
//! let task = registry.get("webshop")?.default_population().draw("train", 1, Seed::new(1))?;
//! let mut shop = registry.build(&task)?;
//! let first = shop.reset(0);
//! assert!(first.text.starts_with("WebShop [SEP] Instruction: [SEP] Look for "));
//! let found = shop.step(&shop.parse("search[wool socks]"));
//! assert!(found.observation.text.starts_with("'Back to Search' [SEP] 'Page 1 (Total results: "));
//! # Ok::<(), mage_env::Error>(())
//! ```

mod action;
mod analyzer;
mod bm25;
mod catalogue;
mod catalogue_tables;
mod compact;
mod conformance;
mod env;
mod generator;
mod goals;
mod nouns;
mod official_files;
mod official_json;
mod options;
mod page;
mod porter_stemmer;
mod python_format;
mod score;
mod scripted_agents;
mod session;
mod shop;
mod spec;
mod splits;
mod text_ui;
mod token_set_ratio;

pub use action::{Action, read as read_action};
pub use bm25::{Hit, Index};
pub use catalogue::{Catalogue, Choice, Findings, HumanWish, Price, Product, Wish};
pub use generator::{DEFAULT_PRODUCTS, generate};
pub use goals::{Goal, GoalKind, GoalOptions};
pub use official_files::{OfficialFiles, ReadOptions, catalogue_from_text};
pub use options::{Duplicates, ObservationForm, Source, WebshopOptions};
pub use page::SEPARATOR;
pub use score::{Score, score};
pub use shop::{MOST_RESULTS, Shop};
pub use spec::WebshopSpec;
pub use splits::Split;
