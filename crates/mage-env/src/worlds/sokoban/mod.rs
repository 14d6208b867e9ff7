//! Sokoban: push every box onto a target; boxes cannot be pulled.
//!
//! Rooms come from a bit-exact port of the generator in the MAGE and RAGEN code, or from level files (Boxoban or custom).
//! An action is up to three moves. The room is fully observable; across episodes an agent learns where its last plan failed.

mod action;
mod bfs;
mod bitboard;
mod board;
mod ceilings;
mod conformance;
mod deadlock;
mod env;
mod generator;
mod level;
mod level_files;
mod options;
mod planner;
mod render;
mod reverse_play;
mod rules;
mod solvability;
mod solvable_table;
mod solver;
mod spec;

pub use bfs::shortest_path;
pub use board::{MAX_CELLS, Move, MoveEffect, SokobanBoard, SokobanState};
pub use conformance::conform;
pub use env::{SokobanConfig, SokobanEnv, StepRules};
pub use generator::{Generator, RoomConfig, SokobanRoom};
pub use level::{SokobanLevel, Tile};
pub use level_files::load_levels;
pub use options::{CountOrList, SokobanOptions};
pub use planner::plan;
pub use render::{Rendering, compact, level_text, parse_compact, render};
pub use rules::{MoveOutcome, STEP_REWARD, SokobanEpisode, Termination};
pub use solvability::SolvabilityChecker;
pub use solver::{DEFAULT_MAX_STATES, SearchCost, SearchResult, SokobanSolution, solve};
pub use spec::SokobanSpec;
