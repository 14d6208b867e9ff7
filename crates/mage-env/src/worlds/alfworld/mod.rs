//! ALFWorld: do something in a household that can only be read about.
//!
//! Games are those of ALFWorld (Shridhar et al., 2021): find a thing, perhaps clean, heat or cool it, and put it somewhere;
//! put two of them there; or look at one under a lamp. Rules, sentences and the commands on offer are those of the original
//! (TextWorld with ALFWorld's domain and grammar, data of release 0.4), word for word and with its quirks, without its
//! planner. Games come from the official files or from a generator of households.
//!
//! ```
//! use mage_env::{Seed, alfworld::{Rooms, World, generate, solve}};
//!
//! let made = generate(Rooms::Seen, &[], Seed::new(1));
//! let world = World::new(&made.household);
//! let mut state = world.start().clone();
//! for command in solve(&world, &state).unwrap() {
//!     let (seen, allowed) = world.step(&mut state, &world.write(command));
//!     assert!(allowed && seen.starts_with("You "));
//! }
//! assert!(world.won(&state));
//! ```

mod command;
mod compact;
mod conformance;
mod dataset;
mod env;
mod expert;
mod export;
mod game_file;
mod generator;
mod goal;
mod object_tables;
mod options;
mod pddl;
mod scene;
mod spec;
mod state;
mod text;
mod world;

pub use command::Command;
pub use dataset::{Data, Entry, OFFICIAL_SPLITS, Split, find_data};
pub use env::AlfworldEnv;
pub use expert::solve;
pub use export::{Rules, problem};
pub use game_file::{DOMAIN_MD5, GRAMMAR_MD5, Game, GameFile, read_problem};
pub use generator::{LONGEST, Made, Rooms, generate};
pub use goal::{Goal, TaskKind};
pub use options::{AlfworldOptions, Games};
pub use scene::{Household, Receptacle, Thing, Traits};
pub use spec::AlfworldSpec;
pub use state::State;
pub use text::{NOTHING, opening};
pub use world::World;
