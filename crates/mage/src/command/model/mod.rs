//! `mage model`: creates, describes and merges models, scores tokens and generates text.

mod generate;

use crate::{
    cli::{DtypeArg, ModelArgs, ModelCommand, ModelInfoArgs, ModelMergeArgs, ModelNewArgs, ModelScoreArgs},
    engine_error,
    output::{BOLD, Output, styled},
    table::grouped,
    text::shell_quote,
    usage,
};
use anyhow::Context;
use mage_engine::{Renderer, ScoreRequest};
use mage_env::Seed;
use mage_native::{
    Config, EngineOptions, Machine, ModelDescription, NativeAdapter, NativeModel, WeightDtype, WordControlTokens,
    chat_tokenizer, word_tokenizer,
};
use mage_train::Hub;
use serde::Serialize;
use std::{fs, path::Path};

pub(crate) fn run(args: &ModelArgs, out: &Output) -> anyhow::Result<()> {
    match &args.command {
        ModelCommand::New(args) => new(args, out),
        ModelCommand::Info(args) => info(args, out),
        ModelCommand::Score(args) => score(args, out),
        ModelCommand::Generate(args) => generate::run(args, out),
        ModelCommand::Merge(args) => merge(args, out),
    }
}

/// The Hugging Face Hub, with a progress bar for downloads unless quiet.
pub(crate) fn hub(out: &Output) -> Hub {
    Hub::from_env(!out.quiet && !out.json)
}

/// Folder in a model's directory for the files that are being written.
const UNFINISHED: &str = ".unfinished";

/// Refuses a directory that is not empty, unless a process that was killed left an unfinished model there.
fn check_empty(dir: &Path) -> anyhow::Result<()> {
    let has_files = fs::read_dir(dir).is_ok_and(|mut d| d.next().is_some());
    if has_files && !dir.join(UNFINISHED).is_dir() {
        return Err(usage(format!("{} is not empty; choose a new directory", dir.display())));
    }
    Ok(())
}

/// Writes a model into a directory: `write` fills another folder, whose files are then moved. The last one is
/// config.json, without which no directory is a model.
fn create<E: Into<anyhow::Error>>(dir: &Path, write: impl FnOnce(&Path) -> Result<(), E>) -> anyhow::Result<()> {
    let (staging, is_new) = (dir.join(UNFINISHED), !dir.exists());
    let cannot = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
    if staging.exists() {
        fs::remove_dir_all(&staging).with_context(|| cannot("remove", &staging))?;
    }
    fs::create_dir_all(&staging).with_context(|| cannot("create", &staging))?;
    if let Err(e) = write(&staging) {
        let _ = fs::remove_dir_all(&staging);
        if is_new {
            let _ = fs::remove_dir(dir);
        }
        return Err(e.into());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&staging).with_context(|| cannot("read", &staging))? {
        names.push(entry?.file_name());
    }
    names.sort_by_key(|name| name == "config.json");
    for name in names {
        let target = dir.join(&name);
        fs::rename(staging.join(&name), &target).with_context(|| cannot("write", &target))?;
    }
    fs::remove_dir(&staging).with_context(|| cannot("remove", &staging))
}

fn weight_dtype(dtype: DtypeArg) -> WeightDtype {
    match dtype {
        DtypeArg::F32 => WeightDtype::F32,
        DtypeArg::Bf16 => WeightDtype::Bf16,
        DtypeArg::F16 => WeightDtype::F16,
    }
}

fn read_file(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).map_err(|e| usage(format!("cannot read {}: {e}", path.display())))
}

fn new(args: &ModelNewArgs, out: &Output) -> anyhow::Result<()> {
    check_empty(&args.out)?;
    let source = &args.tokenizer_source;
    let renderer = match (&source.tokenizer_from, &source.tokenizer, &source.words) {
        (Some(text), _, _) => chat_tokenizer(&read_file(text)?, args.vocab_size).map_err(usage)?,
        (_, Some(model), _) => Renderer::from_dir(&hub(out).folder(model).map_err(usage)?).map_err(usage)?,
        (_, _, Some(file)) => {
            let words: Vec<String> = read_file(file)?.split_whitespace().map(str::to_owned).collect();
            if words.is_empty() {
                return Err(usage(format!("{}: the file has no words", file.display())));
            }
            word_tokenizer(&words, &WordControlTokens::default()).map_err(usage)?
        }
        (None, None, None) => return Err(usage("no tokenizer; see --help")),
    };
    let config = complete_config(&read_file(&args.config)?, &renderer)
        .map_err(|e| usage(format!("{}: {e}", args.config.display())))?;
    out.spinner("writing weights", || {
        let seed = Seed::new(args.seed);
        let dtype = weight_dtype(args.dtype);
        create(&args.out, |dir| {
            NativeModel::create(dir, &config, args.init_std, seed, Some(&renderer), dtype).map_err(engine_error)
        })
    })?;
    let model = ModelDescription::read(&args.out)?;
    if out.json {
        return out.object(&ModelSummary::of(&model));
    }
    let (parameters, words) = (grouped(model.parameters), grouped(renderer.vocab_size()));
    out.line(format!(
        "created {} with {parameters} parameters and a vocabulary of {words} tokens",
        args.out.display()
    ))?;
    if args.tokenizer_source.tokenizer_from.is_some() && renderer.vocab_size() != args.vocab_size {
        let (requested, actual) = (grouped(args.vocab_size), grouped(renderer.vocab_size()));
        out.hint(format!("--vocab-size {requested} was requested; the text yields {actual} tokens"));
    }
    out.hint(format!("`mage model info {}` shows details.", shell_quote(&args.out)));
    Ok(())
}

