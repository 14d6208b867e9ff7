//! Causal attention, forward and backward, without padding and without a full score matrix.
//!
//! Each task is one sequence and one KV head with its query heads; scores are computed for a block of queries at a time. The
//! result of a query is a chain over its keys in order, so it does not depend on query blocking: decoding with a KV cache
//! gives the bits of a full forward pass.

use super::gemm::{self, Lhs, Rhs};
use super::shared_ptr::SharedMut;
use super::{Cpu, Strided};
use crate::cpu::simd::{LANES, Lanes, SimdLevel, simd_dispatch};
use rayon::prelude::*;
use std::cell::RefCell;

/// Queries per block.
const BLOCK: usize = 48;

/// The head configuration of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) q: usize,
    /// Key and value heads; divides the query heads.
    pub(crate) kv: usize,
    /// Head dimension.
    pub(crate) dim: usize,
}

impl Heads {
    /// Width of queries and keys per token.
    pub(crate) fn qk(self) -> usize {
        (self.q + self.kv) * self.dim
    }

    /// Width of queries, keys and values per token.
    pub(crate) fn qkv(self) -> usize {
        (self.q + 2 * self.kv) * self.dim
    }

    /// Width of the attention output per token.
    pub(crate) fn out(self) -> usize {
        self.q * self.dim
    }
}

/// The rows of one sequence's queries and keys in a packed batch. Query `i` attends to the first
/// `key_len − query_len + i + 1` keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) query: usize,
    pub(crate) query_len: usize,
    pub(crate) key: usize,
    pub(crate) key_len: usize,
}

/// Inputs and outputs of a forward pass over packed sequences, as its backward pass needs them.
#[derive(Clone, Copy)]
pub(crate) struct AttentionOutput<'a> {
    pub(crate) qk: &'a [f32],
    pub(crate) qkv: &'a [f32],
    pub(crate) out: &'a [f32],
    pub(crate) logsumexp: &'a [f32],
}

