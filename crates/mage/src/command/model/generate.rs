//! `mage model generate`: text generation with streaming output.

use super::{hub, open_adapter};
use crate::{
    cli::ModelGenerateArgs,
    engine_error,
    interrupt::{Interrupt, Interrupted},
    output::{BOLD, Output, styled},
    usage,
};
use anyhow::Context;
use futures_executor::block_on;
use mage_engine::{
    ChatMessage, Error, FinishReason, Renderer, Sample, SampleRequest, SamplingParams, Thinking, WeightVersion,
    WeightsName,
};
use mage_native::{Device, EngineOptions, NativeAdapter, NativeModel, NativeSampler, TokenStream};
use serde::Serialize;
use std::path::Path;

/// Generated text, as printed with `--json`.
#[derive(Serialize)]
struct GeneratedText {
    weights: String,
    text: String,
    tokens: Vec<u32>,
    #[serde(flatten)]
    completion: CompletionInfo,
}

/// Properties of a complete generation; all absent after Ctrl-C.
#[derive(Serialize, Default)]
struct CompletionInfo {
    /// Version of the weights.
    version: Option<WeightVersion>,
    /// Log-probabilities under the policy.
    logprobs: Option<Vec<f32>>,
    /// Log-probabilities under the sampling distribution, after temperature and filters.
    processed_logprobs: Option<Vec<f32>>,
    finish_reason: Option<FinishReason>,
}

impl From<Sample> for CompletionInfo {
    fn from(s: Sample) -> Self {
        CompletionInfo {
            version: Some(s.weights.version),
            logprobs: Some(s.logprobs),
            processed_logprobs: Some(s.processed_logprobs),
            finish_reason: Some(s.finish),
        }
    }
}

pub(super) fn run(args: &ModelGenerateArgs, out: &Output) -> anyhow::Result<()> {
    let model = hub(out).open(&args.model).map_err(usage)?;
    let renderer = model.renderer().cloned().ok_or_else(|| usage("this model has no tokenizer.json"))?;
    let request = request(args, &model, &renderer)?;
    request.check(model.config().vocab_size, model.config().max_position_embeddings).map_err(flag_error)?;
    let (sampler, names) = start_sampler(args, model, out)?;
    let interrupt = Interrupt::listen()?;
    // All streams start now and are generated in one batch.
    let streams = names
        .into_iter()
        .map(|weights| {
            let request = SampleRequest { weights: weights.clone(), ..request.clone() };
            Ok((weights, sampler.stream(request).map_err(engine_error)?))
        })
        .collect::<anyhow::Result<Vec<(WeightsName, TokenStream)>>>()?;
    let several = streams.len() > 1;
    for (weights, stream) in streams {
        if several && !out.json {
            out.line(styled(BOLD, &weights))?;
        }
        let ended = print_stream(&weights, stream, &renderer, &interrupt, out)?;
        if ended.is_err() {
            return Err(Interrupted.into());
        }
    }
    Ok(())
}

fn request(args: &ModelGenerateArgs, model: &NativeModel, renderer: &Renderer) -> anyhow::Result<SampleRequest> {
    let thinking = if args.thinking { Thinking::On } else { Thinking::Off };
    let prompt = match (&args.input.prompt, &args.input.chat) {
        (Some(text), _) => {
            let bos = renderer.control().bos;
            bos.into_iter().chain(renderer.encode(text)?).collect()
        }
        (_, Some(text)) => renderer.encode_chat(&[ChatMessage::user(text)], thinking, true).map_err(usage)?,
        (None, None) => return Err(usage("no prompt; see --help")),
    };
    let params = SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        max_tokens: args.max_tokens,
        stop_ids: model.config().eos_token_ids.clone(),
        stop_texts: args.stop.clone(),
        seed: args.seed,
    };
    Ok(SampleRequest { prompt, params, ..Default::default() })
}

/// Converts an error about a sampling parameter to one that names the option.
fn flag_error(e: Error) -> anyhow::Error {
    match e {
        Error::Invalid { subject, problem } => match subject.strip_prefix("sampling.") {
            Some("stop_texts") => usage(format!("--stop: {problem}")),
            Some(field) => usage(format!("--{}: {problem}", field.replace('_', "-"))),
            None => usage(format!("{subject}: {problem}")),
        },
        other => usage(other),
    }
}

