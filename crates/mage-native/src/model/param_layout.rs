//! The parameter layout of a model configuration.

use crate::weights::hf_config::Config;
use mage_engine::model::{LayerLayout, ParamLayout, ParamTensor};

impl Config {
    /// The layout of all parameters in one flat buffer.
    pub(crate) fn param_layout(&self) -> ParamLayout {
        let c = self;
        let mut tensors = Vec::new();
        let mut len = 0;
        let mut alloc = |name: String, shape: &[usize]| {
            let range = len..len + shape.iter().product::<usize>();
            len = range.end;
            tensors.push(ParamTensor { name, shape: shape.to_vec(), range: range.clone() });
            range
        };
        let d = c.hidden_size;
        let embed_tokens = alloc("model.embed_tokens.weight".to_owned(), &[c.vocab_size, d]);
        let layers = (0..c.num_hidden_layers)
            .map(|i| {
                let mut alloc = |name: &str, shape: &[usize]| alloc(format!("model.layers.{i}.{name}.weight"), shape);
                let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
                let input_layernorm = alloc("input_layernorm", &[d]);
                let qkv_proj = alloc("self_attn.q_proj", &[q, d]).start;
                alloc("self_attn.k_proj", &[kv, d]);
                let qkv_proj = qkv_proj..alloc("self_attn.v_proj", &[kv, d]).end;
                let qk_norm = alloc("self_attn.q_norm", &[c.head_dim]).start;
                let qk_norm = qk_norm..alloc("self_attn.k_norm", &[c.head_dim]).end;
                let o_proj = alloc("self_attn.o_proj", &[d, q]);
                let post_attention_layernorm = alloc("post_attention_layernorm", &[d]);
                let gate_up_proj = alloc("mlp.gate_proj", &[c.intermediate_size, d]).start;
                let gate_up_proj = gate_up_proj..alloc("mlp.up_proj", &[c.intermediate_size, d]).end;
                let down_proj = alloc("mlp.down_proj", &[d, c.intermediate_size]);
                LayerLayout {
                    input_layernorm,
                    qkv_proj,
                    qk_norm,
                    o_proj,
                    post_attention_layernorm,
                    gate_up_proj,
                    down_proj,
                }
            })
            .collect();
        let final_norm = alloc("model.norm.weight".to_owned(), &[d]);
        let lm_head = if c.tie_word_embeddings {
            embed_tokens.clone()
        } else {
            alloc("lm_head.weight".to_owned(), &[c.vocab_size, d])
        };
        ParamLayout { tensors, embed_tokens, layers, final_norm, lm_head, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::hf_config::tests::tiny;

    #[test]
    fn tensors_fill_the_buffer_without_gaps() {
        for tied in [true, false] {
            let layout = Config { tie_word_embeddings: tied, ..tiny() }.param_layout();
            let mut at = 0;
            for t in &layout.tensors {
                assert_eq!(t.range.start, at);
                assert_eq!(t.range.len(), t.shape.iter().product::<usize>());
                at = t.range.end;
            }
            assert_eq!(at, layout.len);
            assert_eq!(layout.lm_head == layout.embed_tokens, tied);
        }
    }
}
