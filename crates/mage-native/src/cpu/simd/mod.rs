//! SIMD vectors of sixteen `f32` lanes.
//!
//! Every kernel is written once over [`Lanes`], independent of the register width of the CPU. The assignment of values to
//! lanes and the order of every sum are therefore equal on all CPUs with fused multiply-add, and so is every bit of the
//! results.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// Lanes in a vector.
pub(crate) const LANES: usize = 16;

/// A SIMD instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimdLevel {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl SimdLevel {
    /// The best level of this CPU.
    pub(crate) fn best() -> Self {
        Self::available()[0]
    }

    /// All levels of this CPU, best first.
    pub(crate) fn available() -> Vec<Self> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
                levels.push(SimdLevel::Avx512);
            }
            if avx2 {
                levels.push(SimdLevel::Avx2);
            }
        }
        levels.push(SimdLevel::Portable);
        levels
    }

    /// Display name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => "AVX2 with FMA",
            SimdLevel::Portable => "portable",
        }
    }
}

/// Operations on sixteen `f32` lanes. A value of an implementing type proves that the CPU has the instructions.
///
/// Pointers passed to the load and store functions must be valid for the lanes accessed.
pub(crate) trait Lanes: Copy {
    /// A vector of sixteen lanes.
    type V: Copy;
    /// Whether there are enough registers for a large tile of accumulators.
    const MANY_REGISTERS: bool;

