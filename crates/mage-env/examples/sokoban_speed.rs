//! How fast are Sokoban's rooms and steps?
//!
//! Reads a plan (which rooms, and which actions in each) from the file named on the command line, as
//! `benches/peers/sokoban_reference.py` writes it, carries it out several times, and prints one JSON object: rates, and a
//! checksum over everything that was seen, so that both sides are known to have done the same.

use flate2::Crc;
use mage_env::sokoban::{Board, Generator, Move, Play, Rendering, RoomConfig, SolvabilityChecker, render};
use serde::Deserialize;
use std::{error::Error, hint::black_box, time::Instant};

#[derive(Deserialize)]
struct Plan {
    rows: usize,
    cols: usize,
    boxes: usize,
    search_depth: u32,
    max_steps: u32,
    min_steps: u32,
    max_sol_steps: u32,
    /// How many times everything is done.
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
    let plan: Plan = serde_json::from_str(&std::fs::read_to_string(file)?)?;
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
        boards.push(Board::new(&generator.room(episode.seed)?.level)?);
    }
    let mut solvable = SolvabilityChecker::new(plan.search_depth);
    let mut view = String::new();
    let mut steps = 0_u64;
    let clock = Instant::now();
    for _ in 0..plan.repeat {
        for (episode, (board, start)) in plan.episodes.iter().zip(&boards) {
            // What is solvable is found out anew for each room: nothing is known beforehand.
            solvable.clear();
            let mut play = Play::new(board, *start);
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
        let mut play = Play::new(board, *start);
        for action in &episode.actions {
            let outcome = play.step(board, Move::from_code(*action), plan.max_steps, &mut solvable);
            view.clear();
            render(board, &play.state, Rendering::TextWithRowNumbers, &mut view);
            seen.update(view.as_bytes());
            let flags = format!("{:.1} {} {}", outcome.reward, outcome.over.is_some(), outcome.solved);
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
    #[expect(clippy::print_stdout, reason = "printing the report is what the program is for")]
    {
        println!("{report}");
    }
    Ok(())
}
