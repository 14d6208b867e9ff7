//! Reverse play: chooses the initial state of a generated room.
//!
//! Starting with every box on its target, a depth-first search pulls boxes away and keeps the state with the highest
//! score: the number of box swaps times the total displacement. Search order, limits and state equality determine the
//! result, so all three follow the reference:
//!
//! - Directions are tried in the order up, down, left, right; every move pulls the box behind the player, if any.
//! - Two states differ if the player, the boxes, or the set of boxes that were ever pulled differ (the reference gives
//!   pulled boxes another code).
//! - A state is scored only if no target is occupied by a box or the player.

use super::{
    bitboard::{Bitboard, HASH_MULTIPLIER},
    board::{Move, NO_CELL, SokobanBoard},
};

/// Maximum number of boxes in a generated room.
pub(super) const MAX_BOXES: usize = 16;

/// State limit of the reference's search.
const MAX_STATES: usize = 300_000;

/// Sentinel: no box pulled yet.
const NO_BOX: u8 = u8::MAX;

/// The initial state found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReverseResult<B> {
    pub(super) player: u8,
    pub(super) boxes: B,
    /// Sum of the boxes' Manhattan distances from their targets.
    pub(super) displacement: u32,
}

#[derive(Clone, Copy)]
struct SearchFrame<B> {
    /// Boxes pulled at least once.
    pulled: B,
    /// Boxes never pulled.
    resting: B,
    swaps: u32,
    player: u8,
    /// The box pulled last, identified by its target.
    last: u8,
    /// The next direction to try.
    next: u8,
    /// The box pulled to reach this state, and its previous cell.
    dragged: Option<(u8, u8)>,
}

/// The search; reuses its buffers between rooms.
pub(super) struct ReversePlay<B> {
    visited: VisitedStates<B>,
    stack: Vec<SearchFrame<B>>,
}

impl<B: Bitboard> ReversePlay<B> {
    pub(super) fn new() -> Self {
        ReversePlay { visited: VisitedStates::new(), stack: Vec::new() }
    }

    /// Pulls boxes off the board's targets, starting with the player at `player`, to at most the given depth.
    pub(super) fn run(&mut self, board: &SokobanBoard, player: u8, depth: u32) -> ReverseResult<B> {
        let targets = B::truncate(board.targets);
        let mut positions = BoxPositions::new(board);
        self.visited.clear();
        self.stack.clear();
        let root =
            SearchFrame { pulled: B::EMPTY, resting: targets, swaps: 0, player, last: NO_BOX, next: 0, dragged: None };
        let mut best = ReverseResult { player, boxes: targets, displacement: 0 };
        let mut best_score = 0;
        self.visited.insert(root.pulled, root.resting, player);
        self.stack.push(root);
        while let Some(frame) = self.stack.last_mut() {
            let Some(direction) = Move::ALL.get(usize::from(frame.next)).copied() else {
                if let Some((which, from)) = frame.dragged {
                    positions.current[usize::from(which)] = from;
                }
                self.stack.pop();
                continue;
            };
            frame.next += 1;
            let Some(child) = frame.step(board, &positions, direction) else { continue };
            let from_cell = frame.player;
            // The reference decrements its depth on entering a state, before any other check.
            let depth_left = depth as usize > self.stack.len() + 1;
            if !depth_left || self.visited.len() >= MAX_STATES {
                continue;
            }
            if !self.visited.insert(child.pulled, child.resting, child.player) {
                continue;
            }
            if let Some((which, _)) = child.dragged {
                positions.current[usize::from(which)] = from_cell;
            }
            if (child.pulled | child.resting | B::single(child.player)) & targets == B::EMPTY {
                let displacement = positions.displacement(board);
                let score = child.swaps * displacement;
                if score > best_score {
                    best_score = score;
                    best = ReverseResult { player: child.player, boxes: child.pulled, displacement };
                }
            }
            self.stack.push(child);
        }
        best
    }
}

