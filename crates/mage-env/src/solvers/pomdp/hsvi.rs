//! How is the best possible learner found, and how surely?
//!
//! Exactly where that is little work, which it is against opponents that hardly mix. Else the optimum is fenced in
//! ([`super::value_bounds`]) more and more closely until the gap is too small to matter or the work allowed is done. Work is
//! counted, not timed, so that the same question has the same answer everywhere.

use super::{
    super::ScoreCurve,
    belief_key::noise_bound,
    belief_search::{EXACT_TIE, Memo, Model, ScoreObjective, Search, TooMuch, Way, by_episode},
};

/// The most work, counted in particles moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Before exactness is given up.
    pub(super) exact: u64,
    /// Before fences stay where they are.
    pub(super) fenced: u64,
}

impl Default for Limits {
    /// About a second each objective, and three.
    fn default() -> Self {
        Limits { exact: 3_000_000, fenced: 12_000_000 }
    }
}

/// How far ahead fences look. Later episodes are taken to be like the last of these, and may be better.
const FAR_AHEAD: u32 = 32;

/// What uncertainty matters at first, and how much less each time: up to what no third decimal shows.
const ALLOWANCES: [f64; 7] = [3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5];

/// A gap that is as good as none.
const NO_GAP: f64 = 5e-5;

pub(super) const OBJECTIVES: [ScoreObjective; 2] = [ScoreObjective::Last, ScoreObjective::Sum];

/// Both objectives.
pub(super) struct Solution {
    pub(super) curves: [ScoreCurve; 2],
    /// How far the optimum may lie above, in what counts first.
    pub(super) errors: [f64; 2],
    pub(super) memos: [Memo; 2],
    /// How many episodes had to be looked at.
    pub(super) episodes: u32,
    pub(super) exact: bool,
}

/// The best learner against the types of a model.
pub(super) fn solve(model: &Model, episodes: u32, limits: Limits) -> Solution {
    solve_exactly(model, episodes, limits.exact).unwrap_or_else(|TooMuch| solve_between(model, episodes, limits.fenced))
}

fn solve_exactly(model: &Model, episodes: u32, work_limit: u64) -> Result<Solution, TooMuch> {
    if episodes > FAR_AHEAD && !model.hidden.stays() {
        return Err(TooMuch);
    }
    let mut memos = [Memo::default(), Memo::default()];
    let mut curves = [ScoreCurve::default(), ScoreCurve::default()];
    let enough = learned_after(model, &mut memos[ScoreObjective::Sum as usize], episodes, work_limit)?;
    for objective in OBJECTIVES {
        let at = objective as usize;
        let mut curve = optimum(model, objective, &mut memos[at], enough, work_limit)?;
        curve.by_episode.resize(episodes as usize, curve.last());
        curves[at] = curve;
    }
    let noise = noise_bound(model.hidden.types.len(), model.view.largest_score, episodes);
    Ok(Solution { curves, errors: [noise; 2], memos, episodes: enough, exact: true })
}

/// In which episode the best learner first earns what one who is told earns; the last one where it never does.
///
/// All that follow are then like it, in the optimum of any larger number of episodes: whoever reached the most that can
/// be had, and so plays the best response to everybody still possible, can go on doing so; what came before was the most
/// for so many episodes; and nobody earns more later. It holds for both objectives, since no other way is better in
/// either. Opponents must stay what they are.
fn learned_after(model: &Model, memo: &mut Memo, episodes: u32, work_limit: u64) -> Result<u32, TooMuch> {
    if !model.hidden.stays() {
        return Ok(episodes);
    }
    let told = model.full_info(1).last();
    for n in 1..episodes {
        if optimum(model, ScoreObjective::Sum, memo, n, work_limit)?.last() >= told - EXACT_TIE {
            return Ok(n);
        }
    }
    Ok(episodes)
}

fn optimum(
    model: &Model,
    objective: ScoreObjective,
    memo: &mut Memo,
    episodes: u32,
    work_limit: u64,
) -> Result<ScoreCurve, TooMuch> {
    let way = Way::Exact { work_limit };
    let found = Search { model, objective, way, memo }.best_of(&model.hidden.prior, episodes)?;
    Ok(ScoreCurve { by_episode: by_episode(&found.joint, episodes) })
}

