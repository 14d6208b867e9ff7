//! Is there anything left to do?

use super::{Outcome, Setting, Training, ceilings};
use crate::{Result, judge::Judgement, recipe::Recipe, run_dir::RunDir};
use serde::Deserialize;

/// What a run comes to when somebody asks for it to go on.
pub enum Resumed {
    /// Nothing is left to do: what came of it. No engine was started, and no server asked.
    Finished(Box<Outcome>),
    /// It goes on.
    Going(Box<Training>),
}

/// A run's result, as it was written; what can be worked out again is.
#[derive(Deserialize)]
struct Written {
    updates: u64,
    of: u64,
    unit: String,
    before: Option<Judgement>,
    after: Option<Judgement>,
    blanked: Option<Judgement>,
    best: Option<(u64, f64)>,
    seconds: f64,
}

/// What came of a run of this recipe, where all of it is done and the last weights are whole.
pub(super) fn finished(recipe: &Recipe, setting: &Setting, run: &RunDir) -> Result<Option<Outcome>> {
    let text = std::fs::read(run.path().join("result.json")).unwrap_or_default();
    let Ok(written) = serde_json::from_slice::<Written>(&text) else { return Ok(None) };
    let Written { updates, of, unit, before, after, blanked, best, seconds } = written;
    let whole = updates == of && of == recipe.optim.updates && after.is_some() && blanked.is_some();
    if !whole || !run.is_at(updates) {
        return Ok(None);
    }
    let ceilings = ceilings(recipe, setting)?;
    Ok(Some(Outcome { updates, of, unit, before, after, blanked, ceilings, best, seconds }))
}
