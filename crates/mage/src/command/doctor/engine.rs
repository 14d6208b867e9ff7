//! `mage doctor --engine`: are the servers a recipe names what it needs them to be?
//!
//! Asked in the order in which training would find out, and to the end: one answer that is no does not hide the next.

use crate::{
    cli::Doctor,
    command::recipe::compose,
    output::{BAD, GOOD, Output, styled},
    usage,
};
use anyhow::bail;
use mage_engine::{AdapterName, Renderer, ScoreRequest, Trainer, block_on};
use mage_lab::{
    engine::Place,
    recipe::{EngineKind, Recipe},
    remote_engine::{check_addresses, describe, missing, pool_settings, tinker_settings},
};
use mage_native::{Description, Device};
use mage_remote::{Fingerprint, Notices, TinkerTrainer, VllmPool};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Models above this are not loaded here to compare with.
const COMPARED: usize = 100_000_000;

/// Whoever asks wants to know now: a server that does not answer within this time is not there.
const FIRST_CONTACT: Duration = Duration::from_secs(5);

/// One thing that was looked at.
#[derive(Serialize)]
struct Finding {
    what: String,
    good: bool,
    found: String,
}

/// All that was found, told as it is found.
struct Findings<'o> {
    out: &'o Output,
    all: Vec<Finding>,
}

impl Findings<'_> {
    fn note(&mut self, what: impl Into<String>, found: Result<String, String>) -> anyhow::Result<bool> {
        let (good, found) = found.map_or_else(|e| (false, e), |f| (true, f));
        let finding = Finding { what: what.into(), good, found };
        if !self.out.json {
            let mark = if good { styled(GOOD, "yes") } else { styled(BAD, "no ") };
            self.out.line(format!("{mark}  {}: {}", finding.what, finding.found))?;
        }
        self.all.push(finding);
        Ok(good)
    }
}

pub(super) fn run(args: &Doctor, out: &Output) -> anyhow::Result<()> {
    let recipe = compose(&args.engine, &args.set)?;
    if recipe.engine.kind != EngineKind::Tinker {
        return Err(usage("engine.kind is `native`: there is no server to ask; `mage doctor` looks at this machine"));
    }
    check_addresses(&recipe)?;
    let mut findings = Findings { out, all: Vec::new() };
    look(&recipe, &mut findings)?;
    let bad = findings.all.iter().filter(|f| !f.good).count();
    if out.json {
        out.object(&findings.all)?;
    }
    if bad > 0 {
        bail!("{bad} of {} answers are no", findings.all.len());
    }
    Ok(())
}

fn text<T>(result: Result<T, impl ToString>) -> Result<T, String> {
    result.map_err(|e| e.to_string())
}

fn look(recipe: &Recipe, findings: &mut Findings<'_>) -> anyhow::Result<()> {
    let lacks = missing(recipe);
    let fits = if lacks.is_empty() { Ok("everything".to_owned()) } else { Err(lacks.join("; ")) };
    findings.note("the backend offers what the recipe asks for", fits)?;
    let described = text(describe(recipe));
    let about = |d: &Description| {
        let c = &d.config;
        format!("{} words, {} tokens of context, {} numbers", c.vocab_size, c.max_position_embeddings, d.parameters)
    };
    findings.note("the model is known here", described.as_ref().map(about).map_err(Clone::clone))?;
    let Ok(model) = described else { return Ok(()) };
    // Who looks first and who trains then say the same of a way there: once is enough.
    let said = Mutex::new(BTreeSet::new());
    let notices = Notices::to(move |line| {
        if said.lock().unwrap_or_else(PoisonError::into_inner).insert(line.to_owned()) {
            eprintln!("{line}");
        }
    });
    let pool = pool_settings(recipe, &model, &notices)?.map(VllmPool::new).transpose()?.map(Arc::new);
    let settings = tinker_settings(recipe, &model, &notices)?;
    let dialect = settings.server.dialect.version();
    let there = text(block_on_pool(settings.server.reach(FIRST_CONTACT.min(settings.server.waiting.away)))?);
    // From here on it is waited for as in training.
    let trainer = there.and_then(|_| text(TinkerTrainer::connect(settings, pool.clone())));
    let met = trainer.as_ref().map(|t| match t.calibration() {
        Some(c) => {
            format!("speaks {dialect}; {:?}, scaled batches come to {:.6} of what they should", c.reduction, c.scaled)
        }
        None => format!("speaks {dialect}; not calibrated (tinker.calibrate = false)"),
    });
    findings.note(format!("{} trains as its backend is known to", recipe.tinker.url), met.map_err(Clone::clone))?;
    let mut trainer = trainer.ok();
    let theirs = trainer.as_ref().and_then(|t| t.fingerprint().ok());
    if let (Some(theirs), true) = (&theirs, model.parameters <= COMPARED) {
        let ours = text(native_fingerprint(recipe, &model));
        let agree = ours.and_then(|ours| near(&ours, theirs, recipe.vllm.tolerance));
        findings.note("its model is the one here", agree)?;
    }
    let Some(pool) = pool else {
        if let Some(trainer) = &mut trainer {
            let published = text(trainer.publish(&AdapterName::default()));
            let seen = published.map(|v| format!("policy@{} scores as in training", v.0));
            findings.note("it samples what it trains", seen)?;
        }
        return Ok(());
    };
    let mut serving = 0;
    for (address, names) in block_on_pool(pool.served())? {
        serving +=
            usize::from(look_at_sampler(recipe, &model, &pool, &address, text(names), theirs.as_ref(), findings)?);
    }
    if let (Some(trainer), true) = (&mut trainer, serving > 0) {
        let pushed = text(trainer.publish(&AdapterName::new("doctor")));
        findings.note("a pushed adapter arrives", pushed.map(|v| format!("doctor@{} scores as in training", v.0)))?;
    }
    Ok(())
}

