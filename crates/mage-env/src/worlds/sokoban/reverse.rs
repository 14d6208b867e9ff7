//! Which start makes the most of a room?
//!
//! As in the reference: with every box on its target, boxes are pulled away by a depth-first search, and the state with the
//! best score wins (how often the pulled box changed, times how far all boxes are from home). The search's order, its
//! limits and its notion of "the same state" decide which one that is, so all three are the reference's:
//!
//! - Directions are tried in the order up, down, left, right; every move drags along a box that stands behind.
//! - A state is new if the player, the boxes, *or which boxes were ever pulled* differ (the reference marks pulled boxes by
//!   another number).
//! - A state counts only when every target is empty, of the player too.

use super::{
    bits::{Bits, SPREAD},
    board::{Board, Move, NOWHERE},
};

/// The most boxes a generated room may have.
pub(super) const MAX_BOXES: usize = 16;

/// The reference stops after this many states.
const MAX_STATES: usize = 300_000;

/// No box pulled yet.
const NO_BOX: u8 = u8::MAX;

/// A start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pulled<B> {
    pub(super) player: u8,
    pub(super) boxes: B,
    /// Sum of the boxes' distances from their targets, rows plus columns.
    pub(super) displacement: u32,
}

#[derive(Clone, Copy)]
struct Frame<B> {
    /// Boxes that were pulled at least once.
    pulled: B,
    /// Boxes still where they began.
    resting: B,
    swaps: u32,
    player: u8,
    /// The box pulled last, by its target.
    last: u8,
    /// The next direction to try.
    next: u8,
    /// The box that was pulled to get here, and from where.
    dragged: Option<(u8, u8)>,
}

/// The search, with its memory kept from one room to the next.
pub(super) struct ReversePlay<B> {
    explored: Explored<B>,
    stack: Vec<Frame<B>>,
}

impl<B: Bits> ReversePlay<B> {
    pub(super) fn new() -> Self {
        ReversePlay { explored: Explored::new(), stack: Vec::new() }
    }

    /// Pulls boxes from the board's targets, the player starting at `player`, no deeper than `depth`.
    pub(super) fn run(&mut self, board: &Board, player: u8, depth: u32) -> Pulled<B> {
        let targets = B::narrow(board.targets);
        let mut homes = Homes::new(board);
        self.explored.clear();
        self.stack.clear();
        let root = Frame { pulled: B::NONE, resting: targets, swaps: 0, player, last: NO_BOX, next: 0, dragged: None };
        let mut best = Pulled { player, boxes: targets, displacement: 0 };
        let mut best_score = 0;
        self.explored.insert(root.pulled, root.resting, player);
        self.stack.push(root);
        while let Some(frame) = self.stack.last_mut() {
            let Some(way) = Move::ALL.get(usize::from(frame.next)).copied() else {
                if let Some((which, from)) = frame.dragged {
                    homes.now[usize::from(which)] = from;
                }
                self.stack.pop();
                continue;
            };
            frame.next += 1;
            let Some(child) = frame.step(board, &homes, way) else { continue };
            let stood = frame.player;
            // The reference counts its depth down on entering a state, before anything else.
            let depth_left = depth as usize > self.stack.len() + 1;
            if !depth_left || self.explored.len() >= MAX_STATES {
                continue;
            }
            if !self.explored.insert(child.pulled, child.resting, child.player) {
                continue;
            }
            if let Some((which, _)) = child.dragged {
                homes.now[usize::from(which)] = stood;
            }
            if (child.pulled | child.resting | B::one(child.player)) & targets == B::NONE {
                let displacement = homes.displacement(board);
                let score = child.swaps * displacement;
                if score > best_score {
                    best_score = score;
                    best = Pulled { player: child.player, boxes: child.pulled, displacement };
                }
            }
            self.stack.push(child);
        }
        best
    }
}

