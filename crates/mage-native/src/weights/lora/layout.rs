//! The layout of a LoRA adapter for a model configuration.

use crate::weights::hf_config::Config;
use mage_engine::model::{
    LoraConfig, LoraGroupLayout, LoraLayout, LoraProjectionLayout, ParamTensor, Projection, ProjectionGroup,
};
use std::ops::Range;

impl Config {
    /// Input width of a projection group.
    pub(crate) fn group_inputs(&self, group: ProjectionGroup) -> usize {
        match group {
            ProjectionGroup::Qkv | ProjectionGroup::GateUp => self.hidden_size,
            ProjectionGroup::Out => self.heads().out(),
            ProjectionGroup::Down => self.intermediate_size,
        }
    }

    /// Output width of a projection group.
    pub(crate) fn group_outputs(&self, group: ProjectionGroup) -> usize {
        group.projections().iter().map(|p| self.projection_outputs(*p)).sum()
    }

    /// Output width of a projection.
    fn projection_outputs(&self, p: Projection) -> usize {
        match p {
            Projection::QProj => self.num_attention_heads * self.head_dim,
            Projection::KProj | Projection::VProj => self.num_key_value_heads * self.head_dim,
            Projection::GateProj | Projection::UpProj => self.intermediate_size,
            Projection::OProj | Projection::DownProj => self.hidden_size,
        }
    }

    /// The layout of an adapter with a checked configuration.
    pub(crate) fn lora_layout(&self, lora: &LoraConfig) -> LoraLayout {
        let mut tensors = Vec::new();
        let mut len = 0;
        let mut alloc = |layer: usize, p: Projection, which: &str, shape: [usize; 2]| {
            let name = format!("base_model.model.model.layers.{layer}.{}.{p}.lora_{which}.weight", p.block());
            let range = len..len + shape[0] * shape[1];
            len = range.end;
            tensors.push(ParamTensor { name, shape: shape.to_vec(), range: range.clone() });
            range
        };
        let rank = lora.rank;
        let mut group = |layer: usize, group: ProjectionGroup| {
            let (inputs, mut output_offset) = (self.group_inputs(group), 0);
            let mut chosen = Vec::new();
            for &p in group.projections() {
                if lora.targets.contains(&p) {
                    chosen.push((p, output_offset));
                }
                output_offset += self.projection_outputs(p);
            }
            let lora_a = alloc_adjacent(&chosen, |p| alloc(layer, p, "A", [rank, inputs]))?;
            let parts = chosen.iter().enumerate().map(|(i, &(p, output_offset))| {
                let outputs = self.projection_outputs(p);
                LoraProjectionLayout {
                    lora_b: alloc(layer, p, "B", [outputs, rank]),
                    outputs,
                    output_offset,
                    rank_offset: i * rank,
                }
            });
            Some(LoraGroupLayout { projections: parts.collect(), lora_a, total_rank: chosen.len() * rank })
        };
        let layers = (0..self.num_hidden_layers).map(|layer| ProjectionGroup::ALL.map(|g| group(layer, g))).collect();
        let mut lora = lora.clone();
        lora.targets.sort();
        LoraLayout { lora, tensors, layers, len }
    }
}

/// Allocates the matrices of the chosen projections one after the other and returns their joint range.
fn alloc_adjacent(
    chosen: &[(Projection, usize)],
    mut alloc: impl FnMut(Projection) -> Range<usize>,
) -> Option<Range<usize>> {
    chosen.iter().map(|(p, _)| alloc(*p)).reduce(|all, next| all.start..next.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::tiny;

    #[test]
    fn tensors_fill_the_buffer_and_fit_the_model() {
        let config = tiny();
        let base = config.param_layout();
        for targets in [
            Projection::ALL.to_vec(),
            vec![Projection::KProj],
            vec![Projection::VProj, Projection::QProj, Projection::DownProj],
        ] {
            let lora = LoraConfig { rank: 3, alpha: 6.0, targets };
            let layout = config.lora_layout(&lora);
            let mut at = 0;
            for t in &layout.tensors {
                assert_eq!(t.range.start, at);
                assert_eq!(t.range.len(), t.shape.iter().product::<usize>());
                at = t.range.end;
            }
            assert_eq!(at, layout.len);
            assert_eq!(layout.tensors.len(), 2 * lora.targets.len() * config.num_hidden_layers);
            // Each pair's product has the shape of the frozen matrix of its name.
            for pair in layout.tensors.iter().filter(|t| t.name.ends_with("lora_A.weight")) {
                let stem = pair.name.strip_suffix("lora_A.weight").unwrap();
                let b = layout.tensors.iter().find(|t| t.name == format!("{stem}lora_B.weight")).unwrap();
                let frozen = format!("{}weight", stem.strip_prefix("base_model.model.").unwrap());
                let frozen = base.tensors.iter().find(|t| t.name == frozen).unwrap();
                assert_eq!(frozen.shape, [b.shape[0], pair.shape[1]]);
            }
            for (layer, at) in layout.layers.iter().zip(&base.layers) {
                for (g, group) in ProjectionGroup::ALL.iter().zip(layer) {
                    assert_eq!(g.base_weights(at).len(), config.group_inputs(*g) * config.group_outputs(*g));
                    for part in group.iter().flat_map(|group| &group.projections) {
                        let start = g.base_weights(at).start + part.output_offset * config.group_inputs(*g);
                        let frozen = base.tensors.iter().find(|t| t.range.start == start).unwrap();
                        assert_eq!(frozen.shape, [part.outputs, config.group_inputs(*g)]);
                    }
                }
            }
        }
    }
}
