//! How does a run go on, and is there anything left to do?

use super::{TrainContext, TrainEnv, TrainEvent, TrainOutcome, TrainProgress, Training, ceilings};
use crate::{
    Error, Result,
    eval::evaluator::EvalResult,
    recipe::{Recipe, differences},
    run_dir::RunDir,
};
use mage_env::Population;
use serde::Deserialize;
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU8},
};

/// Nothing depends on these: a run goes on with other threads, and with servers that have moved.
const INDIFFERENT: [&str; 10] = [
    // Said aloud, since last digits do: whoever has lost a card must be able to go on.
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

/// What sets a recipe and a population apart from those a run was started with: key, there, now. What nothing depends on is left
/// out.
pub fn changed_since(run: &Path, recipe: &Recipe, population: &Population) -> Result<Vec<(String, String, String)>> {
    let mut changed = differences(&RunDir::recipe(run)?, recipe);
    changed.retain(|(key, ..)| !INDIFFERENT.contains(&key.as_str()));
    if RunDir::population(run)? != *population {
        let [key, there, now] = ["the population's file", "population.toml", "something else"].map(str::to_owned);
        changed.push((key, there, now));
    }
    Ok(changed)
}

/// What a run comes to when somebody asks for it to go on.
pub enum Resumed {
    /// Nothing is left to do: what came of it. No engine was started, and no server asked.
    Finished(Box<TrainOutcome>),
    /// It goes on.
    Going(Box<Training>),
}

/// A run's result, as it was written; what can be worked out again is.
#[derive(Deserialize)]
struct StoredOutcome {
    updates: u64,
    of: u64,
    unit: String,
    before: Option<EvalResult>,
    after: Option<EvalResult>,
    blanked: Option<EvalResult>,
    best: Option<(u64, f64)>,
    seconds: f64,
}

impl Training {
    /// Continues a run where its newest whole checkpoint is, unless it is finished. A recipe that differs from the run's is refused unless
    /// `force`d; `each` hears what was wrong with newer checkpoints.
    pub fn resume(
        recipe: Recipe,
        setting: TrainEnv,
        dir: &Path,
        force: bool,
        stop: Arc<AtomicU8>,
        each: &mut dyn FnMut(TrainEvent),
    ) -> Result<Resumed> {
        let changed = changed_since(dir, &recipe, &setting.population)?;
        let mut run = RunDir::open(dir)?;
        if !changed.is_empty() && !force {
            let list: Vec<String> =
                changed.iter().map(|(k, old, new)| format!("  {k}: {old} there, {new} now")).collect();
            let problem = format!(
                "the recipe is not the one the run was started with:\n{}\nstart a new run, or insist with --force",
                list.join("\n")
            );
            return Err(Error::Run { path: dir.to_owned(), problem });
        }
        if changed.is_empty()
            && let Some(outcome) = finished(&recipe, &setting, &run)?
        {
            return Ok(Resumed::Finished(Box::new(outcome)));
        }
        let env_info = setting.env_spec.info();
        let mut parts = TrainContext::new(&recipe, &setting, &env_info)?;
        let ceilings = ceilings(&recipe, &setting)?;
        let progress = match run.newest(|text| each(TrainEvent::Warning { text }))? {
            None => TrainProgress::default(),
            Some((path, progress)) => {
                parts.engines.trainer.load(&path)?;
                progress
            }
        };
        // Only now: where it cannot go on, all is as it was.
        run.rewind(&progress)?;
        if let Some(text) = moved(run.device().as_deref(), &parts.engines.device) {
            each(TrainEvent::Warning { text });
        }
        // Only now: a recipe that cannot go on from here must not take the place of the one that can. Where it is computed from now
        // on it is looked for next time.
        if !changed.is_empty() || RunDir::recipe(dir)?.engine.device != recipe.engine.device {
            run.replace_recipe(&recipe, &setting.population)?;
        }
        let training = Self::assemble(recipe, setting, parts, ceilings, run, progress, stop)?;
        Ok(Resumed::Going(Box::new(training)))
    }
}

/// What is said of a run that goes on on a card though it was begun on a processor, or the other way round.
fn moved(from: Option<&str>, to: &str) -> Option<String> {
    let on_card = |device: &str| match device.split(':').next() {
        Some("cuda") => Some(true),
        Some("cpu") => Some(false),
        // Servers, which may move.
        _ => None,
    };
    let from = from.filter(|from| on_card(from).zip(on_card(to)).is_some_and(|(was, is)| was != is))?;
    Some(format!(
        "it was begun on {from} and goes on with {to}: last digits are others from here on than they would have been"
    ))
}

/// What came of a run of this recipe, where all of it is done and the last weights are whole.
pub(super) fn finished(recipe: &Recipe, setting: &TrainEnv, run: &RunDir) -> Result<Option<TrainOutcome>> {
    let text = std::fs::read(run.path().join("result.json")).unwrap_or_default();
    let Ok(written) = serde_json::from_slice::<StoredOutcome>(&text) else { return Ok(None) };
    let StoredOutcome { updates, of, unit, before, after, blanked, best, seconds } = written;
    let whole = updates == of && of == recipe.optim.updates && after.is_some() && blanked.is_some();
    if !whole || !run.is_at(updates) {
        return Ok(None);
    }
    let ceilings = ceilings(recipe, setting)?;
    Ok(Some(TrainOutcome { updates, of, unit, before, after, blanked, ceilings, best, seconds }))
}

#[cfg(test)]
mod tests {
    use super::moved;

    #[test]
    fn a_run_that_changes_between_card_and_processor_is_told_so() {
        let (card, cpu) = ("cuda:0: NVIDIA H200, generation 9.0, bf16", "cpu: some, AVX2");
        for (from, to) in [(card, cpu), (cpu, card)] {
            let text = moved(Some(from), to).unwrap();
            assert!(text.contains(from) && text.contains(to), "{text}");
        }
        for (from, to) in
            [(cpu, "cpu: another"), (card, "cuda:1: another"), ("SkyRL at http://one", "SkyRL at http://two")]
        {
            assert_eq!(moved(Some(from), to), None);
        }
        assert_eq!(moved(None, cpu), None, "nobody knows");
    }
}
