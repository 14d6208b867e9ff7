//! Which device computes, and what does a model look like on a card?

use crate::config::Config;
use crate::layout::Layout;
use crate::model::turn_table;
use mage_cuda::{Card, LayerPlaces, Model, Places, Shape, Stepper, Trainer, Weights};
use mage_engine::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a model is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// On the first card, where there is one, else on the CPU.
    #[default]
    Auto,
    /// On the CPU.
    Cpu,
    /// On the card of this number.
    Cuda(usize),
}

impl Device {
    /// The card's number; nothing is the CPU.
    pub fn resolve(self) -> Result<Option<usize>> {
        match self {
            Device::Cpu => Ok(None),
            Device::Auto => Ok((Card::count() > 0).then_some(0)),
            Device::Cuda(n) => Ok(Some(n)),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Device::Cuda)
                .ok_or_else(|| Error::invalid("device", format!("`{text}` is not auto, cpu, cuda or cuda:N"))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// What was found of cards on this machine.
#[derive(Clone, Debug)]
pub struct CardReport {
    /// What was looked for and where.
    pub search: &'static mage_cuda::Search,
    /// Each card, with its free memory and its rates, or why it cannot be used.
    pub cards: Vec<std::result::Result<(mage_cuda::CardInfo, usize, mage_cuda::Rates), String>>,
}

impl CardReport {
    /// Looks, and measures each card for a moment.
    pub fn measure() -> Self {
        let one = |i: usize| {
            let card = Card::open(i)?;
            Ok((card.info().clone(), card.free_memory()?, mage_cuda::measure(&card)?))
        };
        let cards = (0..Card::count()).map(|i| one(i).map_err(|e: mage_cuda::CudaError| e.to_string())).collect();
        CardReport { search: mage_cuda::search(), cards }
    }
}

/// A model's shape on a card.
pub(crate) struct NativeCard {
    pub(crate) model: Arc<Model>,
    shape: Shape,
    parameters: usize,
    /// Bytes that a trainer will yet ask for.
    reserved: AtomicUsize,
}

pub(crate) fn failed(e: mage_cuda::CudaError) -> Error {
    Error::Engine { engine: "native on CUDA".to_owned(), reason: e.to_string() }
}

impl NativeCard {
    pub(crate) fn open(config: &Config, index: usize) -> Result<Self> {
        let card = Card::open(index).map_err(failed)?;
        let (shape, layout) = (shape(config), Layout::new(config));
        let turns = turn_table(config.rope_theta, config.head_dim, config.max_position_embeddings);
        let model = Model::new(&card, shape, places(&layout), &turns).map_err(failed)?;
        Ok(NativeCard { model, shape, parameters: layout.len, reserved: AtomicUsize::new(0) })
    }

    pub(crate) fn weights(&self, flat: &[f32]) -> Result<Weights> {
        self.model.weights(flat).map_err(failed)
    }

    /// The card in words.
    pub(crate) fn words(&self) -> String {
        let info = self.model.card().info();
        let (major, minor) = info.capability;
        format!("cuda:{}: {}, generation {major}.{minor}, bf16", info.index, info.name)
    }

    /// How many tokens a trainer goes over at once, and sets the memory aside for it. Half of what is free goes to that at
    /// most, and no more than is of use.
    pub(crate) fn plan_training(&self, wanted: usize, recompute: bool) -> Result<usize> {
        const USEFUL: usize = 16_384;
        let per_token = Trainer::bytes_per_token(&self.shape, recompute);
        let free = self.model.card().free_memory().map_err(failed)?;
        let logits = 6 * (1 << 28);
        let tokens = match wanted {
            0 => ((free / 2).saturating_sub(logits) / per_token).clamp(256, USEFUL),
            n => n,
        };
        // The policy and a reference are published besides.
        self.reserved.store(tokens * per_token + logits + 4 * self.parameters, Ordering::Relaxed);
        Ok(tokens)
    }

    /// Bytes that pages of keys and values may take.
    pub(crate) fn room_for_pages(&self) -> Result<usize> {
        // Steps need room too, and other programs a little.
        const MARGIN: usize = 3 << 30;
        let free = self.model.card().free_memory().map_err(failed)?;
        let left = free.saturating_sub(self.reserved.load(Ordering::Relaxed) + MARGIN);
        let least = Stepper::page_bytes(&self.shape) * 64;
        if left < least {
            let reason = format!("{} MiB are left for keys and values, too few for 64 pages", left >> 20);
            return Err(Error::Engine { engine: "native on CUDA".to_owned(), reason });
        }
        Ok(left)
    }
}

fn shape(c: &Config) -> Shape {
    Shape {
        vocabulary: c.vocab_size,
        hidden: c.hidden_size,
        inner: c.intermediate_size,
        layers: c.num_hidden_layers,
        heads: c.num_attention_heads,
        kv: c.num_key_value_heads,
        head_dim: c.head_dim,
        epsilon: c.rms_norm_eps,
    }
}

fn places(l: &Layout) -> Places {
    let layers = l.layers.iter().map(|at| LayerPlaces {
        norm1: at.norm1.clone(),
        qkv: at.qkv.clone(),
        head_norms: at.head_norms.clone(),
        out: at.out.clone(),
        norm2: at.norm2.clone(),
        gate_up: at.gate_up.clone(),
        down: at.down.clone(),
    });
    Places {
        embedding: l.embedding.clone(),
        layers: layers.collect(),
        norm: l.norm.clone(),
        head: l.head.clone(),
        len: l.len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for (text, device) in
            [("auto", Device::Auto), ("cpu", Device::Cpu), ("cuda:0", Device::Cuda(0)), ("cuda:3", Device::Cuda(3))]
        {
            assert_eq!((text.parse::<Device>().unwrap(), device.to_string().as_str()), (device, text));
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1"] {
            assert!(wrong.parse::<Device>().unwrap_err().to_string().contains("cuda:N"), "{wrong}");
        }
    }
}
