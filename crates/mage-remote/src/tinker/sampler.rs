//! Which tokens come next, from the server that trains?
//!
//! SkyRL's JAX backend samples a model's saved weights by putting them in place of those in training. What was learned since
//! they were saved would be gone without a word, so that a request for them is refused once a step has been taken.

use super::{
    Backend,
    client::{Client, Lost, read_sample},
    codec,
};
use mage_engine::{
    AdapterName, BoxFuture, Error, FinishReason, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest,
    Scores, WeightVersion, WeightsId,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// One published set of weights.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) version: WeightVersion,
    /// Where the server keeps it.
    pub(super) path: String,
    /// The sampling session on the server.
    pub(super) session: String,
    /// Steps taken when it was saved.
    pub(super) steps: u64,
}

/// What trainer and sampler share.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) releases: Mutex<BTreeMap<AdapterName, Release>>,
    /// Steps taken so far, counting those undone: it only has to change.
    pub(super) steps: AtomicU64,
}

/// Samples through the training server.
#[derive(Debug)]
pub struct TinkerSampler {
    pub(super) client: Client,
    pub(super) published: Arc<Published>,
    pub(super) backend: Backend,
    pub(super) caps: SamplerCaps,
    pub(super) vocabulary: usize,
    pub(super) seq: AtomicU64,
}

impl TinkerSampler {
    fn resolve(&self, name: &AdapterName) -> Result<(WeightsId, Release)> {
        let releases = self.published.releases.lock().unwrap_or_else(PoisonError::into_inner);
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

    async fn ask(&self, session: &str, tokens: &[u32], params: Value, scores: bool) -> Result<codec::SampleResponse> {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        let body = json!({
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
            "sampling_params": params,
            "sampling_session_id": session,
            "seq_id": seq,
            "prompt_logprobs": scores,
            "topk_prompt_logprobs": 0,
            "type": "sample",
        });
        self.client.sample(&body).await.map_err(|lost| match lost {
            Lost::Error(e) => e,
            Lost::Model(problem) => self.client.wire.error(format!("asample: {problem}")),
        })
    }
}

/// The scores of a sequence out of an answer; 0 for the first token.
pub(super) fn read_scores(response: &codec::SampleResponse, n: usize) -> std::result::Result<Vec<f32>, String> {
    let bytes = response.prompt_logprobs.as_ref().ok_or("it has no prompt log-probabilities")?;
    let mut all = codec::floats(bytes)?;
    // Some count the first token, which has none, and some do not.
    if all.len() + 1 == n {
        all.insert(0, 0.0);
    }
    if all.len() != n {
        return Err(format!("{} scores for {n} tokens", all.len()));
    }
    all[0] = 0.0;
    match all.iter().find(|l| !l.is_finite() || **l > 1e-3) {
        Some(bad) => Err(format!("a log-probability is {bad}")),
        None => Ok(all),
    }
}

impl Sampler for TinkerSampler {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move {
            request.check(self.vocabulary, self.caps.max_context)?;
            let p = &request.params;
            if request.allowed.is_some() {
                let hint = "play without them: play.mask_actions = false";
                return Err(Error::unsupported("sample with masks", hint));
            }
            if !p.stop_texts.is_empty() || p.min_p > 0.0 {
                return Err(Error::unsupported("stop at texts or filter by min_p", "give token ids to stop at"));
            }
            let (weights, release) = self.resolve(&request.weights)?;
            let number = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
            let room = (self.caps.max_context - request.prompt.len()) as u32;
            let params = json!({
                "max_tokens": p.max_tokens.min(room),
                "seed": p.seed >> 33,
                "stop": p.stop_ids,
                "temperature": number(p.temperature),
                "top_k": if p.top_k == 0 { -1 } else { i64::from(p.top_k) },
                "top_p": number(p.top_p),
            });
            let response = self.ask(&release.session, &request.prompt, params, false).await?;
            let read = read_sample(&response);
            let (tokens, logprobs, stopped) =
                read.map_err(|e| self.client.wire.error(format!("asample: unusable answer: {e}")))?;
            let finish = if stopped { FinishReason::Stop } else { FinishReason::Length };
            Ok(Sample { drawn_logprobs: logprobs.clone(), tokens, logprobs, finish, weights })
        })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            request.check(self.vocabulary, self.caps.max_context)?;
            if request.allowed.iter().any(Option::is_some) {
                let hint = "play without them: play.mask_actions = false";
                return Err(Error::unsupported("score with masks", hint));
            }
            let (weights, release) = self.resolve(&request.weights)?;
            let params = json!({"max_tokens": 1, "seed": 0, "temperature": 1.0, "top_k": -1, "top_p": 1.0});
            let response = self.ask(&release.session, &request.tokens, params, true).await?;
            let all = read_scores(&response, request.tokens.len());
            let all = all.map_err(|e| self.client.wire.error(format!("asample: unusable answer: {e}")))?;
            Ok(Scores { logprobs: all[request.from..].to_vec(), entropies: Vec::new(), weights })
        })
    }
}
