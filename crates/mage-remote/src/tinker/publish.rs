//! How do weights get to those who sample, and get there again when the server lost them?

use super::{
    archive::unpack,
    client::TinkerClient,
    codec,
    saved_state::copy_adapter,
    session::{Shared, State},
};
use crate::{Fingerprint, VllmPool};
use mage_engine::{AdapterName, Result, WeightVersion, WeightsId};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
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
    /// The trainer's.
    pub(super) fingerprint: Fingerprint,
}

/// What can be sampled.
#[derive(Debug, Default)]
pub(super) struct Published {
    releases: Mutex<BTreeMap<AdapterName, Release>>,
    /// Steps taken so far, counting those undone: it only has to change.
    pub(super) steps: AtomicU64,
}

impl Published {
    pub(super) fn releases(&self) -> MutexGuard<'_, BTreeMap<AdapterName, Release>> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Puts the adapter of the kept state, which is that of now, into a folder: whoever wants it next copies it.
    pub(super) fn fetch(&self, state: &mut State, dir: &Path) -> Result<()> {
        match state.kept.as_ref().and_then(|kept| kept.adapter.as_ref()) {
            // A folder that the pool has let go of is gone.
            Some(here) if copy_adapter(here, dir).is_ok() => Ok(()),
            _ => self.download(state, dir),
        }
    }

    /// Has the server pack the adapter of now, and unpacks it here.
    fn download(&self, state: &mut State, dir: &Path) -> Result<()> {
        let name = state.name("adapter");
        let (id, name) = self.again(state, async |model| {
            let name = self.client.save_for_sampler(model, &name).await?;
            Ok((model.id.clone(), name))
        })?;
        let packed = self.runtime.block_on(self.client.archive(&id, &name))?;
        unpack(&packed, dir, &self.settings.base_folder)?;
        self.runtime.block_on(self.client.forget(&TinkerClient::sampler_path(&id, &name)));
        Ok(())
    }

    /// Shows the weights of now to whoever samples.
    pub(super) fn show(&self, state: &mut State, weights: &WeightsId, fingerprint: &Fingerprint) -> Result<()> {
        match &self.pool {
            Some(pool) => {
                let place = format!("{}-{}-{}", weights.name, weights.version.0, state.name("adapter"));
                let dir = self.settings.adapters.join(place);
                self.fetch(state, &dir)?;
                self.runtime.block_on(pool.push_adapter(weights, &dir, fingerprint))?;
                if let Some(kept) = &mut state.kept {
                    kept.adapter = Some(dir);
                }
                self.sweep(pool, &state.tag);
                Ok(())
            }
            None => self.show_here(state, weights, fingerprint),
        }
    }

    /// Removes folders of adapters that the pool has let go of.
    pub(super) fn sweep(&self, pool: &VllmPool, tag: &str) {
        let wanted = pool.folders();
        let there = std::fs::read_dir(&self.settings.adapters).into_iter().flatten().flatten();
        let ours = there.filter(|e| e.file_name().to_string_lossy().contains(tag)).map(|e| e.path());
        for folder in ours.filter(|path| !wanted.contains(path)) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    /// Shows them to whoever samples by the server itself.
    pub(super) fn show_here(&self, state: &mut State, weights: &WeightsId, fingerprint: &Fingerprint) -> Result<()> {
        let name = state.name("sampler");
        let seq = state.names;
        let tokens = Fingerprint::tokens(self.settings.vocabulary);
        let (path, session) = self.again(state, async |model| {
            let path = TinkerClient::sampler_path(&model.id, &self.client.save_for_sampler(model, &name).await?);
            let session = self.client.sampling_session(TinkerClient::session_of(model), seq, &path).await?;
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
            let all = read_scores(&response, tokens.len()).map_err(|e| self.client.wire.error(e))?;
            let theirs = Fingerprint(all[1..].to_vec());
            fingerprint.check(&theirs, self.settings.tolerance, self.client.wire.address(), &weights.to_string())?;
            Ok((path, session))
        })?;
        let steps = self.published.steps.load(Ordering::SeqCst);
        let release = Release { version: weights.version, path, session, steps, fingerprint: fingerprint.clone() };
        let old = self.published.releases().insert(weights.name.clone(), release);
        // A name means its newest weights here: nobody can ask for those before.
        if let Some(old) = old {
            self.runtime.block_on(self.client.forget(&old.path));
        }
        Ok(())
    }

    /// Has weights shown again that the server no longer samples from. Whoever comes second finds it done. Nothing is trained
    /// anew but what the server forgot, and the version stays what it was.
    pub(super) fn revive(&self, weights: &WeightsId, lost: &Release, problem: &str) -> Result<()> {
        let mut state = self.state();
        let same = |now: &Release| now.session == lost.session;
        if !self.published.releases().get(&weights.name).is_some_and(same) {
            return Ok(());
        }
        if lost.steps != self.published.steps.load(Ordering::SeqCst) {
            return Err(self.client.wire.error(format!(
                "it lost {weights} ({problem}), and training has gone on since: there is nothing to make it from; sample \
                 with vLLM (vllm.servers), which is given adapters again"
            )));
        }
        let id = |state: &State| state.model.as_ref().map(|m| m.id.clone());
        let before = id(&state);
        self.show_here(&mut state, weights, &lost.fingerprint)?;
        // Feeding has said so itself.
        if id(&state) == before {
            let address = self.client.wire.address();
            let line = format!("{address} no longer had {weights} for sampling ({problem}); it was given it again");
            self.client.wire.notices.say(line);
        }
        Ok(())
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
