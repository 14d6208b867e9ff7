//! Tests of the fused GEMM kernels: full and partial tiles, with and without split-K, with norms before and after.

use super::{KernelFixture, assert_near, bf16_bits, random_bf16};
use crate::buffer::DeviceBuffer;
use crate::fused_gemm::{GemmDims, GemmInput, GemmWeights, NormEpilogue, num_partials};

/// `x · wᵀ`, in f64.
fn matmul(x: &[f64], w: &[f64], outputs: usize, inputs: usize) -> Vec<f64> {
    let row = |x: &[f64], w: &[f64]| -> f64 { x.iter().zip(w).map(|(x, w)| x * w).sum() };
    x.chunks(inputs).flat_map(|x| w.chunks(inputs).take(outputs).map(move |w| row(x, w))).collect()
}

/// Rounds to bf16.
fn to_bf16(x: f64) -> f64 {
    f64::from(f32::from_bits(u32::from(bf16_bits(x)) << 16))
}

fn fixture() -> KernelFixture {
    KernelFixture::new(128, 4, 2)
}

fn weights(count: usize, seed: u64) -> Vec<f64> {
    random_bf16(count, seed).iter().map(|w| to_bf16(w * 0.2)).collect()
}

/// Weights without a prefetch.
fn gemm_weights(weights: &DeviceBuffer<u16>) -> GemmWeights {
    GemmWeights { weights: weights.at(0), prefetch: (0, 0) }
}

pub(crate) fn fused_gemm_matches_plain_loops() {
    let fixture = fixture();
    for (rows, outputs, inputs) in [
        (1, 128, 64),
        (64, 128, 256),
        (140, 384, 320),
        (130, 1024, 64),
        (256, 512, 1024),
        (33, 128, 2048),
        (129, 4096, 256),
    ] {
        let (x, w) = (random_bf16(rows * inputs, 1), weights(outputs * inputs, 2));
        let (x_device, w_device) = (fixture.upload_bf16(&x), fixture.upload_bf16(&w));
        let dims = GemmDims { rows, outputs, inputs };
        let expected = matmul(&x, &w, outputs, inputs);
        let case = format!("{rows} rows, {outputs} outputs, {inputs} inputs");
        // One spare row, which must stay unchanged.
        let y = fixture.nan_bf16((rows + 1) * outputs);
        let input = GemmInput { rows: x_device.at(0), squares: 0 };
        // The prefetch must have no effect.
        let prefetched = GemmWeights { weights: w_device.at(0), prefetch: (w_device.at(0), 2 * w.len()) };
        fixture.model.fused_gemm(&fixture.stream, dims, input, prefetched, y.at(0)).unwrap();
        let actual = fixture.read_bf16(&y);
        assert_near(&case, &actual[..rows * outputs], &expected, 0.005);
        assert!(actual[rows * outputs..].iter().all(|x| x.is_nan()), "{case}: spare row");
        // Adds the product again, twice, with equal bits.
        let twice: Vec<f64> = expected.iter().map(|x| 2.0 * x).collect();
        let second = fixture.upload_bf16(&actual);
        for y in [&y, &second] {
            let no_norm = NormEpilogue::default();
            fixture
                .model
                .fused_gemm_add(&fixture.stream, dims, x_device.at(0), gemm_weights(&w_device), y.at(0), no_norm)
                .unwrap();
        }
        let actual = fixture.read_bf16(&y);
        assert_near(&format!("{case}, twice"), &actual[..rows * outputs], &twice, 0.008);
        assert!(actual[rows * outputs..].iter().all(|x| x.is_nan()), "{case}: spare row");
        assert_eq!(y.to_vec().unwrap(), second.to_vec().unwrap(), "{case}");
    }
}

