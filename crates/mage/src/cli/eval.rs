//! Arguments of `mage eval`, `mage sweep` and `mage report`.

use super::{TaskSelection, count, seconds, threads, whole_number};
use crate::output::write_stderr;
use clap::Args;
use mage_native::Device;
use mage_train::{
    engines::SamplerOptions,
    limits::{MAX_SEEDS, MAX_TASKS},
};
use std::{ffi::OsString, path::PathBuf};

/// Examples and method list of `mage eval --help`.
const EVAL_HELP: &str = "Examples:
  mage eval bayes --tasks 20000           # a scripted agent
  mage eval bayes --memory none --tasks 20000
  mage eval runs/kuhn-1                   # repeats the final evaluation of a run
  mage eval runs/kuhn-1@best runs/kuhn-1  # its best checkpoint and its last
  mage eval runs/kuhn-1 --population mine.toml --split out-of-domain
  mage eval --endpoint http://127.0.0.1:8000 --model Qwen3-4B \\
    --preset sokoban-3 --tasks 128 --episodes 10 --early-stop \\
    --method react,reflexion,a-mem,memento \\
    --trajectories sokoban.jsonl --summary sokoban.json

Environment, population, split, tasks, episodes and seed are those of the first run among the policies, unless --env or \
--preset selects others; every flag overrides its own value.

Methods: react (no memory across episodes), cot (step-by-step reasoning, no memory), reflexion (a reflection after each \
episode), a-mem (linked and evolving memory items), memento (case-based planning). All policies and methods are evaluated \
on the same task set, and each is compared with the first.

Scores are exact (expectations over moves and deals) where the game, the policy and the sampling parameters allow it, \
otherwise sampled, as for scripted agents; the tables state which. The gap closed is the position of a score between the memoryless (0 %) and the \
Bayes-adaptive optimum (100 %); it is absent where the gap is smaller than the uncertainty of the score.

The API key of an endpoint is read from an environment variable (--key-env) and never stored. With --json, there is one \
line per policy and one per comparison.";

#[derive(Clone, Debug, Args)]
#[command(after_help = EVAL_HELP)]
pub(crate) struct EvalArgs {
    /// Policies: random, a scripted agent (`mage env show` lists them), a run (RUN is the last checkpoint, RUN@best the best
    /// one, RUN@250 or RUN/checkpoints/000250 that of update 250), or a model (a directory, or org/name[@revision] on the Hub)
    #[arg(value_name = "POLICY")]
    pub(crate) policies: Vec<OsString>,
    /// Environment [default: that of the first run among the policies, otherwise kuhn]
    #[arg(long)]
    pub(crate) env: Option<String>,
    /// Task set of the paper, in or out of domain, instead of --env, --population, --opponent, --seat and --split;
    /// `list` lists them
    #[arg(long, value_name = "NAME", conflicts_with_all = ["env", "population", "opponent", "seat", "split"])]
    pub(crate) preset: Option<String>,
    #[command(flatten)]
    pub(crate) remote: EndpointArgs,
    /// Prompting method of a model: react, cot, reflexion, a-mem, memento [default: as trained for a run, otherwise
    /// reflexion]
    #[arg(long, value_name = "METHOD,…", value_delimiter = ',', conflicts_with = "memory")]
    pub(crate) method: Vec<String>,
    /// Share one memory across tasks (a-mem, memento); tasks then run one after the other
    #[arg(long)]
    pub(crate) shared_memory: bool,
    /// Maximum number of past episodes, memory items or cases to retrieve [default: the method's]
    #[arg(long, value_name = "COUNT", value_parser = count(10_000))]
    pub(crate) recall: Option<usize>,
    /// Episodes per task [default: those of the run, otherwise 3]
    #[arg(long, short = 'n', value_parser = whole_number::<u32>(1..=1000))]
    pub(crate) episodes: Option<u32>,
    /// Maximum turns per episode [default: for a run that of its training; for other policies that of the first run,
    /// or the environment's with --env]
    #[arg(long, value_parser = whole_number::<u32>(1..=100_000))]
    pub(crate) max_turns: Option<u32>,
    /// Past episodes in the prompt; short for --method reflexion or react
    #[arg(long, value_enum)]
    pub(crate) memory: Option<MemoryArg>,
    /// Number of tasks in the task set [default: as in the final evaluation of the run, otherwise 2000]
    #[arg(long, value_parser = whole_number::<u64>(1..=MAX_TASKS as u64))]
    pub(crate) tasks: Option<u64>,
    /// Stop a task after its first win, as in the paper's Pass@k
    #[arg(long)]
    pub(crate) early_stop: bool,
    /// Random seed for task selection and sampling [default: that of the run, otherwise 0]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Number of sampling seeds on the same task set: SEED, SEED + 1, … Intervals are over tasks [default: 1 for a run,
    /// otherwise 3]
    #[arg(long, value_parser = whole_number::<u64>(1..=MAX_SEEDS as u64))]
    pub(crate) seeds: Option<u64>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Store every meta-episode in this file (JSON lines); the same command resumes an interrupted evaluation
    #[arg(long, value_name = "FILE")]
    pub(crate) trajectories: Option<PathBuf>,
    /// Write all results to this file, with hashes of task set, method and weights
    #[arg(long, value_name = "FILE.json")]
    pub(crate) summary: Option<PathBuf>,
    /// Plot the scores by episode with the upper bounds to this file (.svg or .png)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// CPU threads of a local model; 0 for all
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Device of a local model: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    pub(crate) device: Device,
    /// Use batch-invariant kernels on a GPU, as on the CPU: results do not depend on what else is in the batch; slower
    #[arg(long)]
    pub(crate) batch_invariant: bool,
    #[command(flatten)]
    pub(crate) selection: TaskSelection,
}

