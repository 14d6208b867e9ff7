//! Sixteen lanes in portable Rust, for CPUs without intrinsics here. `mul_add` is one instruction on 64-bit ARM.

use super::{LANES, Lanes};
use std::array::from_fn;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Lanes for Portable {
    type V = [f32; LANES];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees sixteen elements.
        unsafe { p.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller guarantees sixteen elements.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_partial_ptr(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller guarantees `n` elements.
        from_fn(|i| if i < n { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_partial_ptr(self, p: *mut f32, n: usize, v: Self::V) {
        for (i, x) in v.iter().enumerate().take(n) {
            // SAFETY: the caller guarantees `n` elements.
            unsafe { *p.add(i) = *x }
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        from_fn(|i| a[i].sqrt())
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        from_fn(|i| a[i].round_ties_even())
    }
    #[inline(always)]
    fn power_of_two(self, n: Self::V) -> Self::V {
        from_fn(|i| f32::from_bits(((n[i] as i32).wrapping_add(127) << 23) as u32))
    }
    #[inline(always)]
    fn zero_below(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        from_fn(|i| if x[i] < limit[i] { 0.0 } else { v[i] })
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let e: [f32; 8] = from_fn(|i| v[i] + v[i + 8]);
        let q: [f32; 4] = from_fn(|i| e[i] + e[i + 4]);
        (q[0] + q[2]) + (q[1] + q[3])
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        v.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
}
