//! Heads' norms and turns, and attention: whole sequences forward and backward, pieces and single tokens over pages.

use super::{Bench, near, numbers};
use crate::BLOCK_SIZE;
use crate::attention::{Attending, Slopes, Way};
use crate::buffer::DeviceBuffer;
use crate::nvrtc::Decode;
use crate::shape::ModelShape;
use crate::stream::args;

/// Shorter and longer than a tile and than two, and some that fill them; the last tile reaches beyond all rows.
const LENGTHS: [usize; 10] = [1, 5, 64, 63, 130, 17, 193, 128, 127, 65];
const SHORTER_THAN_A_TILE: [usize; 1] = [17];
/// Of the last sequence's two tiles, the second lies wholly beyond all rows.
const ONE_TEAM_BEYOND: [usize; 2] = [70, 40];

/// Head sizes, and from one to sixteen queries per key: 8 as the largest of the family has, 5 which fills no power of two. Heads by
/// fours and others, fewer and more.
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

/// Norms and turns one head's numbers.
fn turned(b: &Bench, x: &[f64], w: &[f64], position: usize) -> Vec<f64> {
    let (d, half) = (x.len(), x.len() / 2);
    let inverse = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / d as f64 + f64::from(b.shape.rms_norm_eps)).sqrt();
    let y: Vec<f64> = x.iter().zip(w).map(|(x, w)| x * inverse * w).collect();
    let turn = |i: usize| f64::from(b.turns[position * d + i]);
    (0..d)
        .map(|i| match i < half {
            true => y[i] * turn(i) - y[i + half] * turn(half + i),
            false => y[i] * turn(i - half) + y[i - half] * turn(i),
        })
        .collect()
}

/// One query over keys and values, each with its stride: what it yields, its weights, and the logarithm of their sum.
fn attend(q: &[f64], keys: &[&[f64]], values: &[&[f64]]) -> (Vec<f64>, Vec<f64>, f64) {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|k| scale * q.iter().zip(*k).map(|(a, b)| a * b).sum::<f64>()).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = scores.iter().map(|s| (s - most).exp()).sum::<f64>().ln() + most;
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

fn items(spans: &[(usize, usize)], rows: usize) -> Vec<u32> {
    let tiles = |&(first, len): &(usize, usize)| {
        (0..len.div_ceil(rows)).flat_map(move |t| [first, len, first, len, t].map(|x| x as u32))
    };
    spans.iter().flat_map(tiles).collect()
}

/// What whole sequences yield, the logarithms of their sums, and slopes by turned queries and keys and by values.
struct Want {
    out: Vec<f64>,
    log_sums: Vec<f64>,
    dqk: Vec<f64>,
    dv: Vec<f64>,
}

impl Want {
    /// In plain loops.
    fn of(shape: &ModelShape, spans: &[(usize, usize)], qk: &[f64], qkv: &[f64], dout: &[f64]) -> Self {
        let ModelShape { num_heads: heads, num_kv_heads: kv, head_dim: d, .. } = *shape;
        let (n, scale) = (dout.len() / (heads * d), f64::from(shape.softmax_scale()));
        let at = |x: &[f64], width: usize, row: usize, head: usize| x[(row * width + head) * d..][..d].to_vec();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (out, log_sums) = (vec![0.0; n * heads * d], vec![0.0; n * heads]);
        let mut want = Want { out, log_sums, dqk: vec![0.0; qk.len()], dv: vec![0.0; n * kv * d] };
        for (&(first, len), head) in spans.iter().flat_map(|span| (0..heads).map(move |head| (span, head))) {
            let group = head / (heads / kv);
            let keys: Vec<_> = (first..first + len).map(|r| at(qk, heads + kv, r, heads + group)).collect();
            let values: Vec<_> = (first..first + len).map(|r| at(qkv, heads + 2 * kv, r, heads + kv + group)).collect();
            let (keys, values): (Vec<&[f64]>, Vec<&[f64]>) =
                (keys.iter().map(|k| &k[..]).collect(), values.iter().map(|v| &v[..]).collect());
            for i in 0..len {
                let (row, q) = (first + i, at(qk, heads + kv, first + i, head));
                let (o, weights, sum) = attend(&q, &keys[..=i], &values[..=i]);
                want.out[(row * heads + head) * d..][..d].copy_from_slice(&o);
                want.log_sums[row * heads + head] = sum;
                let g = at(dout, heads, row, head);
                let mean = dot(&g, &o);
                for j in 0..=i {
                    let slope = weights[j] * (dot(&g, values[j]) - mean) * scale;
                    for c in 0..d {
                        want.dqk[(row * (heads + kv) + head) * d + c] += slope * keys[j][c];
                        want.dqk[((first + j) * (heads + kv) + heads + group) * d + c] += slope * q[c];
                        want.dv[((first + j) * kv + group) * d + c] += weights[j] * g[c];
                    }
                }
            }
        }
        want
    }
}

