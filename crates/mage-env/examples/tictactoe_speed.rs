//! Measures the speed of Tic-Tac-Toe's rules and tree search.
//!
//! Reads a plan from the command line, as written by `benches/peers/tictactoe_openspiel.py`, executes it and prints one
//! JSON object. Each rate comes with a result of the games, which shows that both implementations do the same work.

use mage_env::{
    CurrentPlayer, Game, ParsedAction, Registry, Seed, sample_uniform,
    solvers::mcts::{Mcts, SearchTree},
    tictactoe::{Board, BoardCell, TicTacToe, paper_mcts},
};
use rand::seq::IndexedRandom;
use serde::Deserialize;
use std::{collections::BTreeMap, error::Error, hint::black_box, time::Instant};

#[derive(Deserialize)]
struct SpeedPlan {
    seed: u64,
    /// Number of random games.
    games: u64,
    /// Positions to search, as cells from 0 to 8 in the order they were played.
    positions: Vec<Vec<u16>>,
    /// Playouts per move.
    simulations: Vec<u32>,
    /// Moves to search per position.
    moves: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let plan: SpeedPlan = serde_json::from_str(&std::env::args().nth(1).ok_or("usage: tictactoe_speed PLAN")?)?;
    let seed = Seed::new(plan.seed);
    let (steps_per_s, first_wins) = random_games(plan.games, seed.child("games"));
    let env_steps_per_s = text_games(plan.games / 20, seed.child("text"))?;
    let positions: Vec<Board> = plan.positions.iter().map(|p| board(p)).collect::<Result<_, _>>()?;
    let mut move_us = BTreeMap::new();
    for n in plan.simulations {
        move_us
            .insert(n.to_string(), microseconds_per_move(&paper_mcts(n), &positions, plan.moves, seed.child("search")));
    }
    let out = serde_json::json!({
        "steps_per_s": steps_per_s, "first_wins": first_wins, "env_steps_per_s": env_steps_per_s, "move_us": move_us,
    });
    let mut stdout = std::io::stdout();
    std::io::Write::write_all(&mut stdout, format!("{out}\n").as_bytes())?;
    Ok(())
}

fn board(moves: &[u16]) -> Result<Board, Box<dyn Error>> {
    let cells = moves.iter().map(|m| BoardCell::all().nth(usize::from(*m)).ok_or("cells are numbered from 0 to 8"));
    Ok(Board::after(cells.collect::<Result<Vec<_>, _>>()?).ok_or("a position holds an illegal move")?)
}

/// Random games with the rules only. Returns moves per second and the first player's win rate.
fn random_games(games: u64, seed: Seed) -> (f64, f64) {
    let mut rng = seed.rng();
    let (mut steps, mut won) = (0_u64, 0_u64);
    let clock = Instant::now();
    for _ in 0..games {
        let mut state = TicTacToe.initial(&mut rng);
        while TicTacToe.current_player(&state) != CurrentPlayer::Terminal {
            let action = sample_uniform(&TicTacToe.legal(&state), &mut rng);
            TicTacToe.apply(&mut state, action);
            steps += 1;
        }
        won += u64::from(TicTacToe.returns(&state)[0] > 0.0);
    }
    (steps as f64 / clock.elapsed().as_secs_f64(), won as f64 / games as f64)
}

/// Random games against a random opponent in the text environment. Returns agent steps per second.
fn text_games(games: u64, seed: Seed) -> Result<f64, Box<dyn Error>> {
    let registry = Registry::builtin();
    let env_spec = registry.get("tictactoe")?;
    let mut population = env_spec.default_population();
    population.opponents = vec![mage_env::PopulationMember::in_domain("random", 1.0)];
    let mut env = registry.build(&population.sample_task("train", 2, seed)?)?;
    let mut rng = seed.child("agent").rng();
    let mut steps = 0_u64;
    let clock = Instant::now();
    for game in 0..games {
        black_box(env.reset(game as u32));
        loop {
            let legal = env.legal().unwrap_or_default();
            let action = legal.choose(&mut rng).cloned().ok_or("no legal action")?;
            steps += 1;
            if black_box(env.step(&ParsedAction::Act(action))).end.is_some() {
                break;
            }
        }
    }
    Ok(steps as f64 / clock.elapsed().as_secs_f64())
}

/// Microseconds per move, averaged over positions.
fn microseconds_per_move(search: &Mcts, positions: &[Board], moves: u32, seed: Seed) -> f64 {
    let mut rng = seed.rng();
    let mut tree = SearchTree::default();
    let clock = Instant::now();
    for _ in 0..moves {
        for position in positions {
            black_box(search.choose(&TicTacToe, position, &mut tree, &mut rng));
        }
    }
    clock.elapsed().as_secs_f64() * 1e6 / f64::from(moves) / positions.len() as f64
}
