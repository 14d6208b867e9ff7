//! How is a level solved with the fewest pushes, or the fewest moves?
//!
//! A* over pushes. Counting pushes, states with the player anywhere in one region are one state; counting moves, the
//! player's cell matters. Pushes onto squares that no box ever leaves for a target are never made, nor pushes that freeze a
//! box in the wrong place. What is left is estimated from below by the cheapest assignment of boxes to targets.

use super::{
    bits::{Bits, SPREAD},
    board::{Board, Move, NOWHERE, State, View},
    dead::Distances,
};

/// What a solution should have the fewest of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Boxes moved by one cell.
    Pushes,
    /// Steps of the player, pushes included.
    Moves,
}

/// A way to solve a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The player's steps.
    pub moves: Vec<Move>,
    /// How many of them push a box.
    pub pushes: u32,
}

/// What came of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A best solution.
    Solved(Solution),
    /// There is none.
    Impossible,
    /// Memory ran out first: this many states were stored.
    GaveUp(usize),
}

/// States a search may store unless told otherwise: up to about 400 MB.
pub const DEFAULT_STATES: usize = 6_000_000;

/// Solves a level from a state, storing at most `max_states` states.
pub fn solve(board: &Board, from: State, cost: Cost, max_states: usize) -> Verdict {
    if board.is_narrow() {
        Search::<u64>::new(board, cost, max_states).run(from)
    } else {
        Search::<u128>::new(board, cost, max_states).run(from)
    }
}

#[derive(Clone, Copy)]
struct Node<B> {
    boxes: B,
    /// The player's cell; counting pushes, the lowest cell of its region.
    player: u8,
    /// The last push: where the box is now, and which way it went.
    pushed: u8,
    way: u8,
    spent: u32,
    left: u16,
    parent: u32,
}

const ROOT: u32 = u32::MAX;

struct Search<'a, B> {
    board: &'a Board,
    view: View<B>,
    distances: Distances,
    cost: Cost,
    max_states: usize,
    nodes: Vec<Node<B>>,
    /// Indices into `nodes` by hash; `ROOT` where empty.
    index: Vec<u32>,
    /// Open states by estimated total cost: index, and what was spent when it was put here.
    open: Vec<Vec<(u32, u32)>>,
}

impl<'a, B: Bits> Search<'a, B> {
    fn new(board: &'a Board, cost: Cost, max_states: usize) -> Self {
        Search {
            board,
            view: board.view(),
            distances: Distances::new(board),
            cost,
            max_states: max_states.clamp(1, ROOT as usize),
            nodes: Vec::new(),
            index: vec![ROOT; 1 << 10],
            open: Vec::new(),
        }
    }

    fn run(mut self, from: State) -> Verdict {
        let boxes = B::narrow(from.boxes);
        let Some(left) = self.distances.to_go(boxes) else { return Verdict::Impossible };
        let player = match self.cost {
            Cost::Pushes => self.view.region(from.player, boxes).lowest(),
            Cost::Moves => from.player,
        };
        let root = Node { boxes, player, pushed: NOWHERE, way: 0, spent: 0, left, parent: ROOT };
        self.nodes.push(root);
        let slot = self.slot(boxes, player);
        self.index[slot] = 0;
        self.enqueue(0);
        let mut total = 0;
        while total < self.open.len() {
            let Some((i, spent)) = self.open[total].pop() else {
                total += 1;
                continue;
            };
            let node = self.nodes[i as usize];
            if node.spent != spent {
                continue; // a cheaper way was found since
            }
            if node.boxes == self.view.targets {
                return Verdict::Solved(self.solution(i, from));
            }
            if !self.expand(i) {
                return Verdict::GaveUp(self.nodes.len());
            }
        }
        Verdict::Impossible
    }

    /// Adds all pushes from a state; `false` when memory is spent.
    fn expand(&mut self, i: u32) -> bool {
        let node = self.nodes[i as usize];
        match self.cost {
            Cost::Pushes => {
                let region = self.view.region(node.player, node.boxes);
                self.push_all(i, &node, region, |_| 0)
            }
            Cost::Moves => {
                let walk = Walk::from(self.board, node.player, node.boxes);
                self.push_all(i, &node, walk.reached, |cell| u32::from(walk.steps[usize::from(cell)]))
            }
        }
    }

