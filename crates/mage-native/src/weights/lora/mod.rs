//! How can a model learn without its own numbers changing?
//!
//! Low-rank adapters: beside a frozen matrix `W` stands a pair of thin ones, and the model computes
//! `W·x + (alpha / rank)·B·(A·x)`. Only the pairs learn, so a past self is a few thousand numbers, many of them can speak
//! in one batch, and the reference is the model with nothing beside it. Names, shapes and start are those of PEFT.

mod adapter;
mod layout;
pub(crate) mod peft;

pub use adapter::{AdapterSize, NativeAdapter};
pub(crate) use layout::{LORA_GROUPS, LoraGroup, LoraGroupLayout, LoraLayout};

use mage_engine::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A matrix of each layer that can have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Projection {
    /// Queries.
    QProj,
    /// Keys.
    KProj,
    /// Values.
    VProj,
    /// What attention gives back.
    OProj,
    /// The gate of the feed-forward layer.
    GateProj,
    /// What is gated.
    UpProj,
    /// The way out of the feed-forward layer.
    DownProj,
}

impl Projection {
    /// All of them, in the order of a layer.
    pub const ALL: [Projection; 7] = [
        Projection::QProj,
        Projection::KProj,
        Projection::VProj,
        Projection::OProj,
        Projection::GateProj,
        Projection::UpProj,
        Projection::DownProj,
    ];

    /// Its name in a checkpoint.
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

    /// The part of a layer it belongs to, as checkpoints name it.
    pub(crate) fn block(self) -> &'static str {
        match self {
            Projection::GateProj | Projection::UpProj | Projection::DownProj => "mlp",
            _ => "self_attn",
        }
    }

    /// The one with this name, alone or after its block.
    fn named(text: &str) -> Option<Self> {
        let one = |p: &Projection| text == p.name() || text.strip_suffix(p.name()) == Some(&format!("{}.", p.block()));
        Projection::ALL.into_iter().find(one)
    }
}

impl fmt::Display for Projection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The largest rank that is taken for meant.
const MAX_RANK: usize = 4096;

/// The shape of an adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraConfig {
    /// How many numbers pass between the two thin matrices.
    pub rank: usize,
    /// What is added is multiplied by `alpha / rank`.
    pub alpha: f32,
    /// The matrices that have a pair.
    pub targets: Vec<Projection>,
}

impl Default for LoraConfig {
    /// Rank 16, `alpha` twice that, on every matrix.
    fn default() -> Self {
        LoraConfig { rank: 16, alpha: 32.0, targets: Projection::ALL.to_vec() }
    }
}

impl LoraConfig {
    /// Refuses shapes that mean nothing, naming the field.
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
            return wrong("targets", format!("an adapter of nothing learns nothing; name some of {names}"));
        }
        for (i, t) in self.targets.iter().enumerate() {
            if self.targets[..i].contains(t) {
                return wrong("targets", format!("`{t}` is there twice"));
            }
        }
        Ok(())
    }

    /// What the low-rank part is multiplied by.
    pub(crate) fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_mean_nothing_are_refused() {
        assert!(LoraConfig::default().check().is_ok());
        let refusal = |lora: LoraConfig| lora.check().unwrap_err().to_string();
        assert!(refusal(LoraConfig { rank: 0, ..Default::default() }).starts_with("lora: rank"));
        assert!(refusal(LoraConfig { alpha: f32::NAN, ..Default::default() }).starts_with("lora: alpha"));
        assert!(refusal(LoraConfig { targets: vec![], ..Default::default() }).contains("q_proj, k_proj"));
        let twice = vec![Projection::OProj, Projection::OProj];
        assert!(refusal(LoraConfig { targets: twice, ..Default::default() }).contains("`o_proj` is there twice"));
    }

    #[test]
    fn names_are_read_alone_or_with_their_block() {
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
