//! Text similarity from an embedding model behind an endpoint.

use mage_core::{Embeddings, Error, Result, cosine};
use mage_remote::RemoteEmbeddings;

/// Cosine similarity of the vectors of a [`RemoteEmbeddings`] model.
pub struct EndpointEmbeddings(pub RemoteEmbeddings);

impl Embeddings for EndpointEmbeddings {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn similarity(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>> {
        let all: Vec<&str> = std::iter::once(query).chain(documents.iter().copied()).collect();
        let vectors = self.0.embed(&all).map_err(|e| Error::Embeddings {
            rejected: matches!(e, mage_engine::Error::Rejected { .. }),
            problem: crate::explain(&e),
        })?;
        Ok(vectors[1..].iter().map(|d| cosine(&vectors[0], d)).collect())
    }
}
