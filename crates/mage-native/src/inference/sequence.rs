//! Where does a request stand?

use super::kv_cache::prefix_tree::NONE;
use super::response::{ResponseHandle, SamplerResponse};
use mage_engine::{
    ActionCursor, Allowed, FinishReason, Sample, SampleRequest, SamplingParams, ScoreRequest, Scores, WeightsId,
};
use std::sync::Arc;

/// What is wanted of a sequence.
pub(crate) enum SequenceTask {
    /// To be continued.
    Sample { params: SamplingParams, cursor: Option<ActionCursor>, sample: Sample },
    /// To be scored from a token on.
    Score { from: usize, allowed: Vec<Option<Allowed>>, scores: Scores },
}

/// A request and its sequence.
pub(crate) struct Sequence {
    pub(crate) task: SequenceTask,
    /// The prompt and what has been written since; or all that is scored.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// The length at which it ends.
    pub(crate) max_len: usize,
    /// How many tokens have their keys and values in the pages.
    pub(crate) num_computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// How many of the pages the tree has as full ones; `node` is the last of these.
    pub(crate) num_full_blocks: usize,
    pub(crate) prefix_node: u32,
    /// The tree's node of the page that is still being written, where others may copy its start.
    pub(crate) tail_node: u32,
    /// How often it let a step pass for the sake of a start that was being computed.
    pub(crate) prefix_waits: u32,
    /// How many of the tokens it came with are known to be shared or not.
    num_counted: usize,
    /// How many tokens it may read in this step, where it is being read.
    pub(crate) prefill_quota: usize,
    /// The last step in which it was read.
    pub(crate) last_prefill_step: u64,
    /// Which weights, as the scheduler numbers them.
    pub(crate) weights: u32,
    pub(crate) response: Arc<ResponseHandle>,
}

/// What a row is asked.
pub(crate) enum LogitQuery<'a> {
    /// To draw token number `index` of an answer, which stands here among those that are possible.
    Sample { params: &'a SamplingParams, cursor: Option<&'a ActionCursor>, index: usize },
    /// How likely this token is.
    Score { token: u32, allowed: Option<&'a Allowed> },
}

/// What a row answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LogitResult {
    pub(crate) token: u32,
    /// Of the policy; not a number where the logits are not finite.
    pub(crate) logprob: f32,
    /// SampledToken: the log-probability in the distribution drawn from. Scored: the entropy.
    pub(crate) second: f32,
    /// SampledToken: the place that the answer has come to, where the device knows it.
    pub(crate) trie_node: Option<u32>,
}

impl LogitResult {
    pub(crate) fn is_finite(&self) -> bool {
        self.logprob.is_finite() && self.second.is_finite()
    }
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
        let room = (max_len - prompt.len()).min(16);
        let sample = Sample {
            tokens: Vec::with_capacity(room),
            logprobs: Vec::with_capacity(room),
            drawn_logprobs: Vec::with_capacity(room),
            finish: FinishReason::Length,
            weights: id,
        };
        let cursor = allowed.map(|set| set.start());
        Self::new(SequenceTask::Sample { params, cursor, sample }, prompt, max_len, weights, response)
    }

    /// For at least one scored token.
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

    /// How many tokens are to be computed as things stand.
    pub(crate) fn num_tokens(&self) -> usize {
        match self.task {
            SequenceTask::Sample { .. } => self.tokens.len(),
            SequenceTask::Score { .. } => self.tokens.len() - 1, // nothing follows the last
        }
    }

    /// How many of the tokens it came with are to be read.
    pub(crate) fn num_prompt_tokens(&self) -> usize {
        match self.task {
            SequenceTask::Sample { .. } => self.prompt_len,
            SequenceTask::Score { .. } => self.prompt_len - 1,
        }
    }

    /// How many tokens turn out to be shared now that `count` tokens from `position` on are computed for it: those before
    /// that it came with and were never computed for it.
    pub(crate) fn count_prefix_hits(&mut self, position: usize, count: usize) -> usize {
        let max_len = self.num_prompt_tokens();
        let shared = position.min(max_len).saturating_sub(self.num_counted);
        self.num_counted = self.num_counted.max((position + count).min(max_len));
        shared
    }

    /// The first position that must be computed here, since it is asked about.
    pub(crate) fn first_logit_position(&self) -> usize {
        match self.task {
            SequenceTask::Sample { .. } => self.tokens.len() - 1,
            // Those answered before it was set back are not asked again.
            SequenceTask::Score { from, ref scores, .. } => from - 1 + scores.logprobs.len(),
        }
    }

    /// What the row at a position is asked.
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

    /// The most pages it can come to need.
    pub(crate) fn max_blocks(&self) -> usize {
        self.max_len.div_ceil(crate::cpu::BLOCK_SIZE)
    }

    /// The finished answer.
    pub(crate) fn into_response(self) -> (Arc<ResponseHandle>, SamplerResponse) {
        let result = match self.task {
            SequenceTask::Sample { sample, .. } => SamplerResponse::Sample(sample),
            SequenceTask::Score { scores, .. } => SamplerResponse::Scores(scores),
        };
        (self.response, result)
    }
}

/// Requests by number; numbers are used again.
#[derive(Default)]
pub(crate) struct SequenceTable {
    all: Vec<Option<Sequence>>,
    free: Vec<u32>,
    /// Tokens that all of them came with.
    tokens: usize,
}

impl SequenceTable {
    /// How many there are, and the tokens they came with.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.all.len() - self.free.len(), self.tokens)
    }

    pub(crate) fn insert(&mut self, request: Sequence) -> u32 {
        self.tokens += request.prompt_len;
        match self.free.pop() {
            Some(key) => {
                self.all[key as usize] = Some(request);
                key
            }
            None => {
                self.all.push(Some(request));
                self.all.len() as u32 - 1
            }
        }
    }

    pub(crate) fn get(&self, key: u32) -> Option<&Sequence> {
        self.all.get(key as usize)?.as_ref()
    }

    /// One that must be there.
    pub(crate) fn at(&self, key: u32) -> &Sequence {
        self.get(key).expect("a scheduled request is there")
    }

    /// One that must be there, to be changed.
    pub(crate) fn at_mut(&mut self, key: u32) -> &mut Sequence {
        self.all[key as usize].as_mut().expect("a scheduled request is there")
    }

    pub(crate) fn remove(&mut self, key: u32) -> Sequence {
        self.free.push(key);
        let request = self.all[key as usize].take().expect("a scheduled request is there");
        self.tokens -= request.prompt_len;
        request
    }

    /// All of them, taken out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sequence> {
        self.free.clear();
        self.tokens = 0;
        std::mem::take(&mut self.all).into_iter().flatten()
    }
}
