//! How many rooms of a split can be solved in time?
//!
//! Each room is solved twice: with the fewest moves, which decides whether the turns of an episode are enough, and with the
//! fewest pushes, which says how hard it is to think through. Random play of the same room is the floor.

use super::{
    board::{Board, State},
    options::SokobanOptions,
    solver::{Cost, DEFAULT_STATES, Verdict, solve},
    spec::SokobanSpec,
    turn::TURN_WORDS,
    world::SokobanWorld,
};
use crate::{End, Env, Outcome, ParsedAction, Population, Result, Rng, Seed, SolvedSplit, SolvedTask};
use rand::{RngExt, seq::IndexedRandom};

/// How many generated rooms are looked at.
const ROOMS: usize = 1000;

/// At most how many levels of files are, which take longer.
const LEVELS: usize = 200;

/// Ceilings of a split; `stock` is how many levels its files have.
pub(super) fn ceilings(
    env_spec: &SokobanSpec,
    population: &Population,
    split: &str,
    options: &SokobanOptions,
    stock: Option<usize>,
    each: &mut dyn FnMut(usize, usize),
) -> Result<SolvedSplit> {
    let turns = options.max_turns();
    let most = turns.saturating_mul(options.moves_per_turn as u32).min(options.world().max_steps);
    let seed = Seed::new(0).child("sokoban ceilings");
    // Levels are taken evenly from the whole file, none twice; one that was chosen is the only one.
    let levels = stock.filter(|_| options.level.is_none());
    let count = if options.level.is_some() { 1 } else { levels.map_or(ROOMS, |n| n.min(LEVELS)) };
    let mut tasks = Vec::with_capacity(count);
    for i in 0..count {
        let own = seed.at(i as u64);
        let task = population.draw(split, 1, own)?;
        let level = levels.map(|n| i * n / count).or(options.level);
        let mut world = env_spec.world(&task, &SokobanOptions { level, ..options.clone() })?;
        let by_luck = play_at_random(&mut world, turns, options.moves_per_turn, &mut own.child("luck").rng());
        let (board, start) = world.start();
        tasks.push(solved(board, start, most, by_luck));
        each(i + 1, count);
    }
    Ok(SolvedSplit {
        split: split.to_owned(),
        turns,
        budget: format!("{most} moves"),
        measures: vec!["fewest moves", "fewest pushes"],
        tasks,
    })
}

fn solved(board: &Board, start: State, most: u32, by_luck: bool) -> SolvedTask {
    let of = |cost| match solve(board, start, cost, DEFAULT_STATES) {
        Verdict::Solved(solution) => Ok(solution),
        Verdict::Impossible => Err(Some(false)),
        Verdict::GaveUp(_) => Err(None),
    };
    let (moves, pushes) = (of(Cost::Moves), of(Cost::Pushes));
    let fewest_moves = moves.as_ref().ok().map(|s| s.moves.len() as u32);
    let fewest_pushes = pushes.as_ref().ok().map(|s| s.pushes);
    let in_time = match (&moves, &pushes) {
        (Ok(solution), _) => Some(solution.moves.len() <= most as usize),
        // Not the shortest way, but short enough.
        (Err(None), Ok(solution)) if solution.moves.len() <= most as usize => Some(true),
        (Err(verdict), _) => *verdict,
    };
    SolvedTask { in_time, least: vec![fewest_moves, fewest_pushes], by_luck }
}

/// One episode of any turns that can be written, each equally likely; where they are too many to list, of as many moves as a
/// turn may have.
fn play_at_random(world: &mut SokobanWorld, turns: u32, moves: usize, rng: &mut Rng) -> bool {
    world.begin(0);
    let listed = world.legal();
    for _ in 0..turns {
        let turn = match &listed {
            Some(all) => all.choose(rng).cloned().unwrap_or_default(),
            None => (0..moves).map(|_| TURN_WORDS[rng.random_range(0..4)]).collect::<Vec<_>>().join(" "),
        };
        if let Some(end) = world.step(&ParsedAction::Act(turn)).end {
            return matches!(end, End::Terminated { outcome: Outcome::Won, .. });
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnvSpec, Options, WorldSolver};

    fn level(text: &str, options: Options) -> SolvedSplit {
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
    fn turns_decide_what_is_in_time() {
        let three = |budget: u32| level(CORRIDOR, Options::default().with("budget", budget));
        let enough = three(3);
        assert_eq!((enough.turns, enough.budget.as_str()), (1, "3 moves"));
        assert_eq!(enough.tasks, [SolvedTask { in_time: Some(true), least: vec![Some(3), Some(2)], by_luck: false }]);
        let single = level(CORRIDOR, Options::default().with("budget", 2).with("moves_per_turn", 1));
        assert_eq!((single.turns, single.tasks[0].in_time), (2, Some(false)));
        let never = level("######\n#@$ ##\n#  .##\n######\n", Options::default());
        assert_eq!(never.tasks[0].least, [None, None], "a box in a corner");
        assert_eq!(never.tasks[0].in_time, Some(false));
    }

    #[test]
    fn every_generated_room_is_in_time_and_luck_seldom_is() {
        let env_spec = SokobanSpec::default();
        let population = env_spec.default_population();
        for split in crate::SPLITS {
            let mut heard = 0;
            let report = env_spec.solve(&population, split, &mut |done, of| {
                heard += 1;
                assert_eq!((done, of), (heard, ROOMS));
            });
            let report = report.unwrap();
            assert_eq!((report.turns, report.budget.as_str(), report.tasks.len()), (7, "21 moves", ROOMS));
            assert!(report.tasks.iter().all(|t| t.in_time == Some(true)));
            assert!(report.tasks.iter().all(|t| (5..=21).contains(&t.least[0].unwrap()) && t.least[1] <= t.least[0]));
            let lucky = report.tasks.iter().filter(|t| t.by_luck).count();
            assert!((1..ROOMS / 5).contains(&lucky), "{split}: {lucky}");
        }
    }
}
