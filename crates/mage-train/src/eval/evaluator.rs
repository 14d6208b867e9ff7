//! Low-variance evaluation of a policy on a task set.
//!
//! Every task is played. In games small enough to enumerate, the score of an episode is its expectation over all deals,
//! opponent actions and policy actions, given the policy's memory at the start of the episode. Variance then comes only
//! from the memories; the first episode has none.

use crate::{Result, TaskSet, rollout::Rollout};
use mage_core::{
    RequestKind, Trajectory,
    episode::{Episode, Turn},
};
use mage_engine::ScoreRequest;
use mage_env::{Anchor, GameTree, Hash, ParsedAction, Seed};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};
use tokio::{runtime::Runtime, task::JoinSet};

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalEstimate {
    /// Mean.
    pub mean: f64,
    /// Standard error; 0 for an exact value.
    pub se: f64,
    /// Number of tasks.
    pub tasks: u64,
}

/// Result of a policy on a task set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// Score by episode index, in the environment's unit.
    pub score: Vec<EvalEstimate>,
    /// Fraction of episodes won, by episode index.
    pub won: Vec<EvalEstimate>,
    /// Score by opponent, by episode index.
    pub by_opponent: BTreeMap<String, Vec<EvalEstimate>>,
    /// Score by seat, by episode index.
    pub by_seat: BTreeMap<u8, Vec<EvalEstimate>>,
    /// Whether scores are exact expectations.
    pub exact: bool,
    /// Failed tasks.
    pub errors: u64,
    /// Fraction of invalid actions.
    pub invalid: f64,
}

/// Evaluates a policy on a task set.
pub struct Evaluator {
    /// The policy and its sampling.
    pub rollout: Rollout,
    /// The tasks.
    pub task_set: TaskSet,
    /// Maximum game states for exact evaluation; 0 disables it.
    pub exact_max_states: usize,
    /// Seed of sampling.
    pub seed: Seed,
}

/// Stratum of the task set: opponent, if any, and seat.
type Stratum = (Option<String>, u8);

/// Prompt of an information set and its legal actions.
type ScoreQuery = (Vec<u32>, Vec<String>);

/// An episode to evaluate exactly: its game tree and the query of each information set.
struct EnumeratedEpisode {
    tree: Arc<GameTree>,
    queries: Vec<u32>,
}

/// Result of one task.
struct EvaluatedTask {
    trajectory: Trajectory,
    /// By episode index; empty if the game is not enumerable.
    enumerated: Vec<EnumeratedEpisode>,
}

#[derive(Default)]
struct ScoreQueries {
    ids: HashMap<ScoreQuery, u32>,
    list: Vec<(ScoreQuery, mage_core::RequestBody)>,
    /// Game trees by opponent, seat and options; `None` for a tree that is too large.
    trees: HashMap<Hash, Option<Arc<GameTree>>>,
}

impl Evaluator {
    /// Plays the task set and returns the result. Calls `on_task` after every task. `None` if `stop` returns true
    /// before the end.
    pub fn run(
        &self,
        runtime: &Runtime,
        stop: &dyn Fn() -> bool,
        mut on_task: impl FnMut(),
    ) -> Result<Option<EvalResult>> {
        let queries = Arc::new(Mutex::new(ScoreQueries::default()));
        let mut evaluated: Vec<Option<EvaluatedTask>> = (0..self.task_set.tasks().len()).map(|_| None).collect();
        runtime.block_on(async {
            let mut running = JoinSet::new();
            for (i, task) in self.task_set.tasks().iter().cloned().enumerate() {
                let (rollout, queries) = (self.rollout.clone(), Arc::clone(&queries));
                let (limit, seed) = (self.exact_max_states, self.seed.child("agent").at(i as u64));
                running.spawn(async move {
                    let mut enumerated = Vec::new();
                    let trajectory = rollout
                        .play(
                            &task,
                            seed,
                            |_| (),
                            |meta, request| {
                                if limit > 0 && request.body.kind == RequestKind::Play && request.turn == 0 {
                                    enumerated.extend(enumerate(meta, request.episode, limit, &rollout, &queries));
                                }
                            },
                        )
                        .await;
                    trajectory.map(|trajectory| (i, EvaluatedTask { trajectory, enumerated }))
                });
            }
            while let Some(joined) = running.join_next().await {
                let joined = joined.map_err(|e| crate::Error::Stopped(format!("an evaluation task failed: {e}")))?;
                let (i, task) = joined?;
                evaluated[i] = Some(task);
                on_task();
                if stop() {
                    break;
                }
            }
            Ok::<(), crate::Error>(())
        })?;
        if stop() {
            return Ok(None);
        }
        let evaluated: Vec<EvaluatedTask> = evaluated.into_iter().flatten().collect();
        let queries = std::mem::take(&mut *queries.lock().expect("no holder panics"));
        let policy = runtime.block_on(self.score_queries(&queries, stop))?;
        Ok(policy.map(|policy| self.aggregate(&evaluated, &policy)))
    }

