//! Helpers of the kernel tests: reproducible random values and gradient checks by finite differences.

use mage_rng::Seed;
use rand::RngExt;

/// `len` random values in [−1, 1).
pub(crate) fn random_values(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Seed::new(seed).child("numbers").rng();
    (0..len).map(|_| rng.random::<f32>() * 2.0 - 1.0).collect()
}

/// Compares `gradient` with finite differences of `value` at `x`, in about 37 coordinates.
pub(crate) fn check_gradient(name: &str, x: &[f32], gradient: &[f32], value: impl FnMut(&[f32]) -> f64) {
    check_gradient_at(name, 37, x, gradient, value);
}

/// [`check_gradient`] in about `coordinates` coordinates.
pub(crate) fn check_gradient_at(
    name: &str,
    coordinates: usize,
    x: &[f32],
    gradient: &[f32],
    mut value: impl FnMut(&[f32]) -> f64,
) {
    assert_eq!(x.len(), gradient.len());
    let h = 1e-2_f32;
    let scale = gradient.iter().map(|g| g.abs()).fold(0.0, f32::max).max(1e-3);
    let step = (x.len() / coordinates).max(1);
    for i in (0..x.len()).step_by(step) {
        let mut at = |by: f32| {
            let mut moved = x.to_vec();
            moved[i] += by;
            value(&moved)
        };
        // Five-point stencil: exact for polynomials up to degree four.
        let slope = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * f64::from(h));
        let error = (slope - f64::from(gradient[i])).abs();
        assert!(
            error <= 4e-3 * f64::from(scale),
            "{name}[{i}]: gradient {} but finite difference {slope}",
            gradient[i]
        );
    }
}

/// A weighted sum of outputs, so that each output has a different derivative.
pub(crate) fn weighted(outputs: &[f32], weights: &[f32]) -> f64 {
    assert_eq!(outputs.len(), weights.len());
    outputs.iter().zip(weights).map(|(o, w)| f64::from(*o) * f64::from(*w)).sum()
}