/// Looks at one of the servers that sample; whether it serves the model. `trained` is the trainer's fingerprint.
fn look_at_sampler(
    recipe: &Recipe,
    model: &Description,
    pool: &VllmPool,
    address: &str,
    names: Result<Vec<String>, String>,
    trained: Option<&Fingerprint>,
    findings: &mut Findings<'_>,
) -> anyhow::Result<bool> {
    let name = if recipe.vllm.model.is_empty() { &recipe.model.path } else { &recipe.vllm.model };
    let serves = names.and_then(|names| match names.contains(name) {
        true => Ok(format!("{} names", names.len())),
        false => Err(format!("it serves {}, not `{name}`: set vllm.model", names.join(", "))),
    });
    if !findings.note(format!("{address} serves the model"), serves)? {
        return Ok(false);
    }
    if let Some(trained) = trained {
        let base = text(block_on_pool(pool.base_fingerprint(address))?);
        let agree = base.and_then(|base| near(trained, &base, recipe.vllm.tolerance));
        findings.note(format!("{address} has the weights that are trained"), agree)?;
    }
    if let Some(renderer) = &model.renderer {
        let words = sample_words(renderer);
        let ours = text(renderer.encode(&words));
        let agree = ours.and_then(|ours| {
            let theirs = text(text(block_on_pool(pool.tokenize(address, &words)))?)?;
            match theirs == ours {
                true => Ok(format!("{} tokens", ours.len())),
                false => Err(format!("{theirs:?} there, {ours:?} here, of `{words}`")),
            }
        });
        findings.note(format!("{address} has the tokenizer that is here"), agree)?;
    }
    Ok(true)
}

/// Waits on a runtime of its own.
fn block_on_pool<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(mage_lab::train::runtime(1)?.block_on(work))
}

/// Some words of the vocabulary, none of which steers: those are never read out of a text here.
fn sample_words(renderer: &Renderer) -> String {
    let plain = |id: u32| {
        let word = renderer.token_text(id).filter(|t| t.chars().all(|c| c.is_ascii_alphanumeric()))?;
        renderer.encode(&word).is_ok_and(|tokens| tokens == [id]).then_some(word)
    };
    let words: Vec<String> = (0..renderer.vocabulary() as u32).filter_map(plain).take(8).collect();
    words.join(" ")
}

fn near(ours: &Fingerprint, theirs: &Fingerprint, tolerance: f32) -> Result<String, String> {
    let distance = ours.distance(theirs);
    let said = format!("log-probabilities of a fixed sequence differ by at most {distance:.1e}");
    if distance <= tolerance { Ok(said) } else { Err(format!("{said}, and {tolerance:.0e} is allowed")) }
}

/// How likely the embedded engine finds the fixed sequence.
fn native_fingerprint(recipe: &Recipe, model: &Description) -> anyhow::Result<Fingerprint> {
    // In fp32: what servers say is held against the truth.
    let place = Place { device: Device::Cpu, threads: recipe.engine.threads };
    let (sampler, _) = mage_lab::engine::sampler(&recipe.model.path, place)?;
    let tokens = Fingerprint::tokens(model.config.vocab_size);
    let request = ScoreRequest { tokens, from: 1, ..ScoreRequest::default() };
    Ok(Fingerprint(block_on(sampler.score(request))?.logprobs))
}
