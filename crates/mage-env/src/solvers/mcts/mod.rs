//! How does a player think ahead in any game, without knowing anything about it?
//!
//! Monte-Carlo tree search as in OpenSpiel's `MCTSBot`, so that strengths can be compared: UCT selection, children made
//! in random order on a node's second visit, one random playout at each new leaf, and a solver that marks positions
//! whose result is proven. Each move starts a new tree.
//!
//! The search sees the whole position. In games with hidden parts it therefore peeks; it is meant for games without.
//!
//! ```
//! use mage_env::{Game, Seed, solvers::mcts::{Mcts, SearchTree}, tictactoe::{BoardCell, Board, TicTacToe}};
//! // Seat 0 has two in the top row and is to move.
//! let cells = [(1, 1), (2, 1), (1, 2), (2, 2)].map(|(r, c)| BoardCell::new(r, c).unwrap());
//! let board = Board::after(cells).unwrap();
//! let action = Mcts::new(200).choose(&TicTacToe, &board, &mut SearchTree::default(), &mut Seed::new(1).rng());
//! assert_eq!(BoardCell::of(action), BoardCell::new(1, 3).unwrap());
//! ```

mod opponent;
#[cfg(test)]
mod tests;
mod tree;

pub use opponent::MctsOpponent;
pub use tree::{ActionStats, SearchTree};

use crate::{ActionId, CurrentPlayer, Game, MAX_PLAYERS, Rng, draw, draw_uniform};
use tree::NATURE;

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mcts {
    /// How many playouts a move may take.
    pub simulations: u32,
    /// The weight of exploration.
    pub uct_c: f64,
    /// Whether results that are proven end the search of their branch.
    pub solve: bool,
    /// A return that cannot be beaten, where the game has one: the solver then need not look at a winner's other moves.
    pub best_return: f32,
}

impl Mcts {
    /// The paper's settings, with so many playouts.
    pub fn new(simulations: u32) -> Self {
        Mcts { simulations, uct_c: 1.4, solve: true, best_return: f32::INFINITY }
    }

    /// Chooses an action for whoever moves at `root`, and leaves what it found in `tree`.
    ///
    /// # Panics
    ///
    /// When no player moves at `root`.
    pub fn choose<G: Game>(&self, game: &G, root: &G::State, tree: &mut SearchTree, rng: &mut Rng) -> ActionId {
        self.search(game, root, tree, rng);
        tree.best().expect("somebody moves at the root").action
    }

    /// Searches from `root`, and leaves what it found in `tree`. Once the tree has its size, which is kept from search
    /// to search, nothing is allocated.
    pub fn search<G: Game>(&self, game: &G, root: &G::State, tree: &mut SearchTree, rng: &mut Rng) {
        let CurrentPlayer::Player(mover) = game.current_player(root) else {
            tree.nodes.clear();
            return;
        };
        tree.plant(mover, self.simulations, game.legal(root).len());
        let mut state = root.clone();
        for _ in 0..self.simulations {
            state.clone_from(root);
            self.descend(game, &mut state, tree, rng);
            let over = game.current_player(&state) == CurrentPlayer::Terminal;
            if !over {
                play_out(game, &mut state, rng);
            }
            let returns = game.returns(&state);
            self.back_up(tree, &returns, over && self.solve);
            let root = &tree.nodes[0];
            if root.proven || root.children == 1 {
                break;
            }
        }
        if tree.nodes.len() == 1 {
            tree.expand(0, game, root, rng); // a single simulation looks no further than the root
        }
    }

    /// Walks down to a leaf, leaving the way in the tree's path and the position there in `state`.
    fn descend<G: Game>(&self, game: &G, state: &mut G::State, tree: &mut SearchTree, rng: &mut Rng) {
        let mut at = 0;
        tree.path.clear();
        tree.path.push(0);
        while tree.nodes[at].visits > 0 {
            let turn = game.current_player(state);
            if turn == CurrentPlayer::Terminal {
                return;
            }
            if tree.nodes[at].children == 0 {
                tree.expand(at, game, state, rng);
            }
            at = match turn {
                CurrentPlayer::Chance => tree.child_by(at, draw(&game.chance(state), rng)),
                _ => tree.most_promising(at, self.uct_c),
            };
            game.apply(state, tree.nodes[at].action);
            tree.path.push(at as u32);
        }
    }

    /// Adds a result to every node on the path, and proves what it proves.
    fn back_up(&self, tree: &mut SearchTree, returns: &[f32; MAX_PLAYERS], mut proving: bool) {
        let root_player = tree.nodes[0].player;
        if let (true, Some(&leaf)) = (proving, tree.path.last()) {
            let leaf = &mut tree.nodes[leaf as usize];
            leaf.proven = true;
            leaf.outcome = *returns;
        }
        for i in (0..tree.path.len()).rev() {
            let at = tree.path[i] as usize;
            let node = &mut tree.nodes[at];
            let player = if node.player == NATURE { root_player } else { node.player };
            node.total += f64::from(returns[usize::from(player)]);
            node.visits += 1;
            if proving && node.children > 0 {
                match tree.proof(at, self.best_return) {
                    Some(outcome) => {
                        tree.nodes[at].proven = true;
                        tree.nodes[at].outcome = outcome;
                    }
                    None => proving = false,
                }
            }
        }
    }
}

/// Random play to the end.
fn play_out<G: Game>(game: &G, state: &mut G::State, rng: &mut Rng) {
    loop {
        let action = match game.current_player(state) {
            CurrentPlayer::Terminal => return,
            CurrentPlayer::Chance => draw(&game.chance(state), rng),
            CurrentPlayer::Player(_) => draw_uniform(&game.legal(state), rng),
        };
        game.apply(state, action);
    }
}
