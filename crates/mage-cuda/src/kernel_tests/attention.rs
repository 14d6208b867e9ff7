//! Tests of RMSNorm with RoPE and of attention: whole sequences forward and backward, and prefill and decode over a
//! paged KV cache.

use super::{KernelFixture, assert_near, random_bf16};
use crate::attention::{AttentionBuffers, AttentionGrads, AttentionKernel};
use crate::buffer::DeviceBuffer;
use crate::nvrtc::DecodeConfig;
use crate::shape::ModelShape;
use crate::stream::args;
use mage_engine::model::BLOCK_SIZE;

/// Shorter and longer than one and two tiles, and exact multiples; the last tile extends beyond all rows.
const LENGTHS: [usize; 10] = [1, 5, 64, 63, 130, 17, 193, 128, 127, 65];
const SHORTER_THAN_A_TILE: [usize; 1] = [17];
/// The second tile of the last sequence lies entirely beyond all rows.
const SECOND_TILE_OUT_OF_RANGE: [usize; 2] = [70, 40];

/// Head dimensions, and 1 to 16 query heads per KV head: 8 as in the largest model of the family, 5 which is no power
/// of two. Head counts that are multiples of four, and smaller and larger ones that are not.
fn shapes() -> [(usize, usize, usize); 11] {
    [
        (16, 4, 2),
        (24, 2, 1),
        (32, 4, 1),
        (64, 3, 3),
        (72, 2, 2),
        (80, 4, 2),
        (128, 5, 5),
        (128, 6, 3),
        (128, 16, 2),
        (64, 10, 2),
        (128, 16, 1),
    ]
}

/// RMSNorm and RoPE of one head.
fn norm_and_rotate(b: &KernelFixture, x: &[f64], w: &[f64], position: usize) -> Vec<f64> {
    let (d, half) = (x.len(), x.len() / 2);
    let rstd = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / d as f64 + f64::from(b.shape.rms_norm_eps)).sqrt();
    let y: Vec<f64> = x.iter().zip(w).map(|(x, w)| x * rstd * w).collect();
    let rope = |i: usize| f64::from(b.rope_table[position * d + i]);
    (0..d)
        .map(|i| match i < half {
            true => y[i] * rope(i) - y[i + half] * rope(half + i),
            false => y[i] * rope(i - half) + y[i - half] * rope(i),
        })
        .collect()
}

/// Attention of one query: output, weights and logsumexp.
fn attend_one(q: &[f64], keys: &[&[f64]], values: &[&[f64]]) -> (Vec<f64>, Vec<f64>, f64) {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|k| scale * q.iter().zip(*k).map(|(a, b)| a * b).sum::<f64>()).collect();
    let max_warps = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = scores.iter().map(|s| (s - max_warps).exp()).sum::<f64>().ln() + max_warps;
    let weights: Vec<f64> = scores.iter().map(|s| (s - sum).exp()).collect();
    let out = (0..q.len()).map(|i| weights.iter().zip(values).map(|(w, v)| w * v[i]).sum()).collect();
    (out, weights, sum)
}

fn spans(lengths: &[usize]) -> Vec<(usize, usize)> {
    lengths
        .iter()
        .scan(0, |at, len| {
            *at += len;
            Some((*at - len, *len))
        })
        .collect()
}

fn build_tiles(spans: &[(usize, usize)], rows: usize) -> Vec<u32> {
    let tiles = |&(first, len): &(usize, usize)| {
        (0..len.div_ceil(rows)).flat_map(move |t| [first, len, first, len, t].map(|x| x as u32))
    };
    spans.iter().flat_map(tiles).collect()
}

/// Expected outputs and logsumexps of whole sequences, and gradients of rotated queries and keys and of values.
struct ExpectedAttention {
    out: Vec<f64>,
    logsumexp: Vec<f64>,
    dqk: Vec<f64>,
    dv: Vec<f64>,
}

