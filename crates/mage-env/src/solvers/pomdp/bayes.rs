//! How well can the best possible learner do, and what would it do now?
//!
//! [`BayesAdaptiveSolver`] is the optimum against a prior over opponents, from one seat: it starts from the prior, learns from
//! what the rules show it, and weighs every action by what it earns now *and* by what it will reveal. `mage` prints its
//! scores by episode as ceilings, and the scripted `bayes` agent asks it for every move.
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
//! // A Queen was checked, bet into, called, and beaten by the King: both would have bet it.
//! let belief = bayes.update(&bayes.prior(), &["Q", "Qpb", "Qpbb/K"])?.expect("possible");
//! assert!((belief[0] - 0.5).abs() < 1e-12);
//! let action = bayes.best_action(&belief, 2, ScoreObjective::Last, &["K"])?.expect("possible");
//! # let _ = action;
//! # Ok::<(), mage_env::Error>(())
//! ```

use super::{
    super::ScoreCurve,
    belief_key::Cell,
    belief_search::{Memo, Model, Particle, ScoreObjective, Search, Way, group_key, normalise},
    hidden_type::{Candidate, Hidden, HiddenType},
    hsvi::{Limits, Solution, solve},
    pass_at_k::pass_at_k,
    seat_view::SeatView,
};
use crate::{ActionId, Deal, Error, Game, Result};
use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

/// How many answers to questions are kept.
const KEPT_ANSWERS: usize = 200_000;

/// The optimum of one seat against a prior over opponents, for a number of episodes: exact, or where opponents mix so much
/// that this is out of reach, a policy and how far below the optimum it may be ([`gap`](BayesAdaptiveSolver::gap)).
///
/// A *belief* is a probability for each of [`types`](BayesAdaptiveSolver::types), as of the start of an episode. What the agent *saw*
/// in an episode is the list of its [`Game::observe`] texts: one at each of its decisions, and one at the end.
pub struct BayesAdaptiveSolver {
    model: Model,
    seat: u8,
    episodes: u32,
    /// How many of them were solved: from the last of these on, all episodes are alike.
    solved: u32,
    way: Way,
    curves: [ScoreCurve; 2],
    errors: [f64; 2],
    memos: Mutex<Memos>,
}

#[derive(Default)]
struct Memos {
    values: [Memo; 2],
    answers: HashMap<(ScoreObjective, u32, Cell), usize>,
}

impl BayesAdaptiveSolver {
    /// Solves the game from `seat` against `candidates`, whose shares add up to 1, over `episodes` episodes.
    ///
    /// With [`Deal::Fixed`] the opening deal is hidden but the same in all episodes, so the agent learns it as well.
    /// Refused: strategies that state no probabilities, and games too large.
    pub fn new<G: Game>(game: &G, seat: u8, deal: Deal, candidates: &[Candidate<G>], episodes: u32) -> Result<Self>
    where
        G::State: Eq + Hash,
    {
        let place = "oracle";
        let total: f64 = candidates.iter().map(|c| c.probability).sum();
        if candidates.is_empty() || (total - 1.0).abs() > 1e-9 || !candidates.iter().all(|c| c.probability >= 0.0) {
            return Err(Error::invalid(place, "needs opponents whose shares add up to 1"));
        }
        if seat >= game.players() {
            return Err(Error::invalid(place, format!("seat {seat} does not exist; there are {}", game.players())));
        }
        if episodes == 0 {
            return Err(Error::invalid(place, "a meta-episode has at least one episode"));
        }
        let strategies: Vec<_> = candidates.iter().flat_map(|c| c.schedule.phases().iter().cloned()).collect();
        let view = SeatView::new(game, seat, &strategies, deal == Deal::Fixed)?;
        let hidden = Hidden::new(candidates, &view);
        let model = Model::new(view, hidden, episodes);
        Ok(Self::within(model, seat, episodes, Limits::default()))
    }

    fn within(model: Model, seat: u8, episodes: u32, limits: Limits) -> Self {
        let Solution { curves, errors, memos: values, episodes: solved, exact } = solve(&model, episodes, limits);
        // Questions are answered from what was found out here: fences stay where they are.
        let way = match exact {
            true => Way::Exact { work_limit: u64::MAX },
            false => Way::Fenced { allowance: f64::INFINITY, work_limit: u64::MAX },
        };
        let memos = Mutex::new(Memos { values, answers: HashMap::new() });
        BayesAdaptiveSolver { model, seat, episodes, solved, way, curves, errors, memos }
    }

    /// What the agent may be facing.
    pub fn types(&self) -> &[HiddenType] {
        &self.model.hidden.types
    }

