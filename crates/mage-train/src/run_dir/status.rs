//! Status of a run, read without opening it: lock, log, best checkpoint and time.
//!
//! The run may be in progress in another process. Lines that are incomplete or damaged are skipped.

use super::RunDir;
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

/// Content of `best.json`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct BestCheckpoint {
    /// Updates done.
    pub update: u64,
    /// Score of the last episode, if finite.
    pub score: Option<f64>,
}

/// The best checkpoint of a run, if one was evaluated.
pub fn best(run: &Path) -> Result<Option<BestCheckpoint>> {
    let file = run.join("best.json");
    let text = match fs::read(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(&file)(e)),
    };
    let best = serde_json::from_slice(&text);
    best.map(Some).map_err(|e| Error::Run { path: file, problem: format!("invalid JSON ({e})") })
}

/// Whether a process trains the run.
pub fn is_running(run: &Path) -> bool {
    // A shared lock, so that commands that read the status at the same time do not take each other for a trainer.
    let locked = |lock: File| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock));
    File::open(run.join("lock")).is_ok_and(locked)
}

/// The error that ended the last attempt, if it failed.
pub fn failure(run: &Path) -> Option<String> {
    let last = json_lines(logs(run).last()?).pop()?;
    (last["event"] == "failed").then(|| last["error"].as_str().unwrap_or_default().to_owned())
}

/// Memoryless and Bayes-adaptive optimum of the last episode as logged at the start, if computable.
pub fn last_episode_optima(run: &Path) -> Option<(f64, f64)> {
    let events = json_lines(logs(run).last()?);
    let started = events.iter().find(|e| e["event"] == "started")?;
    let last = |key: &str| started[key].as_array()?.last()?.as_f64();
    last("memoryless").zip(last("bayes_adaptive"))
}

/// Seconds spent on updates, including those that were repeated after an interruption.
pub fn update_seconds(run: &Path) -> f64 {
    json_lines(&run.join("timing.jsonl"))
        .iter()
        .filter_map(|line| line["total"].as_f64())
        .fold(0.0, |sum, seconds| sum + seconds)
}

/// Updates after which a checkpoint was saved, whether or not it still exists.
pub(super) fn saved_updates(run: &Path) -> Vec<u64> {
    let events = logs(run).into_iter().flat_map(|log| json_lines(&log));
    events.filter(|e| e["event"] == "saved").filter_map(|e| e["update"].as_u64()).collect()
}

/// The log files of all attempts, in order.
fn logs(run: &Path) -> Vec<PathBuf> {
    let log = |n: u32| run.join(format!("logs/attempt-{n}.log"));
    let written = |log: &PathBuf| fs::metadata(log).is_ok_and(|m| m.len() > 0);
    (1..).map(log).take_while(written).collect()
}

fn json_lines(file: &Path) -> Vec<Value> {
    let text = fs::read(file).unwrap_or_default();
    text.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

impl RunDir {
    /// Logs the error that ends this attempt.
    pub(crate) fn log_failure(&mut self, error: &Error) {
        self.log(&serde_json::json!({ "event": "failed", "error": error.to_string() }).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn lock_log_and_time_tell_the_status_of_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let population = mage_env::Registry::builtin().get("kuhn").unwrap().default_population();
        let mut run = RunDir::create(&path, &Recipe::default(), &population).unwrap();
        assert!(is_running(&path) && failure(&path).is_none() && best(&path).unwrap().is_none());
        run.log("{\"event\":\"started\",\"memoryless\":[0.0,0.1],\"bayes_adaptive\":[0.0,0.4]}");
        assert_eq!(last_episode_optima(&path), Some((0.1, 0.4)));
        for total in [1.5, 2.0] {
            run.append_timing(&[("total".to_owned(), total)].into()).unwrap();
        }
        assert_eq!(update_seconds(&path), 3.5);
        run.log_failure(&Error::Stopped("out of luck".to_owned()));
        run.write_best(3, f64::NAN).unwrap();
        drop(run);
        assert!(!is_running(&path));
        assert_eq!(failure(&path).as_deref(), Some("out of luck"));
        assert_eq!(best(&path).unwrap(), Some(BestCheckpoint { update: 3, score: None }));
        // The next attempt has not failed.
        RunDir::open(&path).unwrap().log("{\"event\":\"started\",\"memoryless\":null}");
        assert_eq!((failure(&path), last_episode_optima(&path)), (None, None));
        fs::write(path.join("best.json"), "half").unwrap();
        assert!(best(&path).unwrap_err().to_string().contains("invalid JSON"));
    }
}
