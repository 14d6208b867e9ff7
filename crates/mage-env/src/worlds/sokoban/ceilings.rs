//! Upper bounds for a split: the fraction of rooms that can be solved within an episode's move budget.
//!
//! Each room is solved twice: for the fewest moves, which decides whether the turn limit suffices, and for the fewest
//! pushes, a measure of planning difficulty. Random play of the same room is the baseline.

use super::{
    action::ACTION_WORDS,
    board::{SokobanBoard, SokobanState},
    env::SokobanEnv,
    options::SokobanOptions,
    solver::{DEFAULT_MAX_STATES, SearchCost, SearchResult, solve},
    spec::SokobanSpec,
};
use crate::{End, Env, Outcome, ParsedAction, Population, Result, Rng, Seed, SolvedSplit, SolvedTask};
use rand::{RngExt, seq::IndexedRandom};

/// Number of generated rooms to solve.
const MAX_ROOMS: usize = 1000;

/// Maximum number of file levels to solve; they take longer.
const MAX_LEVELS: usize = 200;

/// Solves a sample of a split; `level_count` is the number of levels in its files.
pub(super) fn ceilings(
    env_spec: &SokobanSpec,
    population: &Population,
    split: &str,
    options: &SokobanOptions,
    level_count: Option<usize>,
    each: &mut dyn FnMut(usize, usize),
) -> Result<SolvedSplit> {
    let turns = options.max_turns();
    let max_moves = turns.saturating_mul(options.moves_per_action as u32).min(options.env_config().max_steps);
    let seed = Seed::new(0).child("sokoban ceilings");
    // Levels are sampled evenly across the file, without repetition; a configured level is the only one.
    let levels = level_count.filter(|_| options.level.is_none());
    let count = if options.level.is_some() { 1 } else { levels.map_or(MAX_ROOMS, |n| n.min(MAX_LEVELS)) };
    let mut tasks = Vec::with_capacity(count);
    for i in 0..count {
        let task_seed = seed.at(i as u64);
        let task = population.sample_task(split, 1, task_seed)?;
        let level = levels.map(|n| i * n / count).or(options.level);
        let mut env = env_spec.env(&task, &SokobanOptions { level, ..options.clone() })?;
        let solved_by_random =
            play_at_random(&mut env, turns, options.moves_per_action, &mut task_seed.child("random actions").rng());
        let (board, start) = env.start();
        tasks.push(solved(board, start, max_moves, solved_by_random));
        each(i + 1, count);
    }
    Ok(SolvedSplit {
        split: split.to_owned(),
        turns,
        budget: format!("{max_moves} moves"),
        measures: vec!["fewest moves", "fewest pushes"],
        tasks,
    })
}

fn solved(board: &SokobanBoard, start: SokobanState, max_moves: u32, solved_by_random: bool) -> SolvedTask {
    let solution = |cost| match solve(board, start, cost, DEFAULT_MAX_STATES) {
        SearchResult::Solved(solution) => Ok(solution),
        SearchResult::Unsolvable => Err(Some(false)),
        SearchResult::StateLimit(_) => Err(None),
    };
    let (moves, pushes) = (solution(SearchCost::Moves), solution(SearchCost::Pushes));
    let fewest_moves = moves.as_ref().ok().map(|s| s.moves.len() as u32);
    let fewest_pushes = pushes.as_ref().ok().map(|s| s.pushes);
    let within_turns = match (&moves, &pushes) {
        (Ok(solution), _) => Some(solution.moves.len() <= max_moves as usize),
        // Not the shortest solution, but within the budget.
        (Err(None), Ok(solution)) if solution.moves.len() <= max_moves as usize => Some(true),
        (Err(verdict), _) => *verdict,
    };
    SolvedTask { within_turns, min_costs: vec![fewest_moves, fewest_pushes], solved_by_random }
}

/// Plays one episode with uniformly random actions; if there are too many to enumerate, with actions of the maximum
/// length.
fn play_at_random(env: &mut SokobanEnv, turns: u32, moves: usize, rng: &mut Rng) -> bool {
    env.reset(0);
    let listed = env.legal();
    for _ in 0..turns {
        let action = match &listed {
            Some(all) => all.choose(rng).cloned().unwrap_or_default(),
            None => (0..moves).map(|_| ACTION_WORDS[rng.random_range(0..4)]).collect::<Vec<_>>().join(" "),
        };
        if let Some(end) = env.step(&ParsedAction::Act(action)).end {
            return matches!(end, End::Terminated { outcome: Outcome::Won, .. });
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvSpec, OptionMap, WorldSolver};

    fn level(text: &str, options: OptionMap) -> SolvedSplit {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("level.txt");
        std::fs::write(&path, text).unwrap();
        let env_spec = SokobanSpec::default();
        let mut population = env_spec.default_population();
        population.overrides.clear();
        population.options = options.with("levels", path.to_str().unwrap());
        env_spec.solve(&population, "train", &mut |_, _| {}).unwrap()
    }

    const CORRIDOR: &str = "#######\n#@ $ .#\n#######\n";

    #[test]
    fn the_turn_limit_decides_which_levels_are_solvable_in_time() {
        let with_budget = |budget: u32| level(CORRIDOR, OptionMap::default().with("budget", budget));
        let sufficient = with_budget(3);
        assert_eq!((sufficient.turns, sufficient.budget.as_str()), (1, "3 moves"));
        assert_eq!(
            sufficient.tasks,
            [SolvedTask { within_turns: Some(true), min_costs: vec![Some(3), Some(2)], solved_by_random: false }]
        );
        let single = level(CORRIDOR, OptionMap::default().with("budget", 2).with("moves_per_action", 1));
        assert_eq!((single.turns, single.tasks[0].within_turns), (2, Some(false)));
        let never = level("######\n#@$ ##\n#  .##\n######\n", OptionMap::default());
        assert_eq!(never.tasks[0].min_costs, [None, None], "a box in a corner");
        assert_eq!(never.tasks[0].within_turns, Some(false));
    }

    #[test]
    fn every_generated_room_is_solvable_in_time_and_random_play_rarely_wins() {
        let env_spec = SokobanSpec::default();
        let population = env_spec.default_population();
        for split in crate::SPLITS {
            let mut calls = 0;
            let report = env_spec.solve(&population, split, &mut |done, of| {
                calls += 1;
                assert_eq!((done, of), (calls, MAX_ROOMS));
            });
            let report = report.unwrap();
            assert_eq!((report.turns, report.budget.as_str(), report.tasks.len()), (7, "21 moves", MAX_ROOMS));
            assert!(report.tasks.iter().all(|t| t.within_turns == Some(true)));
            assert!(
                report
                    .tasks
                    .iter()
                    .all(|t| (5..=21).contains(&t.min_costs[0].unwrap()) && t.min_costs[1] <= t.min_costs[0])
            );
            let won = report.tasks.iter().filter(|t| t.solved_by_random).count();
            assert!((1..MAX_ROOMS / 5).contains(&won), "{split}: {won}");
        }
    }
}
