//! Run directories: recipe, metrics, checkpoints and trajectories of a run.
//!
//! One process at a time writes a run directory, and files are never overwritten in place. `metrics.jsonl` and the
//! TensorBoard file are append-only and are truncated to the last checkpoint on resume, so that an interrupted run ends
//! with the same bytes as an uninterrupted one. A checkpoint becomes visible by a rename, after its files and hashes
//! are written.

mod address;
mod status;
pub mod tensorboard;

pub use address::ModelAddress;
use status::saved_updates;
pub use status::{BestCheckpoint, best, failure, is_running, last_episode_optima, update_seconds};

use crate::{Error, Result, recipe::Recipe};
use mage_core::Trajectory;
use mage_env::{Hash, Population};
use mage_native::sync_folder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A run directory, locked by this process.
pub struct RunDir {
    path: PathBuf,
    _lock: File,
    metrics: AppendOnlyFile,
    tensorboard: AppendOnlyFile,
    timing: File,
    /// Created with its first line: an attempt that has nothing to do leaves no log.
    log: Option<File>,
    attempt: u32,
}

/// State of a run at a checkpoint, apart from the weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainProgress {
    /// Updates done.
    pub update: u64,
    /// Optimiser steps done in updates.
    pub steps: u64,
    /// Episodes sampled.
    pub episodes: u64,
    /// Update and score of the best evaluation.
    pub best: Option<(u64, f64)>,
    /// Length of `metrics.jsonl`.
    pub metrics_bytes: u64,
    /// Length of the TensorBoard file.
    pub tensorboard_bytes: u64,
    /// Evaluation after the warm start.
    pub before: Option<crate::eval::EvalResult>,
    /// Hash of the recipe and the population that the run used ([`recipe_hash`](crate::train::recipe_hash)).
    pub recipe: Option<Hash>,
}

/// Program, engine and machine of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunInfo {
    /// Version of the program.
    pub version: String,
    /// Commit of the build, if known.
    pub commit: Option<String>,
    /// Seed of the recipe.
    pub seed: u64,
    /// Name of the engine.
    pub engine: String,
    /// Device.
    pub device: String,
    /// Number of CPU threads.
    pub threads: usize,
    /// Operating system and processor architecture.
    pub platform: String,
    /// Number of model parameters.
    pub parameters: usize,
    /// Hash of the recipe and the population of this attempt.
    pub recipe: Hash,
}

/// An append-only file that is truncated on resume.
struct AppendOnlyFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl AppendOnlyFile {
    fn open(path: PathBuf) -> Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io(&path))?;
        let length = file.seek(SeekFrom::End(0)).map_err(Error::io(&path))?;
        Ok(AppendOnlyFile { path, file, length })
    }

    /// Appends bytes and syncs them to disk. If the write fails, the file is restored.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            let _ = self.truncate(self.length);
            return Err(Error::io(&self.path)(e));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> Result<()> {
        self.file.set_len(length).map_err(Error::io(&self.path))?;
        self.file.seek(SeekFrom::Start(length)).map_err(Error::io(&self.path))?;
        self.length = length;
        Ok(())
    }
}

const RECIPE: &str = "recipe.resolved.toml";
const POPULATION: &str = "population.toml";

fn write_population(run: &Path, population: &Population) -> Result<()> {
    let text = toml::to_string(population).map_err(|e| Error::Stopped(e.to_string()))?;
    write_atomic(&run.join(POPULATION), text.as_bytes())
}

impl RunDir {
    /// Creates a run. The directory must be empty or not exist. It is locked before anything is written, so that of
    /// several processes one creates the run.
    pub fn create(path: &Path, recipe: &Recipe, population: &Population) -> Result<Self> {
        let taken = || Error::NotEmpty { path: path.to_owned() };
        // Before the lock file is created.
        if path.exists() && !is_blank(path)? {
            return Err(taken());
        }
        fs::create_dir_all(path).map_err(Error::io(path))?;
        let lock = lock(path)?;
        // Another process may have created a run and ended.
        if !is_blank(path)? {
            return Err(taken());
        }
        for folder in FOLDERS {
            let folder = path.join(folder);
            fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        }
        write_population(path, population)?;
        write_atomic(&path.join(RECIPE), recipe.to_toml().as_bytes())?;
        Self::open_locked(path, lock)
    }

