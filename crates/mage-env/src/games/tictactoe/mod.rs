//! Tic-Tac-Toe with opponents that have exploitable habits.
//!
//! Seat 0 moves first. The reader of a board is X in either seat. Perfect play always draws. The adaptation task comes
//! from the opponents: *blind-line* opponents play perfectly except for one line that they do not see.

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
pub use text::{REFLECTION_WORDS, facts, read_board, read_facts};
pub use win_game::{WinGame, WinGameOpponent};
