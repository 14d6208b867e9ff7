//! Server-side checkpoints: save, load, list, delete and download.
//!
//! Saving and loading have no sequence numbers. A checkpoint name is used only once, and an unconfirmed load is
//! repeated on a new model.

use super::{
    client::{RemoteModel, ResponseFormat, SubmitResponse, TinkerClient, TinkerError, TinkerResult},
    wait::PollWait,
};
use crate::{
    http::client::{HttpError, HttpRequest},
    http::retry::backoff,
};
use mage_engine::Result;
use mage_rng::Seed;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Limit of a downloaded adapter.
const MAX_ADAPTER_BYTES: usize = 64 << 30;

impl TinkerClient {
    /// Saves the training state under a new name; returns its path.
    pub(super) async fn save_state(&self, model: &RemoteModel, name: &str) -> TinkerResult<String> {
        let name = self.save("save_weights", model, name, "weights").await?;
        Ok(format!("tinker://{}/weights/{name}", model.id))
    }

    /// Saves the weights for samplers under a new name; returns the name used.
    pub(super) async fn save_for_sampler(&self, model: &RemoteModel, name: &str) -> TinkerResult<String> {
        self.save("save_weights_for_sampler", model, name, "sampler_weights").await
    }

    /// Path of saved sampler weights.
    pub(super) fn sampler_path(model: &str, name: &str) -> String {
        format!("tinker://{model}/sampler_weights/{name}")
    }

    /// Saves under `name`, or under a derived name if the save of the first was started and does not appear in time: a
    /// server that restarted in between has reserved the name, but the save will never finish. The repeated request
    /// also reports whether the server still has the model. The first checkpoint that appears is used, within the
    /// outage timeout.
    async fn save(&self, path: &str, model: &RemoteModel, name: &str, kind: &str) -> TinkerResult<String> {
        let (what, limit) = (format!("{path} of `{name}`"), self.http.timeouts.outage);
        // Leaves time for a second name.
        let timeout = self.http.timeouts.attempt.min(limit / 2);
        let (mut started, mut wait) = (Vec::<String>::new(), None);
        let saved = loop {
            let next = if started.is_empty() { name.to_owned() } else { format!("{name}-{}", started.len()) };
            let body = json!({"model_id": model.id, "path": next, "type": path});
            let text = match self.http.send_json::<SubmitResponse>(&HttpRequest::post(path, &body)).await {
                Ok(submitted) => {
                    self.wait_for_result(path, &submitted.request_id, ResponseFormat::Json).await?;
                    break next;
                }
                // The name is unique to this run: the server received the first request and its response was lost.
                Err(HttpError::Rejected(StatusCode::CONFLICT, text)) => text,
                Err(HttpError::Rejected(StatusCode::NOT_FOUND, text)) => {
                    return Err(TinkerError::ModelLost(format!("{path}: {text}")));
                }
                Err(error) => return Err(self.http.request_error(path, &error).into()),
            };
            started.push(next);
            // The limit counts from here; outages before have a limit of their own.
            let wait = wait.get_or_insert_with(|| PollWait::new(&self.http, &self.slow_threshold, &what, limit));
            if let Some(found) = wait.run(self.find_checkpoint(model, &started, kind, timeout)).await? {
                break found;
            }
            wait.retry(&format!("{text}, and the checkpoint is not listed")).await?;
            if started.len() == 1 {
                let (address, seconds) = (self.http.address(), timeout.as_secs_f64());
                self.http.status_log.log(format!(
                    "{address} did not finish checkpoint `{name}` within {seconds:.0} s; saving under another name"
                ));
            }
        };
        // The other saves have finished by now or never will.
        for spare in started.iter().filter(|name| **name != saved) {
            self.delete_checkpoint(&format!("tinker://{}/{kind}/{spare}", model.id)).await;
        }
        Ok(saved)
    }

