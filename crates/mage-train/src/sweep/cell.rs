//! What has become of one thing to be done?
//!
//! A cell's folder says in `cell.json` what it was begun with. A result counts as finished only while that is what the sweep
//! still asks for, and while the policy that played is the one that is there: a result of another command, or of other weights,
//! is an answer to another question. Such a folder is put aside, never thrown away.

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
    pub player: String,
    /// The seed.
    pub seed: u64,
    /// The cell's command line.
    pub command: Vec<String>,
}

/// One thing to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepCell {
    /// Its folder within the sweep's.
    pub id: String,
    /// What it is about, the command included.
    pub about: CellInfo,
    /// What is to be done.
    pub work: CellWork,
}

/// What a cell was begun with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    #[serde(flatten)]
    about: CellInfo,
    /// The hash of the weights that play, where a policy was trained before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights: Option<String>,
}

/// The run directory within a cell that trains.
pub const RUN: &str = "run";
/// Where results are put aside that are no longer asked for.
pub const REPLACED: &str = "replaced";
/// Whom a cell names that waits for an endpoint.
pub(super) const NOBODY: &str = "endpoint";
const SUMMARY: &str = "summary.json";
const CLAIM: &str = "cell.json";

impl SweepCell {
    /// Its folder in the folder of the sweep.
    pub fn folder(&self, sweep: &Path) -> PathBuf {
        sweep.join(&self.id)
    }

    /// The file that is there when it is finished.
    pub fn result(&self, sweep: &Path) -> PathBuf {
        match self.work {
            CellWork::Train { .. } => self.folder(sweep).join(RUN).join("result.json"),
            _ => self.folder(sweep).join(SUMMARY),
        }
    }

    /// Whether it is finished, with what is asked for now.
    pub fn finished(&self, sweep: &Path) -> bool {
        self.result(sweep).exists() && self.changed(sweep).is_none()
    }

    /// What is different about what is in its folder; nothing where that is what is asked for, or where it is not begun.
    pub fn changed(&self, sweep: &Path) -> Option<String> {
        let folder = self.folder(sweep);
        if !folder.exists() {
            return None;
        }
        let there: Option<Claim> =
            fs::read(folder.join(CLAIM)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let Some(there) = there else {
            // Stopped before it was even claimed: nothing is lost by going on.
            return self.result(sweep).exists().then(|| format!("{CLAIM} is missing or damaged"));
        };
        let (about, asked) = (&there.about, &self.about);
        // Without an endpoint nobody says who should have answered: whoever did is as good as any.
        let anybody = self.work == CellWork::Prompt && asked.player == NOBODY;
        let (command, player) = match anybody && about.command.starts_with(&asked.command) {
            true => (&asked.command, &asked.player),
            false => (&about.command, &about.player),
        };
        if command != &asked.command {
            return Some(difference(command, &asked.command));
        }
        let known = CellInfo { command: command.clone(), player: player.clone(), ..about.clone() };
        if known != *asked {
            return Some("it is called something else now".to_owned());
        }
        match (self.weights(sweep), there.weights) {
            (Some(_), None) => Some("nobody wrote down which weights played".to_owned()),
            (Some(now), Some(then)) if now != then => Some("the policy was trained again".to_owned()),
            _ => None,
        }
    }

    /// The weights that play, where they are there.
    fn weights(&self, sweep: &Path) -> Option<String> {
        let CellWork::Policy { of } = &self.work else { return None };
        run_dir::weights(&sweep.join(of).join(RUN)).ok()
    }

    /// Moves what is in its folder out of the way, under the sweep's folder `replaced`, and says where to.
    pub fn put_aside(&self, sweep: &Path) -> Result<PathBuf> {
        put_aside(&self.id, sweep)
    }

    /// Claims its folder, or finds that it is this cell's already. What was begun with something else is refused.
    pub fn claim(&self, sweep: &Path) -> Result<()> {
        let folder = self.folder(sweep);
        if let Some(what) = self.changed(sweep) {
            let problem = format!("it was begun with something else ({what}); put it aside first");
            return Err(Error::Run { path: folder, problem });
        }
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        run_dir::write_json(&folder.join(CLAIM), &Claim { about: self.about.clone(), weights: self.weights(sweep) })
    }
}

/// Moves the cell of this id out of the way, under the sweep's folder `replaced`, and says where to.
pub fn put_aside(id: &str, sweep: &Path) -> Result<PathBuf> {
    let place = |n: u32| sweep.join(REPLACED).join(format!("{id}.{n}"));
    let free = (1..).map(place).find(|p| !p.exists()).expect("numbers do not end");
    let above = free.parent().unwrap_or(sweep);
    fs::create_dir_all(above).map_err(Error::io(above))?;
    let folder = sweep.join(id);
    fs::rename(&folder, &free).map_err(Error::io(&folder))?;
    Ok(free)
}

/// Ids of cells in a sweep's folder that it has no longer: a report must not count them among the others.
pub fn forgotten(sweep: &Path, cells: &[SweepCell]) -> Vec<String> {
    let folders = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
        entries.filter(|p| p.is_dir()).collect()
    };
    // A cell's folder is that of its world and itself.
    let worlds = folders(sweep).into_iter().filter(|w| w.file_name().is_some_and(|n| n != REPLACED));
    let claimed = worlds.flat_map(|w| folders(&w)).filter(|cell| cell.join(CLAIM).exists());
    let ids = claimed.filter_map(|cell| Some(cell.strip_prefix(sweep).ok()?.to_str()?.replace('\\', "/")));
    let mut gone: Vec<String> = ids.filter(|id| cells.iter().all(|c| c.id != *id)).collect();
    gone.sort();
    gone
}

