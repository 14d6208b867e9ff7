//! ALFWorld: household tasks in a text world.
//!
//! Tasks are those of ALFWorld (Shridhar et al., 2021): find an object, optionally clean, heat or cool it, and put it in or
//! on a receptacle; put two objects there; or examine one under a lamp. Rules, observations and admissible commands
//! reproduce the original (TextWorld with ALFWorld's domain and grammar, data release 0.4) word for word, quirks included,
//! without its planner. Games come from the official files or from a generator.
//!
//! ```
//! use mage_env::{Seed, alfworld::{HouseholdWorld, RoomSplit, generate, solve}};
//!
//! let game = generate(RoomSplit::Seen, &[], Seed::new(1));
//! let world = HouseholdWorld::new(&game.household);
//! let mut state = world.start().clone();
//! for command in solve(&world, &state).unwrap() {
//!     let (feedback, admissible) = world.step(&mut state, &world.format_command(command));
//!     assert!(admissible && feedback.starts_with("You "));
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

pub use command::AlfworldCommand;
pub use dataset::{GameDataset, GameEntry, GameSplit, OFFICIAL_SPLITS, find_data};
pub use env::AlfworldEnv;
pub use expert::solve;
pub use export::{OfficialRules, problem};
pub use game_file::{AlfworldGame, GameFile, read_problem};
pub use generator::{GeneratedGame, RoomSplit, generate};
pub use goal::{TaskGoal, TaskType};
pub use options::{AlfworldOptions, GameSource};
pub use scene::{Household, HouseholdObject, ObjectProperties, Receptacle};
pub use spec::AlfworldSpec;
pub use state::HouseholdState;
pub use text::{NOTHING_HAPPENS, initial_observation};
pub use world::HouseholdWorld;
