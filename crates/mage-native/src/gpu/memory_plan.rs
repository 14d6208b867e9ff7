//! How is a card's memory shared between training, sampling and what is published?

use super::{check_supported, failed, shape};
use crate::inference::{GPU_PREFILL_TOKENS, MAX_RUNNING};
use crate::model::param_layout::ParamLayout;
use crate::weights::hf_config::Config;
use crate::weights::lora::AdapterSize;
use mage_cuda::{CudaDevice, ModelRunner, ModelShape, ModelTrainer};
use mage_engine::Result;

/// Bytes for a sampler's steps, which read so many tokens of prompts at most, besides keys and values.
pub(super) fn step_workspace_bytes(shape: &ModelShape, reading: usize) -> usize {
    ModelRunner::workspace_bytes(shape, reading + MAX_RUNNING)
}

/// Pages of keys and values without which nothing is begun.
pub(super) const MIN_BLOCKS: usize = 64;

/// Bytes of so many numbers as samplers read them.
pub(super) fn snapshot_bytes(trainable: usize) -> usize {
    2 * trainable
}

/// How many copies of what learns are published at a time: the policy, its successor while requests still hold it, and a reference.
pub(super) const NUM_SNAPSHOTS: usize = 3;

/// What decides how much memory training passes need.
pub(super) struct TrainingMemory<'a> {
    pub(super) shape: &'a ModelShape,
    /// Numbers that learn.
    pub(super) trainable: usize,
    /// An adapter's lora_rank numbers of a token, where one learns.
    pub(super) lora_rank: usize,
    /// Tokens of the max_len row there can be.
    pub(super) max_len: usize,
    pub(super) recompute: bool,
}

impl TrainingMemory<'_> {
    fn per_token(&self, recompute: bool) -> usize {
        ModelTrainer::bytes_per_token(self.shape, self.lora_rank, recompute)
    }

    /// Tokens of a pass, and bytes to be kept for passes, when so much is free before anything is published: half of what is left
    /// beside that and a sampler's steps. The max_len row, of which only one layer is remembered, finds room there too, unless it
    /// would take more than that half.
    pub(super) fn plan(&self, free: usize, wanted: usize) -> (usize, usize) {
        const USEFUL: usize = 16_384;
        const STEP: usize = ModelTrainer::TOKEN_GRANULARITY;
        let fixed = ModelTrainer::fixed_bytes(self.shape);
        let beside =
            step_workspace_bytes(self.shape, GPU_PREFILL_TOKENS) + NUM_SNAPSHOTS * snapshot_bytes(self.trainable);
        let half = free.saturating_sub(beside) / 2;
        let tokens = match wanted {
            0 => (half.saturating_sub(fixed) / self.per_token(self.recompute) / STEP * STEP).clamp(STEP, USEFUL),
            n => n,
        };
        let taken = |tokens: usize, recompute| tokens.next_multiple_of(STEP) * self.per_token(recompute) + fixed;
        (tokens, taken(tokens, self.recompute).max(taken(self.max_len, true).min(half)))
    }

    /// Tokens of the max_len row for which there is room in what is kept for passes.
    fn max_sequence_tokens(&self, passes: usize) -> usize {
        let rows = (passes - ModelTrainer::fixed_bytes(self.shape)) / self.per_token(true);
        (rows / ModelTrainer::TOKEN_GRANULARITY * ModelTrainer::TOKEN_GRANULARITY).min(self.max_len)
    }
}

/// How a card's memory would be used in training.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuMemoryPlan {
    /// The card's number and name.
    pub device: String,
    /// Bytes free now.
    pub free_bytes: u64,
    /// Bytes of weights, gradients, moments, and what is published (the policy, its successor and a reference).
    pub state_bytes: u64,
    /// Bytes a pass keeps of one token.
    pub activation_bytes_per_token: u64,
    /// Tokens of a pass.
    pub pass_tokens: usize,
    /// Bytes set aside for passes: of as many tokens, and of [`GpuMemoryPlan::max_sequence_tokens`].
    pub pass_bytes: u64,
    /// Tokens of the max_len row that surely finds room: what the model can read, as far as half of what is free allows.
    pub max_sequence_tokens: usize,
    /// Bytes set aside for what a sampler's steps need besides keys and values, and for other programs.
    pub reserved_bytes: u64,
    /// Bytes a sampler's cache keeps of one token.
    pub kv_bytes_per_token: u64,
    /// Bytes left for keys and values; 0 where the rest does not fit.
    pub kv_cache_bytes: u64,
    /// Whether that is enough to begin.
    pub fits: bool,
}

impl GpuMemoryPlan {
    /// For training a model on a card: all its numbers, or an adapter beside them. Nothing is allocated.
    pub fn new(config: &Config, index: usize, adapter: Option<AdapterSize>, recompute: bool) -> Result<Self> {
        let device = CudaDevice::open(index).map_err(failed)?;
        check_supported(config, adapter.map(|a| a.rank)).map_err(failed)?;
        let free = device.free_memory().map_err(failed)?;
        Ok(Self::of(format!("cuda:{index} ({})", device.info().name), config, adapter, recompute, free))
    }

