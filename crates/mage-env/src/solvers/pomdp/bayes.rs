//! The Bayes-adaptive optimum of one seat against a prior over opponents.
//!
//! [`BayesAdaptiveSolver`] starts from the prior, updates its belief with observations, and values every action by its
//! score *and* its information. `mage` reports its scores by episode as ceilings, and the scripted `bayes` agent
//! queries it at every move.
//!
//! ```
//! use mage_env::{Deal, OpponentSchedule, kuhn::{self, Kuhn}, solvers::{BayesAdaptiveSolver, Candidate, ScoreObjective}};
//! use std::sync::Arc;
//! let candidates = [("rock", kuhn::CONSERVATIVE), ("maniac", kuhn::AGGRESSIVE)].map(|(name, table)| Candidate {
//!     name: name.to_owned(),
//!     probability: 0.5,
//!     schedule: OpponentSchedule::stationary(name, Arc::new(table)),
//! });
//! let bayes = BayesAdaptiveSolver::new(&Kuhn, 0, Deal::Fresh, &candidates, 3)?;
//! let curve = bayes.curve(ScoreObjective::Last);
//! assert!(curve.last() > bayes.memoryless().last());
//!
//! // The agent checked the Queen, called a bet and lost to the King. Both opponents bet the King.
//! let belief = bayes.update(&bayes.prior(), &["Q", "Qpb", "Qpbb/K"])?.expect("possible");
//! assert!((belief[0] - 0.5).abs() < 1e-12);
//! let action = bayes.best_action(&belief, 2, ScoreObjective::Last, &["K"])?.expect("possible");
//! # let _ = action;
//! # Ok::<(), mage_env::Error>(())
//! ```

use super::{
    super::ScoreCurve,
    belief_key::BeliefKey,
    belief_search::{
        AdaptationPomdp, BeliefSearch, Particle, ScoreObjective, SearchMode, ValueMemo, group_key, normalise,
    },
    hidden_type::{Candidate, HiddenType, HiddenTypes},
    hsvi::{PomdpSolution, WorkLimits, solve},
    pass_at_k::pass_at_k,
    seat_view::SeatView,
};
use crate::{ActionId, Deal, Error, Game, Result};
use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

/// Maximum number of cached best actions.
const MAX_CACHED_ACTIONS: usize = 200_000;

/// The optimum of one seat against a prior over opponents, for a number of episodes. It is exact, or, where opponents
/// lead to too many beliefs, a policy with a bound on its distance to the optimum ([`gap`](BayesAdaptiveSolver::gap)).
///
/// A *belief* is a probability for each of [`hidden_types`](BayesAdaptiveSolver::hidden_types) at the start of an
/// episode. The agent's *observations* in an episode are [`Game::observe`] texts: one at each of its decisions, and one
/// at the end.
pub struct BayesAdaptiveSolver {
    model: AdaptationPomdp,
    seat: u8,
    episodes: u32,
    /// Number of episodes solved; later ones repeat the last.
    solved: u32,
    mode: SearchMode,
    curves: [ScoreCurve; 2],
    gaps: [f64; 2],
    memos: Mutex<SolverMemos>,
}

#[derive(Default)]
struct SolverMemos {
    values: [ValueMemo; 2],
    best_actions: HashMap<(ScoreObjective, u32, BeliefKey), usize>,
}

impl BayesAdaptiveSolver {
    /// Solves the game from `seat` against `candidates`, whose probabilities sum to 1, over `episodes` episodes.
    ///
    /// With [`Deal::Fixed`] the chance opening is hidden but constant across episodes, so the agent learns it as well.
    /// Fails for strategies without a policy and for games that are too large.
    pub fn new<G: Game>(game: &G, seat: u8, deal: Deal, candidates: &[Candidate<G>], episodes: u32) -> Result<Self>
    where
        G::State: Eq + Hash,
    {
        let location = "oracle";
        let total: f64 = candidates.iter().map(|c| c.probability).sum();
        if candidates.is_empty() || (total - 1.0).abs() > 1e-9 || !candidates.iter().all(|c| c.probability >= 0.0) {
            return Err(Error::invalid(location, "the candidates' probabilities must sum to 1"));
        }
        if seat >= game.players() {
            return Err(Error::invalid(location, format!("seat {seat} does not exist; there are {}", game.players())));
        }
        if episodes == 0 {
            return Err(Error::invalid(location, "a meta-episode has at least one episode"));
        }
        let strategies: Vec<_> = candidates.iter().flat_map(|c| c.schedule.phases().iter().cloned()).collect();
        let view = SeatView::new(game, seat, &strategies, deal == Deal::Fixed)?;
        let hidden = HiddenTypes::new(candidates, &view);
        let model = AdaptationPomdp::new(view, hidden, episodes);
        Ok(Self::with_limits(model, seat, episodes, WorkLimits::default()))
    }

