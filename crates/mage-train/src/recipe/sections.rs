//! What can a recipe say?

use super::section::section;
use mage_core::{MemoryMode, prompt::PromptForm};
use mage_engine::{KlForm, Thinking};
use mage_env::Grouping;
use mage_native::{Device, Projection};
use mage_remote::tinker::{Backend, Dialect};
use serde::{Deserialize, Serialize};

section! {
    /// What is played, and against whom.
    World {
        /// The environment; `mage env list` shows them.
        name: String = "kuhn".to_owned(),
        /// Whom the agent meets: the name of a population that comes with the environment, or a TOML file. Empty: the
        /// environment's default.
        population: String = String::new(),
        /// The part of the population that is trained on.
        split: String = "train".to_owned(),
    }
}

section! {
    /// How a meta-episode goes.
    Play {
        /// `compact` (a word or a few for an action, for small models) or `full` (sentences, thinking, tags).
        form: PromptForm = PromptForm::Compact,
        /// Episodes of the same task in a meta-episode.
        episodes: u32 = 3,
        /// Turns an episode may take; 0 takes the environment's own limit.
        max_turns: u32 = 0,
        /// What an episode leaves behind for the next: `none`, `reflection_only`, `history_only` or
        /// `history_and_reflection`.
        memory: MemoryMode = MemoryMode::ReflectionOnly,
        /// Constrain actions to the legal ones, in sampling and in the loss.
        mask_actions: bool = true,
        /// Tokens an action's answer may have; 0 takes what the form needs.
        play_tokens: u32 = 0,
        /// Tokens a reflection may have; 0 takes what the form needs.
        reflect_tokens: u32 = 0,
        /// Whether the model thinks before it answers: `on` or `off`.
        thinking: Thinking = Thinking::Off,
    }
}

section! {
    /// The model: a checkpoint, or a new one of the given shape.
    Model {
        /// A Qwen3 checkpoint: a folder, or `org/name@revision` on the Hub. Empty: a new model, with the shape below and the environment's compact words.
        path: String = String::new(),
        /// Numbers per token between layers.
        hidden_size: usize = 32,
        /// Numbers per token inside a feed-forward layer.
        intermediate_size: usize = 88,
        /// Layers.
        layers: usize = 2,
        /// Query heads.
        heads: usize = 2,
        /// Key and value heads.
        kv_heads: usize = 2,
        /// Numbers per head.
        head_dim: usize = 16,
        /// Whether the last layer is the embedding.
        tied: bool = false,
        /// Tokens a sequence may have.
        context: usize = 256,
        /// The spread of a new model's weights.
        spread: f32 = 0.08,
    }
}

section! {
    /// Imitation before reinforcement: a new model learns the form of an answer from generated play. A checkpoint needs
    /// none.
    Warmstart {
        /// Optimiser steps; 0 for none.
        steps: u64 = 250,
        /// Meta-episodes per step; with transcripts, answers per step.
        meta_episodes: usize = 64,
        /// A file of conversations to learn from instead of generated play: one JSON object a line, {"messages": [{"role":
        /// "user", "content": "…"}, {"role": "assistant", "content": "…"}]}. A checkpoint learns from it too.
        transcripts: String = String::new(),
        /// Who plays: one of the environment's agents (`mage env show`), or `random`.
        teacher: String = String::new(),
        /// How often the teacher's action is replaced by any legal one.
        uniform: f64 = 0.3,
        /// The highest learning rate.
        learning_rate: f32 = 2e-3,
        /// The share of the learning rate that is left at the end (half a cosine).
        floor: f32 = 0.1,
    }
}

section! {
    /// How experience is gathered.
    Rollout {
        /// Groups per update; all members of a group meet the same opponent from the same seat with the same deals.
        groups: usize = 32,
        /// Meta-episodes per group.
        members: usize = 8,
        /// `stationary`, or `mixed`: every member draws its own opponent (an ablation).
        grouping: Grouping = Grouping::Stationary,
        /// Divides the logits; 1 samples from the policy itself.
        temperature: f32 = 1.0,
        /// Keep the most likely tokens that together have this much probability; 1 keeps all.
        top_p: f32 = 1.0,
        /// Keep only this many most likely tokens; 0 keeps all.
        top_k: u32 = 0,
        /// Gather the next batch while training on this one: faster where there are idle devices, one update off-policy.
        overlap: bool = false,
        /// Try a meta-episode this often again when its environment fails; then its place stays empty.
        refills: u32 = 1,
    }
}

