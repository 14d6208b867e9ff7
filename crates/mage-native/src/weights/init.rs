//! Reproducible random initialisation of a new model.

use crate::weights::hf_config::Config;
use mage_engine::model::ParamTensor;
use mage_rng::Seed;
use rand::RngExt;
use std::f64::consts::PI;

/// Standard deviation of initial weights, as in `transformers`.
pub const DEFAULT_INIT_STD: f32 = 0.02;

/// Initial weights: normal with standard deviation `std` for matrices, 1 for norms.
pub(crate) fn new_weights(config: &Config, std: f32, seed: Seed) -> Vec<f32> {
    let layout = config.param_layout();
    let mut flat = vec![0.0; layout.len];
    for tensor in &layout.tensors {
        fill(tensor, std, seed, &mut flat[tensor.range.clone()]);
    }
    flat
}

/// Initial weights of one tensor, equal to those in [`new_weights`].
pub(crate) fn new_tensor(tensor: &ParamTensor, std: f32, seed: Seed) -> Vec<f32> {
    let mut values = vec![0.0; tensor.range.len()];
    fill(tensor, std, seed, &mut values);
    values
}

/// Each tensor has its own random stream, so that a change of one shape does not affect the others.
fn fill(tensor: &ParamTensor, std: f32, seed: Seed, values: &mut [f32]) {
    if tensor.shape.len() == 1 {
        return values.fill(1.0);
    }
    let mut rng = seed.child("init").child(&tensor.name).rng();
    for pair in values.chunks_mut(2) {
        // Box-Muller transform.
        let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        let (radius, angle) = ((-2.0 * u.ln()).sqrt(), 2.0 * PI * v);
        let normals = [radius * angle.cos(), radius * angle.sin()];
        for (x, z) in pair.iter_mut().zip(normals) {
            *x = z as f32 * std;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::tiny;

    #[test]
    fn new_weights_are_normal_and_reproducible() {
        let config = Config { vocab_size: 1000, ..tiny() };
        let a = new_weights(&config, 0.02, Seed::new(3));
        assert!(a == new_weights(&config, 0.02, Seed::new(3)));
        assert!(a != new_weights(&config, 0.02, Seed::new(4)));
        let e = &a[..32_000];
        let mean = e.iter().sum::<f32>() / 32_000.0;
        let std = (e.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 32_000.0).sqrt();
        assert!(mean.abs() < 5e-4 && (std - 0.02).abs() < 3e-4, "{mean} {std}");
        let layout = config.param_layout();
        assert!(a[layout.final_norm].iter().all(|x| *x == 1.0));
    }
}
