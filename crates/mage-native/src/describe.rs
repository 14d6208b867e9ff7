//! How large is a model, before it is loaded?

use crate::checkpoint::{self, Stored};
use crate::config::Config;
use crate::engine::{check_vocabulary, optional_tensors};
use crate::layout::Layout;
use mage_engine::{Renderer, Result};
use std::path::Path;
use std::sync::Arc;

/// What a model's files say of it; none of its numbers were read.
#[derive(Clone, Debug)]
pub struct Description {
    /// Its shape.
    pub config: Config,
    /// How many numbers it has.
    pub parameters: usize,
    /// Its tokenizer and template, where it has them.
    pub renderer: Option<Arc<Renderer>>,
    /// How its numbers are stored; `None` for a shape without any.
    pub stored: Option<Stored>,
}

impl Description {
    /// Reads a model folder, or a `config.json` by itself. A folder that does not fit together is refused.
    pub fn of(path: &Path) -> Result<Self> {
        if path.is_file() {
            return Ok(Self::of_shape(Config::read(path)?));
        }
        let config = Config::read(&path.join("config.json"))?;
        let renderer = match path.join("tokenizer.json").exists() {
            true => Some(Arc::new(Renderer::from_dir(path)?)),
            false => None,
        };
        check_vocabulary(&config, renderer.as_deref())?;
        let tensors = Layout::new(&config).tensors;
        let stored = checkpoint::survey_folder(path, &tensors, optional_tensors(&config))?;
        Ok(Description { renderer, stored: Some(stored), ..Self::of_shape(config) })
    }

    /// What a shape alone says.
    pub fn of_shape(config: Config) -> Self {
        let parameters = Layout::new(&config).len;
        Description { config, parameters, renderer: None, stored: None }
    }

    /// Memory for sampling: the numbers as they are and in the order products want them.
    pub fn sampling_bytes(&self) -> u64 {
        8 * self.parameters as u64
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
    use crate::config::tests::tiny;

    #[test]
    fn a_large_shape_is_described_without_being_made() {
        let config = Config {
            vocab_size: 151_936,
            hidden_size: 2560,
            intermediate_size: 9728,
            num_hidden_layers: 36,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            ..tiny()
        };
        let d = Description::of_shape(config);
        assert_eq!(d.parameters, 4_022_468_096, "as Qwen3-4B has");
        assert_eq!(d.training_bytes(), 28 * d.parameters as u64);
    }
}
