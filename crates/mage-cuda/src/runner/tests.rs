//! Tests of steps with different batch sizes.

use super::{DeviceTries, KernelLogitQuery, LogitResult, ModelRunner, SequenceSlice, StepBatch, WeightsRef};
use crate::model::CudaModel;
use crate::shape::ModelShape;
use crate::step_inputs::Candidates;
use crate::token_trie::{TokenTrie, tests::trie_words};
use mage_engine::model::{BLOCK_SIZE, LayerLayout, ParamLayout};
use std::ops::Range;

fn layout(c: &ModelShape) -> ParamLayout {
    let mut len = 0;
    let mut alloc = |n: usize| -> Range<usize> {
        len += n;
        len - n..len
    };
    let d = c.hidden_size;
    let embed_tokens = alloc(c.vocab_size * d);
    let layers = (0..c.num_layers).map(|_| LayerLayout {
        input_layernorm: alloc(d),
        qkv_proj: alloc(c.qkv_dim() * d),
        qk_norm: alloc(2 * c.head_dim),
        o_proj: alloc(d * c.attn_out_dim()),
        post_attention_layernorm: alloc(d),
        gate_up_proj: alloc(2 * c.intermediate_size * d),
        down_proj: alloc(d * c.intermediate_size),
    });
    let layers = layers.collect();
    let final_norm = alloc(d);
    ParamLayout { tensors: Vec::new(), lm_head: embed_tokens.clone(), embed_tokens, layers, final_norm, len }
}

/// The largest difference between two lists of results, and the range of log-probabilities within the first.
fn max_difference(first: &[LogitResult], second: &[LogitResult]) -> (f32, f32) {
    let differences = first.iter().zip(second).map(|(a, b)| {
        assert_eq!(a.token, b.token);
        (a.logprob - b.logprob).abs().max((a.aux - b.aux).abs())
    });
    let range = |pick: fn(f32, f32) -> f32, initial: f32| first.iter().map(|a| a.logprob).fold(initial, pick);
    (differences.fold(0.0, f32::max), range(f32::max, f32::NEG_INFINITY) - range(f32::min, f32::INFINITY))
}

pub(crate) fn large_decode_batches_agree_with_small_ones() {
    let device = crate::device::tests::device();
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
    let (num_sequences, length) = (200, 40);
    let (layout, rope_table) = (layout(&shape), vec![0.5_f32; 64 * shape.head_dim]);
    let flat: Vec<f32> =
        (0..layout.len as u32).map(|i| (i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5) * 0.3).collect();
    let model = CudaModel::new(&device, shape, layout, &rope_table).unwrap();
    let weights = model.upload_weights(&flat).unwrap();
    let weights_ref = WeightsRef { base: &weights, adapter: None };
    let blocks_per_sequence = (length as usize).div_ceil(BLOCK_SIZE);
    let tables: Vec<u32> = (0..(num_sequences * blocks_per_sequence) as u32).collect();
    // One token at a time, so that later steps read what earlier ones stored.
    let results = |at_once: usize| {
        let mut runner = ModelRunner::new(&model, num_sequences * blocks_per_sequence, false).unwrap();
        assert_eq!(
            runner.use_fused_gemm(weights_ref, super::decode_graph::bucket(at_once)),
            at_once == num_sequences && model.has_fused_gemm()
        );
        let mut all = Vec::new();
        for start_position in 0..length {
            let tokens: Vec<u32> = (0..num_sequences as u32).map(|i| (i * 37 + start_position * 11) % 512).collect();
            let queries: Vec<KernelLogitQuery<'_>> =
                tokens.iter().map(|t| KernelLogitQuery::score(511 - t, None)).collect();
            let start_position = start_position as usize;
            let slice = |i| SequenceSlice {
                token_offset: i % at_once,
                num_tokens: 1,
                start_position,
                block_table_offset: i * blocks_per_sequence,
                num_logits: 1,
            };
            let slices: Vec<SequenceSlice> = (0..num_sequences).map(slice).collect();
            for (tokens, (sequences, queries)) in
                tokens.chunks(at_once).zip(slices.chunks(at_once).zip(queries.chunks(at_once)))
            {
                let mut results = vec![LogitResult::default(); queries.len()];
                runner
                    .step(weights_ref, &StepBatch { tokens, block_tables: &tables, sequences, queries }, &mut results)
                    .unwrap();
                all.append(&mut results);
            }
        }
        all
    };
    let large = results(num_sequences);
    let (max_difference, range) = max_difference(&results(50), &large);
    assert!(max_difference < 0.05 && range > 1.0, "difference {max_difference}, range {range}");
    assert_eq!(large, results(num_sequences), "runs are deterministic");
}

