//! `mage model generate`: write text, shown as it comes.

use super::{hub, open_adapter};
use crate::{
    cli::ModelGenerateArgs,
    interrupt::{Interrupt, Interrupted},
    output::{BOLD, Output, styled},
    refused, usage,
};
use anyhow::Context;
use mage_engine::{
    AdapterName, ChatMessage, Error, FinishReason, Renderer, Sample, SampleRequest, SamplingParams, Thinking,
    WeightVersion, block_on,
};
use mage_native::{Device, EngineOptions, NativeAdapter, NativeModel, NativeSampler, TokenStream};
use serde::Serialize;
use std::path::Path;

/// A text and how it came about.
#[derive(Serialize)]
struct Generated {
    weights: String,
    text: String,
    tokens: Vec<u32>,
    #[serde(flatten)]
    whole: Whole,
}

/// What is known of whole answers only: nothing where Ctrl-C came first.
#[derive(Serialize, Default)]
struct Whole {
    /// Which version of the weights.
    version: Option<WeightVersion>,
    /// Of the policy.
    logprobs: Option<Vec<f32>>,
    /// Of the distribution that was drawn from, after temperature and filters.
    processed_logprobs: Option<Vec<f32>>,
    finish: Option<FinishReason>,
}

impl From<Sample> for Whole {
    fn from(s: Sample) -> Self {
        Whole {
            version: Some(s.weights.version),
            logprobs: Some(s.logprobs),
            processed_logprobs: Some(s.processed_logprobs),
            finish: Some(s.finish),
        }
    }
}

pub(super) fn run(args: &ModelGenerateArgs, out: &Output) -> anyhow::Result<()> {
    let model = hub(out).open(&args.model).map_err(usage)?;
    let renderer = model.renderer().cloned().ok_or_else(|| usage("this model has no tokenizer.json"))?;
    let request = request(args, &model, &renderer)?;
    request.check(model.config().vocab_size, model.config().max_position_embeddings).map_err(by_flag)?;
    let (sampler, names) = speakers(args, model, out)?;
    let interrupt = Interrupt::listen()?;
    // All of them are at work from here on, in one batch.
    let streams = names
        .into_iter()
        .map(|weights| {
            let request = SampleRequest { weights: weights.clone(), ..request.clone() };
            Ok((weights, sampler.stream(request).map_err(refused)?))
        })
        .collect::<anyhow::Result<Vec<(AdapterName, TokenStream)>>>()?;
    let several = streams.len() > 1;
    for (weights, stream) in streams {
        if several && !out.json {
            out.line(styled(BOLD, &weights))?;
        }
        let ended = show(&weights, stream, &renderer, &interrupt, out)?;
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
            let start = renderer.control().bos;
            start.into_iter().chain(renderer.encode(text)?).collect()
        }
        (_, Some(text)) => renderer.encode_chat(&[ChatMessage::user(text)], thinking, true).map_err(usage)?,
        (None, None) => return Err(usage("nothing to continue; see --help")),
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

/// A refusal that names the option, not the field it became.
fn by_flag(e: Error) -> anyhow::Error {
    match e {
        Error::Invalid { subject, problem } => match subject.strip_prefix("sampling.") {
            Some("stop_texts") => usage(format!("--stop: {problem}")),
            Some(field) => usage(format!("--{}: {problem}", field.replace('_', "-"))),
            None => usage(format!("{subject}: {problem}")),
        },
        other => usage(other),
    }
}

/// An adapter's name and subject. A text that is a folder as it stands has no name of its own in it.
fn name_and_place(text: &str) -> anyhow::Result<(&str, &str)> {
    match text.split_once('=') {
        None if text == AdapterName::BASE => Ok((text, "")),
        Some((name, place)) if !name.contains('/') && !Path::new(text).exists() => match (name, place) {
            ("", _) => Err(usage(format!("--adapter {text}: there is no name before the `=`"))),
            (_, "") => Err(usage(format!("--adapter {text}: there is no adapter after the `=`"))),
            (AdapterName::BASE, _) => {
                Err(usage(format!("--adapter {text}: `base` is the model without an adapter; choose another name")))
            }
            _ => Ok((name, place)),
        },
        _ => Ok((text, text)),
    }
}

/// The sampler, and the weights that shall speak.
fn speakers(
    args: &ModelGenerateArgs,
    model: NativeModel,
    out: &Output,
) -> anyhow::Result<(NativeSampler, Vec<AdapterName>)> {
    let mut adapters = Vec::new();
    for text in &args.adapter {
        let (name, place) = name_and_place(text)?;
        if adapters.iter().any(|(other, _)| other == name) {
            return Err(usage(format!("two adapters are called `{name}`; write NAME=ADAPTER")));
        }
        let adapter = if place.is_empty() { None } else { Some(open_adapter(place, &model, out)?) };
        adapters.push((name.to_owned(), adapter));
    }
    // One batch for all: where a card cannot carry one of them, none is put there.
    let carried = |a: &NativeAdapter| a.lora().rank.is_multiple_of(8);
    let all = adapters.iter().filter_map(|(_, a)| a.as_ref()).all(carried);
    let device = if all || args.device != Device::Auto { args.device } else { Device::Cpu };
    if let Some(why) = model.gpu_unused_reason(args.device) {
        out.warn(why);
    } else if device != args.device && args.device.cuda_index().is_some() {
        out.warn("the CPU is used though there is a card: it carries no adapter whose rank is not a multiple of 8");
    }
    // The same seed gives the same text, on a card too.
    let options = EngineOptions { threads: args.threads, batch_invariant: true, ..Default::default() };
    let sampler = out.starting(|| model.sampler_on(device, options))?;
    let mut names = Vec::new();
    for (name, adapter) in adapters {
        let name = AdapterName::new(&name);
        if let Some(adapter) = adapter {
            sampler.publish(&name, &adapter).map_err(usage)?;
        }
        names.push(name);
    }
    if names.is_empty() {
        names.push(AdapterName::default());
    }
    Ok((sampler, names))
}

/// Shows one answer to its end, or as far as it came.
fn show(
    weights: &AdapterName,
    mut stream: TokenStream,
    renderer: &Renderer,
    interrupt: &Interrupt,
    out: &Output,
) -> anyhow::Result<Result<(), Interrupted>> {
    let (mut tokens, mut shown) = (Vec::new(), 0);
    let ended = loop {
        match block_on(interrupt.or(stream.next())) {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
        if out.json {
            continue;
        }
        // A token may end within a character: what is shown only ever grows by whole ones.
        if let Ok(text) = renderer.decode(&tokens) {
            let whole = text.trim_end_matches('\u{FFFD}');
            if whole.len() > shown && whole.is_char_boundary(shown) {
                out.ask(&whole[shown..]).context("showing the text")?;
                shown = whole.len();
            }
        }
    };
    // Whoever was interrupted gives the rest up.
    let whole = match ended {
        Ok(()) => Some(block_on(stream.finish()).map_err(refused)?),
        Err(_) => None,
    };
    if out.json {
        let whole = whole.map(Whole::from).unwrap_or_default();
        let text = renderer.decode(&tokens)?;
        out.object(&Generated { weights: weights.to_string(), text, tokens, whole })?;
    } else {
        out.line("")?;
    }
    Ok(ended)
}
