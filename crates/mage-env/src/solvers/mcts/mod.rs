//! Monte-Carlo tree search (MCTS) for any game.
//!
//! The search follows OpenSpiel's `MCTSBot`, so that playing strengths are comparable: UCT selection, children created
//! in random order on a node's second visit, one random playout at each new leaf, and a solver that marks states with a
//! proven result. Each move starts a new tree.
//!
//! The search reads the full state. In games of imperfect information it sees hidden parts, so it is meant for games of
//! perfect information.
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

use crate::{ActionId, CurrentPlayer, Game, MAX_PLAYERS, Rng, sample_action, sample_uniform};
use tree::CHANCE;

/// Search parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mcts {
    /// Number of playouts per move.
    pub simulations: u32,
    /// The exploration constant of UCT.
    pub uct_c: f64,
    /// Whether proven results end the search of their branch.
    pub solve: bool,
    /// The maximum return of the game, where known. The solver then stops at the first winning move.
    pub best_return: f32,
}

impl Mcts {
    /// The paper's parameters, with this number of playouts.
    pub fn new(simulations: u32) -> Self {
        Mcts { simulations, uct_c: 1.4, solve: true, best_return: f32::INFINITY }
    }

    /// Chooses an action for the player to move at `root` and leaves the search results in `tree`.
    ///
    /// # Panics
    ///
    /// If no player is to move at `root`.
    pub fn choose<G: Game>(&self, game: &G, root: &G::State, tree: &mut SearchTree, rng: &mut Rng) -> ActionId {
        self.search(game, root, tree, rng);
        tree.best().expect("a player is to move at the root").action
    }

    /// Searches from `root` and leaves the results in `tree`. A tree keeps its capacity, so later searches of the same
    /// size do not allocate.
    pub fn search<G: Game>(&self, game: &G, root: &G::State, tree: &mut SearchTree, rng: &mut Rng) {
        let CurrentPlayer::Player(mover) = game.current_player(root) else {
            tree.nodes.clear();
            return;
        };
        tree.reset(mover, self.simulations, game.legal(root).len());
        let mut state = root.clone();
        for _ in 0..self.simulations {
            state.clone_from(root);
            self.select_leaf(game, &mut state, tree, rng);
            let over = game.current_player(&state) == CurrentPlayer::Terminal;
            if !over {
                playout(game, &mut state, rng);
            }
            let returns = game.returns(&state);
            self.backpropagate(tree, &returns, over && self.solve);
            let root = &tree.nodes[0];
            if root.proven || root.children == 1 {
                break;
            }
        }
        if tree.nodes.len() == 1 {
            tree.expand(0, game, root, rng); // a single simulation expands nothing
        }
    }

    /// Selects a leaf. The path goes to `tree.path`, the leaf's state to `state`.
    fn select_leaf<G: Game>(&self, game: &G, state: &mut G::State, tree: &mut SearchTree, rng: &mut Rng) {
        let mut at = 0;
        tree.path.clear();
        tree.path.push(0);
        while tree.nodes[at].visits > 0 {
            let player = game.current_player(state);
            if player == CurrentPlayer::Terminal {
                return;
            }
            if tree.nodes[at].children == 0 {
                tree.expand(at, game, state, rng);
            }
            at = match player {
                CurrentPlayer::Chance => tree.child_by(at, sample_action(&game.chance(state), rng)),
                _ => tree.select_child(at, self.uct_c),
            };
            game.apply(state, tree.nodes[at].action);
            tree.path.push(at as u32);
        }
    }

    /// Adds a result to every node on the path and propagates proofs.
    fn backpropagate(&self, tree: &mut SearchTree, returns: &[f32; MAX_PLAYERS], mut proving: bool) {
        let root_player = tree.nodes[0].player;
        if let (true, Some(&leaf)) = (proving, tree.path.last()) {
            let leaf = &mut tree.nodes[leaf as usize];
            leaf.proven = true;
            leaf.outcome = *returns;
        }
        for i in (0..tree.path.len()).rev() {
            let at = tree.path[i] as usize;
            let node = &mut tree.nodes[at];
            let player = if node.player == CHANCE { root_player } else { node.player };
            node.total += f64::from(returns[usize::from(player)]);
            node.visits += 1;
            if proving && node.children > 0 {
                match tree.prove(at, self.best_return) {
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

/// Random play until the end.
fn playout<G: Game>(game: &G, state: &mut G::State, rng: &mut Rng) {
    loop {
        let action = match game.current_player(state) {
            CurrentPlayer::Terminal => return,
            CurrentPlayer::Chance => sample_action(&game.chance(state), rng),
            CurrentPlayer::Player(_) => sample_uniform(&game.legal(state), rng),
        };
        game.apply(state, action);
    }
}
