//! Tic-Tac-Toe: nine cells, and opponents worth finding out.
//!
//! Seat 0 moves first. Whoever reads the board is X, whichever seat that is. Against perfect play every game is a draw;
//! what makes it a task for an agent that learns within its context are opponents with habits, and above all the
//! *blind-line* ones, which play perfectly but for one line they do not see.

mod best_response;
mod ceilings;
mod minimax;
mod move_table;
mod opponents;
mod rules;
mod scripted_agents;
mod spec;
mod symmetry;
mod text;
mod win_game;

pub use best_response::{TicTacToeBestResponse, WinLossProbs};
pub use minimax::MinimaxSolution;
pub use move_table::{MoveTable, Symmetry};
pub use opponents::{BiasedRandom, BlindLine, Perfect, PreferenceList, TieBreak, opponent_kinds, paper_mcts};
pub use rules::{ARRANGEMENTS, Board, BoardCell, CELLS, TicTacToe, WinLine};
pub use spec::{TicTacToeOptions, TicTacToeSpec};
pub use text::{REFLECTION_WORDS, facts, name, read_board, read_facts};
pub use win_game::{WinGame, WinGameOpponent};