#[test]
fn whole_sequences_forward_and_backward() {
    for (d, heads, kv) in shapes() {
        let Some(b) = Bench::new(d, heads, kv) else { return };
        for lengths in [&LENGTHS[..], &SHORTER_THAN_A_TILE, &ONE_TEAM_BEYOND] {
            let (n, spans, sums) = (lengths.iter().sum::<usize>(), spans(lengths), b.shape.head_stats_stride());
            let (qk, qkv) = (numbers(n * (heads + kv) * d, 1), numbers(n * (heads + 2 * kv) * d, 2));
            let dout = numbers(n * heads * d, 3);
            let want = Want::of(&b.shape, &spans, &qk, &qkv, &dout);
            // Every way that the card has.
            let mut ways = vec![Way::Tiles];
            if let teams @ Way::Teams { .. } = b.model.attention_way() {
                // Few blocks have many works each.
                ways.extend([teams, Way::Teams { blocks: 1 }, Way::Teams { blocks: 3 }]);
            }
            for way in ways {
                println!("{n} rows: {way:?}");
                let list = items(&spans, way.rows());
                let list = (b.put(&list), list.len() / 5);
                let list_on = (list.0.at(0), list.1);
                let (bqk, bqkv, bdout) = (b.half(&qk), b.half(&qkv), b.half(&dout));
                let (out, log_sums) = (b.room(n * heads * d), b.put(&vec![f32::NAN; n * sums]));
                let delta = b.put(&vec![f32::NAN; n * sums]);
                let (dqk, dqkv) = (b.room(qk.len()), b.room(qkv.len()));
                let of =
                    Attending { rows: n, qk: bqk.at(0), qkv: bqkv.at(0), out: out.at(0), log_sums: log_sums.at(0) };
                b.model.attend(&b.stream, way, of, list_on).unwrap();
                let slopes = Slopes { out: bdout.at(0), delta: delta.at(0), qk: dqk.at(0), qkv: dqkv.at(0) };
                b.model.attend_back(&b.stream, way, of, slopes, list_on, list_on).unwrap();
                near("yield", &b.read(&out), &want.out, 0.01);
                let log_sums = b.read_wide(&log_sums);
                let log_sums: Vec<f64> = log_sums.chunks(sums).flat_map(|row| row[..heads].to_vec()).collect();
                near("log-sums", &log_sums, &want.log_sums, 1e-4);
                near("by queries and keys", &b.read(&dqk), &want.dqk, 0.02);
                let dqkv = b.read(&dqkv);
                let values = |row: usize| dqkv[(row * (heads + 2 * kv) + heads + kv) * d..][..kv * d].to_vec();
                let values: Vec<f64> = (0..n).flat_map(values).collect();
                near("by values", &values, &want.dv, 0.02);
            }
        }
    }
}

