//! How is an agent measured, and what is told of it?

use super::{Whom, at_least_one, seconds};
use clap::Args;
use mage_native::Device;
use mage_remote::Notices;
use mage_train::engine::Place;
use std::path::PathBuf;

/// What can be measured, by example.
const EVAL_HELP: &str = "Examples:
  mage eval --policy bayes --tasks 20000            an agent that plays by rule
  mage eval --policy bayes --memory none --tasks 20000
  mage eval --policy runs/kuhn-1 --episodes 10      a trained policy
  mage eval --preset sokoban-3 --tasks 128 --episodes 10 --early-stop \\
            --endpoint http://127.0.0.1:8000 --model Qwen3-4B --method react,reflexion,a-mem,memento \\
            --records sokoban.jsonl --summary sokoban.json
  mage eval --population strangers.toml --policy runs/kuhn-1 --split out-of-domain

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
    #[arg(long, value_name = "NAME|RUN|MODEL,…", value_delimiter = ',')]
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
    /// Play the same panel with so many seeds of luck: SEED, SEED + 1, … Intervals are over tasks, however many there are
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    #[command(flatten)]
    pub(crate) draws: Draws,
    /// Keep every meta-episode in this file (JSON lines); run again to go on where it stopped
    #[arg(long, value_name = "FILE")]
    pub(crate) records: Option<PathBuf>,
    /// Write everything measured into this file, with the hashes of panel, method and weights
    #[arg(long, value_name = "FILE.json")]
    pub(crate) summary: Option<PathBuf>,
    /// Draw everybody's scores by episode next to the ceilings into this file, .svg or .png
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Threads of a model on this machine; 0 takes all
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    /// Where a model on this machine computes: auto, cpu, cuda or cuda:N. On a card, too, answers do not depend on what else
    /// is being asked
    #[arg(long, default_value = "auto")]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) whom: Whom,
}

impl Eval {
    /// Where a model on this machine computes.
    pub(crate) fn place(&self) -> Place {
        Place { device: self.device, threads: self.threads, notices: Notices::to(|line| eprintln!("{line}")) }
    }
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
    /// Where models on this machine train and play: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    pub(crate) device: Device,
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
