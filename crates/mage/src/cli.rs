//! Which commands and options are there?

mod model;

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
    /// The model: a folder all machines see, or a name on the Hub
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: String,
    /// What trains behind the Tinker protocol
    #[arg(long, value_enum, default_value_t = TrainerBackend::Fsdp)]
    pub(crate) backend: TrainerBackend,
    /// GPUs that train, on each training node
    #[arg(long, default_value_t = 8, value_parser = at_least_one)]
    pub(crate) gpus: usize,
    /// Training nodes
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    pub(crate) nodes: usize,
    /// vLLM servers that sample, one GPU each
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    pub(crate) samplers: usize,
    /// The adapter's rank
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    pub(crate) rank: usize,
    /// Tokens a sequence may have
    #[arg(long, default_value_t = 16384, value_parser = at_least_one)]
    pub(crate) context: usize,
    /// A folder that all machines see, for adapters and checkpoints
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

/// Whom one meets: shared by all commands that choose opponents.
#[derive(Clone, Debug, Args)]
pub(crate) struct Whom {
    /// Opponents, seats and settings: a TOML file, or the name of a built-in population
    #[arg(long, value_name = "FILE|NAME")]
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
    #[command(flatten)]
    pub(crate) whom: Whom,
}

/// What can be measured, by example.
const EVAL_HELP: &str = "Examples:
  mage eval --policy bayes --tasks 20000            an agent that plays by rule
  mage eval --policy bayes --memory none --tasks 20000
  mage eval --policy runs/kuhn-1 --episodes 10      a trained policy
  mage eval --preset sokoban-3 --tasks 128 --episodes 10 --early-stop --seeds 3 \\
            --endpoint http://127.0.0.1:8000 --model Qwen3-4B --method react,reflexion,a-mem,memento \\
            --records sokoban.jsonl --summary sokoban.json

Methods: react (each episode a clean slate), cot (reason step by step), reflexion (notes to itself), a-mem (notes that
describe, link and change each other), memento (a plan from the nearest cases). Several policies or methods play the same
panel; each is compared with the first.

An endpoint's key is read from an environment variable (--key-env) and written nowhere.";

#[derive(Clone, Debug, Args)]
#[command(after_help = EVAL_HELP)]
pub(crate) struct Eval {
    /// The environment; --env NAME says the same
    #[arg(value_name = "NAME", conflicts_with_all = ["env", "preset"])]
    pub(crate) named: Option<String>,
    /// The environment
    #[arg(long, default_value = "kuhn")]
    pub(crate) env: String,
    /// A panel of the paper's, in or out of domain, instead of --env, --population, --opponent, --seat and --split; `list`
    /// lists them
    #[arg(long, value_name = "NAME", conflicts_with_all = ["env", "population", "opponent", "seat", "split"])]
    pub(crate) preset: Option<String>,
    /// Who plays: random, an agent that `mage env show` lists, the folder of a training run, or a model (a folder, or
    /// org/name[@revision] on the Hub)
    #[arg(long, value_name = "NAME|RUN|MODEL,…", value_delimiter = ',', required_unless_present_any = ["endpoint", "preset"])]
    pub(crate) policy: Vec<String>,
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// How a model is asked: react, cot, reflexion, a-mem, memento; a trained policy as it was trained, others by reflexion
    /// when left out
    #[arg(long, value_name = "METHOD,…", value_delimiter = ',', conflicts_with = "memory")]
    pub(crate) method: Vec<String>,
    /// Let tasks share one memory (a-mem, memento): they are played one after the other, and later ones know of earlier ones
    #[arg(long)]
    pub(crate) shared_memory: bool,
    /// How many past episodes, notes or cases are recalled at most; the method's own number when left out
    #[arg(long, value_name = "COUNT")]
    pub(crate) recall: Option<usize>,
    /// How many episodes of the same task
    #[arg(long, short = 'n', default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) episodes: u32,
    /// How many turns an episode may take; the environment's own number when left out
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) turns: Option<u32>,
    /// What past episodes leave in the prompt; short for --method reflexion or react
    #[arg(long, value_enum)]
    pub(crate) memory: Option<Memory>,
    /// How many tasks are on the panel
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) tasks: u64,
    /// Stop a task at its first win, as the paper counts Pass@k
    #[arg(long)]
    pub(crate) early_stop: bool,
    /// Decides the panel and the agent's luck
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Play the same panel with so many seeds of luck: SEED, SEED + 1, …
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    #[command(flatten)]
    pub(crate) draws: Draws,
    /// Keep every meta-episode in this file (JSON lines); run again to go on where it stopped
    #[arg(long, value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
    /// Write everything measured into this file, with the hashes of panel, method and weights
    #[arg(long, value_name = "FILE.json")]
    pub(crate) summary: Option<PathBuf>,
    /// Draw scores by episode next to the ceilings into this file, .svg or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Threads of a model on this machine; 0 takes all
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) whom: Whom,
}

