//! `mage doctor --engine`: checks of the remote engines that a recipe names.
//!
//! Checks run in the order in which training would hit the problems. A failed check does not end the list.

use super::{
    checks::{Checks, text},
    vllm::VllmRequirements,
};
use crate::{
    App, cli::DoctorArgs, command::recipe::compose, command::train::train_env, output::Output, output::write_stderr,
    usage,
};
use anyhow::bail;
use futures_executor::block_on;
use mage_engine::{ScoreRequest, Trainer, WeightsName};
use mage_native::{Device, ModelDescription};
use mage_remote::{Fingerprint, Timeouts, TinkerTrainer, VllmPool};
use mage_train::{
    engines::SamplerOptions,
    engines::remote::{check_addresses, describe, pool_settings, tinker_settings, unsupported_features},
    longest_sequence,
    recipe::{EngineKind, Recipe},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Models with more parameters are not loaded locally for the comparison.
const MAX_COMPARED_PARAMETERS: usize = 100_000_000;

/// Connection timeout: a server without a response by then counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request and of an outage. Shorter than a training run's, since the user is waiting.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one operation; the first gradient includes compilation.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) fn run(app: &App, args: &DoctorArgs, out: &Output) -> anyhow::Result<()> {
    let recipe = compose(&args.engine, &args.set)?;
    if recipe.engine.kind != EngineKind::Tinker {
        return Err(usage("engine.kind is `native`, which has no servers; run `mage doctor` to check this machine"));
    }
    check_addresses(&recipe)?;
    let mut checks = Checks::new(out);
    check_engines(app, &recipe, Duration::from_secs_f64(args.cold_start), &mut checks)?;
    match checks.finish()? {
        (0, _) => Ok(()),
        (failed, all) => bail!("{failed} of {all} checks failed"),
    }
}

/// A run's timeouts, limited to those of this command.
fn limited(run: Timeouts) -> Timeouts {
    Timeouts {
        attempt: run.attempt.min(REQUEST_TIMEOUT),
        outage: run.outage.min(REQUEST_TIMEOUT),
        operation: run.operation.min(OPERATION_TIMEOUT),
    }
}

fn check_engines(app: &App, recipe: &Recipe, cold_start: Duration, checks: &mut Checks<'_>) -> anyhow::Result<()> {
    let unsupported = unsupported_features(recipe);
    let supported = if unsupported.is_empty() { Ok("all features".to_owned()) } else { Err(unsupported.join("; ")) };
    checks.record("backend supports the recipe", supported)?;
    let described = text(describe(recipe));
    let about = |d: &ModelDescription| {
        let c = &d.config;
        format!(
            "vocabulary of {} tokens, context of {} tokens, {} parameters",
            c.vocab_size, c.max_position_embeddings, d.parameters
        )
    };
    checks.record("model is available locally", described.as_ref().map(about).map_err(Clone::clone))?;
    let Ok(model) = described else { return Ok(()) };
    // The connection check and the trainer report the same status lines; each is printed once.
    let printed = Mutex::new(BTreeSet::new());
    let notices = mage_train::status_log(move |line| {
        if printed.lock().unwrap_or_else(PoisonError::into_inner).insert(line.to_owned()) {
            write_stderr(line);
        }
    });
    let mut pool = pool_settings(recipe, &model, &notices)?;
    if let Some(pool) = &mut pool {
        pool.timeouts = limited(pool.timeouts);
    }
    let pool = pool.map(VllmPool::new).transpose()?.map(Arc::new);
    let mut settings = tinker_settings(recipe, &model, &notices)?;
    settings.server.timeouts = limited(settings.server.timeouts);
    let sdk_version = settings.server.sdk_version.as_str();
    let reachable = text(block_on_pool(settings.server.probe(CONNECT_TIMEOUT.min(settings.server.timeouts.outage)))?);
    let trainer = reachable.and_then(|_| text(TinkerTrainer::connect(settings, pool.clone())));
    let calibration = trainer.as_ref().map(|t| match t.calibration() {
        Some(c) => format!(
            "protocol {sdk_version}; loss reduction {:?}, gradient of a scaled batch is {:.6} of the expected one",
            c.reduction, c.scaled
        ),
        None => format!("protocol {sdk_version}; not calibrated (tinker.calibrate = false)"),
    });
    let name = format!("{} computes gradients as its backend should", recipe.tinker.url);
    checks.record(name, calibration.map_err(Clone::clone))?;
    let mut trainer = trainer.ok();
    let fingerprint = trainer.as_ref().map(|t| text(t.fingerprint()));
    compare(recipe, &model, fingerprint.as_ref(), checks)?;
    let Some(pool) = pool else {
        if let Some(trainer) = &mut trainer {
            let published = text(trainer.publish(&WeightsName::default()));
            let detail = published.map(|v| format!("policy@{}: log-probabilities as in training", v.0));
            checks.record("trainer samples with its trained weights", detail)?;
        }
        return Ok(());
    };
    let longest = match &model.renderer {
        Some(renderer) => text(train_env(app, recipe).and_then(|s| Ok(longest_sequence(recipe, &s, renderer)?))),
        None => Err(format!("{} has no tokenizer.json", recipe.model.path)),
    };
    let requirements = VllmRequirements { recipe, model: &model, trained: fingerprint.as_ref(), longest, cold_start };
    let mut serving = 0;
    for (address, served) in block_on_pool(pool.served_models())? {
        serving += usize::from(requirements.check(&pool, &address, text(served), checks)?);
    }
    if let (Some(trainer), true) = (&mut trainer, serving > 0) {
        let pushed = text(trainer.publish(&WeightsName::new("doctor")));
        let detail = pushed.map(|v| format!("doctor@{}: log-probabilities as in training", v.0));
        checks.record("pushed adapter is loaded by the servers", detail)?;
    }
    Ok(())
}

