//! Tests of row-wise and elementwise kernels.

use super::{KernelFixture, assert_near, bf16_bits, numeric_grad, random_bf16};
use crate::buffer::DeviceBuffer;
use crate::stream::args;

const EPSILON: f64 = 1e-3;
const D: usize = 72;

fn norm(x: &[f64], w: &[f64]) -> Vec<f64> {
    let inverse = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + EPSILON).sqrt();
    x.iter().zip(w).map(|(x, w)| x * inverse * w).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(crate) fn rms_norm_and_its_gradients_match_plain_loops() {
    let b = KernelFixture::new(16, 2, 1);
    let (n, f, s) = (7, &b.model.kernels.common, &b.stream);
    let (x, w, dy, dx0) = (random_bf16(n * D, 1), random_bf16(D, 2), random_bf16(n * D, 3), random_bf16(n * D, 4));
    let (bx, bw, bdy, bdx) = (b.upload_bf16(&x), b.upload_bf16(&w), b.upload_bf16(&dy), b.upload_bf16(&dx0));
    let (y, recomputed, inverse) = (b.nan_bf16(n * D), b.nan_bf16(n * D), b.upload(&vec![0_f32; n]));
    b.model.rms_norm(s, bx.at(0), bw.at(0), n, y.at(0), inverse.at(0)).unwrap();
    s.launch(f.rms_norm_recompute, (n, 1, 1), 32, 0, args![bx.at(0), bw.at(0), inverse.at(0), D / 8, recomputed.at(0)])
        .unwrap();
    let rows = |x: &[f64], w: &[f64]| x.chunks(D).flat_map(|x| norm(x, w)).collect::<Vec<_>>();
    assert_near("RMSNorm", &b.read_bf16(&y), &rows(&x, &w), 0.005);
    assert_eq!(b.read_bf16(&y), b.read_bf16(&recomputed));
    // Fewer thread blocks than rows, so that each processes several.
    let blocks = 3;
    let (partials, dw) = (b.upload(&vec![f32::NAN; blocks * D]), b.upload(&vec![1_f32; D]));
    s.launch(
        f.rms_norm_grad,
        (blocks, 1, 1),
        b.model.row_threads(),
        0,
        args![bdy.at(0), bx.at(0), bw.at(0), inverse.at(0), n, D / 8, bdx.at(0), partials.at(0)],
    )
    .unwrap();
    s.launch(f.reduce_partials, (D.div_ceil(32), 1, 1), 256, 0, args![partials.at(0), blocks, D, dw.at(0)]).unwrap();
    let expected: Vec<f64> =
        numeric_grad(&x, |x| dot(&rows(x, &w), &dy)).iter().zip(&dx0).map(|(slope, before)| slope + before).collect();
    assert_near("gradient of the input", &b.read_bf16(&bdx), &expected, 0.01);
    let expected: Vec<f64> = numeric_grad(&w, |w| dot(&rows(&x, w), &dy)).iter().map(|slope| slope + 1.0).collect();
    assert_near("gradient of the weights", &b.read_f32(&dw), &expected, 0.005);
}

pub(crate) fn swiglu_and_its_gradient_match_plain_loops() {
    let b = KernelFixture::new(16, 2, 1);
    let (n, intermediate, f) = (5, b.shape.intermediate_size, &b.model.kernels.common);
    let x: Vec<f64> = random_bf16(n * 2 * intermediate, 1).iter().map(|x| 4.0 * x).collect();
    let dy = random_bf16(n * intermediate, 2);
    let swiglu = |x: &[f64]| {
        let row = |x: &[f64]| {
            let (gates, ups) = x.split_at(intermediate);
            gates.iter().zip(ups).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect::<Vec<_>>()
        };
        x.chunks(2 * intermediate).flat_map(row).collect::<Vec<_>>()
    };
    let (bx, bdy, y) = (b.upload_bf16(&x), b.upload_bf16(&dy), b.nan_bf16(n * intermediate));
    let (dx, recomputed) = (b.nan_bf16(n * 2 * intermediate), b.nan_bf16(n * intermediate));
    b.model.swiglu(&b.stream, bx.at(0), n, y.at(0)).unwrap();
    let arguments = args![bdy.at(0), bx.at(0), intermediate / 8, dx.at(0), recomputed.at(0)];
    b.stream.launch(f.swiglu_grad, (n, 1, 1), 128, 0, arguments).unwrap();
    assert_near("SwiGLU", &b.read_bf16(&y), &swiglu(&x), 0.005);
    assert_near("recomputed SwiGLU", &b.read_bf16(&recomputed), &swiglu(&x), 0.005);
    assert_near("gradient", &b.read_bf16(&dx), &numeric_grad(&x, |x| dot(&swiglu(x), &dy)), 0.005);
}