/// Models that are somewhere else.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Endpoints")]
pub(crate) struct Remote {
    /// Ask a model behind an OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, Ollama, hosted)
    #[arg(long, value_name = "URL", requires = "model")]
    pub(crate) endpoint: Option<String>,
    /// The name the endpoint knows the model by
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub(crate) model: Option<String>,
    /// The environment variable that holds the key, where one is needed
    #[arg(long, value_name = "VARIABLE", default_value = "MAGE_API_KEY")]
    pub(crate) key_env: String,
    /// How many meta-episodes are under way at once
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = at_least_one)]
    pub(crate) in_flight: usize,
    /// Seconds one attempt may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    pub(crate) attempt: f64,
    /// Seconds a request may take with all its attempts
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = seconds)]
    pub(crate) deadline: f64,
    /// What a million tokens cost, read and written
    #[arg(long, value_name = "READ,WRITTEN", value_delimiter = ',', num_args = 1..=2)]
    pub(crate) price: Vec<f64>,
    /// A field of every request that only some servers know, such as max_completion_tokens=4096; null takes one out
    #[arg(long = "request", value_name = "KEY=VALUE")]
    pub(crate) requests: Vec<String>,
    /// Retrieve notes and cases by an embedding endpoint instead of by words
    #[arg(long, value_name = "URL", requires = "embedding_model")]
    pub(crate) embeddings: Option<String>,
    /// The name it knows the embedding model by
    #[arg(long, value_name = "NAME", requires = "embeddings")]
    pub(crate) embedding_model: Option<String>,
}

/// How a model's answers are drawn.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct Draws {
    /// 0 takes the most likely token; a trained policy's own when left out, else 0.7
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Keep the most likely tokens that have this much probability together; 0.8 when left out
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Keep only this many most likely tokens; not every endpoint knows it
    #[arg(long)]
    pub(crate) top_k: Option<u32>,
    /// Keep tokens at least this fraction as likely as the most likely one; not every endpoint knows it
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// How many tokens an answer may have
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Whether the model thinks first; an endpoint's own habit, and off on this machine, when left out
    #[arg(long, value_enum)]
    pub(crate) thinking: Option<Switch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
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
#[command(after_help = "Examples:\n  mage sweep list                          presets, with what they are for\
    \n  mage sweep table1 --dry-run               its cells, and about how long it takes\
    \n  mage sweep table1 && mage report sweeps/table1\
    \n  mage sweep paper/table1 --endpoint http://127.0.0.1:8000 --model Qwen3-4B\
    \n  mage sweep mine.toml --out sweeps/mine\n\n\
    A sweep is a TOML file; `mage sweep show table1` prints one to start from. Every cell is a training run or an \
    evaluation, in a folder of its own; finished cells are never repeated. Ctrl-C stops after the current step, twice at once; \
    the same command goes on. Methods that prompt a model wait for --endpoint.")]
pub(crate) struct Sweep {
    /// A TOML file or a preset (`tiny/` may be left out); `list` lists presets, `show` prints one
    #[arg(value_name = "FILE|PRESET")]
    pub(crate) sweep: String,
    /// With `show`: which
    #[arg(value_name = "PRESET", hide = true)]
    pub(crate) shown: Option<String>,
    /// The folder of the sweep; sweeps/NAME when left out
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// List the cells and estimate the time; writes nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Threads, 0 for all. Results do not depend on it
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mage report                           everything under runs and sweeps\
    \n  mage report runs/kuhn-1 eval.jsonl eval.json --out kuhn-report\
    \n  mage sweep table1 && mage report sweeps/table1\n\n\
    Paths are training runs, files of records (mage eval --records), summaries beside them (--summary), and folders of these. \
    Numbers are worked out from the records. report.html needs no network; what did not fit into it is said there.")]
pub(crate) struct Report {
    /// Runs, records, summaries, or folders of them; the folders runs and sweeps when left out
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// The folder that report.html, report.md, report.csv and figures/ (.svg and .png) are written to
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,
    /// How many transcripts of each method on each panel are on the page
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    pub(crate) transcripts: usize,
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
        Ok(n) if n > Options::MOST_THREADS => {
            Err(format!("at most {} are possible; 0 takes all", Options::MOST_THREADS))
        }
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
