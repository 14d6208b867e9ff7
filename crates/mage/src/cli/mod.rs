//! Command-line arguments: one `…Args` struct per command, parsed by clap. Doc comments are the `--help` text.

pub(crate) mod complete;
mod eval;
mod model;
mod runs;
pub(crate) mod suggest;

pub(crate) use eval::*;
pub(crate) use model::*;
pub(crate) use runs::*;

use clap::{ArgAction, Args, Command as ClapCommand, CommandFactory, FromArgMatches, Parser, Subcommand};
use mage_native::{Device, EngineOptions};
use std::{ffi::OsString, ops::RangeInclusive, path::PathBuf};

/// Train language-model agents that adapt within a context window.
///
/// In a meta-episode, an agent plays several episodes of the same task, or against the same hidden opponent, and writes
/// a reflection after each. Training maximises the improvement from the first episode to the last.
#[derive(Debug, Parser)]
#[command(name = "mage", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 success, 1 failure, 2 invalid arguments or input file, 130 interrupted (Ctrl-C).\n\
                        With --json, an error is one line on stderr: {\"error\": \"…\", \"code\": 2}.\n\
                        Colours are off when NO_COLOR is set or the output is not a terminal."
)]
pub(crate) struct Cli {
    /// Print JSON lines instead of text; errors are JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print results and warnings only, without progress or hints
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command with all arguments.
pub(crate) fn command() -> ClapCommand {
    accept_negative_numbers(Cli::command())
}

/// A negative number after an option is its value, so that the error states the bounds.
fn accept_negative_numbers(command: ClapCommand) -> ClapCommand {
    let takes_value = |action: &ArgAction| matches!(action, ArgAction::Set | ArgAction::Append);
    let command = command.mut_args(|arg| match !arg.is_positional() && takes_value(arg.get_action()) {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(accept_negative_numbers)
}

/// Parses a command line.
pub(crate) fn parse(args: &[OsString]) -> clap::error::Result<Cli> {
    let mut command = command();
    let mut matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|e| e.format(&mut command))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train an agent; by default a small model on Kuhn poker, in minutes on a CPU
    Train(TrainArgs),
    /// Fine-tune a model on expert episodes or on your own transcripts (SFT), and save it
    Warmstart(WarmstartArgs),
    /// List, merge and explain recipes
    Recipe(RecipeArgs),
    /// Play an environment yourself, against a hidden opponent or a trained policy
    Play(PlayArgs),
    /// Evaluate policies on a fixed task set and compare them with exact upper bounds
    Eval(Box<EvalArgs>),
    /// Train and evaluate all cells of a grid, such as a table or figure of the paper
    Sweep(SweepArgs),
    /// List training runs with scores and state, or compare two runs
    Runs(RunsArgs),
    /// Build a report (HTML, Markdown, CSV, figures) from runs and evaluations
    Report(ReportArgs),
    /// List environments, or show one with its upper bounds
    Env(EnvArgs),
    /// Create, inspect and merge models; score tokens and generate text
    Model(ModelArgs),
    /// Benchmark this machine
    Bench(BenchArgs),
    /// Check this machine's hardware and libraries, or the remote engines of a recipe
    Doctor(DoctorArgs),
    /// Generate launch scripts for trainer and inference servers (local, Ray, Slurm, Kubernetes)
    Launch(LaunchArgs),
    /// Print a script that enables completion in a shell: of commands, recipes and their keys, environments, runs
    #[command(after_help = "Examples:\n  echo 'source <(mage completions bash)' >> ~/.bashrc\n  echo 'source <(mage \
                            completions zsh)' >> ~/.zshrc\n  mage completions fish > \
                            ~/.config/fish/completions/mage.fish\n\nThe shell asks `mage` itself for names, so the \
                            command must be on the PATH.")]
    Completions(CompletionsArgs),
    /// Write manual pages, one per command
    #[command(after_help = "Example:\n  mage man ~/.local/share/man/man1")]
    Man(ManArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  mage doctor --engine kuhn.toml skyrl.toml --set model.path=models/kuhn")]
pub(crate) struct DoctorArgs {
    /// Check the servers that these recipes name: reachability, protocol, tokenizer, weights and weight sync. Does not
    /// train
    #[arg(long, value_name = "RECIPE", num_args = 1..)]
    pub(crate) engine: Vec<String>,
    /// Override one recipe key
    #[arg(long, value_name = "KEY=VALUE", requires = "engine")]
    pub(crate) set: Vec<String>,
    /// Timeout of a vLLM server's first completion, in seconds: a server that was just started compiles first
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = seconds, requires = "engine")]
    pub(crate) cold_start: f64,
}

#[derive(Debug, Args)]
#[command(after_help = "Only files are written; nothing is started. Review and run them; see docs/scale.md.\n\n\
                        Example:\n  mage launch slurm --model Qwen/Qwen3-4B --backend fsdp --gpus 8 \\\n    \
                        --samplers 4 --dry-run")]
pub(crate) struct LaunchArgs {
    /// Where the servers will run
    #[arg(value_enum)]
    pub(crate) target: LaunchTarget,
    /// Model: an absolute path on a file system shared by all machines, or a name on the Hugging Face Hub
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: String,
    /// SkyRL training backend, reached through the Tinker protocol
    #[arg(long, value_enum, default_value_t = TrainerBackend::Fsdp)]
    pub(crate) backend: TrainerBackend,
    /// Training GPUs per training node [default: 4, or 1 with jax]
    #[arg(long, value_parser = count(1024))]
    pub(crate) gpus: Option<usize>,
    /// Number of training nodes
    #[arg(long, default_value_t = 1, value_parser = count(10_000))]
    pub(crate) nodes: usize,
    /// Number of vLLM servers (or of SkyRL's own vLLM engines), one GPU each
    #[arg(long, default_value_t = 4, value_parser = count(10_000))]
    pub(crate) samplers: usize,
    /// LoRA rank
    #[arg(long, default_value_t = 32, value_parser = count(1 << 16))]
    pub(crate) lora_rank: usize,
    /// Maximum sequence length in tokens, prompt and completion
    #[arg(long, default_value_t = 16384, value_parser = count(1 << 24))]
    pub(crate) max_seq_len: usize,
    /// Directory mounted at this path on all machines, for the server installations, adapters and checkpoints
    #[arg(long, value_name = "DIR", default_value = "/shared/mage")]
    pub(crate) shared_dir: String,
    /// Output directory
    #[arg(long, value_name = "DIR", default_value = "launch")]
    pub(crate) out: PathBuf,
    /// Print the files instead of writing them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Where the servers run.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum LaunchTarget {
    /// One machine, with `uv`
    Uv,
    /// An existing Ray cluster
    Ray,
    /// A Slurm allocation
    Slurm,
    /// Kubernetes
    Kubernetes,
}

/// SkyRL's training backends.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum TrainerBackend {
    /// JAX in one process, with or without a GPU
    Jax,
    /// PyTorch FSDP over Ray
    Fsdp,
    /// Megatron over Ray
    Megatron,
}