    fn splat(self, x: f32) -> Self::V;
    unsafe fn load_ptr(self, p: *const f32) -> Self::V;
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V);
    /// Loads the first `n` lanes (at most 16); the others are 0.
    unsafe fn load_partial_ptr(self, p: *const f32, n: usize) -> Self::V;
    /// Stores the first `n` lanes (at most 16).
    unsafe fn store_partial_ptr(self, p: *mut f32, n: usize, v: Self::V);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Maximum; `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Minimum; `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// `2ⁿ` for integers `n` from −126 to 127.
    fn power_of_two(self, n: Self::V) -> Self::V;
    /// `v`, with 0 in lanes where `x < limit`.
    fn zero_below(self, x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
    /// Sum of all lanes, by repeatedly adding halves.
    fn sum(self, v: Self::V) -> f32;
    /// Maximum of all lanes.
    fn reduce_max(self, v: Self::V) -> f32;

    #[inline(always)]
    fn load(self, s: &[f32; LANES]) -> Self::V {
        // SAFETY: the array has sixteen elements.
        unsafe { self.load_ptr(s.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, s: &mut [f32; LANES], v: Self::V) {
        // SAFETY: as in `load`.
        unsafe { self.store_ptr(s.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_partial(self, s: &[f32]) -> Self::V {
        // SAFETY: no more lanes are accessed than the slice has.
        unsafe { if s.len() >= LANES { self.load_ptr(s.as_ptr()) } else { self.load_partial_ptr(s.as_ptr(), s.len()) } }
    }

    #[inline(always)]
    fn store_partial(self, s: &mut [f32], v: Self::V) {
        // SAFETY: no more lanes are accessed than the slice has.
        unsafe {
            if s.len() >= LANES {
                self.store_ptr(s.as_mut_ptr(), v);
            } else {
                self.store_partial_ptr(s.as_mut_ptr(), s.len(), v);
            }
        }
    }

    /// `eˣ` with an error of about one ulp; exactly 0 below −87.3, so that −∞ gives 0.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        let low = self.splat(-87.3);
        // The bound is the first operand, so that NaN lanes stay NaN.
        let y = self.min(self.splat(88.3), self.max(low, x));
        let n = self.round(self.mul(y, self.splat(std::f32::consts::LOG2_E)));
        let r = self.fma(n, self.splat(-0.693_359_4), y);
        let r = self.fma(n, self.splat(2.121_944_4e-4), r);
        // Cephes polynomial for e^r on |r| ≤ ln 2 / 2.
        let mut p = self.splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = self.fma(p, r, self.splat(c));
        }
        let p = self.fma(p, self.mul(r, r), self.add(r, self.splat(1.0)));
        self.zero_below(x, low, self.mul(p, self.power_of_two(n)))
    }
}

/// Defines `$name`, which runs `$generic` compiled for a given level. The generic function and everything it calls must be
/// `#[inline(always)]`.
macro_rules! simd_dispatch {
    ($(#[$doc:meta])* fn $name:ident = $generic:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name(level: crate::cpu::simd::SimdLevel, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
            fn wide($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function's own features.
                $generic(unsafe { crate::cpu::simd::Avx512::new_unchecked() }, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn half($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function's own features.
                $generic(unsafe { crate::cpu::simd::Avx2::new_unchecked() }, $($arg),*)
            }
            match level {
                // SAFETY: a level is only constructed after its features were detected.
                #[cfg(target_arch = "x86_64")]
                crate::cpu::simd::SimdLevel::Avx512 => unsafe { wide($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                crate::cpu::simd::SimdLevel::Avx2 => unsafe { half($($arg),*) },
                crate::cpu::simd::SimdLevel::Portable => $generic(crate::cpu::simd::Portable, $($arg),*),
            }
        }
    };
}
pub(crate) use simd_dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(always)]
    fn exercise<L: Lanes>(l: L, x: &[f32], out: &mut Vec<f32>) {
        for (i, c) in x.chunks(LANES).enumerate() {
            let v = l.load_partial(c);
            let w = l.splat(0.1 + i as f32);
            let mut buffer = [0.0; LANES];
            for r in [
                l.exp(v),
                l.fma(v, w, v),
                l.div(v, w),
                l.max(v, w),
                l.min(v, w),
                l.sqrt(l.mul(v, v)),
                l.round(v),
                l.zero_below(v, w, v),
                l.sub(v, w),
            ] {
                l.store(&mut buffer, r);
                out.extend_from_slice(&buffer);
            }
            let mut short = vec![7.0; c.len()];
            l.store_partial(&mut short, v);
            out.extend_from_slice(&short);
            out.push(l.sum(v));
            out.push(l.reduce_max(v));
        }
    }
    simd_dispatch!(fn exercise_at = exercise(x: &[f32], out: &mut Vec<f32>));

    fn random_values() -> Vec<f32> {
        (0..1003).map(|i| ((i * 2_654_435_761_u64 % 10_007) as f32 / 10_007.0 - 0.5) * 180.0).collect()
    }

    #[test]
    fn all_simd_levels_give_identical_bits() {
        let results: Vec<Vec<u32>> = SimdLevel::available()
            .into_iter()
            .map(|level| {
                let mut out = Vec::new();
                exercise_at(level, &random_values(), &mut out);
                out.iter().map(|x| x.to_bits()).collect()
            })
            .collect();
        assert!(results.windows(2).all(|w| w[0] == w[1]), "levels: {:?}", SimdLevel::available());
    }

    #[inline(always)]
    fn exp_all<L: Lanes>(l: L, x: &mut [f32]) {
        for c in x.chunks_mut(LANES) {
            let v = l.exp(l.load_partial(c));
            l.store_partial(c, v);
        }
    }
    simd_dispatch!(fn exp_at = exp_all(x: &mut [f32]));

    #[test]
    fn exp_matches_f64_exp() {
        for level in SimdLevel::available() {
            let x: Vec<f32> = (0..200_000).map(|i| -87.2 + i as f32 * (175.0 / 200_000.0)).collect();
            let mut y = x.clone();
            exp_at(level, &mut y);
            for (x, y) in x.iter().zip(&y) {
                let want = f64::from(*x).exp();
                assert!((f64::from(*y) - want).abs() <= 2.5e-7 * want, "exp({x}) = {y}, not {want}");
            }
            let mut odd = [f32::NEG_INFINITY, f32::NAN, 0.0, -200.0];
            exp_at(level, &mut odd);
            assert!(odd[0] == 0.0 && odd[1].is_nan() && odd[2] == 1.0 && odd[3] == 0.0, "{odd:?}");
        }
    }
}