    fn with_limits(model: AdaptationPomdp, seat: u8, episodes: u32, limits: WorkLimits) -> Self {
        let PomdpSolution { curves, gaps, memos: values, episodes: solved, exact } = solve(&model, episodes, limits);
        // Queries use the values found here and never tighten bounds.
        let mode = match exact {
            true => SearchMode::Exact { work_limit: u64::MAX },
            false => SearchMode::Bounded { tolerance: f64::INFINITY, work_limit: u64::MAX },
        };
        let memos = Mutex::new(SolverMemos { values, best_actions: HashMap::new() });
        BayesAdaptiveSolver { model, seat, episodes, solved, mode, curves, gaps, memos }
    }

    /// The hidden types.
    pub fn hidden_types(&self) -> &[HiddenType] {
        &self.model.hidden.types
    }

    /// The agent's seat.
    pub fn seat(&self) -> u8 {
        self.seat
    }

    /// The number of episodes.
    pub fn episodes(&self) -> u32 {
        self.episodes
    }

    /// The belief before the first episode.
    pub fn prior(&self) -> Vec<f64> {
        self.model.hidden.prior.clone()
    }

    /// The prior given the opponent (a candidate's index); phase and deal stay unknown.
    pub fn prior_for_opponent(&self, opponent: usize) -> Result<Vec<f64>> {
        let hidden = &self.model.hidden;
        let keep = |(t, p): (&HiddenType, &f64)| if t.opponent == opponent { *p } else { 0.0 };
        let mut belief: Vec<f64> = hidden.types.iter().zip(&hidden.prior).map(keep).collect();
        let total: f64 = belief.iter().sum();
        if total <= 0.0 {
            return Err(Error::invalid(
                "oracle",
                format!("candidate index {opponent} does not exist or has probability 0"),
            ));
        }
        belief.iter_mut().for_each(|b| *b /= total);
        Ok(belief)
    }

    /// Probability of a chance opening where deals are fixed; 1 where they are fresh.
    pub fn deal_probability(&self, deal: usize) -> f64 {
        self.model.view.deals.get(deal).copied().unwrap_or(0.0)
    }

    /// Expected score by episode of the best policy for an objective.
    pub fn curve(&self, objective: ScoreObjective) -> &ScoreCurve {
        &self.curves[objective as usize]
    }

    /// Upper bound of the difference between the optimum and [`curve`](BayesAdaptiveSolver::curve) in its objective: a
    /// rounding error unless switching or mixing opponents lead to too many beliefs. The curve itself is always the
    /// exact score of a policy.
    pub fn gap(&self, objective: ScoreObjective) -> f64 {
        self.gaps[objective as usize]
    }

    /// The maximum probability of at least one win (a score above 0) within 1, 2, … episodes, each its own optimum.
    /// `None` for too many beliefs or more than 100 episodes.
    pub fn pass_at_k(&self) -> Option<Vec<f64>> {
        pass_at_k(&self.model, self.episodes, WorkLimits::default().exact)
    }

    /// Number of (belief, episodes left) pairs solved so far, over both objectives.
    pub fn num_beliefs(&self) -> usize {
        self.lock().values.iter().map(ValueMemo::num_beliefs).sum()
    }

    /// The belief of the best memoryless policy at the start of each episode: the mean marginal. It plays
    /// [`best_action`](BayesAdaptiveSolver::best_action) with one episode left.
    pub fn memoryless_belief(&self) -> Vec<f64> {
        self.model.memoryless_belief(self.episodes)
    }

    /// Expected score by episode of the best memoryless policy.
    pub fn memoryless(&self) -> ScoreCurve {
        ScoreCurve {
            by_episode: self.model.scores_by_episode(&self.model.memoryless_scores(self.episodes), self.episodes),
        }
    }

    /// Scores of the best responses, by type.
    pub fn best_response_values(&self) -> Vec<f64> {
        self.model.best_response_values().to_vec()
    }

    /// Expected score by episode of an agent that knows the type before every episode.
    pub fn full_info(&self) -> ScoreCurve {
        self.model.full_info(self.episodes)
    }

    /// Likelihood of one episode's observations under each type, given the agent's own actions. All zero if no type can
    /// lead there; an error if the texts are not observations of this game.
    pub fn likelihood(&self, seen: &[&str]) -> Result<Vec<f64>> {
        let n = self.hidden_types().len();
        let group = self.condition(&vec![1.0; n], seen, true)?;
        Ok(group.map_or_else(|| vec![0.0; n], |g| self.model.type_weights(&g)))
    }

    /// The belief for the next episode after this episode's observations, including the terminal one. `None` if no type
    /// with positive probability can lead there.
    pub fn update(&self, belief: &[f64], seen: &[&str]) -> Result<Option<Vec<f64>>> {
        self.check_belief(belief)?;
        let likelihood = self.likelihood(seen)?;
        let mut posterior: Vec<f64> = belief.iter().zip(&likelihood).map(|(b, l)| b * l).collect();
        let total: f64 = posterior.iter().sum();
        if total <= 0.0 {
            return Ok(None);
        }
        posterior.iter_mut().for_each(|p| *p /= total);
        Ok(Some(self.model.hidden.predict(&posterior)))
    }

