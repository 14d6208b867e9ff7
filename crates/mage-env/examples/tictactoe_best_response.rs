//! Computes the best response to tree search and its win rates.
//!
//! `tictactoe_best_response SIMULATIONS GAMES` samples the search's moves on every board, computes the first player's best
//! response, plays it in fresh games after each opening (corner, edge, centre), and prints the results as JSON: boards
//! as nine of `.xo`, moves as cells from 0 to 8.

use mage_env::{
    Game, Seed,
    solvers::mcts::MctsOpponent,
    tictactoe::{Board, BoardCell, MoveTable, Symmetry, TicTacToe, TicTacToeBestResponse, paper_mcts},
};
use std::{
    collections::{BTreeMap, HashSet},
    error::Error,
};

const SAMPLES: u32 = 2_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let mut next = || args.next().ok_or("usage: tictactoe_best_response SIMULATIONS GAMES");
    let (simulations, games) = (next()??, next()??);
    let bot = MctsOpponent::new(paper_mcts(u32::try_from(simulations)?));
    let table = MoveTable::sample(&bot, [1], SAMPLES, Symmetry::Invariant, Seed::new(1));
    let response = TicTacToeBestResponse::against(&table, 0)?;

    let mut won = BTreeMap::new();
    for opening in [0_u8, 1, 4] {
        let start = Board::after(BoardCell::all().nth(usize::from(opening))).ok_or("an opening is legal")?;
        let seed = Seed::new(2).at(u64::from(opening));
        let wins = |i: &u64| response.play(&bot, start, &mut seed.at(*i).rng()).winner() == Some(0);
        won.insert(opening, (0..games).filter(wins).count() as f64 / games as f64);
    }
    let mut moves = BTreeMap::new();
    let mut seen = HashSet::new();
    let mut open = vec![Board::default()];
    while let Some(board) = open.pop() {
        if !seen.insert(board.index()) {
            continue;
        }
        if let Some(cell) = response.best_move(&board) {
            let marks =
                BoardCell::all().map(|c| [".", "x", "o"][board.mark(c).map_or(0, |seat| usize::from(seat) + 1)]);
            moves.insert(marks.collect::<String>(), cell.number());
        }
        for action in TicTacToe.legal(&board) {
            let mut next = board;
            TicTacToe.apply(&mut next, action);
            open.push(next);
        }
    }
    let out = serde_json::json!({ "samples": SAMPLES, "games": games, "won": won, "best_response": moves });
    let mut stdout = std::io::stdout();
    std::io::Write::write_all(&mut stdout, format!("{out}\n").as_bytes())?;
    Ok(())
}
