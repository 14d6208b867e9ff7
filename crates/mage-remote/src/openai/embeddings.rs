//! Client of `POST /v1/embeddings`.
//!
//! Vectors are cached by text, because a memory compares the same few texts repeatedly.

use super::OpenAiClient;
use mage_engine::{Error, Result};
use mage_rng::Seed;
use serde::Deserialize;
use serde_json::{Map, json};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::runtime::{Handle, RuntimeFlavor};

/// Texts per request.
const BATCH_SIZE: usize = 64;
/// Limit of a response: 64 vectors of 16,384 numbers.
const MAX_RESPONSE_BYTES: usize = 32 << 20;

/// An embedding model behind an endpoint.
///
/// Requests block the calling thread inside `block_in_place`, so the runtime must be multi-threaded.
pub struct RemoteEmbeddings {
    client: OpenAiClient,
    runtime: Handle,
    id: String,
    cache: Mutex<HashMap<String, Arc<[f32]>>>,
}

impl RemoteEmbeddings {
    /// Sends requests through `client` on `runtime`.
    pub fn new(client: OpenAiClient, runtime: Handle) -> Result<Self> {
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Err(Error::invalid("runtime", "embeddings need a multi-threaded runtime"));
        }
        let id = format!("{} at {}", client.endpoint().model, client.endpoint().address());
        Ok(RemoteEmbeddings { client, runtime, id, cache: Mutex::default() })
    }

    /// The model and address, to identify the embeddings in a method's hash.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// One vector per text, all of the same length.
    pub fn embed(&self, texts: &[&str]) -> Result<Vec<Arc<[f32]>>> {
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<&str> = texts.iter().copied().filter(|t| !cache().contains_key(*t)).collect();
        missing.sort_unstable();
        missing.dedup();
        for batch in missing.chunks(BATCH_SIZE) {
            let found = tokio::task::block_in_place(|| self.runtime.block_on(self.request(batch)))?;
            cache().extend(batch.iter().map(|t| (*t).to_owned()).zip(found.into_iter().map(Arc::from)));
        }
        let cache = cache();
        Ok(texts.iter().map(|t| Arc::clone(&cache[*t])).collect())
    }

    async fn request(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(self.client.endpoint().model));
        body.insert("input".to_owned(), json!(texts));
        body.insert("encoding_format".to_owned(), json!("float"));
        let expected = texts.len();
        let seed = Seed::new(0).child(texts.first().copied().unwrap_or_default());
        self.client
            .post("embeddings", body, seed, MAX_RESPONSE_BYTES, |response: EmbeddingsResponse| {
                let mut all = vec![Vec::new(); expected];
                for item in response.data {
                    let vector = all.get_mut(item.index).ok_or("the response has more vectors than requested")?;
                    if item.embedding.iter().any(|x| !x.is_finite()) {
                        return Err("a vector has non-finite values".to_owned());
                    }
                    *vector = item.embedding;
                }
                let length = all.first().map_or(0, Vec::len);
                if length == 0 || all.iter().any(|v| v.len() != length) {
                    return Err("vectors are missing, empty, or of different lengths".to_owned());
                }
                Ok(all)
            })
            .await
    }
}

#[derive(Deserialize)]
struct EmbeddingsResponse {
    data: Vec<EmbeddingItem>,
}

#[derive(Deserialize)]
struct EmbeddingItem {
    index: usize,
    embedding: Vec<f32>,
}
