//! Estimated action probabilities of a player that has none.
//!
//! A searching opponent has no known action probabilities. A [`MoveTable`] samples its moves on every board it can
//! reach. A policy fitted to a table must be evaluated in fresh games, because maximising over noisy estimates
//! overfits.

use super::{
    rules::{Board, BoardCell, CELLS, TicTacToe},
    symmetry::{self, CellPermutation},
};
use crate::{ActionProbs, Opponent, Seed, UniformOpponent};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// Whether a player's move distribution is invariant under rotations and reflections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetry {
    /// Invariant, as for MCTS: one board per equivalence class is sampled.
    Invariant,
    /// Unknown: every board is sampled.
    Unknown,
}

/// Sampled move counts of a player.
pub struct MoveTable {
    /// Minimum number of samples per board.
    samples: u32,
    symmetry: Symmetry,
    /// By [`Board::index`]: counts per cell, averaged over equivalent cells.
    counts: HashMap<usize, MoveCounts>,
}

struct MoveCounts {
    seat: u8,
    counts: [f64; CELLS],
}

impl MoveTable {
    /// Samples `samples` moves of `player` on every board it can reach from one of `seats` against any opponent, and
    /// twice as many for each mark short of four, because every game passes through early boards. Moves that never
    /// occur are not followed.
    pub fn sample(
        player: &dyn Opponent<TicTacToe>,
        seats: impl IntoIterator<Item = u8>,
        samples: u32,
        symmetry: Symmetry,
        seed: Seed,
    ) -> Self {
        let mut table = MoveTable { samples, symmetry, counts: HashMap::new() };
        for seat in seats {
            let mut seen = HashSet::new();
            let mut open = vec![Board::default()];
            // Marks alternate, so all open boards have the same number of marks and the same player to move.
            while !open.is_empty() {
                open = open.iter().map(|board| table.canonical(board).0).collect();
                open.retain(|board| !board.over() && seen.insert(board.index()));
                let sampled: Vec<Board> = open.iter().copied().filter(|board| board.mover() == seat).collect();
                let entry = |board: &Board| {
                    let counts = table.count(player, board, seed.at(board.index() as u64));
                    (board.index(), MoveCounts { seat, counts })
                };
                let entries: Vec<(usize, MoveCounts)> = sampled.par_iter().map(entry).collect();
                table.counts.extend(entries);
                let possible = |board: &Board, cell: BoardCell| {
                    board.mover() != seat || table.counts[&board.index()].counts[cell.number()] > 0.0
                };
                let next = |board: &Board| {
                    let cells = board.empty_cells().filter(|cell| possible(board, *cell));
                    cells.map(|cell| board.with(cell)).collect::<Vec<_>>()
                };
                open = open.iter().flat_map(next).collect();
            }
        }
        table
    }

    /// Minimum number of samples per board.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Number of sampled boards of a seat, one per equivalence class.
    pub fn positions(&self, seat: u8) -> usize {
        self.counts.values().filter(|entry| entry.seat == seat).count()
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
        let symmetries: Vec<CellPermutation> =
            symmetry::all().into_iter().filter(|t| board.permuted(t).index() == board.index()).collect();
        let mean = |c: BoardCell| {
            symmetries.iter().map(|t| counts[t[c.number()].number()]).sum::<f64>() / symmetries.len() as f64
        };
        let mut averaged = [0.0; CELLS];
        BoardCell::all().for_each(|c| averaged[c.number()] = mean(c));
        averaged
    }

    /// The sampled board of this board's equivalence class, and the permutation to it.
    fn canonical(&self, board: &Board) -> (Board, CellPermutation) {
        match self.symmetry {
            Symmetry::Invariant => symmetry::canonical(board),
            Symmetry::Unknown => (*board, symmetry::all()[0]),
        }
    }
}

impl Opponent<TicTacToe> for MoveTable {
    /// Sampled move frequencies; uniform on boards that were never reached.
    fn policy(&self, game: &TicTacToe, s: &Board, seat: u8) -> Option<ActionProbs> {
        let (sampled, permutation) = self.canonical(s);
        let Some(MoveCounts { counts, .. }) = self.counts.get(&sampled.index()) else {
            return UniformOpponent.policy(game, s, seat);
        };
        let total: f64 = counts.iter().sum();
        Some(s.empty_cells().map(|c| (c.action(), counts[permutation[c.number()].number()] / total)).collect())
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
    fn frequencies_converge_to_the_players_probabilities() {
        let player = BiasedRandom::default();
        for symmetry in [Symmetry::Invariant, Symmetry::Unknown] {
            let table = MoveTable::sample(&player, [1], 4_000, symmetry, Seed::new(1));
            let exact = player.policy(&TicTacToe, &board("13"), 1).unwrap();
            for (a, p) in &exact {
                let got = table.policy(&TicTacToe, &board("13"), 1).unwrap();
                let got = got.iter().find(|(b, _)| a == b).unwrap().1;
                assert!((got - p).abs() < 0.03, "{a:?}: {got}, exact {p}");
            }
        }
    }

    #[test]
    fn asymmetric_player_is_sampled_on_every_board() {
        let list = PreferenceList::paper(6).unwrap();
        let table = MoveTable::sample(&list, [1], 10, Symmetry::Unknown, Seed::new(1));
        assert_eq!(share(&table, &board("22"), "33"), 1.0);
        assert_eq!(share(&table, &board("33"), "31"), 1.0);
        let exact = TicTacToeBestResponse::against(&list, 0).unwrap();
        let fitted = TicTacToeBestResponse::against(&table, 0).unwrap();
        assert_eq!(exact.outcome_probs(&Board::default()), fitted.outcome_probs(&Board::default()));
    }

    #[test]
    fn equivalent_boards_have_the_same_distribution() {
        let player = MctsOpponent::new(paper_mcts(30));
        let table = MoveTable::sample(&player, [1], 100, Symmetry::Invariant, Seed::new(2));
        assert_eq!(share(&table, &board("11"), "22"), share(&table, &board("33"), "22"));
        assert_eq!(share(&table, &board("12"), "11"), share(&table, &board("12"), "13"));
        assert_eq!(share(&table, &board("12"), "32"), share(&table, &board("21"), "23"));
        assert!((1..300).contains(&table.positions(1)) && table.positions(0) == 0);
    }
}
