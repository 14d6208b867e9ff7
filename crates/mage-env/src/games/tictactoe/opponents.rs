//! Opponents of Tic-Tac-Toe.

use super::{
    minimax::MinimaxSolution,
    rules::{Board, BoardCell, CELLS, TicTacToe, WinLine},
};
use crate::{
    ActionProbs, Error, Opponent, OpponentKinds, Result, Strategy, UniformOpponent,
    solvers::mcts::{Mcts, MctsOpponent},
};
use serde::Deserialize;
use std::sync::Arc;

/// Plays the first empty cell of a list; once the list is full, any cell uniformly. It neither blocks nor completes
/// lines on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferenceList {
    order: Vec<BoardCell>,
}

/// The paper's six lists: a description, and the cells as row and column digits.
const PAPER_LISTS: [(&str, &str); 6] = [
    ("centre, corners, edges", "22 11 13 31 33 12 21 23 32"),
    ("corners, centre, edges", "11 13 31 33 22 12 21 23 32"),
    ("edges, centre, corners", "12 21 23 32 22 11 13 31 33"),
    ("the diagonal from the top left, then corners, edges", "11 22 33 13 31 12 21 23 32"),
    ("the diagonal from the top right, then corners, edges", "13 22 31 11 33 12 21 23 32"),
    ("corners from the bottom right, centre, edges", "33 31 13 11 22 32 23 21 12"),
];

impl PreferenceList {
    /// One of the paper's six lists, numbered from 1.
    pub fn paper(number: usize) -> Option<Self> {
        let (_, digits) = PAPER_LISTS.get(number.checked_sub(1)?)?;
        let cells = digits.split(' ').map(str::as_bytes).map(|d| BoardCell::new(d[0] - b'0', d[1] - b'0'));
        Some(PreferenceList { order: cells.collect::<Option<_>>()? })
    }

    /// A list of (row, column) pairs from 1. `source` names the list in errors.
    pub fn from_pairs(pairs: &[(i64, i64)], source: &str) -> Result<Self> {
        let mut order = Vec::with_capacity(pairs.len());
        for &(row, column) in pairs {
            let problem = |what| Error::invalid(source, format!("[{row}, {column}] {what}"));
            let within = |n: i64| u8::try_from(n).ok();
            let cell = within(row).zip(within(column)).and_then(|(r, c)| BoardCell::new(r, c));
            let cell = cell.ok_or_else(|| problem("is not on the board; rows and columns go from 1 to 3"))?;
            if order.contains(&cell) {
                return Err(problem("is listed twice"));
            }
            order.push(cell);
        }
        if order.is_empty() {
            return Err(Error::invalid(source, "the list is empty; name at least one cell, such as [2, 2]"));
        }
        Ok(PreferenceList { order })
    }
}

impl Opponent<TicTacToe> for PreferenceList {
    fn policy(&self, game: &TicTacToe, s: &Board, seat: u8) -> Option<ActionProbs> {
        match self.order.iter().find(|c| s.is_empty(**c)) {
            Some(cell) => Some([(cell.action(), 1.0)].into_iter().collect()),
            None => UniformOpponent.policy(game, s, seat),
        }
    }
}

/// Random play biased to the centre and the corners: the weight of a cell decreases with its distance to the nearest of
/// them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasedRandom {
    alpha: f64,
}

/// Bound of |alpha|. At the bound an edge weighs 1e-12 of a corner, or 1e12 of it; far beyond, weights would not be
/// finite.
const MAX_ALPHA: f64 = 40.0;

impl BiasedRandom {
    /// The bias: weights are `(1 / (1 + distance))^alpha`, with `alpha` from -40 to 40. Negative values avoid the
    /// centre and the corners. `source` names the parameter in errors.
    pub fn new(alpha: f64, source: &str) -> Result<Self> {
        if alpha.abs() <= MAX_ALPHA {
            return Ok(BiasedRandom { alpha });
        }
        let problem = format!("`alpha` is {alpha}; it must be a number from -{MAX_ALPHA} to {MAX_ALPHA}");
        Err(Error::invalid(source, problem))
    }
}

impl Default for BiasedRandom {
    fn default() -> Self {
        BiasedRandom { alpha: 2.0 }
    }
}

impl Opponent<TicTacToe> for BiasedRandom {
    fn policy(&self, _game: &TicTacToe, s: &Board, _seat: u8) -> Option<ActionProbs> {
        // Edges have distance 1; all other cells are corners or the centre.
        let weight = |c: BoardCell| if is_edge(c) { 0.5_f64.powf(self.alpha) } else { 1.0 };
        let total: f64 = s.empty_cells().map(weight).sum();
        Some(s.empty_cells().map(|c| (c.action(), weight(c) / total)).collect())
    }
}

fn is_edge(cell: BoardCell) -> bool {
    cell.number() % 2 == 1
}

/// A perfect player: never lowers its minimax value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perfect {
    /// Choice among several best moves.
    pub ties: TieBreak,
}

