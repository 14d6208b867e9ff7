//! The layout of a LoRA adapter in one flat buffer.
//!
//! The A matrices of projections with the same input are adjacent, so that one GEMM covers them.

use super::{LoraConfig, Projection};
use crate::model::param_layout::{LayerLayout, ParamTensor};
use crate::weights::hf_config::Config;
use std::ops::Range;

/// Projections with the same input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProjectionGroup {
    Qkv,
    Out,
    GateUp,
    Down,
}

/// All groups, in the order of their discriminants.
pub(crate) const PROJECTION_GROUPS: [ProjectionGroup; 4] =
    [ProjectionGroup::Qkv, ProjectionGroup::Out, ProjectionGroup::GateUp, ProjectionGroup::Down];

impl ProjectionGroup {
    fn projections(self) -> &'static [Projection] {
        match self {
            ProjectionGroup::Qkv => &[Projection::QProj, Projection::KProj, Projection::VProj],
            ProjectionGroup::Out => &[Projection::OProj],
            ProjectionGroup::GateUp => &[Projection::GateProj, Projection::UpProj],
            ProjectionGroup::Down => &[Projection::DownProj],
        }
    }

    /// Input width.
    pub(crate) fn inputs(self, c: &Config) -> usize {
        match self {
            ProjectionGroup::Qkv | ProjectionGroup::GateUp => c.hidden_size,
            ProjectionGroup::Out => c.heads().out(),
            ProjectionGroup::Down => c.intermediate_size,
        }
    }

    /// Output width.
    pub(crate) fn outputs(self, c: &Config) -> usize {
        self.projections().iter().map(|p| outputs(*p, c)).sum()
    }

    /// The frozen matrices of the group.
    pub(crate) fn frozen(self, at: &LayerLayout) -> &Range<usize> {
        match self {
            ProjectionGroup::Qkv => &at.qkv_proj,
            ProjectionGroup::Out => &at.o_proj,
            ProjectionGroup::GateUp => &at.gate_up_proj,
            ProjectionGroup::Down => &at.down_proj,
        }
    }
}

fn outputs(p: Projection, c: &Config) -> usize {
    match p {
        Projection::QProj => c.num_attention_heads * c.head_dim,
        Projection::KProj | Projection::VProj => c.num_key_value_heads * c.head_dim,
        Projection::GateProj | Projection::UpProj => c.intermediate_size,
        Projection::OProj | Projection::DownProj => c.hidden_size,
    }
}

/// The B matrix of one projection, with `outputs` rows. It reads the group's A output from column `rank_offset` and writes
/// the group's output from column `output_offset`.
#[derive(Clone, Debug)]
pub(crate) struct LoraProjectionLayout {
    pub(crate) lora_b: Range<usize>,
    pub(crate) outputs: usize,
    pub(crate) output_offset: usize,
    pub(crate) rank_offset: usize,
}

/// The LoRA matrices of a group. Its A matrices have `total_rank` rows in total.
#[derive(Clone, Debug)]
pub(crate) struct LoraGroupLayout {
    pub(crate) lora_a: Range<usize>,
    pub(crate) total_rank: usize,
    pub(crate) projections: Vec<LoraProjectionLayout>,
}

/// The ranges of all tensors of an adapter.
#[derive(Clone, Debug)]
pub(crate) struct LoraLayout {
    pub(crate) lora: LoraConfig,
    pub(crate) tensors: Vec<ParamTensor>,
    /// By layer and group.
    pub(crate) layers: Vec<[Option<LoraGroupLayout>; PROJECTION_GROUPS.len()]>,
    pub(crate) len: usize,
}

impl LoraLayout {
    /// The layout of a checked configuration.
    pub(crate) fn new(c: &Config, lora: &LoraConfig) -> Self {
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
            let (inputs, mut output_offset) = (group.inputs(c), 0);
            let mut chosen = Vec::new();
            for &p in group.projections() {
                if lora.targets.contains(&p) {
                    chosen.push((p, output_offset));
                }
                output_offset += outputs(p, c);
            }
            let lora_a = alloc_adjacent(&chosen, |p| alloc(layer, p, "A", [rank, inputs]))?;
            let parts = chosen.iter().enumerate().map(|(i, &(p, output_offset))| {
                let outputs = outputs(p, c);
                LoraProjectionLayout {
                    lora_b: alloc(layer, p, "B", [outputs, rank]),
                    outputs,
                    output_offset,
                    rank_offset: i * rank,
                }
            });
            Some(LoraGroupLayout { projections: parts.collect(), lora_a, total_rank: chosen.len() * rank })
        };
        let layers = (0..c.num_hidden_layers).map(|layer| PROJECTION_GROUPS.map(|g| group(layer, g))).collect();
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
    use crate::model::param_layout::ParamLayout;
    use crate::weights::hf_config::tests::tiny;

    #[test]
    fn tensors_fill_the_buffer_and_fit_the_model() {
        let config = tiny();
        let base = ParamLayout::new(&config);
        for targets in [
            Projection::ALL.to_vec(),
            vec![Projection::KProj],
            vec![Projection::VProj, Projection::QProj, Projection::DownProj],
        ] {
            let lora = LoraConfig { rank: 3, alpha: 6.0, targets };
            let layout = LoraLayout::new(&config, &lora);
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
                for (g, group) in PROJECTION_GROUPS.iter().zip(layer) {
                    assert_eq!(g.frozen(at).len(), g.inputs(&config) * g.outputs(&config));
                    for part in group.iter().flat_map(|group| &group.projections) {
                        let start = g.frozen(at).start + part.output_offset * g.inputs(&config);
                        let frozen = base.tensors.iter().find(|t| t.range.start == start).unwrap();
                        assert_eq!(frozen.shape, [part.outputs, g.inputs(&config)]);
                    }
                }
            }
        }
    }
}
