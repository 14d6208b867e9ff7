//! Warm start without RL (`mage warmstart`).

use super::{TrainContext, TrainEnv, TrainEvent};
use crate::{Error, Result, recipe::Recipe};
use std::{path::Path, sync::atomic::AtomicU8};

/// Creates or opens the recipe's model, runs the warm start, and saves a checkpoint to `out`. If a stop is requested,
/// nothing is written and the result is `false`.
pub fn warm_start(
    recipe: &Recipe,
    env: &TrainEnv,
    out: &Path,
    stop: &AtomicU8,
    on_event: &mut dyn FnMut(TrainEvent),
) -> Result<bool> {
    if out.exists() {
        let problem = "the folder exists already; choose a new one".to_owned();
        return Err(Error::Run { path: out.to_owned(), problem });
    }
    recipe.check()?;
    let mut context = TrainContext::new(recipe, env, &env.env_spec.info())?;
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let staging = parent.join(format!(".{name}.{}", std::process::id()));
    // Created first: a folder that is not writable fails before the training, not after it.
    std::fs::create_dir_all(&staging).map_err(Error::io(&staging))?;
    let completed = context.run_warm_start(recipe, recipe.warmstart.steps, stop, on_event);
    if !matches!(completed, Ok(true)) {
        let _ = std::fs::remove_dir_all(&staging);
        return completed;
    }
    let saved = context.engines.trainer.save(&staging).map_err(Error::from);
    let renamed = saved.and_then(|()| std::fs::rename(&staging, out).map_err(Error::io(out)));
    if renamed.is_err() {
        let _ = std::fs::remove_dir_all(&staging);
    }
    renamed.map(|()| true)
}
