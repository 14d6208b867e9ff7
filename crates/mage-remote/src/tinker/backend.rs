//! What can the engine behind the protocol do?
//!
//! The protocol has no words for it, so a recipe names the backend and this file says what that one offers, from reading and
//! probing SkyRL 0.4.0. A calibration at the start measures the part that would corrupt training without a word.

use mage_engine::{LogprobsMode, Reduction, SamplerCaps, TrainerCaps};
use serde::{Deserialize, Serialize};

/// The dialect spoken: the SDK version whose messages these are. Other dialects differ on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Named")]
pub enum Dialect {
    /// SDK 0.25, which SkyRL 0.4.0 speaks.
    #[default]
    #[serde(rename = "0.25")]
    V0_25,
}

/// A dialect as people write it: with quotes or without.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Number(f64),
}

impl TryFrom<Named> for Dialect {
    type Error = String;

    fn try_from(named: Named) -> Result<Self, String> {
        let name = match named {
            Named::Text(text) => text,
            Named::Number(number) => number.to_string(),
        };
        match name.as_str() {
            "0.25" => Ok(Dialect::V0_25),
            other => Err(format!("the dialect {other} is not spoken here; `0.25` is")),
        }
    }
}

impl Dialect {
    /// The version as the handshake sends it.
    pub fn version(self) -> &'static str {
        match self {
            Dialect::V0_25 => "0.25.0",
        }
    }
}

/// Who computes behind the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// SkyRL's JAX backend: one machine, also without a GPU.
    #[default]
    Jax,
    /// SkyRL on PyTorch FSDP, over Ray.
    Fsdp,
    /// SkyRL on Megatron, over Ray.
    Megatron,
    /// A hosted service that keeps to the protocol's contract: losses are sums.
    Hosted,
}

impl Backend {
    /// How token costs become one number.
    pub fn reduction(self) -> Reduction {
        match self {
            // Each row's cost over the sum of its weights, over the number of rows since the last step.
            Backend::Jax => Reduction::SequenceMean,
            Backend::Fsdp | Backend::Megatron | Backend::Hosted => Reduction::TokenSum,
        }
    }

    /// What adapters add is multiplied by this over the rank; no request changes it.
    pub fn alpha(self) -> f32 {
        32.0
    }

    /// Whether adapters can be fetched from it. What FSDP keeps for samplers is the whole model with the adapter in it. Megatron's is
    /// an adapter when SkyRL is started with `merge_lora` off, as `mage launch` does. Hosted services send whoever asks to
    /// another host, which nobody here has tried.
    pub fn gives_adapters(self) -> bool {
        matches!(self, Backend::Jax | Backend::Megatron)
    }

    /// Whether a request's learning rate alone counts, and the rest of the optimiser's settings are those of the server's start.
    pub(crate) fn has_own_optimiser(self) -> bool {
        matches!(self, Backend::Fsdp | Backend::Megatron)
    }

    /// Whether sampling an older version of a model puts that version in place of the one in training.
    pub(crate) fn samples_in_place(self) -> bool {
        self == Backend::Jax
    }

    /// Whether a gradient stays in the place of a model that was let go of.
    pub(crate) fn adds_up_by_place(self) -> bool {
        self == Backend::Jax
    }

    /// Whether the same work on the same numbers gives the same.
    pub(crate) fn is_reproducible(self) -> bool {
        self == Backend::Jax
    }

    /// What a trainer over it offers.
    pub fn trainer_caps(self, max_seq_len: usize) -> TrainerCaps {
        TrainerCaps {
            engine: self.name(),
            cross_entropy: true,
            importance_sampling: true,
            ppo: true,
            dual_clip: false,
            // The GPU backends of SkyRL 0.4.0 take CISPO's name and not its bounds, which stay those of their start.
            cispo: matches!(self, Backend::Jax | Backend::Hosted),
            entropy: false,
            kl: Vec::new(),
            masks: false,
            grad_clipping: self != Backend::Jax,
            reduction: self.reduction(),
            reproducible: self.is_reproducible(),
            max_seq_len,
        }
    }

    /// What sampling over it offers.
    pub fn sampler_caps(self, max_seq_len: usize) -> SamplerCaps {
        SamplerCaps {
            engine: self.name(),
            token_ids: true,
            logprobs: LogprobsMode::Processed,
            masks: false,
            stop_texts: false,
            batch_invariant: false,
            max_seq_len,
        }
    }

    fn name(self) -> String {
        let backend = match self {
            Backend::Jax => "jax",
            Backend::Fsdp => "fsdp",
            Backend::Megatron => "megatron",
            Backend::Hosted => "hosted",
        };
        format!("tinker ({backend})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_dialect_is_named_with_quotes_or_without() {
        let read = |v: Value| serde_json::from_value::<Dialect>(v).map_err(|e| e.to_string());
        assert_eq!((read(json!("0.25")), read(json!(0.25))), (Ok(Dialect::V0_25), Ok(Dialect::V0_25)));
        assert!(read(json!(0.36)).unwrap_err().contains("the dialect 0.36 is not spoken here"));
        assert_eq!(serde_json::to_value(Dialect::V0_25).unwrap(), "0.25");
    }
}
