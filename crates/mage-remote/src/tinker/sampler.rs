//! Which tokens come next, from the server that trains?
//!
//! SkyRL's JAX backend samples a model's saved weights by putting them in place of those in training. What was learned since
//! they were saved would be gone without a word, so that a request for them is refused once a step has been taken. A server
//! that lost the weights gets them from whoever trains, and is asked again.

use super::{
    Backend,
    client::{Lost, TinkerClient, read_sample},
    codec,
    publish::{Published, Release, read_scores},
    session::{FEEDINGS, Shared},
};
use mage_engine::{
    AdapterName, BoxFuture, Error, FinishReason, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest,
    Scores, WeightsId,
};
use serde_json::{Value, json};
use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// An answer that cannot be read is asked for so often.
const UNUSABLE: u32 = 3;

/// Samples through the training server.
pub struct TinkerSampler {
    client: TinkerClient,
    published: Arc<Published>,
    /// Whoever trains; it may be gone before us. Not kept alive here: its runtime must not end on one of ours.
    trainer: Weak<Shared>,
    /// Held by the one who has the server fed; others wait for that without a thread each.
    reviving: tokio::sync::Mutex<()>,
    backend: Backend,
    caps: SamplerCaps,
    vocabulary: usize,
    seq: AtomicU64,
}

impl fmt::Debug for TinkerSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TinkerSampler").field("client", &self.client).finish_non_exhaustive()
    }
}

impl TinkerSampler {
    pub(super) fn new(shared: &Arc<Shared>) -> Result<Self> {
        let settings = &shared.settings;
        Ok(TinkerSampler {
            // Connections of its own: samples are asked for from another runtime.
            client: shared.client.beside(&settings.server)?,
            published: Arc::clone(&shared.published),
            trainer: Arc::downgrade(shared),
            reviving: tokio::sync::Mutex::default(),
            backend: settings.backend,
            caps: settings.backend.sampler_caps(settings.max_seq_len),
            vocabulary: settings.vocabulary,
            seq: AtomicU64::new(0),
        })
    }

    fn resolve(&self, name: &AdapterName) -> Result<(WeightsId, Release)> {
        let releases = self.published.releases();
        let release = releases.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = releases.keys().map(AdapterName::as_str).collect();
            let problem = format!("nothing was published under that name; there is {}", known.join(", "));
            Error::invalid(format!("weights `{name}`"), problem)
        })?;
        if self.backend.samples_in_place() && release.steps != self.published.steps.load(Ordering::SeqCst) {
            return Err(Error::unsupported(
                format!("sample {name}@{} any more", release.version.0),
                "its server would put those weights in place of the ones in training; sample with vLLM (vllm.servers)",
            ));
        }
        Ok((WeightsId { name: name.clone(), version: release.version }, release))
    }

    /// Asks until the answer can be read; asking again does no harm.
    async fn usable<T>(
        &self,
        name: &AdapterName,
        tokens: &[u32],
        params: Value,
        scores: bool,
        read: impl Fn(&codec::SampleResponse) -> std::result::Result<T, String>,
    ) -> Result<(WeightsId, T)> {
        let mut first = None;
        for _ in 0..UNUSABLE {
            let (weights, response) = self.ask(name, tokens, params.clone(), scores).await?;
            match read(&response) {
                Ok(answer) => return Ok((weights, answer)),
                Err(e) => first = first.or(Some(e)),
            }
        }
        let first = first.unwrap_or_default();
        Err(self.client.wire.error(format!("asample: unusable answer, {UNUSABLE} times: {first}")))
    }

    /// Asks what follows tokens, or how likely they are, under the weights a name means.
    async fn ask(
        &self,
        name: &AdapterName,
        tokens: &[u32],
        params: Value,
        scores: bool,
    ) -> Result<(WeightsId, codec::SampleResponse)> {
        let mut first = None;
        for _ in 0..FEEDINGS {
            let (weights, release) = self.resolve(name)?;
            let body = json!({
                "num_samples": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
                "sampling_params": params,
                "sampling_session_id": release.session,
                "seq_id": self.seq.fetch_add(1, Ordering::Relaxed) + 1,
                "prompt_logprobs": scores,
                "topk_prompt_logprobs": 0,
                "type": "sample",
            });
            match self.client.sample(&body).await {
                Ok(response) => return Ok((weights, response)),
                Err(Lost::Error(e)) => return Err(e),
                Err(Lost::Model(problem)) => {
                    first.get_or_insert_with(|| problem.clone());
                    self.revive(weights, release, problem).await?;
                }
            }
        }
        let first = first.unwrap_or_default();
        Err(self.client.wire.error(format!("asample: it lost the weights {FEEDINGS} times in a row: {first}")))
    }

    /// Has whoever trains give the server the weights again.
    async fn revive(&self, weights: WeightsId, lost: Release, problem: String) -> Result<()> {
        let _one_at_a_time = self.reviving.lock().await;
        let (trainer, error) =
            (Weak::clone(&self.trainer), |e: String| self.client.wire.error(format!("asample: {e}")));
        // Feeding waits, and on a runtime of its own: not on a thread that others' requests need.
        let revived = tokio::task::spawn_blocking(move || {
            trainer.upgrade().map(|trainer| trainer.revive(&weights, &lost, &problem)).ok_or(problem)
        });
        match revived.await {
            Ok(Ok(revived)) => revived,
            Ok(Err(problem)) => Err(error(format!("{problem}, and whoever trained it has ended"))),
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
            request.check(self.vocabulary, self.caps.max_seq_len)?;
            let p = &request.params;
            if request.allowed.is_some() {
                let hint = "play without them: play.mask_actions = false";
                return Err(Error::unsupported("sample with masks", hint));
            }
            if !p.stop_texts.is_empty() || p.min_p > 0.0 {
                return Err(Error::unsupported("stop at texts or filter by min_p", "give token ids to stop at"));
            }
            let number = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
            let room = (self.caps.max_seq_len - request.prompt.len()) as u32;
            let params = json!({
                "max_tokens": p.max_tokens.min(room),
                "seed": p.seed >> 33,
                "stop": p.stop_ids,
                "temperature": number(p.temperature),
                "top_k": if p.top_k == 0 { -1 } else { i64::from(p.top_k) },
                "top_p": number(p.top_p),
            });
            let asked = self.usable(&request.weights, &request.prompt, params, false, read_sample).await?;
            let (weights, (tokens, logprobs, stopped)) = asked;
            let finish = if stopped { FinishReason::Stop } else { FinishReason::Length };
            Ok(Sample { processed_logprobs: logprobs.clone(), tokens, logprobs, finish, weights })
        })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            request.check(self.vocabulary, self.caps.max_seq_len)?;
            if request.allowed.iter().any(Option::is_some) {
                let hint = "play without them: play.mask_actions = false";
                return Err(Error::unsupported("score with masks", hint));
            }
            let params = json!({"max_tokens": 1, "seed": 0, "temperature": 1.0, "top_k": -1, "top_p": 1.0});
            let read = |response: &codec::SampleResponse| read_scores(response, request.tokens.len());
            let (weights, all) = self.usable(&request.weights, &request.tokens, params, true, read).await?;
            Ok(Scores { logprobs: all[request.from..].to_vec(), entropies: Vec::new(), weights })
        })
    }
}
