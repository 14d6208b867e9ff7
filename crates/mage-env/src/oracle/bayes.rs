//! How well can the best possible learner do, and what would it do now?
//!
//! [`Bayes`] is the exact optimum against a prior over opponents, from one seat: it starts from the prior, learns from
//! what the rules show it, and weighs every action by what it earns now *and* by what it will reveal. `mage` prints its
//! scores by episode as ceilings, and the scripted `bayes` agent asks it for every move.
//!
//! ```
//! use mage_env::{Deal, Rival, kuhn::{self, Kuhn}, oracle::{Bayes, Candidate, Objective}};
//! use std::sync::Arc;
//! let candidates = [("rock", kuhn::CONSERVATIVE), ("maniac", kuhn::AGGRESSIVE)].map(|(name, table)| Candidate {
//!     name: name.to_owned(),
//!     share: 0.5,
//!     rival: Rival::stationary(name, Arc::new(table)),
//! });
//! let bayes = Bayes::new(&Kuhn, 0, Deal::Fresh, &candidates, 3)?;
//! let curve = bayes.curve(Objective::Last);
//! assert!(curve.last() > bayes.memoryless().last());
//!
//! // A Queen was checked, bet into, called, and beaten by the King: both would have bet it.
//! let belief = bayes.update(&bayes.prior(), &["Q", "Qpb", "Qpbb/K"])?.expect("possible");
//! assert!((belief[0] - 0.5).abs() < 1e-12);
//! let action = bayes.best_action(&belief, 2, Objective::Last, &["K"])?.expect("possible");
//! # let _ = action;
//! # Ok::<(), mage_env::Error>(())
//! ```

use super::{
    Curve,
    grid::{Cell, Grid},
    hidden::{Candidate, Hidden, HiddenType},
    pass::pass_at,
    search::{Memo, Model, Objective, Particle, Search, TooMuch, by_episode, group_key, normalise},
    view::SeatView,
};
use crate::{ActionId, Deal, Error, Game, Result};
use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

/// How much may be done on one grid before a coarser one is tried, counted in particles moved: this much, and so many times
/// what the first episode alone takes. Enough for thousands of beliefs in any game; some seconds of work.
const WORK_LIMIT: u64 = 2_000_000;
const WORK_LIMIT_IN_EPISODES: u64 = 200;

/// How many answers to questions are kept.
const KEPT_ANSWERS: usize = 200_000;

/// The exact optimum of one seat against a prior over opponents, for a number of episodes.
///
/// A *belief* is a probability for each of [`types`](Bayes::types), as of the start of an episode. What the agent *saw*
/// in an episode is the list of its [`Game::observe`] texts: one at each of its decisions, and one at the end.
pub struct Bayes {
    model: Model,
    seat: u8,
    episodes: u32,
    /// How many of them were solved: from the last of these on, all episodes are alike.
    solved: u32,
    grid: Grid,
    curves: [Curve; 2],
    errors: [f64; 2],
    memos: Mutex<Memos>,
}

#[derive(Default)]
struct Memos {
    values: [Memo; 2],
    answers: HashMap<(Objective, u32, Cell), usize>,
}

const OBJECTIVES: [Objective; 2] = [Objective::Last, Objective::Sum];

impl Bayes {
    /// Solves the game from `seat` against `candidates`, whose shares add up to 1, over `episodes` episodes.
    ///
    /// With [`Deal::Fixed`] the opening deal is hidden but the same in all episodes, so the agent learns it as well.
    /// Refused: strategies that state no probabilities, games too large, and more beliefs than the coarsest grid bounds.
    pub fn new<G: Game>(game: &G, seat: u8, deal: Deal, candidates: &[Candidate<G>], episodes: u32) -> Result<Self>
    where
        G::State: Eq + Hash,
    {
        let place = "oracle";
        let total: f64 = candidates.iter().map(|c| c.share).sum();
        if candidates.is_empty() || (total - 1.0).abs() > 1e-9 || !candidates.iter().all(|c| c.share >= 0.0) {
            return Err(Error::invalid(place, "needs opponents whose shares add up to 1"));
        }
        if seat >= game.players() {
            return Err(Error::invalid(place, format!("seat {seat} does not exist; there are {}", game.players())));
        }
        if episodes == 0 {
            return Err(Error::invalid(place, "a meta-episode has at least one episode"));
        }
        let strategies: Vec<_> = candidates.iter().flat_map(|c| c.rival.phases().iter().cloned()).collect();
        let view = SeatView::new(game, seat, &strategies, deal == Deal::Fixed)?;
        let hidden = Hidden::new(candidates, &view);
        let model = Model { view, hidden };
        let limit = work_limit(&model);
        Self::within(model, seat, episodes, limit)
    }

