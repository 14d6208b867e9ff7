//! Exact expectations of the episodes of small games.
//!
//! The score of an episode is its expectation over all deals, opponent actions and policy actions, given the policy's
//! memory at the start of the episode. Variance then comes only from the memories; the first episode has none.

use crate::{
    Result,
    policy::{ModelPolicy, PolicyKind},
    rollout::Observer,
};
use mage_core::{
    EpisodeConfig, MetaEpisode, Request, RequestBody, RequestId, RequestKind, Trajectory,
    episode::{Episode, ExpectedValue, Turn},
    prompt::PromptForm,
};
use mage_engine::{SamplingParams, Thinking};
use mage_env::{Anchor, GameTree, Hash, ParsedAction, SWITCHING};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tokio::sync::OnceCell;

/// Tokens of an information set's prompt, and its legal actions.
type Query = (Vec<u32>, Vec<String>);

/// Computes the action probabilities of a policy in every information set of an episode. Shared by the tasks of a task
/// set: equal queries are computed once.
pub(super) struct ExactExpectations {
    policy: StatedPolicy,
    max_states: usize,
    probabilities: Mutex<HashMap<Query, Arc<OnceCell<Vec<f64>>>>>,
    /// Game trees by opponent, seat and options; `None` for a tree that is too large.
    trees: Mutex<HashMap<Hash, Option<Arc<GameTree>>>>,
}

/// A policy that states its probabilities.
enum StatedPolicy {
    Model(ModelPolicy),
    Uniform,
}

/// An episode to evaluate exactly: its game tree and the query of each information set.
struct EnumeratedEpisode {
    tree: Arc<GameTree>,
    queries: Vec<(Query, RequestBody)>,
}

/// Collects the episodes of one meta-episode while it is played.
pub(super) struct EnumeratedMetaEpisode<'a> {
    expectations: Option<&'a ExactExpectations>,
    episodes: Mutex<Vec<EnumeratedEpisode>>,
}

impl ExactExpectations {
    /// `None` if the policy cannot state its probabilities: a chat model, a scripted agent, a model that thinks or whose
    /// actions are not masked, or sampling parameters that change the distribution token by token.
    pub(super) fn new(policy: &PolicyKind, config: &EpisodeConfig, max_states: usize) -> Option<Self> {
        let policy = match policy {
            _ if max_states == 0 || !config.mask_actions => return None,
            PolicyKind::Random => StatedPolicy::Uniform,
            PolicyKind::Model(model) if config.prompt_form == PromptForm::Compact && is_enumerable(model, config) => {
                StatedPolicy::Model(model.clone())
            }
            PolicyKind::Model(_) | PolicyKind::Chat(_) | PolicyKind::Scripted(_) => return None,
        };
        Some(ExactExpectations { policy, max_states, probabilities: Mutex::default(), trees: Mutex::default() })
    }

    /// Adds the expectation to every episode, if all of them could be enumerated.
    pub(super) async fn add_to(
        &self,
        trajectory: &mut Trajectory,
        enumerated: EnumeratedMetaEpisode<'_>,
    ) -> Result<()> {
        let episodes = enumerated.episodes.into_inner().expect("no holder panics");
        if trajectory.error.is_some() || episodes.len() != trajectory.episodes.len() {
            return Ok(());
        }
        for (episode, enumerated) in trajectory.episodes.iter_mut().zip(episodes) {
            let mut policy = Vec::with_capacity(enumerated.queries.len());
            for (query, request) in &enumerated.queries {
                policy.push(self.action_probabilities(query, request).await?);
            }
            let (score, won) = enumerated.tree.value(&|info_set| policy[info_set].clone());
            episode.expected = Some(ExpectedValue { score, won });
        }
        Ok(())
    }

    async fn action_probabilities(&self, query: &Query, request: &RequestBody) -> Result<Vec<f64>> {
        let (prompt, actions) = query;
        match &self.policy {
            StatedPolicy::Uniform => Ok(vec![1.0 / actions.len() as f64; actions.len()]),
            StatedPolicy::Model(model) => {
                let cell = {
                    let mut known = self.probabilities.lock().expect("no holder panics");
                    Arc::clone(known.entry(query.clone()).or_default())
                };
                Ok(cell.get_or_try_init(|| model.probabilities(prompt, actions, request)).await?.clone())
            }
        }
    }

    /// The game tree of the current episode and the queries of its information sets; `None` if it is too large.
    fn enumerate(&self, meta: &MetaEpisode, episode: u32) -> Option<EnumeratedEpisode> {
        let task = meta.task();
        // The game tree of a switching opponent depends on the task's seed; otherwise on the opponent alone.
        let key = match task.opponent.as_ref().is_some_and(|o| o.kind == SWITCHING) {
            true => Hash::of(&(task, episode)),
            false => Hash::of(&(&task.opponent, task.seat, &task.options)),
        };
        let cached = self.trees.lock().expect("no holder panics").get(&key).cloned();
        let tree = cached.unwrap_or_else(|| {
            let tree = meta.game_tree(self.max_states).map(Arc::new);
            self.trees.lock().expect("no holder panics").insert(key, tree.clone());
            tree
        })?;
        let mut queries = Vec::with_capacity(tree.info_sets.len());
        for info_set in &tree.info_sets {
            let turns = info_set.history.iter().map(|(action, observation)| Turn {
                request: RequestId(0),
                anchor: Anchor(String::new()),
                action: ParsedAction::Act(action.clone()),
                valid: true,
                reward: 0.0,
                observation: observation.clone(),
            });
            let history = Episode { start: info_set.start.clone(), turns: turns.collect(), ..Episode::default() };
            let request = meta.counterfactual_request(&history, Some(info_set.legal.clone()))?.ok()?;
            let prompt = match &self.policy {
                StatedPolicy::Model(model) => model.codec.prompt(&request.messages).ok()?,
                StatedPolicy::Uniform => Vec::new(),
            };
            queries.push(((prompt, info_set.legal.clone()), request));
        }
        Some(EnumeratedEpisode { tree, queries })
    }
}

/// Whether the probability of an action follows from its log-probability at temperature 1: sampling is unfiltered, and
/// either the temperature is 1 or an action is a single token, so that no other tokens are renormalised.
fn is_enumerable(model: &ModelPolicy, config: &EpisodeConfig) -> bool {
    let SamplingParams { temperature, top_p, top_k, min_p, .. } = model.params;
    let unfiltered = top_p == 1.0 && top_k == 0 && min_p == 0.0;
    let single_token = config.play_tokens == 1;
    model.codec.thinking() == Thinking::Off
        && (if temperature == 0.0 { single_token } else { unfiltered && (temperature == 1.0 || single_token) })
}

impl<'a> EnumeratedMetaEpisode<'a> {
    pub(super) fn new(expectations: Option<&'a ExactExpectations>) -> Self {
        EnumeratedMetaEpisode { expectations, episodes: Mutex::default() }
    }
}

impl Observer for EnumeratedMetaEpisode<'_> {
    fn request(&self, meta: &MetaEpisode, request: &Request) {
        let starts_episode = request.body.kind == RequestKind::Play && request.turn == 0;
        if let Some(expectations) = self.expectations.filter(|_| starts_episode) {
            let enumerated = expectations.enumerate(meta, request.episode);
            self.episodes.lock().expect("no holder panics").extend(enumerated);
        }
    }
}