    /// Waits until one of the started checkpoints is listed, for at most `timeout`.
    async fn find_checkpoint(
        &self,
        model: &RemoteModel,
        names: &[String],
        kind: &str,
        timeout: Duration,
    ) -> TinkerResult<Option<String>> {
        let (request, since) = (HttpRequest::get(format!("training_runs/{}/checkpoints", model.id)), Instant::now());
        let seed = Seed::new(0).child(&names[0]);
        for polls in 0.. {
            let list: Value = self.http.send_json(&request).await.map_err(|e| match e {
                HttpError::Rejected(StatusCode::NOT_FOUND, text) => {
                    TinkerError::ModelLost(format!("listing checkpoints: {text}"))
                }
                e => self.http.request_error("listing checkpoints", &e).into(),
            })?;
            let listed = list["checkpoints"].as_array().into_iter().flatten();
            let paths: Vec<&str> = listed.filter_map(|c| c["tinker_path"].as_str()).collect();
            let is_listed = |name: &&String| paths.iter().any(|p| p.ends_with(&format!("/{kind}/{name}")));
            if let Some(name) = names.iter().find(is_listed) {
                return Ok(Some(name.clone()));
            }
            if since.elapsed() >= timeout {
                break;
            }
            tokio::time::sleep(backoff(polls, None, seed)).await;
        }
        Ok(None)
    }

    /// Loads a saved state into a new model. Must not be repeated on the same model.
    pub(super) async fn load_state(&self, model: &RemoteModel, path: &str) -> TinkerResult<()> {
        let body = json!({"model_id": model.id, "path": path, "optimizer": true, "type": "load_weights"});
        let mut request = HttpRequest::post("load_weights", &body);
        request.accept = "application/json";
        let bytes = match self.http.send_once(&request).await {
            Ok(bytes) => bytes,
            Err(HttpError::Rejected(StatusCode::NOT_FOUND, text)) => return Err(self.load_error(path, text)),
            Err(last @ (HttpError::Rejected(..) | HttpError::Permanent(..))) => {
                return Err(self.http.request_error(&format!("loading {path}"), &last).into());
            }
            Err(error) => return Err(TinkerError::ModelLost(error.text())),
        };
        let submitted: SubmitResponse =
            serde_json::from_slice(&bytes).map_err(|e| TinkerError::ModelLost(e.to_string()))?;
        match self.wait_for_result("load_weights", &submitted.request_id, ResponseFormat::Json).await {
            Ok(_) => Ok(()),
            Err(TinkerError::ModelLost(text)) => Err(self.load_error(path, text)),
            Err(e) => Err(e),
        }
    }

    /// Classifies "not found" of a load: the state itself, which no restore brings back, or the model. SkyRL reports
    /// "Training checkpoint not found in …" for the former and "Model … not loaded" for the latter.
    fn load_error(&self, path: &str, text: String) -> TinkerError {
        match text.to_lowercase().contains("checkpoint") {
            true => TinkerError::Other(self.http.error(format!(
                "the server no longer has the state {path} ({text}): its checkpoint directory was cleared, or this is another \
                 server. Restore the directory, resume a run whose state it still has, or start a new run"
            ))),
            false => TinkerError::ModelLost(text),
        }
    }

    /// Deletes a checkpoint. Failures only cost disk space and are ignored.
    pub(super) async fn delete_checkpoint(&self, path: &str) {
        if let Some((model, rest)) = path.strip_prefix("tinker://").and_then(|p| p.split_once('/')) {
            let path = format!("training_runs/{model}/checkpoints/{rest}");
            let request = HttpRequest::new(Method::DELETE, path, None);
            let _ = self.http.send_once(&request).await;
        }
    }

    /// Downloads saved sampler weights as an archive.
    pub(super) async fn download_adapter(&self, model: &str, name: &str) -> Result<Vec<u8>> {
        let path = format!("training_runs/{model}/checkpoints/{name}/download");
        let request = HttpRequest { max_bytes: MAX_ADAPTER_BYTES, ..HttpRequest::get(path).long_running() };
        let (what, limit) = ("downloading an adapter", self.http.timeouts.operation);
        let mut wait = PollWait::new(&self.http, &self.slow_threshold, what, limit);
        wait.run(self.http.send(&request)).await.map_err(|t| self.http.request_error(what, &t))
    }
}