/// Splits NAME=ADAPTER. An existing directory is not split; its name is the whole text.
fn parse_adapter(text: &str) -> anyhow::Result<(&str, &str)> {
    match text.split_once('=') {
        None if text == WeightsName::BASE => Ok((text, "")),
        Some((name, path)) if !name.contains('/') && !Path::new(text).exists() => match (name, path) {
            ("", _) => Err(usage(format!("--adapter {text}: missing name before `=`"))),
            (_, "") => Err(usage(format!("--adapter {text}: missing adapter after `=`"))),
            (WeightsName::BASE, _) => {
                Err(usage(format!("--adapter {text}: `base` is the model without an adapter; choose another name")))
            }
            _ => Ok((name, path)),
        },
        _ => Ok((text, text)),
    }
}

/// Starts the sampler; returns it with the names of the weights to generate with.
fn start_sampler(
    args: &ModelGenerateArgs,
    model: NativeModel,
    out: &Output,
) -> anyhow::Result<(NativeSampler, Vec<WeightsName>)> {
    let mut adapters = Vec::new();
    for text in &args.adapter {
        let (name, path) = parse_adapter(text)?;
        if adapters.iter().any(|(other, _)| other == name) {
            return Err(usage(format!("two adapters are named `{name}`; use --adapter NAME=ADAPTER")));
        }
        let adapter = if path.is_empty() { None } else { Some(open_adapter(path, &model, out)?) };
        adapters.push((name.to_owned(), adapter));
    }
    // All adapters run in one batch: if the GPU does not support one of them, all run on the CPU.
    let supported = |a: &NativeAdapter| a.lora().rank.is_multiple_of(8);
    let all = adapters.iter().filter_map(|(_, a)| a.as_ref()).all(supported);
    let device = if all || args.device != Device::Auto { args.device } else { Device::Cpu };
    if let Some(reason) = model.gpu_unused_reason(args.device) {
        out.warn(reason);
    } else if device != args.device && args.device.cuda_index().is_some() {
        out.warn("using the CPU: the GPU supports only adapters whose rank is a multiple of 8");
    }
    // Batch-invariant kernels, so that a seed determines the text on the GPU, too.
    let options = EngineOptions { threads: args.threads, batch_invariant: true, ..Default::default() };
    let sampler = out.engine_spinner(|| model.sampler_on(device, options))?;
    let mut names = Vec::new();
    for (name, adapter) in adapters {
        let name = WeightsName::new(&name);
        if let Some(adapter) = adapter {
            sampler.publish(&name, &adapter).map_err(usage)?;
        }
        names.push(name);
    }
    if names.is_empty() {
        names.push(WeightsName::default());
    }
    Ok((sampler, names))
}

/// Prints one stream until it ends or is interrupted.
fn print_stream(
    weights: &WeightsName,
    mut stream: TokenStream,
    renderer: &Renderer,
    interrupt: &Interrupt,
    out: &Output,
) -> anyhow::Result<Result<(), Interrupted>> {
    let (mut tokens, mut printed) = (Vec::new(), 0);
    let ended = loop {
        match block_on(interrupt.or(stream.next())) {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
        if out.json {
            continue;
        }
        // A token may end within a character; only complete characters are printed.
        if let Ok(text) = renderer.decode(&tokens) {
            let complete = text.trim_end_matches('\u{FFFD}');
            if complete.len() > printed && complete.is_char_boundary(printed) {
                out.print(&complete[printed..]).context("cannot print the text")?;
                printed = complete.len();
            }
        }
    };
    // After an interrupt, dropping the stream cancels the request.
    let sample = match ended {
        Ok(()) => Some(block_on(stream.finish()).map_err(engine_error)?),
        Err(_) => None,
    };
    if out.json {
        let completion = sample.map(CompletionInfo::from).unwrap_or_default();
        let text = renderer.decode(&tokens)?;
        out.object(&GeneratedText { weights: weights.to_string(), text, tokens, completion })?;
    } else {
        out.line("")?;
    }
    Ok(ended)
}
