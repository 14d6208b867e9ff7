//! Games and worlds for agents that learn within a context window.
//!
//! The crate has the rules of games ([`Game`]), the agent's interface ([`Env`]), populations of opponents
//! ([`Population`]), and solvers for the best possible score ([`solvers`]). It does not depend on models, tokens or run
//! directories.
//!
//! A hand of Kuhn poker against a hidden opponent:
//!
//! ```
//! use mage_env::{ParsedAction, Registry, Seed};
//!
//! let registry = Registry::builtin();
//! let kuhn = registry.get("kuhn")?;
//! let task = kuhn.default_population().sample_task("train", 2, Seed::new(1))?;
//! let mut env = registry.build(&task)?;
//! let first = env.reset(0);
//! assert!(first.text.starts_with("Your card:"));
//! let step = env.step(&env.parse("BET"));
//! assert!(step.valid);
//! # Ok::<(), mage_env::Error>(())
//! ```

mod conformance;
mod deserialize;
mod env;
mod env_info;
mod error;
mod files;
mod game;
mod game_env;
mod games;
mod human_player;
pub mod mt19937;
mod opponent_schedule;
mod population;
mod registry;
mod scripted_agent;
pub mod solvers;
mod task;
mod toml_file;
mod without_replacement;
mod world_solver;
mod worlds;

pub use games::{EpisodeFacts, GameSpec, kuhn, tictactoe};
pub use mage_rng::{Hash, Rng, Seed};
pub use worlds::{alfworld, sokoban, webshop};

pub use conformance::{Conformance, Difference};
pub use env::{ActionPhrase, Anchor, End, Env, Observation, Outcome, ParsedAction, Step};
pub use env_info::{EnvInfo, OptionDoc};
pub use error::{Error, Result, nearest_name};
pub use game::{
    ActionId, ActionList, ActionProbs, CurrentPlayer, Game, MAX_PLAYERS, Opponent, TextGame, UniformOpponent,
    action_probs, sample_action, sample_uniform,
};
pub use game_env::{Deal, GameEnv};
pub use human_player::{HumanPlayer, HumanView};
pub use opponent_schedule::{MarkovChain, OpponentKinds, OpponentSchedule, SWITCHING, Strategy};
pub use population::{Grouping, Population, PopulationMember, SPLITS};
pub use registry::{EnvSpec, Registry};
pub use scripted_agent::{PromptView, ScriptedAgent, ScriptedAgentFactory, ScriptedAgentInfo, ScriptedAgentQuery};
pub use solvers::game_tree::{GameNode, GameTree, InfoSet, Transitions};
pub use task::{EnvId, OpponentSpec, OptionMap, Task};
pub use toml_file::{TomlError, from_toml, line_at};
pub use world_solver::{SolvedSplit, SolvedTask, WorldSolver};
