//! The `config.json` of a Qwen3 model.
//!
//! Reads the formats of transformers 4 and 5: `rope_theta` at the top level or in `rope_parameters`, `torch_dtype` or
//! `dtype`. Both are written, because each reader requires one of them.

use crate::cpu::Heads;
use mage_engine::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

/// The configuration of a Qwen3 model, with the field names of `transformers`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding matrix.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads.
    pub num_key_value_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Epsilon of RMS normalisation.
    pub rms_norm_eps: f32,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Whether the LM head shares the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Maximum sequence length.
    pub max_position_embeddings: usize,
    /// Beginning-of-sequence token.
    pub bos_token_id: Option<u32>,
    /// End-of-sequence tokens.
    pub eos_token_ids: Vec<u32>,
}

impl Config {
    /// Reads a `config.json`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::read(path))?;
        Self::parse(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))
    }

    /// Reads the text of a `config.json`.
    pub fn parse(text: &str) -> Result<Self> {
        let v: Value = serde_json::from_str(text).map_err(|e| Error::invalid("config", e.to_string()))?;
        let wrong = |field: &str, problem: String| Error::invalid(format!("config: {field}"), problem);
        match v["model_type"].as_str() {
            Some("qwen3") => {}
            Some(other) => {
                return Err(wrong("model_type", format!("`{other}` is not supported; only dense `qwen3` is")));
            }
            None => return Err(wrong("model_type", "missing; it should be `qwen3`".to_owned())),
        }
        let count = |field: &str| match &v[field] {
            Value::Null => Err(wrong(field, "missing".to_owned())),
            n => n.as_u64().map(|n| n as usize).ok_or_else(|| wrong(field, format!("{n} is not a count"))),
        };
        let count_or = |field: &str, default: usize| if v[field].is_null() { Ok(default) } else { count(field) };
        let fixed = |field: &str, want: Value| match &v[field] {
            Value::Null => Ok(()),
            found if *found == want => Ok(()),
            found => Err(wrong(field, format!("{found} is not supported, only {want} is"))),
        };
        fixed("hidden_act", json!("silu"))?;
        fixed("attention_bias", json!(false))?;
        fixed("use_sliding_window", json!(false))?;
        let rope = [&v["rope_parameters"], &v["rope_scaling"]];
        for (r, field) in rope.iter().zip(["rope_parameters", "rope_scaling"]) {
            let kind = r["rope_type"].as_str().or(r["type"].as_str());
            if let Some(kind) = kind.filter(|k| *k != "default") {
                return Err(wrong(field, format!("`{kind}` is not supported, only `default` is")));
            }
        }
        let rope_theta = [&v["rope_theta"], &rope[0]["rope_theta"]].iter().find_map(|t| t.as_f64()).unwrap_or(10_000.0);
        let heads = count("num_attention_heads")?;
        let hidden = count("hidden_size")?;
        let ids = |field: &str| -> Vec<u32> {
            let one = |x: &Value| x.as_u64().and_then(|x| u32::try_from(x).ok());
            match &v[field] {
                Value::Array(many) => many.iter().filter_map(one).collect(),
                x => one(x).into_iter().collect(),
            }
        };
        let config = Config {
            vocab_size: count("vocab_size")?,
            hidden_size: hidden,
            intermediate_size: count("intermediate_size")?,
            num_hidden_layers: count("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: count_or("num_key_value_heads", heads)?,
            head_dim: count_or("head_dim", 128)?,
            rms_norm_eps: v["rms_norm_eps"].as_f64().unwrap_or(1e-6) as f32,
            rope_theta,
            tie_word_embeddings: v["tie_word_embeddings"].as_bool().unwrap_or(false),
            max_position_embeddings: count_or("max_position_embeddings", 32_768)?,
            bos_token_id: ids("bos_token_id").first().copied(),
            eos_token_ids: ids("eos_token_id"),
        };
        config.check()?;
        Ok(config)
    }

    /// Checks the values; errors name the field.
    pub fn check(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size, 1 << 24),
            ("hidden_size", self.hidden_size, 1 << 16),
            ("intermediate_size", self.intermediate_size, 1 << 18),
            ("num_hidden_layers", self.num_hidden_layers, 1 << 10),
            ("num_attention_heads", self.num_attention_heads, 1 << 10),
            ("num_key_value_heads", self.num_key_value_heads, 1 << 10),
            ("head_dim", self.head_dim, 512),
            ("max_position_embeddings", self.max_position_embeddings, 1 << 24),
        ];
        let wrong = |field: &str, problem: String| Err(Error::invalid(format!("config: {field}"), problem));
        for (field, n, max) in sizes {
            if n == 0 || n > max {
                return wrong(field, format!("{n} is not between 1 and {max}"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let (q, kv) = (self.num_attention_heads, self.num_key_value_heads);
            return wrong("num_key_value_heads", format!("{kv} does not divide the {q} attention heads"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return wrong(
                "head_dim",
                format!("{} is odd; the rotary embedding needs an even dimension", self.head_dim),
            );
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0) {
            return wrong("rope_theta", format!("{} is not a positive number", self.rope_theta));
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps > 0.0) {
            return wrong("rms_norm_eps", format!("{} is not a positive number", self.rms_norm_eps));
        }
        Ok(())
    }

    /// The text of a `config.json` for transformers 4 and 5.
    pub(crate) fn to_json(&self, dtype: &str) -> String {
        let eos = match &self.eos_token_ids[..] {
            [] => Value::Null,
            [one] => json!(one),
            many => json!(many),
        };
        let value = json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": false,
            "attention_dropout": 0.0,
            // The shortest decimal of the f32 value, not the expansion of its f64 conversion.
            "rms_norm_eps": self.rms_norm_eps.to_string().parse().unwrap_or(f64::from(self.rms_norm_eps)),
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
            "use_sliding_window": false,
            "sliding_window": null,
            "layer_types": vec!["full_attention"; self.num_hidden_layers],
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
            "torch_dtype": dtype,
            "dtype": dtype,
            "use_cache": true,
        });
        format!("{value:#}\n")
    }

    pub(crate) fn heads(&self) -> Heads {
        Heads { q: self.num_attention_heads, kv: self.num_key_value_heads, dim: self.head_dim }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tiny() -> Config {
        Config {
            vocab_size: 29,
            hidden_size: 32,
            intermediate_size: 48,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 16,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            tie_word_embeddings: true,
            max_position_embeddings: 128,
            bos_token_id: None,
            eos_token_ids: vec![1, 2],
        }
    }

    /// The sizes of Qwen3-4B.
    pub(crate) fn large() -> Config {
        Config {
            vocab_size: 151_936,
            hidden_size: 2560,
            intermediate_size: 9728,
            num_hidden_layers: 36,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            ..tiny()
        }
    }

    #[test]
    fn parsing_inverts_writing() {
        let config = tiny();
        let text = config.to_json("float32");
        assert_eq!(Config::parse(&text).unwrap(), config);
        let v: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(v["rope_theta"], v["rope_parameters"]["rope_theta"]);
        assert_eq!(v["dtype"], v["torch_dtype"]);
        assert_eq!(v["rms_norm_eps"], json!(1e-6));
    }

    #[test]
    fn rope_theta_is_read_from_both_locations() {
        let mut v: Value = serde_json::from_str(&tiny().to_json("float32")).unwrap();
        v["rope_theta"] = Value::Null;
        v["rope_parameters"] = json!({"rope_theta": 5e5, "rope_type": "default"});
        assert_eq!(Config::parse(&v.to_string()).unwrap().rope_theta, 5e5);
        v["rope_theta"] = json!(7e5);
        v["rope_parameters"] = Value::Null;
        assert_eq!(Config::parse(&v.to_string()).unwrap().rope_theta, 7e5);
    }

    #[test]
    fn invalid_fields_are_named_in_errors() {
        let base: Value = serde_json::from_str(&tiny().to_json("float32")).unwrap();
        let refusals = [
            ("model_type", json!("llama")),
            ("hidden_size", Value::Null),
            ("hidden_size", json!(0)),
            ("hidden_size", json!(-3)),
            ("num_key_value_heads", json!(3)),
            ("head_dim", json!(7)),
            ("attention_bias", json!(true)),
            ("hidden_act", json!("gelu")),
            ("rope_scaling", json!({"rope_type": "yarn"})),
            ("vocab_size", json!(1_u64 << 40)),
        ];
        for (field, value) in refusals {
            let mut v = base.clone();
            v[field] = value.clone();
            let e = Config::parse(&v.to_string()).unwrap_err().to_string();
            assert!(e.contains(field), "{field} = {value}: {e}");
        }
        assert!(Config::parse("[").is_err());
    }
}
