//! Sixteen lanes in one AVX-512 register.

use super::{LANES, Lanes};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU must have AVX-512 F and DQ, AVX2 and FMA.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked() -> Self {
        Avx512(())
    }
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    debug_assert!(n <= LANES);
    ((1_u32 << n) - 1) as __mmask16
}

// SAFETY of all blocks below: a value of this type proves that the CPU has the instructions; the caller guarantees the
// validity of pointers.
impl Lanes for Avx512 {
    type V = __m512;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_partial_ptr(self, p: *const f32, n: usize) -> Self::V {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store_partial_ptr(self, p: *mut f32, n: usize, v: Self::V) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn power_of_two(self, n: Self::V) -> Self::V {
        unsafe {
            let e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(e))
        }
    }
    #[inline(always)]
    fn zero_below(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), v) }
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        unsafe {
            let e = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            sum8(e)
        }
    }
    #[inline(always)]
    fn reduce_max(self, v: Self::V) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }
}

/// Sum of eight lanes, by repeatedly adding halves.
///
/// # Safety
/// The CPU must have AVX.
#[inline(always)]
pub(super) unsafe fn sum8(e: __m256) -> f32 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps::<1>(e));
        let d = _mm_add_ps(q, _mm_movehl_ps(q, q));
        _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps::<1>(d, d)))
    }
}
