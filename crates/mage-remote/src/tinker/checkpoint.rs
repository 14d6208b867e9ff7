//! How does a server keep what was learned, and give it back?
//!
//! Saving and loading carry no sequence numbers: a checkpoint has a name used once, and a load that was not confirmed is done
//! over with a fresh model.

use super::{
    client::{Answer, Done, Lost, Model, Submitted, TinkerClient},
    wait::Wait,
};
use crate::{
    http::client::{HttpError, HttpRequest},
    http::retry::pause,
};
use mage_engine::Result;
use mage_rng::Seed;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

impl TinkerClient {
    /// Keeps the state of training under a name that was never used before; returns its path.
    pub(super) async fn save_state(&self, model: &Model, name: &str) -> Done<String> {
        let name = self.save("save_weights", model, name, "weights").await?;
        Ok(format!("tinker://{}/weights/{name}", model.id))
    }

    /// Keeps the weights for samplers under a name that was never used before; returns the name they got.
    pub(super) async fn save_for_sampler(&self, model: &Model, name: &str) -> Done<String> {
        self.save("save_weights_for_sampler", model, name, "sampler_weights").await
    }

    /// Where weights for samplers are kept.
    pub(super) fn sampler_path(model: &str, name: &str) -> String {
        format!("tinker://{model}/sampler_weights/{name}")
    }

    /// Saves under a name, or under one made from it where that one was begun and is not there after a while: a server that was
    /// started anew in the middle remembers the name, and nobody is there to finish it. Asked again it says whether it has the
    /// model. Whichever comes to be is taken, for as long as a server is waited for.
    async fn save(&self, path: &str, model: &Model, name: &str, kind: &str) -> Done<String> {
        let (what, limit) = (format!("{path} of `{name}`"), self.wire.waiting.away);
        // Another name must have its chance, too.
        let soon = self.wire.waiting.attempt.min(limit / 2);
        let (mut begun, mut wait) = (Vec::<String>::new(), None);
        let saved = loop {
            let next = if begun.is_empty() { name.to_owned() } else { format!("{name}-{}", begun.len()) };
            let body = json!({"model_id": model.id, "path": next, "type": path});
            let text = match self.wire.json::<Submitted>(&HttpRequest::post(path, &body)).await {
                Ok(submitted) => {
                    self.result(path, &submitted.request_id, Answer::Json).await?;
                    break next;
                }
                // The name is ours alone: it heard us before, and only its answer was lost.
                Err(HttpError::Refused(StatusCode::CONFLICT, text)) => text,
                Err(HttpError::Refused(StatusCode::NOT_FOUND, text)) => {
                    return Err(Lost::Model(format!("{path}: {text}")));
                }
                Err(trouble) => return Err(self.failed(path, &trouble).into()),
            };
            begun.push(next);
            // From here on: that the server was away has a limit of its own.
            let wait = wait.get_or_insert_with(|| Wait::new(&self.wire, &self.slow, &what, limit));
            if let Some(there) = wait.watch(self.comes_to_be(model, &begun, kind, soon)).await? {
                break there;
            }
            wait.again(&format!("{text}, and it is not listed")).await?;
            if begun.len() == 1 {
                let (address, seconds) = (self.wire.address(), soon.as_secs_f64());
                self.wire.notices.say(format!(
                    "{address} has begun checkpoint `{name}` and not finished it within {seconds:.0} s; saving under another name"
                ));
            }
        };
        // By now they are finished, or never will be.
        for spare in begun.iter().filter(|name| **name != saved) {
            self.forget(&format!("tinker://{}/{kind}/{spare}", model.id)).await;
        }
        Ok(saved)
    }

    /// Which of some checkpoints that were begun is there `soon`.
    async fn comes_to_be(&self, model: &Model, names: &[String], kind: &str, soon: Duration) -> Done<Option<String>> {
        let (ask, started) = (HttpRequest::get(format!("training_runs/{}/checkpoints", model.id)), Instant::now());
        let luck = Seed::new(0).child(&names[0]);
        for looks in 0.. {
            let list: Value = self.wire.json(&ask).await.map_err(|t| match t {
                HttpError::Refused(StatusCode::NOT_FOUND, text) => Lost::Model(format!("listing checkpoints: {text}")),
                t => self.failed("listing checkpoints", &t).into(),
            })?;
            let listed = list["checkpoints"].as_array().into_iter().flatten();
            let paths: Vec<&str> = listed.filter_map(|c| c["tinker_path"].as_str()).collect();
            let there = |name: &&String| paths.iter().any(|p| p.ends_with(&format!("/{kind}/{name}")));
            if let Some(name) = names.iter().find(there) {
                return Ok(Some(name.clone()));
            }
            if started.elapsed() >= soon {
                break;
            }
            tokio::time::sleep(pause(looks, None, luck)).await;
        }
        Ok(None)
    }

    /// Puts a saved state into a fresh model. Not to be tried again on the same one.
    pub(super) async fn load_state(&self, model: &Model, path: &str) -> Done<()> {
        let body = json!({"model_id": model.id, "path": path, "optimizer": true, "type": "load_weights"});
        let mut ask = HttpRequest::post("load_weights", &body);
        ask.accept = "application/json";
        let bytes = match self.wire.once(&ask).await {
            Ok(bytes) => bytes,
            Err(HttpError::Refused(StatusCode::NOT_FOUND, text)) => return Err(self.not_loaded(path, text)),
            Err(last @ (HttpError::Refused(..) | HttpError::Never(_))) => {
                return Err(self.failed(&format!("loading {path}"), &last).into());
            }
            Err(trouble) => return Err(Lost::Model(trouble.text())),
        };
        let submitted: Submitted = serde_json::from_slice(&bytes).map_err(|e| Lost::Model(e.to_string()))?;
        match self.result("load_weights", &submitted.request_id, Answer::Json).await {
            Ok(_) => Ok(()),
            Err(Lost::Model(text)) => Err(self.not_loaded(path, text)),
            Err(e) => Err(e),
        }
    }

    /// What is not found when a state is loaded: the state, which no feeding brings back, or the model. SkyRL says "Training
    /// checkpoint not found in …" of the one and "Model … not loaded" of the other.
    fn not_loaded(&self, path: &str, text: String) -> Lost {
        match text.to_lowercase().contains("checkpoint") {
            true => Lost::Error(self.wire.error(format!(
                "the state it kept at {path} is gone ({text}): was its folder of checkpoints emptied, or is this another \
                 server? Put the folder back, resume a run whose checkpoint it still has, or start anew"
            ))),
            false => Lost::Model(text),
        }
    }

    /// Removes a checkpoint; one that is gone already is fine, and one that will not go costs only space.
    pub(super) async fn forget(&self, path: &str) {
        if let Some((model, rest)) = path.strip_prefix("tinker://").and_then(|p| p.split_once('/')) {
            let path = format!("training_runs/{model}/checkpoints/{rest}");
            let ask = HttpRequest { method: Method::DELETE, path, body: None, accept: "*/*", long: false };
            let _ = self.wire.once(&ask).await;
        }
    }

    /// The adapter of saved sampler weights, as a packed archive.
    pub(super) async fn archive(&self, model: &str, name: &str) -> Result<Vec<u8>> {
        let ask = HttpRequest::get(format!("training_runs/{model}/checkpoints/{name}/download")).long();
        let (what, limit) = ("fetching an adapter", self.wire.waiting.operation);
        let mut wait = Wait::new(&self.wire, &self.slow, what, limit);
        wait.watch(self.wire.ask(&ask)).await.map_err(|t| self.failed(what, &t))
    }
}