fn solve_between(model: &Model, episodes: u32, work_limit: u64) -> Solution {
    let ahead = episodes.min(FAR_AHEAD);
    let steady = model.steady(ahead);
    let [last, sum] = std::thread::scope(|scope| {
        let of = |objective| {
            let steady = &steady;
            scope.spawn(move || fence_in(model, objective, steady, ahead, work_limit))
        };
        OBJECTIVES.map(of).map(|thread| thread.join().expect("solving does not panic"))
    });
    let (mut curves, mut errors) = ([last.curve, sum.curve], [last.error, sum.error]);
    for (objective, (curve, error)) in OBJECTIVES.into_iter().zip(curves.iter_mut().zip(&mut errors)) {
        let told = model.full_info(episodes).by_episode;
        let on =
            if model.hidden.stays() { vec![curve.last(); episodes as usize] } else { model.earned(&steady, episodes) };
        let most = objective.of(&curve.by_episode) + *error;
        curve.by_episode.extend_from_slice(&on[ahead as usize..]);
        if episodes > ahead {
            let most = match objective {
                ScoreObjective::Last => told[episodes as usize - 1],
                ScoreObjective::Sum => most + told[ahead as usize..].iter().sum::<f64>(),
            };
            *error = most - objective.of(&curve.by_episode);
        }
    }
    Solution { curves, errors: errors.map(|e| e.max(0.0)), memos: [last.memo, sum.memo], episodes: ahead, exact: false }
}

struct FencedIn {
    curve: ScoreCurve,
    error: f64,
    memo: Memo,
}

fn fence_in(model: &Model, objective: ScoreObjective, steady: &[f64], episodes: u32, work_limit: u64) -> FencedIn {
    let mut memo = Memo::fenced(model, objective, steady, episodes);
    let mut pass = |allowance, work_limit| {
        let way = Way::Fenced { allowance, work_limit };
        let found = Search { model, objective, way, memo: &mut memo }.best_of(&model.hidden.prior, episodes)?;
        let curve = ScoreCurve { by_episode: by_episode(&found.joint, episodes) };
        let gap = found.most - objective.of(&curve.by_episode);
        Ok((curve, gap))
    };
    for allowance in ALLOWANCES {
        match pass(allowance, work_limit) {
            Ok((_, gap)) if gap > NO_GAP => {}
            Ok(_) | Err(TooMuch) => break,
        }
    }
    // Once more with all that is known: what was solved on the way may have narrowed what was looked at before it.
    let (curve, error) = pass(f64::INFINITY, u64::MAX).expect("work is not limited here");
    FencedIn { curve, error: error.max(0.0), memo }
}

#[cfg(test)]
mod tests {
    use super::super::{Candidate, hidden_type::Hidden, seat_view::SeatView};
    use super::*;
    use crate::{
        Game, OpponentSchedule, OpponentSpec, OptionMap, Strategy, UniformOpponent,
        kuhn::{Kuhn, StrategyTable, opponent_kinds},
        tictactoe::{BiasedRandom, WinGame, WinGameOpponent},
    };
    use std::{hash::Hash, sync::Arc};

    const ALL: Limits = Limits { exact: u64::MAX, fenced: u64::MAX };

    fn model<G: Game>(game: &G, candidates: &[Candidate<G>], episodes: u32) -> Model
    where
        G::State: Eq + Hash,
    {
        let strategies: Vec<_> = candidates.iter().flat_map(|c| c.schedule.phases().iter().cloned()).collect();
        let view = SeatView::new(game, 0, &strategies, false).unwrap();
        let hidden = Hidden::new(candidates, &view);
        Model::new(view, hidden, episodes)
    }

    fn half<G: Game>(name: &str, strategy: Strategy<G>) -> Candidate<G> {
        Candidate { name: name.to_owned(), probability: 0.5, schedule: OpponentSchedule::stationary(name, strategy) }
    }

    /// Three archetypes that switch now and then.
    fn turncoat(episodes: u32) -> Model {
        let params = OptionMap::default()
            .with("between", serde_json::json!(["conservative", "aggressive", "intermediate"]))
            .with("stay", 0.8);
        let spec = OpponentSpec { params, ..OpponentSpec::of_kind("switching") };
        let schedule: OpponentSchedule<Kuhn> = opponent_kinds().build(&spec).unwrap();
        model(&Kuhn, &[Candidate { name: "turncoat".to_owned(), probability: 1.0, schedule }], episodes)
    }

