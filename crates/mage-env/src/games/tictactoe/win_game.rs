//! Tic-Tac-Toe for the solvers: returns are wins, states are boards.
//!
//! The order of the marks affects neither the rest of the game nor the opponents here, so histories with equal boards
//! are merged. The solver keeps the information in an opponent's earlier moves in its belief.

use super::rules::{Board, TicTacToe};
use crate::{ActionId, ActionList, ActionProbs, CurrentPlayer, Game, MAX_PLAYERS, Opponent, Rng, Strategy, TextGame};

/// Tic-Tac-Toe in which a win returns 1 and anything else 0, and equal boards are equal states.
#[derive(Clone, Copy, Debug, Default)]
pub struct WinGame;

impl Game for WinGame {
    /// Always in reading order.
    type State = Board;

    fn players(&self) -> u8 {
        TicTacToe.players()
    }

    fn initial(&self, rng: &mut Rng) -> Board {
        TicTacToe.initial(rng)
    }

    fn current_player(&self, s: &Board) -> CurrentPlayer {
        TicTacToe.current_player(s)
    }

    fn legal(&self, s: &Board) -> ActionList {
        TicTacToe.legal(s)
    }

    fn apply(&self, s: &mut Board, a: ActionId) {
        TicTacToe.apply(s, a);
        *s = s.in_reading_order();
    }

    fn returns(&self, s: &Board) -> [f32; MAX_PLAYERS] {
        TicTacToe.returns(s).map(|r| r.max(0.0))
    }

    /// The board. Together with the previous board it determines the player's own last action.
    fn observe(&self, s: &Board, player: u8) -> String {
        TicTacToe.anchor(s, player)
    }
}

/// Adapts a Tic-Tac-Toe strategy to [`WinGame`].
pub struct WinGameOpponent(pub Strategy<TicTacToe>);

impl Opponent<WinGame> for WinGameOpponent {
    fn policy(&self, _game: &WinGame, s: &Board, seat: u8) -> Option<ActionProbs> {
        self.0.policy(&TicTacToe, s, seat)
    }

    fn act(&self, _game: &WinGame, s: &Board, seat: u8, rng: &mut Rng) -> ActionId {
        self.0.act(&TicTacToe, s, seat, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::board;
    use super::*;

    #[test]
    fn equal_boards_are_equal_states() {
        let play = |moves: &str| {
            let mut s = Board::default();
            for cell in board(moves).moves() {
                WinGame.apply(&mut s, cell.action());
            }
            s
        };
        assert_eq!(play("11 22 33"), play("33 22 11"));
        assert_ne!(play("11 22 33"), play("11 33 22"));
        let won = play("22 11 21 12 23");
        assert_eq!(WinGame.returns(&won)[..2], [1.0, 0.0]);
        assert_eq!(TicTacToe.score(&won, 0), 1.0);
        assert_eq!(TicTacToe.score(&won, 1), 0.0);
    }
}
