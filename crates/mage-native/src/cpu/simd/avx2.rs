//! Sixteen lanes in two AVX2 registers.

use super::avx512::sum8;
use super::{LANES, Lanes};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The CPU must have AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked() -> Self {
        Avx2(())
    }
}

// SAFETY of all blocks below: a value of this type proves that the CPU has the instructions; the caller guarantees the
// validity of pointers.
impl Lanes for Avx2 {
    type V = (__m256, __m256);
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { (_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn load_partial_ptr(self, p: *const f32, n: usize) -> Self::V {
        let mut buffer = [0.0; LANES];
        unsafe {
            std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), n);
            self.load_ptr(buffer.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_partial_ptr(self, p: *mut f32, n: usize, v: Self::V) {
        let mut buffer = [0.0; LANES];
        unsafe {
            self.store_ptr(buffer.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        unsafe { (_mm256_sqrt_ps(a.0), _mm256_sqrt_ps(a.1)) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        unsafe { (_mm256_round_ps::<NEAREST>(a.0), _mm256_round_ps::<NEAREST>(a.1)) }
    }
    #[inline(always)]
    fn power_of_two(self, n: Self::V) -> Self::V {
        unsafe { (power_of_two8(n.0), power_of_two8(n.1)) }
    }
    #[inline(always)]
    fn zero_below(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        unsafe {
            (
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, limit.0), v.0),
                _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x.1, limit.1), v.1),
            )
        }
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        unsafe { sum8(_mm256_add_ps(v.0, v.1)) }
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        let mut buffer = [0.0; 8];
        unsafe { _mm256_storeu_ps(buffer.as_mut_ptr(), _mm256_max_ps(v.0, v.1)) };
        buffer.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn power_of_two8(n: __m256) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(e))
    }
}
