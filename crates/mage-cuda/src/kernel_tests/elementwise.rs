//! Kernels that treat rows or numbers one by one.

use super::{Bench, bits, near, numbers, slopes};
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

#[test]
fn norms_and_their_gradients() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (n, f, s) = (7, &b.model.program.functions, &b.stream);
    let (x, w, dy, dx0) = (numbers(n * D, 1), numbers(D, 2), numbers(n * D, 3), numbers(n * D, 4));
    let (bx, bw, bdy, bdx) = (b.half(&x), b.half(&w), b.half(&dy), b.half(&dx0));
    let (y, again, inverse) = (b.room(n * D), b.room(n * D), b.put(&vec![0_f32; n]));
    b.model.norm(s, bx.at(0), bw.at(0), n, y.at(0), inverse.at(0)).unwrap();
    s.launch(f.rms_norm_again, (n, 1, 1), 32, 0, args![bx.at(0), bw.at(0), inverse.at(0), D / 8, again.at(0)]).unwrap();
    let rows = |x: &[f64], w: &[f64]| x.chunks(D).flat_map(|x| norm(x, w)).collect::<Vec<_>>();
    near("norm", &b.read(&y), &rows(&x, &w), 0.005);
    assert_eq!(b.read(&y), b.read(&again));
    // Fewer blocks than rows, so that each goes over several.
    let blocks = 3;
    let (partials, dw) = (b.put(&vec![f32::NAN; blocks * D]), b.put(&vec![1_f32; D]));
    s.launch(
        f.rms_norm_grad,
        (blocks, 1, 1),
        b.model.row_threads(),
        0,
        args![bdy.at(0), bx.at(0), bw.at(0), inverse.at(0), n, D / 8, bdx.at(0), partials.at(0)],
    )
    .unwrap();
    s.launch(f.add_partials, (D.div_ceil(32), 1, 1), 256, 0, args![partials.at(0), blocks, D, dw.at(0)]).unwrap();
    let want: Vec<f64> =
        slopes(&x, |x| dot(&rows(x, &w), &dy)).iter().zip(&dx0).map(|(slope, before)| slope + before).collect();
    near("by the input", &b.read(&bdx), &want, 0.01);
    let want: Vec<f64> = slopes(&w, |w| dot(&rows(&x, w), &dy)).iter().map(|slope| slope + 1.0).collect();
    near("by the weights", &b.read_wide(&dw), &want, 0.005);
}

#[test]
fn swiglu_and_its_gradient() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (n, inner, f) = (5, b.shape.intermediate_size, &b.model.program.functions);
    let x: Vec<f64> = numbers(n * 2 * inner, 1).iter().map(|x| 4.0 * x).collect();
    let dy = numbers(n * inner, 2);
    let gated = |x: &[f64]| {
        let row = |x: &[f64]| {
            let (gates, ups) = x.split_at(inner);
            gates.iter().zip(ups).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect::<Vec<_>>()
        };
        x.chunks(2 * inner).flat_map(row).collect::<Vec<_>>()
    };
    let (bx, bdy, y) = (b.half(&x), b.half(&dy), b.room(n * inner));
    let (dx, again) = (b.room(n * 2 * inner), b.room(n * inner));
    b.model.swiglu(&b.stream, bx.at(0), n, y.at(0)).unwrap();
    let arguments = args![bdy.at(0), bx.at(0), inner / 8, dx.at(0), again.at(0)];
    b.stream.launch(f.swiglu_grad, (n, 1, 1), 128, 0, arguments).unwrap();
    near("gated", &b.read(&y), &gated(&x), 0.005);
    near("gated again", &b.read(&again), &gated(&x), 0.005);
    near("gradient", &b.read(&dx), &slopes(&x, |x| dot(&gated(x), &dy)), 0.005);
}

#[test]
fn rows_are_gathered_scattered_and_added_to_their_tokens() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (f, s, table) = (&b.model.program.functions, &b.stream, numbers(9 * D, 1));
    let rows = b.put(&[4_u32, 0, 8]);
    let (from, to, kept) = (b.half(&table), b.room(3 * D), b.half(&table));
    b.model.gather(s, from.at(0), rows.at(0), 3, D, to.at(0)).unwrap();
    let row = |i: usize| table[i * D..(i + 1) * D].to_vec();
    assert_eq!(b.read(&to), [row(4), row(0), row(8)].concat());
    s.launch(f.scatter, (3, 1, 1), 32, 0, args![to.at(0), rows.at(0), D / 8, kept.at(0)]).unwrap();
    let twice = |i: usize| row(i).iter().map(|x| if [0, 4, 8].contains(&i) { 2.0 * x } else { *x }).collect::<Vec<_>>();
    near("scattered", &b.read(&kept), &(0..9).flat_map(twice).collect::<Vec<_>>(), 0.0);
    // Rows 2, 5 and 7 have token 1, row 0 token 3.
    let (order, starts, tokens) = (b.put(&[2_u32, 5, 7, 0]), b.put(&[0_u32, 3, 4]), b.put(&[1_u32, 3]));
    let sums = b.put(&vec![0_f32; 4 * D]);
    s.launch(
        f.embedding_grad,
        (2, 1, 1),
        32,
        0,
        args![from.at(0), order.at(0), starts.at(0), tokens.at(0), D / 8, sums.at(0)],
    )
    .unwrap();
    let mut want = vec![0.0; 4 * D];
    for (row_of, token) in [(2, 1), (5, 1), (7, 1), (0, 3)] {
        want[token * D..][..D].iter_mut().zip(row(row_of)).for_each(|(w, x)| *w += x);
    }
    near("by tokens", &b.read_wide(&sums), &want, 1e-6);
}

