//! Sections of a recipe: keys, defaults and their explanations.

use super::section::section;
use mage_core::{MemoryMode, prompt::PromptForm};
use mage_engine::{KlForm, Thinking};
use mage_env::Grouping;
use mage_native::{Device, Projection};
use mage_remote::tinker::{SdkVersion, TinkerBackend};
use serde::{Deserialize, Serialize};

section! {
    /// The environment and its opponents.
    EnvConfig {
        /// Name of the environment; `mage env list` shows all.
        name: String = "kuhn".to_owned(),
        /// Opponents of the agent: the name of one of the environment's populations, or a TOML file. Empty: the
        /// environment's default.
        population: String = String::new(),
        /// Split of the population used for training.
        split: String = "train".to_owned(),
    }
}

section! {
    /// The meta-episode.
    PlayConfig {
        /// Prompt form: `compact` (a few words per action, for small models) or `full` (sentences, thinking, tags).
        form: PromptForm = PromptForm::Compact,
        /// Episodes of the same task in a meta-episode.
        episodes: u32 = 3,
        /// Maximum turns per episode; 0 uses the environment's limit.
        max_turns: u32 = 0,
        /// What one episode passes to the next: `none`, `reflection_only`, `history_only` or
        /// `history_and_reflection`.
        memory: MemoryMode = MemoryMode::ReflectionOnly,
        /// Restrict actions to the legal ones, in sampling and in the loss.
        mask_actions: bool = true,
        /// Maximum tokens of an action response; 0 uses the default of the prompt form.
        play_tokens: u32 = 0,
        /// Maximum tokens of a reflection; 0 uses the default of the prompt form.
        reflect_tokens: u32 = 0,
        /// Whether the model thinks before it responds: `on` or `off`.
        thinking: Thinking = Thinking::Off,
    }
}

section! {
    /// The model: a checkpoint, or a new model of the given shape.
    ModelConfig {
        /// Qwen3 checkpoint: a folder, a checkpoint of a run (`RUN` is its last, `RUN@best`, `RUN@250`), or
        /// `org/name@revision` on the Hub. Empty: a new model with the shape below and the environment's compact
        /// vocabulary.
        path: String = String::new(),
        /// Hidden size.
        hidden_size: usize = 32,
        /// MLP intermediate size.
        intermediate_size: usize = 88,
        /// Number of decoder layers.
        num_layers: usize = 2,
        /// Number of query heads.
        num_heads: usize = 2,
        /// Number of key and value heads.
        num_kv_heads: usize = 2,
        /// Size of an attention head.
        head_dim: usize = 16,
        /// Share the weights of the input embedding and the LM head.
        tie_embeddings: bool = false,
        /// Maximum sequence length in tokens.
        max_seq_len: usize = 256,
        /// Standard deviation of the initial weights.
        init_std: f32 = 0.08,
    }
}

section! {
    /// Supervised training before RL: a new model learns the response format from generated expert play. A checkpoint
    /// needs no warm start.
    WarmStartConfig {
        /// Optimiser steps; 0 for none.
        steps: u64 = 250,
        /// Meta-episodes per step; with transcripts, responses per step.
        batch_size: usize = 64,
        /// File of conversations to imitate instead of generated play: one JSON object per line, {"messages": [{"role":
        /// "user", "content": "…"}, {"role": "assistant", "content": "…"}]}. Checkpoints are trained on it too.
        transcripts: String = String::new(),
        /// Expert whose play is imitated: one of the environment's scripted agents (`mage env show`), or `random`.
        expert: String = String::new(),
        /// Probability of replacing the expert's action with a uniformly random legal one.
        epsilon: f64 = 0.3,
        /// Peak learning rate.
        learning_rate: f32 = 2e-3,
        /// Final learning rate as a fraction of the peak (half-cosine decay).
        min_lr_ratio: f32 = 0.1,
    }
}

section! {
    /// Collection of trajectories.
    RolloutConfig {
        /// Groups per update; all meta-episodes of a group share opponent, seat and deals.
        groups: usize = 32,
        /// Meta-episodes per group.
        group_size: usize = 8,
        /// `stationary`, or `mixed`: every meta-episode of a group samples its own opponent (an ablation).
        grouping: Grouping = Grouping::Stationary,
        /// Sampling temperature; 1 samples from the policy itself.
        temperature: f32 = 1.0,
        /// Nucleus sampling: keep the most likely tokens with this total probability; 1 keeps all.
        top_p: f32 = 1.0,
        /// Keep this many most likely tokens; 0 keeps all.
        top_k: u32 = 0,
        /// Collect the next batch while training on this one: faster where devices are idle, one update off-policy.
        overlap: bool = false,
        /// Retries of a meta-episode whose environment fails; after the last one it is left out of its group.
        retries: u32 = 1,
    }
}