impl ExpectedAttention {
    /// Computes them in plain loops.
    fn compute(shape: &ModelShape, spans: &[(usize, usize)], qk: &[f64], qkv: &[f64], dout: &[f64]) -> Self {
        let ModelShape { num_heads: heads, num_kv_heads: kv, head_dim: d, .. } = *shape;
        let (n, scale) = (dout.len() / (heads * d), f64::from(shape.softmax_scale()));
        let at = |x: &[f64], width: usize, row: usize, head: usize| x[(row * width + head) * d..][..d].to_vec();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (out, logsumexp) = (vec![0.0; n * heads * d], vec![0.0; n * heads]);
        let mut expected = ExpectedAttention { out, logsumexp, dqk: vec![0.0; qk.len()], dv: vec![0.0; n * kv * d] };
        for (&(first, len), head) in spans.iter().flat_map(|span| (0..heads).map(move |head| (span, head))) {
            let group = head / (heads / kv);
            let keys: Vec<_> = (first..first + len).map(|r| at(qk, heads + kv, r, heads + group)).collect();
            let values: Vec<_> = (first..first + len).map(|r| at(qkv, heads + 2 * kv, r, heads + kv + group)).collect();
            let (keys, values): (Vec<&[f64]>, Vec<&[f64]>) =
                (keys.iter().map(|k| &k[..]).collect(), values.iter().map(|v| &v[..]).collect());
            for i in 0..len {
                let (row, q) = (first + i, at(qk, heads + kv, first + i, head));
                let (o, weights, sum) = attend_one(&q, &keys[..=i], &values[..=i]);
                expected.out[(row * heads + head) * d..][..d].copy_from_slice(&o);
                expected.logsumexp[row * heads + head] = sum;
                let g = at(dout, heads, row, head);
                let mean = dot(&g, &o);
                for j in 0..=i {
                    let slope = weights[j] * (dot(&g, values[j]) - mean) * scale;
                    for c in 0..d {
                        expected.dqk[(row * (heads + kv) + head) * d + c] += slope * keys[j][c];
                        expected.dqk[((first + j) * (heads + kv) + heads + group) * d + c] += slope * q[c];
                        expected.dv[((first + j) * kv + group) * d + c] += weights[j] * g[c];
                    }
                }
            }
        }
        expected
    }
}

pub(crate) fn flash_attention_matches_plain_loops_forward_and_backward() {
    for (d, heads, kv) in shapes() {
        let b = KernelFixture::new(d, heads, kv);
        for lengths in [&LENGTHS[..], &SHORTER_THAN_A_TILE, &SECOND_TILE_OUT_OF_RANGE] {
            let (n, spans, stats_stride) = (lengths.iter().sum::<usize>(), spans(lengths), b.shape.head_stats_stride());
            let (qk, qkv) = (random_bf16(n * (heads + kv) * d, 1), random_bf16(n * (heads + 2 * kv) * d, 2));
            let dout = random_bf16(n * heads * d, 3);
            let expected = ExpectedAttention::compute(&b.shape, &spans, &qk, &qkv, &dout);
            // All kernels that the GPU supports.
            let mut variants = vec![AttentionKernel::Tiled];
            if let warp_specialized @ AttentionKernel::WarpSpecialized { .. } = b.model.attention_kernel() {
                // With few thread blocks, each processes many work items.
                variants.extend([
                    warp_specialized,
                    AttentionKernel::WarpSpecialized { blocks: 1 },
                    AttentionKernel::WarpSpecialized { blocks: 3 },
                ]);
            }
            for kernel in variants {
                println!("{n} tokens: {kernel:?}");
                let tiles = build_tiles(&spans, kernel.rows());
                let tiles = (b.upload(&tiles), tiles.len() / 5);
                let tile_list = (tiles.0.at(0), tiles.1);
                let (bqk, bqkv, bdout) = (b.upload_bf16(&qk), b.upload_bf16(&qkv), b.upload_bf16(&dout));
                let (out, logsumexp) = (b.nan_bf16(n * heads * d), b.upload(&vec![f32::NAN; n * stats_stride]));
                let delta = b.upload(&vec![f32::NAN; n * stats_stride]);
                let (dqk, dqkv) = (b.nan_bf16(qk.len()), b.nan_bf16(qkv.len()));
                let buffers = AttentionBuffers {
                    num_tokens: n,
                    qk: bqk.at(0),
                    qkv: bqkv.at(0),
                    out: out.at(0),
                    logsumexp: logsumexp.at(0),
                };
                b.model.attention_forward(&b.stream, kernel, buffers, tile_list).unwrap();
                let grads = AttentionGrads { out: bdout.at(0), delta: delta.at(0), qk: dqk.at(0), qkv: dqkv.at(0) };
                b.model.attention_backward(&b.stream, kernel, buffers, grads, tile_list, tile_list).unwrap();
                assert_near("output", &b.read_bf16(&out), &expected.out, 0.01);
                let logsumexp = b.read_f32(&logsumexp);
                let logsumexp: Vec<f64> =
                    logsumexp.chunks(stats_stride).flat_map(|row| row[..heads].to_vec()).collect();
                assert_near("logsumexp", &logsumexp, &expected.logsumexp, 1e-4);
                assert_near("gradient of queries and keys", &b.read_bf16(&dqk), &expected.dqk, 0.02);
                let dqkv = b.read_bf16(&dqkv);
                let values = |row: usize| dqkv[(row * (heads + 2 * kv) + heads + kv) * d..][..kv * d].to_vec();
                let values: Vec<f64> = (0..n).flat_map(values).collect();
                assert_near("gradient of values", &values, &expected.dv, 0.02);
            }
        }
    }
}

