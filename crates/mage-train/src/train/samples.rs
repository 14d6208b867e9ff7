//! Training samples: from trajectories to a batch.
//!
//! Trajectories become transitions, transitions receive credit, and credit becomes advantages. All tokens of a response
//! share its advantage. Equal prompts appear in the batch once.

use crate::{
    Result,
    policy::codec::PromptCodec,
    recipe::{Aggregation, PLAY, REFLECT, Recipe},
};
use mage_core::{
    MetaEpisodeIndex, RequestBody, RequestKind, RequestRecord, Trajectory, Transition, advantages, assign_credit,
    transitions,
};
use mage_engine::{PerToken, Segment, TokenClass, TokenForest};
use mage_env::Hash;
use std::collections::HashMap;

/// A response with its reward, return and advantage.
#[derive(Clone, Debug)]
pub struct TrainingSample {
    /// Index of the trajectory.
    pub trajectory: usize,
    /// Index of the request in the trajectory.
    pub request: usize,
    /// Immediate reward.
    pub reward: f32,
    /// Discounted return from here on.
    pub return_to_go: f32,
    /// Advantage.
    pub advantage: f32,
}

/// The samples of a batch of trajectories, ordered by group; each group has `group_size` of them.
pub fn build_samples(trajectories: &[Trajectory], group_size: usize, recipe: &Recipe) -> Result<Vec<TrainingSample>> {
    let reward_rule = recipe.reward.rule(&recipe.env.name)?;
    let mut opponents: HashMap<(Option<Hash>, u8), u32> = HashMap::new();
    let mut all: Vec<Transition> = Vec::new();
    let mut sources = Vec::new();
    for (i, trajectory) in trajectories.iter().enumerate() {
        let opponent_and_seat = (trajectory.task.opponent.as_ref().map(Hash::of), trajectory.task.seat);
        let next = opponents.len() as u32;
        let opponent = *opponents.entry(opponent_and_seat).or_insert(next);
        let index = MetaEpisodeIndex { group: (i / group_size) as u32, meta_episode: i as u32, opponent };
        for step in transitions(trajectory, index, &reward_rule, &recipe.penalty) {
            all.push(step.transition);
            sources.push((i, step.request));
        }
    }
    let credit = assign_credit(&all, &recipe.method.credit);
    let advantages = advantages(&all, &credit, &recipe.method.estimator);
    let samples = sources.into_iter().enumerate().map(|(i, (trajectory, request))| TrainingSample {
        trajectory,
        request,
        reward: all[i].reward,
        return_to_go: credit.returns[i],
        advantage: advantages[i],
    });
    Ok(samples.collect())
}

/// Token class of a response.
pub(crate) fn token_class(record: &RequestRecord) -> TokenClass {
    if record.kind == RequestKind::Play { PLAY } else { REFLECT }
}

/// The request of a record, reduced to the fields that determine action masks.
pub(crate) fn mask_request(record: &RequestRecord, max_tokens: u32) -> RequestBody {
    RequestBody {
        kind: record.kind,
        messages: Vec::new(),
        allowed: record.allowed.clone(),
        max_tokens,
        trainable: record.trainable,
    }
}

/// A tokenized prompt and response with the training values of the response.
pub(crate) struct TokenizedSample<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) response: &'a [u32],
    pub(crate) train: PerToken,
}

/// Builds a token forest in which equal prompts appear once, weighted so that the loss is a mean over sequences or
/// tokens.
pub(crate) fn token_forest<'a>(
    samples: impl Iterator<Item = TokenizedSample<'a>>,
    aggregation: Aggregation,
) -> TokenForest {
    let mut forest = TokenForest::default();
    let mut prompt_segments: HashMap<&[u32], u32> = HashMap::new();
    let (mut num_sequences, mut num_tokens) = (0_usize, 0_usize);
    for sample in samples {
        let parent = *prompt_segments.entry(sample.prompt).or_insert_with(|| {
            forest.segments.push(Segment { parent: None, tokens: sample.prompt.to_vec(), train: None });
            forest.segments.len() as u32 - 1
        });
        num_sequences += 1;
        num_tokens += sample.response.len();
        let tokens = sample.response.to_vec();
        forest.segments.push(Segment { parent: Some(parent), tokens, train: Some(sample.train) });
    }
    for segment in &mut forest.segments {
        if let Some(train) = &mut segment.train {
            let n = segment.tokens.len();
            let weight = match aggregation {
                Aggregation::Sequence => 1.0 / (num_sequences * n) as f32,
                Aggregation::Token => 1.0 / num_tokens as f32,
            };
            train.weights = vec![weight; n];
        }
    }
    forest
}

/// Builds the batch of a minibatch of samples. `reference` holds the log-probabilities of the reference policy for the
/// responses that have a KL penalty.
pub(crate) fn build_batch(
    trajectories: &[Trajectory],
    samples: &[&TrainingSample],
    reference: &HashMap<(usize, usize), Vec<f32>>,
    needs_reference: bool,
    codec: &PromptCodec,
    play_tokens: u32,
    aggregation: Aggregation,
) -> Result<TokenForest> {
    let mut tokenized = Vec::with_capacity(samples.len());
    for sample in samples {
        let record = &trajectories[sample.trajectory].requests[sample.request];
        let Some(tokens) = record.completion.tokens.as_ref().filter(|t| !t.response.is_empty()) else { continue };
        let n = tokens.response.len();
        // Without a KL penalty on this class, the policy's own log-probabilities stand in for the reference: a
        // divergence of 0.
        let ref_logprobs = match reference.get(&(sample.trajectory, sample.request)) {
            Some(logprobs) => logprobs.clone(),
            None if needs_reference => tokens.logprobs.clone(),
            None => Vec::new(),
        };
        tokenized.push(TokenizedSample {
            prompt: &tokens.prompt,
            response: &tokens.response,
            train: PerToken {
                weights: Vec::new(),
                advantages: vec![sample.advantage; n],
                old_logprobs: tokens.logprobs.clone(),
                ref_logprobs,
                classes: vec![token_class(record); n],
                allowed: codec.masks(&mask_request(record, play_tokens), &tokens.response)?,
            },
        });
    }
    Ok(token_forest(tokenized.into_iter(), aggregation))
}
