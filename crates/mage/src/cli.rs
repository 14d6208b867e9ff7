//! Which commands and options are there?

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Train language-model agents that adapt within a context window.
///
/// An agent plays several episodes of the same task, or against the same hidden opponent, and writes itself a note after
/// each. A good one is better in the last episode than in the first.
#[derive(Debug, Parser)]
#[command(name = "mage", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 all went well, 1 it failed, 2 the command line or a file named on it makes no \
                        sense.\nColours are off when NO_COLOR is set or the output is not a terminal.")]
pub(crate) struct Cli {
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print results only: no progress, no hints
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play against a hidden opponent yourself
    Play(Play),
    /// Measure an agent on a fixed panel of tasks, next to the exact ceilings
    Eval(Eval),
    /// List environments, or show one with its ceilings
    Env(Env),
    /// Print a completion script for your shell
    #[command(after_help = "For example: mage completions bash > ~/.local/share/bash-completion/completions/mage")]
    Completions(Completions),
}

/// Whom one meets: shared by all commands that choose opponents.
#[derive(Debug, Args)]
pub(crate) struct Whom {
    /// Opponents, seats and settings: a TOML file, or the name of a built-in population
    #[arg(long, value_name = "FILE|NAME")]
    pub(crate) population: Option<String>,
    /// Only these opponents: names in the population, or kinds the environment knows
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', alias = "opponents")]
    pub(crate) opponent: Vec<String>,
    /// Which opponents or tasks of the population: train, in-domain, out-of-domain, or a split of its own
    #[arg(long, default_value = "in-domain")]
    pub(crate) split: String,
    /// The agent's seat, from 0; as often as the population says when left out
    #[arg(long)]
    pub(crate) seat: Option<u8>,
    /// A setting of the environment, such as deal=fixed
    #[arg(long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Leave out data files that cannot be read, and say so (the setting skip_bad=true)
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Type an action or the start of it; arrow keys work where moves go up, down, left and right; ? \
                        shows the rules, q leaves."
)]
pub(crate) struct Play {
    /// The environment
    #[arg(default_value = "kuhn")]
    pub(crate) env: String,
    /// How many episodes against the same opponent
    #[arg(long, short = 'n', default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) episodes: u32,
    /// How many turns an episode may take; the environment's own number when left out
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) turns: Option<u32>,
    /// Decides opponent, seat and deals; drawn from the clock when left out
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Say at the end who it was
    #[arg(long)]
    pub(crate) reveal: bool,
    #[command(flatten)]
    pub(crate) whom: Whom,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: mage eval --policy bayes --tasks 20000\n         mage eval --policy bayes --memory none --tasks 20000"
)]
pub(crate) struct Eval {
    /// The environment
    #[arg(long, default_value = "kuhn")]
    pub(crate) env: String,
    /// The agent: random, or one that `mage env show` lists
    #[arg(long)]
    pub(crate) policy: String,
    /// How many episodes of the same task
    #[arg(long, short = 'n', default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) episodes: u32,
    /// How many turns an episode may take; the environment's own number when left out
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) turns: Option<u32>,
    /// What past episodes leave in the prompt
    #[arg(long, value_enum, default_value_t = Memory::Reflection)]
    pub(crate) memory: Memory,
    /// How many tasks are on the panel
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) tasks: u64,
    /// Stop a task at its first win, as the paper counts Pass@k
    #[arg(long)]
    pub(crate) early_stop: bool,
    /// Decides the panel and the agent's luck
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Keep every meta-episode in this file (JSON lines); run again to go on where it stopped
    #[arg(long, value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
    /// Draw scores by episode next to the ceilings into this file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) whom: Whom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Memory {
    /// Nothing: the memory is blanked
    None,
    /// The agent's own reflections
    Reflection,
}

#[derive(Debug, Args)]
pub(crate) struct Env {
    #[command(subcommand)]
    pub(crate) command: EnvCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EnvCommand {
    /// List the environments
    List,
    /// Show an environment: settings, opponents, agents that play by rule, and ceilings
    Show(Show),
    /// Replay recordings of the original engine and say whether all is equal
    Conform(Conform),
    /// Write generated tasks as files that the original engine can play
    Generate(Generate),
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The environment
    pub(crate) env: String,
    /// Compute the best that can be done against the population
    #[arg(long)]
    pub(crate) oracles: bool,
    /// Over how many episodes
    #[arg(long, short = 'n', default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) episodes: u32,
    #[command(flatten)]
    pub(crate) whom: Whom,
}

#[derive(Debug, Args)]
pub(crate) struct Conform {
    /// The environment
    pub(crate) env: String,
    /// The recordings
    #[arg(long, value_name = "FILE")]
    pub(crate) golden: PathBuf,
    /// The folder of the original's data files
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example: mage env generate alfworld --data ~/alfworld --out games --count 20 --seed 1")]
pub(crate) struct Generate {
    /// The environment
    pub(crate) env: String,
    /// The folder to write to
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The folder of the original's data files, from which rules are taken
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// How many
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) count: u64,
    /// Decides the tasks
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) whom: Whom,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}
