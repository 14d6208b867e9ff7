//! How does a player think ahead in any game, without knowing anything about it?
//!
//! Monte-Carlo tree search as in OpenSpiel's `MCTSBot`, so that strengths can be compared: UCT selection, children made
//! in random order on a node's second visit, one random playout at each new leaf, and a solver that marks positions
//! whose result is proven. Each move starts a new tree.
//!
//! The search sees the whole position. In games with hidden parts it therefore peeks; it is meant for games without.
//!
//! ```
//! use mage_env::{Game, Seed, mcts::{Mcts, Tree}, tictactoe::{Cell, Board, TicTacToe}};
//! // Seat 0 has two in the top row and is to move.
//! let cells = [(1, 1), (2, 1), (1, 2), (2, 2)].map(|(r, c)| Cell::new(r, c).unwrap());
//! let board = Board::after(cells).unwrap();
//! let action = Mcts::new(200).choose(&TicTacToe, &board, &mut Tree::default(), &mut Seed::new(1).rng());
//! assert_eq!(Cell::of(action), Cell::new(1, 3).unwrap());
//! ```

use crate::{ActionId, ActionProbs, Game, MAX_PLAYERS, Opponent, Rng, Turn, draw, draw_uniform};
use rand::RngExt;
use std::sync::{Mutex, PoisonError};

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
    pub fn choose<G: Game>(&self, game: &G, root: &G::State, tree: &mut Tree, rng: &mut Rng) -> ActionId {
        self.search(game, root, tree, rng);
        tree.best().expect("somebody moves at the root").action
    }

    /// Searches from `root`, and leaves what it found in `tree`. Once the tree has its size, which is kept from search
    /// to search, nothing is allocated.
    pub fn search<G: Game>(&self, game: &G, root: &G::State, tree: &mut Tree, rng: &mut Rng) {
        let Turn::Player(mover) = game.turn(root) else {
            tree.nodes.clear();
            return;
        };
        tree.plant(mover, self.simulations, game.legal(root).len());
        let mut state = root.clone();
        for _ in 0..self.simulations {
            state.clone_from(root);
            self.descend(game, &mut state, tree, rng);
            let over = game.turn(&state) == Turn::Over;
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
    fn descend<G: Game>(&self, game: &G, state: &mut G::State, tree: &mut Tree, rng: &mut Rng) {
        let mut at = 0;
        tree.path.clear();
        tree.path.push(0);
        while tree.nodes[at].visits > 0 {
            let turn = game.turn(state);
            if turn == Turn::Over {
                return;
            }
            if tree.nodes[at].children == 0 {
                tree.expand(at, game, state, rng);
            }
            at = match turn {
                Turn::Chance => tree.child_by(at, draw(&game.chance(state), rng)),
                _ => tree.most_promising(at, self.uct_c),
            };
            game.apply(state, tree.nodes[at].action);
            tree.path.push(at as u32);
        }
    }

    /// Adds a result to every node on the path, and proves what it proves.
    fn back_up(&self, tree: &mut Tree, returns: &[f32; MAX_PLAYERS], mut proving: bool) {
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
        let action = match game.turn(state) {
            Turn::Over => return,
            Turn::Chance => draw(&game.chance(state), rng),
            Turn::Player(_) => draw_uniform(&game.legal(state), rng),
        };
        game.apply(state, action);
    }
}

/// What a search found; its memory serves the next search too.
#[derive(Debug, Default)]
pub struct Tree {
    /// The root first; siblings together.
    nodes: Vec<Node>,
    /// From the root to the leaf of the current simulation.
    path: Vec<u32>,
}

/// A way the game may go.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// What each seat gets, when proven.
    outcome: [f32; MAX_PLAYERS],
    /// The returns of whoever chose the action that led here, added up.
    total: f64,
    visits: u32,
    first_child: u32,
    children: u16,
    action: ActionId,
    /// Whoever chose the action that led here; at the root, whoever moves.
    player: u8,
    proven: bool,
}

/// Stands for nature where a player's number is kept.
const NATURE: u8 = u8::MAX;

/// A tree this large is not reserved ahead, but grows.
const RESERVE_AT_MOST: usize = 1 << 17;

/// One of the root's actions and what the search thinks of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Considered {
    /// The action.
    pub action: ActionId,
    /// How often it was tried.
    pub visits: u32,
    /// The mover's mean return; not a number when never tried.
    pub mean: f64,
    /// The mover's return, when proven.
    pub proven: Option<f32>,
}

