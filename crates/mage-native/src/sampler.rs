//! Which tokens come next, plainly?
//!
//! One request at a time with a cache of its own. Its tokens and log-probabilities are those of a whole forward pass, bit
//! for bit: every kernel gives a row the same bits in any company.

use crate::batch::{Chunk, Prediction};
use crate::draw;
use crate::engine::Shared;
use crate::kernels::{Choice, Kernels, Target};
use crate::model::Workspace;
use mage_engine::{
    ActionSet, BoxFuture, Error, FinishReason, LogProbs, Renderer, Result, Sample, SampleRequest, Sampler, SamplerCaps,
    ScoreRequest, Scores,
};
use mage_env::Seed;
use rayon::prelude::*;
use std::sync::Arc;

/// The embedded sampler. Clones share everything.
#[derive(Clone)]
pub struct NativeSampler {
    shared: Arc<Shared>,
    caps: Arc<SamplerCaps>,
}

impl NativeSampler {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let caps = SamplerCaps {
            engine: "native".to_owned(),
            token_ids: true,
            logprobs: LogProbs::Both,
            masks: true,
            stop_texts: shared.renderer.is_some(),
            batch_invariant: true,
            max_context: shared.model.config.max_position_embeddings,
        };
        NativeSampler { shared, caps: Arc::new(caps) }
    }

    /// The model's tokenizer and template, where it has them.
    pub fn renderer(&self) -> Option<&Arc<Renderer>> {
        self.shared.renderer.as_ref()
    }

    /// Samples on the calling thread, telling `each` of every token as it comes.
    pub fn generate(&self, request: &SampleRequest, mut each: impl FnMut(u32) + Send) -> Result<Sample> {
        let Shared { model, renderer, published, pool, .. } = &*self.shared;
        let vocabulary = model.config.vocab_size;
        request.check(vocabulary, self.caps.max_context)?;
        if !request.params.stop_texts.is_empty() && renderer.is_none() {
            return Err(Error::unsupported("stop at texts", "this model has no tokenizer; give stop_ids"));
        }
        let (id, weights) = published.get(&request.weights)?;
        let most = (request.params.max_tokens as usize).min(self.caps.max_context - request.prompt.len());
        let mut sample = Sample {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            drawn_logprobs: Vec::new(),
            finish: FinishReason::Length,
            weights: id,
        };
        pool.install(|| {
            let mut cache = model.cache(request.prompt.len() + most);
            let mut workspace = Workspace::new(&model.kernels);
            let mut logits = Vec::new();
            let mut cursor = request.allowed.as_ref().map(ActionSet::start);
            model.extend(&weights, &request.prompt, &mut cache, &mut workspace, &mut logits);
            for i in 0..most {
                let mut rng = Seed::new(request.params.seed).child("sample").at(i as u64).rng();
                let allowed = cursor.as_ref().and_then(|c| c.allowed().cloned());
                let drawn = draw::draw(&logits, allowed.as_deref(), &request.params, &mut rng)
                    .ok_or_else(|| not_finite(&sample.weights.to_string()))?;
                let mut choice = [Choice::default()];
                let target = Target { token: drawn.token, allowed: allowed.as_ref() };
                model.kernels.distribution(&logits, vocabulary, &[target], &mut choice);
                sample.tokens.push(drawn.token);
                sample.logprobs.push(choice[0].logprob);
                sample.drawn_logprobs.push(drawn.logprob);
                each(drawn.token);
                let complete = cursor.as_mut().is_some_and(|c| {
                    c.advance(drawn.token);
                    c.complete()
                });
                if complete
                    || request.params.stop_ids.contains(&drawn.token)
                    || self.stop_text(request, &sample.tokens)?
                {
                    sample.finish = FinishReason::Stop;
                    break;
                }
                if i + 1 < most {
                    model.extend(&weights, &[drawn.token], &mut cache, &mut workspace, &mut logits);
                }
            }
            Ok(sample)
        })
    }

    /// The logits after a prompt, before any mask.
    pub fn logits(&self, request: &SampleRequest) -> Result<Vec<f32>> {
        let Shared { model, published, pool, .. } = &*self.shared;
        request.check(model.config.vocab_size, self.caps.max_context)?;
        let (_, weights) = published.get(&request.weights)?;
        let mut logits = Vec::new();
        pool.install(|| {
            let mut cache = model.cache(request.prompt.len());
            let mut workspace = Workspace::new(&model.kernels);
            model.extend(&weights, &request.prompt, &mut cache, &mut workspace, &mut logits);
        });
        Ok(logits)
    }

    fn stop_text(&self, request: &SampleRequest, tokens: &[u32]) -> Result<bool> {
        match &self.shared.renderer {
            Some(r) if !request.params.stop_texts.is_empty() => {
                let text = r.decode_all(tokens)?;
                Ok(request.params.stop_texts.iter().any(|s| text.contains(s)))
            }
            _ => Ok(false),
        }
    }

    /// Scores many requests at once, in chunks side by side. Each gets the bits it would get alone.
    pub fn score_all(&self, requests: &[ScoreRequest]) -> Result<Vec<Scores>> {
        let Shared { model, published, pool, .. } = &*self.shared;
        let mut held = Vec::with_capacity(requests.len());
        for (i, r) in requests.iter().enumerate() {
            r.check(model.config.vocab_size, self.caps.max_context).map_err(|e| {
                if requests.len() > 1 { Error::invalid(format!("request {i}"), e.to_string()) } else { e }
            })?;
            held.push(published.get(&r.weights)?);
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
        let kernels = if groups.len() > 1 { model.kernels.alone() } else { model.kernels };
        let scored: Vec<Vec<Choice>> = pool.install(|| {
            groups
                .par_iter()
                .map_init(
                    || Workspace::new(&kernels),
                    |workspace, (range, chunk)| {
                        let mut choices = Vec::with_capacity(chunk.predictions.len());
                        model.score(&kernels, &held[range.start].1, chunk, workspace, &mut choices);
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

fn not_finite(weights: &str) -> Error {
    Error::invalid(
        format!("weights {weights}"),
        "their logits are not finite numbers; go back to an earlier checkpoint",
    )
}

impl Sampler for NativeSampler {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move { self.generate(&request, |_| ()) })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move { Ok(self.score_all(&[request])?.remove(0)) })
    }
}