    /// The seat it was solved for.
    pub fn seat(&self) -> u8 {
        self.seat
    }

    /// For how many episodes it was solved.
    pub fn episodes(&self) -> u32 {
        self.episodes
    }

    /// What is believed before the first episode.
    pub fn prior(&self) -> Vec<f64> {
        self.model.hidden.prior.clone()
    }

    /// The prior of someone who was told the opponent (a candidate's index), but neither phase nor deal.
    pub fn prior_given(&self, opponent: usize) -> Result<Vec<f64>> {
        let hidden = &self.model.hidden;
        let keep = |(t, p): (&HiddenType, &f64)| if t.opponent == opponent { *p } else { 0.0 };
        let mut belief: Vec<f64> = hidden.types.iter().zip(&hidden.prior).map(keep).collect();
        let total: f64 = belief.iter().sum();
        if total <= 0.0 {
            return Err(Error::invalid("oracle", format!("there is no opponent number {opponent}")));
        }
        belief.iter_mut().for_each(|b| *b /= total);
        Ok(belief)
    }

    /// How likely each opening of nature is, where deals are fixed; 1 where they are fresh.
    pub fn deal_probability(&self, deal: usize) -> f64 {
        self.model.view.deals.get(deal).copied().unwrap_or(0.0)
    }

    /// Expected score by episode under the best policy for an objective.
    pub fn curve(&self, objective: ScoreObjective) -> &ScoreCurve {
        &self.curves[objective as usize]
    }

    /// How far the optimum may be above what [`curve`](BayesAdaptiveSolver::curve) earns in its objective: rounding noise, unless
    /// opponents that switch or mix lead to more beliefs than could be solved. The curve itself is always the exact score
    /// of a policy one could follow.
    pub fn gap(&self, objective: ScoreObjective) -> f64 {
        self.errors[objective as usize]
    }

    /// The best chance of having won at least once (a score above 0) within 1, 2, … episodes, each the optimum of its own;
    /// `None` where there are too many beliefs, or more than 100 episodes.
    pub fn pass_at_k(&self) -> Option<Vec<f64>> {
        pass_at_k(&self.model, self.episodes, Limits::default().exact)
    }

    /// How many (belief, episodes left) pairs have been valued so far, for both objectives together.
    pub fn beliefs(&self) -> usize {
        self.lock().values.iter().map(Memo::beliefs).sum()
    }

    /// What the best policy without memory between episodes believes at the start of each one: the mean of what is true
    /// of the episodes. It plays [`best_action`](BayesAdaptiveSolver::best_action) with one episode left.
    pub fn memoryless_belief(&self) -> Vec<f64> {
        self.model.memoryless_belief(self.episodes)
    }

    /// Expected score by episode of that policy.
    pub fn memoryless(&self) -> ScoreCurve {
        ScoreCurve { by_episode: self.model.earned(&self.model.steady(self.episodes), self.episodes) }
    }

    /// The best response to each type, told before the episode.
    pub fn best_responses(&self) -> Vec<f64> {
        self.model.best_responses().to_vec()
    }

    /// Expected score by episode of someone who is told the type before every episode.
    pub fn full_info(&self) -> ScoreCurve {
        self.model.full_info(self.episodes)
    }

    /// How likely what the agent saw in one episode is under each type, given the agent's own actions. All zero where
    /// no type could have led there; an error where the texts are none of this game's.
    pub fn likelihood(&self, seen: &[&str]) -> Result<Vec<f64>> {
        let n = self.types().len();
        let group = self.track(&vec![1.0; n], seen, true)?;
        Ok(group.map_or_else(|| vec![0.0; n], |g| self.model.by_type(&g)))
    }

    /// The belief for the next episode, after an episode in which the agent saw this (its end included). `None` where
    /// nothing that was believed possible could have led there.
    pub fn update(&self, belief: &[f64], seen: &[&str]) -> Result<Option<Vec<f64>>> {
        self.check_belief(belief)?;
        let likelihood = self.likelihood(seen)?;
        let mut posterior: Vec<f64> = belief.iter().zip(&likelihood).map(|(b, l)| b * l).collect();
        let total: f64 = posterior.iter().sum();
        if total <= 0.0 {
            return Ok(None);
        }
        posterior.iter_mut().for_each(|p| *p /= total);
        Ok(Some(self.model.hidden.forward(&posterior)))
    }

