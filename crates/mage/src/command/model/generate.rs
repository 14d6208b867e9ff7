//! `mage model generate`: write text, shown as it comes.

use super::{hub, open_adapter};
use crate::{
    cli::ModelGenerate,
    interrupt::{Interrupt, Interrupted},
    output::{BOLD, Output, styled},
    usage,
};
use anyhow::Context;
use mage_engine::{AdapterName, FinishReason, Message, Renderer, SampleRequest, SamplingParams, Thinking, block_on};
use mage_native::{NativeModel, NativeSampler, Options, TokenStream};
use serde::Serialize;

/// A text and how it came about.
#[derive(Serialize)]
struct Generated {
    weights: String,
    text: String,
    tokens: Vec<u32>,
    /// Of whole answers only.
    logprobs: Option<Vec<f32>>,
    /// Nothing where Ctrl-C came first.
    finish: Option<FinishReason>,
}

pub(super) fn run(args: &ModelGenerate, out: &Output) -> anyhow::Result<()> {
    let model = hub(out).open(&args.model).map_err(usage)?;
    let renderer = model.renderer().cloned().ok_or_else(|| usage("this model has no tokenizer.json"))?;
    let request = request(args, &model, &renderer)?;
    request.check(model.config().vocab_size, model.config().max_position_embeddings).map_err(usage)?;
    let (sampler, names) = speakers(args, model, out)?;
    let interrupt = Interrupt::listen()?;
    // All of them are at work from here on, in one batch.
    let streams = names
        .into_iter()
        .map(|weights| {
            let request = SampleRequest { weights: weights.clone(), ..request.clone() };
            Ok((weights, sampler.stream(request)?))
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

fn request(args: &ModelGenerate, model: &NativeModel, renderer: &Renderer) -> anyhow::Result<SampleRequest> {
    let thinking = if args.thinking { Thinking::On } else { Thinking::Off };
    let prompt = match (&args.input.prompt, &args.input.chat) {
        (Some(text), _) => {
            let start = renderer.control().bos;
            start.into_iter().chain(renderer.encode(text)?).collect()
        }
        (_, Some(text)) => renderer.chat(&[Message::user(text)], thinking, true).map_err(usage)?,
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

/// The sampler, and the weights that shall speak.
fn speakers(
    args: &ModelGenerate,
    model: NativeModel,
    out: &Output,
) -> anyhow::Result<(NativeSampler, Vec<AdapterName>)> {
    let mut adapters = Vec::new();
    for text in &args.adapter {
        let (name, place) = match text.split_once('=') {
            Some((name, place)) if !name.is_empty() => (name, place),
            Some(_) => return Err(usage(format!("--adapter {text}: there is no name before the `=`"))),
            None if text == AdapterName::BASE => (AdapterName::BASE, ""),
            None => (text.as_str(), text.as_str()),
        };
        if adapters.iter().any(|(other, _)| other == name) {
            return Err(usage(format!("two adapters are called `{name}`; write NAME=ADAPTER")));
        }
        let adapter =
            if name == AdapterName::BASE && place.is_empty() { None } else { Some(open_adapter(place, &model, out)?) };
        adapters.push((name.to_owned(), adapter));
    }
    let sampler = model.sampler(Options { threads: args.threads, ..Default::default() })?;
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
        Ok(()) => Some(block_on(stream.finish())?),
        Err(_) => None,
    };
    if out.json {
        let (logprobs, finish) = whole.map(|s| (s.logprobs, s.finish)).unzip();
        let text = renderer.decode(&tokens)?;
        out.object(&Generated { weights: weights.to_string(), text, tokens, logprobs, finish })?;
    } else {
        out.line("")?;
    }
    Ok(ended)
}
