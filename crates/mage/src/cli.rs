//! Which commands and options are there?

mod measure;
mod model;

pub(crate) use measure::*;
pub(crate) use model::*;

use clap::{Args, Parser, Subcommand};
use mage_native::{Device, Options};
use std::path::PathBuf;

/// Train language-model agents that adapt within a context window.
///
/// An agent plays several episodes of the same task, or against the same hidden opponent, and writes itself a note after
/// each. A good one is better in the last episode than in the first.
#[derive(Debug, Parser)]
#[command(name = "mage", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 all went well, 1 it failed, 2 the command line or a file named on it makes no \
                        sense, 130 Ctrl-C.\nColours are off when NO_COLOR is set or the output is not a terminal.")]
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
    /// Train an agent that adapts; without arguments a small one for Kuhn poker, in minutes
    Train(Train),
    /// Teach a model the form of an answer, on generated play or on your own transcripts, and keep it
    Warmstart(Warmstart),
    /// Look at recipes: list them, put them together, explain their keys
    Recipe(Recipe),
    /// Play against a hidden opponent yourself
    Play(Play),
    /// Measure an agent on a fixed panel of tasks, next to the exact ceilings
    Eval(Box<Eval>),
    /// Train and evaluate a whole grid: what a table or a figure takes
    Sweep(Sweep),
    /// Turn runs and records into one page, tables and figures
    Report(Report),
    /// List environments, or show one with its ceilings
    Env(Env),
    /// Make models, look at them, score tokens and write text with them
    Model(Model),
    /// Measure how fast things are on this machine
    Bench(Bench),
    /// Say what this machine can do, or whether engines elsewhere are what a recipe needs
    Doctor(Doctor),
    /// Write what starts engines on other machines: scripts for one machine, Ray, Slurm or Kubernetes
    Launch(Launch),
    /// Print a completion script for your shell
    #[command(after_help = "For example: mage completions bash > ~/.local/share/bash-completion/completions/mage")]
    Completions(Completions),
}

#[derive(Debug, Args)]
#[command(after_help = "Example: mage doctor --engine kuhn.toml skyrl.toml --set model.path=models/kuhn")]
pub(crate) struct Doctor {
    /// Ask the servers that these recipes name: are they there, do they speak the dialect, have they the same words and
    /// weights, and do weights arrive? Trains nothing
    #[arg(long, value_name = "RECIPE", num_args = 1..)]
    pub(crate) engine: Vec<String>,
    /// Change one key of the recipe
    #[arg(long, value_name = "KEY=VALUE", requires = "engine")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is started: read what was written, and run it. See docs/scale.md.\n\nExample: mage launch slurm \
                        --model Qwen/Qwen3-4B --backend fsdp --gpus 8 --samplers 4 --dry-run"
)]
pub(crate) struct Launch {
    /// Where the engines will run
    #[arg(value_enum)]
    pub(crate) place: Place,
    /// The model: a folder all machines see, from / on, or a name on the Hub
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: String,
    /// What trains behind the Tinker protocol
    #[arg(long, value_enum, default_value_t = TrainerBackend::Fsdp)]
    pub(crate) backend: TrainerBackend,
    /// GPUs that train, on each training node; 4, or 1 with jax, where it is not given
    #[arg(long, value_parser = at_least_one)]
    pub(crate) gpus: Option<usize>,
    /// Training nodes
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    pub(crate) nodes: usize,
    /// vLLM servers, or SkyRL's own vLLM engines, that sample: one GPU each
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub(crate) samplers: usize,
    /// The adapter's rank
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    pub(crate) rank: usize,
    /// Tokens a sequence may have
    #[arg(long, default_value_t = 16384, value_parser = at_least_one)]
    pub(crate) context: usize,
    /// A folder that all machines see under this path, for the engines themselves, adapters and checkpoints
    #[arg(long, value_name = "DIR", default_value = "/shared/mage")]
    pub(crate) shared: String,
    /// Where the files are written
    #[arg(long, value_name = "DIR", default_value = "launch")]
    pub(crate) out: PathBuf,
    /// Print the files instead of writing them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Where engines run.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Place {
    /// One machine, by `uv`
    Uv,
    /// A Ray cluster that is there already
    Ray,
    /// A Slurm allocation
    Slurm,
    /// Kubernetes
    Kubernetes,
}