impl<B: Bits> Frame<B> {
    /// Moves the player, and a box behind along with it.
    fn step(&self, board: &Board, homes: &Homes, way: Move) -> Option<Frame<B>> {
        let to = board.beside(self.player, way);
        let boxes = self.pulled | self.resting;
        if to == NOWHERE || boxes.has(to) {
            return None;
        }
        let mut child = Frame { player: to, next: 0, dragged: None, ..*self };
        let behind = board.beside(self.player, way.opposite());
        if behind != NOWHERE && boxes.has(behind) {
            let gone = !B::one(behind);
            child.resting &= gone;
            child.pulled = (child.pulled & gone) | B::one(self.player);
            let which = homes.of(behind);
            child.swaps += u32::from(self.last != which);
            child.last = which;
            child.dragged = Some((which, behind));
        }
        Some(child)
    }
}

/// Where the box of each target is, targets in order.
struct Homes {
    now: [u8; MAX_BOXES],
    targets: [u8; MAX_BOXES],
    count: usize,
}

impl Homes {
    fn new(board: &Board) -> Self {
        let mut targets = [NOWHERE; MAX_BOXES];
        board.targets.cells().zip(&mut targets).for_each(|(cell, home)| *home = cell);
        Homes { now: targets, targets, count: board.boxes() as usize }
    }

    /// Whose box stands on a cell.
    fn of(&self, cell: u8) -> u8 {
        self.now[..self.count].iter().position(|home| *home == cell).expect("every box has a home") as u8
    }

    fn displacement(&self, board: &Board) -> u32 {
        let apart = |(now, target): (&u8, &u8)| {
            let ((row, col), (r, c)) = (board.place(*now), board.place(*target));
            u32::from(row.abs_diff(r)) + u32::from(col.abs_diff(c))
        };
        self.now[..self.count].iter().zip(&self.targets).map(apart).sum()
    }
}

#[derive(Clone, Copy, Default)]
struct Slot<B> {
    pulled: B,
    resting: B,
    player: u8,
    /// The round the slot was filled in; older ones are empty.
    round: u32,
}

/// A set of states that is emptied in no time.
struct Explored<B> {
    slots: Vec<Slot<B>>,
    len: usize,
    round: u32,
}

impl<B: Bits> Explored<B> {
    fn new() -> Self {
        Explored { slots: vec![Slot::default(); 1 << 10], len: 0, round: 1 }
    }

    fn clear(&mut self) {
        self.len = 0;
        self.round = self.round.checked_add(1).unwrap_or_else(|| {
            self.slots.fill(Slot::default());
            1
        });
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Whether the state was not there yet.
    fn insert(&mut self, pulled: B, resting: B, player: u8) -> bool {
        if self.len * 2 >= self.slots.len() {
            self.double();
        }
        let new = Slot { pulled, resting, player, round: self.round };
        let slot = Self::find(&self.slots, &new);
        let vacant = self.slots[slot].round != self.round;
        if vacant {
            self.slots[slot] = new;
            self.len += 1;
        }
        vacant
    }

    /// Where the state is, or could be put.
    fn find(slots: &[Slot<B>], wanted: &Slot<B>) -> usize {
        let key = wanted.pulled.scramble() ^ wanted.resting.scramble().rotate_left(23) ^ u64::from(wanted.player);
        let mut at = (key.wrapping_mul(SPREAD) >> 32) as usize & (slots.len() - 1);
        loop {
            let s = &slots[at];
            let same = s.pulled == wanted.pulled && s.resting == wanted.resting && s.player == wanted.player;
            if s.round != wanted.round || same {
                return at;
            }
            at = (at + 1) & (slots.len() - 1);
        }
    }

    fn double(&mut self) {
        let mut larger = vec![Slot::default(); self.slots.len() * 2];
        for slot in self.slots.iter().filter(|s| s.round == self.round) {
            let at = Self::find(&larger, slot);
            larger[at] = *slot;
        }
        self.slots = larger;
    }
}
