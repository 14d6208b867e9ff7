//! Sweep cells: single runs or evaluations, and the state of their folders.
//!
//! `cell.json` in the folder of a cell records its command. A result is valid only if the command is still that of the
//! sweep and the evaluated policy has the same weights. The folder of an outdated result is archived, never deleted.

use super::CellWork;
use crate::{Error, Result, run_dir};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Description of a sweep cell, stored as `cell.json` next to its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellInfo {
    /// The environment's name in the sweep.
    pub env: String,
    /// The method's name in tables.
    pub method: String,
    /// The changed setting, in ablations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ablation: Option<String>,
    /// The policy: a small trained model, a model by name, or a scripted agent.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// The cell's command line.
    pub command: Vec<String>,
}

/// A training run or an evaluation of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepCell {
    /// Folder, relative to that of the sweep.
    pub id: String,
    /// Description, with the command.
    pub info: CellInfo,
    /// Kind of work.
    pub work: CellWork,
}

/// Content of `cell.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CellManifest {
    #[serde(flatten)]
    info: CellInfo,
    /// Hash of the evaluated weights, if a cell trained them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights: Option<String>,
}

/// The score of a finished cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CellScore {
    /// Mean score of the last episode after training.
    Score(f64),
    /// Fraction of tasks won within all episodes.
    PassAtK(f64),
}

/// Run directory in a training cell.
pub const RUN: &str = "run";
/// Folder of archived results.
pub const REPLACED: &str = "replaced";
/// Policy of a cell that waits for an endpoint.
pub(super) const ANY_ENDPOINT: &str = "endpoint";
const SUMMARY: &str = "summary.json";
const MANIFEST: &str = "cell.json";

impl SweepCell {
    /// The folder of the cell.
    pub fn folder(&self, sweep: &Path) -> PathBuf {
        sweep.join(&self.id)
    }

    /// The result file; it exists once the cell is finished.
    pub fn result(&self, sweep: &Path) -> PathBuf {
        match self.work {
            CellWork::Train { .. } => self.folder(sweep).join(RUN).join("result.json"),
            _ => self.folder(sweep).join(SUMMARY),
        }
    }

    /// Whether the cell is finished with its current command.
    pub fn finished(&self, sweep: &Path) -> bool {
        self.result(sweep).exists() && self.changed(sweep).is_none()
    }

    /// The score in the result; `None` without a readable result.
    pub fn score(&self, sweep: &Path) -> Option<CellScore> {
        let result: serde_json::Value = serde_json::from_slice(&fs::read(self.result(sweep)).ok()?).ok()?;
        match self.work {
            CellWork::Train { .. } => {
                result["after"]["score"].as_array()?.last()?["mean"].as_f64().map(CellScore::Score)
            }
            _ => {
                let episodes = result["policies"][0]["summary"]["overall"]["by_episode"].as_array()?;
                episodes.last()?["pass_at_k"]["rate"].as_f64().map(CellScore::PassAtK)
            }
        }
    }