#[test]
fn squares_and_a_step_of_adamw() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (f, s, n) = (&b.model.program.functions, &b.stream, 70_001);
    let wide = |seed| numbers(n, seed).iter().map(|x| *x as f32).collect::<Vec<_>>();
    let (p, g, m, v) = (wide(1), wide(2), wide(3), wide(4).iter().map(|x| x.abs()).collect::<Vec<_>>());
    let (bp, bg, bm, bv, half) = (b.put(&p), b.put(&g), b.put(&m), b.put(&v), b.room(n));
    let sums = DeviceBuffer::<f64>::zeros(b.model.device(), 2).unwrap();
    s.launch(f.squares, (2, 1, 1), 256, 0, args![bg.at(0), n as u64, sums.at(0)]).unwrap();
    s.wait().unwrap();
    let want: f64 = g.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
    assert!((sums.to_vec().unwrap().iter().sum::<f64>() - want).abs() < 1e-9 * want);
    let [rate, beta1, beta2, epsilon, decay, scale, c1, c2] = [0.1_f32, 0.9, 0.95, 1e-6, 0.2, 0.5, 0.19, 0.0975];
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
            half.at(0),
            n as u64,
            rate,
            beta1,
            beta2,
            epsilon,
            decay,
            scale,
            c1,
            c2
        ],
    )
    .unwrap();
    let w = |x: f32| f64::from(x);
    let d = |i: usize| w(g[i] * scale);
    let first: Vec<f64> = (0..n).map(|i| w(beta1) * w(m[i]) + (1.0 - w(beta1)) * d(i)).collect();
    let second: Vec<f64> = (0..n).map(|i| w(beta2) * w(v[i]) + (1.0 - w(beta2)) * d(i) * d(i)).collect();
    let one = |i: usize| {
        let stepped = w(rate) * (first[i] / w(c1)) / ((second[i] / w(c2)).sqrt() + w(epsilon));
        w(p[i]) * (1.0 - w(rate) * w(decay)) - stepped
    };
    let want: Vec<f64> = (0..n).map(one).collect();
    near("first moments", &b.read_wide(&bm), &first, 1e-5);
    near("second moments", &b.read_wide(&bv), &second, 1e-5);
    near("numbers", &b.read_wide(&bp), &want, 1e-5);
    near("their bf16 form", &b.read(&half), &want, 0.005);
    assert!(b.read_wide(&bg).iter().all(|g| *g == 0.0));
}

#[test]
fn numbers_become_the_nearest_that_bf16_has() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    // Halfway between two, to the even one, a bit above and below that; what has no neighbour; and the ends.
    let mut wide: Vec<f32> = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f80_7fff, 0xbf80_8000, 0xbf81_8000]
        .map(f32::from_bits)
        .into_iter()
        .chain([0.0, -0.0, 1e-45, f32::MIN_POSITIVE, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY])
        .collect();
    wide.extend((0..70_001_u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).filter(|x| !x.is_nan()));
    let (from, n, s) = (b.put(&wide), wide.len(), &b.stream);
    let want: Vec<u16> = wide.iter().map(|x| bits(f64::from(*x))).collect();
    let untouched = [bits(f64::NAN); 8];
    // With a block for each piece, and with fewer, each of which goes round.
    for blocks in [None, Some(3)] {
        let half = b.room(n + untouched.len());
        match blocks {
            None => b.model.narrow(s, from.at(0), n, half.at(0)).unwrap(),
            Some(blocks) => {
                let f = b.model.program.functions.narrow_all;
                s.launch(f, (blocks, 1, 1), 256, 0, args![from.at(0), n as u64, half.at(0)]).unwrap();
            }
        }
        s.wait().unwrap();
        let got = half.to_vec().unwrap();
        assert!(got[..n] == want[..] && got[n..] == untouched, "{blocks:?}");
    }
    // What is no number stays none.
    let (from, half) = (b.put(&[f32::NAN]), b.put(&[0_u16]));
    b.model.narrow(s, from.at(0), 1, half.at(0)).unwrap();
    assert!(b.read(&half)[0].is_nan());
}
