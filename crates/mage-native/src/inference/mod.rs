//! The inference engine: continuous batching over a paged, prefix-shared KV cache.
//!
//! A request passes [`admission`], becomes a [`sequence`], waits, runs and finishes in the [`scheduler`]. Each step of the
//! [`engine_loop`] schedules prefill and decode tokens, executes them on a [`backend`] and delivers results through
//! [`response`] handles. [`kv_cache`] manages blocks and finds shared prefixes.
//!
//! Results do not depend on batching: every sequence receives the tokens and log-probabilities that it would receive alone,
//! bit for bit (on a GPU only with `batch_invariant`, otherwise up to rounding). [`unbatched`] decodes one request at a time
//! and is the reference for the tests.

mod admission;
mod backend;
mod engine_loop;
mod kv_cache;
mod response;
pub(crate) mod sampling;
mod scheduler;
mod sequence;
mod unbatched;

pub(crate) use engine_loop::{GPU_PREFILL_TOKENS, MAX_RUNNING};
pub use response::TokenStream;
pub use scheduler::SamplerStats;

use crate::engine::EngineContext;
use crate::gpu::GpuModel;
use crate::machine::Machine;
use crate::weights::lora::NativeAdapter;
use engine_loop::{EngineCore, EngineRequest};
use mage_engine::model::BLOCK_SIZE;
use mage_engine::{
    BoxFuture, Error, LogprobsMode, Renderer, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest,
    Scores, WeightVersion, WeightsName,
};
use std::sync::Arc;

/// The native sampler. Clones share one engine.
#[derive(Clone)]
pub struct NativeSampler {
    shared: Arc<EngineContext>,
    caps: Arc<SamplerCaps>,
    core: Arc<EngineCore>,
}

impl NativeSampler {
    pub(crate) fn new(shared: Arc<EngineContext>) -> Result<Self> {
        let caps = SamplerCaps {
            logprobs: LogprobsMode::Both,
            batch_invariant: shared.gpu.is_none() || shared.options.batch_invariant,
            max_seq_len: shared.model.config.max_position_embeddings,
        };
        let core = EngineCore::new(&shared)?;
        Ok(NativeSampler { shared, caps: Arc::new(caps), core })
    }

    /// The model's tokenizer and chat template, if it has them.
    pub fn renderer(&self) -> Option<&Arc<Renderer>> {
        self.shared.renderer.as_ref()
    }

    /// Description of the device.
    pub fn device(&self) -> String {
        self.shared.gpu.as_ref().map_or_else(Machine::device, GpuModel::description)
    }

    /// Counters of the engine.
    pub fn stats(&self) -> SamplerStats {
        self.core.stats()
    }

    /// Capacity of the KV cache in tokens; a longer request (prompt and response) is rejected.
    pub fn kv_cache_tokens(&self) -> usize {
        self.core.stats().total_blocks as usize * BLOCK_SIZE
    }

    /// Samples a continuation and streams its tokens. The request is submitted at once, or when it is admitted (see
    /// [`EngineOptions::queue`](crate::EngineOptions::queue)), with the weights published now.
    pub fn stream(&self, request: SampleRequest) -> Result<TokenStream> {
        self.check(&request)?;
        let (id, weights) = self.shared.registry.get(&request.weights)?;
        Ok(TokenStream::new(self.core.submit(EngineRequest::Sample(request), id, weights, true)))
    }

    /// Publishes an adapter for this sampler's model under a name. Later requests that name it use it, batched with all
    /// others. Fails while the base weights themselves are being trained, since an adapter needs a frozen base.
    pub fn publish(&self, name: &WeightsName, adapter: &NativeAdapter) -> Result<WeightVersion> {
        if name.as_str() == WeightsName::BASE {
            return Err(Error::invalid(
                "weights `base`",
                "the name is reserved for the model without an adapter; choose another name",
            ));
        }
        if !adapter.fits(&self.shared.model.config) {
            return Err(Error::invalid(format!("adapter `{name}`"), "it was made for a model of another shape"));
        }
        let loaded = self.shared.adapter_on_base(&adapter.layout, &adapter.flat)?.ok_or_else(|| {
            let hint = "its base weights are in training; train an adapter instead, or open the model a second time";
            Error::unsupported("publish an adapter for this model", hint)
        })?;
        Ok(self.shared.registry.publish(name, Arc::new(loaded)))
    }

    fn check(&self, request: &SampleRequest) -> Result<()> {
        request.check(self.shared.model.config.vocab_size, self.caps.max_seq_len)?;
        if !request.params.stop_texts.is_empty() && self.shared.renderer.is_none() {
            return Err(Error::unsupported("stop at texts", "this model has no tokenizer; use stop_ids"));
        }
        Ok(())
    }
}

impl Sampler for NativeSampler {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    /// The request is submitted when this is called, with the weights published then; dropping the future cancels it. While
    /// [`EngineOptions::queue`](crate::EngineOptions::queue) requests are in flight, the future keeps the request and submits it when it
    /// is admitted, in FIFO order.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        let checked = self.check(&request).and_then(|()| self.shared.registry.get(&request.weights));
        match checked {
            Ok((id, weights)) => {
                let pending = self.core.submit(EngineRequest::Sample(request), id, weights, false);
                Box::pin(async move { pending.await.and_then(response::sample) })
            }
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }

    /// Submitted and cancelled like [`sample`](Sampler::sample).
    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        let vocab_size = self.shared.model.config.vocab_size;
        let checked =
            request.check(vocab_size, self.caps.max_seq_len).and_then(|()| self.shared.registry.get(&request.weights));
        match checked {
            Ok((id, _)) if request.from == request.tokens.len() => {
                Box::pin(std::future::ready(response::scores(engine_loop::no_scores(id))))
            }
            Ok((id, weights)) => {
                let pending = self.core.submit(EngineRequest::Score(request), id, weights, false);
                Box::pin(async move { pending.await.and_then(response::scores) })
            }
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }
}
