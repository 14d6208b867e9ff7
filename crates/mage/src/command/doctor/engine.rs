//! `mage doctor --engine`: are the servers a recipe names what it needs them to be?
//!
//! Asked in the order in which training would find out, and to the end: one answer that is no does not hide the next.

use super::{
    checks::{Checks, text},
    vllm::VllmRequirements,
};
use crate::{App, cli::DoctorArgs, command::recipe::compose, command::train::setting, output::Output, usage};
use anyhow::bail;
use mage_engine::{AdapterName, ScoreRequest, Trainer, block_on};
use mage_native::{Device, ModelDescription};
use mage_remote::{Fingerprint, StatusLog, Timeouts, TinkerTrainer, VllmPool};
use mage_train::{
    engines::Place,
    engines::remote::{check_addresses, describe, missing, pool_settings, tinker_settings},
    longest_sequence,
    recipe::{EngineKind, Recipe},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Models above this are not loaded here to compare with.
const COMPARED: usize = 100_000_000;

/// A server that does not answer within this time is not there.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
/// Whoever asks wants to know now: one that stops answering is waited for no longer than this, whatever a run would do,
const PATIENCE: Duration = Duration::from_secs(10);
/// and one that is at work (its first gradient is compiled) for no longer than this.
const WORK: Duration = Duration::from_secs(300);

pub(super) fn run(app: &App, args: &DoctorArgs, out: &Output) -> anyhow::Result<()> {
    let recipe = compose(&args.engine, &args.set)?;
    if recipe.engine.kind != EngineKind::Tinker {
        return Err(usage("engine.kind is `native`: there is no server to ask; `mage doctor` looks at this machine"));
    }
    check_addresses(&recipe)?;
    let mut checks = Checks::new(out);
    look(app, &recipe, &mut checks)?;
    match checks.end()? {
        (0, _) => Ok(()),
        (bad, all) => bail!("{bad} of {all} answers are no"),
    }
}

/// The patience of whoever only looks.
fn hasty(run: Timeouts) -> Timeouts {
    Timeouts { attempt: run.attempt.min(PATIENCE), away: run.away.min(PATIENCE), operation: run.operation.min(WORK) }
}

fn look(app: &App, recipe: &Recipe, checks: &mut Checks<'_>) -> anyhow::Result<()> {
    let lacks = missing(recipe);
    let fits = if lacks.is_empty() { Ok("everything".to_owned()) } else { Err(lacks.join("; ")) };
    checks.record("the backend offers what the recipe asks for", fits)?;
    let described = text(describe(recipe));
    let about = |d: &ModelDescription| {
        let c = &d.config;
        format!("{} words, {} tokens of context, {} numbers", c.vocab_size, c.max_position_embeddings, d.parameters)
    };
    checks.record("the model is known here", described.as_ref().map(about).map_err(Clone::clone))?;
    let Ok(model) = described else { return Ok(()) };
    // Who looks first and who trains then say the same of a way there: once is enough.
    let said = Mutex::new(BTreeSet::new());
    let notices = StatusLog::to(move |line| {
        if said.lock().unwrap_or_else(PoisonError::into_inner).insert(line.to_owned()) {
            eprintln!("{line}");
        }
    });
    let mut pool = pool_settings(recipe, &model, &notices)?;
    if let Some(pool) = &mut pool {
        pool.waiting = hasty(pool.waiting);
    }
    let pool = pool.map(VllmPool::new).transpose()?.map(Arc::new);
    let mut settings = tinker_settings(recipe, &model, &notices)?;
    settings.server.waiting = hasty(settings.server.waiting);
    let dialect = settings.server.dialect.version();
    let there = text(block_on_pool(settings.server.reach(FIRST_CONTACT.min(settings.server.waiting.away)))?);
    let trainer = there.and_then(|_| text(TinkerTrainer::connect(settings, pool.clone())));
    let met = trainer.as_ref().map(|t| match t.calibration() {
        Some(c) => {
            format!("speaks {dialect}; {:?}, scaled batches come to {:.6} of what they should", c.reduction, c.scaled)
        }
        None => format!("speaks {dialect}; not calibrated (tinker.calibrate = false)"),
    });
    checks.record(format!("{} trains as its backend is known to", recipe.tinker.url), met.map_err(Clone::clone))?;
    let mut trainer = trainer.ok();
    let theirs = trainer.as_ref().map(|t| text(t.fingerprint()));
    compare(recipe, &model, theirs.as_ref(), checks)?;
    let Some(pool) = pool else {
        if let Some(trainer) = &mut trainer {
            let published = text(trainer.publish(&AdapterName::default()));
            let seen = published.map(|v| format!("policy@{} scores as in training", v.0));
            checks.record("it samples what it trains", seen)?;
        }
        return Ok(());
    };
    let longest = match &model.renderer {
        Some(renderer) => text(setting(app, recipe).and_then(|s| Ok(longest_sequence(recipe, &s, renderer)?))),
        None => Err(format!("{} has no tokenizer.json", recipe.model.path)),
    };
    let wanted = VllmRequirements { recipe, model: &model, trained: theirs.as_ref(), longest };
    let mut serving = 0;
    for (address, served) in block_on_pool(pool.served())? {
        serving += usize::from(wanted.look_at(&pool, &address, text(served), checks)?);
    }
    if let (Some(trainer), true) = (&mut trainer, serving > 0) {
        let pushed = text(trainer.publish(&AdapterName::new("doctor")));
        checks.record("a pushed adapter arrives", pushed.map(|v| format!("doctor@{} scores as in training", v.0)))?;
    }
    Ok(())
}

/// Whether the trainer's model is the one here, where that can be found out. One that was there and does not say what its model
/// finds likely is as bad as one with another.
fn compare(
    recipe: &Recipe,
    model: &ModelDescription,
    theirs: Option<&Result<Fingerprint, String>>,
    checks: &mut Checks<'_>,
) -> anyhow::Result<()> {
    const WHAT: &str = "its model is the one here";
    if let Some(Err(e)) = theirs {
        checks.record(WHAT, Err(format!("it does not score a fixed sequence: {e}")))?;
        return Ok(());
    }
    if model.parameters > COMPARED {
        return checks.skip(
            WHAT,
            format!(
                "NOT COMPARED: a model of {} numbers is not loaded here, only those of up to {COMPARED}. That engines have the \
                 same numbers is looked at; that they are those of {} is for you to know",
                model.parameters, recipe.model.path
            ),
        );
    }
    if let Some(Ok(theirs)) = theirs {
        let ours = text(native_fingerprint(recipe, model));
        checks.record(WHAT, ours.and_then(|ours| near(&ours, theirs, recipe.vllm.tolerance)))?;
    }
    Ok(())
}

/// Waits on a runtime of its own.
pub(super) fn block_on_pool<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(mage_train::train::runtime(1)?.block_on(work))
}

pub(super) fn near(ours: &Fingerprint, theirs: &Fingerprint, tolerance: f32) -> Result<String, String> {
    let distance = ours.distance(theirs);
    let said = format!("log-probabilities of a fixed sequence differ by at most {distance:.1e}");
    if distance <= tolerance { Ok(said) } else { Err(format!("{said}, and {tolerance:.0e} is allowed")) }
}

/// How likely the embedded engine finds the fixed sequence.
fn native_fingerprint(recipe: &Recipe, model: &ModelDescription) -> anyhow::Result<Fingerprint> {
    // In fp32: what servers say is held against the truth.
    let place = Place { device: Device::Cpu, threads: recipe.engine.threads, ..Place::default() };
    let (sampler, _) = mage_train::engines::sampler(&recipe.model.path, place)?;
    let tokens = Fingerprint::tokens(model.config.vocab_size);
    let request = ScoreRequest { tokens, from: 1, ..ScoreRequest::default() };
    Ok(Fingerprint(block_on(sampler.score(request))?.logprobs))
}