pub(crate) fn paged_prefill_and_decode_match_plain_loops() {
    for (d, heads, kv) in shapes() {
        let b = KernelFixture::new(d, heads, kv);
        let (f, s, width) = (&b.model.kernels.common, &b.stream, heads + 2 * kv);
        let w = random_bf16(2 * d, 7);
        let bw = b.upload_bf16(&w);
        // Each sequence is prefilled at once, except for its last token, which is decoded.
        let lengths = [2_usize, 17, 65, 200];
        let n: usize = lengths.iter().sum();
        let raw = random_bf16(n * width * d, 8);
        let (block_len, blocks_per_sequence) = (2 * kv * BLOCK_SIZE * d, 200_usize.div_ceil(BLOCK_SIZE));
        // Blocks in arbitrary order, with arbitrary initial contents.
        let count = lengths.len() * blocks_per_sequence;
        let table: Vec<u32> = (0..count as u32).map(|i| (i * 7 + 3) % count as u32).collect();
        let kv_cache = b.upload_bf16(&random_bf16(count * block_len, 9));
        let (mut first, mut prefill, mut decode) = (0, Vec::new(), Vec::new());
        for (i, len) in lengths.into_iter().enumerate() {
            prefill.push((first, len - 1, i * blocks_per_sequence));
            decode.push((first + len - 1, len - 1, i * blocks_per_sequence));
            first += len;
        }
        let slot = |table_offset: usize, position: usize| {
            table[table_offset + position / BLOCK_SIZE] * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32
        };
        let rows: Vec<(usize, usize, usize)> = prefill
            .iter()
            .flat_map(|&(first, len, table_offset)| (0..len).map(move |i| (first + i, i, table_offset)))
            .collect();
        let prefill_qkv: Vec<f64> =
            rows.iter().flat_map(|(r, ..)| raw[r * width * d..][..width * d].to_vec()).collect();
        let (positions, slots): (Vec<u32>, Vec<u32>) =
            rows.iter().map(|&(_, p, table_offset)| (p as u32, slot(table_offset, p))).unzip();
        let (qkv, positions, slots) = (b.upload_bf16(&prefill_qkv), b.upload(&positions), b.upload(&slots));
        let (qk, out) = (b.nan_bf16(rows.len() * (heads + kv) * d), b.nan_bf16(rows.len() * heads * d));
        let to_pages = (slots.at(0), kv_cache.at(0));
        b.model.head_norm_rope(s, qkv.at(0), bw.at(0), positions.at(0), rows.len(), qk.at(0), 0, to_pages).unwrap();
        let mut row = 0;
        let tiles: Vec<u32> = prefill
            .iter()
            .flat_map(|&(_, len, table_offset)| {
                let first = row;
                row += len;
                (0..len.div_ceil(crate::TILE)).flat_map(move |t| [first, len, table_offset, len, t].map(|x| x as u32))
            })
            .collect();
        let (tables, tile_list, scale) = (b.upload(&table), b.upload(&tiles), b.shape.softmax_scale());
        s.launch(
            f.paged_flash_attention,
            (heads, tiles.len() / 5, 1),
            128,
            4 * b.shape.tile_bytes(),
            args![qk.at(0), kv_cache.at(0), tables.at(0), tile_list.at(0), heads, kv, scale, out.at(0)],
        )
        .unwrap();
        // Expected attention of a token, in plain loops.
        let head = |row: usize, head: usize| &raw[(row * width + head) * d..][..d];
        let expected = |&(row, position, _): &(usize, usize, usize)| {
            let first = row - position;
            (0..heads)
                .flat_map(|h| {
                    let group = h / (heads / kv);
                    let q = norm_and_rotate(&b, head(row, h), &w[..d], position);
                    let keys: Vec<_> = (0..=position)
                        .map(|p| norm_and_rotate(&b, head(first + p, heads + group), &w[d..], p))
                        .collect();
                    let keys: Vec<&[f64]> = keys.iter().map(|k| &k[..]).collect();
                    let values: Vec<&[f64]> = (0..=position).map(|p| head(first + p, heads + kv + group)).collect();
                    attend_one(&q, &keys, &values).0
                })
                .collect::<Vec<_>>()
        };
        assert_near("prefill", &b.read_bf16(&out), &rows.iter().flat_map(expected).collect::<Vec<_>>(), 0.015);
        // Checks the key and value that a decoded token stores in its slot, and that nothing else changes.
        let at_cell = |table_offset: usize, p: usize, kind: usize, group: usize| {
            table[table_offset + p / BLOCK_SIZE] as usize * block_len
                + ((kind * kv + group) * BLOCK_SIZE + p % BLOCK_SIZE) * d
        };
        let before = b.read_bf16(&kv_cache);
        // Decode with and without splits, by many thread blocks or one, in which each warp processes several items.
        let DecodeConfig { max_warps, warp_bytes } = b.model.kernels.decode;
        for (splits, blocks, warps) in
            [(1, 132, max_warps), (1, 1, max_warps), (1, 1, 1), (3, 132, max_warps), (3, 1, 2), (32, 2, max_warps)]
        {
            let warps = warps.min(max_warps);
            let decode_qkv: Vec<f64> =
                decode.iter().flat_map(|(r, ..)| raw[r * width * d..][..width * d].to_vec()).collect();
            let mut inputs: Vec<u32> = decode.iter().map(|(_, p, _)| *p as u32).collect();
            inputs.extend(decode.iter().map(|(.., table_offset)| *table_offset as u32));
            inputs.extend(&table);
            let (qkv, inputs, count) = (b.upload_bf16(&decode_qkv), b.upload(&inputs), decode.len());
            let kv_cache = b.upload_bf16(&before);
            let out = b.nan_bf16(count * heads * d);
            let partials = b.upload(&vec![f32::NAN; count * splits * heads * (d + 2)]);
            let counters = DeviceBuffer::<u32>::zeros(b.model.device(), count * kv + 2).unwrap();
            s.launch(
                f.paged_decode_attention,
                (blocks, 1, 1),
                32 * warps,
                warps * warp_bytes,
                args![
                    qkv.at(0),
                    bw.at(0),
                    b.shape.rms_norm_eps,
                    b.model.rope_table.at(0),
                    kv_cache.at(0),
                    inputs.at(0),
                    2 * count,
                    count,
                    0_usize,
                    heads,
                    kv,
                    scale,
                    out.at(0),
                    partials.at(0),
                    counters.at(0),
                    count,
                    splits,
                    counters.at(count * kv)
                ],
            )
            .unwrap();
            assert_near("decode", &b.read_bf16(&out), &decode.iter().flat_map(expected).collect::<Vec<_>>(), 0.015);
            let mut kv_after = b.read_bf16(&kv_cache);
            for &(row, position, table_offset) in &decode {
                for group in 0..kv {
                    let (key, value) =
                        (at_cell(table_offset, position, 0, group), at_cell(table_offset, position, 1, group));
                    assert_near(
                        "stored key",
                        &kv_after[key..][..d],
                        &norm_and_rotate(&b, head(row, heads + group), &w[d..], position),
                        0.005,
                    );
                    assert_eq!(kv_after[value..][..d], *head(row, heads + kv + group), "stored value");
                    for slot in [key, value] {
                        kv_after[slot..slot + d].copy_from_slice(&before[slot..slot + d]);
                    }
                }
            }
            assert!(kv_after == before, "the rest of the KV cache is unchanged");
            assert!(counters.to_vec().unwrap().iter().all(|d| *d == 0), "counters are reset");
        }
        // A copied block equals its source.
        let copies = b.upload(&[table[0], table[1]]);
        let before = b.read_bf16(&kv_cache);
        s.launch(
            f.copy_blocks,
            ((block_len / 8).div_ceil(256), 1, 1),
            256,
            0,
            args![kv_cache.at(0), copies.at(0), 1_usize, block_len / 8, (count * block_len / 8) as u64],
        )
        .unwrap();
        let (after, from, to) = (b.read_bf16(&kv_cache), table[0] as usize * block_len, table[1] as usize * block_len);
        assert_eq!(after[to..to + block_len], before[from..from + block_len]);
    }
}

