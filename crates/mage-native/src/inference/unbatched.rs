//! Decoding and scoring without the scheduler, on the CPU.
//!
//! [`generate`](NativeSampler::generate) decodes one request with its own contiguous KV cache;
//! [`score_all`](NativeSampler::score_all) scores many sequences in packed chunks. The scheduler is tested against them, bit
//! for bit.

use super::NativeSampler;
use super::backend::cpu::evaluate_query;
use super::scheduler::{ends_with_stop_text, non_finite_logits};
use crate::engine::EngineContext;
use crate::inference::sampling::SamplingScratch;
use crate::inference::sequence::LogitQuery;
use crate::model::PackedWorkspace;
use mage_engine::model::{PackedChunk, Prediction, TokenLogprob};
use mage_engine::{ActionSet, Error, FinishReason, Result, Sample, SampleRequest, ScoreRequest, Scores};
use rayon::prelude::*;

impl NativeSampler {
    /// Samples one request without batching and calls `on_token` with every token.
    pub fn generate(&self, request: &SampleRequest, mut on_token: impl FnMut(u32) + Send) -> Result<Sample> {
        self.check(request)?;
        self.require_cpu()?;
        let EngineContext { model, renderer, registry, pool, .. } = &*self.shared;
        let (id, weights) = registry.get(&request.weights)?;
        let weights = weights.cpu();
        let params = &request.params;
        let max_tokens = (params.max_tokens as usize).min(self.caps.max_seq_len - request.prompt.len());
        let mut sample = Sample {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            processed_logprobs: Vec::new(),
            finish: FinishReason::Length,
            weights: id,
        };
        pool.install(|| {
            let mut cache = model.kv_cache(request.prompt.len() + max_tokens);
            let mut workspace = PackedWorkspace::default();
            let mut logits = Vec::new();
            let mut scratch = SamplingScratch::default();
            let mut cursor = request.allowed.as_ref().map(ActionSet::start);
            model.extend(weights, &request.prompt, &mut cache, &mut workspace, &mut logits);
            for index in 0..max_tokens {
                let query = LogitQuery::Sample { params, cursor: cursor.as_ref(), index };
                let sampled = evaluate_query(&model.cpu, query, &logits, &mut scratch);
                if !sampled.is_finite() {
                    return Err(non_finite_logits(&sample.weights.to_string()));
                }
                sample.tokens.push(sampled.token);
                sample.logprobs.push(sampled.logprob);
                sample.processed_logprobs.push(sampled.aux);
                on_token(sampled.token);
                let complete = cursor.as_mut().is_some_and(|c| {
                    c.advance(sampled.token);
                    c.complete()
                });
                if complete
                    || params.stop_ids.contains(&sampled.token)
                    || ends_with_stop_text(renderer.as_deref(), &params.stop_texts, &sample.tokens)?
                {
                    sample.finish = FinishReason::Stop;
                    break;
                }
                if index + 1 < max_tokens {
                    model.extend(weights, &[sampled.token], &mut cache, &mut workspace, &mut logits);
                }
            }
            Ok(sample)
        })
    }

    /// Unbatched decoding has no GPU kernels.
    fn require_cpu(&self) -> Result<()> {
        match self.shared.gpu {
            None => Ok(()),
            Some(_) => Err(Error::unsupported(
                "decode without batching on a GPU",
                "open the model on the CPU, or use `sample`",
            )),
        }
    }

    /// The logits after a prompt, before any mask.
    pub fn logits(&self, request: &SampleRequest) -> Result<Vec<f32>> {
        let EngineContext { model, registry, pool, .. } = &*self.shared;
        request.check(model.config.vocab_size, self.caps.max_seq_len)?;
        self.require_cpu()?;
        let (_, weights) = registry.get(&request.weights)?;
        let weights = weights.cpu();
        let mut logits = Vec::new();
        pool.install(|| {
            let mut cache = model.kv_cache(request.prompt.len());
            let mut workspace = PackedWorkspace::default();
            model.extend(weights, &request.prompt, &mut cache, &mut workspace, &mut logits);
        });
        Ok(logits)
    }

    /// Scores many requests in packed chunks. Results equal those of scoring each request alone.
    pub fn score_all(&self, requests: &[ScoreRequest]) -> Result<Vec<Scores>> {
        self.require_cpu()?;
        let EngineContext { model, registry, pool, .. } = &*self.shared;
        let mut published = Vec::with_capacity(requests.len());
        for (i, r) in requests.iter().enumerate() {
            r.check(model.config.vocab_size, self.caps.max_seq_len).map_err(|e| {
                if requests.len() > 1 { Error::invalid(format!("request {i}"), e.to_string()) } else { e }
            })?;
            published.push(registry.get(&r.weights)?);
        }
        // Consecutive requests with the same weights share a chunk up to the token budget.
        let budget = self.shared.chunk_tokens();
        let mut groups: Vec<(std::ops::Range<usize>, PackedChunk)> = Vec::new();
        for (i, r) in requests.iter().enumerate() {
            let fits = groups.last().is_some_and(|(range, chunk)| {
                published[range.start].0 == published[i].0 && chunk.tokens.len() + r.tokens.len() <= budget
            });
            if !fits {
                groups.push((i..i, PackedChunk::default()));
            }
            let last = groups.len() - 1;
            let (range, chunk) = &mut groups[last];
            range.end = i + 1;
            let first = chunk.push(r.tokens.iter().copied());
            for t in r.from..r.tokens.len() {
                chunk.predictions.push(Prediction {
                    row: (first + t - 1) as u32,
                    token: r.tokens[t],
                    allowed: r.allowed.get(t - r.from).cloned().flatten(),
                    inputs: Default::default(),
                    index: t,
                });
            }
        }
        let cpu = if groups.len() > 1 { model.cpu.single_threaded() } else { model.cpu };
        let scored: Vec<Vec<TokenLogprob>> = pool.install(|| {
            groups
                .par_iter()
                .map_init(PackedWorkspace::default, |workspace, (range, chunk)| {
                    let mut logprobs = Vec::with_capacity(chunk.predictions.len());
                    model.score(&cpu, published[range.start].1.cpu(), chunk, workspace, &mut logprobs);
                    logprobs
                })
                .collect()
        });
        let mut out = Vec::with_capacity(requests.len());
        for ((range, _), logprobs) in groups.iter().zip(&scored) {
            let mut logprobs = &logprobs[..];
            for i in range.clone() {
                let (mine, rest) = logprobs.split_at(requests[i].tokens.len() - requests[i].from);
                logprobs = rest;
                if mine.iter().any(|c| !(c.logprob.is_finite() && c.entropy.is_finite())) {
                    return Err(non_finite_logits(&published[i].0.to_string()));
                }
                out.push(Scores {
                    logprobs: mine.iter().map(|c| c.logprob).collect(),
                    entropies: mine.iter().map(|c| c.entropy).collect(),
                    weights: published[i].0.clone(),
                });
            }
        }
        Ok(out)
    }
}
