//! Solution of the adaptation problem: exact where few beliefs are reachable, otherwise heuristic search value
//! iteration.
//!
//! Against opponents that hardly mix, all reachable beliefs are solved. Otherwise bounds ([`super::value_bounds`]) are
//! tightened until the gap is negligible or the work limit is reached. Work is counted, not timed, so results do not
//! depend on the machine.

use super::{
    super::ScoreCurve,
    belief_key::rounding_error_bound,
    belief_search::{
        AdaptationPomdp, BeliefSearch, EXACT_TIE, ScoreObjective, SearchMode, ValueMemo, WorkLimitExceeded, by_episode,
    },
};

/// Work limits, in particle moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkLimits {
    /// For the exact solution.
    pub(super) exact: u64,
    /// For tightening bounds.
    pub(super) bounded: u64,
}

impl Default for WorkLimits {
    /// About one second per objective, and three for the bounds.
    fn default() -> Self {
        WorkLimits { exact: 3_000_000, bounded: 12_000_000 }
    }
}

/// Horizon of the bounds, in episodes. Later episodes repeat the last policy; their gap is larger.
const MAX_HORIZON: u32 = 32;

/// Tolerances of successive passes; the last is below the third decimal of a score.
const TOLERANCES: [f64; 7] = [3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5];

/// A smaller gap counts as converged.
const CONVERGED_GAP: f64 = 5e-5;

pub(super) const OBJECTIVES: [ScoreObjective; 2] = [ScoreObjective::Last, ScoreObjective::Sum];

/// Solutions for both objectives.
pub(super) struct PomdpSolution {
    pub(super) curves: [ScoreCurve; 2],
    /// Gap of the primary criterion, by objective.
    pub(super) gaps: [f64; 2],
    pub(super) memos: [ValueMemo; 2],
    /// Number of episodes solved.
    pub(super) episodes: u32,
    pub(super) exact: bool,
}

/// Solves a problem for both objectives.
pub(super) fn solve(model: &AdaptationPomdp, episodes: u32, limits: WorkLimits) -> PomdpSolution {
    solve_exact(model, episodes, limits.exact)
        .unwrap_or_else(|WorkLimitExceeded| solve_bounded(model, episodes, limits.bounded))
}

fn solve_exact(model: &AdaptationPomdp, episodes: u32, work_limit: u64) -> Result<PomdpSolution, WorkLimitExceeded> {
    if episodes > MAX_HORIZON && !model.hidden.is_stationary() {
        return Err(WorkLimitExceeded);
    }
    let mut memos = [ValueMemo::default(), ValueMemo::default()];
    let mut curves = [ScoreCurve::default(), ScoreCurve::default()];
    let enough = episodes_until_learned(model, &mut memos[ScoreObjective::Sum as usize], episodes, work_limit)?;
    for objective in OBJECTIVES {
        let at = objective as usize;
        let mut curve = optimum(model, objective, &mut memos[at], enough, work_limit)?;
        curve.by_episode.resize(episodes as usize, curve.last());
        curves[at] = curve;
    }
    let noise = rounding_error_bound(model.hidden.types.len(), model.view.max_abs_score, episodes);
    Ok(PomdpSolution { curves, gaps: [noise; 2], memos, episodes: enough, exact: true })
}

/// The first episode in which the Bayes-adaptive policy scores as much as with full information, or `episodes`.
///
/// All later episodes then repeat it, in the optimum of any larger number of episodes: the policy already plays a best
/// response to every type that is still possible and can continue to; the earlier episodes were optimal for that
/// horizon; and no later episode can score more. This holds for both objectives, since no other policy is better in
/// either. It requires stationary types.
fn episodes_until_learned(
    model: &AdaptationPomdp,
    memo: &mut ValueMemo,
    episodes: u32,
    work_limit: u64,
) -> Result<u32, WorkLimitExceeded> {
    if !model.hidden.is_stationary() {
        return Ok(episodes);
    }
    let full_info = model.full_info(1).last();
    for n in 1..episodes {
        if optimum(model, ScoreObjective::Sum, memo, n, work_limit)?.last() >= full_info - EXACT_TIE {
            return Ok(n);
        }
    }
    Ok(episodes)
}

fn optimum(
    model: &AdaptationPomdp,
    objective: ScoreObjective,
    memo: &mut ValueMemo,
    episodes: u32,
    work_limit: u64,
) -> Result<ScoreCurve, WorkLimitExceeded> {
    let mode = SearchMode::Exact { work_limit };
    let found = BeliefSearch { model, objective, mode, memo }.solve_belief(&model.hidden.prior, episodes)?;
    Ok(ScoreCurve { by_episode: by_episode(&found.joint, episodes) })
}

