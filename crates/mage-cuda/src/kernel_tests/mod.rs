//! Tests of the individual kernels against plain loops.
//!
//! No cuBLASLt GEMM runs in these tests. Expected values are computed in f64 from the same bf16 inputs, and gradients
//! are compared with finite differences. Memory checkers therefore see only this crate's kernels: run
//! `compute-sanitizer --tool memcheck|racecheck` with the test binary. Without a GPU they are
//! ignored.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod fused_gemm;
pub(crate) mod sampling;

use crate::buffer::{DeviceBuffer, Pod};
use crate::model::CudaModel;
use crate::shape::ModelShape;
use crate::stream::Stream;
use std::sync::Arc;

/// A model's kernels and a stream.
pub(super) struct KernelFixture {
    pub(super) model: Arc<CudaModel>,
    pub(super) stream: Stream,
    pub(super) shape: ModelShape,
    /// Cosines and sines per position.
    pub(super) rope_table: Vec<f32>,
}

/// Positions in the RoPE table.
const POSITIONS: usize = 512;

impl KernelFixture {
    /// A fixture for this head dimension and these head counts.
    pub(super) fn new(head_dim: usize, num_heads: usize, num_kv_heads: usize) -> Self {
        let device = crate::device::tests::device();
        println!("head_dim {head_dim}: {num_heads} query heads, {num_kv_heads} key/value heads");
        let shape = ModelShape {
            vocab_size: 301,
            hidden_size: 72,
            intermediate_size: 136,
            num_layers: 1,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps: 1e-3,
        };
        let rope_table: Vec<f32> = (0..POSITIONS)
            .flat_map(|p| {
                let angle = move |i: usize| p as f32 / 100_f32.powf(2.0 * i as f32 / head_dim as f32);
                let half = move || 0..head_dim / 2;
                half().map(move |i| angle(i).cos()).chain(half().map(move |i| angle(i).sin()))
            })
            .collect();
        let model = CudaModel::new(&device, shape, Default::default(), &rope_table).unwrap();
        let stream = Stream::new(&device).unwrap();
        KernelFixture { model, stream, shape, rope_table }
    }

    /// Uploads values as bf16.
    pub(super) fn upload_bf16(&self, x: &[f64]) -> DeviceBuffer<u16> {
        self.upload(&x.iter().map(|x| bf16_bits(*x)).collect::<Vec<_>>())
    }

    pub(super) fn upload<T: Pod>(&self, x: &[T]) -> DeviceBuffer<T> {
        DeviceBuffer::from_slice(self.model.device(), x).unwrap()
    }

    /// A buffer of NaN, which no kernel may leave.
    pub(super) fn nan_bf16(&self, len: usize) -> DeviceBuffer<u16> {
        self.upload(&vec![bf16_bits(f64::NAN); len])
    }

    pub(super) fn read_bf16(&self, x: &DeviceBuffer<u16>) -> Vec<f64> {
        self.stream.wait().unwrap();
        x.to_vec().unwrap().into_iter().map(|x| f64::from(f32::from_bits(u32::from(x) << 16))).collect()
    }

    pub(super) fn read_f32(&self, x: &DeviceBuffer<f32>) -> Vec<f64> {
        self.stream.wait().unwrap();
        x.to_vec().unwrap().into_iter().map(f64::from).collect()
    }
}

/// Bits of the nearest bf16 value.
fn bf16_bits(x: f64) -> u16 {
    let x = (x as f32).to_bits();
    if f32::from_bits(x).is_nan() {
        return 0x7fc0;
    }
    ((x + 0x7fff + ((x >> 16) & 1)) >> 16) as u16
}

/// bf16 values between -1 and 1, determined by the seed.
pub(super) fn random_bf16(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let x = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
            f64::from(f32::from_bits(u32::from(bf16_bits(x)) << 16))
        })
        .collect()
}

/// Compares within a tolerance relative to the largest expected value.
pub(super) fn assert_near(name: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{name}");
    let scale = expected.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
    for (i, (g, w)) in actual.iter().zip(expected).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{name}: element {i} is {g}, expected {w} (largest {scale})");
    }
}

/// Gradient of `f` by central differences.
pub(super) fn numeric_grad(x: &[f64], mut f: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut y = x.to_vec();
    (0..x.len())
        .map(|i| {
            y[i] = x[i] + STEP;
            let plus = f(&y);
            y[i] = x[i] - STEP;
            let minus = f(&y);
            y[i] = x[i];
            (plus - minus) / (2.0 * STEP)
        })
        .collect()
}
