//! How good is a policy, with as little luck as possible?
//!
//! Every task of a panel is played; where the game can be enumerated, an episode counts with its expected score over all
//! deals, all that the opponent may do and all that the policy may do, given what the policy remembers at its start. Luck
//! then enters through memories alone, and not at all in the first episode.

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
    /// The mean.
    pub mean: f64,
    /// Its standard error; 0 where nothing was left to luck.
    pub se: f64,
    /// How many tasks it is over.
    pub tasks: u64,
}

/// What a policy came to on a panel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// Score by episode index, in the environment's own unit.
    pub score: Vec<EvalEstimate>,
    /// Share of episodes won, by episode index.
    pub won: Vec<EvalEstimate>,
    /// Score by opponent, by episode index.
    pub by_opponent: BTreeMap<String, Vec<EvalEstimate>>,
    /// Score by seat, by episode index.
    pub by_seat: BTreeMap<u8, Vec<EvalEstimate>>,
    /// Whether scores are expected values over all that can happen in an episode.
    pub exact: bool,
    /// Tasks that could not be played.
    pub errors: u64,
    /// The share of invalid actions.
    pub invalid: f64,
}

/// Plays a panel.
pub struct Evaluator {
    /// How it is played.
    pub rollout: Rollout,
    /// The tasks.
    pub panel: TaskSet,
    /// Sum over all that can happen where there are no more places than this; 0 never.
    pub exact_max_states: usize,
    /// The agent's luck.
    pub seed: Seed,
}

/// A part of the panel: an opponent, if there is one, and a seat.
type Stratum = (Option<String>, u8);

/// What is asked of the policy: a prompt and the answers that are possible.
type ScoreQuery = (Vec<u32>, Vec<String>);

/// An episode to be valued: its tree, and for each information set the question it comes to.
struct EnumeratedEpisode {
    tree: Arc<GameTree>,
    questions: Vec<u32>,
}

/// What one task came to.
struct EvaluatedTask {
    record: Trajectory,
    /// By episode index; empty where episodes cannot be enumerated.
    open: Vec<EnumeratedEpisode>,
}

#[derive(Default)]
struct ScoreQueries {
    ids: HashMap<ScoreQuery, u32>,
    list: Vec<(ScoreQuery, mage_core::RequestBody)>,
    /// Trees by opponent, seat and what else decides them; one that could not be grown is remembered as such.
    trees: HashMap<Hash, Option<Arc<GameTree>>>,
}

impl Evaluator {
    /// Plays the panel and sums up; `each` is called after every task. `None` when `stop` says so before the end.
    pub fn run(
        &self,
        runtime: &Runtime,
        stop: &dyn Fn() -> bool,
        mut each: impl FnMut(),
    ) -> Result<Option<EvalResult>> {
        let questions = Arc::new(Mutex::new(ScoreQueries::default()));
        let mut played: Vec<Option<EvaluatedTask>> = (0..self.panel.tasks().len()).map(|_| None).collect();
        runtime.block_on(async {
            let mut all = JoinSet::new();
            for (i, task) in self.panel.tasks().iter().cloned().enumerate() {
                let (rollout, questions) = (self.rollout.clone(), Arc::clone(&questions));
                let (limit, seed) = (self.exact_max_states, self.seed.child("agent").at(i as u64));
                all.spawn(async move {
                    let mut open = Vec::new();
                    let record = rollout
                        .play(
                            &task,
                            seed,
                            |_| (),
                            |meta, call| {
                                if limit > 0 && call.body.kind == RequestKind::Play && call.turn == 0 {
                                    open.extend(ask(meta, call.episode, limit, &rollout, &questions));
                                }
                            },
                        )
                        .await;
                    record.map(|record| (i, EvaluatedTask { record, open }))
                });
            }
            while let Some(joined) = all.join_next().await {
                let joined = joined.map_err(|e| crate::Error::Stopped(format!("a task was lost: {e}")))?;
                let (i, one) = joined?;
                played[i] = Some(one);
                each();
                if stop() {
                    break;
                }
            }
            Ok::<(), crate::Error>(())
        })?;
        if stop() {
            return Ok(None);
        }
        let played: Vec<EvaluatedTask> = played.into_iter().flatten().collect();
        let questions = std::mem::take(&mut *questions.lock().expect("no holder panics"));
        let answers = runtime.block_on(self.answers(&questions, stop))?;
        Ok(answers.map(|answers| self.sum_up(&played, &answers)))
    }

    /// The probability of each answer to each question; `None` when `stop` says so before the end.
    async fn answers(&self, questions: &ScoreQueries, stop: &dyn Fn() -> bool) -> Result<Option<Vec<Vec<f64>>>> {
        let mut all = JoinSet::new();
        for (i, ((prompt, answers), request)) in questions.list.iter().enumerate() {
            let rollout = self.rollout.clone();
            let (prompt, answers, request) = (prompt.clone(), answers.clone(), request.clone());
            all.spawn(async move { rollout.probabilities(&prompt, &answers, &request).await.map(|p| (i, p)) });
        }
        let mut out = vec![Vec::new(); questions.list.len()];
        while let Some(joined) = all.join_next().await {
            let (i, p) = joined.map_err(|e| crate::Error::Stopped(format!("a question was lost: {e}")))??;
            out[i] = p;
            if stop() {
                return Ok(None);
            }
        }
        Ok(Some(out))
    }