/// What trains behind the protocol.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum TrainerBackend {
    /// One process, also without a GPU
    Jax,
    /// PyTorch FSDP over Ray
    Fsdp,
    /// Megatron over Ray
    Megatron,
}

/// What is changed in a recipe.
#[derive(Debug, Args)]
pub(crate) struct Changes {
    /// Change one key (`mage recipe explain` lists them)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Where all random numbers start; short for --set seed=N
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Threads, 0 for all; short for --set engine.threads=N. Results do not depend on it
    #[arg(long, value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Where it computes: auto, cpu, cuda or cuda:N; short for --set engine.device=DEVICE
    #[arg(long)]
    pub(crate) device: Option<Device>,
}

impl Changes {
    /// All of it as settings.
    pub(crate) fn settings(&self) -> Vec<String> {
        let seed = self.seed.map(|s| format!("seed={s}"));
        let threads = self.threads.map(|t| format!("engine.threads={t}"));
        let device = self.device.map(|d| format!("engine.device=\"{d}\""));
        self.set.iter().cloned().chain(seed).chain(threads).chain(device).collect()
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Recipes and methods are put together left to right; later ones win:\n\
    \n  mage train                              Kuhn poker, MAGE, two cores, minutes\
    \n  mage train kuhn lamer --seed 3          the same with another credit\
    \n  mage train tictactoe-blind              opponents that must be found out\
    \n  mage train my.toml --set optim.updates=50\
    \n  mage train --resume runs/kuhn-1         go on where it stopped\n\n\
    Ctrl-C once stops after the current update and saves; twice stops at once. Both can be resumed.")]
pub(crate) struct Train {
    /// Embedded recipes, methods and TOML files (`mage recipe list`)
    #[arg(value_name = "RECIPE", default_value = "kuhn", conflicts_with = "resume")]
    pub(crate) recipes: Vec<String>,
    #[command(flatten)]
    pub(crate) changes: Changes,
    /// The run directory; runs/RECIPE-N when left out
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with the run in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub(crate) resume: Option<PathBuf>,
    /// Resume even though the recipe was changed
    #[arg(long, requires = "resume")]
    pub(crate) force: bool,
    /// Check everything and say what it would take; writes nothing but the resolved recipe, to --out FILE
    #[arg(long, conflicts_with = "resume")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "`mage train` does this by itself for a new model. Transcripts are one JSON object a line:\n\
    \n  {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, {\"role\": \"assistant\", \"content\": \"…\"}]}\n\
    \n  mage warmstart kuhn --out models/kuhn\
    \n  mage warmstart paper/kuhn --set model.path=Qwen3-4B --transcripts mine.jsonl --out models/mine\
    \n  mage train kuhn --set model.path=models/kuhn")]
pub(crate) struct Warmstart {
    /// Embedded recipes, methods and TOML files (`mage recipe list`)
    #[arg(value_name = "RECIPE", default_value = "kuhn")]
    pub(crate) recipes: Vec<String>,
    /// The folder the model is written to
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Conversations to learn from instead of generated play; short for --set warmstart.transcripts=FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) transcripts: Option<String>,
    #[command(flatten)]
    pub(crate) changes: Changes,
}

#[derive(Debug, Args)]
pub(crate) struct Recipe {
    #[command(subcommand)]
    pub(crate) command: RecipeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecipeCommand {
    /// List embedded recipes and methods
    List,
    /// Put recipes together and print the whole, every value written out
    Show {
        /// Embedded recipes, methods and TOML files
        #[arg(value_name = "RECIPE", default_value = "kuhn")]
        recipes: Vec<String>,
        /// Change one key
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Say what a key, a section, or everything means
    Explain {
        /// Such as optim.updates, or optim
        #[arg(default_value = "")]
        key: String,
    },
}

/// What a population's file looks like; lines short enough that no terminal breaks them.
const POPULATION_HELP: &str = "Opponents, seats and settings: the name of a built-in population, or a TOML file such as

  env = \"kuhn\"
  options = { deal = \"fresh\" } # settings of the environment
  seats = [0.5, 0.5]           # how often the agent sits where

  [[opponent]]
  name = \"rock\"                # what tables call it
  kind = \"conservative\"        # `mage env show kuhn` lists kinds
  weight = 0.5                 # how often it is met

  [[opponent]]
  name = \"stranger\"
  kind = \"table\"
  bet = { J = 0.3, Qb = 0.5, K = 1.0, Kb = 1.0 }
  splits = [\"out-of-domain\"]   # met with --split out-of-domain

Left out: no options, all seats alike, weight 1, and the splits train and in-domain. `mage env show NAME --population FILE` checks \
a file and shows what it makes of it.";

/// Whom one meets: shared by all commands that choose opponents.
#[derive(Clone, Debug, Args)]
pub(crate) struct Whom {
    /// Opponents, seats and settings: a TOML file (--help shows one), or the name of a built-in population
    #[arg(long, value_name = "FILE|NAME", long_help = POPULATION_HELP)]
    pub(crate) population: Option<String>,
    /// Only these opponents: names in the population or in a built-in one, or kinds the environment knows
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', alias = "opponents")]
    pub(crate) opponent: Vec<String>,
    /// Which opponents or tasks of the population: train, in-domain (when left out), out-of-domain, or a split of its own
    #[arg(long)]
    pub(crate) split: Option<String>,
    /// The agent's seat, from 0; as often as the population says when left out
    #[arg(long)]
    pub(crate) seat: Option<u8>,
    /// A setting of the environment, such as deal=fixed
    #[arg(long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Leave out game files that cannot be read, and say so; in environments that read many, such as alfworld
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

impl Whom {
    /// The split that is meant.
    pub(crate) fn split(&self) -> &str {
        self.split.as_deref().unwrap_or("in-domain")
    }
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
    /// Say at the end who it was, or what the policy noted about you
    #[arg(long)]
    pub(crate) reveal: bool,
    /// Sit down opposite the policy of this training run instead; it gets to know you from episode to episode
    #[arg(long, value_name = "RUN", conflicts_with_all = ["env", "population", "opponent", "seat", "split", "options", "skip_bad", "turns"])]
    pub(crate) against: Option<PathBuf>,
    /// Where that policy computes: auto, cpu, cuda or cuda:N; auto when left out, or cpu where it was trained with that
    #[arg(long, requires = "against", conflicts_with_all = ["env", "population", "opponent", "seat", "split", "options", "skip_bad", "turns"])]
    pub(crate) device: Option<Device>,
    #[command(flatten)]
    pub(crate) whom: Whom,
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
    /// Compute the best that can be done: against the opponents of a split, or in the tasks of each split
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

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Answer many random requests at once and show throughput, cache use and waiting times
    #[command(after_help = "Example: mage bench sampler my-model --requests 10000 --common 100")]
    Sampler(BenchSampler),
}

#[derive(Debug, Args)]
pub(crate) struct BenchSampler {
    /// A folder, or org/name[@revision] on the Hub; an adapter's brings its model along
    pub(crate) model: String,
    /// How many requests
    #[arg(long, default_value_t = 1000, value_parser = at_least_one)]
    pub(crate) requests: usize,
    /// How many under way at once
    #[arg(long, default_value_t = 64, value_parser = at_least_one)]
    pub(crate) in_flight: usize,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    pub(crate) prompt: usize,
    /// Of these, how many are the same for all
    #[arg(long, default_value_t = 0)]
    pub(crate) common: usize,
    /// Tokens of each answer
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) answer: u32,
    /// Memory for keys and values in MiB, at most what is free; 0 chooses
    #[arg(long, default_value_t = 0)]
    pub(crate) cache_mib: usize,
    /// Compute every prompt anew
    #[arg(long)]
    pub(crate) no_sharing: bool,
    /// On a card: the same bits for a request whatever else is sampled beside it; slower
    #[arg(long)]
    pub(crate) batch_invariant: bool,
    /// Threads; 0 takes all
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Where it computes: auto (a card where there is one), cpu, cuda or cuda:N
    #[arg(long, default_value_t)]
    pub(crate) device: Device,
    /// Decides prompts and answers
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x <= 1e9 => Ok(x),
        _ => Err("a number of seconds above 0 and at most 1e9 is needed".to_owned()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > Options::MAX_THREADS => Err(format!("at most {} are possible; 0 takes all", Options::MAX_THREADS)),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1 is needed".to_owned()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}