/// Parses a config, with the vocabulary size and control tokens of the tokenizer where it has none.
fn complete_config(text: &str, renderer: &Renderer) -> anyhow::Result<Config> {
    let mut value: serde_json::Value = serde_json::from_str(text)?;
    if value["vocab_size"].is_null() {
        value["vocab_size"] = renderer.vocab_size().into();
    }
    let control = renderer.control();
    for (field, id) in [("bos_token_id", control.bos), ("eos_token_id", control.end_of_turn)] {
        if let Some(id) = id.filter(|_| value[field].is_null()) {
            value[field] = id.into();
        }
    }
    Ok(Config::parse(&value.to_string())?)
}

/// Summary of a model, as printed with `--json`.
#[derive(Serialize)]
struct ModelSummary {
    parameters: usize,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    tokenizer_vocab_size: Option<usize>,
    tie_word_embeddings: bool,
    max_position_embeddings: usize,
    chat_template: bool,
    dtypes: Vec<&'static str>,
    files: usize,
    stored_bytes: u64,
    sampling_bytes: u64,
    training_bytes: u64,
    free_memory_bytes: Option<u64>,
}

impl ModelSummary {
    fn of(d: &ModelDescription) -> Self {
        let (c, stored) = (&d.config, d.stored.as_ref());
        ModelSummary {
            parameters: d.parameters,
            num_hidden_layers: c.num_hidden_layers,
            hidden_size: c.hidden_size,
            intermediate_size: c.intermediate_size,
            num_attention_heads: c.num_attention_heads,
            num_key_value_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
            vocab_size: c.vocab_size,
            tokenizer_vocab_size: d.renderer.as_ref().map(|r| r.vocab_size()),
            tie_word_embeddings: c.tie_word_embeddings,
            max_position_embeddings: c.max_position_embeddings,
            chat_template: d.renderer.as_ref().is_some_and(|r| r.template().is_some()),
            dtypes: stored.map(|s| s.dtypes.iter().map(|f| f.config_name()).collect()).unwrap_or_default(),
            files: stored.map_or(0, |s| s.files),
            stored_bytes: stored.map_or(0, |s| s.bytes),
            sampling_bytes: d.sampling_bytes(),
            training_bytes: d.training_bytes(),
            free_memory_bytes: Machine::free_memory(),
        }
    }
}