    /// The best action with `left` episodes left (including this one), for an agent that started this episode with
    /// `belief` and has the observations `seen`, the current decision last. Ties are broken as in
    /// [`curve`](BayesAdaptiveSolver::curve). `None` if no type with positive probability can lead here.
    pub fn best_action(
        &self,
        belief: &[f64],
        left: u32,
        objective: ScoreObjective,
        seen: &[&str],
    ) -> Result<Option<ActionId>> {
        self.check_belief(belief)?;
        if left == 0 || left > self.episodes {
            let problem = format!("{left} episodes left is outside the solved range 1 to {}", self.episodes);
            return Err(Error::invalid("oracle", problem));
        }
        let Some(mut group) = self.condition(belief, seen, false)? else { return Ok(None) };
        normalise(&mut group);
        let choice = self.choose(&group, left.min(self.solved), objective);
        let observation = self.model.view.nodes[group[0].node as usize].observation;
        Ok(Some(self.model.view.observations[observation as usize].actions[choice]))
    }

    fn choose(&self, group: &[Particle], left: u32, objective: ScoreObjective) -> usize {
        let mut memos = self.lock();
        let key = (objective, left, group_key(group));
        if let Some(known) = memos.best_actions.get(&key) {
            return *known;
        }
        let mut search = BeliefSearch {
            model: &self.model,
            objective,
            mode: self.mode,
            memo: &mut memos.values[objective as usize],
        };
        let choice = search.best_action_index(group, left).expect("the work limit is infinite");
        if memos.best_actions.len() >= MAX_CACHED_ACTIONS {
            memos.best_actions.clear();
        }
        memos.best_actions.insert(key, choice);
        choice
    }

    /// Particles after the observations `seen`; `None` if there are none.
    fn condition(&self, belief: &[f64], seen: &[&str], ended: bool) -> Result<Option<Vec<Particle>>> {
        let model = &self.model;
        let mut current: Option<Vec<Particle>> = None;
        for (i, text) in seen.iter().enumerate() {
            let terminal = ended && i + 1 == seen.len();
            let Some(observation) = model.view.observation_id(text, terminal) else {
                let what = if terminal { "a terminal observation" } else { "an observation at a decision" };
                return Err(Error::invalid("oracle", format!("`{text}` is not {what} of seat {}", self.seat)));
            };
            let matches = |p: &Particle| model.view.nodes[p.node as usize].observation == observation;
            let keep_matching = |mut all: Vec<Particle>| {
                all.retain(|p| matches(p) && p.weight > 0.0);
                all
            };
            let next = match &current {
                None => keep_matching(model.initial_particles(belief)),
                Some(group) => {
                    let previous = model.view.nodes[group[0].node as usize].observation;
                    let actions = model.view.observations[previous as usize].actions.len();
                    let mut successors =
                        (0..actions).map(|a| keep_matching(model.after_action(group, a))).filter(|w| !w.is_empty());
                    let successor = successors.next().unwrap_or_default();
                    if successors.next().is_some() {
                        let problem =
                            format!("`{text}` does not reveal the agent's own action; `Game::observe` must include it");
                        return Err(Error::invalid("oracle", problem));
                    }
                    successor
                }
            };
            if next.is_empty() {
                return Ok(None);
            }
            current = Some(next);
        }
        current.map_or_else(|| Err(Error::invalid("oracle", "no observations; pass at least one")), |g| Ok(Some(g)))
    }

    fn check_belief(&self, belief: &[f64]) -> Result<()> {
        let n = self.hidden_types().len();
        let valid = belief.len() == n && belief.iter().all(|b| b.is_finite() && *b >= 0.0);
        if valid && (belief.iter().sum::<f64>() - 1.0).abs() < 1e-6 {
            return Ok(());
        }
        Err(Error::invalid("oracle", format!("a belief must be {n} probabilities that sum to 1, one per hidden type")))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SolverMemos> {
        // A memo holds complete values only, so it stays valid after a panic elsewhere.
        self.memos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hsvi::OBJECTIVES;
    use super::*;
    use crate::{OpponentSchedule, kuhn::Kuhn};

    /// A single known opponent gives the same value in every episode, for any number of episodes.
    #[test]
    fn known_opponent_gives_the_same_value_in_every_episode() {
        let schedule = OpponentSchedule::stationary("only", std::sync::Arc::new(crate::UniformOpponent));
        let only = Candidate { name: "only".to_owned(), probability: 1.0, schedule };
        let bayes = BayesAdaptiveSolver::new(&Kuhn, 1, Deal::Fresh, &[only], 5_000).unwrap();
        let expected = bayes.best_response_values()[0];
        for objective in OBJECTIVES {
            let curve = &bayes.curve(objective).by_episode;
            assert_eq!(curve.len(), 5_000);
            assert!(curve.iter().all(|v| (v - expected).abs() < 1e-12) && bayes.gap(objective) < 1e-3);
        }
        assert!(bayes.best_action(&[1.0], 5_000, ScoreObjective::Sum, &["Kp"]).unwrap().is_some());
    }
}