    /// Why the content of the folder is outdated; `None` if it is up to date or absent.
    pub fn changed(&self, sweep: &Path) -> Option<String> {
        let folder = self.folder(sweep);
        if !folder.exists() {
            return None;
        }
        let stored: Option<CellManifest> =
            fs::read(folder.join(MANIFEST)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let Some(stored) = stored else {
            // Without a result, the cell was stopped before it was claimed.
            return self.result(sweep).exists().then(|| format!("{MANIFEST} is missing or damaged"));
        };
        let (stored_info, info) = (&stored.info, &self.info);
        // Without an endpoint in the command, the result of any model is valid.
        let any_model = self.work == CellWork::Prompt && info.policy == ANY_ENDPOINT;
        let (command, policy) = match any_model && stored_info.command.starts_with(&info.command) {
            true => (&info.command, &info.policy),
            false => (&stored_info.command, &stored_info.policy),
        };
        if command != &info.command {
            return Some(difference(command, &info.command));
        }
        let expected = CellInfo { command: command.clone(), policy: policy.clone(), ..stored_info.clone() };
        if expected != *info {
            return Some("its description changed".to_owned());
        }
        match (self.weights(sweep), stored.weights) {
            (Some(_), None) => Some("the evaluated weights were not recorded".to_owned()),
            (Some(now), Some(then)) if now != then => Some("the policy was trained again".to_owned()),
            _ => None,
        }
    }

    /// Hash of the weights to evaluate, if they exist.
    fn weights(&self, sweep: &Path) -> Option<String> {
        let CellWork::Policy { trained_by } = &self.work else { return None };
        run_dir::checkpoint_hash(&sweep.join(trained_by).join(RUN)).ok()
    }

    /// Moves the folder of the cell to the archive and returns its new path.
    pub fn archive(&self, sweep: &Path) -> Result<PathBuf> {
        archive(&self.id, sweep)
    }

    /// Writes `cell.json`. A folder with an outdated result is an error.
    pub fn claim(&self, sweep: &Path) -> Result<()> {
        let folder = self.folder(sweep);
        if let Some(change) = self.changed(sweep) {
            let problem = format!("the folder has an outdated result ({change}); archive it first");
            return Err(Error::Run { path: folder, problem });
        }
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        run_dir::write_json(
            &folder.join(MANIFEST),
            &CellManifest { info: self.info.clone(), weights: self.weights(sweep) },
        )
    }
}

/// Moves the folder of a cell to the archive of the sweep and returns its new path.
pub fn archive(id: &str, sweep: &Path) -> Result<PathBuf> {
    let numbered = |n: u32| sweep.join(REPLACED).join(format!("{id}.{n}"));
    let free = (1..).map(numbered).find(|p| !p.exists()).expect("infinite range");
    let parent = free.parent().unwrap_or(sweep);
    fs::create_dir_all(parent).map_err(Error::io(parent))?;
    let folder = sweep.join(id);
    fs::rename(&folder, &free).map_err(Error::io(&folder))?;
    Ok(free)
}

/// Cells in the folder of a sweep that are no longer part of it. Reports must not include them.
pub fn orphaned(sweep: &Path, cells: &[SweepCell]) -> Vec<String> {
    let folders = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
        entries.filter(|p| p.is_dir()).collect()
    };
    // The folder of a cell is ENVIRONMENT/CELL.
    let envs = folders(sweep).into_iter().filter(|w| w.file_name().is_some_and(|n| n != REPLACED));
    let claimed = envs.flat_map(|w| folders(&w)).filter(|cell| cell.join(MANIFEST).exists());
    let ids = claimed.filter_map(|cell| Some(cell.strip_prefix(sweep).ok()?.to_str()?.replace('\\', "/")));
    let mut orphans: Vec<String> = ids.filter(|id| cells.iter().all(|c| c.id != *id)).collect();
    orphans.sort();
    orphans
}

/// Number of archived results below a folder.
pub fn count_archived(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    entries.filter(|p| p.is_dir()).map(|p| if p.join(MANIFEST).exists() { 1 } else { count_archived(&p) }).sum()
}

