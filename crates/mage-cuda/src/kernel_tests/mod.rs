//! Does each kernel compute what it says, and touch nothing else?
//!
//! Kernels alone, without any matrix product of NVIDIA's between them, against plain loops in f64 on the same bf16 numbers;
//! gradients against differences. So that tools which watch every access see our code alone:
//! `compute-sanitizer --tool memcheck|racecheck` before the test's binary. Without a card every test says loudly that it
//! skips.

mod attention;
mod elementwise;
mod fused_gemm;
mod sampling;

use crate::buffer::{DeviceBuffer, Pod};
use crate::device::tests::card_or_skip;
use crate::model::CudaModel;
use crate::shape::{GpuParamLayout, ModelShape};
use crate::stream::Stream;
use std::sync::Arc;

/// A model's kernels and a stream to start them in.
pub(super) struct Bench {
    pub(super) model: Arc<CudaModel>,
    pub(super) stream: Stream,
    pub(super) shape: ModelShape,
    /// Per position, cosines and sines.
    pub(super) turns: Vec<f32>,
}

/// Positions that can be turned.
const POSITIONS: usize = 512;

impl Bench {
    /// For heads of some size, so many of them sharing keys; nothing where there is no card.
    pub(super) fn new(head_dim: usize, num_heads: usize, num_kv_heads: usize) -> Option<Self> {
        let card = card_or_skip("no kernel was tried")?;
        println!("heads of {head_dim}: {num_heads} query heads, {num_kv_heads} key/value heads");
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
        let turns: Vec<f32> = (0..POSITIONS)
            .flat_map(|p| {
                let angle = move |i: usize| p as f32 / 100_f32.powf(2.0 * i as f32 / head_dim as f32);
                let half = move || 0..head_dim / 2;
                half().map(move |i| angle(i).cos()).chain(half().map(move |i| angle(i).sin()))
            })
            .collect();
        let places = GpuParamLayout { embed_tokens: 0..0, layers: Vec::new(), final_norm: 0..0, lm_head: 0..0, len: 0 };
        let model = CudaModel::new(&card, shape, places, &turns).unwrap();
        let stream = Stream::new(&card).unwrap();
        Some(Bench { model, stream, shape, turns })
    }

    /// Numbers on the card as bf16.
    pub(super) fn half(&self, x: &[f64]) -> DeviceBuffer<u16> {
        self.put(&x.iter().map(|x| bits(*x)).collect::<Vec<_>>())
    }

    pub(super) fn put<T: Pod>(&self, x: &[T]) -> DeviceBuffer<T> {
        DeviceBuffer::from_slice(self.model.device(), x).unwrap()
    }

    /// Room for so many, all of it holding what no kernel may leave there.
    pub(super) fn room(&self, len: usize) -> DeviceBuffer<u16> {
        self.put(&vec![bits(f64::NAN); len])
    }

    pub(super) fn read(&self, x: &DeviceBuffer<u16>) -> Vec<f64> {
        self.stream.wait().unwrap();
        x.to_vec().unwrap().into_iter().map(|x| f64::from(f32::from_bits(u32::from(x) << 16))).collect()
    }

    pub(super) fn read_wide(&self, x: &DeviceBuffer<f32>) -> Vec<f64> {
        self.stream.wait().unwrap();
        x.to_vec().unwrap().into_iter().map(f64::from).collect()
    }
}

/// The nearest bf16 number's bits.
fn bits(x: f64) -> u16 {
    let x = (x as f32).to_bits();
    if f32::from_bits(x).is_nan() {
        return 0x7fc0;
    }
    ((x + 0x7fff + ((x >> 16) & 1)) >> 16) as u16
}

/// Numbers between -1 and 1 that bf16 can hold, always the same for a seed.
pub(super) fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let x = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
            f64::from(f32::from_bits(u32::from(bits(x)) << 16))
        })
        .collect()
}

/// Equal to bf16's rounding, relative to the largest.
pub(super) fn near(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what}: number {i} is {g}, not {w} (largest {scale})");
    }
}

/// The slope of `f` by each of `x`, from differences.
pub(super) fn slopes(x: &[f64], mut f: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut y = x.to_vec();
    (0..x.len())
        .map(|i| {
            y[i] = x[i] + STEP;
            let up = f(&y);
            y[i] = x[i] - STEP;
            let down = f(&y);
            y[i] = x[i];
            (up - down) / (2.0 * STEP)
        })
        .collect()
}
