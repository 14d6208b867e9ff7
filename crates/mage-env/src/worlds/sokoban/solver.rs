//! A* solver that minimises pushes or moves.
//!
//! The search branches over pushes. When minimising pushes, states that differ only in the player's cell within one
//! reachable region are equal; when minimising moves, the player's cell matters. Pushes onto dead squares and pushes
//! that cause a freeze deadlock are pruned. The heuristic is the minimum-cost assignment of boxes to targets.

use super::{
    bitboard::{Bitboard, HASH_MULTIPLIER},
    board::{BoardMasks, Move, NO_CELL, SokobanBoard, SokobanState},
    deadlock::PushDistances,
};

/// Cost that a solution minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchCost {
    /// Pushes of a box by one cell.
    Pushes,
    /// Moves of the player, pushes included.
    Moves,
}

/// A solution of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SokobanSolution {
    /// The player's moves.
    pub moves: Vec<Move>,
    /// Number of moves that push a box.
    pub pushes: u32,
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchResult {
    /// An optimal solution.
    Solved(SokobanSolution),
    /// No solution exists.
    Unsolvable,
    /// The state limit was reached; holds the number of stored states.
    StateLimit(usize),
}

/// Default state limit of a search: up to about 400 MB.
pub const DEFAULT_MAX_STATES: usize = 6_000_000;

/// Solves a level from a state, storing at most `max_states` states.
pub fn solve(board: &SokobanBoard, from: SokobanState, cost: SearchCost, max_states: usize) -> SearchResult {
    if board.fits_in_64_bits() {
        PushSearch::<u64>::new(board, cost, max_states).run(from)
    } else {
        PushSearch::<u128>::new(board, cost, max_states).run(from)
    }
}

#[derive(Clone, Copy)]
struct PushSearchNode<B> {
    boxes: B,
    /// The player's cell; when minimising pushes, the lowest reachable cell.
    player: u8,
    /// The last push: the box's cell after it, and its direction.
    pushed: u8,
    direction: u8,
    cost_so_far: u32,
    heuristic: u16,
    parent: u32,
}

const ROOT: u32 = u32::MAX;

struct PushSearch<'a, B> {
    board: &'a SokobanBoard,
    view: BoardMasks<B>,
    distances: PushDistances,
    cost: SearchCost,
    max_states: usize,
    nodes: Vec<PushSearchNode<B>>,
    /// Hash table of indices into `nodes`; `ROOT` marks an empty slot.
    index: Vec<u32>,
    /// Open list, bucketed by estimated total cost: node index and its cost when queued.
    open: Vec<Vec<(u32, u32)>>,
}

impl<'a, B: Bitboard> PushSearch<'a, B> {
    fn new(board: &'a SokobanBoard, cost: SearchCost, max_states: usize) -> Self {
        PushSearch {
            board,
            view: board.masks(),
            distances: PushDistances::new(board),
            cost,
            max_states: max_states.clamp(1, ROOT as usize),
            nodes: Vec::new(),
            index: vec![ROOT; 1 << 10],
            open: Vec::new(),
        }
    }

    fn run(mut self, from: SokobanState) -> SearchResult {
        let boxes = B::truncate(from.boxes);
        let Some(heuristic) = self.distances.min_pushes(boxes) else { return SearchResult::Unsolvable };
        let player = match self.cost {
            SearchCost::Pushes => self.view.reachable(from.player, boxes).lowest(),
            SearchCost::Moves => from.player,
        };
        let root =
            PushSearchNode { boxes, player, pushed: NO_CELL, direction: 0, cost_so_far: 0, heuristic, parent: ROOT };
        self.nodes.push(root);
        let slot = self.slot(boxes, player);
        self.index[slot] = 0;
        self.enqueue(0);
        let mut total = 0;
        while total < self.open.len() {
            let Some((i, queued_cost)) = self.open[total].pop() else {
                total += 1;
                continue;
            };
            let node = self.nodes[i as usize];
            if node.cost_so_far != queued_cost {
                continue; // superseded by a cheaper path
            }
            if node.boxes == self.view.targets {
                return SearchResult::Solved(self.solution(i, from));
            }
            if !self.expand(i) {
                return SearchResult::StateLimit(self.nodes.len());
            }
        }
        SearchResult::Unsolvable
    }

    /// Expands a state; `false` if the state limit is reached.
    fn expand(&mut self, i: u32) -> bool {
        let node = self.nodes[i as usize];
        match self.cost {
            SearchCost::Pushes => {
                let region = self.view.reachable(node.player, node.boxes);
                self.push_all(i, &node, region, |_| 0)
            }
            SearchCost::Moves => {
                let walk = WalkDistances::from(self.board, node.player, node.boxes);
                self.push_all(i, &node, walk.reached, |cell| u32::from(walk.steps[usize::from(cell)]))
            }
        }
    }