    /// Action probabilities of every query. `None` if `stop` returns true before the end.
    async fn score_queries(&self, queries: &ScoreQueries, stop: &dyn Fn() -> bool) -> Result<Option<Vec<Vec<f64>>>> {
        let mut running = JoinSet::new();
        for (i, ((prompt, actions), request)) in queries.list.iter().enumerate() {
            let rollout = self.rollout.clone();
            let (prompt, actions, request) = (prompt.clone(), actions.clone(), request.clone());
            running.spawn(async move { rollout.probabilities(&prompt, &actions, &request).await.map(|p| (i, p)) });
        }
        let mut policy = vec![Vec::new(); queries.list.len()];
        while let Some(joined) = running.join_next().await {
            let (i, p) = joined.map_err(|e| crate::Error::Stopped(format!("a scoring task failed: {e}")))??;
            policy[i] = p;
            if stop() {
                return Ok(None);
            }
        }
        Ok(Some(policy))
    }

    fn aggregate(&self, evaluated: &[EvaluatedTask], policy: &[Vec<f64>]) -> EvalResult {
        let episodes = self.rollout.episode_config.episodes as usize;
        let completed: Vec<&EvaluatedTask> = evaluated.iter().filter(|t| t.trajectory.error.is_none()).collect();
        let exact = !completed.is_empty() && completed.iter().all(|t| t.enumerated.len() == episodes);
        // By task: (score, won) by episode.
        let values: Vec<Vec<(f64, f64)>> = completed
            .iter()
            .map(|t| match exact {
                true => t.enumerated.iter().map(|e| e.tree.value(&|s| policy[e.queries[s] as usize].clone())).collect(),
                false => {
                    let episodes = t.trajectory.episodes.iter();
                    episodes.map(|e| (f64::from(e.score()), f64::from(u8::from(e.won())))).collect()
                }
            })
            .collect();
        let mut strata: BTreeMap<Stratum, Vec<usize>> = BTreeMap::new();
        for (i, t) in completed.iter().enumerate() {
            let task = &t.trajectory.task;
            strata.entry((task.opponent.as_ref().map(|o| o.name.clone()), task.seat)).or_default().push(i);
        }
        let curve = |keep: &dyn Fn(&Stratum) -> bool, of: &dyn Fn((f64, f64)) -> f64| -> Vec<EvalEstimate> {
            (0..episodes)
                .map(|n| {
                    let values = strata.iter().filter(|(k, _)| keep(k)).map(|(_, tasks)| {
                        tasks.iter().filter_map(|i| values[*i].get(n)).map(|v| of(*v)).collect::<Vec<f64>>()
                    });
                    stratified_mean(values)
                })
                .collect()
        };
        let score = |(s, _): (f64, f64)| s;
        let names = strata.keys().filter_map(|(o, _)| o.clone()).collect::<std::collections::BTreeSet<_>>();
        let seats = strata.keys().map(|(_, s)| *s).collect::<std::collections::BTreeSet<_>>();
        let (invalid, actions) = completed.iter().fold((0, 0), |(i, a), t| {
            let (invalid, actions) = t.trajectory.invalid_actions();
            (i + invalid, a + actions)
        });
        EvalResult {
            score: curve(&|_| true, &score),
            won: curve(&|_| true, &|(_, w)| w),
            by_opponent: names
                .into_iter()
                .map(|n| (n.clone(), curve(&|(o, _)| o.as_ref() == Some(&n), &score)))
                .collect(),
            by_seat: seats.into_iter().map(|s| (s, curve(&|(_, seat)| *seat == s, &score))).collect(),
            exact,
            errors: (evaluated.len() - completed.len()) as u64,
            invalid: f64::from(invalid) / f64::from(actions.max(1)),
        }
    }
}