section! {
    /// The loss.
    LossTerms {
        /// The main part: `ppo` (a token past the clip counts for nothing), `cispo` (it counts as if at the clip) or
        /// `importance_sampling` (no clip).
        objective: PolicyLoss = PolicyLoss::Ppo,
        /// How far the ratio of new to old probability may fall.
        clip_low: f32 = 0.2,
        /// How far it may rise.
        clip_high: f32 = 0.2,
        /// Bound on the cost of a token with a negative advantage, in advantages; 0 for none. Of `ppo` alone.
        dual_clip: f32 = 3.0,
        /// What counts once: each `row` (an answer) or each `token`.
        average: Average = Average::Row,
        /// Reward per nat of entropy of actions, at the first update. The one setting that decides everything: too low,
        /// and the policy collapses before it has learned to use its memory.
        entropy: f32 = 0.1,
        /// The same at the last update; in between a straight line.
        entropy_end: f32 = 0.01,
        /// Reward per nat of entropy of reflections.
        entropy_reflect: f32 = 0.0,
        /// Cost per nat of leaving the reference, in actions.
        kl_play: f32 = 0.0,
        /// Cost per nat of leaving the reference, in reflections: keeps them readable.
        kl_reflect: f32 = 0.1,
        /// How the divergence is estimated: `k1`, `k2` or `k3`.
        kl_form: KlForm = KlForm::K3,
    }
}

section! {
    /// Weights and their steps.
    Optim {
        /// Updates in all.
        updates: u64 = 200,
        /// Passes over each batch.
        epochs: u32 = 1,
        /// Optimiser steps per pass.
        minibatches: usize = 4,
        /// The learning rate after warm-up.
        learning_rate: f32 = 1e-3,
        /// Steps over which it rises.
        warmup: u64 = 0,
        /// The share of it that is left at the last step (a straight line); 1 for a constant rate.
        floor: f32 = 0.2,
        /// Decay of the first moment.
        beta1: f32 = 0.9,
        /// Decay of the second moment.
        beta2: f32 = 0.98,
        /// Decoupled weight decay.
        weight_decay: f32 = 0.0,
        /// The gradient's norm is scaled down to this; 0 leaves it.
        clip_norm: f32 = 1.0,
        /// Give up after so many steps in a row had numbers that are not finite.
        give_up_after: u32 = 3,
    }
}

section! {
    /// Evaluation while training and after.
    Evaluate {
        /// Every so many updates; 0 only before and after.
        every: u64 = 25,
        /// Tasks on the panel.
        tasks: usize = 600,
        /// Tasks on the panel before and after training.
        final_tasks: usize = 4800,
        /// Episodes per task. A compact prompt has room for the notes of as many, in training too: it changes the model.
        episodes: u32 = 3,
        /// The part of the population on the panel.
        split: String = "in-domain".to_owned(),
        /// Take the most likely answer instead of sampling; the three keys below then count for nothing.
        greedy: bool = false,
        /// Divides the logits; 1 samples from the policy itself, 0 is greedy.
        temperature: f32 = 1.0,
        /// Keep the most likely tokens that together have this much probability; 1 keeps all.
        top_p: f32 = 1.0,
        /// Keep only this many most likely tokens; 0 keeps all.
        top_k: u32 = 0,
        /// Sum over all that can happen in an episode instead of playing it once, where the game has at most so many
        /// places; 0 never.
        exact_places: usize = 400,
    }
}

section! {
    /// What is kept of the weights.
    Checkpoint {
        /// Every so many updates.
        every: u64 = 25,
        /// How many of the last are kept, beside the best.
        keep: usize = 2,
    }
}

section! {
    /// What is kept of the episodes.
    Records {
        /// Every so many updates; 0 for none.
        every: u64 = 25,
        /// The share of an update's groups that is written.
        share: f64 = 0.25,
    }
}

