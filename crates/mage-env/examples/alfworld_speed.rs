//! How fast are ALFWorld's games, and how much room do they take?
//!
//! `alfworld_speed replay PLAN.json` carries out a plan (which game files, and which commands in each) as
//! `benches/peers/alfworld_textworld.py` writes it, several times, and prints one JSON object: rates, and a checksum over
//! everything that was seen, so that both sides are known to have done the same. `alfworld_speed memory DATA N` holds `N`
//! distinct official games at once and prints the most memory that was ever in use.

use flate2::Crc;
use mage_env::{
    Env, EnvId, EnvSpec, OptionMap, Seed, Task,
    alfworld::{AlfworldSpec, Game, World, opening},
};
use serde::Deserialize;
use std::{error::Error, hint::black_box, time::Instant};

#[derive(Deserialize)]
struct Plan {
    /// How many times everything is done.
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

/// Takes in what a step shows: observation, commands on offer, whether it is won.
fn see(crc: &mut Crc, observation: &str, offers: &[String], won: bool) {
    crc.update(observation.as_bytes());
    offers.iter().for_each(|c| crc.update(c.as_bytes()));
    crc.update(&[u8::from(won)]);
}

fn offers(world: &World, state: &mage_env::alfworld::State) -> Vec<String> {
    world.admissible(state).into_iter().map(|c| world.write(c)).collect()
}

fn replay(plan: &Plan) -> Result<serde_json::Value, Box<dyn Error>> {
    let mut crc = Crc::new();
    let start = Instant::now();
    let mut worlds = Vec::new();
    for round in 0..plan.repeat {
        worlds.clear();
        for episode in &plan.episodes {
            let world = World::new(&Game::read(&std::fs::read(&episode.file)?, &episode.file)?.household);
            let state = world.start().clone();
            let (text, offered) = (opening(&world), offers(&world, &state));
            if round == 0 {
                see(&mut crc, &text, &offered, world.won(&state));
            }
            black_box((text, offered));
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
                let (offered, won) = (offers(world, &state), world.won(&state));
                if round == 0 {
                    see(&mut crc, &text, &offered, won);
                    sum = crc.sum();
                }
                black_box((text, offered, won));
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
    let options = OptionMap::default().with("games", "official").with("data", data);
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