/// Overrides of recipe keys.
#[derive(Debug, Args)]
pub(crate) struct RecipeOverrides {
    /// Override one recipe key (`mage recipe explain` lists them)
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Random seed; short for --set seed=N
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// CPU threads, 0 for all; short for --set engine.threads=N. Does not affect results
    #[arg(long, value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Device: auto, cpu, cuda or cuda:N; short for --set engine.device=DEVICE
    #[arg(long)]
    pub(crate) device: Option<Device>,
}

impl RecipeOverrides {
    /// All overrides as `KEY=VALUE`.
    pub(crate) fn to_set(&self) -> Vec<String> {
        let seed = self.seed.map(|s| format!("seed={s}"));
        let threads = self.threads.map(|t| format!("engine.threads={t}"));
        let device = self.device.map(|d| format!("engine.device=\"{d}\""));
        self.set.iter().cloned().chain(seed).chain(threads).chain(device).collect()
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Recipes and methods are merged left to right; later ones override earlier ones.\n\n\
    Examples:\
    \n  mage train                            # Kuhn poker with MAGE, minutes on two cores\
    \n  mage train kuhn lamer --seed 3        # Kuhn poker with the credit of LaMer\
    \n  mage train tictactoe-blind            # opponents that it must identify\
    \n  mage train my.toml --set optim.updates=50\
    \n  mage train --resume runs/kuhn-1       # continue an interrupted run\n\n\
    Ctrl-C stops after the current update and saves a checkpoint; a second Ctrl-C stops immediately. Both can be resumed.")]
pub(crate) struct TrainArgs {
    /// Embedded recipes, methods and TOML files (`mage recipe list`)
    #[arg(value_name = "RECIPE", default_value = "kuhn", conflicts_with = "resume")]
    pub(crate) recipes: Vec<String>,
    #[command(flatten)]
    pub(crate) overrides: RecipeOverrides,
    /// Run directory [default: runs/RECIPE-N]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Resume the run in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    pub(crate) resume: Option<PathBuf>,
    /// Resume even if the recipe has changed
    #[arg(long, requires = "resume")]
    pub(crate) force: bool,
    /// Validate the recipe and print a plan (time, memory) without training; --out FILE saves the resolved recipe
    #[arg(long, conflicts_with = "resume")]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "`mage train` warm-starts new models automatically. Transcripts have one JSON object per line:\n\
    \n  {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}, {\"role\": \"assistant\", \"content\": \"…\"}]}\n\
    \nExamples:\
    \n  mage warmstart kuhn --out models/kuhn\
    \n  mage warmstart paper/kuhn --set model.path=Qwen3-4B \\\
    \n    --transcripts mine.jsonl --out models/mine\
    \n  mage train kuhn --set model.path=models/kuhn"
)]
pub(crate) struct WarmstartArgs {
    /// Embedded recipes, methods and TOML files (`mage recipe list`)
    #[arg(value_name = "RECIPE", default_value = "kuhn")]
    pub(crate) recipes: Vec<String>,
    /// Output directory of the model
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Conversations to train on instead of expert episodes; short for --set warmstart.transcripts=FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) transcripts: Option<String>,
    #[command(flatten)]
    pub(crate) overrides: RecipeOverrides,
}

#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    #[command(subcommand)]
    pub(crate) command: RecipeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecipeCommand {
    /// List embedded recipes and methods with what they need
    List,
    /// Merge recipes and print the result with every value
    Show {
        /// Embedded recipes, methods and TOML files
        #[arg(value_name = "RECIPE", default_value = "kuhn")]
        recipes: Vec<String>,
        /// Override one recipe key
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Explain keys and sections with their values in effect, recipes, or methods
    #[command(after_help = "Examples:\n  mage recipe explain                     # all keys of the default recipe\
        \n  mage recipe explain optim.updates loss  # a key and a section\
        \n  mage recipe explain loss tictactoe      # a section, as a recipe sets it\
        \n  mage recipe explain lamer               # a method, with the keys it sets")]
    Explain {
        /// Keys and sections, such as optim.updates or optim; embedded recipes, methods and TOML files
        #[arg(value_name = "KEY|RECIPE")]
        names: Vec<String>,
        /// Override one recipe key
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Print the JSON Schema of recipes, with which editors complete and check them
    #[command(after_help = "Example:\n  mage recipe schema > recipe.schema.json\n\n\
        The first line of a recipe names the schema for taplo (Even Better TOML in VS Code):\n  #:schema ./recipe.schema.json")]
    Schema,
}

/// Help text with an example population file; its lines fit into 80 columns.
const POPULATION_HELP: &str = "Population of opponents, seats and environment options: a built-in name, or a TOML file such as

  env = \"kuhn\"
  options = { deal = \"fresh\" } # environment options
  seats = [0.5, 0.5]           # probability of each seat for the agent

  [[opponent]]
  name = \"rock\"                # label in tables
  kind = \"conservative\"        # `mage env show kuhn` lists kinds
  weight = 0.5                 # sampling weight

  [[opponent]]
  name = \"stranger\"
  kind = \"table\"
  bet = { J = 0.3, Qb = 0.5, K = 1.0, Kb = 1.0 }
  splits = [\"out-of-domain\"]   # selected by --split out-of-domain

Defaults: no options, equal seats, weight 1, splits train and in-domain. `mage env show NAME --population FILE` validates and \
prints a file.";

/// Opponents, seats, split and environment options: shared by all commands that sample tasks.
#[derive(Clone, Debug, Args)]
pub(crate) struct TaskSelection {
    /// Population of opponents, seats and environment options: a TOML file (--help shows one) or a built-in name
    #[arg(long, value_name = "FILE|NAME", long_help = POPULATION_HELP)]
    pub(crate) population: Option<String>,
    /// Restrict to these opponents: names in the population or in a built-in one, or opponent kinds
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', alias = "opponents")]
    pub(crate) opponent: Vec<String>,
    /// Split of the population: train, in-domain, out-of-domain, or a custom one [default: in-domain]
    #[arg(long)]
    pub(crate) split: Option<String>,
    /// Seat of the agent, from 0 [default: sampled as the population says]
    #[arg(long)]
    pub(crate) seat: Option<u8>,
    /// Environment option, such as deal=fixed
    #[arg(long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Skip unreadable game files with a warning (environments with game files, such as alfworld)
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

impl TaskSelection {
    /// The split if none is chosen.
    pub(crate) const DEFAULT_SPLIT: &str = "in-domain";

    /// The chosen split, or the default.
    pub(crate) fn split(&self) -> &str {
        self.split.as_deref().unwrap_or(Self::DEFAULT_SPLIT)
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Type an action or an unambiguous prefix; for moves up, down, left and right also arrow keys or first \
                        letters (`ddr`); ? shows the rules, q quits."
)]
pub(crate) struct PlayArgs {
    /// Environment [default: kuhn; with --against RUN that of the run]
    pub(crate) env: Option<String>,
    /// Number of episodes against the same opponent
    #[arg(long, short = 'n', default_value_t = 3, value_parser = whole_number::<u32>(1..=1000))]
    pub(crate) episodes: u32,
    /// Maximum turns per episode [default: the environment's]
    #[arg(long, value_parser = whole_number::<u32>(1..=100_000))]
    pub(crate) max_turns: Option<u32>,
    /// Random seed for opponent, seat and deals [default: from the clock]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Print the opponent's name, or the policy's reflections, at the end
    #[arg(long)]
    pub(crate) reveal: bool,
    /// Play against this model; it adapts to you over the episodes. A trained policy (RUN is the last checkpoint of the
    /// run, RUN@best the best one, RUN@250 that of update 250), or a model directory
    #[arg(long, value_name = "RUN|MODEL", conflicts_with_all = ["population", "opponent", "seat", "split", "options", "skip_bad", "max_turns"])]
    pub(crate) against: Option<String>,
    /// Device of that policy: auto, cpu, cuda or cuda:N [default: cpu if it was trained with cpu, otherwise auto]
    #[arg(long, requires = "against", conflicts_with_all = ["population", "opponent", "seat", "split", "options", "skip_bad", "max_turns"])]
    pub(crate) device: Option<Device>,
    #[command(flatten)]
    pub(crate) selection: TaskSelection,
}

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    pub(crate) command: EnvCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EnvCommand {
    /// List environments
    List,
    /// Show an environment: options, opponents, scripted agents and upper bounds
    Show(EnvShowArgs),
    /// Replay recordings of the original implementation and report differences
    Conform(EnvConformArgs),
    /// Write generated tasks as files for the original implementation
    Generate(EnvGenerateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EnvShowArgs {
    /// Environment
    pub(crate) env: String,
    /// Compute upper bounds on the score: against the opponents of a split, or on the tasks of each split
    #[arg(long)]
    pub(crate) oracles: bool,
    /// Episodes per meta-episode
    #[arg(long, short = 'n', default_value_t = 3, value_parser = whole_number::<u32>(1..=1000))]
    pub(crate) episodes: u32,
    #[command(flatten)]
    pub(crate) selection: TaskSelection,
}

#[derive(Debug, Args)]
pub(crate) struct EnvConformArgs {
    /// Environment
    pub(crate) env: String,
    /// Recordings
    #[arg(long, value_name = "FILE")]
    pub(crate) golden: PathBuf,
    /// Directory of the original's data files
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  mage env generate alfworld --data ~/alfworld --out games --count 20")]
pub(crate) struct EnvGenerateArgs {
    /// Environment
    pub(crate) env: String,
    /// Output directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Directory of the original's data files, which define the rules
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Number of tasks
    #[arg(long, default_value_t = 1, value_parser = whole_number::<u64>(1..=1_000_000))]
    pub(crate) count: u64,
    /// Random seed of the tasks
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) selection: TaskSelection,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Output directory
    #[arg(value_name = "DIR", default_value = "man")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Sample from random prompts and report throughput, KV-cache use and latency
    #[command(after_help = "Example:\n  mage bench sampler my-model --requests 10000 --prefix-tokens 100")]
    Sampler(BenchSamplerArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BenchSamplerArgs {
    /// Model or adapter: a directory, a checkpoint of a run (RUN is its last, RUN@best, RUN@250), or
    /// org/name[@revision] on the Hub; an adapter also loads its base model
    pub(crate) model: String,
    /// Number of requests
    #[arg(long, default_value_t = 1000, value_parser = count(10_000_000))]
    pub(crate) requests: usize,
    /// Concurrent requests
    #[arg(long, default_value_t = 64, value_parser = count(1 << 20))]
    pub(crate) max_in_flight: usize,
    /// Tokens per prompt
    #[arg(long, default_value_t = 128, value_parser = count(1 << 24))]
    pub(crate) prompt_tokens: usize,
    /// Prompt tokens that all requests share as a prefix
    #[arg(long, default_value_t = 0)]
    pub(crate) prefix_tokens: usize,
    /// Tokens per completion
    #[arg(long, default_value_t = 32, value_parser = whole_number::<u32>(1..=1 << 24))]
    pub(crate) completion_tokens: u32,
    /// KV-cache size in MiB, at most the free memory; 0 sizes it automatically
    #[arg(long, default_value_t = 0)]
    pub(crate) cache_mib: usize,
    /// Disable prefix sharing in the KV cache
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// Use batch-invariant kernels on the GPU (reproducible, slower)
    #[arg(long)]
    pub(crate) batch_invariant: bool,
    /// CPU threads; 0 for all
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Device: auto (a GPU if available), cpu, cuda or cuda:N
    #[arg(long, default_value_t)]
    pub(crate) device: Device,
    /// Random seed of prompts and completions
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// A parser of whole numbers within bounds.
fn whole_number<T: TryFrom<u64>>(bounds: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|n| bounds.contains(n)).and_then(|n| T::try_from(n).ok());
        number.ok_or_else(|| format!("expected a whole number from {} to {}", bounds.start(), bounds.end()))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x <= 1e9 => Ok(x),
        _ => Err("expected a number of seconds above 0 and at most 1e9".to_owned()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > EngineOptions::MAX_THREADS => {
            Err(format!("expected at most {}; 0 uses all cores", EngineOptions::MAX_THREADS))
        }
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

/// A count from 1 to `max`.
fn count(max: u64) -> impl Fn(&str) -> Result<usize, String> + Clone {
    whole_number(1..=max)
}