pub(crate) fn gather_scatter_and_embedding_gradient_match_plain_loops() {
    let b = KernelFixture::new(16, 2, 1);
    let (f, s, table) = (&b.model.kernels.common, &b.stream, random_bf16(9 * D, 1));
    let rows = b.upload(&[4_u32, 0, 8]);
    let (from, to, kept) = (b.upload_bf16(&table), b.nan_bf16(3 * D), b.upload_bf16(&table));
    b.model.gather_rows(s, from.at(0), rows.at(0), 3, D, to.at(0)).unwrap();
    let row = |i: usize| table[i * D..(i + 1) * D].to_vec();
    assert_eq!(b.read_bf16(&to), [row(4), row(0), row(8)].concat());
    s.launch(f.scatter_add_rows, (3, 1, 1), 32, 0, args![to.at(0), rows.at(0), D / 8, kept.at(0)]).unwrap();
    let doubled =
        |i: usize| row(i).iter().map(|x| if [0, 4, 8].contains(&i) { 2.0 * x } else { *x }).collect::<Vec<_>>();
    assert_near("scatter-add", &b.read_bf16(&kept), &(0..9).flat_map(doubled).collect::<Vec<_>>(), 0.0);
    // Rows 2, 5 and 7 belong to token 1, row 0 to token 3.
    let (order, starts, tokens) = (b.upload(&[2_u32, 5, 7, 0]), b.upload(&[0_u32, 3, 4]), b.upload(&[1_u32, 3]));
    let sums = b.upload(&vec![0_f32; 4 * D]);
    s.launch(
        f.embedding_grad,
        (2, 1, 1),
        32,
        0,
        args![from.at(0), order.at(0), starts.at(0), tokens.at(0), D / 8, sums.at(0)],
    )
    .unwrap();
    let mut expected = vec![0.0; 4 * D];
    for (row_of, token) in [(2, 1), (5, 1), (7, 1), (0, 3)] {
        expected[token * D..][..D].iter_mut().zip(row(row_of)).for_each(|(w, x)| *w += x);
    }
    assert_near("embedding gradient", &b.read_f32(&sums), &expected, 1e-6);
}