pub(crate) fn batches_beyond_the_logits_buffer_agree_with_small_ones() {
    let device = crate::device::tests::device();
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
    let num_sequences = 1000;
    assert!(super::logit_rows(&shape) < num_sequences, "all logits fit at once");
    let (layout, rope_table) = (layout(&shape), vec![0.5_f32; 64 * shape.head_dim]);
    let flat: Vec<f32> =
        (0..layout.len as u32).map(|i| i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5).collect();
    let model = CudaModel::new(&device, shape, layout, &rope_table).unwrap();
    let weights = model.upload_weights(&flat).unwrap();
    let weights_ref = WeightsRef { base: &weights, adapter: None };
    let tokens: Vec<u32> = (0..num_sequences as u32).map(|i| i * 151).collect();
    let tables: Vec<u32> = (0..num_sequences as u32).collect();
    let queries: Vec<KernelLogitQuery<'_>> =
        tokens.iter().map(|t| KernelLogitQuery::score(151_935 - t, None)).collect();
    let results = |at_once: usize| {
        let mut runner = ModelRunner::new(&model, num_sequences, false).unwrap();
        let mut results = vec![LogitResult::default(); num_sequences];
        for (i, results) in results.chunks_mut(at_once).enumerate() {
            let batch_range = i * at_once..i * at_once + results.len();
            let slice = |i| SequenceSlice {
                token_offset: i - batch_range.start,
                num_tokens: 1,
                start_position: 0,
                block_table_offset: i,
                num_logits: 1,
            };
            let slices: Vec<SequenceSlice> = batch_range.clone().map(slice).collect();
            let step = StepBatch {
                tokens: &tokens[batch_range.clone()],
                block_tables: &tables,
                sequences: &slices,
                queries: &queries[batch_range.clone()],
            };
            runner.step(weights_ref, &step, results).unwrap();
        }
        results
    };
    let (small, large) = (results(250), results(num_sequences));
    let (max_difference, range) = max_difference(&small, &large);
    assert!(max_difference < 0.03, "small and large steps differ by {max_difference}");
    // The rows differ from each other by more than that.
    assert!(range > 1.0, "all results lie within {range}");
}

pub(crate) fn trie_sampling_equals_list_sampling_across_cache_evictions() {
    let device = crate::device::tests::device();
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
    let (num_sequences, steps) = (20, 12);
    let (layout, rope_table) = (layout(&shape), vec![0.5_f32; 64 * shape.head_dim]);
    let flat: Vec<f32> =
        (0..layout.len as u32).map(|i| i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5).collect();
    let model = CudaModel::new(&device, shape, layout, &rope_table).unwrap();
    let weights = model.upload_weights(&flat).unwrap();
    let weights_ref = WeightsRef { base: &weights, adapter: None };
    // Each step has other tries, and every row is at the second node of its own.
    let candidates = |step: usize, row: usize| -> Vec<u32> {
        (0..512).filter(|t| (t * 7 + step as u32 * 13 + row as u32 * 5) % 31 < 3).collect()
    };
    let next_nodes = |tokens: &[u32]| tokens.iter().map(|t| t % 2).collect::<Vec<_>>();
    let lists: Vec<Vec<Vec<u32>>> =
        (0..steps).map(|step| (0..num_sequences).map(|row| candidates(step, row)).collect()).collect();
    let tries: Vec<Vec<Vec<u32>>> = lists
        .iter()
        .map(|lists| lists.iter().map(|l| trie_words(&[(&[1], &[1]), (l, &next_nodes(l))])).collect())
        .collect();
    let needed: usize = tries[0].iter().map(Vec::len).sum();
    let results = |use_tries: bool, capacity: usize, num_tokens: usize| {
        let mut runner = ModelRunner::new(&model, num_sequences, false).unwrap();
        runner.tries = DeviceTries::new(&device, capacity).unwrap();
        let mut all = Vec::new();
        for step in 0..steps {
            let query = |row: usize| {
                let trie = TokenTrie { id: (step * num_sequences + row) as u64, data: &tries[step][row] };
                let candidates =
                    if use_tries { Candidates::TrieNode(trie, 1) } else { Candidates::List(&lists[step][row]) };
                let uniform = (step * num_sequences + row) as f32 / (steps * num_sequences) as f32;
                KernelLogitQuery { token: None, candidates, uniform, ..KernelLogitQuery::score(0, None) }
            };
            let queries: Vec<KernelLogitQuery<'_>> = (0..num_sequences).map(query).collect();
            let tokens: Vec<u32> =
                (0..(num_sequences * num_tokens) as u32).map(|i| (i * 37 + step as u32) % 512).collect();
            let tables: Vec<u32> = (0..num_sequences as u32).collect();
            let slice = |i| SequenceSlice {
                token_offset: i * num_tokens,
                num_tokens,
                start_position: 0,
                block_table_offset: i,
                num_logits: 1,
            };
            let slices: Vec<SequenceSlice> = (0..num_sequences).map(slice).collect();
            let mut results = vec![LogitResult::default(); num_sequences];
            let step = StepBatch { tokens: &tokens, block_tables: &tables, sequences: &slices, queries: &queries };
            runner.step(weights_ref, &step, &mut results).unwrap();
            all.append(&mut results);
        }
        all
    };
    // One token per sequence uses a graph; several do not.
    for num_tokens in [1, 3] {
        let from_lists = results(false, 16, num_tokens);
        // Too small even for one step; for little more than one step; for all steps.
        for capacity in [16, 3 * needed, steps * 2 * needed] {
            for (i, (a, b)) in results(true, capacity, num_tokens).iter().zip(&from_lists).enumerate() {
                let bits = |a: &LogitResult| (a.token, a.logprob.to_bits(), a.aux.to_bits());
                assert_eq!(bits(a), bits(b), "result {i}, capacity {capacity}");
                assert_eq!((a.next_node(), b.next_node()), (Some(a.token % 2), None), "result {i}");
            }
        }
    }
}
