//! Presets: the task sets of the paper.

use crate::{cli::EvalArgs, output::Output, table::columns, usage};
use serde::Serialize;

/// A named task set, as printed with `--json`.
#[derive(Serialize)]
pub(super) struct Preset {
    name: &'static str,
    description: &'static str,
    pub(super) env: &'static str,
    population: Option<&'static str>,
    opponent: Option<&'static str>,
    seat: Option<u8>,
    split: &'static str,
    option: Option<&'static str>,
}

const fn of(name: &'static str, description: &'static str, env: &'static str, split: &'static str) -> Preset {
    Preset { name, description, env, population: None, opponent: None, seat: None, split, option: None }
}

const IN: &str = "in-domain";
const OUT: &str = "out-of-domain";

const PRESETS: [Preset; 13] = [
    Preset {
        population: Some("paper"),
        ..of("kuhn", "the training opponents, both seats, the same cards in every episode of a task", "kuhn", IN)
    },
    of("kuhn-fresh", "the training opponents, both seats, new cards in every episode", "kuhn", IN),
    Preset {
        population: Some("paper"),
        opponent: Some("cfr_argmax"),
        seat: Some(1),
        ..of("kuhn-cfr", "the most likely action of the CFR policy, from the second seat", "kuhn", OUT)
    },
    Preset {
        population: Some("paper"),
        seat: Some(0),
        ..of("tictactoe", "tree search of 100 simulations, moving first", "tictactoe", IN)
    },
    Preset {
        population: Some("paper"),
        seat: Some(0),
        ..of("tictactoe-mcts1000", "tree search of 1000 simulations, moving first", "tictactoe", OUT)
    },
    of("tictactoe-blind", "opponents that ignore one line, which the agent must identify", "tictactoe", IN),
    of("sokoban", "two boxes, rooms not seen in training", "sokoban", IN),
    Preset { option: Some("boxes=1"), ..of("sokoban-1", "one box", "sokoban", OUT) },
    Preset { option: Some("boxes=3"), ..of("sokoban-3", "three boxes", "sokoban", OUT) },
    of("alfworld", "generated households in seen rooms", "alfworld", IN),
    of("alfworld-unseen", "generated households in unseen rooms", "alfworld", OUT),
    of("webshop", "goals not seen in training, for products that were", "webshop", IN),
    of("webshop-held-out", "goals for products never seen in training", "webshop", OUT),
];

/// All presets with their descriptions.
pub(crate) fn preset_names() -> Vec<(String, String)> {
    PRESETS.iter().map(|p| (p.name.to_owned(), format!("{}: {}", p.env, p.description))).collect()
}

/// Prints all presets.
pub(super) fn list(out: &Output) -> anyhow::Result<()> {
    if out.json {
        return out.object(&PRESETS);
    }
    let rows = PRESETS.iter().map(|p| vec![p.name.to_owned(), p.description.to_owned()]);
    out.line(columns(&["preset", "task set"], rows))
}

fn find(name: &str) -> anyhow::Result<&'static Preset> {
    let unknown = || usage(mage_env::Error::unknown("preset", name, PRESETS.iter().map(|p| p.name)));
    PRESETS.iter().find(|p| p.name == name).ok_or_else(unknown)
}

/// Refuses an unknown preset.
pub(crate) fn check_preset(name: &str) -> anyhow::Result<()> {
    find(name).map(drop)
}

/// Replaces `--preset` by the options that it stands for.
pub(super) fn apply(args: &mut EvalArgs) -> anyhow::Result<()> {
    let Some(name) = &args.preset else { return Ok(()) };
    let preset = find(name)?;
    args.env = Some(preset.env.to_owned());
    args.selection.population = preset.population.map(str::to_owned);
    args.selection.opponent = preset.opponent.iter().map(|o| (*o).to_owned()).collect();
    args.selection.seat = preset.seat;
    args.selection.split = Some(preset.split.to_owned());
    // The user's options come later and override the preset's.
    args.selection.options.splice(0..0, preset.option.map(str::to_owned));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{App, cli::Cli, cli::Command, task_selection::select};
    use clap::Parser;

    #[test]
    fn every_preset_names_an_existing_task_set() {
        for preset in &PRESETS {
            let cli = Cli::try_parse_from(["mage", "eval", "random", "--preset", preset.name]).unwrap();
            let Command::Eval(mut args) = cli.command else { panic!("expected `mage eval`") };
            apply(&mut args).unwrap();
            let (env_spec, population) = select(&App::builtin(), preset.env, &args.selection, None).expect(preset.name);
            let task =
                population.sample_task(args.selection.split(), env_spec.info().seats, mage_env::Seed::new(1)).unwrap();
            assert!(env_spec.build(&task).is_ok(), "{}", preset.name);
            if let Some(seat) = preset.seat {
                assert_eq!(task.seat, seat);
            }
        }
    }
}