/// How many results were put aside in such a folder.
pub fn replaced(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    entries.filter(|p| p.is_dir()).map(|p| if p.join(CLAIM).exists() { 1 } else { replaced(&p) }).sum()
}

/// What sets two commands apart, in the words of their options.
fn difference(then: &[String], now: &[String]) -> String {
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
    let (then, now) = (options(then), options(now));
    let only = |of: &[String], other: &[String]| {
        let all: Vec<&str> = of.iter().filter(|o| !other.contains(o)).map(String::as_str).collect();
        if all.is_empty() { "nothing".to_owned() } else { all.join(" ") }
    };
    format!("{} then, {} now", only(&then, &now), only(&now, &then))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(work: CellWork, command: &[&str]) -> SweepCell {
        let about = CellInfo {
            env: "kuhn".to_owned(),
            method: "m".to_owned(),
            ablation: None,
            player: if work == CellWork::Prompt { NOBODY } else { "rule" }.to_owned(),
            seed: 0,
            command: command.iter().map(|c| (*c).to_owned()).collect(),
        };
        SweepCell { id: "kuhn/m-on-kuhn".to_owned(), about, work }
    }

    fn finish(cell: &SweepCell, sweep: &Path) {
        cell.claim(sweep).unwrap();
        fs::write(cell.result(sweep), "{}").unwrap();
    }

    #[test]
    fn a_cell_that_the_sweep_has_no_longer_is_known_and_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, gone) = (
            cell(CellWork::Scripted, &["eval"]),
            SweepCell { id: "kuhn/n-1".to_owned(), ..cell(CellWork::Scripted, &["eval"]) },
        );
        for one in [&kept, &gone] {
            finish(one, dir.path());
        }
        fs::create_dir_all(dir.path().join("kuhn/no cell")).unwrap();
        assert_eq!(forgotten(dir.path(), &[kept.clone(), gone.clone()]), Vec::<String>::new());
        assert_eq!(forgotten(dir.path(), std::slice::from_ref(&kept)), ["kuhn/n-1"]);
        let aside = put_aside("kuhn/n-1", dir.path()).unwrap();
        assert!(aside.join(CLAIM).exists() && !gone.folder(dir.path()).exists());
        assert!(forgotten(dir.path(), &[kept]).is_empty());
    }

    #[test]
    fn a_result_of_another_command_is_not_this_ones() {
        let dir = tempfile::tempdir().unwrap();
        let then = cell(CellWork::Scripted, &["eval", "--tasks", "8", "--early-stop"]);
        assert!(!then.finished(dir.path()) && then.changed(dir.path()).is_none());
        finish(&then, dir.path());
        assert!(then.finished(dir.path()));
        then.claim(dir.path()).unwrap();
        let now = cell(CellWork::Scripted, &["eval", "--tasks", "16", "--early-stop"]);
        assert!(!now.finished(dir.path()));
        assert_eq!(now.changed(dir.path()).unwrap(), "--tasks 8 then, --tasks 16 now");
        assert!(now.claim(dir.path()).unwrap_err().to_string().contains("--tasks 16"));
        let aside = now.put_aside(dir.path()).unwrap();
        assert!(aside.join(SUMMARY).exists() && !then.folder(dir.path()).exists(), "nothing is thrown away");
        finish(&now, dir.path());
        let again = then.put_aside(dir.path()).unwrap();
        assert_ne!(again, aside);
        assert_eq!(replaced(&dir.path().join(REPLACED)), 2);
        // A result whose command nobody knows.
        finish(&now, dir.path());
        fs::remove_file(now.folder(dir.path()).join(CLAIM)).unwrap();
        assert!(!now.finished(dir.path()) && now.changed(dir.path()).unwrap().contains("missing"));
    }

    #[test]
    fn without_an_endpoint_whoever_answered_will_do() {
        let dir = tempfile::tempdir().unwrap();
        let asked = cell(CellWork::Prompt, &["eval", "--tasks", "8"]);
        let by = |model: &str| {
            let mut cell = cell(CellWork::Prompt, &["eval", "--tasks", "8", "--model", model]);
            model.clone_into(&mut cell.about.player);
            cell
        };
        finish(&by("small"), dir.path());
        assert!(asked.finished(dir.path()) && by("small").finished(dir.path()));
        assert_eq!(by("large").changed(dir.path()).unwrap(), "--model small then, --model large now");
        assert!(!cell(CellWork::Prompt, &["eval", "--tasks", "9"]).finished(dir.path()));
    }

    #[test]
    fn a_policy_trained_again_has_not_been_measured() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("kuhn/MAGE-0").join(RUN).join("checkpoints/000001");
        fs::create_dir_all(&model).unwrap();
        let train = |hash: &str| {
            let manifest = format!("{{\"model.safetensors\": \"{hash}\", \"progress.json\": \"{hash}x\"}}");
            fs::write(model.join("manifest.json"), manifest).unwrap();
        };
        train("a");
        let cell = cell(CellWork::Policy { of: "kuhn/MAGE-0".to_owned() }, &["eval", "--tasks", "8"]);
        finish(&cell, dir.path());
        assert!(cell.finished(dir.path()));
        train("b");
        assert!(!cell.finished(dir.path()) && cell.changed(dir.path()).unwrap().contains("trained again"));
    }
}
