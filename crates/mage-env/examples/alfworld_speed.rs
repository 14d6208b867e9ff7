//! Throughput and memory use of ALFWorld games.
//!
//! `alfworld_speed replay PLAN.json` executes a plan (game files, and the commands in each) as written by
//! `benches/peers/alfworld_textworld.py`, several times, and prints one JSON object: rates, and a checksum over all
//! observations, which shows that both sides did the same work. `alfworld_speed memory DATA N` loads `N` distinct official
//! games at once and prints the peak memory use.

use flate2::Crc;
use mage_env::{
    Env, EnvId, EnvSpec, OptionMap, Seed, Task,
    alfworld::{AlfworldGame, AlfworldSpec, HouseholdWorld, initial_observation},
};
use serde::Deserialize;
use std::{error::Error, hint::black_box, time::Instant};

#[derive(Deserialize)]
struct ReplayPlan {
    /// Number of repetitions.
    repeat: u32,
    episodes: Vec<Episode>,
}

#[derive(Deserialize)]
struct Episode {
    file: String,
    commands: Vec<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let report = match words[..] {
        ["replay", plan] => replay(&serde_json::from_str(&std::fs::read_to_string(plan)?)?)?,
        ["memory", data, count] => memory(data, count.parse()?)?,
        _ => return Err("usage: alfworld_speed replay PLAN.json | memory DATA N".into()),
    };
    let mut out = std::io::stdout().lock();
    Ok(std::io::Write::write_all(&mut out, format!("{report}\n").as_bytes())?)
}

/// Adds the results of a step to the checksum: observation, admissible commands, whether the game is won.
fn update_checksum(crc: &mut Crc, observation: &str, admissible: &[String], won: bool) {
    crc.update(observation.as_bytes());
    admissible.iter().for_each(|c| crc.update(c.as_bytes()));
    crc.update(&[u8::from(won)]);
}

fn admissible(world: &HouseholdWorld, state: &mage_env::alfworld::HouseholdState) -> Vec<String> {
    world.admissible_commands(state).into_iter().map(|c| world.format_command(c)).collect()
}

fn replay(plan: &ReplayPlan) -> Result<serde_json::Value, Box<dyn Error>> {
    let mut crc = Crc::new();
    let start = Instant::now();
    let mut worlds = Vec::new();
    for round in 0..plan.repeat {
        worlds.clear();
        for episode in &plan.episodes {
            let world =
                HouseholdWorld::new(&AlfworldGame::read(&std::fs::read(&episode.file)?, &episode.file)?.household);
            let state = world.start().clone();
            let (text, commands) = (initial_observation(&world), admissible(&world, &state));
            if round == 0 {
                update_checksum(&mut crc, &text, &commands, world.won(&state));
            }
            black_box((text, commands));
            worlds.push(world);
        }
    }
    let loads = start.elapsed().as_secs_f64() / (f64::from(plan.repeat) * plan.episodes.len() as f64);

    let start = Instant::now();
    let mut steps = 0_u64;
    let mut sum = crc.sum();
    for round in 0..plan.repeat {
        for (world, episode) in worlds.iter().zip(&plan.episodes) {
            let mut state = world.start().clone();
            for command in &episode.commands {
                let (text, _) = world.step(&mut state, command);
                let (commands, won) = (admissible(world, &state), world.won(&state));
                if round == 0 {
                    update_checksum(&mut crc, &text, &commands, won);
                    sum = crc.sum();
                }
                black_box((text, commands, won));
                steps += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(serde_json::json!({
        "load_and_reset_s": loads,
        "steps_per_s": steps as f64 / seconds,
        "steps": steps / u64::from(plan.repeat),
        "checksum": sum,
    }))
}

fn memory(data: &str, count: u64) -> Result<serde_json::Value, Box<dyn Error>> {
    let env_spec = AlfworldSpec::default();
    let options = OptionMap::default().with("source", "official").with("data", data);
    let task = Task { env: EnvId::new("alfworld"), options, opponent: None, seat: 0, seed: Seed::new(0) };
    let mut tasks = vec![task; usize::try_from(count)?];
    env_spec.assign_without_replacement(&mut tasks, 0, Seed::new(0))?;
    let mut envs: Vec<Box<dyn Env>> = tasks.iter().map(|t| env_spec.build(t)).collect::<Result<_, _>>()?;
    envs.iter_mut().for_each(|e| drop(e.reset(0)));
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = |key: &str| -> Option<u64> {
        let line = status.lines().find(|l| l.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Ok(serde_json::json!({ "instances": envs.len(), "peak_kib": kib("VmHWM"), "now_kib": kib("VmRSS") }))
}