impl Tree {
    /// The root's actions, in no particular order.
    pub fn considered(&self) -> impl Iterator<Item = Considered> + '_ {
        self.children_of(0).iter().map(Node::considered)
    }

    /// The mover's return at the root, when proven.
    pub fn proven(&self) -> Option<f32> {
        let root = self.nodes.first()?;
        root.proven.then(|| root.own_outcome())
    }

    /// The action to play: by proven return (0 when not proven), then visits, then total return.
    fn best(&self) -> Option<&Node> {
        let key = |n: &Node| (if n.proven { n.own_outcome() } else { 0.0 }, n.visits, n.total);
        let mut best: Option<&Node> = None;
        for node in self.children_of(0) {
            if best.is_none_or(|b| key(node) > key(b)) {
                best = Some(node);
            }
        }
        best
    }

    fn plant(&mut self, mover: u8, simulations: u32, actions: usize) {
        self.nodes.clear();
        self.nodes.reserve((1 + simulations as usize * actions).min(RESERVE_AT_MOST));
        self.nodes.push(Node::new(ActionId(0), mover));
    }

    fn children_of(&self, at: usize) -> &[Node] {
        match self.nodes.get(at) {
            Some(n) => &self.nodes[n.first_child as usize..][..usize::from(n.children)],
            None => &[],
        }
    }

    /// Makes the children of a node, in random order so that ties favour no action.
    fn expand<G: Game>(&mut self, at: usize, game: &G, state: &G::State, rng: &mut Rng) {
        let player = match game.turn(state) {
            Turn::Player(p) => p,
            _ => NATURE,
        };
        let mut actions = game.legal(state);
        for i in (1..actions.len()).rev() {
            actions.swap(i, rng.random_range(0..=i));
        }
        self.nodes[at].first_child = self.nodes.len() as u32;
        self.nodes[at].children = actions.len() as u16;
        self.nodes.extend(actions.into_iter().map(|a| Node::new(a, player)));
    }

    fn child_by(&self, at: usize, action: ActionId) -> usize {
        let i = self.children_of(at).iter().position(|n| n.action == action).expect("nature's actions are legal");
        self.nodes[at].first_child as usize + i
    }

    /// The child with the largest upper confidence bound; a proven one counts for what it is.
    fn most_promising(&self, at: usize, uct_c: f64) -> usize {
        let log_visits = f64::from(self.nodes[at].visits).ln();
        let mut best = (f64::NEG_INFINITY, 0);
        for (i, n) in self.children_of(at).iter().enumerate() {
            let value = if n.proven {
                f64::from(n.own_outcome())
            } else if n.visits == 0 {
                f64::INFINITY
            } else {
                let visits = f64::from(n.visits);
                n.total / visits + uct_c * (log_visits / visits).sqrt()
            };
            if value == f64::INFINITY {
                best = (value, i);
                break;
            }
            if value > best.0 {
                best = (value, i);
            }
        }
        self.nodes[at].first_child as usize + best.1
    }

    /// The result of a node, if its children prove one: all are proven, or one is as good as can be for whoever
    /// chooses. Nature's choice proves a result only when all of them lead to it.
    fn proof(&self, at: usize, best_return: f32) -> Option<[f32; MAX_PLAYERS]> {
        let children = self.children_of(at);
        let chooser = children[0].player;
        if chooser == NATURE {
            let first = children[0].outcome;
            return children.iter().all(|n| n.proven && n.outcome == first).then_some(first);
        }
        let proven = children.iter().filter(|n| n.proven);
        let best = proven.max_by(|a, b| a.own_outcome().total_cmp(&b.own_outcome()))?;
        let settled = best.own_outcome() >= best_return || children.iter().all(|n| n.proven);
        settled.then_some(best.outcome)
    }
}

impl Node {
    fn new(action: ActionId, player: u8) -> Self {
        Node {
            outcome: [0.0; MAX_PLAYERS],
            total: 0.0,
            visits: 0,
            first_child: 0,
            children: 0,
            action,
            player,
            proven: false,
        }
    }

    fn own_outcome(&self) -> f32 {
        self.outcome[usize::from(self.player)]
    }

    fn considered(&self) -> Considered {
        Considered {
            action: self.action,
            visits: self.visits,
            mean: self.total / f64::from(self.visits),
            proven: self.proven.then(|| self.own_outcome()),
        }
    }
}