impl<B: Bitboard> SearchFrame<B> {
    /// Moves the player and pulls the box behind it, if any.
    fn step(&self, board: &SokobanBoard, positions: &BoxPositions, direction: Move) -> Option<SearchFrame<B>> {
        let to = board.neighbour(self.player, direction);
        let boxes = self.pulled | self.resting;
        if to == NO_CELL || boxes.contains(to) {
            return None;
        }
        let mut child = SearchFrame { player: to, next: 0, dragged: None, ..*self };
        let behind = board.neighbour(self.player, direction.opposite());
        if behind != NO_CELL && boxes.contains(behind) {
            let cleared = !B::single(behind);
            child.resting &= cleared;
            child.pulled = (child.pulled & cleared) | B::single(self.player);
            let which = positions.box_on(behind);
            child.swaps += u32::from(self.last != which);
            child.last = which;
            child.dragged = Some((which, behind));
        }
        Some(child)
    }
}

/// Current cell of the box that started on each target.
struct BoxPositions {
    current: [u8; MAX_BOXES],
    targets: [u8; MAX_BOXES],
    count: usize,
}

impl BoxPositions {
    fn new(board: &SokobanBoard) -> Self {
        let mut targets = [NO_CELL; MAX_BOXES];
        board.targets.cells().zip(&mut targets).for_each(|(cell, target)| *target = cell);
        BoxPositions { current: targets, targets, count: board.boxes() as usize }
    }

    /// Index of the box on a cell.
    fn box_on(&self, cell: u8) -> u8 {
        self.current[..self.count].iter().position(|position| *position == cell).expect("every box started on a target")
            as u8
    }

    fn displacement(&self, board: &SokobanBoard) -> u32 {
        let distance = |(cell, target): (&u8, &u8)| {
            let ((row, col), (r, c)) = (board.coords_of(*cell), board.coords_of(*target));
            u32::from(row.abs_diff(r)) + u32::from(col.abs_diff(c))
        };
        self.current[..self.count].iter().zip(&self.targets).map(distance).sum()
    }
}

#[derive(Clone, Copy, Default)]
struct VisitedSlot<B> {
    pulled: B,
    resting: B,
    player: u8,
    /// Generation the slot was written in; slots of older generations are empty.
    generation: u32,
}

/// Hash set of states that clears in constant time.
struct VisitedStates<B> {
    slots: Vec<VisitedSlot<B>>,
    len: usize,
    generation: u32,
}

impl<B: Bitboard> VisitedStates<B> {
    fn new() -> Self {
        VisitedStates { slots: vec![VisitedSlot::default(); 1 << 10], len: 0, generation: 1 }
    }

    fn clear(&mut self) {
        self.len = 0;
        self.generation = self.generation.checked_add(1).unwrap_or_else(|| {
            self.slots.fill(VisitedSlot::default());
            1
        });
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Inserts a state; returns whether it was new.
    fn insert(&mut self, pulled: B, resting: B, player: u8) -> bool {
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let new = VisitedSlot { pulled, resting, player, generation: self.generation };
        let slot = Self::find(&self.slots, &new);
        let vacant = self.slots[slot].generation != self.generation;
        if vacant {
            self.slots[slot] = new;
            self.len += 1;
        }
        vacant
    }

    /// Index of the state's slot, or of the free slot where it belongs.
    fn find(slots: &[VisitedSlot<B>], wanted: &VisitedSlot<B>) -> usize {
        let key = wanted.pulled.mix() ^ wanted.resting.mix().rotate_left(23) ^ u64::from(wanted.player);
        let mut at = (key.wrapping_mul(HASH_MULTIPLIER) >> 32) as usize & (slots.len() - 1);
        loop {
            let s = &slots[at];
            let same = s.pulled == wanted.pulled && s.resting == wanted.resting && s.player == wanted.player;
            if s.generation != wanted.generation || same {
                return at;
            }
            at = (at + 1) & (slots.len() - 1);
        }
    }

    fn grow(&mut self) {
        let mut larger = vec![VisitedSlot::default(); self.slots.len() * 2];
        for slot in self.slots.iter().filter(|s| s.generation == self.generation) {
            let at = Self::find(&larger, slot);
            larger[at] = *slot;
        }
        self.slots = larger;
    }
}
