//! Measures random Kuhn poker steps per second on one thread and prints one line of JSON.
//!
//! Usage: `kuhn_steps PLAYOUTS [SEED]`. A step is one applied action, including chance. Every playout queries the
//! player to move, the legal actions or chance probabilities, and the returns. `benches/peers/kuhn_openspiel.py`
//! compares it with OpenSpiel.

use mage_env::{CurrentPlayer, Game, Seed, kuhn::Kuhn, sample_action, sample_uniform};
use std::{io::Write, process::ExitCode, time::Instant};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let (Some(Ok(playouts)), seed) = (args.next(), args.next().and_then(Result::ok).unwrap_or(0)) else {
        let _ = writeln!(std::io::stderr(), "usage: kuhn_steps PLAYOUTS [SEED]");
        return ExitCode::from(2);
    };
    let game = Kuhn;
    let mut rng = Seed::new(seed).child("playouts").rng();
    let mut steps = 0_u64;
    let mut first_seat = 0.0_f64;
    let start = Instant::now();
    for _ in 0..playouts {
        let mut state = game.initial(&mut rng);
        loop {
            let action = match game.current_player(&state) {
                CurrentPlayer::Terminal => break,
                CurrentPlayer::Chance => sample_action(&game.chance(&state), &mut rng),
                CurrentPlayer::Player(_) => sample_uniform(&game.legal(&state), &mut rng),
            };
            game.apply(&mut state, action);
            steps += 1;
        }
        first_seat += f64::from(game.returns(&state)[0]);
    }
    let seconds = start.elapsed().as_secs_f64();
    let mean = first_seat / playouts as f64;
    let line = serde_json::json!({ "playouts": playouts, "steps": steps, "seconds": seconds, "mean_return_0": mean });
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
