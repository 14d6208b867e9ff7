//! Benchmark of training passes and inference steps on a GPU.
//!
//! ```text
//! cargo run --release -p mage-cuda --example speed -- t,0.6B,8,1024 d,0.6B,64,128,128 a,4B,8192
//! ```
//! `t,SHAPE,SEQUENCES,LENGTH` measures forward and backward passes; `d,SHAPE,SEQUENCES,PROMPT,NEW` decoding;
//! `a,SHAPE,TOKENS` a pass with recomputation and an AdamW step. Options may follow: `recompute`; `adapter` adds a LoRA
//! adapter of rank 16 to every projection, which is trained or used for inference; `invariant` uses batch-invariant
//! kernels. Weights and tokens are random; every token is a target.

use mage_cuda::{
    CudaDevice, CudaModel, KernelLogitQuery, ModelRunner, ModelShape, ModelTrainer, StepBatch, WeightsRef,
};
use mage_engine::model::{
    AdamWParams, BLOCK_SIZE, LayerLayout, LogitResult, LoraConfig, LoraGroupLayout, LoraLayout, LoraProjectionLayout,
    PackedChunk, ParamLayout, Prediction, SequenceSlice,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

type Any = Box<dyn std::error::Error>;

fn shape(name: &str) -> Result<ModelShape, Any> {
    let (hidden_size, num_layers, num_heads, intermediate_size) = match name {
        "0.6B" => (1024, 28, 16, 3072),
        "1.7B" => (2048, 28, 16, 6144),
        "4B" => (2560, 36, 32, 9728),
        "4B6" => (2560, 6, 32, 9728),
        "8B" => (4096, 36, 32, 12_288),
        _ => return Err(format!("unknown shape {name}; expected 0.6B, 1.7B, 4B, 4B6 (six layers of 4B) or 8B").into()),
    };
    Ok(ModelShape {
        vocab_size: 151_936,
        hidden_size,
        intermediate_size,
        num_layers,
        num_heads,
        num_kv_heads: 8,
        head_dim: 128,
        rms_norm_eps: 1e-6,
    })
}

fn layout(c: &ModelShape) -> ParamLayout {
    let mut len = 0;
    let mut alloc = |n: usize| -> Range<usize> {
        len += n;
        len - n..len
    };
    let (d, q, kv) = (c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
    let embed_tokens = alloc(c.vocab_size * d);
    let layers = (0..c.num_layers).map(|_| LayerLayout {
        input_layernorm: alloc(d),
        qkv_proj: alloc((q + 2 * kv) * d),
        qk_norm: alloc(2 * c.head_dim),
        o_proj: alloc(d * q),
        post_attention_layernorm: alloc(d),
        gate_up_proj: alloc(2 * c.intermediate_size * d),
        down_proj: alloc(d * c.intermediate_size),
    });
    let layers = layers.collect();
    let final_norm = alloc(d);
    // Larger models have an untied LM head.
    let lm_head = if d > 2560 { alloc(c.vocab_size * d) } else { embed_tokens.clone() };
    ParamLayout { tensors: Vec::new(), lm_head, embed_tokens, layers, final_norm, len }
}

/// LoRA of the default rank on every projection.
fn lora_layout(c: &ModelShape) -> LoraLayout {
    let lora = LoraConfig::default();
    let mut len = 0;
    let mut alloc = |n: usize| -> Range<usize> {
        len += n;
        len - n..len
    };
    let (d, q, kv) = (c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
    let mut group = |inputs: usize, outputs: &[usize]| {
        let total_rank = outputs.len() * lora.rank;
        let (lora_a, mut output_offset) = (alloc(total_rank * inputs), 0);
        let projections = outputs.iter().enumerate().map(|(i, &outputs)| {
            output_offset += outputs;
            LoraProjectionLayout {
                lora_b: alloc(outputs * lora.rank),
                outputs,
                output_offset: output_offset - outputs,
                rank_offset: i * lora.rank,
            }
        });
        Some(LoraGroupLayout { projections: projections.collect(), lora_a, total_rank })
    };
    let layers = (0..c.num_layers)
        .map(|_| {
            [
                group(d, &[q, kv, kv]),
                group(q, &[d]),
                group(d, &[c.intermediate_size, c.intermediate_size]),
                group(c.intermediate_size, &[d]),
            ]
        })
        .collect();
    LoraLayout { lora, tensors: Vec::new(), layers, len }
}

/// Values with a standard deviation of 0.02.
fn random_small(len: usize) -> Vec<f32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5) * 0.0693).collect()
}

