//! `mage model`: make models, look at them, score tokens, write text with them, and merge what they learnt.

mod generate;

use crate::{
    cli::{DType, ModelArgs, ModelCommand, ModelInfoArgs, ModelMergeArgs, ModelNewArgs, ModelScoreArgs},
    output::{BOLD, Output, styled},
    refused, usage,
};
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

/// The Hub, with a bar for what it fetches unless we are to be quiet.
pub(crate) fn hub(out: &Output) -> Hub {
    Hub::from_env(!out.quiet && !out.json)
}

fn empty(dir: &Path) -> anyhow::Result<()> {
    if fs::read_dir(dir).is_ok_and(|mut d| d.next().is_some()) {
        return Err(usage(format!("{} exists and is not empty; name a new folder", dir.display())));
    }
    Ok(())
}

fn format(format: DType) -> WeightDtype {
    match format {
        DType::F32 => WeightDtype::F32,
        DType::Bf16 => WeightDtype::Bf16,
        DType::F16 => WeightDtype::F16,
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).map_err(|e| usage(format!("cannot read {}: {e}", path.display())))
}

fn new(args: &ModelNewArgs, out: &Output) -> anyhow::Result<()> {
    empty(&args.out)?;
    let vocabulary = &args.tokenizer_source;
    let renderer = match (&vocabulary.tokenizer_from, &vocabulary.tokenizer, &vocabulary.words) {
        (Some(text), _, _) => chat_tokenizer(&read(text)?, args.vocab_size).map_err(usage)?,
        (_, Some(model), _) => Renderer::from_dir(&hub(out).folder(model).map_err(usage)?).map_err(usage)?,
        (_, _, Some(file)) => {
            let words: Vec<String> = read(file)?.split_whitespace().map(str::to_owned).collect();
            word_tokenizer(&words, &WordControlTokens::default()).map_err(usage)?
        }
        (None, None, None) => return Err(usage("a model needs a vocabulary; see --help")),
    };
    let config =
        complete(&read(&args.config)?, &renderer).map_err(|e| usage(format!("{}: {e}", args.config.display())))?;
    out.waiting("writing weights", || {
        let seed = Seed::new(args.seed);
        NativeModel::create(&args.out, &config, args.init_std, seed, Some(&renderer), format(args.dtype))
    })
    .map_err(refused)?;
    let made = ModelDescription::read(&args.out)?;
    if out.json {
        return out.object(&Shown::of(&made));
    }
    out.line(format!("made {} with {} parameters", args.out.display(), made.parameters))?;
    out.hint(format!("mage model info {} shows more.", args.out.display()));
    Ok(())
}

