//! The division of GPU memory between training, sampling and published snapshots.

use super::{check_supported, failed, shape};
use crate::inference::{GPU_PREFILL_TOKENS, MAX_RUNNING};
use crate::weights::hf_config::Config;
use crate::weights::lora::AdapterSize;
use mage_cuda::{CudaDevice, ModelRunner, ModelShape, ModelTrainer};
use mage_engine::Result;
use mage_engine::model::BLOCK_SIZE;

/// Workspace bytes of a sampler step with at most this many prefill tokens, without the KV cache.
pub(super) fn step_workspace_bytes(shape: &ModelShape, max_prefill_tokens: usize) -> usize {
    ModelRunner::workspace_bytes(shape, max_prefill_tokens + MAX_RUNNING)
}

/// Minimum number of KV-cache blocks.
pub(super) const MIN_BLOCKS: usize = 64;

/// Bytes of a published snapshot of this many parameters (bf16).
pub(super) fn snapshot_bytes(trainable: usize) -> usize {
    2 * trainable
}

/// Maximum number of published snapshots at a time: the policy, its successor while requests still use the old one, and a
/// reference.
pub(super) const NUM_SNAPSHOTS: usize = 3;

/// What determines the memory of training passes.
pub(super) struct TrainingMemory<'a> {
    pub(super) shape: &'a ModelShape,
    /// Number of trainable parameters.
    pub(super) trainable: usize,
    /// Size of the adapter's LoRA A output per token; 0 without an adapter.
    pub(super) lora_rank: usize,
    /// Maximum sequence length.
    pub(super) max_len: usize,
    pub(super) recompute: bool,
}

impl TrainingMemory<'_> {
    fn per_token(&self, recompute: bool) -> usize {
        ModelTrainer::bytes_per_token(self.shape, self.lora_rank, recompute)
    }

    /// Tokens per pass and bytes reserved for passes, given the free memory before anything is published: at most half of what
    /// remains after snapshots and the sampler's workspace. A sequence of maximum length, which runs with recomputation, fits
    /// too, unless it needs more than that half.
    pub(super) fn plan(&self, free: usize, requested: usize) -> (usize, usize) {
        const MAX_TOKENS: usize = 16_384;
        const STEP: usize = ModelTrainer::TOKEN_GRANULARITY;
        let fixed = ModelTrainer::fixed_bytes(self.shape);
        let other =
            step_workspace_bytes(self.shape, GPU_PREFILL_TOKENS) + NUM_SNAPSHOTS * snapshot_bytes(self.trainable);
        let half = free.saturating_sub(other) / 2;
        let tokens = match requested {
            0 => (half.saturating_sub(fixed) / self.per_token(self.recompute) / STEP * STEP).clamp(STEP, MAX_TOKENS),
            n => n,
        };
        let needed = |tokens: usize, recompute| tokens.next_multiple_of(STEP) * self.per_token(recompute) + fixed;
        (tokens, needed(tokens, self.recompute).max(needed(self.max_len, true).min(half)))
    }

    /// Length of the longest sequence that fits into the memory of passes.
    fn max_sequence_tokens(&self, passes: usize) -> usize {
        let rows = (passes - ModelTrainer::fixed_bytes(self.shape)) / self.per_token(true);
        (rows / ModelTrainer::TOKEN_GRANULARITY * ModelTrainer::TOKEN_GRANULARITY).min(self.max_len)
    }
}

/// How training would use the memory of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuMemoryPlan {
    /// Index and name of the GPU.
    pub device: String,
    /// Bytes of free memory.
    pub free_bytes: u64,
    /// Bytes of weights, gradients, optimizer state and published snapshots (the policy, its successor and a reference).
    pub state_bytes: u64,
    /// Bytes of activations per token of a pass.
    pub activation_bytes_per_token: u64,
    /// Tokens per pass.
    pub pass_tokens: usize,
    /// Bytes reserved for passes: enough for `pass_tokens` tokens and for one sequence of
    /// [`max_sequence_tokens`](GpuMemoryPlan::max_sequence_tokens).
    pub pass_bytes: u64,
    /// Length of the longest sequence that is guaranteed to fit: the model's context, as far as half of the free memory allows.
    pub max_sequence_tokens: usize,
    /// Bytes reserved for the workspace of sampler steps and for other processes.
    pub reserved_bytes: u64,
    /// Bytes of KV cache per token.
    pub kv_bytes_per_token: u64,
    /// Bytes left for the KV cache; 0 if the rest does not fit.
    pub kv_cache_bytes: u64,
    /// Whether the KV cache is large enough to start.
    pub fits: bool,
}

impl GpuMemoryPlan {
    /// The plan for training all parameters or an adapter on a GPU. Nothing is allocated.
    pub fn new(config: &Config, index: usize, adapter: Option<AdapterSize>, recompute: bool) -> Result<Self> {
        let device = CudaDevice::open(index).map_err(failed)?;
        check_supported(config, adapter.map(|a| a.rank)).map_err(failed)?;
        let free = device.free_memory().map_err(failed)?;
        Ok(Self::with_free_memory(format!("cuda:{index} ({})", device.info().name), config, adapter, recompute, free))
    }

