//! How large is a model, before it is loaded?

use crate::engine::{check_vocabulary, optional_tensors};
use crate::model::param_layout::ParamLayout;
use crate::weights::checkpoint::{self, StoredWeights};
use crate::weights::hf_config::Config;
use mage_engine::{Renderer, Result};
use std::path::Path;
use std::sync::Arc;

/// What a model's files say of it; none of its numbers were read.
#[derive(Clone, Debug)]
pub struct ModelDescription {
    /// Its shape.
    pub config: Config,
    /// How many numbers it has.
    pub parameters: usize,
    /// Its tokenizer and template, where it has them.
    pub renderer: Option<Arc<Renderer>>,
    /// How its numbers are stored; `None` for a shape without any.
    pub stored: Option<StoredWeights>,
}

impl ModelDescription {
    /// Reads a model folder, or a `config.json` by itself. A folder that does not fit together is refused.
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
        let tensors = ParamLayout::new(&config).tensors;
        let stored = checkpoint::survey_folder(path, &tensors, optional_tensors(&config))?;
        Ok(ModelDescription { renderer, stored: Some(stored), ..Self::from_config(config) })
    }

    /// What a shape alone says.
    pub fn from_config(config: Config) -> Self {
        let parameters = ParamLayout::new(&config).len;
        ModelDescription { config, parameters, renderer: None, stored: None }
    }

    /// Memory for sampling: the numbers as they are and in the order products want them.
    pub fn sampling_bytes(&self) -> u64 {
        8 * self.parameters as u64
    }

    /// What a sampler's cache keeps of one token: its keys and values in every layer.
    pub fn kv_bytes_per_token(&self) -> u64 {
        let c = &self.config;
        (8 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim) as u64
    }

    /// What a training pass keeps of one token: all layers' intermediate results, or, where they are computed again in the
    /// backward pass, every layer's input and one layer's results.
    pub fn activation_bytes_per_token(&self, recompute: bool) -> u64 {
        let (c, heads) = (&self.config, self.config.heads());
        let layer = 3 * c.hidden_size + heads.qkv() + heads.qk() + heads.out() + 3 * c.intermediate_size;
        let layers = if recompute { 1 } else { c.num_hidden_layers };
        (4 * (layers * layer + (c.num_hidden_layers + 1) * c.hidden_size)) as u64
    }

    /// Memory for training, without what a pass remembers of its tokens: a sampler's, the trainer's own weights in both
    /// orders, a gradient and two moments.
    pub fn training_bytes(&self) -> u64 {
        self.sampling_bytes() + 20 * self.parameters as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::large;

    #[test]
    fn a_large_shape_is_described_without_being_made() {
        let d = ModelDescription::from_config(large());
        assert_eq!(d.parameters, 4_022_468_096, "as Qwen3-4B has");
        assert_eq!(d.training_bytes(), 28 * d.parameters as u64);
        // 36 layers, 8 heads of 128 numbers, keys and values of 4 bytes.
        assert_eq!(d.kv_bytes_per_token(), 294_912);
        assert!(d.activation_bytes_per_token(true) * 10 < d.activation_bytes_per_token(false));
    }
}