section! {
    /// The loss.
    LossConfig {
        /// Policy loss: `ppo` (clipped tokens have no gradient), `cispo` (clipped tokens keep the gradient of the
        /// clipped weight) or `importance_sampling` (no clipping).
        objective: PolicyLoss = PolicyLoss::Ppo,
        /// Lower clip range: the ratio of new to old probability is clipped at 1 minus this.
        clip_low: f32 = 0.2,
        /// Upper clip range: the ratio is clipped at 1 plus this.
        clip_high: f32 = 0.2,
        /// Dual clip: upper bound on the loss of a token with a negative advantage, in multiples of the advantage; 0
        /// for none. `ppo` only.
        dual_clip: f32 = 3.0,
        /// Unit of the mean: each `sequence` (a response) or each `token` has equal weight.
        aggregation: Aggregation = Aggregation::Sequence,
        /// Entropy coefficient of actions at the first update, per nat. The most sensitive hyperparameter: if it is too
        /// low, the policy collapses before it learns to use its memory.
        entropy: f32 = 0.1,
        /// Entropy coefficient of actions at the last update; linear in between.
        entropy_end: f32 = 0.01,
        /// Entropy coefficient of reflections, per nat.
        entropy_reflect: f32 = 0.0,
        /// KL coefficient of actions against the reference policy, per nat.
        kl_play: f32 = 0.0,
        /// KL coefficient of reflections against the reference policy, per nat; keeps reflections readable.
        kl_reflect: f32 = 0.1,
        /// KL estimator: `k1`, `k2` or `k3`.
        kl_form: KlForm = KlForm::K3,
    }
}

section! {
    /// The optimiser (AdamW).
    OptimConfig {
        /// Number of updates.
        updates: u64 = 200,
        /// Epochs over each batch.
        epochs: u32 = 1,
        /// Minibatches (optimiser steps) per epoch.
        minibatches: usize = 4,
        /// Peak learning rate.
        learning_rate: f32 = 1e-3,
        /// Linear warm-up of the learning rate, in optimiser steps.
        warmup_steps: u64 = 0,
        /// Final learning rate as a fraction of the peak (linear decay); 1 for a constant rate.
        min_lr_ratio: f32 = 0.2,
        /// Decay rate of the first moment.
        beta1: f32 = 0.9,
        /// Decay rate of the second moment.
        beta2: f32 = 0.98,
        /// Decoupled weight decay.
        weight_decay: f32 = 0.0,
        /// Maximum gradient norm; larger gradients are scaled down to it. 0 disables clipping.
        max_grad_norm: f32 = 1.0,
        /// Stop the run after this many consecutive steps with non-finite gradients.
        max_nonfinite_steps: u32 = 3,
    }
}

section! {
    /// Evaluation during and after training.
    EvalConfig {
        /// Updates between evaluations; 0 evaluates only before and after training.
        every: u64 = 25,
        /// Tasks of the task set during training.
        tasks: usize = 600,
        /// Tasks of the task set before and after training.
        final_tasks: usize = 4800,
        /// Episodes per task. Compact prompts reserve memory slots for as many, in training too: the value changes the
        /// model.
        episodes: u32 = 3,
        /// Split of the population used for evaluation.
        split: String = "in-domain".to_owned(),
        /// Greedy decoding; the three keys below are then ignored.
        greedy: bool = false,
        /// Sampling temperature; 1 samples from the policy itself, 0 is greedy.
        temperature: f32 = 1.0,
        /// Nucleus sampling: keep the most likely tokens with this total probability; 1 keeps all.
        top_p: f32 = 1.0,
        /// Keep this many most likely tokens; 0 keeps all.
        top_k: u32 = 0,
        /// Compute expected scores by enumeration instead of sampling an episode, in games with at most this many
        /// states; 0 always samples.
        exact_max_states: usize = 400,
    }
}

section! {
    /// Checkpoints.
    CheckpointConfig {
        /// Updates between checkpoints.
        every: u64 = 25,
        /// Number of latest checkpoints to keep, in addition to the best.
        keep: usize = 2,
    }
}

section! {
    /// Trajectories written to the run directory.
    TrajectoryConfig {
        /// Updates between writes; 0 writes none.
        every: u64 = 25,
        /// Fraction of an update's groups to write.
        fraction: f64 = 0.25,
    }
}

