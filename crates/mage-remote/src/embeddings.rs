//! How near are two texts, as a model sees it?
//!
//! `POST /v1/embeddings`. Texts are asked for once and remembered: a memory compares the same few again and again.

use crate::Client;
use mage_core::{Embeddings, Error, Result, cosine};
use mage_engine::Usage;
use mage_env::Seed;
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
/// Asking waits on the calling thread, which tokio is told about, so that others go on meanwhile. The runtime must be one of
/// several threads.
pub struct RemoteEmbeddings {
    client: Client,
    runtime: Handle,
    id: String,
    known: Mutex<HashMap<String, Arc<[f32]>>>,
}

impl RemoteEmbeddings {
    /// Asks through `client` on `runtime`.
    pub fn new(client: Client, runtime: Handle) -> mage_engine::Result<Self> {
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Err(mage_engine::Error::invalid("runtime", "embeddings need one of several threads"));
        }
        let id = format!("{} at {}", client.endpoint().model, client.endpoint().address());
        Ok(RemoteEmbeddings { client, runtime, id, known: Mutex::default() })
    }

    fn vectors(&self, texts: &[&str]) -> Result<Vec<Arc<[f32]>>> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<&str> = texts.iter().copied().filter(|t| !known().contains_key(*t)).collect();
        missing.sort_unstable();
        missing.dedup();
        for batch in missing.chunks(BATCH) {
            let asking = self.ask(batch);
            let found = tokio::task::block_in_place(|| self.runtime.block_on(asking))
                .map_err(|e| Error::Embeddings { problem: e.to_string() })?;
            known().extend(batch.iter().map(|t| (*t).to_owned()).zip(found.into_iter().map(Arc::from)));
        }
        let known = known();
        Ok(texts.iter().map(|t| Arc::clone(&known[*t])).collect())
    }

    async fn ask(&self, texts: &[&str]) -> mage_engine::Result<Vec<Vec<f32>>> {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(self.client.endpoint().model));
        body.insert("input".to_owned(), json!(texts));
        body.insert("encoding_format".to_owned(), json!("float"));
        let wanted = texts.len();
        let luck = Seed::new(0).child(texts.first().copied().unwrap_or_default());
        self.client
            .post("embeddings", body, luck, |answer: Embedded| {
                let mut all = vec![Vec::new(); wanted];
                for one in answer.data {
                    let place = all.get_mut(one.index).ok_or("it has more vectors than were asked for")?;
                    if one.embedding.iter().any(|x| !x.is_finite()) {
                        return Err("a vector has numbers that are none".to_owned());
                    }
                    *place = one.embedding;
                }
                let length = all.first().map_or(0, Vec::len);
                if length == 0 || all.iter().any(|v| v.len() != length) {
                    return Err("vectors are missing, empty, or of different lengths".to_owned());
                }
                let read = answer.usage.map_or(0, |u| u.prompt_tokens);
                Ok((all, Usage { prompt: read, answer: 0 }))
            })
            .await
    }
}

impl Embeddings for RemoteEmbeddings {
    fn id(&self) -> &str {
        &self.id
    }

    fn likeness(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>> {
        let all: Vec<&str> = std::iter::once(query).chain(documents.iter().copied()).collect();
        let vectors = self.vectors(&all)?;
        Ok(vectors[1..].iter().map(|d| cosine(&vectors[0], d)).collect())
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
