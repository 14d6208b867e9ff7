//! Do steps answer the same however their rows are brought together?

use super::{DeviceTries, GpuLogitQuery, GpuLogitResult, GpuSequenceSlice, ModelRunner, StepBatch, WeightsRef};
use crate::device::tests::card_or_skip;
use crate::model::CudaModel;
use crate::shape::{GpuLayerLayout, GpuParamLayout, ModelShape};
use crate::step_inputs::Candidates;
use crate::token_trie::{TokenTrie, tests::words};
use std::ops::Range;

fn places(c: &ModelShape) -> GpuParamLayout {
    let mut len = 0;
    let mut put = |n: usize| -> Range<usize> {
        len += n;
        len - n..len
    };
    let d = c.hidden_size;
    let embed_tokens = put(c.vocab_size * d);
    let layers = (0..c.num_layers).map(|_| GpuLayerLayout {
        input_norm: put(d),
        qkv_proj: put(c.qkv_dim() * d),
        qk_norm: put(2 * c.head_dim),
        o_proj: put(d * c.attn_out_dim()),
        post_attention_norm: put(d),
        gate_up_proj: put(2 * c.intermediate_size * d),
        down_proj: put(d * c.intermediate_size),
    });
    let layers = layers.collect();
    let final_norm = put(d);
    GpuParamLayout { lm_head: embed_tokens.clone(), embed_tokens, layers, final_norm, len }
}

/// How far the answers to the same asks are from each other, and how far one row's are from another's.
fn apart(some: &[GpuLogitResult], others: &[GpuLogitResult]) -> (f32, f32) {
    let most = some.iter().zip(others).map(|(a, b)| {
        assert_eq!(a.token, b.token);
        (a.logprob - b.logprob).abs().max((a.aux - b.aux).abs())
    });
    let spread = |pick: fn(f32, f32) -> f32, from: f32| some.iter().map(|a| a.logprob).fold(from, pick);
    (most.fold(0.0, f32::max), spread(f32::max, f32::NEG_INFINITY) - spread(f32::min, f32::INFINITY))
}

#[test]
fn many_single_tokens_answer_as_in_small_steps() {
    let Some(card) = card_or_skip("no step was taken") else { return };
    let shape = ModelShape {
        vocab_size: 512,
        hidden_size: 128,
        intermediate_size: 192,
        num_layers: 3,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 128,
        rms_norm_eps: 1e-6,
    };
    let (rows, length) = (200, 40);
    let (places, turns) = (places(&shape), vec![0.5_f32; 64 * shape.head_dim]);
    let flat: Vec<f32> =
        (0..places.len as u32).map(|i| (i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5) * 0.3).collect();
    let model = CudaModel::new(&card, shape, places, &turns).unwrap();
    let weights = model.upload_weights(&flat).unwrap();
    let held = WeightsRef { base: &weights, adapter: None };
    let pages = (length as usize).div_ceil(crate::BLOCK_SIZE);
    let tables: Vec<u32> = (0..(rows * pages) as u32).collect();
    // A token after the other, so that later ones read what earlier ones left.
    let answers = |at_once: usize| {
        let mut stepper = ModelRunner::new(&model, rows * pages, false).unwrap();
        assert_eq!(stepper.is_dense(held, super::decode_graph::bucket(at_once)), at_once == rows && model.has_dense());
        let mut all = Vec::new();
        for start_position in 0..length {
            let tokens: Vec<u32> = (0..rows as u32).map(|i| (i * 37 + start_position * 11) % 512).collect();
            let asks: Vec<GpuLogitQuery<'_>> = tokens.iter().map(|t| GpuLogitQuery::score(511 - t, None)).collect();
            let start_position = start_position as usize;
            let part = |i| GpuSequenceSlice {
                token_offset: i % at_once,
                num_tokens: 1,
                start_position,
                block_table_offset: i * pages,
                num_logits: 1,
            };
            let parts: Vec<GpuSequenceSlice> = (0..rows).map(part).collect();
            for (tokens, (sequences, queries)) in
                tokens.chunks(at_once).zip(parts.chunks(at_once).zip(asks.chunks(at_once)))
            {
                let mut answers = vec![GpuLogitResult::default(); queries.len()];
                stepper
                    .step(held, &StepBatch { tokens, block_tables: &tables, sequences, queries }, &mut answers)
                    .unwrap();
                all.append(&mut answers);
            }
        }
        all
    };
    let many = answers(rows);
    let (apart, spread) = apart(&answers(50), &many);
    assert!(apart < 0.05 && spread > 1.0, "{apart} apart, of {spread}");
    assert_eq!(many, answers(rows), "the same bits every time");
}