section! {
    /// The engine that trains and samples.
    EngineConfig {
        /// `native`, the embedded engine, or `tinker`, a training server (see `tinker` and `vllm`).
        kind: EngineKind = EngineKind::Native,
        /// Compute device: `cpu`, `cuda` or `cuda:N`; `auto` uses a GPU if there is one.
        device: Device = Device::Auto,
        /// CPU threads; 0 uses all. Results do not depend on it.
        threads: usize = 0,
        /// Batch-invariant GPU kernels: reproducible, slower. The CPU is always batch invariant.
        batch_invariant: bool = false,
        /// Recompute activations in the backward pass instead of storing them: less memory, about a third more compute.
        gradient_checkpointing: bool = false,
        /// LoRA rank; the weights of `model.path` stay frozen. 0 trains all parameters, or the adapter at `model.path`.
        lora_rank: usize = 0,
        /// LoRA alpha; adapter outputs are scaled by alpha / rank. 0 uses twice the rank, or 32 on a training server.
        lora_alpha: f32 = 0.0,
        /// Projections that have an adapter.
        lora_targets: Vec<Projection> = Projection::ALL.to_vec(),
    }
}

section! {
    /// The training server, used if `engine.kind` is `tinker`.
    TinkerConfig {
        /// URL of the server, with or without `/api/v1`.
        url: String = "http://127.0.0.1:8000".to_owned(),
        /// Tinker SDK version whose protocol the server implements: `0.25`.
        sdk_version: SdkVersion = SdkVersion::V0_25,
        /// Backend of the server: `jax`, `fsdp`, `megatron` (SkyRL) or `hosted`. Verified at start.
        backend: TinkerBackend = TinkerBackend::Jax,
        /// Base model name on the server; empty uses `model.path`.
        base_model: String = String::new(),
        /// Environment variable that holds the API key, if the server requires one.
        key_env: String = "TINKER_API_KEY".to_owned(),
        /// Measure the loss normalisation of the server before training, and refuse unexpected values.
        calibrate: bool = true,
        /// Seconds to wait for an unreachable training server, and for sampling servers when none of them responds.
        timeout: f64 = 900.0,
    }
}

section! {
    /// The vLLM servers that sample, used if `engine.kind` is `tinker`; without any, the training server samples.
    VllmConfig {
        /// URLs of the servers.
        servers: Vec<String> = Vec::new(),
        /// Name under which the servers serve the base model; empty uses `model.path`.
        model: String = String::new(),
        /// Folder for adapters, visible under the same path on this machine and on the servers; empty uses a temporary
        /// folder.
        adapter_dir: String = String::new(),
        /// Environment variable that holds the API key, if the servers require one.
        key_env: String = "VLLM_API_KEY".to_owned(),
        /// Maximum concurrent requests per server.
        max_in_flight: usize = 256,
        /// Seconds before a request times out and is retried, on another server if there is one; doubles with each
        /// retry.
        request_timeout: f64 = 600.0,
        /// Policy versions kept on the servers.
        keep_versions: usize = 4,
        /// Tolerance for the log-probabilities of a fixed sequence after a weight update. Half precision needs 0.05.
        tolerance: f32 = 1e-3,
    }
}

section! {
    /// Thresholds of training-health warnings.
    HealthThresholds {
        /// Warn if the mean entropy of actions falls below this in the first half of training, in nats.
        min_entropy: f64 = 0.03,
        /// Warn if the KL divergence of actions or reflections from the reference policy exceeds this, in nats per
        /// token.
        max_kl: f64 = 0.5,
        /// Warn if the fraction of invalid actions exceeds this.
        max_invalid: f64 = 0.2,
        /// Warn if the fraction of reflections that state the facts falls below this, in environments with an expert to
        /// compare with.
        min_factual: f64 = 0.5,
        /// Warn if the KL divergence between sampler and trainer before the first step of an update exceeds this, in
        /// nats per token: the engines disagree. With `rollout.overlap`, checked only on batches that were not
        /// collected ahead: at the first update and after every checkpoint.
        max_mismatch_kl: f64 = 0.01,
        /// Report the pending work if no meta-episode finishes for this many seconds.
        stall_timeout: f64 = 30.0,
    }
}

/// Policy losses that a recipe can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// PPO with clipping.
    #[default]
    Ppo,
    /// CISPO.
    Cispo,
    /// Importance sampling.
    ImportanceSampling,
}

/// Unit of the mean in a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// Each response has equal weight, whatever its length.
    #[default]
    Sequence,
    /// Each token has equal weight.
    Token,
}

/// Engines that a recipe can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// The embedded engine, on the CPU or a GPU.
    #[default]
    Native,
    /// A server that implements the Tinker protocol.
    Tinker,
}