    /// Solves on the finest grid that `limit` allows.
    fn within(model: Model, seat: u8, episodes: u32, limit: u64) -> Result<Self> {
        let coarsest = Grid::STEPS.last().copied().map(Grid::Snap);
        let merged = Grid::STEPS.into_iter().map(Grid::Snap);
        for grid in [Grid::Exact].into_iter().chain(merged) {
            if let Ok(Solution { curves, memos: values, episodes: solved }) = solve(&model, grid, episodes, limit) {
                let memos = Mutex::new(Memos { values, answers: HashMap::new() });
                let mut bayes = Bayes { model, seat, episodes, solved, grid, curves, errors: [0.0; 2], memos };
                bayes.errors = bayes.bound_errors(limit);
                return Ok(bayes);
            }
            // What is too much on the coarsest grid is too much on all: this is soon known.
            if grid == Grid::Exact && coarsest.is_some_and(|coarse| solve(&model, coarse, episodes, limit).is_err()) {
                break;
            }
        }
        let counted = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        Err(Error::invalid(
            "oracle",
            format!(
                "{} over {} lead to too many beliefs; take fewer episodes, or fewer or less random opponents",
                counted(model.hidden.types.len(), "hidden type"),
                counted(episodes as usize, "episode"),
            ),
        ))
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
    pub fn curve(&self, objective: Objective) -> &Curve {
        &self.curves[objective as usize]
    }

    /// How far the optimum may be above what [`curve`](Bayes::curve) earns in its objective: rounding noise, unless
    /// opponents that switch or mix lead to so many beliefs that close ones had to be merged. The curve itself is always
    /// the exact score of a policy one could follow.
    pub fn error_bound(&self, objective: Objective) -> f64 {
        self.errors[objective as usize]
    }

    /// The best chance of having won at least once (a score above 0) within 1, 2, … episodes, each the optimum of its own;
    /// `None` where there are too many beliefs, or more than 100 episodes.
    pub fn pass_at(&self) -> Option<Vec<f64>> {
        pass_at(&self.model, self.episodes, work_limit(&self.model))
    }

    /// How many (belief, episodes left) pairs have been valued so far, for both objectives together.
    pub fn beliefs(&self) -> usize {
        self.lock().values.iter().map(Memo::beliefs).sum()
    }

    /// What the best policy without memory between episodes believes at the start of each one: the mean of what is true
    /// of the episodes. It plays [`best_action`](Bayes::best_action) with one episode left.
    pub fn memoryless_belief(&self) -> Vec<f64> {
        let marginals = self.model.hidden.marginals(self.episodes);
        let mut mean = vec![0.0; self.types().len()];
        for m in &marginals {
            mean.iter_mut().zip(m).for_each(|(a, b)| *a += b / f64::from(self.episodes));
        }
        mean
    }

    /// Expected score by episode of that policy.
    pub fn memoryless(&self) -> Curve {
        let by_type = self.single_episode_by_type(&self.memoryless_belief());
        self.against_marginals(&by_type)
    }

    /// The best response to each type, told before the episode.
    pub fn best_responses(&self) -> Vec<f64> {
        let n = self.types().len();
        let told = |t: usize| (0..n).map(|i| f64::from(u8::from(i == t))).collect::<Vec<f64>>();
        (0..n).map(|t| self.single_episode_by_type(&told(t))[t]).collect()
    }

    /// Expected score by episode of someone who is told the type before every episode.
    pub fn informed(&self) -> Curve {
        self.against_marginals(&self.best_responses())
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
    /// `belief` and saw `seen` so far, its present decision last. Ties go as in [`curve`](Bayes::curve). `None` where
    /// nothing that was believed possible could have led here: someone else sits opposite.
    pub fn best_action(
        &self,
        belief: &[f64],
        left: u32,
        objective: Objective,
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

    fn bound_errors(&self, limit: u64) -> [f64; 2] {
        let model = &self.model;
        let Grid::Snap(fits) = self.grid else {
            return [Grid::noise_bound(model.hidden.types.len(), model.view.largest_score, self.episodes); 2];
        };
        // Mixing visits more points than snapping, so what was too fine for the one is too fine for the other.
        let mixes = Grid::STEPS.into_iter().filter(|steps| *steps <= fits).map(Grid::Mix);
        let from_above = mixes.filter_map(|grid| solve(model, grid, self.episodes, limit).ok()).next();
        let told = self.informed(); // nobody does better than one who is told
        OBJECTIVES.map(|objective| {
            let reached = objective.of(&self.curve(objective).by_episode);
            let above = objective.of(&told.by_episode);
            let above = from_above
                .as_ref()
                .map_or(above, |s| objective.of(&s.curves[objective as usize].by_episode).min(above));
            (above - reached).max(0.0)
        })
    }

    fn choose(&self, group: &[Particle], left: u32, objective: Objective) -> usize {
        let mut memos = self.lock();
        let key = (objective, left, group_key(group));
        if let Some(known) = memos.answers.get(&key) {
            return *known;
        }
        let mut search = Search {
            model: &self.model,
            objective,
            grid: self.grid,
            memo: &mut memos.values[objective as usize],
            work_limit: u64::MAX,
        };
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

    /// What the best single-episode policy for a belief earns against each type that the belief holds possible.
    fn single_episode_by_type(&self, belief: &[f64]) -> Vec<f64> {
        let mut earned = vec![0.0; belief.len()];
        let mut open = vec![self.model.start(belief)];
        while let Some(mut particles) = open.pop() {
            for group in self.model.groups(&mut particles) {
                let spots = &self.model.view.spots;
                if self.model.view.sights[spots[group[0].spot as usize].sight as usize].over {
                    group.iter().for_each(|p| earned[p.hidden as usize] += p.weight * spots[p.spot as usize].score);
                    continue;
                }
                let mut normal = group.to_vec();
                if normalise(&mut normal) > 0.0 {
                    let choice = self.choose(&normal, 1, Objective::Sum);
                    open.push(self.model.after(group, choice));
                }
            }
        }
        earned.iter().zip(belief).map(|(e, b)| if *b > 0.0 { e / b } else { 0.0 }).collect()
    }

    fn against_marginals(&self, by_type: &[f64]) -> Curve {
        let mean = |m: &Vec<f64>| m.iter().zip(by_type).map(|(p, v)| p * v).sum();
        Curve { by_episode: self.model.hidden.marginals(self.episodes).iter().map(mean).collect() }
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

fn work_limit(model: &Model) -> u64 {
    let mut memo = Memo::default();
    let first = optimum(model, Objective::Sum, Grid::Exact, &mut memo, 1, u64::MAX);
    debug_assert!(first.is_ok());
    WORK_LIMIT + WORK_LIMIT_IN_EPISODES * memo.work()
}

/// Both objectives on one grid.
struct Solution {
    curves: [Curve; 2],
    memos: [Memo; 2],
    /// How many episodes had to be looked at.
    episodes: u32,
}

fn solve(model: &Model, grid: Grid, episodes: u32, limit: u64) -> Solved<Solution> {
    let mut memos = [Memo::default(), Memo::default()];
    let mut curves = [Curve::default(), Curve::default()];
    let enough = match grid {
        Grid::Exact => learned_after(model, &mut memos[Objective::Sum as usize], episodes, limit)?,
        Grid::Snap(_) | Grid::Mix(_) => episodes,
    };
    for objective in OBJECTIVES {
        let at = objective as usize;
        let mut curve = optimum(model, objective, grid, &mut memos[at], enough, limit)?;
        curve.by_episode.resize(episodes as usize, curve.last());
        curves[at] = curve;
    }
    Ok(Solution { curves, memos, episodes: enough })
}

/// In which episode the best learner first earns what one who is told earns; the last one where it never does.
///
/// All that follow are then like it, in the optimum of any larger number of episodes: whoever reached the most that can
/// be had, and so plays the best response to everybody still possible, can go on doing so; what came before was the most
/// for so many episodes; and nobody earns more later. It holds for both objectives, since no other way is better in
/// either. Opponents must stay what they are.
fn learned_after(model: &Model, memo: &mut Memo, episodes: u32, limit: u64) -> Solved<u32> {
    if !model.hidden.stays() {
        return Ok(episodes);
    }
    let prior = &model.hidden.prior;
    let mut told = 0.0;
    for (t, share) in prior.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        let only: Vec<f64> = (0..prior.len()).map(|i| f64::from(u8::from(i == t))).collect();
        let mut search = Search { model, objective: Objective::Sum, grid: Grid::Exact, memo, work_limit: limit };
        told += share * search.best_of(&only, 1)?.iter().sum::<f64>();
    }
    for n in 1..episodes {
        if optimum(model, Objective::Sum, Grid::Exact, memo, n, limit)?.last() >= told - Grid::Exact.tie() {
            return Ok(n);
        }
    }
    Ok(episodes)
}

fn optimum(
    model: &Model,
    objective: Objective,
    grid: Grid,
    memo: &mut Memo,
    episodes: u32,
    work_limit: u64,
) -> Solved<Curve> {
    let joint = Search { model, objective, grid, memo, work_limit }.best_of(&model.hidden.prior, episodes)?;
    Ok(Curve { by_episode: by_episode(&joint, episodes) })
}

type Solved<T> = std::result::Result<T, TooMuch>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        OpponentSpec, Options, Rival,
        kuhn::{Kuhn, StrategyTable, opponent_kinds},
    };

    /// Three archetypes that switch now and then.
    fn turncoat() -> Model {
        let params = Options::default()
            .with("between", serde_json::json!(["conservative", "aggressive", "intermediate"]))
            .with("stay", 0.8);
        let spec = OpponentSpec { params, ..OpponentSpec::of_kind("switching") };
        let rival: Rival<Kuhn> = opponent_kinds().build(&spec).unwrap();
        let view = SeatView::new(&Kuhn, 0, rival.phases(), false).unwrap();
        let hidden = Hidden::new(&[Candidate { name: "turncoat".to_owned(), share: 1.0, rival }], &view);
        Model { view, hidden }
    }

    #[test]
    fn what_would_explode_is_refused() {
        let error = Bayes::within(turncoat(), 0, 6, 100).err().expect("refused").to_string();
        assert!(error.contains("3 hidden types over 6 episodes lead to too many beliefs"), "{error}");
    }

    /// One who always bets and one who never does: their first move tells them apart.
    fn opposites() -> Model {
        let candidates = [("always", 1.0), ("never", 0.0)].map(|(name, p)| Candidate {
            name: name.to_owned(),
            share: 0.5,
            rival: Rival::stationary(name, std::sync::Arc::new(StrategyTable::by_role([p; 3], [p; 3]))),
        });
        let strategies: Vec<_> = candidates.iter().flat_map(|c| c.rival.phases().iter().cloned()).collect();
        let view = SeatView::new(&Kuhn, 0, &strategies, false).unwrap();
        let hidden = Hidden::new(&candidates, &view);
        Model { view, hidden }
    }

    /// Somebody known is the same in every episode, however many there are and however much he mixes.
    #[test]
    fn with_nothing_to_learn_one_episode_tells_all() {
        let rival = Rival::stationary("only", std::sync::Arc::new(crate::UniformOpponent));
        let only = Candidate { name: "only".to_owned(), share: 1.0, rival };
        let bayes = Bayes::new(&Kuhn, 1, Deal::Fresh, &[only], 5_000).unwrap();
        let told = bayes.best_responses()[0];
        for objective in OBJECTIVES {
            let curve = &bayes.curve(objective).by_episode;
            assert_eq!(curve.len(), 5_000);
            assert!(curve.iter().all(|v| (v - told).abs() < 1e-12) && bayes.error_bound(objective) < 1e-3);
        }
        assert!(bayes.best_action(&[1.0], 5_000, Objective::Sum, &["Kp"]).unwrap().is_some());
    }

    /// Cutting the search short where everything is learned changes no value.
    #[test]
    fn what_is_learned_early_is_learned_for_good() {
        let model = opposites();
        assert_eq!(learned_after(&model, &mut Memo::default(), 12, u64::MAX).unwrap(), 2);
        for (objective, n) in OBJECTIVES.into_iter().flat_map(|o| [3, 7].map(|n| (o, n))) {
            let whole = optimum(&model, objective, Grid::Exact, &mut Memo::default(), n, u64::MAX).unwrap();
            let cut = &solve(&model, Grid::Exact, n, u64::MAX).unwrap().curves[objective as usize];
            assert!(whole.by_episode[0] < whole.last() - 0.01, "there is something to learn");
            for (a, b) in whole.by_episode.iter().zip(&cut.by_episode) {
                assert!((a - b).abs() < 1e-9, "{objective:?}, {n} episodes: {a} and {b}");
            }
        }
        assert_eq!(learned_after(&turncoat(), &mut Memo::default(), 4, u64::MAX).unwrap(), 4, "it may always change");
    }

    /// The same case solved exactly and with merged beliefs: the truth lies where the bounds say.
    #[test]
    fn merging_is_fenced_in_from_both_sides() {
        let exact = Bayes::within(turncoat(), 0, 5, u64::MAX).unwrap();
        assert_eq!(exact.grid, Grid::Exact);
        for limit in [40_000, 80_000, 150_000] {
            let merged = Bayes::within(turncoat(), 0, 5, limit).unwrap();
            assert_ne!(merged.grid, Grid::Exact, "{limit} is meant to be too little");
            for objective in OBJECTIVES {
                let of = |b: &Bayes| objective.of(&b.curve(objective).by_episode);
                let (truth, reached, slack) = (of(&exact), of(&merged), merged.error_bound(objective));
                assert!(reached <= truth + 1e-9 && truth <= reached + slack + 1e-9, "{reached} {truth} {slack}");
            }
        }
    }
}