pub(crate) fn head_norm_and_rope_gradients_match_differences() {
    for (d, heads, kv) in shapes() {
        let b = KernelFixture::new(d, heads, kv);
        let (n, f, s, width) = (5, &b.model.kernels.common, &b.stream, heads + 2 * kv);
        let (raw, w, dqk) =
            (random_bf16(n * width * d, 1), random_bf16(2 * d, 2), random_bf16(n * (heads + kv) * d, 3));
        let (qkv, bw, bd) = (b.upload_bf16(&raw), b.upload_bf16(&w), b.upload_bf16(&dqk));
        let positions: Vec<u32> = (0..n as u32).map(|i| i * 37).collect();
        let bp = b.upload(&positions);
        let (qk, rstd) = (b.nan_bf16(n * (heads + kv) * d), b.upload(&vec![f32::NAN; n * (heads + kv)]));
        b.model.head_norm_rope(s, qkv.at(0), bw.at(0), bp.at(0), n, qk.at(0), rstd.at(0), (0, 0)).unwrap();
        let blocks = 2;
        let (dqkv, partials, dw) =
            (b.nan_bf16(n * width * d), b.upload(&vec![f32::NAN; blocks * 2 * d]), b.upload(&vec![0_f32; 2 * d]));
        s.launch(
            f.head_norm_rope_grad,
            (blocks, 1, 1),
            256,
            0,
            args![
                bd.at(0),
                qkv.at(0),
                bw.at(0),
                b.model.rope_table.at(0),
                bp.at(0),
                rstd.at(0),
                n,
                heads,
                kv,
                dqkv.at(0),
                partials.at(0)
            ],
        )
        .unwrap();
        s.launch(
            f.reduce_partials,
            ((2 * d).div_ceil(32), 1, 1),
            256,
            0,
            args![partials.at(0), blocks, 2 * d, dw.at(0)],
        )
        .unwrap();
        let (actual, got_qk) = (b.read_bf16(&dqkv), b.read_bf16(&qk));
        let mut want_dw = vec![0.0; 2 * d];
        for (row, position) in positions.iter().enumerate() {
            for head in 0..heads + kv {
                let offset = if head < heads { 0 } else { d };
                let x = &raw[(row * width + head) * d..][..d];
                let at = (row * (heads + kv) + head) * d;
                let weights = &w[offset..offset + d];
                let rope = |x: &[f64], w: &[f64]| norm_and_rotate(&b, x, w, *position as usize);
                let sum = |y: Vec<f64>| y.iter().zip(&dqk[at..]).map(|(y, d)| y * d).sum::<f64>();
                assert_near("rotated", &got_qk[at..at + d], &rope(x, weights), 0.005);
                let expected = super::numeric_grad(x, |x| sum(rope(x, weights)));
                assert_near(
                    "gradient of raw queries and keys",
                    &actual[(row * width + head) * d..][..d],
                    &expected,
                    0.01,
                );
                let grads = super::numeric_grad(weights, |w| sum(rope(x, w)));
                want_dw[offset..offset + d].iter_mut().zip(grads).for_each(|(w, s)| *w += s);
            }
        }
        assert_near("gradient of norm weights", &b.read_f32(&dw), &want_dw, 0.005);
    }
}
