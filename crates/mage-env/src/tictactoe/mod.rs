//! Tic-Tac-Toe: nine cells, and opponents worth finding out.
//!
//! Seat 0 moves first. Whoever reads the board is X, whichever seat that is. Against perfect play every game is a draw;
//! what makes it a task for an agent that learns within its context are opponents with habits, and above all the
//! *blind-line* ones, which play perfectly but for one line they do not see.

mod factory;
mod minimax;
mod opponents;
mod rules;
mod wins;
mod words;

pub use factory::{TicTacToeFactory, TicTacToeOptions};
pub use minimax::Solution;
pub use opponents::{BiasedRandom, BlindLine, Perfect, Preferred, Ties, opponent_kinds, search};
pub use rules::{ARRANGEMENTS, Board, CELLS, Cell, Line, TicTacToe};
pub use wins::{Shown, Wins};
pub use words::{REFLECTION_WORDS, facts, name};