fn solve_bounded(model: &AdaptationPomdp, episodes: u32, work_limit: u64) -> PomdpSolution {
    let horizon = episodes.min(MAX_HORIZON);
    let memoryless_scores = model.memoryless_scores(horizon);
    let [last, sum] = std::thread::scope(|scope| {
        let of = |objective| {
            let memoryless_scores = &memoryless_scores;
            scope.spawn(move || tighten_bounds(model, objective, memoryless_scores, horizon, work_limit))
        };
        OBJECTIVES.map(of).map(|thread| thread.join().expect("solving does not panic"))
    });
    let (mut curves, mut gaps) = ([last.curve, sum.curve], [last.gap, sum.gap]);
    for (objective, (curve, gap)) in OBJECTIVES.into_iter().zip(curves.iter_mut().zip(&mut gaps)) {
        let full_info = model.full_info(episodes).by_episode;
        let continued = if model.hidden.is_stationary() {
            vec![curve.last(); episodes as usize]
        } else {
            model.scores_by_episode(&memoryless_scores, episodes)
        };
        let upper = objective.of(&curve.by_episode) + *gap;
        curve.by_episode.extend_from_slice(&continued[horizon as usize..]);
        if episodes > horizon {
            let upper = match objective {
                ScoreObjective::Last => full_info[episodes as usize - 1],
                ScoreObjective::Sum => upper + full_info[horizon as usize..].iter().sum::<f64>(),
            };
            *gap = upper - objective.of(&curve.by_episode);
        }
    }
    PomdpSolution {
        curves,
        gaps: gaps.map(|e| e.max(0.0)),
        memos: [last.memo, sum.memo],
        episodes: horizon,
        exact: false,
    }
}

struct BoundedSolution {
    curve: ScoreCurve,
    gap: f64,
    memo: ValueMemo,
}

fn tighten_bounds(
    model: &AdaptationPomdp,
    objective: ScoreObjective,
    memoryless_scores: &[f64],
    episodes: u32,
    work_limit: u64,
) -> BoundedSolution {
    let mut memo = ValueMemo::bounded(model, objective, memoryless_scores, episodes);
    let mut pass = |tolerance, work_limit| {
        let mode = SearchMode::Bounded { tolerance, work_limit };
        let found =
            BeliefSearch { model, objective, mode, memo: &mut memo }.solve_belief(&model.hidden.prior, episodes)?;
        let curve = ScoreCurve { by_episode: by_episode(&found.joint, episodes) };
        let gap = found.upper - objective.of(&curve.by_episode);
        Ok((curve, gap))
    };
    for tolerance in TOLERANCES {
        match pass(tolerance, work_limit) {
            Ok((_, gap)) if gap > CONVERGED_GAP => {}
            Ok(_) | Err(WorkLimitExceeded) => break,
        }
    }
    // A last pass over the final bounds: beliefs solved late may tighten those visited early.
    let (curve, gap) = pass(f64::INFINITY, u64::MAX).expect("the work limit is infinite");
    BoundedSolution { curve, gap: gap.max(0.0), memo }
}

#[cfg(test)]
mod tests {
    use super::super::{Candidate, hidden_type::HiddenTypes, seat_view::SeatView};
    use super::*;
    use crate::{
        Game, OpponentSchedule, OpponentSpec, OptionMap, Strategy, UniformOpponent,
        kuhn::{Kuhn, StrategyTable, opponent_kinds},
        tictactoe::{BiasedRandom, WinGame, WinGameOpponent},
    };
    use std::{hash::Hash, sync::Arc};

    const ALL: WorkLimits = WorkLimits { exact: u64::MAX, bounded: u64::MAX };

    fn model<G: Game>(game: &G, candidates: &[Candidate<G>], episodes: u32) -> AdaptationPomdp
    where
        G::State: Eq + Hash,
    {
        let strategies: Vec<_> = candidates.iter().flat_map(|c| c.schedule.phases().iter().cloned()).collect();
        let view = SeatView::new(game, 0, &strategies, false).unwrap();
        let hidden = HiddenTypes::new(candidates, &view);
        AdaptationPomdp::new(view, hidden, episodes)
    }

    fn half<G: Game>(name: &str, strategy: Strategy<G>) -> Candidate<G> {
        Candidate { name: name.to_owned(), probability: 0.5, schedule: OpponentSchedule::stationary(name, strategy) }
    }