/// A config whose vocabulary may be left out: the tokenizer knows it.
fn complete(text: &str, renderer: &Renderer) -> anyhow::Result<Config> {
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

/// A model's description for programs.
#[derive(Serialize)]
struct Shown {
    parameters: usize,
    layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    attention_heads: usize,
    key_value_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    tokens: Option<usize>,
    tied: bool,
    max_context: usize,
    chat_template: bool,
    formats: Vec<&'static str>,
    files: usize,
    stored_bytes: u64,
    sampling_bytes: u64,
    training_bytes: u64,
    free_memory_bytes: Option<u64>,
}

impl Shown {
    fn of(d: &ModelDescription) -> Self {
        let (c, stored) = (&d.config, d.stored.as_ref());
        Shown {
            parameters: d.parameters,
            layers: c.num_hidden_layers,
            hidden_size: c.hidden_size,
            intermediate_size: c.intermediate_size,
            attention_heads: c.num_attention_heads,
            key_value_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
            vocab_size: c.vocab_size,
            tokens: d.renderer.as_ref().map(|r| r.vocab_size()),
            tied: c.tie_word_embeddings,
            max_context: c.max_position_embeddings,
            chat_template: d.renderer.as_ref().is_some_and(|r| r.template().is_some()),
            formats: stored.map(|s| s.dtypes.iter().map(|f| f.config_name()).collect()).unwrap_or_default(),
            files: stored.map_or(0, |s| s.files),
            stored_bytes: stored.map_or(0, |s| s.bytes),
            sampling_bytes: d.sampling_bytes(),
            training_bytes: d.training_bytes(),
            free_memory_bytes: Machine::free_memory(),
        }
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

fn info(args: &ModelInfoArgs, out: &Output) -> anyhow::Result<()> {
    let path = hub(out).folder(&args.model).map_err(usage)?;
    if NativeAdapter::is_in(&path) && !path.join("config.json").exists() {
        return adapter_info(&path, args, out);
    }
    let s = Shown::of(&ModelDescription::read(&path).map_err(usage)?);
    if out.json {
        return out.object(&s);
    }
    out.line(styled(BOLD, &args.model))?;
    out.line(format!("parameters  {}", s.parameters))?;
    out.line(format!("layers      {} of width {}, {} inside", s.layers, s.hidden_size, s.intermediate_size))?;
    out.line(format!(
        "heads       {} of {}, {} for keys and values",
        s.attention_heads, s.head_dim, s.key_value_heads
    ))?;
    let tied = if s.tied { "shared with the last layer" } else { "the last layer has its own" };
    out.line(format!("embedding   {} rows, {tied}", s.vocab_size))?;
    match s.tokens {
        Some(n) if s.chat_template => out.line(format!("tokenizer   {n} tokens, with a chat template"))?,
        Some(n) => out.line(format!("tokenizer   {n} tokens, no chat template"))?,
        None => out.line("tokenizer   none")?,
    }
    out.line(format!("context     {} tokens", s.max_context))?;
    match s.files {
        0 => out.line("stored      not at all: this is a shape")?,
        n => {
            let files = if n == 1 { "one file".to_owned() } else { format!("{n} files") };
            out.line(format!("stored      {} in {files}, {}", size(s.stored_bytes), s.formats.join(" and ")))?;
        }
    }
    out.line(format!(
        "memory      {} to sample, {} to train all of it",
        size(s.sampling_bytes),
        size(s.training_bytes)
    ))?;
    if let Some(free) = s.free_memory_bytes.filter(|free| *free < s.training_bytes) {
        let what = if free < s.sampling_bytes { "run" } else { "train" };
        out.hint(format!("This machine has {} free: too little to {what} it.", size(free)));
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
    out.line(styled(BOLD, &args.model))?;
    out.line(format!("adapter     of rank {}, alpha {}", lora.rank, lora.alpha))?;
    out.line(format!("matrices    {}", targets.join(", ")))?;
    out.line(format!("model       {}", base.as_deref().unwrap_or("not named")))
}

/// How likely the tokens of a line are.
#[derive(Serialize)]
struct Scored {
    logprobs: Vec<f32>,
    entropies: Vec<f32>,
}

fn score(args: &ModelScoreArgs, out: &Output) -> anyhow::Result<()> {
    let place = |i: usize| format!("{}, line {}", args.tokens.display(), i + 1);
    let (mut requests, mut lines) = (Vec::new(), Vec::new());
    for (i, line) in read(&args.tokens)?.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let tokens: Vec<u32> = serde_json::from_str(line).map_err(|e| usage(format!("{}: {e}", place(i))))?;
        if tokens.len() < 2 {
            return Err(usage(format!("{}: give at least two tokens; the first is not scored", place(i))));
        }
        requests.push(ScoreRequest { tokens, from: 1, ..Default::default() });
        lines.push(i);
    }
    let mut model = hub(out).open(&args.model).map_err(usage)?;
    let (vocabulary, context) = (model.config().vocab_size, model.config().max_position_embeddings);
    for (request, line) in requests.iter().zip(lines) {
        request.check(vocabulary, context).map_err(|e| usage(format!("{}: {e}", place(line))))?;
    }
    if let Some(adapter) = &args.adapter {
        let adapter = open_adapter(adapter, &model, out)?;
        model = model.with_adapter(adapter).map_err(usage)?;
    }
    let sampler = model.sampler(EngineOptions { threads: args.threads, ..Default::default() })?;
    for s in sampler.score_all(&requests).map_err(refused)? {
        if out.json {
            out.object(&Scored { logprobs: s.logprobs, entropies: s.entropies })?;
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
    empty(&args.out)?;
    let model = hub(out).open(&args.model).map_err(usage)?;
    if model.adapter().is_some() {
        return Err(usage(format!("{} is an adapter; name the model it belongs to", args.model)));
    }
    let adapter = open_adapter(&args.adapter, &model, out)?;
    let (lora, count) = (adapter.lora().clone(), adapter.parameters());
    let model = model.with_adapter(adapter).map_err(usage)?;
    out.waiting("merging", || model.merged().save(&args.out, format(args.dtype)))?;
    if out.json {
        return out.object(&Shown::of(&ModelDescription::read(&args.out)?));
    }
    let targets: Vec<&str> = lora.targets.iter().map(|t| t.name()).collect();
    out.line(format!(
        "merged {count} parameters of rank {} ({}) into {}",
        lora.rank,
        targets.join(", "),
        args.out.display()
    ))
}
