//! What can be asked of a model by itself?

use super::*;

#[derive(Debug, Args)]
pub(crate) struct Model {
    #[command(subcommand)]
    pub(crate) command: ModelCommand,
}

/// How one starts from nothing.
const NEW_HELP: &str = r#"A shape to start from, as config.json (123 thousand parameters and 64 for each token):
  {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
   "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": true,
   "max_position_embeddings": 1024}

Examples:
  mage model new --config config.json --tokenizer-from notes.txt my-model
  mage model new --config config.json --tokenizer other-model my-model
  mage model new --config config.json --words words.txt my-model

`mage model info config.json` says how large a shape is, once it has a "vocab_size"."#;

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Make a new model that knows nothing, as a folder that transformers loads too
    #[command(after_help = NEW_HELP)]
    New(ModelNew),
    /// Show a model's shape, vocabulary, size and what it needs; its numbers are not read
    #[command(
        after_help = "Examples:\n  mage model info my-model\n  mage model info config.json   a shape by itself: \
                            how large would it be?"
    )]
    Info(ModelInfo),
    /// Say how likely given tokens are
    #[command(
        after_help = "Each line of FILE is a JSON list of token ids, such as [5, 17, 3]; each line of the output \
                            holds the log-probability of every token but the first. With --json there are entropies \
                            too.\n\nExample: mage model score my-model --tokens rows.jsonl"
    )]
    Score(ModelScore),
    /// Write text, shown as it comes
    #[command(after_help = "Examples:\n  mage model generate my-model --chat \"PASS or BET?\"\n  \
                            mage model generate my-model --prompt \"Once\" --temperature 0 --max-tokens 20\n  \
                            mage model generate Qwen/Qwen3-0.6B --adapter old=runs/a --adapter new=runs/b --chat Hi\n\n\
                            The same seed gives the same text. Ctrl-C ends it with what there is, and with exit code \
                            130.")]
    Generate(ModelGenerate),
    /// Add an adapter to a model's own numbers, as a model folder that needs no adapter
    #[command(after_help = "Example: mage model merge Qwen/Qwen3-0.6B my-adapter my-model --format bf16")]
    Merge(ModelMerge),
}

#[derive(Debug, Args)]
pub(crate) struct ModelNew {
    /// The shape: a config.json; the vocabulary's size may be left out of it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) vocabulary: Vocabulary,
    /// How many tokens to learn from a text
    #[arg(long, default_value_t = 4096, value_name = "COUNT", requires = "tokenizer_from")]
    pub(crate) tokens: usize,
    /// The spread of the new weights
    #[arg(long, default_value_t = mage_native::DEFAULT_INIT_STD, allow_negative_numbers = true)]
    pub(crate) spread: f32,
    /// How its numbers are written
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) format: Format,
    /// Decides the weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// The folder to make; it must not exist, or be empty
    pub(crate) out: PathBuf,
}

/// How numbers are written.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// 32 bits: nothing is lost
    F32,
    /// 16 bits with the exponent of 32
    Bf16,
    /// 16 bits, IEEE
    F16,
}

/// Where a new model's words come from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Vocabulary {
    /// Learn the vocabulary from this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) tokenizer_from: Option<PathBuf>,
    /// Take the tokenizer of this model (a folder, or org/name on the Hub)
    #[arg(long, value_name = "MODEL")]
    pub(crate) tokenizer: Option<String>,
    /// Exactly the words in this file, separated by spaces or line breaks
    #[arg(long, value_name = "FILE")]
    pub(crate) words: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ModelInfo {
    /// A folder, org/name[@revision] on the Hub, or a config.json by itself
    #[arg(value_name = "MODEL|CONFIG")]
    pub(crate) model: String,
}

#[derive(Debug, Args)]
pub(crate) struct ModelScore {
    /// A folder, or org/name[@revision] on the Hub; an adapter's brings its model along
    pub(crate) model: String,
    /// Lines of token ids
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) tokens: PathBuf,
    /// Put this adapter beside the model: a PEFT folder, or org/name[@revision]
    #[arg(long, value_name = "ADAPTER")]
    pub(crate) adapter: Option<String>,
    /// Threads; 0 takes all
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ModelGenerate {
    /// A folder, or org/name[@revision] on the Hub; an adapter's brings its model along
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) input: Input,
    /// Put this adapter beside the model: a PEFT folder, or org/name[@revision], with a name of your own before it where
    /// there are several (a folder whose own name has a `=` in it is taken as it is); all of them answer, in one batch.
    /// `base` is the model without any
    #[arg(long, value_name = "[NAME=]ADAPTER")]
    pub(crate) adapter: Vec<String>,
    /// Let it think first (with --chat)
    #[arg(long)]
    pub(crate) thinking: bool,
    /// How many tokens at most
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// 0 takes the most likely token
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Keep only this many most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Keep the most likely tokens that have this much probability together
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Stop at this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Decides the text
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Threads; 0 takes all
    #[arg(long, default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// Where it computes: auto (a card where there is one), cpu, cuda or cuda:N
    #[arg(long, default_value_t)]
    pub(crate) device: Device,
}

#[derive(Debug, Args)]
pub(crate) struct ModelMerge {
    /// The model: a folder, or org/name[@revision] on the Hub
    pub(crate) model: String,
    /// The adapter: a PEFT folder, or org/name[@revision] on the Hub
    pub(crate) adapter: String,
    /// The folder to make; it must not exist, or be empty
    pub(crate) out: PathBuf,
    /// How its numbers are written
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) format: Format,
}

/// What to continue.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Input {
    /// Continue this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Answer this message
    #[arg(long, value_name = "TEXT")]
    pub(crate) chat: Option<String>,
}
