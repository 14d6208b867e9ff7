//! WebShop: buy a product that matches an instruction.
//!
//! A re-implementation of princeton-nlp/WebShop's text environment as MAGE uses it: pages, clicks, search, scores and goals
//! are those of the original, without Java and without spaCy. The rule that replaces spaCy's tagger in the scoring is in
//! `nouns`. The catalogue comes from the official files or from a generator.
//!
//! ```
//! use mage_env::{Registry, Seed};
//!
//! let registry = Registry::builtin();
//! let task = registry.get("webshop")?.default_population().sample_task("train", 1, Seed::new(1))?;
//! let mut shop = registry.build(&task)?;
//! let first = shop.reset(0);
//! assert!(first.text.starts_with("WebShop [SEP] Instruction: [SEP] Look for "));
//! let results = shop.step(&shop.parse("search[wool socks]"));
//! assert!(results.observation.text.starts_with("'Back to Search' [SEP] 'Page 1 (Total results: "));
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

pub use action::{ShopAction, parse as parse_action};
pub use bm25::{SearchHit, SearchIndex};
pub use catalogue::{Catalogue, CatalogueWarnings, HumanInstruction, Instruction, Price, Product, ProductOption};
pub use generator::{DEFAULT_PRODUCTS, generate};
pub use goals::{GoalKind, GoalOptions, ShoppingGoal};
pub use official_files::{OfficialFiles, ReadOptions, catalogue_from_text};
pub use options::{CatalogueSource, DuplicatePolicy, ObservationFormat, WebshopOptions};
pub use page::SEPARATOR;
pub use score::{PurchaseScore, score};
pub use shop::{MAX_RESULTS, Shop};
pub use spec::WebshopSpec;
pub use splits::GoalSplit;
