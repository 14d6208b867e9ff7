//! A warm start by itself: what does it leave behind?

use super::{TrainContext, TrainEnv, TrainEvent};
use crate::{Error, Result, recipe::Recipe};
use std::{path::Path, sync::atomic::AtomicU8};

/// Makes or opens the recipe's model, teaches it the form of an answer, and leaves a checkpoint folder at `out`: whole, or,
/// when somebody asks to stop (`false`), not at all.
pub fn warm_start(
    recipe: &Recipe,
    setting: &TrainEnv,
    out: &Path,
    stop: &AtomicU8,
    each: &mut dyn FnMut(TrainEvent),
) -> Result<bool> {
    if out.exists() {
        let problem = "it is there already; give a folder that is not".to_owned();
        return Err(Error::Run { path: out.to_owned(), problem });
    }
    recipe.check()?;
    let mut parts = TrainContext::new(recipe, setting, &setting.env_spec.info())?;
    let folder = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    // A place that cannot be written to is found out before the work, not after it.
    std::fs::create_dir_all(&unfinished).map_err(Error::io(&unfinished))?;
    let taught = parts.warm_up(recipe, recipe.warmstart.steps, stop, each);
    if !matches!(taught, Ok(true)) {
        let _ = std::fs::remove_dir_all(&unfinished);
        return taught;
    }
    let saved = parts.engines.trainer.save(&unfinished).map_err(Error::from);
    let placed = saved.and_then(|()| std::fs::rename(&unfinished, out).map_err(Error::io(out)));
    if placed.is_err() {
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    placed.map(|()| true)
}