/// Values with a standard deviation of 0.02; norm weights are 1.
fn random_weights(p: &ParamLayout) -> Vec<f32> {
    let mut all = vec![0.0_f32; p.len];
    let chunk = p.len.div_ceil(std::thread::available_parallelism().map_or(1, Into::into));
    std::thread::scope(|s| {
        for (i, chunk) in all.chunks_mut(chunk).enumerate() {
            s.spawn(move || {
                let mut state = i as u64 * 0x9e37_79b9_7f4a_7c15 + 1;
                for x in chunk {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    *x = ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.0693;
                }
            });
        }
    });
    for l in &p.layers {
        for norm in [&l.input_layernorm, &l.post_attention_layernorm, &l.qk_norm] {
            all[norm.clone()].fill(1.0);
        }
    }
    all[p.final_norm.clone()].fill(1.0);
    all
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % 151_936).collect()
}

fn main() -> Result<(), Any> {
    let device = CudaDevice::open(0)?;
    let used_gib = |device: &CudaDevice| -> Result<f64, Any> {
        Ok((device.info().total_memory - device.free_memory()?) as f64 / f64::from(1 << 30))
    };
    println!(
        "{}, compute capability {:?}, {} SMs",
        device.info().name,
        device.info().compute_capability,
        device.info().multiprocessors
    );
    println!("{:?}", mage_cuda::measure_throughput(&device)?);
    for job in std::env::args().skip(1) {
        let fields: Vec<&str> = job.split(',').collect();
        let number =
            |i: usize| -> Result<usize, Any> { Ok(fields.get(i).ok_or(format!("{job}: missing fields"))?.parse()?) };
        let shape = shape(fields.get(1).copied().unwrap_or_default())?;
        let layout = layout(&shape);
        let flat = random_weights(&layout);
        let has_option = |word: &str| fields.contains(&word);
        let lora = has_option("adapter").then(|| Arc::new(lora_layout(&shape)));
        let start = Instant::now();
        let rope_table: Vec<f32> = (0..8192 * shape.head_dim).map(|i| ((i * 37 % 101) as f32 / 101.0).cos()).collect();
        let model = CudaModel::new(&device, shape, layout, &rope_table)?;
        println!("{job}: kernels loaded in {:.2} s", start.elapsed().as_secs_f64());
        match fields[0] {
            "t" | "a" => {
                let (sequences, length) =
                    if fields[0] == "t" { (number(2)?, number(3)?) } else { (number(2)?.div_ceil(1024), 1024) };
                let recompute = fields[0] == "a" || has_option("recompute");
                let mut trainer = match &lora {
                    None => ModelTrainer::new(&model, &flat)?,
                    Some(lora) => {
                        let weights = Arc::new(model.upload_weights(&flat)?);
                        ModelTrainer::with_adapter(&model, &weights, lora, &random_small(lora.len))?
                    }
                };
                drop(flat);
                let n = sequences * length;
                let tokens = tokens(n);
                let mut chunk = PackedChunk::default();
                for sequence in tokens.chunks(length) {
                    chunk.push(sequence.iter().copied());
                }
                chunk.predictions = (0..n)
                    .map(|i| Prediction { row: i as u32, token: tokens[(i + 1) % n], ..Default::default() })
                    .collect();
                let mut times = Vec::new();
                let mut loss = 0.0;
                for i in 0..9 {
                    let start = Instant::now();
                    let mut sum = 0.0;
                    trainer.forward_backward(&chunk, recompute, |_, c| {
                        sum -= f64::from(c.logprob);
                        (-1.0 / n as f32, 0.0)
                    })?;
                    if fields[0] == "a" {
                        let norm = trainer.grad_sum_of_squares(0..trainer.grads().len())?.sqrt();
                        let settings = AdamWParams {
                            learning_rate: 1e-6,
                            beta1: 0.9,
                            beta2: 0.95,
                            epsilon: 1e-8,
                            weight_decay: 0.01,
                            grad_scale: (1.0 / norm).min(1.0) as f32,
                            correction1: 1.0 - 0.9_f32.powi(i + 1),
                            correction2: 1.0 - 0.95_f32.powi(i + 1),
                        };
                        trainer.adamw(0..trainer.grads().len(), &settings)?;
                        trainer.snapshot().map(drop)?;
                    }
                    times.push(start.elapsed().as_secs_f64());
                    loss = sum / n as f64;
                }
                let seconds = median(times.split_off(3));
                println!(
                    "{job}: {:.1} ms, {:.0} tokens/s, loss {loss:.4}, {:.1} GiB of GPU memory",
                    seconds * 1e3,
                    n as f64 / seconds,
                    used_gib(&device)?
                );
            }
            "d" => {
                let (batch, prompt, new) = (number(2)?, number(3)?, number(4)?);
                let weights = model.upload_weights(&flat)?;
                drop(flat);
                let blocks_per_sequence = (prompt + new).div_ceil(BLOCK_SIZE);
                let adapter =
                    lora.as_ref().map(|lora| model.upload_adapter(lora, &random_small(lora.len))).transpose()?;
                let weights_ref = WeightsRef { base: &weights, adapter: adapter.as_ref() };
                let mut runner = ModelRunner::new(&model, batch * blocks_per_sequence, has_option("invariant"))?;
                let block_tables: Vec<u32> = (0..(batch * blocks_per_sequence) as u32).collect();
                let mut results = vec![LogitResult::default(); batch];
                let query = KernelLogitQuery { token: None, uniform: 0.5, ..KernelLogitQuery::score(0, None) };
                let queries = vec![query; batch];
                // Prefill in batches.
                let start = Instant::now();
                let all = tokens(batch * prompt);
                let prompts_per_step = (8192 / prompt).max(1);
                for first in (0..batch).step_by(prompts_per_step) {
                    let count = prompts_per_step.min(batch - first);
                    let slices: Vec<SequenceSlice> = (0..count)
                        .map(|i| SequenceSlice {
                            token_offset: i * prompt,
                            num_tokens: prompt,
                            start_position: 0,
                            block_table_offset: (first + i) * blocks_per_sequence,
                            num_logits: 1,
                        })
                        .collect();
                    let tokens = &all[first * prompt..(first + count) * prompt];
                    let step = StepBatch {
                        tokens,
                        block_tables: &block_tables,
                        sequences: &slices,
                        queries: &queries[..count],
                    };
                    runner.step(weights_ref, &step, &mut results[first..first + count])?;
                }
                println!("{job}: prefill {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
                let mut next: Vec<u32> = results.iter().map(|a| a.token).collect();
                let mut times = Vec::new();
                for i in 0..new {
                    let slices: Vec<SequenceSlice> = (0..batch)
                        .map(|b| SequenceSlice {
                            token_offset: b,
                            num_tokens: 1,
                            start_position: prompt + i,
                            block_table_offset: b * blocks_per_sequence,
                            num_logits: 1,
                        })
                        .collect();
                    let start = Instant::now();
                    let step =
                        StepBatch { tokens: &next, block_tables: &block_tables, sequences: &slices, queries: &queries };
                    runner.step(weights_ref, &step, &mut results)?;
                    times.push(start.elapsed().as_secs_f64());
                    next.iter_mut().zip(&results).for_each(|(n, a)| *n = a.token);
                }
                let mean = times[2..].iter().sum::<f64>() / (times.len() - 2) as f64;
                println!(
                    "{job}: {:.3} ms per step, {:.0} tokens/s, first {:.1} ms, {:.1} GiB of GPU memory",
                    mean * 1e3,
                    batch as f64 / mean,
                    times[0] * 1e3,
                    used_gib(&device)?
                );
            }
            other => return Err(format!("unknown benchmark {other}; expected t, d or a").into()),
        }
    }
    Ok(())
}
