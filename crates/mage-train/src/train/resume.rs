//! Resumption of runs from their last complete checkpoint.

use super::{TrainContext, TrainEnv, TrainEvent, TrainOutcome, TrainProgress, Training, ceilings};
use crate::{
    Error, Result,
    eval::EvalResult,
    recipe::{Recipe, differences, key_values},
    run_dir::RunDir,
};
use mage_env::{Hash, Population};
use serde::Deserialize;
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU8},
};

/// Keys that may differ on resume: they do not affect results, apart from the device (see there).
const RESUMABLE_KEYS: [&str; 10] = [
    // Affects low-order bits, which a warning states: a run must be able to continue without its GPU.
    "engine.device",
    "engine.threads",
    "tinker.url",
    "tinker.key_env",
    "tinker.timeout",
    "vllm.servers",
    "vllm.adapter_dir",
    "vllm.key_env",
    "vllm.max_in_flight",
    "vllm.request_timeout",
];

/// Differences of a recipe and a population from those of a run: key, value in the run, new value. Keys that may differ
/// are left out.
pub fn changed_since(run: &Path, recipe: &Recipe, population: &Population) -> Result<Vec<(String, String, String)>> {
    let mut changed = differences(&RunDir::recipe(run)?, recipe);
    changed.retain(|(key, ..)| !RESUMABLE_KEYS.contains(&key.as_str()));
    if RunDir::population(run)? != *population {
        let [key, old, new] = ["the population's file", "population.toml", "different content"].map(str::to_owned);
        changed.push((key, old, new));
    }
    Ok(changed)
}

/// What to do about changes: a longer run is the most frequent one.
fn how_to_change(changed: &[(String, String, String)]) -> String {
    let longer = |(key, old, new): &(String, String, String)| {
        let counts = old.parse::<u64>().ok().zip(new.parse::<u64>().ok());
        counts.filter(|(old, new)| key == "optim.updates" && new > old)
    };
    match changed.iter().find_map(longer) {
        Some((old, new)) => format!(
            "with --force, a finished run continues from {old} updates to {new}; schedules are stretched to \
             {new} updates"
        ),
        None => "start a new run, or resume with --force".to_owned(),
    }
}

/// Hash of a recipe and a population, without the keys that may differ on resume.
pub fn recipe_hash(recipe: &Recipe, population: &Population) -> Hash {
    let mut keys = key_values(recipe);
    keys.retain(|key, _| !RESUMABLE_KEYS.contains(&key.as_str()));
    Hash::of(&(keys, population))
}

/// Result of a request to resume.
pub enum Resumed {
    /// The run is complete. No engine was started and no server contacted.
    Finished(Box<TrainOutcome>),
    /// The run continues.
    Running(Box<Training>),
}

/// The fields of `result.json` that cannot be recomputed.
#[derive(Deserialize)]
struct StoredOutcome {
    updates: u64,
    total_updates: u64,
    unit: String,
    before: Option<EvalResult>,
    after: Option<EvalResult>,
    without_memory: Option<EvalResult>,
    best: Option<(u64, f64)>,
    seconds: f64,
}

