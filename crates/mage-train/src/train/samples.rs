//! How do records become something to learn from?
//!
//! Records give rows, rows give credit, credit gives advantages, and each row's tokens get its advantage. Prompts that
//! several rows share stand in the batch once.

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

/// One answer to learn from.
#[derive(Clone, Debug)]
pub struct TrainingSample {
    /// Which record, by index.
    pub record: usize,
    /// Which of its calls.
    pub call: usize,
    /// What the answer earned by itself.
    pub reward: f32,
    /// What followed from it.
    pub return_to_go: f32,
    /// How much better than expected that was.
    pub advantage: f32,
}

/// The lessons of a batch: `members` records to a group, in order.
pub fn build_samples(records: &[Trajectory], members: usize, recipe: &Recipe) -> Result<Vec<TrainingSample>> {
    let rule = recipe.reward.rule(&recipe.env.name)?;
    let mut opponents: HashMap<(Option<Hash>, u8), u32> = HashMap::new();
    let mut all: Vec<Transition> = Vec::new();
    let mut places = Vec::new();
    for (i, record) in records.iter().enumerate() {
        let facing = (record.task.opponent.as_ref().map(Hash::of), record.task.seat);
        let next = opponents.len() as u32;
        let opponent = *opponents.entry(facing).or_insert(next);
        let place = MetaEpisodeIndex { group: (i / members) as u32, meta_episode: i as u32, opponent };
        for of_call in transitions(record, place, &rule, &recipe.penalty) {
            all.push(of_call.transition);
            places.push((i, of_call.request));
        }
    }
    let credited = assign_credit(&all, &recipe.method.credit);
    let worth = advantages(&all, &credited, &recipe.method.estimator);
    let lessons = places.into_iter().enumerate().map(|(row, (record, call))| TrainingSample {
        record,
        call,
        reward: all[row].reward,
        return_to_go: credited.returns[row],
        advantage: worth[row],
    });
    Ok(lessons.collect())
}

/// The class of a call's tokens.
pub(crate) fn class(call: &RequestRecord) -> TokenClass {
    if call.kind == RequestKind::Play { PLAY } else { REFLECT }
}

/// The request a recorded call answered, as far as masks depend on it.
pub(crate) fn request_of(call: &RequestRecord, max_tokens: u32) -> RequestBody {
    RequestBody {
        kind: call.kind,
        messages: Vec::new(),
        allowed: call.allowed.clone(),
        max_tokens,
        trainable: call.trainable,
    }
}

/// An answer as the engine needs it.
pub(crate) struct TokenizedSample<'a> {
    pub(crate) prompt: &'a [u32],
    pub(crate) response: &'a [u32],
    pub(crate) train: PerToken,
}

/// Puts answers into a forest in which equal prompts stand once, weighted so that the loss is a mean over rows or tokens.
pub(crate) fn forest<'a>(answers: impl Iterator<Item = TokenizedSample<'a>>, aggregation: Aggregation) -> TokenForest {
    let mut forest = TokenForest::default();
    let mut known: HashMap<&[u32], u32> = HashMap::new();
    let (mut rows, mut tokens) = (0_usize, 0_usize);
    for answer in answers {
        let parent = *known.entry(answer.prompt).or_insert_with(|| {
            forest.segments.push(Segment { parent: None, tokens: answer.prompt.to_vec(), train: None });
            forest.segments.len() as u32 - 1
        });
        rows += 1;
        tokens += answer.response.len();
        let tokens = answer.response.to_vec();
        forest.segments.push(Segment { parent: Some(parent), tokens, train: Some(answer.train) });
    }
    for segment in &mut forest.segments {
        if let Some(train) = &mut segment.train {
            let n = segment.tokens.len();
            let weight = match aggregation {
                Aggregation::Sequence => 1.0 / (rows * n) as f32,
                Aggregation::Token => 1.0 / tokens as f32,
            };
            train.weights = vec![weight; n];
        }
    }
    forest
}

/// The lessons of some records as a batch. `reference` holds the reference's log-probabilities of an answer, where the
/// loss asks for them.
pub(crate) fn batch(
    records: &[Trajectory],
    lessons: &[&TrainingSample],
    reference: &HashMap<(usize, usize), Vec<f32>>,
    needs_reference: bool,
    speech: &PromptCodec,
    play_tokens: u32,
    aggregation: Aggregation,
) -> Result<TokenForest> {
    let mut answers = Vec::with_capacity(lessons.len());
    for lesson in lessons {
        let call = &records[lesson.record].requests[lesson.call];
        let Some(tokens) = call.completion.tokens.as_ref().filter(|t| !t.response.is_empty()) else { continue };
        let n = tokens.response.len();
        // Where no divergence is charged, a reference equal to the policy costs nothing.
        let ref_logprobs = match reference.get(&(lesson.record, lesson.call)) {
            Some(known) => known.clone(),
            None if needs_reference => tokens.logprobs.clone(),
            None => Vec::new(),
        };
        answers.push(TokenizedSample {
            prompt: &tokens.prompt,
            response: &tokens.response,
            train: PerToken {
                weights: Vec::new(),
                advantages: vec![lesson.advantage; n],
                old_logprobs: tokens.logprobs.clone(),
                ref_logprobs,
                classes: vec![class(call); n],
                allowed: speech.masks(&request_of(call, play_tokens), &tokens.response)?,
            },
        });
    }
    Ok(forest(answers.into_iter(), aggregation))
}
