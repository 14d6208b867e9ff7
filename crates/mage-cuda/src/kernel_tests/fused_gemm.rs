//! CublasLt of our own, of whole and half-filled tiles, cut into parts and not, with norms before and after.

use super::{Bench, bits, near, numbers};
use crate::buffer::DeviceBuffer;
use crate::fused_gemm::{Dims, ForNorm, Left, Right, parts};
use std::io::Write;

/// `x · wᵀ`, in f64.
fn product(x: &[f64], w: &[f64], outputs: usize, inputs: usize) -> Vec<f64> {
    let row = |x: &[f64], w: &[f64]| -> f64 { x.iter().zip(w).map(|(x, w)| x * w).sum() };
    x.chunks(inputs).flat_map(|x| w.chunks(inputs).take(outputs).map(move |w| row(x, w))).collect()
}

/// As bf16 holds it.
fn rounded(x: f64) -> f64 {
    f64::from(f32::from_bits(u32::from(bits(x)) << 16))
}

/// Nothing where the card has no such kernels, which is said.
fn bench() -> Option<Bench> {
    let bench = Bench::new(128, 4, 2)?;
    let there = bench.model.program.dense.is_some();
    if !there {
        let _ = writeln!(
            std::io::stderr(),
            "\n*** SKIPPED: this card is no Hopper, so no product of our own was tried ***"
        );
    }
    there.then_some(bench)
}

fn weights(count: usize, seed: u64) -> Vec<f64> {
    numbers(count, seed).iter().map(|w| rounded(w * 0.2)).collect()
}

/// CudaWeights with nothing after them.
fn right(weights: &DeviceBuffer<u16>) -> Right {
    Right { weights: weights.at(0), next: (0, 0) }
}

#[test]
fn products_are_those_of_plain_loops() {
    let Some(bench) = bench() else { return };
    for (rows, outputs, inputs) in [
        (1, 128, 64),
        (64, 128, 256),
        (140, 384, 320),
        (130, 1024, 64),
        (256, 512, 1024),
        (33, 128, 2048),
        (129, 4096, 256),
    ] {
        let (x, w) = (numbers(rows * inputs, 1), weights(outputs * inputs, 2));
        let (on_card, on_card_w) = (bench.half(&x), bench.half(&w));
        let dims = Dims { rows, outputs, inputs };
        let want = product(&x, &w, outputs, inputs);
        let what = format!("{rows} rows, {outputs} outputs, {inputs} inputs");
        // One row more than there is, which must stay as it is.
        let y = bench.room((rows + 1) * outputs);
        let left = Left { rows: on_card.at(0), squares: 0 };
        // What it says comes next is only looked at.
        let next = Right { weights: on_card_w.at(0), next: (on_card_w.at(0), 2 * w.len()) };
        bench.model.dense(&bench.stream, dims, left, next, y.at(0)).unwrap();
        let got = bench.read(&y);
        near(&what, &got[..rows * outputs], &want, 0.005);
        assert!(got[rows * outputs..].iter().all(|x| x.is_nan()), "{what}: beyond its rows");
        // Once more, added to what is there, twice, with equal bits.
        let twice: Vec<f64> = want.iter().map(|x| 2.0 * x).collect();
        let again = bench.half(&got);
        for y in [&y, &again] {
            let none = ForNorm::default();
            bench.model.dense_added(&bench.stream, dims, on_card.at(0), right(&on_card_w), y.at(0), none).unwrap();
        }
        let got = bench.read(&y);
        near(&format!("{what}, twice"), &got[..rows * outputs], &twice, 0.008);
        assert!(got[rows * outputs..].iter().all(|x| x.is_nan()), "{what}: beyond its rows");
        assert_eq!(y.to_vec().unwrap(), again.to_vec().unwrap(), "{what}");
    }
}

#[test]
fn gated_products_are_those_of_plain_loops() {
    let Some(bench) = bench() else { return };
    for (rows, outputs, inputs) in [(1, 48, 64), (64, 192, 256), (140, 384, 320), (256, 192, 1024), (130, 3072, 64)] {
        let (x, w) = (numbers(rows * inputs, 3), weights(2 * outputs * inputs, 4));
        let (on_card, on_card_w) = (bench.half(&x), bench.half(&w));
        let [gates, ups] = [0, outputs].map(|first| product(&x, &w[first * inputs..], outputs, inputs));
        let gated = |(gate, up): (&f64, &f64)| rounded(*gate) / (1.0 + (-rounded(*gate)).exp()) * rounded(*up);
        let want: Vec<f64> = gates.iter().zip(&ups).map(gated).collect();
        let y = bench.room(rows * outputs);
        let (dims, left) = (Dims { rows, outputs, inputs }, Left { rows: on_card.at(0), squares: 0 });
        bench.model.dense_gated(&bench.stream, dims, left, right(&on_card_w), y.at(0)).unwrap();
        near(&format!("{rows} rows, {outputs} outputs, {inputs} inputs"), &bench.read(&y), &want, 0.008);
    }
}

#[test]
fn a_norm_between_two_products_is_that_of_plain_loops() {
    let Some(bench) = bench() else { return };
    let epsilon = f64::from(bench.model.shape.rms_norm_eps);
    for (rows, width, inputs, outputs) in
        [(1, 128, 64, 192), (140, 256, 320, 384), (256, 1024, 256, 768), (200, 256, 64, 4224)]
    {
        let (x, old) = (numbers(rows * inputs, 5), numbers(rows * width, 6));
        let (w1, gain, w2) = (weights(width * inputs, 7), weights(width, 8), weights(outputs * width, 9));
        let middle: Vec<f64> = product(&x, &w1, width, inputs).iter().zip(&old).map(|(x, y)| rounded(x + y)).collect();
        let normed = middle.chunks(width).flat_map(|row| {
            let inverse = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / width as f64 + epsilon).sqrt();
            row.iter().zip(&gain).map(move |(x, g)| x * g * inverse)
        });
        let want = product(&normed.collect::<Vec<_>>(), &w2, outputs, width);
        let [x, old, w1, gain, w2] = [&x, &old, &w1, &gain, &w2].map(|x| bench.half(x));
        let (gained, y, half) = (bench.room(rows * width), bench.room(rows * outputs), outputs / 2);
        let gated = bench.room(rows * half);
        let squares = bench.put(&vec![f32::NAN; rows * parts(width)]);
        let after = ForNorm { weights: gain.at(0), rows: gained.at(0), squares: squares.at(0) };
        // Started one after the other, without waiting: each waits by itself for what it needs.
        let (s, model, dims) = (&bench.stream, &bench.model, |outputs, inputs| Dims { rows, outputs, inputs });
        model.dense_added(s, dims(width, inputs), x.at(0), right(&w1), old.at(0), after).unwrap();
        let left = Left { rows: gained.at(0), squares: squares.at(0) };
        model.dense(s, dims(outputs, width), left, right(&w2), y.at(0)).unwrap();
        model.dense_gated(s, dims(half, width), left, right(&w2), gated.at(0)).unwrap();
        let what = format!("{rows} rows of {width}");
        near(&what, &bench.read(&old), &middle, 0.005);
        near(&format!("{what}, after the norm"), &bench.read(&y), &want, 0.01);
        let silu = |x: f64| rounded(x) / (1.0 + (-rounded(x)).exp());
        let want: Vec<f64> = want
            .chunks(outputs)
            .flat_map(|row| (0..half).map(move |i| silu(row[i]) * rounded(row[half + i])))
            .collect();
        near(&format!("{what}, gated"), &bench.read(&gated), &want, 0.01);
    }
}