    fn push_all(&mut self, i: u32, node: &Node<B>, region: B, walk: impl Fn(u8) -> u32) -> bool {
        for way in Move::ALL {
            let free = self.view.floor & !node.boxes;
            let can_stop = free & B::narrow(self.distances.alive());
            let movable = node.boxes & self.view.shift(region, way) & self.view.shift(can_stop, way.opposite());
            for from in movable.cells() {
                let to = self.board.beside(from, way);
                let boxes = node.boxes ^ B::one(from) ^ B::one(to);
                if self.distances.frozen(self.board, &self.view, boxes, to) {
                    continue;
                }
                let stand = self.board.beside(from, way.opposite());
                let spent = node.spent + 1 + walk(stand);
                let player = match self.cost {
                    Cost::Pushes => self.view.region(from, boxes).lowest(),
                    Cost::Moves => from,
                };
                let pushed = Node { boxes, player, pushed: to, way: way as u8, spent, left: 0, parent: i };
                if !self.reach(pushed) {
                    return false;
                }
            }
        }
        true
    }

    /// Stores a state, or a cheaper way to it; `false` when memory is spent.
    fn reach(&mut self, mut node: Node<B>) -> bool {
        let slot = self.slot(node.boxes, node.player);
        let known = self.index[slot];
        if known != ROOT {
            let old = &mut self.nodes[known as usize];
            if node.spent < old.spent {
                node.left = old.left;
                *old = node;
                self.enqueue(known);
            }
            return true;
        }
        let Some(left) = self.distances.to_go(node.boxes) else { return true };
        if self.nodes.len() >= self.max_states {
            return false;
        }
        node.left = left;
        let i = self.nodes.len() as u32;
        self.nodes.push(node);
        self.index[slot] = i;
        if self.nodes.len() * 2 > self.index.len() {
            self.rehash();
        }
        self.enqueue(i);
        true
    }

    fn enqueue(&mut self, i: u32) {
        let node = &self.nodes[i as usize];
        let total = (node.spent + u32::from(node.left)) as usize;
        if self.open.len() <= total {
            self.open.resize_with(total + 1, Vec::new);
        }
        self.open[total].push((i, node.spent));
    }

    /// Where a state's index is, or belongs.
    fn slot(&self, boxes: B, player: u8) -> usize {
        let key = boxes.scramble() ^ u64::from(player) << 7;
        let mask = self.index.len() - 1;
        let mut at = (key.wrapping_mul(SPREAD) >> 32) as usize & mask;
        loop {
            let Some(node) = self.nodes.get(self.index[at] as usize) else { return at };
            if node.boxes == boxes && node.player == player {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    fn rehash(&mut self) {
        self.index = vec![ROOT; self.index.len() * 2];
        for i in 0..self.nodes.len() {
            let slot = self.slot(self.nodes[i].boxes, self.nodes[i].player);
            self.index[slot] = i as u32;
        }
    }

    /// The moves that lead to a node: its pushes, with the walks between them.
    fn solution(&self, end: u32, from: State) -> Solution {
        let mut pushes = Vec::new();
        let mut at = end;
        while self.nodes[at as usize].parent != ROOT {
            let node = &self.nodes[at as usize];
            pushes.push((node.pushed, Move::ALL[usize::from(node.way)]));
            at = node.parent;
        }
        let mut moves = Vec::new();
        let mut s = from;
        for (to, way) in pushes.iter().rev() {
            let stood = self.board.beside(self.board.beside(*to, way.opposite()), way.opposite());
            Walk::from(self.board, s.player, B::narrow(s.boxes)).lead(self.board, s.player, stood, &mut moves);
            s.player = stood;
            self.board.go(&mut s, *way);
            moves.push(*way);
        }
        Solution { moves, pushes: pushes.len() as u32 }
    }
}

/// How far the player has to walk to each cell.
struct Walk<B> {
    reached: B,
    steps: [u8; 128],
    came: [u8; 128],
}

impl<B: Bits> Walk<B> {
    fn from(board: &Board, start: u8, boxes: B) -> Self {
        let mut walk = Walk { reached: B::one(start), steps: [0; 128], came: [0; 128] };
        let mut queue = [0; 128];
        queue[0] = start;
        let (mut head, mut tail) = (0, 1);
        while head < tail {
            let cell = queue[head];
            head += 1;
            for way in Move::ALL {
                let to = board.beside(cell, way);
                if to == NOWHERE || (walk.reached | boxes).has(to) {
                    continue;
                }
                walk.reached |= B::one(to);
                walk.steps[usize::from(to)] = walk.steps[usize::from(cell)] + 1;
                walk.came[usize::from(to)] = way as u8;
                queue[tail] = to;
                tail += 1;
            }
        }
        walk
    }

    /// Appends the steps from `start`, where the walk began, to a cell it reached.
    fn lead(&self, board: &Board, start: u8, to: u8, moves: &mut Vec<Move>) {
        let first = moves.len();
        let mut at = to;
        while at != start {
            let way = Move::ALL[usize::from(self.came[usize::from(at)])];
            moves.push(way);
            at = board.beside(at, way.opposite());
        }
        moves[first..].reverse();
    }
}