    /// Creates a run in the first of these directories that is free.
    pub fn create_first(
        paths: impl IntoIterator<Item = PathBuf>,
        recipe: &Recipe,
        population: &Population,
    ) -> Result<Self> {
        let mut taken = None;
        for path in paths {
            match Self::create(&path, recipe, population) {
                Err(e @ (Error::NotEmpty { .. } | Error::InUse { .. })) => taken = Some(e),
                created => return created,
            }
        }
        Err(taken.unwrap_or_else(|| Error::Stopped("no directory for the run".to_owned())))
    }

    /// Whether a folder is a run directory.
    pub fn is_run(path: &Path) -> bool {
        path.join(RECIPE).exists()
    }

    /// The recipe of a run.
    pub fn recipe(path: &Path) -> Result<Recipe> {
        let file = path.join(RECIPE);
        if !file.exists() {
            let problem = format!("not a run directory: {RECIPE} is missing");
            return Err(Error::Run { path: path.to_owned(), problem });
        }
        let text = fs::read_to_string(&file).map_err(Error::io(&file))?;
        let mut composer = crate::recipe::Composer::new();
        composer.add_text(&text, &file.display().to_string())?;
        let recipe = composer.finish()?;
        // A truncated file would continue with defaults.
        match missing_key(&recipe.to_toml(), &text) {
            None => Ok(recipe),
            Some(key) => {
                let problem =
                    format!("the key `{key}` is missing: the file is incomplete; restore it, or start a new run");
                Err(Error::Run { path: file, problem })
            }
        }
    }

    /// The population of a run.
    pub fn population(path: &Path) -> Result<Population> {
        Ok(Population::from_file(&path.join(POPULATION))?)
    }

    /// Replaces the recipe and the population of a run.
    pub fn replace_recipe(&self, recipe: &Recipe, population: &Population) -> Result<()> {
        write_population(&self.path, population)?;
        write_atomic(&self.path.join(RECIPE), recipe.to_toml().as_bytes())
    }