#[test]
fn pieces_and_single_tokens_over_pages() {
    for (d, heads, kv) in shapes() {
        let Some(b) = Bench::new(d, heads, kv) else { return };
        let (f, s, width) = (&b.model.program.functions, &b.stream, heads + 2 * kv);
        let w = numbers(2 * d, 7);
        let bw = b.half(&w);
        // Each sequence is read as one piece but for its last token, which comes alone.
        let lengths = [2_usize, 17, 65, 200];
        let n: usize = lengths.iter().sum();
        let raw = numbers(n * width * d, 8);
        let (page, per) = (2 * kv * BLOCK_SIZE * d, 200_usize.div_ceil(BLOCK_SIZE));
        // Pages in no order, and none of them clean.
        let count = lengths.len() * per;
        let table: Vec<u32> = (0..count as u32).map(|i| (i * 7 + 3) % count as u32).collect();
        let pages = b.half(&numbers(count * page, 9));
        let (mut first, mut pieces, mut singles) = (0, Vec::new(), Vec::new());
        for (i, len) in lengths.into_iter().enumerate() {
            pieces.push((first, len - 1, i * per));
            singles.push((first + len - 1, len - 1, i * per));
            first += len;
        }
        let cell = |list: usize, position: usize| {
            table[list + position / BLOCK_SIZE] * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32
        };
        let rows: Vec<(usize, usize, usize)> =
            pieces.iter().flat_map(|&(first, len, list)| (0..len).map(move |i| (first + i, i, list))).collect();
        let long: Vec<f64> = rows.iter().flat_map(|(r, ..)| raw[r * width * d..][..width * d].to_vec()).collect();
        let (positions, cells): (Vec<u32>, Vec<u32>) =
            rows.iter().map(|&(_, p, list)| (p as u32, cell(list, p))).unzip();
        let (qkv, positions, cells) = (b.half(&long), b.put(&positions), b.put(&cells));
        let (qk, out) = (b.room(rows.len() * (heads + kv) * d), b.room(rows.len() * heads * d));
        let to_pages = (cells.at(0), pages.at(0));
        b.model.head_norm_rope(s, qkv.at(0), bw.at(0), positions.at(0), rows.len(), qk.at(0), 0, to_pages).unwrap();
        let mut row = 0;
        let list: Vec<u32> = pieces
            .iter()
            .flat_map(|&(_, len, list)| {
                let first = row;
                row += len;
                (0..len.div_ceil(crate::TILE)).flat_map(move |t| [first, len, list, len, t].map(|x| x as u32))
            })
            .collect();
        let (tables, list_on, scale) = (b.put(&table), b.put(&list), b.shape.softmax_scale());
        s.launch(
            f.paged_attention,
            (heads, list.len() / 5, 1),
            128,
            4 * b.shape.tile_bytes(),
            args![qk.at(0), pages.at(0), tables.at(0), list_on.at(0), heads, kv, scale, out.at(0)],
        )
        .unwrap();
        // What a row sees, in plain loops.
        let head = |row: usize, head: usize| &raw[(row * width + head) * d..][..d];
        let want = |&(row, position, _): &(usize, usize, usize)| {
            let first = row - position;
            (0..heads)
                .flat_map(|h| {
                    let group = h / (heads / kv);
                    let q = turned(&b, head(row, h), &w[..d], position);
                    let keys: Vec<_> =
                        (0..=position).map(|p| turned(&b, head(first + p, heads + group), &w[d..], p)).collect();
                    let keys: Vec<&[f64]> = keys.iter().map(|k| &k[..]).collect();
                    let values: Vec<&[f64]> = (0..=position).map(|p| head(first + p, heads + kv + group)).collect();
                    attend(&q, &keys, &values).0
                })
                .collect::<Vec<_>>()
        };
        near("pieces", &b.read(&out), &rows.iter().flat_map(want).collect::<Vec<_>>(), 0.015);
        // The key and value that a single token leaves at its place, and what was everywhere else.
        let at_cell = |list: usize, p: usize, kind: usize, group: usize| {
            table[list + p / BLOCK_SIZE] as usize * page + ((kind * kv + group) * BLOCK_SIZE + p % BLOCK_SIZE) * d
        };
        let before = b.read(&pages);
        // Single tokens, whole and in parts, by many blocks or one: there, each warp has several, one after the other.
        let Decode { most, warp } = b.model.program.decode;
        for (splits, blocks, warps) in
            [(1, 132, most), (1, 1, most), (1, 1, 1), (3, 132, most), (3, 1, 2), (32, 2, most)]
        {
            let warps = warps.min(most);
            let last: Vec<f64> =
                singles.iter().flat_map(|(r, ..)| raw[r * width * d..][..width * d].to_vec()).collect();
            let mut words: Vec<u32> = singles.iter().map(|(_, p, _)| *p as u32).collect();
            words.extend(singles.iter().map(|(.., list)| *list as u32));
            words.extend(&table);
            let (qkv, words, count) = (b.half(&last), b.put(&words), singles.len());
            let pages = b.half(&before);
            let out = b.room(count * heads * d);
            let parts = b.put(&vec![f32::NAN; count * splits * heads * (d + 2)]);
            let done = DeviceBuffer::<u32>::zeros(b.model.device(), count * kv + 2).unwrap();
            s.launch(
                f.decode_attention,
                (blocks, 1, 1),
                32 * warps,
                warps * warp,
                args![
                    qkv.at(0),
                    bw.at(0),
                    b.shape.rms_norm_eps,
                    b.model.rope_table.at(0),
                    pages.at(0),
                    words.at(0),
                    2 * count,
                    count,
                    0_usize,
                    heads,
                    kv,
                    scale,
                    out.at(0),
                    parts.at(0),
                    done.at(0),
                    count,
                    splits,
                    done.at(count * kv)
                ],
            )
            .unwrap();
            near("single tokens", &b.read(&out), &singles.iter().flat_map(want).collect::<Vec<_>>(), 0.015);
            let mut kept = b.read(&pages);
            for &(row, position, list) in &singles {
                for group in 0..kv {
                    let (key, value) = (at_cell(list, position, 0, group), at_cell(list, position, 1, group));
                    near(
                        "key kept",
                        &kept[key..][..d],
                        &turned(&b, head(row, heads + group), &w[d..], position),
                        0.005,
                    );
                    assert_eq!(kept[value..][..d], *head(row, heads + kv + group), "value kept");
                    for cell in [key, value] {
                        kept[cell..cell + d].copy_from_slice(&before[cell..cell + d]);
                    }
                }
            }
            assert!(kept == before, "nothing else in the pages is touched");
            assert!(done.to_vec().unwrap().iter().all(|d| *d == 0), "counters are left as they were found");
        }
        // A copied page holds what the first one held.
        let copies = b.put(&[table[0], table[1]]);
        let before = b.read(&pages);
        s.launch(
            f.copy_pages,
            ((page / 8).div_ceil(256), 1, 1),
            256,
            0,
            args![pages.at(0), copies.at(0), 1_usize, page / 8, (count * page / 8) as u64],
        )
        .unwrap();
        let (after, from, to) = (b.read(&pages), table[0] as usize * page, table[1] as usize * page);
        assert_eq!(after[to..to + page], before[from..from + page]);
    }
}