/// Mean over strata in their population proportions; the standard error is that within strata.
fn stratified_mean(strata: impl Iterator<Item = Vec<f64>>) -> EvalEstimate {
    let (mut n, mut sum, mut variance) = (0_usize, 0.0, 0.0);
    for values in strata {
        let count = values.len();
        if count == 0 {
            continue;
        }
        let total: f64 = values.iter().sum();
        let mean = total / count as f64;
        let sample_variance: f64 = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count.max(2) - 1) as f64;
        n += count;
        sum += total;
        variance += count as f64 * sample_variance;
    }
    if n == 0 {
        return EvalEstimate::default();
    }
    EvalEstimate { mean: sum / n as f64, se: variance.sqrt() / n as f64, tasks: n as u64 }
}

/// Adds the queries of an episode, if its game is enumerable.
fn enumerate(
    meta: &mage_core::MetaEpisode,
    episode: u32,
    limit: usize,
    rollout: &Rollout,
    queries: &Mutex<ScoreQueries>,
) -> Option<EnumeratedEpisode> {
    let task = meta.task();
    // The game tree of a switching opponent depends on the task's seed; otherwise on the opponent alone.
    let switching = task.opponent.as_ref().is_some_and(|o| o.kind == mage_env::SWITCHING);
    let key = match switching {
        true => Hash::of(&(task, episode)),
        false => Hash::of(&(&task.opponent, task.seat, &task.options)),
    };
    let cached = queries.lock().expect("no holder panics").trees.get(&key).cloned();
    let tree = cached.unwrap_or_else(|| {
        let tree = meta.game_tree(limit).map(Arc::new);
        queries.lock().expect("no holder panics").trees.insert(key, tree.clone());
        tree
    })?;
    let mut ids = Vec::with_capacity(tree.info_sets.len());
    for info_set in &tree.info_sets {
        let turns = info_set.history.iter().map(|(action, observation)| Turn {
            request: mage_core::RequestId(0),
            anchor: Anchor(String::new()),
            action: ParsedAction::Act(action.clone()),
            valid: true,
            reward: 0.0,
            observation: observation.clone(),
        });
        let history = Episode { start: info_set.start.clone(), turns: turns.collect(), end: None };
        let request = meta.counterfactual_request(&history, Some(info_set.legal.clone()))?.ok()?;
        let query = (rollout.codec.prompt(&request.messages).ok()?, info_set.legal.clone());
        let mut q = queries.lock().expect("no holder panics");
        let next = q.list.len() as u32;
        let id = *q.ids.entry(query.clone()).or_insert(next);
        if id == next {
            q.list.push((query, request));
        }
        ids.push(id);
    }
    Some(EnumeratedEpisode { tree, queries: ids })
}

impl Rollout {
    /// Probabilities of the given actions under the policy and the temperature of the rollout.
    async fn probabilities(
        &self,
        prompt: &[u32],
        actions: &[String],
        request: &mage_core::RequestBody,
    ) -> Result<Vec<f64>> {
        let mut logprobs = Vec::with_capacity(actions.len());
        for action in actions {
            let response = self.codec.response_tokens(request, action)?;
            let allowed = self.codec.masks(request, &response)?;
            let tokens = [prompt, &response].concat();
            let scored = ScoreRequest { weights: self.weights.clone(), tokens, from: prompt.len(), allowed };
            logprobs.push(self.sampler.score(scored).await?.logprobs.iter().map(|l| f64::from(*l)).sum::<f64>());
        }
        let max = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = match self.params.temperature {
            0.0 => {
                let first = logprobs.iter().position(|l| *l == max);
                (0..logprobs.len()).map(|i| f64::from(u8::from(Some(i) == first))).collect()
            }
            t => logprobs.iter().map(|l| ((l - max) / f64::from(t)).exp()).collect(),
        };
        let total: f64 = weights.iter().sum();
        Ok(weights.into_iter().map(|p| p / total).collect())
    }
}