/// Tie-breaking among moves of the same minimax value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TieBreak {
    /// Uniformly.
    #[default]
    Uniform,
    /// The first in the order centre, corners, edges.
    Fixed,
}

/// Centre, corners, edges; each from the top left.
const TIE_ORDER: [u8; CELLS] = [4, 0, 2, 6, 8, 1, 3, 5, 7];

impl TieBreak {
    fn choose(self, best: &[BoardCell]) -> ActionProbs {
        match self {
            TieBreak::Uniform => best.iter().map(|c| (c.action(), 1.0 / best.len() as f64)).collect(),
            TieBreak::Fixed => {
                let first = TIE_ORDER.into_iter().map(BoardCell::numbered).find(|c| best.contains(c));
                first.into_iter().map(|c| (c.action(), 1.0)).collect()
            }
        }
    }
}

impl Opponent<TicTacToe> for Perfect {
    fn policy(&self, _game: &TicTacToe, s: &Board, _seat: u8) -> Option<ActionProbs> {
        Some(self.ties.choose(&MinimaxSolution::perfect().best_moves(s)))
    }
}

/// Perfect play with fixed tie-breaking, except that it does not see that the opponent wins with one line. The line is
/// hidden; an agent that finds it wins every game.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlindLine {
    /// The unseen line.
    pub line: WinLine,
}

impl Opponent<TicTacToe> for BlindLine {
    fn policy(&self, _game: &TicTacToe, s: &Board, seat: u8) -> Option<ActionProbs> {
        Some(TieBreak::Fixed.choose(&MinimaxSolution::blind(self.line, 1 - seat).best_moves(s)))
    }
}

/// The built-in opponent kinds of Tic-Tac-Toe. More can be added.
pub fn opponent_kinds() -> OpponentKinds<TicTacToe> {
    let mut kinds = OpponentKinds::default();
    kinds.add_plain("random", "any empty cell, equally likely", UniformOpponent);
    kinds.add(
        "biased_random",
        "random, biased to the centre and corners by `alpha` (-40 to 40, default 2: edges weigh a quarter)",
        |params| {
            let source = "opponent of kind `biased_random`";
            let p: BiasedParams = params.read(source)?;
            Ok(Arc::new(BiasedRandom::new(p.alpha, source)?))
        },
    );
    kinds.add(
        "preferred",
        "the first empty cell of `order`, a list of [row, column] from 1, then any; never blocks",
        |params| {
            let source = "opponent of kind `preferred`";
            let p: PreferredParams = params.read(source)?;
            Ok(Arc::new(PreferenceList::from_pairs(&p.order, &format!("{source}: order"))?))
        },
    );
    for (i, (likes, _)) in PAPER_LISTS.iter().enumerate() {
        let list = PreferenceList::paper(i + 1).expect("the paper's lists name cells of the board");
        kinds.add_plain(&format!("preferred_{}", i + 1), &format!("the paper's list {}: {likes}", i + 1), list);
    }
    kinds.add(
        "perfect",
        "minimax; `ties` among best moves: uniform (default) or fixed (centre, corners, edges)",
        |params| {
            let p: PerfectParams = params.read("opponent of kind `perfect`")?;
            Ok(Arc::new(Perfect { ties: p.ties }))
        },
    );
    kinds.add(
        "blind_line",
        "perfect with fixed ties, but blind to your wins on `line` (row-1 to row-3, column-1 to column-3, diagonal-1, -2)",
        |params| {
            let source = "opponent of kind `blind_line`";
            let p: BlindParams = params.read(source)?;
            let line = WinLine::named(&p.line).ok_or_else(|| {
                Error::invalid(source, Error::unknown("line", &p.line, WinLine::all().map(WinLine::name)).to_string())
            })?;
            Ok(Arc::new(BlindLine { line }))
        },
    );
    kinds.add(
        "mcts",
        "tree search with `simulations` playouts a move (1 to 1000, default 100); `uct_c` (default 1.4), `solve` (default \
         true)",
        |params| build_mcts(params.read(MCTS_CONTEXT)?),
    );
    kinds.add_numbered("mcts", "mcts with N simulations, such as mcts-250", |number, params| {
        if params.0.contains_key("simulations") {
            return Err(Error::invalid(
                MCTS_CONTEXT,
                "`simulations` is the number in the kind's name; leave one of them out",
            ));
        }
        build_mcts(params.clone().with("simulations", number).read(MCTS_CONTEXT)?)
    });
    kinds
}

const MCTS_CONTEXT: &str = "opponent of kind `mcts`";

/// Maximum playouts per move: the paper's strongest opponent. 1000 playouts draw 99 of 100 games against a perfect
/// player, and a report on best responses to them samples some hundred thousand moves.
const MAX_SIMULATIONS: i64 = 1_000;