/// A number of bytes in MiB or GiB.
fn format_bytes(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

fn info(args: &ModelInfoArgs, out: &Output) -> anyhow::Result<()> {
    let path = hub(out).folder(&args.model).map_err(usage)?;
    if NativeAdapter::is_in(&path) && !path.join("config.json").exists() {
        return adapter_info(&path, args, out);
    }
    let s = ModelSummary::of(&ModelDescription::read(&path).map_err(usage)?);
    if out.json {
        return out.object(&s);
    }
    out.line(styled(BOLD, args.model.to_string_lossy()))?;
    out.line(format!("parameters  {}", grouped(s.parameters)))?;
    out.line(format!(
        "layers      {}, hidden size {}, intermediate size {}",
        s.num_hidden_layers, s.hidden_size, s.intermediate_size
    ))?;
    out.line(format!(
        "heads       {} of dimension {}, {} key-value heads",
        s.num_attention_heads, s.head_dim, s.num_key_value_heads
    ))?;
    let tied = if s.tie_word_embeddings { "tied to lm_head" } else { "not tied to lm_head" };
    out.line(format!("embedding   {} tokens, {tied}", grouped(s.vocab_size)))?;
    match s.tokenizer_vocab_size {
        Some(n) => {
            let template = if s.chat_template { "with a chat template" } else { "no chat template" };
            out.line(format!("tokenizer   {} tokens, {template}", grouped(n)))?;
        }
        None => out.line("tokenizer   none")?,
    }
    out.line(format!("context     {} tokens", grouped(s.max_position_embeddings)))?;
    match s.files {
        0 => out.line("weights     none, configuration only")?,
        n => {
            let files = if n == 1 { "one file".to_owned() } else { format!("{n} files") };
            out.line(format!("weights     {} in {files}, {}", format_bytes(s.stored_bytes), s.dtypes.join(" and ")))?;
        }
    }
    out.line(format!(
        "memory      {} for sampling, {} for training all weights",
        format_bytes(s.sampling_bytes),
        format_bytes(s.training_bytes)
    ))?;
    if let Some(free) = s.free_memory_bytes.filter(|free| *free < s.training_bytes) {
        let use_case = if free < s.sampling_bytes { "sampling" } else { "training" };
        out.hint(format!("This machine has {} free, which is not enough for {use_case}.", format_bytes(free)));
    }
    Ok(())
}

fn adapter_info(dir: &Path, args: &ModelInfoArgs, out: &Output) -> anyhow::Result<()> {
    let lora = NativeAdapter::shape_of(dir).map_err(usage)?;
    let base = NativeAdapter::base_of(dir).map_err(usage)?;
    if out.json {
        return out.object(&serde_json::json!({ "adapter": lora, "base": base }));
    }
    let targets: Vec<&str> = lora.targets.iter().map(|t| t.name()).collect();
    out.line(styled(BOLD, args.model.to_string_lossy()))?;
    out.line(format!("LoRA        rank {}, alpha {}", lora.rank, lora.alpha))?;
    out.line(format!("targets     {}", targets.join(", ")))?;
    out.line(format!("base model  {}", base.as_deref().unwrap_or("not stated")))
}

/// Scores of one line of tokens, as printed with `--json`.
#[derive(Serialize)]
struct TokenScores {
    logprobs: Vec<f32>,
    entropies: Vec<f32>,
}

fn score(args: &ModelScoreArgs, out: &Output) -> anyhow::Result<()> {
    let line_name = |i: usize| format!("{}, line {}", args.tokens.display(), i + 1);
    let (mut requests, mut lines) = (Vec::new(), Vec::new());
    for (i, line) in read_file(&args.tokens)?.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let tokens: Vec<u32> = serde_json::from_str(line).map_err(|e| usage(format!("{}: {e}", line_name(i))))?;
        if tokens.len() < 2 {
            return Err(usage(format!("{}: expected at least two tokens; the first is not scored", line_name(i))));
        }
        requests.push(ScoreRequest { tokens, from: 1, ..Default::default() });
        lines.push(i);
    }
    let mut model = hub(out).open(&args.model).map_err(usage)?;
    let (vocabulary, context) = (model.config().vocab_size, model.config().max_position_embeddings);
    for (request, line) in requests.iter().zip(lines) {
        request.check(vocabulary, context).map_err(|e| usage(format!("{}: {e}", line_name(line))))?;
    }
    if let Some(adapter) = &args.adapter {
        let adapter = open_adapter(adapter, &model, out)?;
        model = model.with_adapter(adapter).map_err(usage)?;
    }
    let sampler = model.sampler(EngineOptions { threads: args.threads, ..Default::default() })?;
    for s in sampler.score_all(&requests).map_err(engine_error)? {
        if out.json {
            out.object(&TokenScores { logprobs: s.logprobs, entropies: s.entropies })?;
        } else {
            out.line(s.logprobs.iter().map(|l| format!("{l:.6}")).collect::<Vec<_>>().join(" "))?;
        }
    }
    Ok(())
}

fn open_adapter(text: &str, model: &NativeModel, out: &Output) -> anyhow::Result<NativeAdapter> {
    let dir = hub(out).folder(text).map_err(usage)?;
    NativeAdapter::open(&dir, model.config()).map_err(usage)
}

fn merge(args: &ModelMergeArgs, out: &Output) -> anyhow::Result<()> {
    check_empty(&args.out)?;
    let model = hub(out).open(&args.model).map_err(usage)?;
    if model.adapter().is_some() {
        return Err(usage(format!("{} is an adapter; expected its base model", args.model)));
    }
    let adapter = open_adapter(&args.adapter, &model, out)?;
    let (lora, count) = (adapter.lora().clone(), adapter.parameters());
    let model = model.with_adapter(adapter).map_err(usage)?;
    out.spinner("merging", || create(&args.out, |dir| model.merged().save(dir, weight_dtype(args.dtype))))?;
    if out.json {
        return out.object(&ModelSummary::of(&ModelDescription::read(&args.out)?));
    }
    let targets: Vec<&str> = lora.targets.iter().map(|t| t.name()).collect();
    let count = grouped(count);
    out.line(format!(
        "merged {count} parameters of rank {} ({}) into {}",
        lora.rank,
        targets.join(", "),
        args.out.display()
    ))
}
