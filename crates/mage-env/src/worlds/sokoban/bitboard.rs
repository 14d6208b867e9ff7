//! Bitboards: sets of cells, one bit per cell.
//!
//! 64 bits where the level fits (every 6×6 room and every 10×10 level), 128 bits otherwise. Searches are generic over
//! [`Bitboard`].

use std::{
    hash::Hash,
    ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, Not, Shl, Shr},
};

/// A set of cells.
pub(super) trait Bitboard:
    Copy
    + Eq
    + Hash
    + Default
    + Send
    + Sync
    + BitAnd<Output = Self>
    + BitAndAssign
    + BitOr<Output = Self>
    + BitOrAssign
    + BitXor<Output = Self>
    + Not<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
    /// The empty set.
    const EMPTY: Self;

    /// Converts from the widest representation. Cells beyond the width are dropped; callers choose a width that fits.
    fn truncate(wide: u128) -> Self;

    /// The set that contains only this cell.
    fn single(cell: u8) -> Self;

    /// The lowest cell, or the bit width if the set is empty.
    fn lowest(self) -> u8;

    /// The set without its lowest cell.
    fn without_lowest(self) -> Self;

    /// A hash of the set.
    fn mix(self) -> u64;

    /// Whether the cell is in the set.
    fn contains(self, cell: u8) -> bool {
        self & Self::single(cell) != Self::EMPTY
    }

    /// The cells in ascending order.
    fn cells(self) -> Cells<Self> {
        Cells(self)
    }
}

/// Iterator over the cells of a set.
pub(super) struct Cells<B>(B);

impl<B: Bitboard> Iterator for Cells<B> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if self.0 == B::EMPTY {
            return None;
        }
        let cell = self.0.lowest();
        self.0 = self.0.without_lowest();
        Some(cell)
    }
}

/// Multiplier for Fibonacci hashing: 2^64 divided by the golden ratio.
pub(super) const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

macro_rules! bits {
    ($t:ty, $mix:expr) => {
        impl Bitboard for $t {
            const EMPTY: Self = 0;

            fn truncate(wide: u128) -> Self {
                wide as $t
            }

            fn single(cell: u8) -> Self {
                1 << cell
            }

            fn lowest(self) -> u8 {
                self.trailing_zeros() as u8
            }

            fn without_lowest(self) -> Self {
                self & self.wrapping_sub(1)
            }

            fn mix(self) -> u64 {
                $mix(self)
            }
        }
    };
}

bits!(u64, |b: u64| b.wrapping_mul(HASH_MULTIPLIER));
bits!(u128, |b: u128| (b as u64).wrapping_mul(HASH_MULTIPLIER)
    ^ ((b >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
