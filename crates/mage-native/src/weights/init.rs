//! What does a new model know? Nothing, in a repeatable way.

use crate::model::param_layout::{ParamLayout, ParamTensor};
use crate::weights::hf_config::Config;
use mage_rng::Seed;
use rand::RngExt;

/// The spread of a new model's weights that `transformers` uses.
pub const DEFAULT_INIT_STD: f32 = 0.02;

/// Weights of a new model: normal with the given spread for matrices, 1 for norms.
pub(crate) fn new_weights(config: &Config, spread: f32, seed: Seed) -> Vec<f32> {
    let layout = ParamLayout::new(config);
    let mut flat = vec![0.0; layout.len];
    for tensor in &layout.tensors {
        fill(tensor, spread, seed, &mut flat[tensor.range.clone()]);
    }
    flat
}

/// One tensor of the same.
pub(crate) fn new_tensor(tensor: &ParamTensor, spread: f32, seed: Seed) -> Vec<f32> {
    let mut numbers = vec![0.0; tensor.range.len()];
    fill(tensor, spread, seed, &mut numbers);
    numbers
}

/// Each tensor has its own stream, so that a change of one shape leaves the others as they were.
fn fill(tensor: &ParamTensor, spread: f32, seed: Seed, numbers: &mut [f32]) {
    if tensor.shape.len() == 1 {
        return numbers.fill(1.0);
    }
    let mut rng = seed.child("init").child(&tensor.name).rng();
    for pair in numbers.chunks_mut(2) {
        // Box and Muller: two uniforms give two normals.
        let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        let (radius, angle) = ((-2.0 * u.ln()).sqrt(), 2.0 * std::f64::consts::PI * v);
        let normals = [radius * angle.cos(), radius * angle.sin()];
        for (x, z) in pair.iter_mut().zip(normals) {
            *x = z as f32 * spread;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::tiny;

    #[test]
    fn new_weights_are_normal_and_repeatable() {
        let config = Config { vocab_size: 1000, ..tiny() };
        let a = new_weights(&config, 0.02, Seed::new(3));
        assert!(a == new_weights(&config, 0.02, Seed::new(3)));
        assert!(a != new_weights(&config, 0.02, Seed::new(4)));
        let e = &a[..32_000];
        let mean = e.iter().sum::<f32>() / 32_000.0;
        let spread = (e.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 32_000.0).sqrt();
        assert!(mean.abs() < 5e-4 && (spread - 0.02).abs() < 3e-4, "{mean} {spread}");
        let layout = ParamLayout::new(&config);
        assert!(a[layout.final_norm].iter().all(|x| *x == 1.0));
    }
}