pub(crate) fn fused_gemm_swiglu_matches_plain_loops() {
    let fixture = fixture();
    for (rows, outputs, inputs) in [(1, 48, 64), (64, 192, 256), (140, 384, 320), (256, 192, 1024), (130, 3072, 64)] {
        let (x, w) = (random_bf16(rows * inputs, 3), weights(2 * outputs * inputs, 4));
        let (x_device, w_device) = (fixture.upload_bf16(&x), fixture.upload_bf16(&w));
        let [gates, ups] = [0, outputs].map(|first| matmul(&x, &w[first * inputs..], outputs, inputs));
        let swiglu = |(gate, up): (&f64, &f64)| to_bf16(*gate) / (1.0 + (-to_bf16(*gate)).exp()) * to_bf16(*up);
        let expected: Vec<f64> = gates.iter().zip(&ups).map(swiglu).collect();
        let y = fixture.nan_bf16(rows * outputs);
        let (dims, input) = (GemmDims { rows, outputs, inputs }, GemmInput { rows: x_device.at(0), squares: 0 });
        fixture.model.fused_gemm_swiglu(&fixture.stream, dims, input, gemm_weights(&w_device), y.at(0)).unwrap();
        assert_near(
            &format!("{rows} rows, {outputs} outputs, {inputs} inputs"),
            &fixture.read_bf16(&y),
            &expected,
            0.008,
        );
    }
}

pub(crate) fn fused_norm_between_two_gemms_matches_plain_loops() {
    let fixture = fixture();
    let epsilon = f64::from(fixture.model.shape.rms_norm_eps);
    for (rows, width, inputs, outputs) in
        [(1, 128, 64, 192), (140, 256, 320, 384), (256, 1024, 256, 768), (200, 256, 64, 4224)]
    {
        let (x, old) = (random_bf16(rows * inputs, 5), random_bf16(rows * width, 6));
        let (w1, norm_weight, w2) = (weights(width * inputs, 7), weights(width, 8), weights(outputs * width, 9));
        let hidden: Vec<f64> = matmul(&x, &w1, width, inputs).iter().zip(&old).map(|(x, y)| to_bf16(x + y)).collect();
        let normed = hidden.chunks(width).flat_map(|row| {
            let inverse = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / width as f64 + epsilon).sqrt();
            row.iter().zip(&norm_weight).map(move |(x, g)| x * g * inverse)
        });
        let expected = matmul(&normed.collect::<Vec<_>>(), &w2, outputs, width);
        let [x, old, w1, norm_weight, w2] = [&x, &old, &w1, &norm_weight, &w2].map(|x| fixture.upload_bf16(x));
        let (norm_input, y, half_outputs) =
            (fixture.nan_bf16(rows * width), fixture.nan_bf16(rows * outputs), outputs / 2);
        let swiglu = fixture.nan_bf16(rows * half_outputs);
        let squares = fixture.upload(&vec![f32::NAN; rows * num_partials(width)]);
        let after = NormEpilogue { weights: norm_weight.at(0), rows: norm_input.at(0), squares: squares.at(0) };
        // Launched back to back: each kernel waits for its inputs by itself.
        let (s, model, dims) = (&fixture.stream, &fixture.model, |outputs, inputs| GemmDims { rows, outputs, inputs });
        model.fused_gemm_add(s, dims(width, inputs), x.at(0), gemm_weights(&w1), old.at(0), after).unwrap();
        let input = GemmInput { rows: norm_input.at(0), squares: squares.at(0) };
        model.fused_gemm(s, dims(outputs, width), input, gemm_weights(&w2), y.at(0)).unwrap();
        model.fused_gemm_swiglu(s, dims(half_outputs, width), input, gemm_weights(&w2), swiglu.at(0)).unwrap();
        let case = format!("{rows} rows of {width}");
        assert_near(&case, &fixture.read_bf16(&old), &hidden, 0.005);
        assert_near(&format!("{case}, after the norm"), &fixture.read_bf16(&y), &expected, 0.01);
        let silu = |x: f64| to_bf16(x) / (1.0 + (-to_bf16(x)).exp());
        let expected: Vec<f64> = expected
            .chunks(outputs)
            .flat_map(|row| (0..half_outputs).map(move |i| silu(row[i]) * to_bf16(row[half_outputs + i])))
            .collect();
        assert_near(&format!("{case}, SwiGLU"), &fixture.read_bf16(&swiglu), &expected, 0.01);
    }
}
