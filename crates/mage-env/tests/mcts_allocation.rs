//! MCTS in a used tree does not allocate.
//!
//! Counting allocations needs a global allocator, which needs unsafe code; this one counts and delegates to the system
//! allocator.
#![allow(unsafe_code)]

use mage_env::{
    Seed,
    solvers::mcts::SearchTree,
    tictactoe::{Board, TicTacToe, paper_mcts},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the counter neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn search_in_a_used_tree_allocates_nothing() {
    let mut tree = SearchTree::default();
    let mut rng = Seed::new(1).rng();
    let search = paper_mcts(1_000);
    let count = |tree: &mut SearchTree, rng: &mut _| {
        let before = ALLOCATIONS.with(Cell::get);
        search.choose(&TicTacToe, &Board::default(), tree, rng);
        ALLOCATIONS.with(Cell::get) - before
    };
    assert!((1..=8).contains(&count(&mut tree, &mut rng)), "the first search reserves once, not in its loop");
    for _ in 0..20 {
        assert_eq!(count(&mut tree, &mut rng), 0);
    }
}