impl Training {
    /// Continues a run from its last complete checkpoint, unless it is finished. A recipe that differs from the run's
    /// is an error unless `force` is set. `on_event` receives warnings about damaged checkpoints.
    pub fn resume(
        recipe: Recipe,
        env: TrainEnv,
        dir: &Path,
        force: bool,
        stop: Arc<AtomicU8>,
        on_event: &mut dyn FnMut(TrainEvent),
    ) -> Result<Resumed> {
        // An error if the directory is not a run, before a lock file is created in it.
        RunDir::recipe(dir)?;
        let mut run_dir = RunDir::open(dir)?;
        let changed = changed_since(dir, &recipe, &env.population)?;
        if !changed.is_empty() && !force {
            let list: Vec<String> =
                changed.iter().map(|(key, old, new)| format!("  {key}: {old} in the run, {new} now")).collect();
            let list = list.join("\n");
            let problem = format!("the recipe differs from that of the run:\n{list}\n{}", how_to_change(&changed));
            return Err(Error::Run { path: dir.to_owned(), problem });
        }
        let newest = run_dir.newest(|text| on_event(TrainEvent::Warning { text }))?;
        let progress = newest.as_ref().map(|(_, progress)| progress);
        let hash = recipe_hash(&recipe, &env.population);
        let info = run_dir.info();
        // A recipe that was accepted with `force` is that of the last attempt, but not yet of a checkpoint.
        let accepted = info.as_ref().is_some_and(|info| info.recipe == hash);
        let unchanged = changed.is_empty() && progress.is_none_or(|p| p.recipe == Some(hash));
        if changed.is_empty() && !unchanged && !accepted && !force {
            let problem = "the recipe or the population was changed after the last checkpoint; restore the files, or \
                           resume with --force";
            return Err(Error::Run { path: dir.to_owned(), problem: problem.to_owned() });
        }
        if unchanged
            && let Some(progress) = progress
            && let Some(outcome) = finished(&recipe, &env, &run_dir, progress)?
        {
            return Ok(Resumed::Finished(Box::new(outcome)));
        }
        let env_info = env.env_spec.info();
        let mut context = TrainContext::new(&recipe, &env, &env_info)?;
        let ceilings = ceilings(&recipe, &env)?;
        let progress = match newest {
            None => TrainProgress::default(),
            Some((path, progress)) => {
                context.engines.trainer.load(&path)?;
                progress
            }
        };
        // After all checks: if the run cannot continue, its files are unchanged.
        run_dir.rewind(&progress)?;
        if let Some(text) = device_change(info.as_ref().map(|info| &*info.device), &context.engines.device) {
            on_event(TrainEvent::Warning { text });
        }
        // After all checks: an unusable recipe must not replace a usable one. A new device is recorded for the next
        // attempt.
        if !changed.is_empty() || RunDir::recipe(dir)?.engine.device != recipe.engine.device {
            run_dir.replace_recipe(&recipe, &env.population)?;
        }
        let training = Self::assemble(recipe, env, context, ceilings, run_dir, progress, stop)?;
        Ok(Resumed::Running(Box::new(training)))
    }
}

/// The warning for a run that changes between GPU and CPU.
fn device_change(from: Option<&str>, to: &str) -> Option<String> {
    let is_gpu = |device: &str| match device.split(':').next() {
        Some("cuda") => Some(true),
        Some("cpu") => Some(false),
        // Servers, which may move.
        _ => None,
    };
    let from = from.filter(|from| is_gpu(from).zip(is_gpu(to)).is_some_and(|(was, is)| was != is))?;
    Some(format!("resuming on {to} a run started on {from}: results will differ in low-order bits"))
}

/// The outcome of a run of this recipe, if it is finished; `newest` is its newest complete checkpoint.
fn finished(recipe: &Recipe, env: &TrainEnv, run_dir: &RunDir, newest: &TrainProgress) -> Result<Option<TrainOutcome>> {
    let text = std::fs::read(run_dir.path().join("result.json")).unwrap_or_default();
    let Ok(stored) = serde_json::from_slice::<StoredOutcome>(&text) else { return Ok(None) };
    let StoredOutcome { updates, total_updates, unit, before, after, without_memory, best, seconds } = stored;
    let complete = updates == total_updates
        && total_updates == recipe.optim.updates
        && after.is_some()
        && without_memory.is_some();
    if !complete || newest.update != updates || !run_dir.ends_at(newest) {
        return Ok(None);
    }
    // What a process that was killed after the last checkpoint left behind.
    run_dir.remove_unfinished()?;
    run_dir.prune(recipe.checkpoint.keep, newest.best.map(|(update, _)| update), |_| ())?;
    let ceilings = ceilings(recipe, env)?;
    Ok(Some(TrainOutcome { updates, total_updates, unit, before, after, without_memory, ceilings, best, seconds }))
}

#[cfg(test)]
mod tests {
    use super::{device_change, how_to_change};

    #[test]
    fn a_longer_run_is_told_how_it_continues() {
        let change = |key: &str, old: &str, new: &str| (key.to_owned(), old.to_owned(), new.to_owned());
        let text = how_to_change(&[change("optim.updates", "40", "60")]);
        assert!(text.contains("continues from 40 updates to 60") && text.contains("--force"), "{text}");
        for other in [change("optim.updates", "60", "40"), change("optim.epochs", "1", "2")] {
            assert_eq!(how_to_change(&[other]), "start a new run, or resume with --force");
        }
    }

    #[test]
    fn changing_between_gpu_and_cpu_raises_a_warning() {
        let (gpu, cpu) = ("cuda:0: NVIDIA H200, generation 9.0, bf16", "cpu: some, AVX2");
        for (from, to) in [(gpu, cpu), (cpu, gpu)] {
            let text = device_change(Some(from), to).unwrap();
            assert!(text.contains(from) && text.contains(to), "{text}");
        }
        for (from, to) in
            [(cpu, "cpu: another"), (gpu, "cuda:1: another"), ("SkyRL at http://one", "SkyRL at http://two")]
        {
            assert_eq!(device_change(Some(from), to), None);
        }
        assert_eq!(device_change(None, cpu), None, "unknown device");
    }
}
