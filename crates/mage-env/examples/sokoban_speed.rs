//! Throughput of Sokoban room generation and steps.
//!
//! Reads a plan (rooms, and the actions in each) from the file named on the command line, as written by
//! `benches/peers/sokoban_reference.py`, executes it several times, and prints one JSON object: rates, and a checksum over
//! all observations, which shows that both sides did the same work.

use flate2::Crc;
use mage_env::sokoban::{
    Generator, Move, Rendering, RoomConfig, SokobanBoard, SokobanEpisode, SolvabilityChecker, render,
};
use serde::Deserialize;
use std::{error::Error, hint::black_box, time::Instant};

#[derive(Deserialize)]
struct ReplayPlan {
    rows: usize,
    cols: usize,
    boxes: usize,
    search_depth: u32,
    max_steps: u32,
    min_steps: u32,
    max_sol_steps: u32,
    /// Number of repetitions.
    repeat: u32,
    episodes: Vec<Episode>,
}

#[derive(Deserialize)]
struct Episode {
    seed: u32,
    actions: Vec<u8>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("usage: sokoban_speed PLAN.json")?;
    let plan: ReplayPlan = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let mut generator = Generator::new(RoomConfig {
        rows: plan.rows,
        cols: plan.cols,
        boxes: plan.boxes,
        search_depth: plan.search_depth,
        min_solution: plan.min_steps,
        max_solution: plan.max_sol_steps,
        keep_out_of_window: true,
    })?;

    let clock = Instant::now();
    for _ in 0..plan.repeat {
        for episode in &plan.episodes {
            black_box(generator.room(episode.seed)?);
        }
    }
    let rooms_per_s = f64::from(plan.repeat) * plan.episodes.len() as f64 / clock.elapsed().as_secs_f64();

    let mut boards = Vec::new();
    for episode in &plan.episodes {
        boards.push(SokobanBoard::new(&generator.room(episode.seed)?.level)?);
    }
    let mut solvable = SolvabilityChecker::new(plan.search_depth);
    let mut view = String::new();
    let mut steps = 0_u64;
    let clock = Instant::now();
    for _ in 0..plan.repeat {
        for (episode, (board, start)) in plan.episodes.iter().zip(&boards) {
            // Every room computes its own table; nothing is cached between rooms.
            solvable.clear();
            let mut play = SokobanEpisode::new(board, *start);
            for action in &episode.actions {
                let outcome = play.step(board, Move::from_code(*action), plan.max_steps, &mut solvable);
                view.clear();
                render(board, &play.state, Rendering::TextWithRowNumbers, &mut view);
                black_box((outcome, &view));
                steps += 1;
            }
        }
    }
    let steps_per_s = steps as f64 / clock.elapsed().as_secs_f64();

    let mut seen = Crc::new();
    for (episode, (board, start)) in plan.episodes.iter().zip(&boards) {
        solvable.clear();
        let mut play = SokobanEpisode::new(board, *start);
        for action in &episode.actions {
            let outcome = play.step(board, Move::from_code(*action), plan.max_steps, &mut solvable);
            view.clear();
            render(board, &play.state, Rendering::TextWithRowNumbers, &mut view);
            seen.update(view.as_bytes());
            let flags = format!("{:.1} {} {}", outcome.reward, outcome.termination.is_some(), outcome.solved);
            seen.update(flags.as_bytes());
        }
    }
    let report = serde_json::json!({
        "rooms_per_s": rooms_per_s,
        "steps_per_s": steps_per_s,
        "rooms": plan.episodes.len(),
        "steps": steps / u64::from(plan.repeat),
        "checksum": format!("{:08x}", seen.sum()),
    });
    #[expect(clippy::print_stdout, reason = "the report goes to standard output")]
    {
        println!("{report}");
    }
    Ok(())
}