    /// The plan for a GPU with this much free memory.
    fn with_free_memory(
        device: String,
        config: &Config,
        adapter: Option<AdapterSize>,
        recompute: bool,
        free: usize,
    ) -> Self {
        let (shape, parameters) = (shape(config), config.param_layout().len);
        let (trainable, lora_rank) = adapter.map_or((parameters, 0), |a| (a.parameters, a.max_group_rank));
        let (state, snapshots) =
            (ModelTrainer::state_bytes(parameters, trainable), NUM_SNAPSHOTS * snapshot_bytes(trainable));
        let all =
            TrainingMemory { shape: &shape, trainable, lora_rank, max_len: config.max_position_embeddings, recompute };
        let (tokens, passes) = all.plan(free.saturating_sub(state), 0);
        let steps = step_workspace_bytes(&shape, GPU_PREFILL_TOKENS);
        let cache = free.saturating_sub(state + snapshots + passes + steps);
        GpuMemoryPlan {
            device,
            free_bytes: free as u64,
            state_bytes: (state + snapshots) as u64,
            activation_bytes_per_token: all.per_token(recompute) as u64,
            pass_tokens: tokens,
            pass_bytes: passes as u64,
            max_sequence_tokens: all.max_sequence_tokens(passes),
            reserved_bytes: steps as u64,
            kv_bytes_per_token: (ModelRunner::block_bytes(&shape) / BLOCK_SIZE) as u64,
            kv_cache_bytes: cache as u64,
            fits: cache >= MIN_BLOCKS * ModelRunner::block_bytes(&shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_steps_snapshots_and_kv_cache_share_the_free_memory() {
        let gib = 1_usize << 30;
        let (small, large) = (crate::weights::hf_config::tests::tiny(), crate::weights::hf_config::tests::large());
        // The workspace of steps is small for a small model and large for a large one.
        let workspace = |config: &Config| step_workspace_bytes(&shape(config), GPU_PREFILL_TOKENS);
        assert!(workspace(&small) < gib && workspace(&large) > 4 * gib);
        for (config, recompute) in [(&small, false), (&large, false), (&large, true)] {
            let (shape, parameters, steps) = (shape(config), config.param_layout().len, workspace(config));
            let max_len = config.max_position_embeddings;
            let small_adapter = AdapterSize { rank: 16, parameters: 8 << 20, max_group_rank: 48 };
            for adapter in [Some(small_adapter), None] {
                let (trainable, lora_rank) = adapter.map_or((parameters, 0), |a| (a.parameters, a.max_group_rank));
                let all = TrainingMemory { shape: &shape, trainable, lora_rank, max_len, recompute };
                let state = ModelTrainer::state_bytes(parameters, trainable);
                for free in [0, gib, 5 * gib, 20 * gib, 70 * gib, 95 * gib, 139 * gib] {
                    let (tokens, passes) = all.plan(free.saturating_sub(state), 0);
                    assert!(tokens.is_multiple_of(256) && (256..=16_384).contains(&tokens), "{tokens}");
                    let plan = GpuMemoryPlan::with_free_memory("a GPU".to_owned(), config, adapter, recompute, free);
                    assert_eq!(plan.pass_tokens, tokens);
                    // Free memory after the first policy is published, minus what is reserved.
                    let left = free.saturating_sub(state + snapshot_bytes(trainable));
                    let left = left.saturating_sub(passes + (NUM_SNAPSHOTS - 1) * snapshot_bytes(trainable) + steps);
                    assert_eq!(plan.kv_cache_bytes as usize, left);
                    if plan.fits {
                        let parts = plan.state_bytes + plan.pass_bytes + plan.reserved_bytes + plan.kv_cache_bytes;
                        assert_eq!(parts, plan.free_bytes);
                    }
                    assert!(
                        tokens == 256 || left >= passes - ModelTrainer::fixed_bytes(&shape),
                        "{tokens}: {left} of {free}"
                    );
                    assert_eq!(plan.fits, left >= 64 * ModelRunner::block_bytes(&shape));
                }
            }
            // Token counts are rounded up.
            let reserved = |requested, max_len, free| {
                TrainingMemory { shape: &shape, trainable: 0, lora_rank: 0, max_len, recompute }.plan(free, requested).1
            };
            let large = 139 * gib;
            assert_eq!(
                (reserved(257, 1, large), reserved(1, 1, large)),
                (reserved(512, 1, large), reserved(256, 1, large))
            );
            // A sequence longer than a pass fits, using at most half of the free memory.
            let sequence = |tokens: usize| {
                tokens * ModelTrainer::bytes_per_token(&shape, 0, true) + ModelTrainer::fixed_bytes(&shape)
            };
            assert_eq!(reserved(256, 40_960, large), sequence(40_960));
            let all = TrainingMemory { shape: &shape, trainable: 0, lora_rank: 0, max_len: 40_960, recompute };
            let lengths = [sequence(256), sequence(512) - 1, sequence(512), sequence(1 << 20)]
                .map(|passes| all.max_sequence_tokens(passes));
            assert_eq!(lengths, [256, 256, 512, 40_960]);
            assert!(reserved(256, 1 << 30, large) <= large / 2);
            assert_eq!(reserved(256, 1 << 30, 0), reserved(256, 1, 0));
        }
    }
}
