//! The state of a request inside the scheduler.
//!
//! A [`Sequence`] is a request to sample or to score: its tokens, KV-cache blocks and progress. `num_computed` counts the
//! tokens whose keys and values are cached. Preemption resets it and frees the blocks, but keeps tokens and results, so
//! that a resumed sequence is only prefilled again. A backend asks for the [`LogitQuery`] at a position and answers with
//! a `LogitResult`.

use super::kv_cache::prefix_tree::NONE;
use super::response::{ResponseHandle, SamplerResponse};
use mage_engine::model::BLOCK_SIZE;
use mage_engine::{
    ActionCursor, Allowed, FinishReason, Sample, SampleRequest, SamplingParams, ScoreRequest, Scores, WeightsId,
};
use std::sync::Arc;

/// What to compute for a sequence.
pub(crate) enum SequenceTask {
    /// Sample a continuation.
    Sample { params: SamplingParams, cursor: Option<ActionCursor>, sample: Sample },
    /// Score the tokens from an index on.
    Score { from: usize, allowed: Vec<Option<Allowed>>, scores: Scores },
}

/// A request: its tokens, its KV-cache blocks and its progress.
pub(crate) struct Sequence {
    pub(crate) task: SequenceTask,
    /// Prompt and sampled tokens, or the sequence to score.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// The length at which the sequence finishes.
    pub(crate) max_len: usize,
    /// Number of tokens whose keys and values are in the KV cache.
    pub(crate) num_computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// Number of leading blocks that are full and in the prefix tree; `prefix_node` is the last of them.
    pub(crate) num_full_blocks: usize,
    pub(crate) prefix_node: u32,
    /// Prefix-tree node of the block that is still being filled, if other sequences may copy its start.
    pub(crate) tail_node: u32,
    /// Number of steps skipped to wait for a prefix that another sequence was computing.
    pub(crate) prefix_waits: u32,
    /// Number of prompt tokens already counted as prefix-cache hit or miss.
    num_counted: usize,
    /// Number of tokens it may prefill in this step.
    pub(crate) prefill_quota: usize,
    /// The last step in which it was prefilled.
    pub(crate) last_prefill_step: u64,
    /// Weight slot.
    pub(crate) weights: u32,
    pub(crate) response: Arc<ResponseHandle>,
}

/// What to compute from the logits of one token, in terms of the request.
pub(crate) enum LogitQuery<'a> {
    /// Sample token `index` of the response, constrained by `cursor`.
    Sample { params: &'a SamplingParams, cursor: Option<&'a ActionCursor>, index: usize },
    /// Log-probability of this token, over the allowed tokens.
    Score { token: u32, allowed: Option<&'a Allowed> },
}

impl Sequence {
    pub(crate) fn sample(
        request: SampleRequest,
        id: WeightsId,
        weights: u32,
        context: usize,
        response: Arc<ResponseHandle>,
    ) -> Self {
        let SampleRequest { prompt, params, allowed, .. } = request;
        let max_len = prompt.len() + (params.max_tokens as usize).min(context - prompt.len());
        let capacity = (max_len - prompt.len()).min(16);
        let sample = Sample {
            tokens: Vec::with_capacity(capacity),
            logprobs: Vec::with_capacity(capacity),
            processed_logprobs: Vec::with_capacity(capacity),
            finish: FinishReason::Length,
            weights: id,
        };
        let cursor = allowed.map(|set| set.start());
        Self::new(SequenceTask::Sample { params, cursor, sample }, prompt, max_len, weights, response)
    }

    /// At least one token must be scored.
    pub(crate) fn score(request: ScoreRequest, id: WeightsId, weights: u32, response: Arc<ResponseHandle>) -> Self {
        let ScoreRequest { tokens, from, allowed, .. } = request;
        let max_len = tokens.len();
        let scores = Scores {
            logprobs: Vec::with_capacity(max_len - from),
            entropies: Vec::with_capacity(max_len - from),
            weights: id,
        };
        Self::new(SequenceTask::Score { from, allowed, scores }, tokens, max_len, weights, response)
    }

    fn new(task: SequenceTask, tokens: Vec<u32>, max_len: usize, weights: u32, response: Arc<ResponseHandle>) -> Self {
        let prompt_len = tokens.len();
        Sequence {
            task,
            tokens,
            prompt_len,
            max_len,
            num_computed: 0,
            blocks: Vec::new(),
            num_full_blocks: 0,
            prefix_node: NONE,
            tail_node: NONE,
            prefix_waits: 0,
            num_counted: 0,
            prefill_quota: 0,
            last_prefill_step: 0,
            weights,
            response,
        }
    }

