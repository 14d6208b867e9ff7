//! Sampling on the training server.
//!
//! SkyRL's JAX backend samples saved weights of a model by loading them in place of the weights in training, which
//! would silently discard later training. So a request for older weights is rejected once a step has been taken. If the
//! server lost the weights, the trainer publishes them again and the request is retried.

use super::{
    TinkerBackend,
    client::{TinkerClient, TinkerError, parse_sample},
    codec,
    publish::{SamplerRegistry, SamplerWeights, parse_scores},
    session::{MAX_RESTORES, TrainingSession},
};
use mage_engine::{
    BoxFuture, Error, FinishReason, Hint, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest, Scores,
    WeightsId, WeightsName,
};
use serde_json::{Value, json};
use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// Attempts for a response that cannot be parsed.
const PARSE_ATTEMPTS: u32 = 3;

/// Samples on the training server.
pub struct TinkerSampler {
    client: TinkerClient,
    registry: Arc<SamplerRegistry>,
    /// The trainer's session. Weak, since its runtime must not be dropped on one of our threads.
    session: Weak<TrainingSession>,
    /// Serialises republishing; other requests wait without blocking a thread.
    republishing: tokio::sync::Mutex<()>,
    backend: TinkerBackend,
    caps: SamplerCaps,
    vocab_size: usize,
    seq: AtomicU64,
}

impl fmt::Debug for TinkerSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TinkerSampler").field("client", &self.client).finish_non_exhaustive()
    }
}

impl TinkerSampler {
    pub(super) fn new(session: &Arc<TrainingSession>) -> Result<Self> {
        let settings = &session.settings;
        Ok(TinkerSampler {
            // Connections of its own, since sampling runs on another runtime.
            client: session.client.with_own_connections(&settings.server)?,
            registry: Arc::clone(&session.registry),
            session: Arc::downgrade(session),
            republishing: tokio::sync::Mutex::default(),
            backend: settings.backend,
            caps: settings.backend.sampler_caps(settings.max_seq_len),
            vocab_size: settings.vocab_size,
            seq: AtomicU64::new(0),
        })
    }

    fn resolve(&self, name: &WeightsName) -> Result<(WeightsId, SamplerWeights)> {
        let all = self.registry.weights();
        let published = all.get(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = all.keys().map(WeightsName::as_str).collect();
            let problem = format!("not published; available: {}", names.join(", "));
            Error::invalid(format!("weights `{name}`"), problem)
        })?;
        if self.backend.sampling_replaces_weights() && published.steps != self.registry.steps.load(Ordering::SeqCst) {
            let what = format!("sample {name}@{} after a later step", published.version.0);
            return Err(Error::unsupported(what, "its server would replace the weights in training")
                .with_hints(&[Hint::SampleOnPool]));
        }
        Ok((WeightsId { name: name.clone(), version: published.version }, published))
    }

    /// Retries until the response can be parsed. Requests are idempotent.
    async fn request_parsed<T>(
        &self,
        name: &WeightsName,
        tokens: &[u32],
        params: Value,
        scores: bool,
        read: impl Fn(&codec::SampleResponse) -> std::result::Result<T, String>,
    ) -> Result<(WeightsId, T)> {
        let mut first = None;
        for _ in 0..PARSE_ATTEMPTS {
            let (weights, response) = self.request(name, tokens, params.clone(), scores).await?;
            match read(&response) {
                Ok(parsed) => return Ok((weights, parsed)),
                Err(e) => first = first.or(Some(e)),
            }
        }
        let first = first.unwrap_or_default();
        Err(self.client.http.error(format!("asample: invalid response, {PARSE_ATTEMPTS} times: {first}")))
    }

    /// Sends a sampling or scoring request for named weights, and restores lost weights.
    async fn request(
        &self,
        name: &WeightsName,
        tokens: &[u32],
        params: Value,
        scores: bool,
    ) -> Result<(WeightsId, codec::SampleResponse)> {
        let mut first = None;
        for _ in 0..MAX_RESTORES {
            let (weights, published) = self.resolve(name)?;
            let body = json!({
                "num_samples": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
                "sampling_params": params,
                "sampling_session_id": published.session,
                "seq_id": self.seq.fetch_add(1, Ordering::Relaxed) + 1,
                "prompt_logprobs": scores,
                "topk_prompt_logprobs": 0,
                "type": "sample",
            });
            match self.client.sample(&body).await {
                Ok(response) => return Ok((weights, response)),
                Err(TinkerError::Other(e)) => return Err(e),
                Err(TinkerError::ModelLost(problem)) => {
                    first.get_or_insert_with(|| problem.clone());
                    self.republish(weights, published, problem).await?;
                }
            }
        }
        let first = first.unwrap_or_default();
        Err(self
            .client
            .http
            .error(format!("asample: the server lost the weights {MAX_RESTORES} times in a row: {first}")))
    }

    /// Makes the trainer publish lost weights again.
    async fn republish(&self, weights: WeightsId, lost: SamplerWeights, problem: String) -> Result<()> {
        let _one_at_a_time = self.republishing.lock().await;
        let (session, error) =
            (Weak::clone(&self.session), |e: String| self.client.http.error(format!("asample: {e}")));
        // Restoring blocks on the trainer's runtime, so it must not run on a thread that requests need.
        let republished = tokio::task::spawn_blocking(move || {
            session.upgrade().map(|session| session.republish(&weights, &lost, &problem)).ok_or(problem)
        });
        match republished.await {
            Ok(Ok(result)) => result,
            Ok(Err(problem)) => Err(error(format!("{problem}, and its trainer has been dropped"))),
            Err(e) => Err(error(e.to_string())),
        }
    }
}

impl Sampler for TinkerSampler {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move {
            request.check(self.vocab_size, self.caps.max_seq_len)?;
            let p = &request.params;
            if request.allowed.is_some() {
                return Err(Error::unsupported("sample with action masks", "the protocol has none")
                    .with_hints(&[Hint::DisableActionMasks]));
            }
            if !p.stop_texts.is_empty() || p.min_p > 0.0 {
                return Err(Error::unsupported("use stop texts or min_p", "use stop token ids and top_p"));
            }
            let number = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
            let max_new = (self.caps.max_seq_len - request.prompt.len()) as u32;
            let params = json!({
                "max_tokens": p.max_tokens.min(max_new),
                "seed": p.seed >> 33,
                "stop": p.stop_ids,
                "temperature": number(p.temperature),
                "top_k": if p.top_k == 0 { -1 } else { i64::from(p.top_k) },
                "top_p": number(p.top_p),
            });
            let response = self.request_parsed(&request.weights, &request.prompt, params, false, parse_sample).await?;
            let (weights, (tokens, logprobs, stopped)) = response;
            let finish = if stopped { FinishReason::Stop } else { FinishReason::Length };
            Ok(Sample { processed_logprobs: logprobs.clone(), tokens, logprobs, finish, weights })
        })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            request.check(self.vocab_size, self.caps.max_seq_len)?;
            if request.allowed.iter().any(Option::is_some) {
                return Err(Error::unsupported("score with action masks", "the protocol has none")
                    .with_hints(&[Hint::DisableActionMasks]));
            }
            let params = json!({"max_tokens": 1, "seed": 0, "temperature": 1.0, "top_k": -1, "top_p": 1.0});
            let read = |response: &codec::SampleResponse| parse_scores(response, request.tokens.len());
            let (weights, all) = self.request_parsed(&request.weights, &request.tokens, params, true, read).await?;
            Ok(Scores { logprobs: all[request.from..].to_vec(), entropies: Vec::new(), weights })
        })
    }
}