#[derive(Default)]
struct Scratch {
    /// Packed keys, as columns.
    keys: Vec<f32>,
    /// Packed values, as columns.
    values: Vec<f32>,
    scores: Vec<f32>,
    dscores: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// GEMM into scratch space or into this task's own rows and columns.
fn task_gemm(
    level: SimdLevel,
    shape: (usize, usize, usize),
    a: Lhs<'_>,
    b: Rhs<'_>,
    c: SharedMut,
    stride: usize,
    accumulate: bool,
) {
    // SAFETY: scratch is thread-local, no two tasks have the same span and head, and the callers below check the lengths of
    // the outputs against all spans.
    unsafe { gemm::gemm_into(level, shape, a, b, c, stride, accumulate) }
}

fn scratch_slice(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// Parallel tasks write the rows of their span: the spans must be ascending and disjoint.
fn assert_disjoint(spans: &[Span]) {
    assert!(spans.windows(2).all(|s| s[0].query + s[0].query_len <= s[1].query), "attention: spans overlap");
}

/// Calls `work` for each (span, KV head), in parallel if there is enough work.
fn over_tasks(cpu: &Cpu, heads: Heads, spans: &[Span], work: impl Fn(&Span, usize) + Sync) {
    let size: usize = spans.iter().map(|s| s.query_len * s.key_len).sum::<usize>() * heads.q * heads.dim;
    if cpu.parallel && rayon::current_num_threads() > 1 && size > 1 << 16 {
        (0..spans.len() * heads.kv).into_par_iter().for_each(|i| work(&spans[i / heads.kv], i % heads.kv));
    } else {
        for span in spans {
            for head in 0..heads.kv {
                work(span, head);
            }
        }
    }
}

impl Cpu {
    /// Causal attention over each span. Writes `out` and the log-sum-exp per token and head.
    pub(crate) fn attention(
        &self,
        heads: Heads,
        spans: &[Span],
        [q, k, v]: [Strided<&[f32]>; 3],
        out: &mut [f32],
        logsumexp: &mut [f32],
    ) {
        let (dim, out_dim) = (heads.dim, heads.out());
        let queries: usize = spans.iter().map(|s| s.query + s.query_len).max().unwrap_or(0);
        assert!(out.len() >= queries * out_dim && logsumexp.len() >= queries * heads.q);
        assert!(spans.iter().all(|s| s.query_len <= s.key_len));
        assert_disjoint(spans);
        let scale = 1.0 / (dim as f32).sqrt();
        let (out, logsumexp) = (SharedMut::new(out), SharedMut::new(logsumexp));
        over_tasks(self, heads, spans, |span, kv| {
            SCRATCH.with_borrow_mut(|scratch| {
                let keys = scratch_slice(&mut scratch.keys, gemm::packed_len(span.key_len, dim));
                gemm::pack_transposed(
                    &k.data[span.key * k.stride + k.first + kv * dim..],
                    span.key_len,
                    dim,
                    k.stride,
                    keys,
                );
                let values = Rhs::Rows { data: &v.data[span.key * v.stride + v.first + kv * dim..], stride: v.stride };
                let width = span.key_len.next_multiple_of(LANES);
                let scores = scratch_slice(&mut scratch.scores, BLOCK * width);
                for h in kv * (heads.q / heads.kv)..(kv + 1) * (heads.q / heads.kv) {
                    for start in (0..span.query_len).step_by(BLOCK) {
                        let rows = BLOCK.min(span.query_len - start);
                        let before = span.key_len - span.query_len + start;
                        let seen = before + rows;
                        let columns = seen.next_multiple_of(LANES); // whole vectors; the surplus is overwritten
                        let row = span.query + start;
                        let queries = Lhs::rows(&q.data[row * q.stride + q.first + h * dim..], q.stride);
                        let right = Rhs::Packed { data: keys, k: dim };
                        task_gemm(
                            self.level,
                            (rows, columns, dim),
                            queries,
                            right,
                            SharedMut::new(scores),
                            width,
                            false,
                        );
                        for i in 0..rows {
                            let (row_logsumexp, inverse_sum) =
                                softmax_at(self.level, &mut scores[i * width..][..width], before + i + 1, scale);
                            // SAFETY: only this task writes this head's element of these rows.
                            unsafe {
                                *logsumexp.offset((row + i) * heads.q + h).ptr() = row_logsumexp;
                            }
                            scale_at(self.level, &mut scores[i * width..][..before + i + 1], inverse_sum);
                        }
                        let target = out.offset(row * out_dim + h * dim);
                        task_gemm(
                            self.level,
                            (rows, dim, seen),
                            Lhs::rows(scores, width),
                            values,
                            target,
                            out_dim,
                            false,
                        );
                    }
                }
            });
        });
    }
}

simd_dispatch!(fn softmax_at = softmax(scores: &mut [f32], seen: usize, scale: f32) -> (f32, f32));

/// Replaces the first `seen` scores by their exponentials, relative to the maximum, and the others by 0. Returns the
/// log-sum-exp and the inverse of the sum.
#[inline(always)]
pub(super) fn softmax<L: Lanes>(l: L, scores: &mut [f32], seen: usize, scale: f32) -> (f32, f32) {
    let end = seen.next_multiple_of(LANES);
    scores[seen..end].fill(f32::NEG_INFINITY);
    scores[end..].fill(0.0);
    let by = l.splat(scale);
    let mut largest = l.splat(f32::NEG_INFINITY);
    for c in scores[..end].as_chunks_mut().0 {
        let v = l.mul(l.load(c), by);
        largest = l.max(largest, v);
        l.store(c, v);
    }
    let top = l.reduce_max(largest);
    let (shift, mut sum) = (l.splat(top), l.splat(0.0));
    for c in scores[..end].as_chunks_mut().0 {
        let e = l.exp(l.sub(l.load(c), shift));
        sum = l.add(sum, e);
        l.store(c, e);
    }
    let sum = l.sum(sum);
    (top + sum.ln(), 1.0 / sum)
}

simd_dispatch!(fn scale_at = scale_all(x: &mut [f32], by: f32));

#[inline(always)]
pub(super) fn scale_all<L: Lanes>(l: L, x: &mut [f32], by: f32) {
    let by = l.splat(by);
    for c in x.chunks_mut(LANES) {
        let v = l.mul(l.load_partial(c), by);
        l.store_partial(c, v);
    }
}

impl Cpu {
    /// Writes `dqk`, and the value part of `dqkv`. Spans must have as many keys as queries.
    pub(crate) fn attention_grad(
        &self,
        heads: Heads,
        spans: &[Span],
        forward: AttentionOutput<'_>,
        dout: &[f32],
        dqk: &mut [f32],
        dqkv: &mut [f32],
    ) {
        let AttentionOutput { qk, qkv, out, logsumexp } = forward;
        let (dim, out_dim, qk_dim, qkv_dim) = (heads.dim, heads.out(), heads.qk(), heads.qkv());
        let rows: usize = spans.iter().map(|s| s.query + s.query_len).max().unwrap_or(0);
        assert!(spans.iter().all(|s| s.query == s.key && s.query_len == s.key_len));
        assert_disjoint(spans);
        assert!(dqk.len() >= rows * qk_dim && dqkv.len() >= rows * qkv_dim && logsumexp.len() >= rows * heads.q);
        let scale = 1.0 / (dim as f32).sqrt();
        let (dqk, dqkv) = (SharedMut::new(dqk), SharedMut::new(dqkv));
        over_tasks(self, heads, spans, |span, kv| {
            SCRATCH.with_borrow_mut(|scratch| {
                let (first, len) = (span.query, span.query_len);
                let key_at = (heads.q + kv) * dim;
                let value_at = (heads.q + heads.kv + kv) * dim;
                let key_rows = &qk[first * qk_dim + key_at..];
                let value_rows = &qkv[first * qkv_dim + value_at..];
                let keys = scratch_slice(&mut scratch.keys, gemm::packed_len(len, dim));
                gemm::pack_transposed(key_rows, len, dim, qk_dim, keys);
                let values = scratch_slice(&mut scratch.values, gemm::packed_len(len, dim));
                gemm::pack_transposed(value_rows, len, dim, qkv_dim, values);
                for i in 0..len {
                    // SAFETY: only this task writes this KV head's columns of the span's rows.
                    unsafe {
                        dqk.offset((first + i) * qk_dim + key_at).slice(dim).fill(0.0);
                        dqkv.offset((first + i) * qkv_dim + value_at).slice(dim).fill(0.0);
                    }
                }
                let width = len.next_multiple_of(LANES);
                let scores = scratch_slice(&mut scratch.scores, BLOCK * width);
                let dscores = scratch_slice(&mut scratch.dscores, BLOCK * width);
                for h in kv * (heads.q / heads.kv)..(kv + 1) * (heads.q / heads.kv) {
                    for start in (0..len).step_by(BLOCK) {
                        let rows = BLOCK.min(len - start);
                        let seen = start + rows;
                        let columns = seen.next_multiple_of(LANES); // whole vectors; the surplus is unused
                        let row = first + start;
                        let queries = &qk[row * qk_dim + h * dim..];
                        let douts = &dout[row * out_dim + h * dim..];
                        let right = Rhs::Packed { data: keys, k: dim };
                        task_gemm(
                            self.level,
                            (rows, columns, dim),
                            Lhs::rows(queries, qk_dim),
                            right,
                            SharedMut::new(scores),
                            width,
                            false,
                        );
                        let right = Rhs::Packed { data: values, k: dim };
                        task_gemm(
                            self.level,
                            (rows, columns, dim),
                            Lhs::rows(douts, out_dim),
                            right,
                            SharedMut::new(dscores),
                            width,
                            false,
                        );
                        for i in 0..rows {
                            let line = i * width..i * width + seen;
                            score_grad_at(
                                self.level,
                                &mut scores[line.clone()],
                                &mut dscores[line],
                                start + i + 1,
                                scale,
                                logsumexp[(row + i) * heads.q + h],
                                &dout[(row + i) * out_dim + h * dim..][..dim],
                                &out[(row + i) * out_dim + h * dim..][..dim],
                            );
                        }
                        // The targets are this task's own rows and columns.
                        let right = Rhs::Rows { data: key_rows, stride: qk_dim };
                        let dq = dqk.offset(row * qk_dim + h * dim);
                        task_gemm(self.level, (rows, dim, seen), Lhs::rows(dscores, width), right, dq, qk_dim, false);
                        let right = Rhs::Rows { data: queries, stride: qk_dim };
                        let dk = dqk.offset(first * qk_dim + key_at);
                        task_gemm(self.level, (seen, dim, rows), Lhs::columns(dscores, width), right, dk, qk_dim, true);
                        let right = Rhs::Rows { data: douts, stride: out_dim };
                        let dv = dqkv.offset(first * qkv_dim + value_at);
                        task_gemm(self.level, (seen, dim, rows), Lhs::columns(scores, width), right, dv, qkv_dim, true);
                    }
                }
            });
        });
    }
}

simd_dispatch!(fn score_grad_at = score_grad(
    scores: &mut [f32], dscores: &mut [f32], seen: usize, scale: f32, logsumexp: f32, dout: &[f32], out: &[f32]
));

/// Replaces scores by probabilities and their gradients by gradients with respect to the unscaled scores; 0 beyond `seen`.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn score_grad<L: Lanes>(
    l: L,
    scores: &mut [f32],
    dscores: &mut [f32],
    seen: usize,
    scale: f32,
    logsumexp: f32,
    dout: &[f32],
    out: &[f32],
) {
    let mut dot = l.splat(0.0);
    for (a, b) in dout.chunks(LANES).zip(out.chunks(LANES)) {
        dot = l.fma(l.load_partial(a), l.load_partial(b), dot);
    }
    let (mean, by, shift) = (l.splat(l.sum(dot)), l.splat(scale), l.splat(-logsumexp));
    for (s, d) in scores[..seen].chunks_mut(LANES).zip(dscores[..seen].chunks_mut(LANES)) {
        let p = l.exp(l.fma(l.load_partial(s), by, shift));
        l.store_partial(s, p);
        l.store_partial(d, l.mul(l.mul(p, l.sub(l.load_partial(d), mean)), by));
    }
    scores[seen..].fill(0.0);
    dscores[seen..].fill(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{check_gradient, random_values, weighted};

    fn spans(lengths: &[usize]) -> Vec<Span> {
        let mut at = 0;
        lengths
            .iter()
            .map(|&len| {
                let span = Span { query: at, query_len: len, key: at, key_len: len };
                at += len;
                span
            })
            .collect()
    }

    fn run(cpu: &Cpu, heads: Heads, spans: &[Span], qk: &[f32], qkv: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let rows = qk.len() / heads.qk();
        let (mut out, mut logsumexp) = (vec![0.0; rows * heads.out()], vec![0.0; rows * heads.q]);
        let part = |data, stride, first| Strided { data, stride, first };
        let q = part(qk, heads.qk(), 0);
        let k = part(qk, heads.qk(), heads.q * heads.dim);
        let v = part(qkv, heads.qkv(), (heads.q + heads.kv) * heads.dim);
        cpu.attention(heads, spans, [q, k, v], &mut out, &mut logsumexp);
        (out, logsumexp)
    }

    #[test]
    #[should_panic(expected = "spans overlap")]
    fn overlapping_spans_are_refused() {
        let heads = Heads { q: 1, kv: 1, dim: 4 };
        let mut spans = spans(&[3, 2]);
        spans[1].query = 2;
        run(&Cpu::new(), heads, &spans, &[0.0; 5 * 8], &[0.0; 5 * 12]);
    }

    #[test]
    fn attention_matches_the_definition() {
        let heads = Heads { q: 4, kv: 2, dim: 8 };
        let spans = spans(&[5, 1, 70]);
        let (qk, qkv) = (random_values(76 * heads.qk(), 1), random_values(76 * heads.qkv(), 2));
        let (out, _) = run(&Cpu::new(), heads, &spans, &qk, &qkv);
        for span in &spans {
            for i in 0..span.query_len {
                for h in 0..heads.q {
                    let q = &qk[(span.query + i) * heads.qk() + h * 8..][..8];
                    let weights: Vec<f64> = (0..=i)
                        .map(|j| {
                            let k = &qk[(span.query + j) * heads.qk() + (4 + h / 2) * 8..][..8];
                            (q.iter().zip(k).map(|(a, b)| f64::from(a * b)).sum::<f64>() / 8.0_f64.sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = weights.iter().sum();
                    for c in 0..8 {
                        let want: f64 = (0..=i)
                            .map(|j| {
                                weights[j] / total
                                    * f64::from(qkv[(span.query + j) * heads.qkv() + (6 + h / 2) * 8 + c])
                            })
                            .sum();
                        let got = f64::from(out[(span.query + i) * heads.out() + h * 8 + c]);
                        assert!((got - want).abs() < 1e-5, "{got} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let heads = Heads { q: 2, kv: 1, dim: 6 };
        let cpu = Cpu::new();
        for lengths in [&[3, 4][..], &[51]] {
            let rows: usize = lengths.iter().sum();
            let spans = spans(lengths);
            let (qk, qkv) = (random_values(rows * heads.qk(), 1), random_values(rows * heads.qkv(), 2));
            let k = random_values(rows * heads.out(), 3);
            let (out, logsumexp) = run(&cpu, heads, &spans, &qk, &qkv);
            let (mut dqk, mut dqkv) = (vec![0.0; qk.len()], vec![0.0; qkv.len()]);
            let forward = AttentionOutput { qk: &qk, qkv: &qkv, out: &out, logsumexp: &logsumexp };
            cpu.attention_grad(heads, &spans, forward, &k, &mut dqk, &mut dqkv);
            check_gradient("qk", &qk, &dqk, |qk| weighted(&run(&cpu, heads, &spans, qk, &qkv).0, &k));
            check_gradient("v", &qkv, &dqkv, |qkv| weighted(&run(&cpu, heads, &spans, &qk, qkv).0, &k));
        }
    }

    #[test]
    fn single_query_results_equal_full_sequence_bits() {
        let heads = Heads { q: 4, kv: 2, dim: 16 };
        let len = 61;
        let (qk, qkv) = (random_values(len * heads.qk(), 1), random_values(len * heads.qkv(), 2));
        let (whole, _) = run(&Cpu::new(), heads, &spans(&[len]), &qk, &qkv);
        for i in 0..len {
            let (mut out, mut logsumexp) = (vec![0.0; heads.out()], vec![0.0; heads.q]);
            let q = Strided { data: &qk[i * heads.qk()..], stride: heads.qk(), first: 0 };
            let k = Strided { data: &qk[..], stride: heads.qk(), first: heads.q * heads.dim };
            let v = Strided { data: &qkv[..], stride: heads.qkv(), first: (heads.q + heads.kv) * heads.dim };
            let span = Span { query: 0, query_len: 1, key: 0, key_len: i + 1 };
            Cpu::new().attention(heads, &[span], [q, k, v], &mut out, &mut logsumexp);
            assert!(out == whole[i * heads.out()..][..heads.out()], "query {i}");
        }
    }
}
