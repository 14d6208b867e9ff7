//! *What happens if I do this?*
//!
//! Games and worlds for agents that learn within a context window: rules ([`Game`]), what one agent faces ([`Env`]),
//! whom it meets ([`Population`]), and how well one could possibly do ([`oracle`]). Nothing here knows of models, tokens or
//! the files of a run.
//!
//! A hand of Kuhn poker against a hidden opponent:
//!
//! ```
//! use mage_env::{ParsedAction, Registry, Seed};
//!
//! let registry = Registry::builtin();
//! let kuhn = registry.get("kuhn")?;
//! let task = kuhn.default_population().draw("train", 2, Seed::new(1))?;
//! let mut env = registry.build(&task)?;
//! let first = env.begin(0);
//! assert!(first.text.starts_with("Your card:"));
//! let step = env.step(&env.parse("BET"));
//! assert!(step.valid);
//! # Ok::<(), mage_env::Error>(())
//! ```

pub mod alfworld;
mod conform;
mod env;
mod episode_tree;
mod error;
mod game;
mod guest;
pub mod kuhn;
pub mod mcts;
pub mod mt19937;
pub mod oracle;
mod plain;
mod population;
mod reference;
mod registry;
mod rival;
mod schema;
mod seats;
pub mod sokoban;
mod solved;
mod task;
pub mod tictactoe;
pub mod webshop;

pub use mage_rng::{Hash, Rng, Seed};

pub use conform::{Conformance, Difference};
pub use env::{Anchor, End, Env, Observation, Outcome, ParsedAction, Phrase, Step};
pub use episode_tree::{EpisodeTree, Leads, Place, Sight};
pub use error::{Error, Result};
pub use game::{
    ActionId, ActionList, ActionProbs, Game, MAX_PLAYERS, Opponent, TextGame, Turn, UniformOpponent, draw, draw_uniform,
};
pub use guest::{Guest, GuestView};
pub use population::{Grouping, Member, Population, SPLITS};
pub use reference::{Reference, ReferenceDoc, ReferenceMaker, ReferenceQuery, Seen};
pub use registry::{EnvFactory, Registry};
pub use rival::{Chain, OpponentKinds, Rival, SWITCHING, Strategy};
pub use schema::{OptionDoc, Schema};
pub use seats::{Deal, GameEnv};
pub use solved::{SolvedSplit, SolvedTask, WorldSolver};
pub use task::{EnvId, OpponentSpec, Options, Task};
