//! LoRA adapters: configuration, and the layout of their matrices in one flat buffer.
//!
//! Projections with the same input form a group. Their A matrices are adjacent, so that one GEMM covers them.

use super::{LayerLayout, ParamTensor};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A projection of a layer that can have LoRA matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Projection {
    /// Query projection.
    QProj,
    /// Key projection.
    KProj,
    /// Value projection.
    VProj,
    /// Output projection of attention.
    OProj,
    /// Gate projection of the MLP.
    GateProj,
    /// Up projection of the MLP.
    UpProj,
    /// Down projection of the MLP.
    DownProj,
}

impl Projection {
    /// All projections, in layer order.
    pub const ALL: [Projection; 7] = [
        Projection::QProj,
        Projection::KProj,
        Projection::VProj,
        Projection::OProj,
        Projection::GateProj,
        Projection::UpProj,
        Projection::DownProj,
    ];

    /// The name in a checkpoint.
    pub fn name(self) -> &'static str {
        match self {
            Projection::QProj => "q_proj",
            Projection::KProj => "k_proj",
            Projection::VProj => "v_proj",
            Projection::OProj => "o_proj",
            Projection::GateProj => "gate_proj",
            Projection::UpProj => "up_proj",
            Projection::DownProj => "down_proj",
        }
    }

    /// The parent module's name in a checkpoint.
    pub fn block(self) -> &'static str {
        match self {
            Projection::GateProj | Projection::UpProj | Projection::DownProj => "mlp",
            _ => "self_attn",
        }
    }

    /// The projection with this name, with or without its parent module.
    pub fn named(text: &str) -> Option<Self> {
        let matches =
            |p: &Projection| text == p.name() || text.strip_suffix(p.name()) == Some(&format!("{}.", p.block()));
        Projection::ALL.into_iter().find(matches)
    }
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Maximum rank.
const MAX_RANK: usize = 4096;

/// The configuration of an adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank of the A and B matrices.
    pub rank: usize,
    /// The LoRA term is scaled by `alpha / rank`.
    pub alpha: f32,
    /// The projections with LoRA matrices.
    pub targets: Vec<Projection>,
}

impl Default for LoraConfig {
    /// Rank 16, alpha 32, all projections.
    fn default() -> Self {
        LoraConfig { rank: 16, alpha: 32.0, targets: Projection::ALL.to_vec() }
    }
}

impl LoraConfig {
    /// Checks the values; errors name the field.
    pub fn check(&self) -> Result<()> {
        let wrong = |field: &str, problem: String| Err(Error::invalid(format!("lora: {field}"), problem));
        if self.rank == 0 || self.rank > MAX_RANK {
            return wrong("rank", format!("{} is not between 1 and {MAX_RANK}", self.rank));
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return wrong("alpha", format!("{} is not a positive number", self.alpha));
        }
        if self.targets.is_empty() {
            let names = Projection::ALL.map(Projection::name).join(", ");
            return wrong("targets", format!("the list is empty; choose from {names}"));
        }
        for (i, t) in self.targets.iter().enumerate() {
            if self.targets[..i].contains(t) {
                return wrong("targets", format!("`{t}` is listed twice"));
            }
        }
        Ok(())
    }

    /// The factor of the LoRA term.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// Projections of a layer with the same input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectionGroup {
    /// Query, key and value projections.
    Qkv,
    /// Attention output projection.
    Out,
    /// Gate and up projections.
    GateUp,
    /// MLP output projection.
    Down,
}

impl ProjectionGroup {
    /// All groups, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Qkv, Self::Out, Self::GateUp, Self::Down];

    /// Its projections, in the order of their outputs.
    pub fn projections(self) -> &'static [Projection] {
        match self {
            Self::Qkv => &[Projection::QProj, Projection::KProj, Projection::VProj],
            Self::Out => &[Projection::OProj],
            Self::GateUp => &[Projection::GateProj, Projection::UpProj],
            Self::Down => &[Projection::DownProj],
        }
    }

    /// Range of its matrices in the base model.
    pub fn base_weights(self, layer: &LayerLayout) -> &Range<usize> {
        match self {
            Self::Qkv => &layer.qkv_proj,
            Self::Out => &layer.o_proj,
            Self::GateUp => &layer.gate_up_proj,
            Self::Down => &layer.down_proj,
        }
    }
}

/// The B matrix of one projection. It reads the group's A output from column `rank_offset` on and adds to the group's
/// output from column `output_offset` on.
#[derive(Clone, Debug)]
pub struct LoraProjectionLayout {
    /// Range of B: `outputs` rows of `rank` elements.
    pub lora_b: Range<usize>,
    /// Rows of B.
    pub outputs: usize,
    /// First output that B adds to.
    pub output_offset: usize,
    /// First element of the A output that B reads.
    pub rank_offset: usize,
}

/// The LoRA matrices of a group.
#[derive(Clone, Debug)]
pub struct LoraGroupLayout {
    /// Range of all A matrices, stacked.
    pub lora_a: Range<usize>,
    /// Rows of the stacked A matrices.
    pub total_rank: usize,
    /// The B matrices.
    pub projections: Vec<LoraProjectionLayout>,
}

/// Ranges of all parameters of an adapter.
#[derive(Clone, Debug, Default)]
pub struct LoraLayout {
    /// Configuration, with sorted targets.
    pub lora: LoraConfig,
    /// All tensors, in the order of their ranges.
    pub tensors: Vec<ParamTensor>,
    /// By layer and group.
    pub layers: Vec<[Option<LoraGroupLayout>; ProjectionGroup::ALL.len()]>,
    /// Number of parameters.
    pub len: usize,
}

impl LoraLayout {
    /// The largest sum of ranks over one projection group.
    pub fn max_group_rank(&self) -> usize {
        self.layers.iter().flatten().flatten().map(|g| g.total_rank).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_configurations_are_refused() {
        assert!(LoraConfig::default().check().is_ok());
        let refusal = |lora: LoraConfig| lora.check().unwrap_err().to_string();
        assert!(refusal(LoraConfig { rank: 0, ..Default::default() }).starts_with("lora: rank"));
        assert!(refusal(LoraConfig { alpha: f32::NAN, ..Default::default() }).starts_with("lora: alpha"));
        assert!(refusal(LoraConfig { targets: vec![], ..Default::default() }).contains("q_proj, k_proj"));
        let twice = vec![Projection::OProj, Projection::OProj];
        assert!(refusal(LoraConfig { targets: twice, ..Default::default() }).contains("`o_proj` is listed twice"));
    }

    #[test]
    fn names_parse_with_or_without_parent_module() {
        for p in Projection::ALL {
            assert_eq!(Projection::named(p.name()), Some(p));
            assert_eq!(Projection::named(&format!("{}.{p}", p.block())), Some(p));
            assert_eq!(serde_json::to_value(p).unwrap(), p.name());
        }
        for other in ["", "proj", "xq_proj", "mlp.q_proj", "self_attn.", "lm_head"] {
            assert_eq!(Projection::named(other), None, "{other}");
        }
    }
}
