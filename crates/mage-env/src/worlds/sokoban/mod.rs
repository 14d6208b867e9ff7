//! Sokoban: push every box onto a target; boxes cannot be pulled.
//!
//! Rooms come from a bit-exact port of the generator in the MAGE and RAGEN code, or from level files (Boxoban or custom).
//! A turn is up to three moves. The room is fully observable; across episodes an agent learns where its last plan failed.

mod bitboard;
mod board;
mod ceilings;
mod conformance;
mod deadlock;
mod generator;
mod level;
mod options;
mod bfs;
mod planner;
mod render;
mod reverse_play;
mod rules;
mod solvability;
mod solver;
mod level_files;
mod spec;
mod solvable_table;
mod turn;
mod env;

pub use board::{Board, MAX_CELLS, Move, MoveEffect, SokobanState};
pub use conformance::conform;
pub use generator::{Generator, Room, RoomConfig};
pub use level::{Level, Tile};
pub use options::{OneOrMany, SokobanOptions};
pub use bfs::shortest_path;
pub use planner::plan;
pub use render::{Rendering, compact, level_text, parse_compact, render};
pub use rules::{MoveOutcome, Play, STEP_REWARD, Termination};
pub use solvability::SolvabilityChecker;
pub use solver::{DEFAULT_MAX_STATES, SearchCost, SearchResult, Solution, solve};
pub use level_files::load_levels;
pub use spec::SokobanSpec;
pub use env::{SokobanConfig, SokobanEnv, TurnRules};