#[test]
fn more_rows_than_logits_fit_at_once_answer_as_in_small_steps() {
    let Some(card) = card_or_skip("no step was taken") else { return };
    let shape = ModelShape {
        vocab_size: 151_936,
        hidden_size: 64,
        intermediate_size: 64,
        num_layers: 1,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-6,
    };
    let rows = 1000;
    assert!(super::logit_rows(&shape) < rows, "all of them fit at once");
    let (places, turns) = (places(&shape), vec![0.5_f32; 64 * shape.head_dim]);
    let flat: Vec<f32> =
        (0..places.len as u32).map(|i| i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5).collect();
    let model = CudaModel::new(&card, shape, places, &turns).unwrap();
    let weights = model.upload_weights(&flat).unwrap();
    let held = WeightsRef { base: &weights, adapter: None };
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i * 151).collect();
    let tables: Vec<u32> = (0..rows as u32).collect();
    let asks: Vec<GpuLogitQuery<'_>> = tokens.iter().map(|t| GpuLogitQuery::score(151_935 - t, None)).collect();
    let answers = |at_once: usize| {
        let mut stepper = ModelRunner::new(&model, rows, false).unwrap();
        let mut answers = vec![GpuLogitResult::default(); rows];
        for (i, answers) in answers.chunks_mut(at_once).enumerate() {
            let now = i * at_once..i * at_once + answers.len();
            let part = |i| GpuSequenceSlice {
                token_offset: i - now.start,
                num_tokens: 1,
                start_position: 0,
                block_table_offset: i,
                num_logits: 1,
            };
            let parts: Vec<GpuSequenceSlice> = now.clone().map(part).collect();
            let step = StepBatch {
                tokens: &tokens[now.clone()],
                block_tables: &tables,
                sequences: &parts,
                queries: &asks[now.clone()],
            };
            stepper.step(held, &step, answers).unwrap();
        }
        answers
    };
    let (few, many) = (answers(250), answers(rows));
    let (apart, spread) = apart(&few, &many);
    assert!(apart < 0.03, "{apart} apart in small steps and in large ones");
    // The rows are told apart by more than that.
    assert!(spread > 1.0, "all answers lie within {spread}");
}

#[test]
fn draws_at_nodes_are_those_from_lists_though_tries_come_and_go() {
    let Some(card) = card_or_skip("no step was taken") else { return };
    let shape = ModelShape {
        vocab_size: 512,
        hidden_size: 64,
        intermediate_size: 64,
        num_layers: 1,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-6,
    };
    let (rows, steps) = (20, 12);
    let (places, turns) = (places(&shape), vec![0.5_f32; 64 * shape.head_dim]);
    let flat: Vec<f32> =
        (0..places.len as u32).map(|i| i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5).collect();
    let model = CudaModel::new(&card, shape, places, &turns).unwrap();
    let weights = model.upload_weights(&flat).unwrap();
    let held = WeightsRef { base: &weights, adapter: None };
    // In each step other tries, every row in the second node of its own.
    let candidates = |step: usize, row: usize| -> Vec<u32> {
        (0..512).filter(|t| (t * 7 + step as u32 * 13 + row as u32 * 5) % 31 < 3).collect()
    };
    let following = |tokens: &[u32]| tokens.iter().map(|t| t % 2).collect::<Vec<_>>();
    let lists: Vec<Vec<Vec<u32>>> =
        (0..steps).map(|step| (0..rows).map(|row| candidates(step, row)).collect()).collect();
    let tries: Vec<Vec<Vec<u32>>> =
        lists.iter().map(|lists| lists.iter().map(|l| words(&[(&[1], &[1]), (l, &following(l))])).collect()).collect();
    let needed: usize = tries[0].iter().map(Vec::len).sum();
    let answers = |at_nodes: bool, room: usize, num_tokens: usize| {
        let mut stepper = ModelRunner::new(&model, rows, false).unwrap();
        stepper.tries = DeviceTries::new(&card, room).unwrap();
        let mut all = Vec::new();
        for step in 0..steps {
            let ask = |row: usize| {
                let trie = TokenTrie { id: (step * rows + row) as u64, data: &tries[step][row] };
                let candidates =
                    if at_nodes { Candidates::TrieNode(trie, 1) } else { Candidates::List(&lists[step][row]) };
                let uniform = (step * rows + row) as f32 / (steps * rows) as f32;
                GpuLogitQuery { token: None, candidates, uniform, ..GpuLogitQuery::score(0, None) }
            };
            let asks: Vec<GpuLogitQuery<'_>> = (0..rows).map(ask).collect();
            let tokens: Vec<u32> = (0..(rows * num_tokens) as u32).map(|i| (i * 37 + step as u32) % 512).collect();
            let tables: Vec<u32> = (0..rows as u32).collect();
            let part = |i| GpuSequenceSlice {
                token_offset: i * num_tokens,
                num_tokens,
                start_position: 0,
                block_table_offset: i,
                num_logits: 1,
            };
            let parts: Vec<GpuSequenceSlice> = (0..rows).map(part).collect();
            let mut answers = vec![GpuLogitResult::default(); rows];
            let step = StepBatch { tokens: &tokens, block_tables: &tables, sequences: &parts, queries: &asks };
            stepper.step(held, &step, &mut answers).unwrap();
            all.append(&mut answers);
        }
        all
    };
    // Single tokens, which are recorded, and several.
    for count in [1, 3] {
        let from_lists = answers(false, 16, count);
        // Too little room even for one step's, for that and little more, and for all.
        for room in [16, 3 * needed, steps * 2 * needed] {
            for (i, (a, b)) in answers(true, room, count).iter().zip(&from_lists).enumerate() {
                let bits = |a: &GpuLogitResult| (a.token, a.logprob.to_bits(), a.aux.to_bits());
                assert_eq!(bits(a), bits(b), "answer {i}, room for {room}");
                assert_eq!((a.next_node(), b.next_node()), (Some(a.token % 2), None), "answer {i}");
            }
        }
    }
}
