//! Publishing of adapters to samplers, and republishing after the server lost them.

use super::{
    archive::unpack_adapter,
    client::TinkerClient,
    codec,
    saved_state::copy_adapter,
    session::{SessionState, TrainingSession},
};
use crate::{Fingerprint, VllmPool};
use mage_engine::{Hint, Result, WeightVersion, WeightsId, WeightsName};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Published weights.
#[derive(Clone, Debug)]
pub(super) struct SamplerWeights {
    pub(super) version: WeightVersion,
    /// Path on the server.
    pub(super) path: String,
    /// Sampling session on the server.
    pub(super) session: String,
    /// Optimiser steps at the time of saving.
    pub(super) steps: u64,
    /// Fingerprint by the trainer.
    pub(super) fingerprint: Fingerprint,
}

/// Published weights by name.
#[derive(Debug, Default)]
pub(super) struct SamplerRegistry {
    weights: Mutex<BTreeMap<WeightsName, SamplerWeights>>,
    /// Steps taken so far, including undone ones. Only changes of the value matter.
    pub(super) steps: AtomicU64,
}

impl SamplerRegistry {
    pub(super) fn weights(&self) -> MutexGuard<'_, BTreeMap<WeightsName, SamplerWeights>> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrainingSession {
    /// Writes the adapter of the saved state, which equals the current one, into `dir`; a downloaded copy is reused.
    pub(super) fn fetch_adapter(&self, state: &mut SessionState, dir: &Path) -> Result<()> {
        match state.saved.as_ref().and_then(|saved| saved.adapter_dir.as_ref()) {
            // A directory that the pool no longer needs has been removed.
            Some(cached) if copy_adapter(cached, dir).is_ok() => Ok(()),
            _ => self.download(state, dir),
        }
    }

    /// Downloads the current adapter.
    fn download(&self, state: &mut SessionState, dir: &Path) -> Result<()> {
        let name = state.unique_name("adapter");
        let (id, name) = self.with_restore(state, async |model| {
            let name = self.client.save_for_sampler(model, &name).await?;
            Ok((model.id.clone(), name))
        })?;
        let packed = self.runtime.block_on(self.client.download_adapter(&id, &name))?;
        unpack_adapter(&packed, dir, &self.settings.adapter_base_name)?;
        self.runtime.block_on(self.client.delete_checkpoint(&TinkerClient::sampler_path(&id, &name)));
        Ok(())
    }

    /// Publishes the current weights to samplers.
    pub(super) fn publish_weights(
        &self,
        state: &mut SessionState,
        weights: &WeightsId,
        fingerprint: &Fingerprint,
    ) -> Result<()> {
        match &self.pool {
            Some(pool) => {
                let dir_name = format!("{}-{}-{}", weights.name, weights.version.0, state.unique_name("adapter"));
                let dir = self.settings.adapter_dir.join(dir_name);
                self.fetch_adapter(state, &dir)?;
                self.runtime.block_on(pool.push_adapter(weights, &dir, fingerprint))?;
                if let Some(saved) = &mut state.saved {
                    saved.adapter_dir = Some(dir);
                }
                self.remove_unused_adapters(pool, &state.tag);
                Ok(())
            }
            None => self.publish_to_server(state, weights, fingerprint),
        }
    }

    /// Removes directories of adapters that the pool no longer needs.
    pub(super) fn remove_unused_adapters(&self, pool: &VllmPool, tag: &str) {
        let in_use = pool.adapter_dirs();
        let entries = std::fs::read_dir(&self.settings.adapter_dir).into_iter().flatten().flatten();
        let dirs = entries.filter(|e| e.file_name().to_string_lossy().contains(tag)).map(|e| e.path());
        for dir in dirs.filter(|path| !in_use.contains(path)) {
            let _ = std::fs::remove_dir_all(dir);
        }
    }

    /// Publishes the weights for sampling on the training server itself.
    pub(super) fn publish_to_server(
        &self,
        state: &mut SessionState,
        weights: &WeightsId,
        fingerprint: &Fingerprint,
    ) -> Result<()> {
        let name = state.unique_name("sampler");
        let seq = state.name_counter;
        let tokens = Fingerprint::tokens(self.settings.vocab_size);
        let (path, session) = self.with_restore(state, async |model| {
            let path = TinkerClient::sampler_path(&model.id, &self.client.save_for_sampler(model, &name).await?);
            let session = self.client.create_sampling_session(TinkerClient::session_of(model), seq, &path).await?;
            let body = json!({
                "num_samples": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
                "sampling_params": {"max_tokens": 1, "seed": 0, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
                "sampling_session_id": session,
                "seq_id": 1,
                "prompt_logprobs": true,
                "topk_prompt_logprobs": 0,
                "type": "sample",
            });
            let response = self.client.sample(&body).await?;
            let all = parse_scores(&response, tokens.len()).map_err(|e| self.client.http.error(e))?;
            let found = Fingerprint(all[1..].to_vec());
            fingerprint.check(&found, self.settings.tolerance, self.client.http.address(), &weights.to_string())?;
            Ok((path, session))
        })?;
        let steps = self.registry.steps.load(Ordering::SeqCst);
        let published =
            SamplerWeights { version: weights.version, path, session, steps, fingerprint: fingerprint.clone() };
        let old = self.registry.weights().insert(weights.name.clone(), published);
        // Only the newest version of a name can be requested.
        if let Some(old) = old {
            self.runtime.block_on(self.client.delete_checkpoint(&old.path));
        }
        Ok(())
    }

    /// Republishes weights that the server no longer samples from. Of concurrent callers only the first does the work.
    /// Training is replayed only as far as the server lost it, and the version stays the same.
    pub(super) fn republish(&self, weights: &WeightsId, lost: &SamplerWeights, problem: &str) -> Result<()> {
        let mut state = self.state();
        let unchanged = |current: &SamplerWeights| current.session == lost.session;
        if !self.registry.weights().get(&weights.name).is_some_and(unchanged) {
            return Ok(());
        }
        if lost.steps != self.registry.steps.load(Ordering::SeqCst) {
            let problem = format!(
                "the server lost {weights} ({problem}) and training has advanced since, so the weights cannot be restored"
            );
            return Err(self.client.http.error(problem).with_hints(&[Hint::SampleOnPool]));
        }
        let id = |state: &SessionState| state.model.as_ref().map(|m| m.id.clone());
        let before = id(&state);
        self.publish_to_server(&mut state, weights, &lost.fingerprint)?;
        // A restore logs its own line.
        if id(&state) == before {
            let address = self.client.http.address();
            let line = format!("{address} lost {weights} for sampling ({problem}); published it again");
            self.client.http.status_log.log(line);
        }
        Ok(())
    }
}

/// Log-probs of a sequence in a response; 0 for the first token.
pub(super) fn parse_scores(response: &codec::SampleResponse, n: usize) -> std::result::Result<Vec<f32>, String> {
    let bytes = response.prompt_logprobs.as_ref().ok_or("no prompt log-probs in the response")?;
    let mut all = codec::floats(bytes)?;
    // Some servers include the first token, which has no log-prob.
    if all.len() + 1 == n {
        all.insert(0, 0.0);
    }
    if all.len() != n {
        return Err(format!("{} log-probs for {n} tokens", all.len()));
    }
    all[0] = 0.0;
    match all.iter().find(|l| !l.is_finite() || **l > 1e-3) {
        Some(bad) => Err(format!("invalid log-prob {bad}")),
        None => Ok(all),
    }
}
