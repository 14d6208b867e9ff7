//! What is the best answer to a player who is known?
//!
//! A table over positions, worked out backwards: the highest chance of winning from each, and among equal chances the
//! smallest of losing.

use super::rules::{ARRANGEMENTS, Board, BoardCell, TicTacToe};
use crate::{Error, Opponent, Result, Rng};

/// Values closer than this are equal.
const TIE: f64 = 1e-12;

/// The best answer of one seat to one player in the other.
pub struct TicTacToeBestResponse {
    seat: u8,
    /// By [`Board::index`]; `None` where play never leads.
    chances: Vec<Option<WinLossProbs>>,
}

/// How a game may end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WinLossProbs {
    /// How likely a win is.
    pub win: f64,
    /// How likely a loss is.
    pub loss: f64,
}

impl WinLossProbs {
    fn better_than(self, other: WinLossProbs) -> bool {
        self.win > other.win + TIE || (self.win >= other.win - TIE && self.loss < other.loss - TIE)
    }
}

impl TicTacToeBestResponse {
    /// The best answer of `seat`. Refuses a player that states no probabilities.
    pub fn against(player: &dyn Opponent<TicTacToe>, seat: u8) -> Result<Self> {
        let mut answer = TicTacToeBestResponse { seat, chances: vec![None; ARRANGEMENTS] };
        answer.solve(player, &Board::default())?;
        Ok(answer)
    }

    fn solve(&mut self, player: &dyn Opponent<TicTacToe>, board: &Board) -> Result<WinLossProbs> {
        if let Some(known) = self.chances[board.index()] {
            return Ok(known);
        }
        let chances = if board.over() {
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
                    "best answer",
                    "the player states no probabilities; ask it often enough and use the table of its moves",
                )
            })?;
            let mut mean = WinLossProbs { win: 0.0, loss: 0.0 };
            for (action, p) in policy.iter().filter(|(_, p)| *p > 0.0) {
                let next = self.solve(player, &board.with(BoardCell::of(*action)))?;
                mean = WinLossProbs { win: mean.win + p * next.win, loss: mean.loss + p * next.loss };
            }
            mean
        };
        self.chances[board.index()] = Some(chances);
        Ok(chances)
    }

    /// Whose answer it is.
    pub fn seat(&self) -> u8 {
        self.seat
    }

    /// What a position is worth; `None` where the player never lets the game go.
    pub fn chances(&self, board: &Board) -> Option<WinLossProbs> {
        self.chances[board.index()]
    }

    /// The best move for this seat (ties: the first in reading order); `None` when it is not to move. Where the player
    /// was not expected to let the game go, any empty cell.
    pub fn best_move(&self, board: &Board) -> Option<BoardCell> {
        if board.over() || board.mover() != self.seat {
            return None;
        }
        let mut best: Option<(BoardCell, WinLossProbs)> = None;
        for cell in board.empty_cells() {
            let Some(c) = self.chances(&board.with(cell)) else { continue };
            if best.is_none_or(|(_, b)| c.better_than(b)) {
                best = Some((cell, c));
            }
        }
        best.map(|(cell, _)| cell).or_else(|| board.empty_cells().next())
    }

    /// Plays a game from `board` with this answer against a player, and returns how it ended.
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
        TicTacToeBestResponse::against(player, seat).unwrap().chances(&Board::default()).unwrap()
    }

    #[test]
    fn habits_are_beaten_for_certain_and_chance_almost() {
        for seat in 0..2 {
            for list in 1..=6 {
                assert_eq!(at_start(&PreferenceList::paper(list).unwrap(), seat), WinLossProbs { win: 1.0, loss: 0.0 });
            }
            assert_eq!(at_start(&Perfect::default(), seat), WinLossProbs { win: 0.0, loss: 0.0 });
        }
        assert!((at_start(&UniformOpponent, 0).win - 0.994_791_667).abs() < 1e-9);
        assert!((at_start(&UniformOpponent, 1).win - 0.938_624_339).abs() < 1e-9);
        // Equally often won, but careless answers would lose some of the rest.
        assert!(at_start(&UniformOpponent, 0).loss < 1e-9);
    }

    #[test]
    fn blind_rows_and_columns_can_be_used_and_diagonals_not() {
        for line in WinLine::all() {
            let expected = if line.name().starts_with("diagonal") { 0.0 } else { 1.0 };
            assert_eq!(at_start(&BlindLine { line }, 0), WinLossProbs { win: expected, loss: 0.0 }, "{}", line.name());
        }
    }

    #[test]
    fn play_earns_what_the_table_says() {
        let answer = TicTacToeBestResponse::against(&UniformOpponent, 1).unwrap();
        let games = 20_000;
        let won = |i: u64| answer.play(&UniformOpponent, Board::default(), &mut Seed::new(i).rng()).winner() == Some(1);
        let share = (0..games).filter(|i| won(*i)).count() as f64 / games as f64;
        assert!((share - 0.9386).abs() < 3.0 * (0.9386_f64 * 0.0614 / games as f64).sqrt(), "{share}");
    }
}