    /// The same for a card of which so much is free.
    fn of(device: String, config: &Config, adapter: Option<AdapterSize>, recompute: bool, free: usize) -> Self {
        let (shape, parameters) = (shape(config), ParamLayout::new(config).len);
        let (trainable, lora_rank) = adapter.map_or((parameters, 0), |a| (a.parameters, a.max_group_rank));
        let (state, shown) =
            (ModelTrainer::state_bytes(parameters, trainable), NUM_SNAPSHOTS * snapshot_bytes(trainable));
        let all =
            TrainingMemory { shape: &shape, trainable, lora_rank, max_len: config.max_position_embeddings, recompute };
        let (tokens, passes) = all.plan(free.saturating_sub(state), 0);
        let steps = step_workspace_bytes(&shape, GPU_PREFILL_TOKENS);
        let cache = free.saturating_sub(state + shown + passes + steps);
        GpuMemoryPlan {
            device,
            free_bytes: free as u64,
            state_bytes: (state + shown) as u64,
            activation_bytes_per_token: all.per_token(recompute) as u64,
            pass_tokens: tokens,
            pass_bytes: passes as u64,
            max_sequence_tokens: all.max_sequence_tokens(passes),
            reserved_bytes: steps as u64,
            kv_bytes_per_token: (ModelRunner::block_bytes(&shape) / mage_cuda::BLOCK_SIZE) as u64,
            kv_cache_bytes: cache as u64,
            fits: cache >= MIN_BLOCKS * ModelRunner::block_bytes(&shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_steps_and_what_is_published_share_what_is_free() {
        let gib = 1_usize << 30;
        let (small, large) = (crate::weights::hf_config::tests::tiny(), crate::weights::hf_config::tests::large());
        // A small model asks for little of a card, a large one for what its steps take.
        let asks = |config: &Config| step_workspace_bytes(&shape(config), GPU_PREFILL_TOKENS);
        assert!(asks(&small) < gib && asks(&large) > 4 * gib);
        for (config, recompute) in [(&small, false), (&large, false), (&large, true)] {
            let (shape, parameters, steps) = (shape(config), ParamLayout::new(config).len, asks(config));
            let max_len = config.max_position_embeddings;
            let small_adapter = AdapterSize { rank: 16, parameters: 8 << 20, max_group_rank: 48 };
            for adapter in [Some(small_adapter), None] {
                let (numbers, lora_rank) = adapter.map_or((parameters, 0), |a| (a.parameters, a.max_group_rank));
                let all = TrainingMemory { shape: &shape, trainable: numbers, lora_rank, max_len, recompute };
                let state = ModelTrainer::state_bytes(parameters, numbers);
                for free in [0, gib, 5 * gib, 20 * gib, 70 * gib, 95 * gib, 139 * gib] {
                    let (tokens, passes) = all.plan(free.saturating_sub(state), 0);
                    assert!(tokens.is_multiple_of(256) && (256..=16_384).contains(&tokens), "{tokens}");
                    let plan = GpuMemoryPlan::of("a card".to_owned(), config, adapter, recompute, free);
                    assert_eq!(plan.pass_tokens, tokens);
                    // What a run finds free once its first policy is published, without what it has set aside.
                    let left = free.saturating_sub(state + snapshot_bytes(numbers));
                    let left = left.saturating_sub(passes + (NUM_SNAPSHOTS - 1) * snapshot_bytes(numbers) + steps);
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
            // Rooms are made for a little more than was wanted.
            let kept = |wanted, max_len, free| {
                TrainingMemory { shape: &shape, trainable: 0, lora_rank: 0, max_len, recompute }.plan(free, wanted).1
            };
            let large = 139 * gib;
            assert_eq!((kept(257, 1, large), kept(1, 1, large)), (kept(512, 1, large), kept(256, 1, large)));
            // A row longer than a pass has room, and takes no more than half of what is free for that.
            let row = |tokens: usize| {
                tokens * ModelTrainer::bytes_per_token(&shape, 0, true) + ModelTrainer::fixed_bytes(&shape)
            };
            assert_eq!(kept(256, 40_960, large), row(40_960));
            let all = TrainingMemory { shape: &shape, trainable: 0, lora_rank: 0, max_len: 40_960, recompute };
            let rows = [row(256), row(512) - 1, row(512), row(1 << 20)].map(|passes| all.max_sequence_tokens(passes));
            assert_eq!(rows, [256, 256, 512, 40_960]);
            assert!(kept(256, 1 << 30, large) <= large / 2);
            assert_eq!(kept(256, 1 << 30, 0), kept(256, 1, 0));
        }
    }
}