section! {
    /// Who computes.
    Engine {
        /// `native`, the embedded engine, or `tinker`, a server that trains (see `tinker` and `vllm`).
        kind: EngineKind = EngineKind::Native,
        /// Where it computes: `cpu`, `cuda` or `cuda:N` for a card, `auto` for a card where there is one.
        device: Device = Device::Auto,
        /// Threads; 0 takes all. Results do not depend on it.
        threads: usize = 0,
        /// On a card: the same bits for a request whatever else is sampled beside it, as on the CPU always; slower.
        batch_invariant: bool = false,
        /// Compute layers again in the backward pass instead of remembering them: less memory, a third more work.
        recompute: bool = false,
        /// Train low-rank adapters of this rank beside the frozen numbers of `model.path`; 0 trains the model itself, or the
        /// adapter that `model.path` is.
        lora_rank: usize = 0,
        /// What adapters add is multiplied by this over the rank; 0 takes twice the rank, or 32 where a server trains.
        lora_alpha: f32 = 0.0,
        /// The matrices that have an adapter.
        lora_targets: Vec<Projection> = Projection::ALL.to_vec(),
    }
}

section! {
    /// The server that trains, where `engine.kind` is `tinker`.
    Tinker {
        /// Its address, with or without `/api/v1`.
        url: String = "http://127.0.0.1:8000".to_owned(),
        /// The dialect of the protocol, by the version of its SDK: `0.25`.
        dialect: Dialect = Dialect::V0_25,
        /// What runs behind it: `jax`, `fsdp`, `megatron` (SkyRL) or `hosted`. Measured at the start.
        backend: Backend = Backend::Jax,
        /// The name it knows the model by; empty takes `model.path`.
        base_model: String = String::new(),
        /// The environment variable that holds its key, where it needs one.
        key_env: String = "TINKER_API_KEY".to_owned(),
        /// Measure what it divides a loss by before training, and refuse surprises.
        calibrate: bool = true,
        /// Seconds to wait for it when it does not answer, and for servers that sample when none of them does what it is asked.
        patience: f64 = 900.0,
    }
}

section! {
    /// The servers that sample, where `engine.kind` is `tinker`; without any, the one that trains does.
    Vllm {
        /// Their addresses.
        servers: Vec<String> = Vec::new(),
        /// The name they serve the model under; empty takes `model.path`.
        model: String = String::new(),
        /// A folder for adapters that this machine and the servers see under the same path; empty takes one for temporary
        /// files.
        adapters: String = String::new(),
        /// The environment variable that holds their key, where they need one.
        key_env: String = "VLLM_API_KEY".to_owned(),
        /// Requests under way at once on each server.
        in_flight: usize = 256,
        /// Seconds an answer may take before it is asked for again, elsewhere where there is another server; twice as long each
        /// time.
        answer_within: f64 = 600.0,
        /// Versions of the policy that stay on the servers.
        keep: usize = 4,
        /// How far log-probabilities of a fixed sequence may be off after a push of weights. Half precision needs 0.05.
        tolerance: f32 = 1e-3,
    }
}

section! {
    /// When to speak up.
    Watch {
        /// Warn when the mean entropy of actions falls below this before half time.
        entropy: f64 = 0.03,
        /// Warn when the divergence of actions or of reflections from the reference is above this.
        kl: f64 = 0.5,
        /// Warn when more than this share of actions is invalid.
        invalid: f64 = 0.2,
        /// Warn when less than this share of reflections states the facts, in environments that have a teacher to say them.
        factual: f64 = 0.5,
        /// Warn when what was sampled diverges from what is trained by more than this before the first step of an update,
        /// in nats a token: engines that disagree. With `rollout.overlap`, looked at where nothing was gathered ahead: at the
        /// first update and after every checkpoint.
        mismatch: f64 = 0.01,
        /// Say what is waited for when no meta-episode ends for so many seconds.
        patience: f64 = 30.0,
    }
}

/// Policy losses a recipe can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLoss {
    /// PPO's clip.
    #[default]
    Ppo,
    /// CISPO.
    Cispo,
    /// Importance sampling.
    ImportanceSampling,
}

/// What counts once in a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// Each answer, however long.
    #[default]
    Row,
    /// Each token.
    Token,
}

/// Engines a recipe can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// The embedded engine, on the CPU or a card.
    #[default]
    Native,
    /// A server that speaks the Tinker protocol.
    Tinker,
}
