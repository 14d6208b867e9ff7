//! What would one request at a time give?
//!
//! Plain decoding with a cache of its own, on the calling thread, and scoring of many sequences in large pieces. The
//! scheduler's answers are tested against these, bit for bit.

use super::NativeSampler;
use super::backend::cpu::evaluate_query;
use super::scheduler::{ends_with_stop_text, non_finite_logits};
use crate::cpu::{Kernels, TokenLogprob};
use crate::engine::Shared;
use crate::inference::sampling::SamplingScratch;
use crate::inference::sequence::LogitQuery;
use crate::model::Workspace;
use crate::model::batch::{Chunk, Prediction};
use mage_engine::{ActionSet, Error, FinishReason, Result, Sample, SampleRequest, ScoreRequest, Scores};
use rayon::prelude::*;

impl NativeSampler {
    /// Samples on the calling thread, telling `each` of every token as it comes.
    pub fn generate(&self, request: &SampleRequest, mut each: impl FnMut(u32) + Send) -> Result<Sample> {
        self.check(request)?;
        self.on_cpu()?;
        let Shared { model, renderer, registry, pool, .. } = &*self.shared;
        let (id, weights) = registry.get(&request.weights)?;
        let weights = weights.cpu();
        let params = &request.params;
        let most = (params.max_tokens as usize).min(self.caps.max_context - request.prompt.len());
        let mut sample = Sample {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            drawn_logprobs: Vec::new(),
            finish: FinishReason::Length,
            weights: id,
        };
        pool.install(|| {
            let mut cache = model.kv_cache(request.prompt.len() + most);
            let mut workspace = Workspace::new(&model.kernels);
            let mut logits = Vec::new();
            let mut scratch = SamplingScratch::default();
            let mut cursor = request.allowed.as_ref().map(ActionSet::start);
            model.extend(weights, &request.prompt, &mut cache, &mut workspace, &mut logits);
            for index in 0..most {
                let query = LogitQuery::Sample { params, cursor: cursor.as_ref(), index };
                let drawn = evaluate_query(&model.kernels, query, &logits, &mut scratch);
                if !drawn.is_finite() {
                    return Err(non_finite_logits(&sample.weights.to_string()));
                }
                sample.tokens.push(drawn.token);
                sample.logprobs.push(drawn.logprob);
                sample.drawn_logprobs.push(drawn.second);
                each(drawn.token);
                let complete = cursor.as_mut().is_some_and(|c| {
                    c.advance(drawn.token);
                    c.complete()
                });
                if complete
                    || params.stop_ids.contains(&drawn.token)
                    || ends_with_stop_text(renderer.as_deref(), &params.stop_texts, &sample.tokens)?
                {
                    sample.finish = FinishReason::Stop;
                    break;
                }
                if index + 1 < most {
                    model.extend(weights, &[drawn.token], &mut cache, &mut workspace, &mut logits);
                }
            }
            Ok(sample)
        })
    }

    /// Plain decoding is what the scheduler is compared with, and has no kernels on a card.
    fn on_cpu(&self) -> Result<()> {
        match self.shared.gpu {
            None => Ok(()),
            Some(_) => {
                Err(Error::unsupported("decode plainly on a card", "open the model on the CPU, or use `sample`"))
            }
        }
    }

    /// The logits after a prompt, before any mask.
    pub fn logits(&self, request: &SampleRequest) -> Result<Vec<f32>> {
        let Shared { model, registry, pool, .. } = &*self.shared;
        request.check(model.config.vocab_size, self.caps.max_context)?;
        self.on_cpu()?;
        let (_, weights) = registry.get(&request.weights)?;
        let weights = weights.cpu();
        let mut logits = Vec::new();
        pool.install(|| {
            let mut cache = model.kv_cache(request.prompt.len());
            let mut workspace = Workspace::new(&model.kernels);
            model.extend(weights, &request.prompt, &mut cache, &mut workspace, &mut logits);
        });
        Ok(logits)
    }

    /// Scores many requests at once, in chunks side by side. Each gets the bits it would get alone.
    pub fn score_all(&self, requests: &[ScoreRequest]) -> Result<Vec<Scores>> {
        self.on_cpu()?;
        let Shared { model, registry, pool, .. } = &*self.shared;
        let mut held = Vec::with_capacity(requests.len());
        for (i, r) in requests.iter().enumerate() {
            r.check(model.config.vocab_size, self.caps.max_context).map_err(|e| {
                if requests.len() > 1 { Error::invalid(format!("request {i}"), e.to_string()) } else { e }
            })?;
            held.push(registry.get(&r.weights)?);
        }
        // Neighbours under the same weights go together while the budget lasts.
        let budget = self.shared.chunk_tokens();
        let mut groups: Vec<(std::ops::Range<usize>, Chunk)> = Vec::new();
        for (i, r) in requests.iter().enumerate() {
            let fits = groups.last().is_some_and(|(range, chunk)| {
                held[range.start].0 == held[i].0 && chunk.tokens.len() + r.tokens.len() <= budget
            });
            if !fits {
                groups.push((i..i, Chunk::default()));
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
        let kernels = if groups.len() > 1 { model.kernels.single_threaded() } else { model.kernels };
        let scored: Vec<Vec<TokenLogprob>> = pool.install(|| {
            groups
                .par_iter()
                .map_init(
                    || Workspace::new(&kernels),
                    |workspace, (range, chunk)| {
                        let mut choices = Vec::with_capacity(chunk.predictions.len());
                        model.score(&kernels, held[range.start].1.cpu(), chunk, workspace, &mut choices);
                        choices
                    },
                )
                .collect()
        });
        let mut out = Vec::with_capacity(requests.len());
        for ((range, _), choices) in groups.iter().zip(&scored) {
            let mut choices = &choices[..];
            for i in range.clone() {
                let (mine, rest) = choices.split_at(requests[i].tokens.len() - requests[i].from);
                choices = rest;
                if mine.iter().any(|c| !(c.logprob.is_finite() && c.entropy.is_finite())) {
                    return Err(non_finite_logits(&held[i].0.to_string()));
                }
                out.push(Scores {
                    logprobs: mine.iter().map(|c| c.logprob).collect(),
                    entropies: mine.iter().map(|c| c.entropy).collect(),
                    weights: held[i].0.clone(),
                });
            }
        }
        Ok(out)
    }
}