    fn sum_up(&self, played: &[EvaluatedTask], answers: &[Vec<f64>]) -> EvalResult {
        let episodes = self.rollout.settings.episodes as usize;
        let good: Vec<&EvaluatedTask> = played.iter().filter(|p| p.record.error.is_none()).collect();
        let exact = !good.is_empty() && good.iter().all(|p| p.open.len() == episodes);
        // By task: (score, won) by episode.
        let values: Vec<Vec<(f64, f64)>> = good
            .iter()
            .map(|p| match exact {
                true => p.open.iter().map(|o| o.tree.value(&|s| answers[o.questions[s] as usize].clone())).collect(),
                false => {
                    p.record.episodes.iter().map(|e| (f64::from(e.score()), f64::from(u8::from(e.won())))).collect()
                }
            })
            .collect();
        let cell = |p: &EvaluatedTask| (p.record.task.opponent.as_ref().map(|o| o.name.clone()), p.record.task.seat);
        let mut cells: BTreeMap<Stratum, Vec<usize>> = BTreeMap::new();
        for (i, p) in good.iter().enumerate() {
            cells.entry(cell(p)).or_default().push(i);
        }
        let curve = |keep: &dyn Fn(&Stratum) -> bool, of: &dyn Fn((f64, f64)) -> f64| -> Vec<EvalEstimate> {
            (0..episodes)
                .map(|n| {
                    let strata = cells.iter().filter(|(k, _)| keep(k)).map(|(_, members)| {
                        members.iter().filter_map(|i| values[*i].get(n)).map(|v| of(*v)).collect::<Vec<f64>>()
                    });
                    stratified(strata)
                })
                .collect()
        };
        let score = |(s, _): (f64, f64)| s;
        let names = cells.keys().filter_map(|(o, _)| o.clone()).collect::<std::collections::BTreeSet<_>>();
        let seats = cells.keys().map(|(_, s)| *s).collect::<std::collections::BTreeSet<_>>();
        let (bad, acted) = good.iter().fold((0, 0), |(b, a), p| {
            let (bad, all) = p.record.invalid_actions();
            (b + bad, a + all)
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
            errors: (played.len() - good.len()) as u64,
            invalid: f64::from(bad) / f64::from(acted.max(1)),
        }
    }
}

/// A mean over strata that are there in their right proportions: only what varies inside them is luck.
fn stratified(strata: impl Iterator<Item = Vec<f64>>) -> EvalEstimate {
    let (mut n, mut sum, mut variance) = (0_usize, 0.0, 0.0);
    for values in strata {
        let count = values.len();
        if count == 0 {
            continue;
        }
        let total: f64 = values.iter().sum();
        let mean = total / count as f64;
        let spread: f64 = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count.max(2) - 1) as f64;
        n += count;
        sum += total;
        variance += count as f64 * spread;
    }
    if n == 0 {
        return EvalEstimate::default();
    }
    EvalEstimate { mean: sum / n as f64, se: variance.sqrt() / n as f64, tasks: n as u64 }
}

/// Notes the questions an episode comes to, if it can be enumerated.
fn ask(
    meta: &mage_core::MetaEpisode,
    episode: u32,
    limit: usize,
    rollout: &Rollout,
    questions: &Mutex<ScoreQueries>,
) -> Option<EnumeratedEpisode> {
    let task = meta.task();
    // A switching opponent's episode depends on the task's seed; others' on the opponent alone.
    let switching = task.opponent.as_ref().is_some_and(|o| o.kind == mage_env::SWITCHING);
    let key = match switching {
        true => Hash::of(&(task, episode)),
        false => Hash::of(&(&task.opponent, task.seat, &task.options)),
    };
    let known = questions.lock().expect("no holder panics").trees.get(&key).cloned();
    let tree = known.unwrap_or_else(|| {
        let tree = meta.game_tree(limit).map(Arc::new);
        questions.lock().expect("no holder panics").trees.insert(key, tree.clone());
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
        let so_far = Episode { start: info_set.start.clone(), turns: turns.collect(), end: None };
        let request = meta.counterfactual_request(&so_far, Some(info_set.legal.clone()))?.ok()?;
        let question = (rollout.speech.prompt(&request.messages).ok()?, info_set.legal.clone());
        let mut q = questions.lock().expect("no holder panics");
        let next = q.list.len() as u32;
        let id = *q.ids.entry(question.clone()).or_insert(next);
        if id == next {
            q.list.push((question, request));
        }
        ids.push(id);
    }
    Some(EnumeratedEpisode { tree, questions: ids })
}

impl Rollout {
    /// How likely the policy gives each of some answers to a prompt; what is drawn under the rollout's temperature.
    async fn probabilities(
        &self,
        prompt: &[u32],
        answers: &[String],
        request: &mage_core::RequestBody,
    ) -> Result<Vec<f64>> {
        let mut logs = Vec::with_capacity(answers.len());
        for answer in answers {
            let response = self.speech.answer_tokens(request, answer)?;
            let allowed = self.speech.masks(request, &response)?;
            let tokens = [prompt, &response].concat();
            let scored = ScoreRequest { weights: self.weights.clone(), tokens, from: prompt.len(), allowed };
            logs.push(self.sampler.score(scored).await?.logprobs.iter().map(|l| f64::from(*l)).sum::<f64>());
        }
        let best = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let likely: Vec<f64> = match self.params.temperature {
            0.0 => {
                let first = logs.iter().position(|l| *l == best);
                (0..logs.len()).map(|i| f64::from(u8::from(Some(i) == first))).collect()
            }
            t => logs.iter().map(|l| ((l - best) / f64::from(t)).exp()).collect(),
        };
        let total: f64 = likely.iter().sum();
        Ok(likely.into_iter().map(|p| p / total).collect())
    }
}
