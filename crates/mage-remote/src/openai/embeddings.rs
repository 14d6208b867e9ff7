//! OpenAiClient of `POST /v1/embeddings`.
//!
//! Vectors are cached by text, because a memory compares the same few texts repeatedly.

use super::OpenAiClient;
use mage_engine::{ChatUsage, Error, Result};
use mage_rng::Seed;
use serde::Deserialize;
use serde_json::{Map, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::runtime::{Handle, RuntimeFlavor};

/// How many texts one request carries.
const BATCH: usize = 64;

/// An embedding model behind an endpoint.
///
/// Requests block the calling thread inside `block_in_place`, so the runtime must be multi-threaded.
pub struct RemoteEmbeddings {
    client: OpenAiClient,
    runtime: Handle,
    id: String,
    known: Mutex<HashMap<String, Arc<[f32]>>>,
}

impl RemoteEmbeddings {
    /// Sends requests through `client` on `runtime`.
    pub fn new(client: OpenAiClient, runtime: Handle) -> Result<Self> {
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Err(Error::invalid("runtime", "embeddings need a multi-threaded runtime"));
        }
        let id = format!("{} at {}", client.endpoint().model, client.endpoint().address());
        Ok(RemoteEmbeddings { client, runtime, id, known: Mutex::default() })
    }

    /// The model and address, to identify the embeddings in a method's hash.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// One vector per text, all of the same length.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Arc<[f32]>>> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<&str> = texts.iter().copied().filter(|t| !known().contains_key(*t)).collect();
        missing.sort_unstable();
        missing.dedup();
        for batch in missing.chunks(BATCH) {
            let found = tokio::task::block_in_place(|| self.runtime.block_on(self.request(batch)))?;
            known().extend(batch.iter().map(|t| (*t).to_owned()).zip(found.into_iter().map(Arc::from)));
        }
        let known = known();
        Ok(texts.iter().map(|t| Arc::clone(&known[*t])).collect())
    }

    async fn request(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(self.client.endpoint().model));
        body.insert("input".to_owned(), json!(texts));
        body.insert("encoding_format".to_owned(), json!("float"));
        let wanted = texts.len();
        let seed = Seed::new(0).child(texts.first().copied().unwrap_or_default());
        self.client
            .post("embeddings", body, seed, |answer: Embedded| {
                let mut all = vec![Vec::new(); wanted];
                for one in answer.data {
                    let place = all.get_mut(one.index).ok_or("the response has more vectors than requested")?;
                    if one.embedding.iter().any(|x| !x.is_finite()) {
                        return Err("a vector has non-finite values".to_owned());
                    }
                    *place = one.embedding;
                }
                let length = all.first().map_or(0, Vec::len);
                if length == 0 || all.iter().any(|v| v.len() != length) {
                    return Err("vectors are missing, empty, or of different lengths".to_owned());
                }
                let read = answer.usage.map_or(0, |u| u.prompt_tokens);
                Ok((all, ChatUsage { prompt_tokens: read, completion_tokens: 0 }))
            })
            .await
    }
}

#[derive(Deserialize)]
struct Embedded {
    data: Vec<One>,
    #[serde(default)]
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct One {
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct Counts {
    #[serde(default)]
    prompt_tokens: u64,
}