    /// One who always bets and one who never does: their first move tells them apart.
    fn opposites(episodes: u32) -> Model {
        let table = |p| Arc::new(StrategyTable::by_role([p; 3], [p; 3])) as Strategy<Kuhn>;
        model(&Kuhn, &[half("always", table(1.0)), half("never", table(0.0))], episodes)
    }

    /// Two who play anywhere, one a little more here than there: every game leaves another belief.
    fn drunkards(episodes: u32) -> Model {
        let fond = WinGameOpponent(Arc::new(BiasedRandom::default()));
        let any = WinGameOpponent(Arc::new(UniformOpponent));
        model(&WinGame, &[half("fond", Arc::new(fond)), half("any", Arc::new(any))], episodes)
    }

    /// Cutting the search short where everything is learned changes no value.
    #[test]
    fn what_is_learned_early_is_learned_for_good() {
        let model = opposites(12);
        assert_eq!(learned_after(&model, &mut Memo::default(), 12, u64::MAX).unwrap(), 2);
        for (objective, n) in OBJECTIVES.into_iter().flat_map(|o| [3, 7].map(|n| (o, n))) {
            let whole = optimum(&model, objective, &mut Memo::default(), n, u64::MAX).unwrap();
            let cut = &solve_exactly(&model, n, u64::MAX).unwrap().curves[objective as usize];
            assert!(whole.by_episode[0] < whole.last() - 0.01, "there is something to learn");
            for (a, b) in whole.by_episode.iter().zip(&cut.by_episode) {
                assert!((a - b).abs() < 1e-9, "{objective:?}, {n} episodes: {a} and {b}");
            }
        }
        assert_eq!(learned_after(&turncoat(4), &mut Memo::default(), 4, u64::MAX).unwrap(), 4, "it may always change");
    }

    /// The same case solved exactly and between fences: the truth lies where they say, and more work brings them closer.
    #[test]
    fn the_truth_lies_between_the_fences() {
        let model = turncoat(5);
        let exact = solve(&model, 5, ALL);
        assert!(exact.exact);
        let mut widest = f64::INFINITY;
        for fenced in [0, 3_000, 30_000, 3_000_000] {
            let between = solve(&model, 5, Limits { exact: 0, fenced });
            assert!(!between.exact);
            for objective in OBJECTIVES {
                let of = |s: &Solution| objective.of(&s.curves[objective as usize].by_episode);
                let (truth, reached, gap) = (of(&exact), of(&between), between.errors[objective as usize]);
                assert!(reached <= truth + 1e-9 && truth <= reached + gap + 1e-9, "{fenced}: {reached} {truth} {gap}");
            }
            let gap = between.errors[0].max(between.errors[1]);
            assert!(gap <= widest + 1e-9, "{fenced}: {gap} after {widest}");
            widest = gap;
        }
        assert!(widest < 2e-3, "{widest}");
    }

    /// However little work is allowed there is an answer: between the best without memory and one who is told.
    #[test]
    fn there_is_always_an_answer() {
        for (model, n) in [(turncoat(100), 100), (drunkards(3), 3)] {
            let least = solve(&model, n, Limits { exact: 0, fenced: 0 });
            let without = model.earned(&model.steady(n), n);
            let told = model.full_info(n).by_episode;
            for objective in OBJECTIVES {
                let curve = &least.curves[objective as usize].by_episode;
                assert_eq!(curve.len(), n as usize);
                let (reached, gap) = (objective.of(curve), least.errors[objective as usize]);
                assert!(reached >= objective.of(&without) - 1e-3, "{objective:?}: {reached}");
                assert!(reached + gap <= objective.of(&told) + 1e-9, "{objective:?}: {reached} {gap}");
            }
        }
    }

    /// More beliefs than can be solved one by one, and yet three decimals are certain.
    #[test]
    fn players_at_random_are_told_apart_as_well_as_can_be() {
        let found = solve(&drunkards(3), 3, Limits::default());
        assert!(found.errors.iter().all(|e| *e < 5e-4), "{:?}", found.errors);
    }
}
