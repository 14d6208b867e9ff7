//! Arguments of `mage model`.

use super::*;
use std::ffi::OsString;

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    pub(crate) command: ModelCommand,
}

/// Example configuration and commands of `mage model new --help`.
const NEW_HELP: &str = r#"A small config.json to start from (123 thousand parameters plus 64 per vocabulary token):
  {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
   "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": true,
   "max_position_embeddings": 1024}

Examples:
  mage model new --config config.json --tokenizer-from notes.txt my-model
  mage model new --config config.json --tokenizer other-model my-model
  mage model new --config config.json --words words.txt my-model

`mage model info config.json` prints the parameter count of a config.json that has a "vocab_size"."#;

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Create a randomly initialised model in Hugging Face format
    #[command(after_help = NEW_HELP)]
    New(ModelNewArgs),
    /// Show a model's architecture, vocabulary, parameter count and memory use, without reading its weights
    #[command(
        after_help = "Examples:\n  mage model info my-model\n  mage model info config.json  # size of a model that does not exist yet"
    )]
    Info(ModelInfoArgs),
    /// Compute log-probabilities of given tokens
    #[command(
        after_help = "Each line of FILE is a JSON list of token ids, such as [5, 17, 3]. Each line of the output has the \
                            log-probability of every token but the first; with --json also the entropies.\n\n\
                            Example:\n  mage model score my-model --tokens sequences.jsonl"
    )]
    Score(ModelScoreArgs),
    /// Generate text, streamed to stdout
    #[command(after_help = "Examples:\n  mage model generate my-model --chat \"PASS or BET?\"\n  \
                            mage model generate my-model --prompt \"Once\" --temperature 0 --max-tokens 20\n  \
                            mage model generate Qwen/Qwen3-0.6B --chat Hi \\\n    \
                            --adapter old=runs/a --adapter new=runs/b\n\n\
                            The same seed gives the same text. Ctrl-C stops generation with exit code 130.")]
    Generate(ModelGenerateArgs),
    /// Merge a LoRA adapter into the weights of its base model
    #[command(after_help = "Example:\n  mage model merge Qwen/Qwen3-0.6B my-adapter my-model --dtype bf16")]
    Merge(ModelMergeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ModelNewArgs {
    /// Model configuration (config.json); vocab_size is optional
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) tokenizer_source: TokenizerSource,
    /// Vocabulary size of a tokenizer trained by --tokenizer-from
    #[arg(long, default_value_t = 4096, value_name = "COUNT", requires = "tokenizer_from", value_parser = count(1 << 20))]
    pub(crate) vocab_size: usize,
    /// Standard deviation of the initial weights
    #[arg(long, default_value_t = mage_native::DEFAULT_INIT_STD, allow_negative_numbers = true)]
    pub(crate) init_std: f32,
    /// Data type of the stored weights
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: DtypeArg,
    /// Random seed of the weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Output directory; must be empty or not exist
    pub(crate) out: PathBuf,
}

/// Data types of stored weights.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum DtypeArg {
    /// 32-bit float (lossless)
    F32,
    /// bfloat16
    Bf16,
    /// IEEE 16-bit float
    F16,
}

/// Source of a new model's tokenizer.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TokenizerSource {
    /// Train a tokenizer on this text file
    #[arg(long, value_name = "TEXT")]
    pub(crate) tokenizer_from: Option<PathBuf>,
    /// Use the tokenizer of this model (a directory, or org/name on the Hub)
    #[arg(long, value_name = "MODEL")]
    pub(crate) tokenizer: Option<String>,
    /// Word-level tokenizer with the words of this file, separated by white space
    #[arg(long, value_name = "FILE")]
    pub(crate) words: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ModelInfoArgs {
    /// Model directory, checkpoint of a run (RUN is its last, RUN@best, RUN@250), org/name[@revision] on the Hub, or a
    /// config.json
    #[arg(value_name = "MODEL|CONFIG")]
    pub(crate) model: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct ModelScoreArgs {
    /// Model or adapter: a directory, a checkpoint of a run (RUN is its last, RUN@best, RUN@250), or
    /// org/name[@revision] on the Hub; an adapter also loads its base model
    pub(crate) model: String,
    /// File with one JSON list of token ids per line
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) tokens: PathBuf,
    /// LoRA adapter to apply: a PEFT directory, a checkpoint of a run (RUN is its last), or org/name[@revision]
    #[arg(long, value_name = "ADAPTER")]
    pub(crate) adapter: Option<String>,
    /// CPU threads; 0 for all
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ModelGenerateArgs {
    /// Model or adapter: a directory, a checkpoint of a run (RUN is its last, RUN@best, RUN@250), or
    /// org/name[@revision] on the Hub; an adapter also loads its base model
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) input: PromptInput,
    /// LoRA adapter to apply: a PEFT directory, a checkpoint of a run (RUN is its last), or org/name[@revision]. Can be
    /// repeated, with a label each; all adapters generate in one batch, and `base` is the model without an adapter. An
    /// existing directory with `=` in its name is not split
    #[arg(long, value_name = "[NAME=]ADAPTER")]
    pub(crate) adapter: Vec<String>,
    /// Enable thinking mode (with --chat)
    #[arg(long)]
    pub(crate) thinking: bool,
    /// Maximum number of tokens
    #[arg(long, default_value_t = 128, value_parser = whole_number::<u32>(1..=1 << 24))]
    pub(crate) max_tokens: u32,
    /// Sampling temperature; 0 for greedy decoding
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Keep only the k most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Nucleus sampling: total probability of the tokens to keep
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Stop at this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Random seed of sampling
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// CPU threads; 0 for all
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Device: auto (a GPU if available), cpu, cuda or cuda:N
    #[arg(long, default_value_t)]
    pub(crate) device: Device,
}

#[derive(Debug, Args)]
pub(crate) struct ModelMergeArgs {
    /// Base model: a directory, a checkpoint of a run (RUN is its last, RUN@best, RUN@250), or org/name[@revision] on
    /// the Hub
    pub(crate) model: String,
    /// LoRA adapter: a PEFT directory, a checkpoint of a run (RUN is its last), or org/name[@revision] on the Hub
    pub(crate) adapter: String,
    /// Output directory; must be empty or not exist
    pub(crate) out: PathBuf,
    /// Data type of the stored weights
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: DtypeArg,
}

/// Prompt of `mage model generate`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PromptInput {
    /// Raw text to complete
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// User message, rendered with the chat template
    #[arg(long, value_name = "TEXT")]
    pub(crate) chat: Option<String>,
}