#[test]
fn norms_and_turns_of_heads_backward() {
    for (d, heads, kv) in shapes() {
        let Some(b) = Bench::new(d, heads, kv) else { return };
        let (n, f, s, width) = (5, &b.model.program.functions, &b.stream, heads + 2 * kv);
        let (raw, w, dqk) = (numbers(n * width * d, 1), numbers(2 * d, 2), numbers(n * (heads + kv) * d, 3));
        let (qkv, bw, bd) = (b.half(&raw), b.half(&w), b.half(&dqk));
        let positions: Vec<u32> = (0..n as u32).map(|i| i * 37).collect();
        let bp = b.put(&positions);
        let (qk, inverse) = (b.room(n * (heads + kv) * d), b.put(&vec![f32::NAN; n * (heads + kv)]));
        b.model.head_norm_rope(s, qkv.at(0), bw.at(0), bp.at(0), n, qk.at(0), inverse.at(0), (0, 0)).unwrap();
        let blocks = 2;
        let (dqkv, partials, dw) =
            (b.room(n * width * d), b.put(&vec![f32::NAN; blocks * 2 * d]), b.put(&vec![0_f32; 2 * d]));
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
                inverse.at(0),
                n,
                heads,
                kv,
                dqkv.at(0),
                partials.at(0)
            ],
        )
        .unwrap();
        s.launch(f.add_partials, ((2 * d).div_ceil(32), 1, 1), 256, 0, args![partials.at(0), blocks, 2 * d, dw.at(0)])
            .unwrap();
        let (got, got_qk) = (b.read(&dqkv), b.read(&qk));
        let mut want_dw = vec![0.0; 2 * d];
        for (row, position) in positions.iter().enumerate() {
            for head in 0..heads + kv {
                let side = if head < heads { 0 } else { d };
                let x = &raw[(row * width + head) * d..][..d];
                let at = (row * (heads + kv) + head) * d;
                let weights = &w[side..side + d];
                let turn = |x: &[f64], w: &[f64]| turned(&b, x, w, *position as usize);
                let sum = |y: Vec<f64>| y.iter().zip(&dqk[at..]).map(|(y, d)| y * d).sum::<f64>();
                near("turned", &got_qk[at..at + d], &turn(x, weights), 0.005);
                let want = super::slopes(x, |x| sum(turn(x, weights)));
                near("by raw numbers", &got[(row * width + head) * d..][..d], &want, 0.01);
                let slopes = super::slopes(weights, |w| sum(turn(x, w)));
                want_dw[side..side + d].iter_mut().zip(slopes).for_each(|(w, s)| *w += s);
            }
        }
        near("by weights", &b.read_wide(&dw), &want_dw, 0.005);
    }
}