    /// Number of tokens to compute so far.
    pub(crate) fn num_tokens(&self) -> usize {
        match self.task {
            SequenceTask::Sample { .. } => self.tokens.len(),
            SequenceTask::Score { .. } => self.tokens.len() - 1, // no logits are needed after the last token
        }
    }

    /// Number of prompt tokens to prefill.
    pub(crate) fn num_prompt_tokens(&self) -> usize {
        match self.task {
            SequenceTask::Sample { .. } => self.prompt_len,
            SequenceTask::Score { .. } => self.prompt_len - 1,
        }
    }

    /// Counts the prefix-cache hits that show when `count` tokens from `position` on are scheduled: prompt tokens before
    /// `position` that were never computed for this sequence. A token is counted once, also after a preemption.
    pub(crate) fn count_prefix_hits(&mut self, position: usize, count: usize) -> usize {
        let max_len = self.num_prompt_tokens();
        let shared = position.min(max_len).saturating_sub(self.num_counted);
        self.num_counted = self.num_counted.max((position + count).min(max_len));
        shared
    }

    /// The first position whose logits are needed, which the prefix cache cannot provide.
    pub(crate) fn first_logit_position(&self) -> usize {
        match self.task {
            SequenceTask::Sample { .. } => self.tokens.len() - 1,
            // Positions scored before a preemption are not scored again.
            SequenceTask::Score { from, ref scores, .. } => from - 1 + scores.logprobs.len(),
        }
    }

    /// The logit query at a position.
    pub(crate) fn logit_query(&self, position: usize) -> LogitQuery<'_> {
        match &self.task {
            SequenceTask::Sample { params, cursor, sample } => {
                LogitQuery::Sample { params, cursor: cursor.as_ref(), index: sample.tokens.len() }
            }
            SequenceTask::Score { from, allowed, .. } => LogitQuery::Score {
                token: self.tokens[position + 1],
                allowed: allowed.get(position + 1 - from).and_then(Option::as_ref),
            },
        }
    }

    /// Number of blocks at full length.
    pub(crate) fn max_blocks(&self) -> usize {
        self.max_len.div_ceil(BLOCK_SIZE)
    }

    /// The completed response and its handle.
    pub(crate) fn into_response(self) -> (Arc<ResponseHandle>, SamplerResponse) {
        let result = match self.task {
            SequenceTask::Sample { sample, .. } => SamplerResponse::Sample(sample),
            SequenceTask::Score { scores, .. } => SamplerResponse::Scores(scores),
        };
        (self.response, result)
    }
}

/// Sequences by key. Keys are reused.
#[derive(Default)]
pub(crate) struct SequenceTable {
    all: Vec<Option<Sequence>>,
    free: Vec<u32>,
    /// Prompt tokens of all sequences.
    tokens: usize,
}

impl SequenceTable {
    /// Number of sequences and of their prompt tokens.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.all.len() - self.free.len(), self.tokens)
    }

    pub(crate) fn insert(&mut self, sequence: Sequence) -> u32 {
        self.tokens += sequence.prompt_len;
        match self.free.pop() {
            Some(key) => {
                self.all[key as usize] = Some(sequence);
                key
            }
            None => {
                self.all.push(Some(sequence));
                self.all.len() as u32 - 1
            }
        }
    }

    pub(crate) fn get(&self, key: u32) -> Option<&Sequence> {
        self.all.get(key as usize)?.as_ref()
    }

    /// A sequence that must exist.
    pub(crate) fn at(&self, key: u32) -> &Sequence {
        self.get(key).expect("a scheduled sequence exists")
    }

    /// A sequence that must exist, mutably.
    pub(crate) fn at_mut(&mut self, key: u32) -> &mut Sequence {
        self.all[key as usize].as_mut().expect("a scheduled sequence exists")
    }

    pub(crate) fn remove(&mut self, key: u32) -> Sequence {
        self.free.push(key);
        let sequence = self.all[key as usize].take().expect("a scheduled sequence exists");
        self.tokens -= sequence.prompt_len;
        sequence
    }

    /// Removes all sequences.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> {
        self.free.clear();
        self.tokens = 0;
        std::mem::take(&mut self.all).into_iter().flatten()
    }
}