impl EvalArgs {
    /// Device and threads of a local model.
    pub(crate) fn sampler_options(&self) -> SamplerOptions {
        SamplerOptions {
            device: self.device,
            threads: self.threads,
            batch_invariant: self.batch_invariant,
            status_log: mage_train::status_log(|line| write_stderr(line)),
        }
    }
}

/// OpenAI-compatible endpoints for chat completions and embeddings.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Endpoints")]
pub(crate) struct EndpointArgs {
    /// Evaluate a model behind an OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, Ollama, hosted)
    #[arg(long, value_name = "URL", requires = "model")]
    pub(crate) endpoint: Option<String>,
    /// Model name at the endpoint
    #[arg(long, value_name = "NAME", requires = "endpoint")]
    pub(crate) model: Option<String>,
    /// Environment variable with the API key, if required [default: MAGE_API_KEY]
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) key_env: Option<String>,
    /// Concurrent meta-episodes
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = count(1 << 20))]
    pub(crate) max_in_flight: usize,
    /// Timeout of one attempt, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    pub(crate) timeout: f64,
    /// Timeout of a request including retries, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = seconds)]
    pub(crate) deadline: f64,
    /// Price of a million tokens, prompt and completion
    #[arg(long, value_name = "PROMPT,COMPLETION", value_delimiter = ',', num_args = 1..=2)]
    pub(crate) price: Vec<f64>,
    /// Extra field of every request body, such as max_completion_tokens=4096; null removes a field
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) extra_body: Vec<String>,
    /// Embedding endpoint for retrieval from memory [default: lexical similarity]
    #[arg(long, value_name = "URL", requires = "embedding_model")]
    pub(crate) embedding_endpoint: Option<String>,
    /// Embedding model name at that endpoint
    #[arg(long, value_name = "NAME", requires = "embedding_endpoint")]
    pub(crate) embedding_model: Option<String>,
}

/// Sampling parameters of a model.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Sampling temperature, 0 for greedy decoding [default: as in the run's own evaluation, otherwise 0.7]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Nucleus sampling: total probability of the tokens to keep [default: as in the run's own evaluation, otherwise 0.8]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Keep only the k most likely tokens; not supported by every endpoint
    #[arg(long)]
    pub(crate) top_k: Option<u32>,
    /// Keep tokens at least this fraction as likely as the most likely one; not supported by every endpoint
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Maximum tokens per completion
    #[arg(long, value_parser = whole_number::<u32>(1..=u64::from(u32::MAX)))]
    pub(crate) max_tokens: Option<u32>,
    /// Thinking mode [default: as trained for a run; the endpoint's; on for a model with thinking tags]
    #[arg(long, value_enum)]
    pub(crate) thinking: Option<Switch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MemoryArg {
    /// No memory
    None,
    /// The agent's reflections
    Reflection,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mage sweep list                         # list presets\
    \n  mage sweep table1 --dry-run             # list the cells, estimate the time\
    \n  mage sweep table1 && mage report sweeps/table1\
     \n  mage sweep paper/table1 --endpoint http://127.0.0.1:8000 \\\
     \n    --model Qwen3-4B\
     \n  mage sweep my-sweep.toml --out sweeps/mine\
     \n  mage sweep table1 --set tasks=16 --set optim.updates=20\n\n\
    A sweep is a TOML file; `mage sweep show table1` prints an example. Each cell is a training run or an evaluation with its \
    own directory; finished cells are not repeated. Ctrl-C stops after the current step, a second Ctrl-C immediately; the same \
    command resumes. Cells that prompt a model require --endpoint.")]
pub(crate) struct SweepArgs {
    /// TOML file or preset (the prefix `tiny/` is optional); `list` lists presets, `show` prints one
    #[arg(value_name = "FILE|PRESET")]
    pub(crate) sweep: String,
    /// Preset to print with `show`
    #[arg(value_name = "PRESET", hide = true)]
    pub(crate) shown: Option<String>,
    /// Override one key of the sweep (tasks, episodes, seeds, early_stop), or one key of all its recipes
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Directory of the sweep [default: sweeps/NAME, followed by the settings of --set]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// List the cells and estimate the time without running anything
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// CPU threads, 0 for all. Does not affect results
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Device for local training and inference: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) remote: EndpointArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  mage report                         # all of runs/ and sweeps/\
    \n  mage report runs/kuhn-1 eval.jsonl eval.json --out kuhn-report\
    \n  mage sweep table1 && mage report sweeps/table1\n\n\
    Paths are run directories, evaluation trajectories (mage eval --trajectories), summaries (--summary), or directories of \
    these. All results are computed from the trajectories. report.html is self-contained and lists what it omits.")]
pub(crate) struct ReportArgs {
    /// Runs, trajectories, summaries, or directories of them [default: runs and sweeps]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Output directory for report.html, report.md, report.csv and figures/ (.svg and .png)
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,
    /// Number of transcripts per method and task set in report.html
    #[arg(long, value_name = "COUNT", default_value_t = 24, value_parser = whole_number::<usize>(0..=100_000))]
    pub(crate) transcripts: usize,
}