/// An opponent that searches before each move, with luck from the generator it is given.
#[derive(Debug)]
pub struct MctsOpponent {
    search: Mcts,
    /// Trees not in use, for whoever moves next.
    spare: Mutex<Vec<Tree>>,
}

impl MctsOpponent {
    /// Searches like this.
    pub fn new(search: Mcts) -> Self {
        MctsOpponent { search, spare: Mutex::new(Vec::new()) }
    }

    /// How it searches.
    pub fn settings(&self) -> Mcts {
        self.search
    }

    fn with_tree<T>(&self, work: impl FnOnce(&mut Tree) -> T) -> T {
        // A tree is rewritten before use, so one left behind by a panic elsewhere does no harm.
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tree = spare().pop().unwrap_or_default();
        let result = work(&mut tree);
        spare().push(tree);
        result
    }
}

impl<G: Game> Opponent<G> for MctsOpponent {
    /// None: how likely each move is can only be found by playing.
    fn policy(&self, _game: &G, _s: &G::State, _seat: u8) -> Option<ActionProbs> {
        None
    }

    fn act(&self, game: &G, s: &G::State, _seat: u8, rng: &mut Rng) -> ActionId {
        self.with_tree(|tree| self.search.choose(game, s, tree, rng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ActionList, Seed,
        kuhn::{Card, Hand, Kuhn},
    };

    /// Take one to three stones; whoever takes the last one wins. Multiples of four lose.
    struct Nim;

    impl Game for Nim {
        type State = (u8, u8);

        fn players(&self) -> u8 {
            2
        }

        fn initial(&self, _rng: &mut Rng) -> (u8, u8) {
            (11, 0)
        }

        fn turn(&self, &(stones, mover): &(u8, u8)) -> Turn {
            if stones == 0 { Turn::Over } else { Turn::Player(mover) }
        }

        fn legal(&self, &(stones, _): &(u8, u8)) -> ActionList {
            (1..=stones.min(3)).map(|n| ActionId(u16::from(n))).collect()
        }

        fn apply(&self, s: &mut (u8, u8), a: ActionId) {
            *s = (s.0 - a.0 as u8, 1 - s.1);
        }

        fn returns(&self, &(stones, mover): &(u8, u8)) -> [f32; MAX_PLAYERS] {
            match (stones, mover) {
                (0, 1) => [1.0, -1.0, 0.0, 0.0],
                (0, _) => [-1.0, 1.0, 0.0, 0.0],
                _ => [0.0; MAX_PLAYERS],
            }
        }

        fn observe(&self, s: &(u8, u8), _player: u8) -> String {
            format!("{s:?}")
        }
    }

    /// A coin decides: heads is worth 3 to the mover who dared, tails −1; not daring is worth 0.5. And a sure thing that
    /// nature reaches by two equal ways is worth 0.75.
    struct Dare;

    impl Game for Dare {
        type State = Vec<u16>; // a state that owns memory

        fn players(&self) -> u8 {
            1
        }

        fn initial(&self, _rng: &mut Rng) -> Vec<u16> {
            Vec::new()
        }

        fn turn(&self, s: &Vec<u16>) -> Turn {
            match s[..] {
                [] => Turn::Player(0),
                [1 | 2] => Turn::Chance,
                _ => Turn::Over,
            }
        }

        fn legal(&self, s: &Vec<u16>) -> ActionList {
            let n = [3, 2, 0][s.len()];
            (0..n).map(ActionId).collect()
        }

        fn chance(&self, s: &Vec<u16>) -> ActionProbs {
            let heads = if s[0] == 1 { 0.25 } else { 0.5 };
            [(ActionId(0), heads), (ActionId(1), 1.0 - heads)].into_iter().collect()
        }

        fn apply(&self, s: &mut Vec<u16>, a: ActionId) {
            s.push(a.0);
        }

        fn returns(&self, s: &Vec<u16>) -> [f32; MAX_PLAYERS] {
            let value = match s[..] {
                [0] => 0.5,
                [1, 0] => 3.0,
                [1, 1] => -1.0,
                [2, _] => 0.75,
                _ => 0.0,
            };
            [value, 0.0, 0.0, 0.0]
        }

        fn observe(&self, s: &Vec<u16>, _player: u8) -> String {
            format!("{s:?}")
        }
    }

    fn solve<G: Game>(game: &G, s: &G::State) -> [f32; MAX_PLAYERS] {
        let Turn::Player(p) = game.turn(s) else { return game.returns(s) };
        let outcomes = game.legal(s).into_iter().map(|a| {
            let mut next = s.clone();
            game.apply(&mut next, a);
            solve(game, &next)
        });
        outcomes.max_by(|a, b| a[usize::from(p)].total_cmp(&b[usize::from(p)])).unwrap()
    }

    #[test]
    fn nim_is_proven_and_won() {
        let search = Mcts { best_return: 1.0, ..Mcts::new(20_000) };
        let mut tree = Tree::default();
        for stones in 1..=15 {
            let action = search.choose(&Nim, &(stones, 0), &mut tree, &mut Seed::new(u64::from(stones)).rng());
            let won = stones % 4 != 0;
            assert_eq!(tree.proven(), Some(if won { 1.0 } else { -1.0 }), "{stones} stones");
            assert!(!won || action.0 == u16::from(stones % 4), "{stones} stones, took {}", action.0);
        }
    }

    #[test]
    fn few_simulations_play_nim_better_than_chance_and_more_better_still() {
        let wins = |simulations: u32| {
            let player = MctsOpponent::new(Mcts { best_return: 1.0, ..Mcts::new(simulations) });
            let won = |i: u64| {
                let mut rng = Seed::new(i).rng();
                let mut s = Nim.initial(&mut rng);
                while Nim.turn(&s) != Turn::Over {
                    let legal = Nim.legal(&s);
                    let a = if s.1 == 0 { player.act(&Nim, &s, 0, &mut rng) } else { draw_uniform(&legal, &mut rng) };
                    Nim.apply(&mut s, a);
                }
                Nim.returns(&s)[0] > 0.0
            };
            (0..500).filter(|i| won(*i)).count()
        };
        let (few, many) = (wins(8), wins(200));
        assert!(few > 300 && many > few && many > 490, "{few} and {many} of 500");
    }

    #[test]
    fn kuhn_poker_with_open_cards_is_solved() {
        // The search sees both cards, so this is Kuhn's sibling with perfect information.
        for first in 0..3 {
            for second in (0..3).filter(|c| *c != first) {
                let hand = Hand::dealt(Card(first), Card(second));
                let mut tree = Tree::default();
                Mcts::new(2_000).search(&Kuhn, &hand, &mut tree, &mut Seed::new(5).rng());
                assert_eq!(tree.proven(), Some(solve(&Kuhn, &hand)[0]), "{first} against {second}");
            }
        }
    }

    #[test]
    fn nature_is_averaged_not_chosen() {
        let mut tree = Tree::default();
        let action = Mcts::new(4_000).choose(&Dare, &vec![], &mut tree, &mut Seed::new(2).rng());
        assert_eq!(action, ActionId(2));
        let of = |a: u16| tree.considered().find(|c| c.action == ActionId(a)).unwrap();
        assert_eq!(of(0).proven, Some(0.5));
        assert_eq!(of(2).proven, Some(0.75));
        assert_eq!(of(1).proven, None);
        assert!((of(1).mean - 0.0).abs() < 0.5, "the gamble's mean is 0, found {}", of(1).mean);
    }

    #[test]
    fn the_same_luck_gives_the_same_move_whatever_was_searched_before() {
        let search = Mcts::new(50);
        let fresh = |seed| search.choose(&Nim, &(13, 0), &mut Tree::default(), &mut Seed::new(seed).rng());
        let mut used = Tree::default();
        for seed in 0..50 {
            search.search(&Nim, &(15, 1), &mut used, &mut Seed::new(99).rng());
            assert_eq!(search.choose(&Nim, &(13, 0), &mut used, &mut Seed::new(seed).rng()), fresh(seed));
        }
        assert!((0..50).any(|s| fresh(s) != fresh(0)), "luck must matter");
    }

    #[test]
    fn one_simulation_still_moves() {
        let a = Mcts::new(1).choose(&Nim, &(7, 0), &mut Tree::default(), &mut Seed::new(1).rng());
        assert!((1..=3).contains(&a.0));
    }

    #[test]
    fn without_the_solver_nothing_is_proven() {
        let mut tree = Tree::default();
        let search = Mcts { solve: false, ..Mcts::new(3_000) };
        let action = search.choose(&Nim, &(7, 0), &mut tree, &mut Seed::new(4).rng());
        assert_eq!(action, ActionId(3));
        assert!(tree.proven().is_none() && tree.considered().all(|c| c.proven.is_none()));
    }
}
