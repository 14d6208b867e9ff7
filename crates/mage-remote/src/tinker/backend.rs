//! Capabilities of the backends behind the Tinker protocol.
//!
//! The protocol does not report them, so a recipe names the backend. The capabilities come from the source and tests of
//! SkyRL 0.4.0. A calibration at start-up measures the part that would silently corrupt training.

use mage_engine::{LogprobsMode, Reduction, SamplerCaps, TrainerCaps};
use serde::{Deserialize, Serialize};

/// SDK version of the protocol; versions differ on the http.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SdkVersionField")]
pub enum SdkVersion {
    /// SDK 0.25, used by SkyRL 0.4.0.
    #[default]
    #[serde(rename = "0.25")]
    V0_25,
}

/// An SDK version in a recipe, quoted or not.
#[derive(Deserialize)]
#[serde(untagged)]
enum SdkVersionField {
    Text(String),
    Number(f64),
}

impl TryFrom<SdkVersionField> for SdkVersion {
    type Error = String;

    fn try_from(field: SdkVersionField) -> Result<Self, String> {
        let version = match field {
            SdkVersionField::Text(text) => text,
            SdkVersionField::Number(number) => number.to_string(),
        };
        match version.as_str() {
            "0.25" => Ok(SdkVersion::V0_25),
            other => Err(format!("unsupported SDK version {other}; supported: `0.25`")),
        }
    }
}

impl SdkVersion {
    /// The version sent in the handshake.
    pub fn as_str(self) -> &'static str {
        match self {
            SdkVersion::V0_25 => "0.25.0",
        }
    }
}

/// Backend of a Tinker server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TinkerBackend {
    /// SkyRL's JAX backend: one machine, also without a GPU.
    #[default]
    Jax,
    /// SkyRL on PyTorch FSDP, over Ray.
    Fsdp,
    /// SkyRL on Megatron, over Ray.
    Megatron,
    /// A hosted service that follows the protocol's contract: losses are sums.
    Hosted,
}

impl TinkerBackend {
    /// Reduction of token losses.
    pub(crate) fn reduction(self) -> Reduction {
        match self {
            // Each sequence's loss is divided by the sum of its weights, and by the number of sequences since the last
            // step.
            TinkerBackend::Jax => Reduction::SequenceMean,
            TinkerBackend::Fsdp | TinkerBackend::Megatron | TinkerBackend::Hosted => Reduction::TokenSum,
        }
    }

    /// LoRA alpha. Requests cannot change it.
    pub fn alpha(self) -> f32 {
        32.0
    }

    /// Whether adapters can be downloaded. FSDP saves the whole merged model for samplers. Megatron saves an adapter if
    /// SkyRL runs with `merge_lora` off. Hosted services redirect downloads to another
    /// host, which is untested.
    pub fn can_download_adapters(self) -> bool {
        matches!(self, TinkerBackend::Jax | TinkerBackend::Megatron)
    }

    /// Whether only the learning rate of a request applies; the server fixes the other optimiser settings at start-up.
    pub(crate) fn has_fixed_optimizer(self) -> bool {
        matches!(self, TinkerBackend::Fsdp | TinkerBackend::Megatron)
    }

    /// Whether sampling saved weights of a model replaces the weights in training.
    pub(crate) fn sampling_replaces_weights(self) -> bool {
        self == TinkerBackend::Jax
    }

    /// Whether the gradient of an unloaded model stays in its slot.
    pub(crate) fn shares_gradient_slots(self) -> bool {
        self == TinkerBackend::Jax
    }

    /// Whether equal inputs give equal results.
    pub(crate) fn is_reproducible(self) -> bool {
        self == TinkerBackend::Jax
    }

    /// Capabilities of a trainer.
    pub fn trainer_caps(self, max_seq_len: usize) -> TrainerCaps {
        TrainerCaps {
            engine: self.name(),
            cross_entropy: true,
            importance_sampling: true,
            ppo: true,
            dual_clip: false,
            // The GPU backends of SkyRL 0.4.0 accept CISPO but use the clip range of their start-up configuration.
            cispo: matches!(self, TinkerBackend::Jax | TinkerBackend::Hosted),
            entropy: false,
            kl: Vec::new(),
            masks: false,
            grad_clipping: self != TinkerBackend::Jax,
            reduction: self.reduction(),
            max_seq_len,
        }
    }

    /// Capabilities of a sampler.
    pub fn sampler_caps(self, max_seq_len: usize) -> SamplerCaps {
        SamplerCaps { logprobs: LogprobsMode::Processed, batch_invariant: false, max_seq_len }
    }

    fn name(self) -> String {
        let backend = match self {
            TinkerBackend::Jax => "jax",
            TinkerBackend::Fsdp => "fsdp",
            TinkerBackend::Megatron => "megatron",
            TinkerBackend::Hosted => "hosted",
        };
        format!("tinker ({backend})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn sdk_version_may_be_quoted_or_not() {
        let read = |v: Value| serde_json::from_value::<SdkVersion>(v).map_err(|e| e.to_string());
        assert_eq!((read(json!("0.25")), read(json!(0.25))), (Ok(SdkVersion::V0_25), Ok(SdkVersion::V0_25)));
        assert!(read(json!(0.36)).unwrap_err().contains("unsupported SDK version 0.36"));
        assert_eq!(serde_json::to_value(SdkVersion::V0_25).unwrap(), "0.25");
    }
}
