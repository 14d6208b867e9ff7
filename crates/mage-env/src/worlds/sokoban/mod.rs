//! Sokoban: push every box onto a target; boxes cannot be pulled.
//!
//! Rooms come from a bit-exact port of the generator in the MAGE and RAGEN code, or from level files (Boxoban or custom).
//! A turn is up to three moves. The room is fully observable; across episodes an agent learns where its last plan failed.

mod bits;
mod board;
mod ceilings;
mod conform;
mod dead;
mod generate;
mod level;
mod options;
mod path;
mod planner;
mod render;
mod reverse;
mod rules;
mod solvable;
mod solver;
mod source;
mod spec;
mod table;
mod turn;
mod world;

pub use board::{Board, MAX_CELLS, Move, MoveEffect, SokobanState};
pub use conform::conform;
pub use generate::{Generator, Room, RoomConfig};
pub use level::{Level, Tile};
pub use options::{OneOrMany, SokobanOptions};
pub use path::shortest_path;
pub use planner::plan;
pub use render::{Rendering, compact, level_text, parse_compact, render};
pub use rules::{MoveOutcome, Play, STEP_REWARD, Termination};
pub use solvable::SolvabilityChecker;
pub use solver::{DEFAULT_MAX_STATES, SearchCost, SearchResult, Solution, solve};
pub use source::load_levels;
pub use spec::SokobanSpec;
pub use world::{SokobanConfig, SokobanEnv, TurnRules};