fn build_mcts(p: MctsParams) -> Result<Strategy<TicTacToe>> {
    if !(1..=MAX_SIMULATIONS).contains(&p.simulations) {
        let problem = format!("{} simulations a move; there may be 1 to {MAX_SIMULATIONS}", p.simulations);
        return Err(Error::invalid(MCTS_CONTEXT, problem));
    }
    if !(p.uct_c.is_finite() && p.uct_c >= 0.0) {
        return Err(Error::invalid(MCTS_CONTEXT, "`uct_c` must be a number of at least 0"));
    }
    let search = Mcts { uct_c: p.uct_c, solve: p.solve, ..paper_mcts(p.simulations as u32) };
    Ok(Arc::new(MctsOpponent::new(search)))
}

/// Whether a kind is an MCTS opponent, whose play is invariant under rotations and reflections of the board.
pub(super) fn is_mcts_kind(kind: &str) -> bool {
    kind == "mcts" || kind.starts_with("mcts-")
}

/// The MCTS parameters of the paper's opponents, with this number of playouts per move.
pub fn paper_mcts(simulations: u32) -> Mcts {
    Mcts { best_return: 1.0, ..Mcts::new(simulations) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BiasedParams {
    alpha: f64,
}

impl Default for BiasedParams {
    fn default() -> Self {
        BiasedParams { alpha: BiasedRandom::default().alpha }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PreferredParams {
    order: Vec<(i64, i64)>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct PerfectParams {
    ties: TieBreak,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlindParams {
    line: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MctsParams {
    #[serde(default = "default_simulations")]
    simulations: i64,
    #[serde(default = "default_uct_c")]
    uct_c: f64,
    #[serde(default = "default_solve")]
    solve: bool,
}

fn default_simulations() -> i64 {
    100
}

fn default_uct_c() -> f64 {
    Mcts::new(1).uct_c
}

fn default_solve() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OptionMap;
    use proptest::{prop_assert, prop_assert_eq, proptest, strategy::Just, strategy::Strategy as _};
    use serde_json::json;

    #[test]
    fn alpha_outside_its_range_is_rejected() {
        for alpha in [-MAX_ALPHA, 0.0, MAX_ALPHA] {
            assert!(BiasedRandom::new(alpha, "x").is_ok());
        }
        for alpha in [-5000.0, 40.1, 5000.0, f64::NAN, f64::INFINITY] {
            let e = BiasedRandom::new(alpha, "x").unwrap_err().to_string();
            assert_eq!(e, format!("x: `alpha` is {alpha}; it must be a number from -40 to 40"));
        }
    }

    proptest! {
        #[test]
        fn biased_random_has_a_distribution_on_every_board(
            alpha in -MAX_ALPHA..=MAX_ALPHA,
            order in Just((0..CELLS as u8).collect::<Vec<_>>()).prop_shuffle(),
            played in 0..CELLS,
        ) {
            let mut board = Board::default();
            order[..played].iter().for_each(|c| board.play(BoardCell::numbered(*c)));
            let policy = BiasedRandom::new(alpha, "x").unwrap().policy(&TicTacToe, &board, 0).unwrap();
            prop_assert_eq!(policy.len(), CELLS - played);
            prop_assert!(policy.iter().all(|(_, p)| (0.0..=1.0).contains(p)));
            prop_assert!((policy.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn mcts_kinds_are_named_by_their_simulations() {
        let kinds = opponent_kinds();
        let build = |kind: &str, params: OptionMap| {
            let spec = crate::OpponentSpec { params, ..crate::OpponentSpec::of_kind(kind) };
            kinds.build(&spec).map(drop).map_err(|e| e.to_string())
        };
        for kind in ["mcts", "mcts-1", "mcts-250", "mcts-1000"] {
            assert_eq!(build(kind, OptionMap::default()), Ok(()), "{kind}");
        }
        assert_eq!(build("mcts-25", OptionMap::default().with("solve", false)), Ok(()));
        for (kind, params, expected) in [
            ("mcts-0", OptionMap::default(), "0 simulations a move; there may be 1 to 1000"),
            ("mcts-1001", OptionMap::default(), "1001 simulations a move; there may be 1 to 1000"),
            ("mcts", OptionMap::default().with("simulations", 4_000_000_000_u64), "there may be 1 to 1000"),
            ("mcts-5", OptionMap::default().with("simulations", 5), "the number in the kind's name"),
            ("mcts-+5", OptionMap::default(), "unknown kind of opponent `mcts-+5`"),
            ("mcts-", OptionMap::default(), "unknown kind of opponent `mcts-`"),
            ("MCTS-100", OptionMap::default(), "unknown kind of opponent `MCTS-100`: did you mean `mcts-100`?"),
            ("mcts-99999999999999999999999", OptionMap::default(), "`mcts-99999999999999999999999` is far too large"),
            ("mcts", OptionMap::default().with("simulations", -5), "-5 simulations a move; there may be 1 to 1000"),
            ("mcts", OptionMap::default().with("simulations", "ten"), "`simulations` must be a whole number"),
            ("preferred", OptionMap::default().with("order", json!([[1, 300]])), "[1, 300] is not on the board"),
            ("ghost", OptionMap::default(), "known: biased_random, blind_line, mcts, mcts-N, perfect, "),
        ] {
            let e = build(kind, params).unwrap_err();
            assert!(e.contains(expected), "{kind}: {e}");
        }
    }
}
