//! Which tokens come next?
//!
//! All requests are worked on at once, sharing what their beginnings have in common, and each gets exactly the tokens and
//! log-probabilities it would get alone: every kernel gives a row the same bits in any company (on a card where that is asked
//! for, else to rounding).
//!
//! `schedule` decides who goes next and `prefix` what need not be computed again; both know pages and tokens as numbers.
//! `device` is what they ask of a device, `execute` how the CPU does it, `cuda` how a card does, `drive` who calls whom and when, `door` how many
//! are taken in, `ticket` how answers get back, `active` where each request stands. `plain` does one request at a time without any of this, and is
//! what all of it is tested against.

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

use crate::cpu::BLOCK_SIZE;
use crate::engine::Shared;
use crate::gpu::GpuModel;
use crate::machine::Machine;
use crate::weights::lora::NativeAdapter;
use engine_loop::{EngineCore, EngineRequest};
use mage_engine::{
    AdapterName, BoxFuture, Error, LogProbs, Renderer, Result, Sample, SampleRequest, Sampler, SamplerCaps,
    ScoreRequest, Scores, WeightVersion,
};
use std::sync::Arc;

/// The embedded sampler. Clones share everything.
#[derive(Clone)]
pub struct NativeSampler {
    shared: Arc<Shared>,
    caps: Arc<SamplerCaps>,
    core: Arc<EngineCore>,
}

impl NativeSampler {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self> {
        let caps = SamplerCaps {
            engine: "native".to_owned(),
            token_ids: true,
            logprobs: LogProbs::Both,
            masks: true,
            stop_texts: shared.renderer.is_some(),
            batch_invariant: shared.gpu.is_none() || shared.options.batch_invariant,
            max_context: shared.model.config.max_position_embeddings,
        };
        let core = EngineCore::new(&shared)?;
        Ok(NativeSampler { shared, caps: Arc::new(caps), core })
    }

    /// The model's tokenizer and template, where it has them.
    pub fn renderer(&self) -> Option<&Arc<Renderer>> {
        self.shared.renderer.as_ref()
    }

    /// What computes, in words.
    pub fn device(&self) -> String {
        self.shared.gpu.as_ref().map_or_else(Machine::device, GpuModel::description)
    }

    /// What has happened so far.
    pub fn stats(&self) -> SamplerStats {
        self.core.stats()
    }

    /// How many tokens, prompt and answer together, the longest request may have for which the cache has room.
    pub fn kv_cache_tokens(&self) -> usize {
        self.core.stats().total_blocks as usize * BLOCK_SIZE
    }

    /// Continues a prompt and shows each token as it comes. Work starts at once, or when there is room (see
    /// [`Options::queue`](crate::Options::queue)), with the weights published now.
    pub fn stream(&self, request: SampleRequest) -> Result<TokenStream> {
        self.check(&request)?;
        let (id, weights) = self.shared.registry.get(&request.weights)?;
        Ok(TokenStream::new(self.core.submit(EngineRequest::Sample(request), id, weights, true)))
    }

    /// Shows an adapter on this sampler's model under a name: requests from now on that name it are answered with it, in
    /// one batch with all others. Where the model's own numbers are being trained, there is nothing that stays below an
    /// adapter, and it is refused.
    pub fn publish(&self, name: &AdapterName, adapter: &NativeAdapter) -> Result<WeightVersion> {
        if name.as_str() == AdapterName::BASE {
            return Err(Error::invalid("weights `base`", "that is the model without an adapter; choose another name"));
        }
        if !adapter.fits(&self.shared.model.config) {
            return Err(Error::invalid(format!("adapter `{name}`"), "it was made for a model of another shape"));
        }
        let loaded = self.shared.adapter_on_base(&adapter.layout, &adapter.flat)?.ok_or_else(|| {
            let hint = "its own numbers are in training; train an adapter, or open the model a second time";
            Error::unsupported("put an adapter on this model", hint)
        })?;
        Ok(self.shared.registry.publish(name, Arc::new(loaded)))
    }

    fn check(&self, request: &SampleRequest) -> Result<()> {
        request.check(self.shared.model.config.vocab_size, self.caps.max_context)?;
        if !request.params.stop_texts.is_empty() && self.shared.renderer.is_none() {
            return Err(Error::unsupported("stop at texts", "this model has no tokenizer; give stop_ids"));
        }
        Ok(())
    }
}

impl Sampler for NativeSampler {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    /// Work starts when this is called, with the weights published then; dropping the future gives the request up. Where
    /// as many requests as [`Options::queue`](crate::Options::queue) are under way, the future keeps the request and hands
    /// it in when there is room, first come, first served.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        let begun = self.check(&request).and_then(|()| self.shared.registry.get(&request.weights));
        match begun {
            Ok((id, weights)) => {
                let pending = self.core.submit(EngineRequest::Sample(request), id, weights, false);
                Box::pin(async move { pending.await.and_then(response::sample) })
            }
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }

    /// As for [`sample`](Sampler::sample).
    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        let vocabulary = self.shared.model.config.vocab_size;
        let begun =
            request.check(vocabulary, self.caps.max_context).and_then(|()| self.shared.registry.get(&request.weights));
        match begun {
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
