//! Sokoban: push every box onto a target; nothing can be pulled back.
//!
//! Rooms come from the generator of the MAGE and RAGEN code, bit for bit, or from level files (Boxoban's or one's own). A
//! turn is up to three moves. An agent sees the whole room; what it has to learn within its window is where its last plan
//! went wrong.

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

pub use board::{Board, MAX_CELLS, Move, Moved, State};
pub use conform::conform;
pub use generate::{Generator, Room, RoomSettings};
pub use level::{Cell, Level};
pub use options::{Several, SokobanOptions};
pub use path::shortest_path;
pub use planner::plan;
pub use render::{Rendering, compact, drawing, from_compact, render};
pub use rules::{Moment, Over, Play, STEP};
pub use solvable::Solvable;
pub use solver::{Cost, DEFAULT_STATES, Solution, Verdict, solve};
pub use source::load_levels;
pub use spec::SokobanSpec;
pub use world::{SokobanWorld, TurnRules, WorldSettings};
