//! Model descriptions from file headers, without loading weights.

use crate::engine::{check_vocabulary, optional_tensors};
use crate::weights::checkpoint::{self, StoredWeights};
use crate::weights::hf_config::Config;
use mage_engine::{Renderer, Result};
use std::path::Path;
use std::sync::Arc;

/// A model's configuration, size and storage, read without its weights.
#[derive(Clone, Debug)]
pub struct ModelDescription {
    /// The configuration.
    pub config: Config,
    /// Number of parameters.
    pub parameters: usize,
    /// Tokenizer and chat template, if present.
    pub renderer: Option<Arc<Renderer>>,
    /// Storage of the weights; `None` if only a configuration was read.
    pub stored: Option<StoredWeights>,
}

impl ModelDescription {
    /// Reads a model directory or a single `config.json`. Fails if the files of a directory contradict each other.
    pub fn read(path: &Path) -> Result<Self> {
        if path.is_file() {
            return Ok(Self::from_config(Config::read(path)?));
        }
        let config = Config::read(&path.join("config.json"))?;
        let renderer = match path.join("tokenizer.json").exists() {
            true => Some(Arc::new(Renderer::from_dir(path)?)),
            false => None,
        };
        check_vocabulary(&config, renderer.as_deref())?;
        let tensors = config.param_layout().tensors;
        let stored = checkpoint::inspect_folder(path, &tensors, optional_tensors(&config))?;
        Ok(ModelDescription { renderer, stored: Some(stored), ..Self::from_config(config) })
    }

    /// The description of a configuration without files.
    pub fn from_config(config: Config) -> Self {
        let parameters = config.param_layout().len;
        ModelDescription { config, parameters, renderer: None, stored: None }
    }

    /// Weight memory for sampling: the flat parameters and the packed GEMM operands.
    pub fn sampling_bytes(&self) -> u64 {
        8 * self.parameters as u64
    }

    /// KV-cache bytes per token: keys and values of all layers.
    pub fn kv_bytes_per_token(&self) -> u64 {
        let c = &self.config;
        (8 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim) as u64
    }

    /// Activation bytes per token of a training pass: of all layers, or, with gradient checkpointing, of one layer plus every
    /// layer's input.
    pub fn activation_bytes_per_token(&self, recompute: bool) -> u64 {
        let (c, heads) = (&self.config, self.config.heads());
        let layer = 3 * c.hidden_size + heads.qkv() + heads.qk() + heads.out() + 3 * c.intermediate_size;
        let layers = if recompute { 1 } else { c.num_hidden_layers };
        (4 * (layers * layer + (c.num_hidden_layers + 1) * c.hidden_size)) as u64
    }

    /// Memory for training without activations: the sampler's weights, the trainer's flat and packed weights, the gradient
    /// and two moments.
    pub fn training_bytes(&self) -> u64 {
        self.sampling_bytes() + 20 * self.parameters as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::large;

    #[test]
    fn description_of_qwen3_4b_matches_known_sizes() {
        let d = ModelDescription::from_config(large());
        assert_eq!(d.parameters, 4_022_468_096);
        assert_eq!(d.training_bytes(), 28 * d.parameters as u64);
        // 36 layers, 8 KV heads of dimension 128, keys and values of 4 bytes.
        assert_eq!(d.kv_bytes_per_token(), 294_912);
        assert!(d.activation_bytes_per_token(true) * 10 < d.activation_bytes_per_token(false));
    }
}