pub(crate) fn sum_of_squares_and_adamw_match_plain_loops() {
    let b = KernelFixture::new(16, 2, 1);
    let (f, s, n) = (&b.model.kernels.common, &b.stream, 70_001);
    let f32_values = |seed| random_bf16(n, seed).iter().map(|x| *x as f32).collect::<Vec<_>>();
    let (p, g, m, v) =
        (f32_values(1), f32_values(2), f32_values(3), f32_values(4).iter().map(|x| x.abs()).collect::<Vec<_>>());
    let (bp, bg, bm, bv, bf16_out) = (b.upload(&p), b.upload(&g), b.upload(&m), b.upload(&v), b.nan_bf16(n));
    let sums = DeviceBuffer::<f64>::zeros(b.model.device(), 2).unwrap();
    s.launch(f.sum_of_squares, (2, 1, 1), 256, 0, args![bg.at(0), n as u64, sums.at(0)]).unwrap();
    s.wait().unwrap();
    let expected: f64 = g.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
    assert!((sums.to_vec().unwrap().iter().sum::<f64>() - expected).abs() < 1e-9 * expected);
    let [learning_rate, beta1, beta2, epsilon, weight_decay, grad_scale, c1, c2] =
        [0.1_f32, 0.9, 0.95, 1e-6, 0.2, 0.5, 0.19, 0.0975];
    s.launch(
        f.adamw,
        (100, 1, 1),
        256,
        0,
        args![
            bp.at(0),
            bg.at(0),
            bm.at(0),
            bv.at(0),
            bf16_out.at(0),
            n as u64,
            learning_rate,
            beta1,
            beta2,
            epsilon,
            weight_decay,
            grad_scale,
            c1,
            c2
        ],
    )
    .unwrap();
    let w = |x: f32| f64::from(x);
    let d = |i: usize| w(g[i] * grad_scale);
    let exp_avg: Vec<f64> = (0..n).map(|i| w(beta1) * w(m[i]) + (1.0 - w(beta1)) * d(i)).collect();
    let exp_avg_sq: Vec<f64> = (0..n).map(|i| w(beta2) * w(v[i]) + (1.0 - w(beta2)) * d(i) * d(i)).collect();
    let updated = |i: usize| {
        let stepped = w(learning_rate) * (exp_avg[i] / w(c1)) / ((exp_avg_sq[i] / w(c2)).sqrt() + w(epsilon));
        w(p[i]) * (1.0 - w(learning_rate) * w(weight_decay)) - stepped
    };
    let expected: Vec<f64> = (0..n).map(updated).collect();
    assert_near("first moments", &b.read_f32(&bm), &exp_avg, 1e-5);
    assert_near("second moments", &b.read_f32(&bv), &exp_avg_sq, 1e-5);
    assert_near("parameters", &b.read_f32(&bp), &expected, 1e-5);
    assert_near("bf16 parameters", &b.read_bf16(&bf16_out), &expected, 0.005);
    assert!(b.read_f32(&bg).iter().all(|g| *g == 0.0));
}

pub(crate) fn f32_to_bf16_rounds_to_nearest_even() {
    let b = KernelFixture::new(16, 2, 1);
    // Ties round to even; values just above and below a tie; zeros and subnormals; the extremes.
    let mut f32_values: Vec<f32> = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f80_7fff, 0xbf80_8000, 0xbf81_8000]
        .map(f32::from_bits)
        .into_iter()
        .chain([0.0, -0.0, 1e-45, f32::MIN_POSITIVE, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY])
        .collect();
    f32_values.extend((0..70_001_u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).filter(|x| !x.is_nan()));
    let (from, n, s) = (b.upload(&f32_values), f32_values.len(), &b.stream);
    let expected: Vec<u16> = f32_values.iter().map(|x| bf16_bits(f64::from(*x))).collect();
    let untouched = [bf16_bits(f64::NAN); 8];
    // With one thread block per 256 elements, and with fewer, which loop.
    for blocks in [None, Some(3)] {
        let bf16_out = b.nan_bf16(n + untouched.len());
        match blocks {
            None => b.model.f32_to_bf16(s, from.at(0), n, bf16_out.at(0)).unwrap(),
            Some(blocks) => {
                let f = b.model.kernels.common.f32_to_bf16;
                s.launch(f, (blocks, 1, 1), 256, 0, args![from.at(0), n as u64, bf16_out.at(0)]).unwrap();
            }
        }
        s.wait().unwrap();
        let actual = bf16_out.to_vec().unwrap();
        assert!(actual[..n] == expected[..] && actual[n..] == untouched, "{blocks:?}");
    }
    // NaN stays NaN.
    let (from, bf16_out) = (b.upload(&[f32::NAN]), b.upload(&[0_u16]));
    b.model.f32_to_bf16(s, from.at(0), 1, bf16_out.at(0)).unwrap();
    assert!(b.read_bf16(&bf16_out)[0].is_nan());
}