    /// Opens and locks a run.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_locked(path, lock(path)?)
    }

    fn open_locked(path: &Path, lock: File) -> Result<Self> {
        let append = |name: &str| {
            let file = path.join(name);
            OpenOptions::new().create(true).append(true).open(&file).map_err(Error::io(&file))
        };
        // An attempt with an empty log does not count.
        let unused =
            |n: &u32| fs::metadata(path.join(format!("logs/attempt-{n}.log"))).map_or(true, |log| log.len() == 0);
        let attempt = (1..).find(unused).unwrap_or(1);
        Ok(RunDir {
            metrics: AppendOnlyFile::open(path.join("metrics.jsonl"))?,
            tensorboard: AppendOnlyFile::open(path.join("tensorboard/events.out.tfevents.0000000000.mage"))?,
            timing: append("timing.jsonl")?,
            log: None,
            path: path.to_owned(),
            _lock: lock,
            attempt,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Program, engine and machine of the last attempt, if known.
    pub fn info(&self) -> Option<RunInfo> {
        serde_json::from_slice(&fs::read(self.path.join("run.json")).ok()?).ok()
    }

    /// Writes `run.json`.
    pub fn write_info(&self, info: &RunInfo) -> Result<()> {
        write_json(&self.path.join("run.json"), info)
    }

    /// Writes `result.json`.
    pub fn write_result<T: Serialize>(&self, value: &T) -> Result<()> {
        write_json(&self.path.join("result.json"), value)
    }

    /// Appends metrics to `metrics.jsonl` and the TensorBoard file.
    pub fn append_metrics(&mut self, step: u64, line: &BTreeMap<String, f64>) -> Result<()> {
        let text = serde_json::to_string(line).map_err(|e| Error::Stopped(e.to_string()))?;
        self.metrics.append(format!("{text}\n").as_bytes())?;
        let scalars: Vec<(&str, f64)> =
            line.iter().filter(|(k, _)| *k != "update").map(|(k, v)| (k.as_str(), *v)).collect();
        let mut bytes = Vec::new();
        if self.tensorboard.length == 0 {
            bytes.extend(tensorboard::file_header(now()));
        }
        bytes.extend(tensorboard::event(now(), step, &scalars));
        self.tensorboard.append(&bytes)
    }

    /// Appends a line to `timing.jsonl`.
    pub fn append_timing(&mut self, line: &BTreeMap<String, f64>) -> Result<()> {
        let mut line = line.clone();
        line.insert("attempt".to_owned(), f64::from(self.attempt));
        let text = serde_json::to_string(&line).map_err(|e| Error::Stopped(e.to_string()))?;
        let path = self.path.join("timing.jsonl");
        writeln!(self.timing, "{text}").map_err(Error::io(&path))
    }

    /// Appends a line to the log of this attempt.
    pub fn log(&mut self, line: &str) {
        let path = self.path.join(format!("logs/attempt-{}.log", self.attempt));
        if self.log.is_none() {
            self.log = OpenOptions::new().create(true).append(true).open(path).ok();
        }
        // A failed log write must not stop the run.
        if let Some(log) = &mut self.log {
            let _ = writeln!(log, "{line}");
        }
    }

    /// Writes trajectories of an update with their training samples.
    pub fn write_trajectories<'r>(
        &self,
        update: u64,
        trajectories: impl Iterator<Item = (&'r Trajectory, serde_json::Value)>,
    ) -> Result<()> {
        let path = self.path.join(format!("trajectories/{update:06}.jsonl.zst"));
        let mut text = String::new();
        for (trajectory, samples) in trajectories {
            let line = serde_json::json!({ "trajectory": trajectory, "samples": samples });
            text.push_str(&line.to_string());
            text.push('\n');
        }
        let packed = compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
        write_atomic(&path, &packed)
    }

    /// Writes a checkpoint; `save` writes the weights.
    ///
    /// Order: clear `.unfinished`; write the weights and `progress.json` there; sync and hash every file; write
    /// `manifest.json`; rename the folder to the update's number; sync `checkpoints/`. The caller then writes
    /// `best.json` ([`write_best`](Self::write_best)) and removes old checkpoints ([`prune`](Self::prune)). A crash
    /// between two steps leaves the previous checkpoint complete. A complete checkpoint of the same update is kept:
    /// replacing it would leave none for a moment.
    pub fn checkpoint(&self, progress: &TrainProgress, save: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if self.is_at(progress.update) {
            return Ok(());
        }
        let folder = self.path.join("checkpoints");
        let (staging, target) = (folder.join(".unfinished"), folder.join(dir_name(progress.update)));
        self.remove_unfinished()?;
        fs::create_dir_all(&staging).map_err(Error::io(&staging))?;
        save(&staging)?;
        let progress = TrainProgress {
            metrics_bytes: self.metrics.length,
            tensorboard_bytes: self.tensorboard.length,
            ..progress.clone()
        };
        write_json(&staging.join("progress.json"), &progress)?;
        let mut hashes = BTreeMap::new();
        let (folders, files) = walk(&staging)?;
        for file in files {
            let bytes = fs::read(&file).map_err(Error::io(&file))?;
            File::open(&file).and_then(|f| f.sync_all()).map_err(Error::io(&file))?;
            let relative = file.strip_prefix(&staging).unwrap_or(&file).display().to_string();
            hashes.insert(relative, blake3::hash(&bytes).to_hex().to_string());
        }
        write_json(&staging.join(MANIFEST), &hashes)?;
        // The names of the files must survive a loss of power, too.
        folders.iter().try_for_each(|folder| sync_folder(folder).map_err(Error::io(folder)))?;
        if target.exists() {
            fs::remove_dir_all(&target).map_err(Error::io(&target))?;
        }
        fs::rename(&staging, &target).map_err(Error::io(&target))?;
        sync_folder(&folder).map_err(Error::io(&folder))
    }

    /// Writes `best.json`.
    pub fn write_best(&self, update: u64, score: f64) -> Result<()> {
        let best = serde_json::json!({ "update": update, "score": score, "model": checkpoint_path(update) });
        write_json(&self.path.join("best.json"), &best)
    }

    /// Removes all but the last `keep` checkpoints and the best. `on_remove` is called before each removal.
    pub fn prune(&self, keep: usize, best: Option<u64>, on_remove: impl Fn(&Path)) -> Result<()> {
        let all = checkpoints(&self.path)?;
        let surplus = all.len().saturating_sub(keep);
        for update in all[..surplus].iter().filter(|u| Some(**u) != best) {
            let path = self.path.join(checkpoint_path(*update));
            on_remove(&path);
            fs::remove_dir_all(&path).map_err(Error::io(&path))?;
        }
        Ok(())
    }

    /// Removes a checkpoint that a killed process did not finish.
    pub fn remove_unfinished(&self) -> Result<()> {
        let staging = self.path.join("checkpoints/.unfinished");
        match staging.exists() {
            true => fs::remove_dir_all(&staging).map_err(Error::io(&staging)),
            false => Ok(()),
        }
    }

    /// Whether the metrics end at this checkpoint.
    pub fn ends_at(&self, progress: &TrainProgress) -> bool {
        progress.metrics_bytes == self.metrics.length
    }

    /// Whether the newest checkpoint is of this update and complete, and the metrics end there.
    pub fn is_at(&self, update: u64) -> bool {
        let newest = checkpoints(&self.path).is_ok_and(|all| all.last() == Some(&update));
        newest && verify(&self.path.join(checkpoint_path(update))).is_ok_and(|p| self.ends_at(&p))
    }

    /// The newest complete checkpoint with its state. `damaged` receives a message for each damaged newer one.
    pub fn newest(&self, mut damaged: impl FnMut(String)) -> Result<Option<(PathBuf, TrainProgress)>> {
        let mut found = None;
        let all = checkpoints(&self.path)?;
        for update in all.iter().rev() {
            let path = self.path.join(checkpoint_path(*update));
            match verify(&path) {
                Ok(progress) => {
                    found = Some((path, progress));
                    break;
                }
                // Restarting silently would discard the training so far.
                Err(e) if all.first() == Some(update) => {
                    let problem = format!("no checkpoint is complete ({e}); start a new run");
                    return Err(Error::Run { path: self.path.clone(), problem });
                }
                Err(e) => damaged(format!("{e}; resuming from an earlier checkpoint")),
            }
        }
        // The first checkpoint comes before the first line of metrics.
        if all.is_empty() && self.metrics.length > 0 {
            let problem = "the run has metrics but no checkpoint; restore its checkpoints, or start a new run";
            return Err(Error::Run { path: self.path.clone(), problem: problem.to_owned() });
        }
        if found.as_ref().is_some_and(|(_, p)| self.metrics.length < p.metrics_bytes) {
            let problem = "the file is shorter than at the checkpoint; restore it, or start a new run".to_owned();
            return Err(Error::Run { path: self.metrics.path.clone(), problem });
        }
        Ok(found)
    }

    /// Truncates `metrics.jsonl` and the TensorBoard file to their lengths at a checkpoint. `timing.jsonl`, whose lines
    /// state the attempt, and the logs, one per attempt, are not truncated.
    pub fn rewind(&mut self, to: &TrainProgress) -> Result<()> {
        self.metrics.truncate(to.metrics_bytes)?;
        self.tensorboard.truncate(to.tensorboard_bytes.min(self.tensorboard.length))
    }
}

/// Locks a run directory. The lock is released when the file is closed.
fn lock(path: &Path) -> Result<File> {
    let lock_path = path.join(LOCK);
    let lock =
        OpenOptions::new().create(true).write(true).truncate(false).open(&lock_path).map_err(Error::io(&lock_path))?;
    // `is_running` holds the lock for a moment.
    let retry = |_| {
        std::thread::sleep(Duration::from_millis(20));
        lock.try_lock()
    };
    match lock.try_lock().or_else(retry) {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(Error::InUse { path: path.to_owned() }),
        Err(fs::TryLockError::Error(e)) => Err(Error::io(&lock_path)(e)),
    }
}

/// The first key of a complete recipe that a text lacks.
fn missing_key(complete: &str, text: &str) -> Option<String> {
    fn find(complete: &toml::Table, found: &toml::Table, prefix: &str) -> Option<String> {
        complete.iter().find_map(|(key, value)| match (value, found.get(key)) {
            (_, None) => Some(format!("{prefix}{key}")),
            (toml::Value::Table(complete), Some(toml::Value::Table(found))) => {
                find(complete, found, &format!("{prefix}{key}."))
            }
            _ => None,
        })
    }
    find(&complete.parse().ok()?, &text.parse().ok()?, "")
}

const MANIFEST: &str = "manifest.json";

const LOCK: &str = "lock";

fn dir_name(update: u64) -> String {
    format!("{update:06}")
}

/// Path of a checkpoint relative to its run directory.
pub fn checkpoint_path(update: u64) -> PathBuf {
    Path::new("checkpoints").join(dir_name(update))
}

/// The checkpoints of a run, by update.
pub fn checkpoints(run: &Path) -> Result<Vec<u64>> {
    let folder = run.join("checkpoints");
    let mut found: Vec<u64> = fs::read_dir(&folder)
        .map_err(Error::io(&folder))?
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// The last checkpoint of a run.
pub fn last_model(run: &Path) -> Result<PathBuf> {
    let none = || Error::Run { path: run.to_owned(), problem: "the run has no checkpoint yet".to_owned() };
    let last = *checkpoints(run)?.last().ok_or_else(none)?;
    Ok(run.join(checkpoint_path(last)))
}

/// Hash of the weights of a run's last checkpoint, from its manifest.
pub fn checkpoint_hash(run: &Path) -> Result<String> {
    let manifest = last_model(run)?.join(MANIFEST);
    let text = fs::read(&manifest).map_err(Error::io(&manifest))?;
    let hashes: BTreeMap<String, String> = serde_json::from_slice(&text)
        .map_err(|e| Error::Run { path: manifest, problem: format!("invalid JSON ({e})") })?;
    let files =
        |weights_only: bool| hashes.iter().filter(move |(file, _)| !weights_only || file.ends_with(".safetensors"));
    // A server keeps the weights elsewhere: then all files of the checkpoint identify them.
    let all: Vec<_> = if files(true).next().is_some() { files(true).collect() } else { files(false).collect() };
    Ok(Hash::of(&all).to_string())
}

/// Compares every file with the manifest.
fn verify(path: &Path) -> Result<TrainProgress> {
    let damaged = |file: &Path, problem: &str| Error::Run { path: file.to_owned(), problem: problem.to_owned() };
    let manifest = path.join(MANIFEST);
    let text = fs::read(&manifest).map_err(Error::io(&manifest))?;
    let hashes: BTreeMap<String, String> =
        serde_json::from_slice(&text).map_err(|e| damaged(&manifest, &format!("invalid JSON ({e})")))?;
    for entry in fs::read_dir(path).map_err(Error::io(path))? {
        let name = entry.map_err(Error::io(path))?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") && !hashes.contains_key(&name) {
            return Err(damaged(&manifest, &format!("`{name}` is not listed")));
        }
    }
    for (file, hash) in &hashes {
        let file = path.join(file);
        let bytes = fs::read(&file).map_err(Error::io(&file))?;
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            return Err(damaged(&file, "the contents do not match the manifest"));
        }
    }
    let file = path.join("progress.json");
    let text = fs::read(&file).map_err(Error::io(&file))?;
    serde_json::from_slice(&text).map_err(|e| damaged(&file, &format!("invalid JSON ({e})")))
}

const FOLDERS: [&str; 4] = ["checkpoints", "trajectories", "logs", "tensorboard"];

/// Whether a directory is empty, or contains only what a run writes before its recipe: an attempt that was stopped at
/// once.
fn is_blank(path: &Path) -> Result<bool> {
    let initial_files =
        [LOCK.to_owned(), POPULATION.to_owned(), format!("{POPULATION}.unfinished"), format!("{RECIPE}.unfinished")];
    for entry in fs::read_dir(path).map_err(Error::io(path))? {
        let entry = entry.map_err(Error::io(path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let empty = || Ok::<_, Error>(fs::read_dir(entry.path()).map_err(Error::io(path))?.next().is_none());
        let is_blank = match FOLDERS.contains(&name.as_str()) {
            true => entry.path().is_dir() && empty()?,
            false => initial_files.contains(&name),
        };
        if !is_blank {
            return Ok(false);
        }
    }
    Ok(true)
}

/// All folders and files in a folder, which comes first.
fn walk(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    let mut read = 0;
    while let Some(dir) = folders.get(read).cloned() {
        for entry in fs::read_dir(&dir).map_err(Error::io(&dir))? {
            let path = entry.map_err(Error::io(&dir))?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
        read += 1;
    }
    files.sort();
    Ok((folders, files))
}

pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::Stopped(e.to_string()))?;
    write_atomic(path, format!("{text}\n").as_bytes())
}

/// Writes a file atomically: a failure leaves the previous file.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut staging = path.as_os_str().to_owned();
    staging.push(".unfinished");
    let staging = PathBuf::from(staging);
    let mut file = File::create(&staging).map_err(Error::io(&staging))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(&staging))?;
    fs::rename(&staging, path).map_err(Error::io(path))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    sync_folder(folder).map_err(Error::io(folder))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
