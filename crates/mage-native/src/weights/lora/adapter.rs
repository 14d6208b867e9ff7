//! LoRA adapters in memory, independent of any device.

use crate::cpu::{Cpu, scale};
use crate::weights::hf_config::Config;
use mage_engine::Result;
use mage_engine::model::{LoraConfig, LoraLayout, ProjectionGroup};
use mage_rng::Seed;
use rand::RngExt;
use std::sync::Arc;

/// A LoRA adapter: configuration, parameters, and the name of its base model.
#[derive(Clone, Debug)]
pub struct NativeAdapter {
    pub(super) config: Config,
    pub(crate) layout: Arc<LoraLayout>,
    pub(crate) flat: Vec<f32>,
    pub(super) base: Option<String>,
}

/// Sizes that determine an adapter's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterSize {
    /// The rank.
    pub rank: usize,
    /// Number of parameters.
    pub parameters: usize,
    /// The largest sum of ranks over one projection group.
    pub max_group_rank: usize,
}

impl NativeAdapter {
    /// A new adapter, initialised as in PEFT: the A matrices uniform within `±1 / √inputs` (Kaiming with slope √5), the B
    /// matrices zero, so that it has no effect yet.
    pub fn new(config: &Config, lora: &LoraConfig, seed: Seed) -> Result<Self> {
        lora.check()?;
        config.check()?;
        let layout = config.lora_layout(lora);
        let mut flat = vec![0.0; layout.len];
        for t in layout.tensors.iter().filter(|t| t.name.ends_with("lora_A.weight")) {
            let bound = 1.0 / (t.shape[1] as f64).sqrt();
            let mut rng = seed.child("adapter").child(&t.name).rng();
            for x in &mut flat[t.range.clone()] {
                *x = ((rng.random::<f64>() * 2.0 - 1.0) * bound) as f32;
            }
        }
        Ok(NativeAdapter { config: config.clone(), layout: Arc::new(layout), flat, base: None })
    }

    pub(crate) fn from_parts(config: &Config, layout: Arc<LoraLayout>, flat: Vec<f32>, base: Option<String>) -> Self {
        NativeAdapter { config: config.clone(), layout, flat, base }
    }

    /// The LoRA configuration.
    pub fn lora(&self) -> &LoraConfig {
        &self.layout.lora
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.flat.len()
    }

    /// The sizes that determine its memory.
    pub fn size(&self) -> AdapterSize {
        let max_group_rank = self.layout.max_group_rank();
        AdapterSize { rank: self.lora().rank, parameters: self.parameters(), max_group_rank }
    }

    /// The name of its base model, as recorded in its directory.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Its tensors: name, shape and values.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.layout.tensors.iter().map(|t| (&t.name[..], &t.shape[..], &self.flat[t.range.clone()]))
    }

    /// Whether it fits a model with this configuration.
    pub(crate) fn fits(&self, config: &Config) -> bool {
        let shape = |c: &Config| (c.num_hidden_layers, c.hidden_size, c.intermediate_size, c.heads());
        shape(&self.config) == shape(config)
    }

    /// Adds the adapter to base weights: `W += (alpha / rank)·B·A`.
    pub(crate) fn merge_into(&self, config: &Config, weights: &mut [f32]) {
        let (cpu, base, rank) = (Cpu::new(), config.param_layout(), self.lora().rank);
        for (groups, at) in self.layout.layers.iter().zip(&base.layers) {
            for (g, group) in ProjectionGroup::ALL.iter().zip(groups) {
                let inputs = config.group_inputs(*g);
                for part in group.iter().flat_map(|group| group.projections.iter().map(move |p| (group, p))) {
                    let (group, part) = part;
                    let a = group.lora_a.start + part.rank_offset * inputs;
                    let mut b = self.flat[part.lora_b.clone()].to_vec();
                    scale(&mut b, self.lora().scale());
                    let first = g.base_weights(at).start + part.output_offset * inputs;
                    let sum = &mut weights[first..first + part.outputs * inputs];
                    cpu.linear_input_grad_add(&b, &self.flat[a..a + rank * inputs], (part.outputs, rank, inputs), sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::tiny;

    #[test]
    fn new_adapters_are_initialised_as_in_peft() {
        let config = Config { hidden_size: 64, ..tiny() };
        let make = |seed| NativeAdapter::new(&config, &LoraConfig::default(), Seed::new(seed)).unwrap();
        let a = make(1);
        assert!(a.flat == make(1).flat && a.flat != make(2).flat);
        for (name, shape, values) in a.tensors() {
            if name.ends_with("lora_B.weight") {
                assert!(values.iter().all(|x| *x == 0.0), "{name}");
                continue;
            }
            // Uniform within the bound: the mean square is a third of its square, and the maximum is close to it.
            let bound = 1.0 / (shape[1] as f32).sqrt();
            let largest = values.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            let square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
            assert!(largest <= bound && largest > 0.95 * bound, "{name}");
            assert!((square * 3.0 / (bound * bound) - 1.0).abs() < 0.25, "{name}: {square}");
        }
    }
}