    /// A switching opponent with three strategies.
    fn switching(episodes: u32) -> AdaptationPomdp {
        let params = OptionMap::default()
            .with("between", serde_json::json!(["conservative", "aggressive", "intermediate"]))
            .with("stay", 0.8);
        let spec = OpponentSpec { params, ..OpponentSpec::of_kind("switching") };
        let schedule: OpponentSchedule<Kuhn> = opponent_kinds().build(&spec).unwrap();
        model(&Kuhn, &[Candidate { name: "switching".to_owned(), probability: 1.0, schedule }], episodes)
    }

    /// One always bets, one never does: the first move identifies them.
    fn opposites(episodes: u32) -> AdaptationPomdp {
        let table = |p| Arc::new(StrategyTable::by_role([p; 3], [p; 3])) as Strategy<Kuhn>;
        model(&Kuhn, &[half("always", table(1.0)), half("never", table(0.0))], episodes)
    }

    /// Two random players with slightly different distributions: every game leads to a different belief.
    fn two_random_players(episodes: u32) -> AdaptationPomdp {
        let biased = WinGameOpponent(Arc::new(BiasedRandom::default()));
        let uniform = WinGameOpponent(Arc::new(UniformOpponent));
        model(&WinGame, &[half("biased", Arc::new(biased)), half("uniform", Arc::new(uniform))], episodes)
    }

    /// Stopping at the episode in which everything is learned does not change values.
    #[test]
    fn truncated_horizon_equals_full_horizon_once_types_are_learned() {
        let model = opposites(12);
        assert_eq!(episodes_until_learned(&model, &mut ValueMemo::default(), 12, u64::MAX).unwrap(), 2);
        for (objective, n) in OBJECTIVES.into_iter().flat_map(|o| [3, 7].map(|n| (o, n))) {
            let whole = optimum(&model, objective, &mut ValueMemo::default(), n, u64::MAX).unwrap();
            let cut = &solve_exact(&model, n, u64::MAX).unwrap().curves[objective as usize];
            assert!(whole.by_episode[0] < whole.last() - 0.01, "there is something to learn");
            for (a, b) in whole.by_episode.iter().zip(&cut.by_episode) {
                assert!((a - b).abs() < 1e-9, "{objective:?}, {n} episodes: {a} and {b}");
            }
        }
        assert_eq!(
            episodes_until_learned(&switching(4), &mut ValueMemo::default(), 4, u64::MAX).unwrap(),
            4,
            "types may always change"
        );
    }

    /// The exact value lies within the bounds, and more work does not widen the gap.
    #[test]
    fn exact_value_lies_between_the_bounds() {
        let model = switching(5);
        let exact = solve(&model, 5, ALL);
        assert!(exact.exact);
        let mut widest = f64::INFINITY;
        for bounded in [0, 3_000, 30_000, 3_000_000] {
            let between = solve(&model, 5, WorkLimits { exact: 0, bounded });
            assert!(!between.exact);
            for objective in OBJECTIVES {
                let of = |s: &PomdpSolution| objective.of(&s.curves[objective as usize].by_episode);
                let (truth, reached, gap) = (of(&exact), of(&between), between.gaps[objective as usize]);
                assert!(reached <= truth + 1e-9 && truth <= reached + gap + 1e-9, "{bounded}: {reached} {truth} {gap}");
            }
            let gap = between.gaps[0].max(between.gaps[1]);
            assert!(gap <= widest + 1e-9, "{bounded}: {gap} after {widest}");
            widest = gap;
        }
        assert!(widest < 2e-3, "{widest}");
    }

    /// With a work limit of zero the result is still between the memoryless and the full-information value.
    #[test]
    fn zero_work_limit_still_gives_valid_bounds() {
        for (model, n) in [(switching(100), 100), (two_random_players(3), 3)] {
            let least = solve(&model, n, WorkLimits { exact: 0, bounded: 0 });
            let without = model.scores_by_episode(&model.memoryless_scores(n), n);
            let full_info = model.full_info(n).by_episode;
            for objective in OBJECTIVES {
                let curve = &least.curves[objective as usize].by_episode;
                assert_eq!(curve.len(), n as usize);
                let (reached, gap) = (objective.of(curve), least.gaps[objective as usize]);
                assert!(reached >= objective.of(&without) - 1e-3, "{objective:?}: {reached}");
                assert!(reached + gap <= objective.of(&full_info) + 1e-9, "{objective:?}: {reached} {gap}");
            }
        }
    }

    /// Too many beliefs for an exact solution, yet the gap is below three decimals.
    #[test]
    fn gap_against_two_random_players_is_below_three_decimals() {
        let found = solve(&two_random_players(3), 3, WorkLimits::default());
        assert!(found.gaps.iter().all(|e| *e < 5e-4), "{:?}", found.gaps);
    }
}