    fn push_all(&mut self, i: u32, node: &PushSearchNode<B>, region: B, walk: impl Fn(u8) -> u32) -> bool {
        for direction in Move::ALL {
            let free = self.view.floor & !node.boxes;
            let can_stop = free & B::truncate(self.distances.live_cells());
            let movable =
                node.boxes & self.view.shift(region, direction) & self.view.shift(can_stop, direction.opposite());
            for from in movable.cells() {
                let to = self.board.neighbour(from, direction);
                let boxes = node.boxes ^ B::single(from) ^ B::single(to);
                if self.distances.is_freeze_deadlock(self.board, &self.view, boxes, to) {
                    continue;
                }
                let player_cell = self.board.neighbour(from, direction.opposite());
                let cost_so_far = node.cost_so_far + 1 + walk(player_cell);
                let player = match self.cost {
                    SearchCost::Pushes => self.view.reachable(from, boxes).lowest(),
                    SearchCost::Moves => from,
                };
                let pushed = PushSearchNode {
                    boxes,
                    player,
                    pushed: to,
                    direction: direction as u8,
                    cost_so_far,
                    heuristic: 0,
                    parent: i,
                };
                if !self.reach(pushed) {
                    return false;
                }
            }
        }
        true
    }

    /// Stores a state or a cheaper path to it; `false` if the state limit is reached.
    fn reach(&mut self, mut node: PushSearchNode<B>) -> bool {
        let slot = self.slot(node.boxes, node.player);
        let known = self.index[slot];
        if known != ROOT {
            let old = &mut self.nodes[known as usize];
            if node.cost_so_far < old.cost_so_far {
                node.heuristic = old.heuristic;
                *old = node;
                self.enqueue(known);
            }
            return true;
        }
        let Some(heuristic) = self.distances.min_pushes(node.boxes) else { return true };
        if self.nodes.len() >= self.max_states {
            return false;
        }
        node.heuristic = heuristic;
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
        let total = (node.cost_so_far + u32::from(node.heuristic)) as usize;
        if self.open.len() <= total {
            self.open.resize_with(total + 1, Vec::new);
        }
        self.open[total].push((i, node.cost_so_far));
    }

    /// Slot of a state's index, or the free slot where it belongs.
    fn slot(&self, boxes: B, player: u8) -> usize {
        let key = boxes.mix() ^ u64::from(player) << 7;
        let mask = self.index.len() - 1;
        let mut at = (key.wrapping_mul(HASH_MULTIPLIER) >> 32) as usize & mask;
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

    /// Reconstructs the moves to a node: its pushes, and the walks between them.
    fn solution(&self, end: u32, from: SokobanState) -> SokobanSolution {
        let mut pushes = Vec::new();
        let mut at = end;
        while self.nodes[at as usize].parent != ROOT {
            let node = &self.nodes[at as usize];
            pushes.push((node.pushed, Move::ALL[usize::from(node.direction)]));
            at = node.parent;
        }
        let mut moves = Vec::new();
        let mut s = from;
        for (to, direction) in pushes.iter().rev() {
            let player_cell =
                self.board.neighbour(self.board.neighbour(*to, direction.opposite()), direction.opposite());
            WalkDistances::from(self.board, s.player, B::truncate(s.boxes)).append_path(
                self.board,
                s.player,
                player_cell,
                &mut moves,
            );
            s.player = player_cell;
            self.board.apply(&mut s, *direction);
            moves.push(*direction);
        }
        SokobanSolution { moves, pushes: pushes.len() as u32 }
    }
}

/// Breadth-first walking distances of the player.
struct WalkDistances<B> {
    reached: B,
    steps: [u8; 128],
    came_from: [u8; 128],
}

impl<B: Bitboard> WalkDistances<B> {
    fn from(board: &SokobanBoard, start: u8, boxes: B) -> Self {
        let mut walk = WalkDistances { reached: B::single(start), steps: [0; 128], came_from: [0; 128] };
        let mut queue = [0; 128];
        queue[0] = start;
        let (mut head, mut tail) = (0, 1);
        while head < tail {
            let cell = queue[head];
            head += 1;
            for direction in Move::ALL {
                let to = board.neighbour(cell, direction);
                if to == NO_CELL || (walk.reached | boxes).contains(to) {
                    continue;
                }
                walk.reached |= B::single(to);
                walk.steps[usize::from(to)] = walk.steps[usize::from(cell)] + 1;
                walk.came_from[usize::from(to)] = direction as u8;
                queue[tail] = to;
                tail += 1;
            }
        }
        walk
    }

    /// Appends the moves from `start`, the origin of the search, to a reached cell.
    fn append_path(&self, board: &SokobanBoard, start: u8, to: u8, moves: &mut Vec<Move>) {
        let first = moves.len();
        let mut at = to;
        while at != start {
            let direction = Move::ALL[usize::from(self.came_from[usize::from(at)])];
            moves.push(direction);
            at = board.neighbour(at, direction.opposite());
        }
        moves[first..].reverse();
    }
}
