//! How likely are the moves of a player who cannot say?
//!
//! A searching opponent states no probabilities. Ask it often enough in every position it may get into, and the counts
//! are its [`MoveTable`]. What is fitted to a table must be valued in fresh games: whoever picks the best of many
//! estimates picks the lucky ones too.

use super::{
    rules::{Board, BoardCell, CELLS, TicTacToe},
    symmetry::{self, Turned},
};
use crate::{ActionProbs, Opponent, Seed, UniformOpponent};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// Whether a player treats boards that differ by turning or mirroring alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetry {
    /// It does, as tree search does: one board of each kind needs to be asked about.
    Invariant,
    /// It may not: every board is asked about.
    Unknown,
}

/// Moves of a player, counted.
pub struct MoveTable {
    /// The fewest asked for in a position.
    samples: u32,
    symmetry: Symmetry,
    /// By [`Board::index`]: how often each cell was chosen, shared out over cells that are alike.
    chosen: HashMap<usize, Row>,
}

struct Row {
    seat: u8,
    counts: [f64; CELLS],
}

impl MoveTable {
    /// Asks `player` for `samples` moves in every position it can get into from one of `seats`, whatever the other does,
    /// and twice as many for each mark short of four: every game comes through the early positions. Moves it never made
    /// in all of them lead nowhere.
    pub fn sample(
        player: &dyn Opponent<TicTacToe>,
        seats: impl IntoIterator<Item = u8>,
        samples: u32,
        symmetry: Symmetry,
        seed: Seed,
    ) -> Self {
        let mut table = MoveTable { samples, symmetry, chosen: HashMap::new() };
        for seat in seats {
            let mut seen = HashSet::new();
            let mut open = vec![Board::default()];
            // Marks are made in turn, so that all boards open at a time have the same mover.
            while !open.is_empty() {
                open = open.iter().map(|board| table.look_up(board).0).collect();
                open.retain(|board| !board.over() && seen.insert(board.index()));
                let asked: Vec<Board> = open.iter().copied().filter(|board| board.mover() == seat).collect();
                let row = |board: &Board| {
                    let counts = table.count(player, board, seed.at(board.index() as u64));
                    (board.index(), Row { seat, counts })
                };
                let rows: Vec<(usize, Row)> = asked.par_iter().map(row).collect();
                table.chosen.extend(rows);
                let leads_on = |board: &Board, cell: BoardCell| {
                    board.mover() != seat || table.chosen[&board.index()].counts[cell.number()] > 0.0
                };
                let next = |board: &Board| {
                    let cells = board.empty_cells().filter(|cell| leads_on(board, *cell));
                    cells.map(|cell| board.with(cell)).collect::<Vec<_>>()
                };
                open = open.iter().flat_map(next).collect();
            }
        }
        table
    }

    /// How many moves were asked for in each position, at least.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// In how many positions of a seat, those that are alike counted once.
    pub fn positions(&self, seat: u8) -> usize {
        self.chosen.values().filter(|row| row.seat == seat).count()
    }

    fn count(&self, player: &dyn Opponent<TicTacToe>, board: &Board, seed: Seed) -> [f64; CELLS] {
        let mut rng = seed.rng();
        let mut counts = [0.0; CELLS];
        for _ in 0..self.samples << 4_usize.saturating_sub(board.made()) {
            let cell = BoardCell::of(player.act(&TicTacToe, board, board.mover(), &mut rng));
            counts[cell.number()] += 1.0;
        }
        if self.symmetry == Symmetry::Unknown {
            return counts;
        }
        let same: Vec<Turned> =
            symmetry::all().into_iter().filter(|t| board.turned(t).index() == board.index()).collect();
        let share = |c: BoardCell| same.iter().map(|t| counts[t[c.number()].number()]).sum::<f64>() / same.len() as f64;
        let mut shared = [0.0; CELLS];
        BoardCell::all().for_each(|c| shared[c.number()] = share(c));
        shared
    }

    /// The board that was asked about in place of this one, and where cells went.
    fn look_up(&self, board: &Board) -> (Board, Turned) {
        match self.symmetry {
            Symmetry::Invariant => symmetry::representative(board),
            Symmetry::Unknown => (*board, symmetry::all()[0]),
        }
    }
}

impl Opponent<TicTacToe> for MoveTable {
    /// The shares of the moves counted; any empty cell alike in positions the player never got into.
    fn policy(&self, game: &TicTacToe, s: &Board, seat: u8) -> Option<ActionProbs> {
        let (asked, to) = self.look_up(s);
        let Some(Row { counts, .. }) = self.chosen.get(&asked.index()) else {
            return UniformOpponent.policy(game, s, seat);
        };
        let total: f64 = counts.iter().sum();
        Some(s.empty_cells().map(|c| (c.action(), counts[to[c.number()].number()] / total)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BiasedRandom, PreferenceList, TicTacToeBestResponse, paper_mcts, rules::tests::board};
    use super::*;
    use crate::solvers::mcts::MctsOpponent;

    fn share(table: &MoveTable, board: &Board, cell: &str) -> f64 {
        let digits = cell.as_bytes();
        let cell = BoardCell::new(digits[0] - b'0', digits[1] - b'0').unwrap();
        let policy = table.policy(&TicTacToe, board, board.mover()).unwrap();
        policy.iter().find(|(a, _)| *a == cell.action()).unwrap().1
    }

    #[test]
    fn counts_approach_what_the_player_would_have_stated() {
        let player = BiasedRandom::default();
        for symmetry in [Symmetry::Invariant, Symmetry::Unknown] {
            let table = MoveTable::sample(&player, [1], 4_000, symmetry, Seed::new(1));
            let stated = player.policy(&TicTacToe, &board("13"), 1).unwrap();
            for (a, p) in &stated {
                let got = table.policy(&TicTacToe, &board("13"), 1).unwrap();
                let got = got.iter().find(|(b, _)| a == b).unwrap().1;
                assert!((got - p).abs() < 0.03, "{a:?}: {got} where {p} is stated");
            }
        }
    }

    #[test]
    fn a_player_with_a_direction_is_not_turned() {
        let list = PreferenceList::paper(6).unwrap();
        let table = MoveTable::sample(&list, [1], 10, Symmetry::Unknown, Seed::new(1));
        assert_eq!(share(&table, &board("22"), "33"), 1.0);
        assert_eq!(share(&table, &board("33"), "31"), 1.0);
        let exact = TicTacToeBestResponse::against(&list, 0).unwrap();
        let fitted = TicTacToeBestResponse::against(&table, 0).unwrap();
        assert_eq!(exact.chances(&Board::default()), fitted.chances(&Board::default()));
    }

    #[test]
    fn boards_that_are_alike_get_the_same_answers() {
        let player = MctsOpponent::new(paper_mcts(30));
        let table = MoveTable::sample(&player, [1], 100, Symmetry::Invariant, Seed::new(2));
        assert_eq!(share(&table, &board("11"), "22"), share(&table, &board("33"), "22"));
        assert_eq!(share(&table, &board("12"), "11"), share(&table, &board("12"), "13"));
        assert_eq!(share(&table, &board("12"), "32"), share(&table, &board("21"), "23"));
        assert!((1..300).contains(&table.positions(1)) && table.positions(0) == 0);
    }
}
