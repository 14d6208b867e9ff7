//! Arguments of the benchmarks: `key=value…`, with the keys of `benches/peers`.

use mage_native::Config;
use std::collections::HashMap;
use std::error::Error;

/// Numbers by key.
pub(crate) struct Arguments(HashMap<String, usize>);

impl Arguments {
    /// Parses the command line.
    pub(crate) fn parse() -> Result<Self, Box<dyn Error>> {
        let pair = |a: String| {
            let (k, v) = a.split_once('=').ok_or_else(|| format!("`{a}` is not key=value"))?;
            Ok((k.to_owned(), v.parse()?))
        };
        std::env::args().skip(1).map(pair).collect::<Result<_, _>>().map(Arguments)
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str, default: usize) -> usize {
        self.0.get(key).copied().unwrap_or(default)
    }

    /// The shape of the model.
    pub(crate) fn config(&self) -> Config {
        let get = |key, default| self.get(key, default);
        Config {
            vocab_size: get("v", 512),
            hidden_size: get("d", 128),
            intermediate_size: get("ff", 384),
            num_hidden_layers: get("l", 4),
            num_attention_heads: get("h", 4),
            num_key_value_heads: get("kv", 2),
            head_dim: get("hd", 32),
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            tie_word_embeddings: true,
            max_position_embeddings: 4096,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
        }
    }
}
