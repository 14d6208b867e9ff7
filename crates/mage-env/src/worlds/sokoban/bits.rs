//! How is a set of cells held?
//!
//! One bit a cell: in 64 bits where the level fits (every 6×6 room and every 10×10 level), in 128 otherwise. Searches are
//! written once, over [`Bits`].

use std::{
    hash::Hash,
    ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, BitXor, Not, Shl, Shr},
};

/// A set of cells.
pub(super) trait Bits:
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
    const NONE: Self;

    /// Takes the cells over from the widest form. Cells beyond the width are lost; callers choose a width that fits.
    fn narrow(wide: u128) -> Self;

    /// The set with this one cell.
    fn one(cell: u8) -> Self;

    /// The lowest cell; the width if there is none.
    fn lowest(self) -> u8;

    /// All but the lowest cell.
    fn rest(self) -> Self;

    /// A number that differs for most sets.
    fn scramble(self) -> u64;

    /// Whether the cell is in the set.
    fn has(self, cell: u8) -> bool {
        self & Self::one(cell) != Self::NONE
    }

    /// The cells in order.
    fn cells(self) -> Cells<Self> {
        Cells(self)
    }
}

/// Walks through a set of cells.
pub(super) struct Cells<B>(B);

impl<B: Bits> Iterator for Cells<B> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if self.0 == B::NONE {
            return None;
        }
        let cell = self.0.lowest();
        self.0 = self.0.rest();
        Some(cell)
    }
}

/// An odd constant with evenly spread bits (the golden ratio's), for multiplicative hashing.
pub(super) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

macro_rules! bits {
    ($t:ty, $scramble:expr) => {
        impl Bits for $t {
            const NONE: Self = 0;

            fn narrow(wide: u128) -> Self {
                wide as $t
            }

            fn one(cell: u8) -> Self {
                1 << cell
            }

            fn lowest(self) -> u8 {
                self.trailing_zeros() as u8
            }

            fn rest(self) -> Self {
                self & self.wrapping_sub(1)
            }

            fn scramble(self) -> u64 {
                $scramble(self)
            }
        }
    };
}

bits!(u64, |b: u64| b.wrapping_mul(SPREAD));
bits!(u128, |b: u128| (b as u64).wrapping_mul(SPREAD) ^ ((b >> 64) as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
