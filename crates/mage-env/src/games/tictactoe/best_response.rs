//! Best response to a known player, as a table over boards.
//!
//! Backward induction maximises the win probability, then minimises the loss probability.

use super::rules::{ARRANGEMENTS, Board, BoardCell, TicTacToe};
use crate::{Error, Opponent, Result, Rng};

/// Probabilities within this difference count as equal.
const TIE: f64 = 1e-12;

/// The best response of one seat to a player in the other.
pub struct TicTacToeBestResponse {
    seat: u8,
    /// By [`Board::index`]; `None` for unreachable boards.
    probs: Vec<Option<WinLossProbs>>,
}

/// Win and loss probabilities of a game.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WinLossProbs {
    /// Win probability.
    pub win: f64,
    /// Loss probability.
    pub loss: f64,
}

impl WinLossProbs {
    fn better_than(self, other: WinLossProbs) -> bool {
        self.win > other.win + TIE || (self.win >= other.win - TIE && self.loss < other.loss - TIE)
    }
}

impl TicTacToeBestResponse {
    /// The best response of `seat`. Fails for a player without action probabilities.
    pub fn against(player: &dyn Opponent<TicTacToe>, seat: u8) -> Result<Self> {
        let mut response = TicTacToeBestResponse { seat, probs: vec![None; ARRANGEMENTS] };
        response.solve(player, &Board::default())?;
        Ok(response)
    }

    fn solve(&mut self, player: &dyn Opponent<TicTacToe>, board: &Board) -> Result<WinLossProbs> {
        if let Some(known) = self.probs[board.index()] {
            return Ok(known);
        }
        let probs = if board.over() {
            let wins = |seat| f64::from(u8::from(board.winner() == Some(seat)));
            WinLossProbs { win: wins(self.seat), loss: wins(1 - self.seat) }
        } else if board.mover() == self.seat {
            let mut best: Option<WinLossProbs> = None;
            for cell in board.empty_cells() {
                let next = self.solve(player, &board.with(cell))?;
                if best.is_none_or(|b| next.better_than(b)) {
                    best = Some(next);
                }
            }
            best.expect("an open board has an empty cell")
        } else {
            let policy = player.policy(&TicTacToe, board, board.mover()).ok_or_else(|| {
                Error::invalid(
                    "best response",
                    "the player has no action probabilities; estimate them with a `MoveTable`",
                )
            })?;
            let mut mean = WinLossProbs { win: 0.0, loss: 0.0 };
            for (action, p) in policy.iter().filter(|(_, p)| *p > 0.0) {
                let next = self.solve(player, &board.with(BoardCell::of(*action)))?;
                mean = WinLossProbs { win: mean.win + p * next.win, loss: mean.loss + p * next.loss };
            }
            mean
        };
        self.probs[board.index()] = Some(probs);
        Ok(probs)
    }

    /// The responding seat.
    pub fn seat(&self) -> u8 {
        self.seat
    }

    /// Win and loss probabilities of a board; `None` if it is unreachable.
    pub(crate) fn outcome_probs(&self, board: &Board) -> Option<WinLossProbs> {
        self.probs[board.index()]
    }

    /// The best move for this seat (ties: the first in reading order); `None` when it is not to move. On unreachable
    /// boards, the first empty cell.
    pub fn best_move(&self, board: &Board) -> Option<BoardCell> {
        if board.over() || board.mover() != self.seat {
            return None;
        }
        let mut best: Option<(BoardCell, WinLossProbs)> = None;
        for cell in board.empty_cells() {
            let Some(c) = self.outcome_probs(&board.with(cell)) else { continue };
            if best.is_none_or(|(_, b)| c.better_than(b)) {
                best = Some((cell, c));
            }
        }
        best.map(|(cell, _)| cell).or_else(|| board.empty_cells().next())
    }

    /// Plays a game from `board` against a player and returns the final board.
    pub fn play(&self, player: &dyn Opponent<TicTacToe>, mut board: Board, rng: &mut Rng) -> Board {
        while !board.over() {
            match self.best_move(&board) {
                Some(cell) => board.play(cell),
                None => board.play(BoardCell::of(player.act(&TicTacToe, &board, board.mover(), rng))),
            }
        }
        board
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BlindLine, Perfect, PreferenceList, WinLine};
    use super::*;
    use crate::{Seed, UniformOpponent};

    fn at_start(player: &dyn Opponent<TicTacToe>, seat: u8) -> WinLossProbs {
        TicTacToeBestResponse::against(player, seat).unwrap().outcome_probs(&Board::default()).unwrap()
    }

    #[test]
    fn best_response_always_beats_preference_lists_and_nearly_always_random_play() {
        for seat in 0..2 {
            for list in 1..=6 {
                assert_eq!(at_start(&PreferenceList::paper(list).unwrap(), seat), WinLossProbs { win: 1.0, loss: 0.0 });
            }
            assert_eq!(at_start(&Perfect::default(), seat), WinLossProbs { win: 0.0, loss: 0.0 });
        }
        assert!((at_start(&UniformOpponent, 0).win - 0.994_791_667).abs() < 1e-9);
        assert!((at_start(&UniformOpponent, 1).win - 0.938_624_339).abs() < 1e-9);
        // A response that ignores losses wins as often but loses some of the other games.
        assert!(at_start(&UniformOpponent, 0).loss < 1e-9);
    }

    #[test]
    fn blind_rows_and_columns_are_exploitable_and_diagonals_are_not() {
        for line in WinLine::all() {
            let expected = if line.name().starts_with("diagonal") { 0.0 } else { 1.0 };
            assert_eq!(at_start(&BlindLine { line }, 0), WinLossProbs { win: expected, loss: 0.0 }, "{}", line.name());
        }
    }

    #[test]
    fn played_win_rate_matches_the_table() {
        let response = TicTacToeBestResponse::against(&UniformOpponent, 1).unwrap();
        let games = 20_000;
        let won =
            |i: u64| response.play(&UniformOpponent, Board::default(), &mut Seed::new(i).rng()).winner() == Some(1);
        let share = (0..games).filter(|i| won(*i)).count() as f64 / games as f64;
        assert!((share - 0.9386).abs() < 3.0 * (0.9386_f64 * 0.0614 / games as f64).sqrt(), "{share}");
    }
}