/// The options in which two commands differ.
fn difference(old: &[String], new: &[String]) -> String {
    let options = |command: &[String]| -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for word in command {
            match all.last_mut() {
                Some(option) if option.starts_with("--") && !option.contains(' ') && !word.starts_with("--") => {
                    *option += &format!(" {word}");
                }
                _ => all.push(word.clone()),
            }
        }
        all
    };
    let (old, new) = (options(old), options(new));
    let only = |of: &[String], other: &[String]| {
        let all: Vec<&str> = of.iter().filter(|o| !other.contains(o)).map(String::as_str).collect();
        if all.is_empty() { "nothing".to_owned() } else { all.join(" ") }
    };
    format!("{} before, {} now", only(&old, &new), only(&new, &old))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(work: CellWork, command: &[&str]) -> SweepCell {
        let info = CellInfo {
            env: "kuhn".to_owned(),
            method: "m".to_owned(),
            ablation: None,
            policy: if work == CellWork::Prompt { ANY_ENDPOINT } else { "scripted" }.to_owned(),
            seed: 0,
            command: command.iter().map(|c| (*c).to_owned()).collect(),
        };
        SweepCell { id: "kuhn/m-on-kuhn".to_owned(), info, work }
    }

    fn finish(cell: &SweepCell, sweep: &Path) {
        cell.claim(sweep).unwrap();
        fs::write(cell.result(sweep), "{}").unwrap();
    }

    #[test]
    fn orphaned_cells_are_found_and_archived() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, orphan) = (
            cell(CellWork::Scripted, &["eval"]),
            SweepCell { id: "kuhn/n-1".to_owned(), ..cell(CellWork::Scripted, &["eval"]) },
        );
        for one in [&kept, &orphan] {
            finish(one, dir.path());
        }
        fs::create_dir_all(dir.path().join("kuhn/no cell")).unwrap();
        assert_eq!(orphaned(dir.path(), &[kept.clone(), orphan.clone()]), Vec::<String>::new());
        assert_eq!(orphaned(dir.path(), std::slice::from_ref(&kept)), ["kuhn/n-1"]);
        let archived = archive("kuhn/n-1", dir.path()).unwrap();
        assert!(archived.join(MANIFEST).exists() && !orphan.folder(dir.path()).exists());
        assert!(orphaned(dir.path(), &[kept]).is_empty());
    }

    #[test]
    fn a_result_of_another_command_is_outdated() {
        let dir = tempfile::tempdir().unwrap();
        let old = cell(CellWork::Scripted, &["eval", "--tasks", "8", "--early-stop"]);
        assert!(!old.finished(dir.path()) && old.changed(dir.path()).is_none());
        finish(&old, dir.path());
        assert!(old.finished(dir.path()));
        old.claim(dir.path()).unwrap();
        let new = cell(CellWork::Scripted, &["eval", "--tasks", "16", "--early-stop"]);
        assert!(!new.finished(dir.path()));
        assert_eq!(new.changed(dir.path()).unwrap(), "--tasks 8 before, --tasks 16 now");
        assert!(new.claim(dir.path()).unwrap_err().to_string().contains("--tasks 16"));
        let archived = new.archive(dir.path()).unwrap();
        assert!(archived.join(SUMMARY).exists() && !old.folder(dir.path()).exists(), "nothing is deleted");
        finish(&new, dir.path());
        let second = old.archive(dir.path()).unwrap();
        assert_ne!(second, archived);
        assert_eq!(count_archived(&dir.path().join(REPLACED)), 2);
        // A result without a manifest.
        finish(&new, dir.path());
        fs::remove_file(new.folder(dir.path()).join(MANIFEST)).unwrap();
        assert!(!new.finished(dir.path()) && new.changed(dir.path()).unwrap().contains("missing"));
    }

    #[test]
    fn without_an_endpoint_any_model_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let any = cell(CellWork::Prompt, &["eval", "--tasks", "8"]);
        let by = |model: &str| {
            let mut cell = cell(CellWork::Prompt, &["eval", "--tasks", "8", "--model", model]);
            model.clone_into(&mut cell.info.policy);
            cell
        };
        finish(&by("small"), dir.path());
        assert!(any.finished(dir.path()) && by("small").finished(dir.path()));
        assert_eq!(by("large").changed(dir.path()).unwrap(), "--model small before, --model large now");
        assert!(!cell(CellWork::Prompt, &["eval", "--tasks", "9"]).finished(dir.path()));
    }

    #[test]
    fn a_retrained_policy_makes_its_evaluation_outdated() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("kuhn/MAGE-0").join(RUN).join("checkpoints/000001");
        fs::create_dir_all(&model).unwrap();
        let train = |hash: &str| {
            let manifest = format!("{{\"model.safetensors\": \"{hash}\", \"progress.json\": \"{hash}x\"}}");
            fs::write(model.join("manifest.json"), manifest).unwrap();
        };
        train("a");
        let cell = cell(CellWork::Policy { trained_by: "kuhn/MAGE-0".to_owned() }, &["eval", "--tasks", "8"]);
        finish(&cell, dir.path());
        assert!(cell.finished(dir.path()));
        train("b");
        assert!(!cell.finished(dir.path()) && cell.changed(dir.path()).unwrap().contains("trained again"));
    }
}