/// Compares the trainer's weights with the local model's. A reachable trainer that does not return a fingerprint fails
/// the check.
fn compare(
    recipe: &Recipe,
    model: &ModelDescription,
    remote: Option<&Result<Fingerprint, String>>,
    checks: &mut Checks<'_>,
) -> anyhow::Result<()> {
    const NAME: &str = "trainer's weights match the local model";
    if let Some(Err(e)) = remote {
        checks.record(NAME, Err(format!("the trainer does not score the test sequence: {e}")))?;
        return Ok(());
    }
    if model.parameters > MAX_COMPARED_PARAMETERS {
        return checks.skip(
            NAME,
            format!(
                "NOT COMPARED: the model has {} parameters, and only models of up to {MAX_COMPARED_PARAMETERS} are loaded \
                 locally. Trainer and samplers are compared with each other, but not with {}",
                model.parameters, recipe.model.path
            ),
        );
    }
    if let Some(Ok(remote)) = remote {
        let local = text(native_fingerprint(recipe, model));
        checks.record(NAME, local.and_then(|local| match_within(&local, remote, recipe.vllm.tolerance)))?;
    }
    Ok(())
}

/// Runs a future to its end on a new runtime.
pub(super) fn block_on_pool<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(mage_train::train::runtime(1)?.block_on(work))
}

/// Compares the log-probabilities that two engines assign to the test sequence.
pub(super) fn match_within(a: &Fingerprint, b: &Fingerprint, tolerance: f32) -> Result<String, String> {
    let distance = a.distance(b);
    let detail = format!("log-probabilities of the test sequence differ by at most {distance:.1e}");
    if distance <= tolerance { Ok(detail) } else { Err(format!("{detail}; the tolerance is {tolerance:.0e}")) }
}

/// The native engine's log-probabilities of the test sequence, in fp32.
fn native_fingerprint(recipe: &Recipe, model: &ModelDescription) -> anyhow::Result<Fingerprint> {
    let options = SamplerOptions { device: Device::Cpu, threads: recipe.engine.threads, ..SamplerOptions::default() };
    let (sampler, _) = mage_train::engines::sampler(&recipe.model.path, options)?;
    let tokens = Fingerprint::tokens(model.config.vocab_size);
    let request = ScoreRequest { tokens, from: 1, ..ScoreRequest::default() };
    Ok(Fingerprint(block_on(sampler.score(request))?.logprobs))
}
