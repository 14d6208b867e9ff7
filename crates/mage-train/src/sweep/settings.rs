//! Overrides of a sweep on the command line.

use super::Sweep;
use crate::{Error, Result};
use mage_env::from_toml;
use serde::Deserialize;

/// Keys of the sweep itself that can be overridden.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepSettings {
    tasks: Option<u64>,
    episodes: Option<u32>,
    early_stop: Option<bool>,
    seeds: Option<Vec<u64>>,
}

impl Sweep {
    /// Keys that [`Sweep::apply`] sets in the sweep; others are keys of its recipes.
    pub const KEYS: [&str; 4] = ["tasks", "episodes", "early_stop", "seeds"];

    /// Applies overrides `KEY=VALUE` of the sweep, or of all its recipes.
    pub fn apply(&mut self, settings: &[String]) -> Result<()> {
        for setting in settings {
            let wrong = |problem: String| Error::Recipe { location: setting.clone(), problem };
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| wrong("an override has the form key=value, for example tasks=16".to_owned()))?;
            let (key, value) = (key.trim(), value.trim());
            if key == "seed" {
                return Err(wrong("a sweep has several seeds; set `seeds`, for example seeds=[0]".to_owned()));
            }
            if !Self::KEYS.contains(&key) {
                self.overrides.push(setting.clone());
                continue;
            }
            let set: SweepSettings = from_toml(&format!("{key} = {value}")).map_err(|e| wrong(e.problem))?;
            self.tasks = set.tasks.unwrap_or(self.tasks);
            self.episodes = set.episodes.unwrap_or(self.episodes);
            self.early_stop = set.early_stop.unwrap_or(self.early_stop);
            self.seeds = set.seeds.unwrap_or_else(|| std::mem::take(&mut self.seeds));
            self.check(setting)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::CellWork;

    #[test]
    fn settings_change_the_sweep_or_all_recipes() {
        let mut sweep = Sweep::find("ablation-anchor").unwrap();
        let settings = ["tasks=16", "seeds = [3]", "early_stop=false", "optim.updates=5"].map(str::to_owned);
        sweep.apply(&settings).unwrap();
        assert_eq!((sweep.tasks, &sweep.seeds[..], sweep.early_stop), (16, &[3][..], false));
        for cell in sweep.cells() {
            let CellWork::Train { set, .. } = &cell.work else { continue };
            let at = |text: &str| set.iter().position(|s| s == text).unwrap_or_else(|| panic!("{text} in {set:?}"));
            assert!(at("optim.updates=120") < at("optim.updates=5") && at("optim.updates=5") < at("seed=3"));
            let ablation = set.iter().position(|s| s.starts_with("method.")).unwrap_or(usize::MAX);
            assert!(at("optim.updates=5") < ablation, "ablations are applied last: {set:?}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_by_their_text() {
        let err = |setting: &str| {
            let mut sweep = Sweep::find("table1").unwrap();
            sweep.apply(&[setting.to_owned()]).unwrap_err().to_string()
        };
        assert_eq!(
            err("tasks=many"),
            "tasks=many: string values must be quoted, expected literal string, in `tasks = many`"
        );
        assert!(err("tasks=\"many\"").contains("`tasks` must be a whole number of at least 0, not the text"));
        assert!(err("seeds=3").contains("`seeds` must be a list, not the number 3"));
        assert!(err("seeds=[]").contains("must not be empty"));
        assert!(err("episodes=1000000000").contains("at most 1000"));
        assert!(err("seed=3").contains("seeds=[0]"));
        assert!(err("tasks").contains("key=value"));
    }
}