    /// The best action with `left` episodes left (this one included) for an agent that started this episode with
    /// `belief` and saw `seen` so far, its present decision last. Ties go as in [`curve`](BayesAdaptiveSolver::curve). `None` where
    /// nothing that was believed possible could have led here: someone else sits opposite.
    pub fn best_action(
        &self,
        belief: &[f64],
        left: u32,
        objective: ScoreObjective,
        seen: &[&str],
    ) -> Result<Option<ActionId>> {
        self.check_belief(belief)?;
        if left == 0 || left > self.episodes {
            let problem = format!("{left} episodes left; it was solved for 1 to {}", self.episodes);
            return Err(Error::invalid("oracle", problem));
        }
        let Some(mut group) = self.track(belief, seen, false)? else { return Ok(None) };
        normalise(&mut group);
        let choice = self.choose(&group, left.min(self.solved), objective);
        let sight = self.model.view.spots[group[0].spot as usize].sight;
        Ok(Some(self.model.view.sights[sight as usize].actions[choice]))
    }

    fn choose(&self, group: &[Particle], left: u32, objective: ScoreObjective) -> usize {
        let mut memos = self.lock();
        let key = (objective, left, group_key(group));
        if let Some(known) = memos.answers.get(&key) {
            return *known;
        }
        let mut search =
            Search { model: &self.model, objective, way: self.way, memo: &mut memos.values[objective as usize] };
        let choice = search.decide(group, left).expect("work is not limited here");
        if memos.answers.len() >= KEPT_ANSWERS {
            memos.answers.clear();
        }
        memos.answers.insert(key, choice);
        choice
    }

    /// What may be the case after the agent saw `seen`; `None` where nothing can be.
    fn track(&self, belief: &[f64], seen: &[&str], ended: bool) -> Result<Option<Vec<Particle>>> {
        let model = &self.model;
        let mut now: Option<Vec<Particle>> = None;
        for (i, text) in seen.iter().enumerate() {
            let over = ended && i + 1 == seen.len();
            let Some(sight) = model.view.sight_id(text, over) else {
                let what = if over { "an end" } else { "a decision" };
                return Err(Error::invalid("oracle", format!("`{text}` is not {what} as seat {} sees it", self.seat)));
            };
            let looks_right = |p: &Particle| model.view.spots[p.spot as usize].sight == sight;
            let only = |mut all: Vec<Particle>| {
                all.retain(|p| looks_right(p) && p.weight > 0.0);
                all
            };
            let next = match &now {
                None => only(model.start(belief)),
                Some(group) => {
                    let before = model.view.spots[group[0].spot as usize].sight;
                    let actions = model.view.sights[before as usize].actions.len();
                    let mut ways = (0..actions).map(|a| only(model.after(group, a))).filter(|w| !w.is_empty());
                    let way = ways.next().unwrap_or_default();
                    if ways.next().is_some() {
                        let problem = format!("`{text}` does not tell the agent's own action; `observe` must");
                        return Err(Error::invalid("oracle", problem));
                    }
                    way
                }
            };
            if next.is_empty() {
                return Ok(None);
            }
            now = Some(next);
        }
        now.map_or_else(
            || Err(Error::invalid("oracle", "nothing seen yet; at least one text is needed")),
            |g| Ok(Some(g)),
        )
    }

    fn check_belief(&self, belief: &[f64]) -> Result<()> {
        let n = self.types().len();
        let sound = belief.len() == n && belief.iter().all(|b| b.is_finite() && *b >= 0.0);
        if sound && (belief.iter().sum::<f64>() - 1.0).abs() < 1e-6 {
            return Ok(());
        }
        Err(Error::invalid("oracle", format!("a belief is {n} probabilities that add up to 1, one for each type")))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memos> {
        // A memo holds finished values only, so it stays good after a panic elsewhere.
        self.memos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hsvi::OBJECTIVES;
    use super::*;
    use crate::{OpponentSchedule, kuhn::Kuhn};

    /// Somebody known is the same in every episode, however many there are and however much he mixes.
    #[test]
    fn with_nothing_to_learn_one_episode_tells_all() {
        let schedule = OpponentSchedule::stationary("only", std::sync::Arc::new(crate::UniformOpponent));
        let only = Candidate { name: "only".to_owned(), probability: 1.0, schedule };
        let bayes = BayesAdaptiveSolver::new(&Kuhn, 1, Deal::Fresh, &[only], 5_000).unwrap();
        let told = bayes.best_responses()[0];
        for objective in OBJECTIVES {
            let curve = &bayes.curve(objective).by_episode;
            assert_eq!(curve.len(), 5_000);
            assert!(curve.iter().all(|v| (v - told).abs() < 1e-12) && bayes.gap(objective) < 1e-3);
        }
        assert!(bayes.best_action(&[1.0], 5_000, ScoreObjective::Sum, &["Kp"]).unwrap().is_some());
    }
}
