//! Where does a run live, and how does it survive?
//!
//! In one directory that only one process writes and nothing ever overwrites. `metrics.jsonl` and the TensorBoard file
//! grow line by line and are cut back to the last checkpoint on resume, so that an interrupted run ends with the same bytes
//! as one that was not. A checkpoint exists only after its folder, hashes included, has been renamed into place.

pub mod tensorboard;

use crate::{Error, Result, recipe::Recipe};
use mage_core::Trajectory;
use mage_env::Population;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// A run directory, held by this process.
pub struct RunDir {
    path: PathBuf,
    _lock: File,
    metrics: AppendOnlyFile,
    board: AppendOnlyFile,
    timing: File,
    log: File,
    attempt: u32,
}

/// What is known at a checkpoint beside weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainProgress {
    /// Updates done.
    pub update: u64,
    /// Optimiser steps done in updates.
    pub steps: u64,
    /// Episodes played.
    pub episodes: u64,
    /// The update whose weights did best on the panel, and how well.
    pub best: Option<(u64, f64)>,
    /// How long `metrics.jsonl` was.
    pub metrics_bytes: u64,
    /// How long the TensorBoard file was.
    pub board_bytes: u64,
    /// What is carried from the start to the closing table.
    pub before: Option<crate::eval::evaluator::EvalResult>,
}

/// What a run was started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunInfo {
    /// This program's version.
    pub version: String,
    /// The commit it was built from, where known.
    pub commit: Option<String>,
    /// Where all random numbers start.
    pub seed: u64,
    /// Who computes.
    pub engine: String,
    /// On what.
    pub device: String,
    /// Threads.
    pub threads: usize,
    /// The operating system and processor family.
    pub platform: String,
    /// Numbers in the model.
    pub parameters: usize,
}

/// A file that grows, and is cut back on resume.
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

    /// Adds bytes, and returns once they are on the disk. If they cannot be written, the file is as it was.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            let _ = self.cut(self.length);
            return Err(Error::io(&self.path)(e));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn cut(&mut self, length: u64) -> Result<()> {
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
    /// A new run. The directory must not exist, or be empty.
    pub fn create(path: &Path, recipe: &Recipe, population: &Population) -> Result<Self> {
        if path.exists() && !hardly_begun(path)? {
            let problem = "there is something in it already; choose another directory, or continue it with --resume";
            return Err(Error::Run { path: path.to_owned(), problem: problem.to_owned() });
        }
        for folder in FOLDERS {
            let folder = path.join(folder);
            fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        }
        write_population(path, population)?;
        write_atomic(&path.join(RECIPE), recipe.to_toml().as_bytes())?;
        Self::open(path)
    }

    /// Whether there is a run in this folder.
    pub fn is_run(path: &Path) -> bool {
        path.join(RECIPE).exists()
    }

    /// The recipe a run was started with.
    pub fn recipe(path: &Path) -> Result<Recipe> {
        let file = path.join(RECIPE);
        if !file.exists() {
            let problem = format!("there is no run here: {RECIPE} is missing");
            return Err(Error::Run { path: path.to_owned(), problem });
        }
        let text = fs::read_to_string(&file).map_err(Error::io(&file))?;
        let mut composer = crate::recipe::Composer::new();
        composer.add_text(&text, &file.display().to_string())?;
        composer.finish()
    }

    /// The population a run was started with.
    pub fn population(path: &Path) -> Result<Population> {
        Ok(Population::from_file(&path.join(POPULATION))?)
    }

    /// Replaces the recipe and the population of a run; for whoever insists.
    pub fn replace_recipe(&self, recipe: &Recipe, population: &Population) -> Result<()> {
        write_population(&self.path, population)?;
        write_atomic(&self.path.join(RECIPE), recipe.to_toml().as_bytes())
    }

    /// An existing run.
    pub fn open(path: &Path) -> Result<Self> {
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(Error::io(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(Error::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(e)) => return Err(Error::io(&lock_path)(e)),
        }
        let append = |name: &str| {
            let file = path.join(name);
            OpenOptions::new().create(true).append(true).open(&file).map_err(Error::io(&file))
        };
        // One that was refused before it said anything was none.
        let silent =
            |n: &u32| fs::metadata(path.join(format!("logs/attempt-{n}.log"))).map_or(true, |log| log.len() == 0);
        let attempt = (1..).find(silent).unwrap_or(1);
        Ok(RunDir {
            metrics: AppendOnlyFile::open(path.join("metrics.jsonl"))?,
            board: AppendOnlyFile::open(path.join("tensorboard/events.out.tfevents.0000000000.mage"))?,
            timing: append("timing.jsonl")?,
            log: append(&format!("logs/attempt-{attempt}.log"))?,
            path: path.to_owned(),
            _lock: lock,
            attempt,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What computed when the run was last begun, where that is known.
    pub fn device(&self) -> Option<String> {
        let text = fs::read(self.path.join("run.json")).ok()?;
        serde_json::from_slice::<RunInfo>(&text).ok().map(|about| about.device)
    }

    /// Writes what the run was started with.
    pub fn about(&self, about: &RunInfo) -> Result<()> {
        write_json(&self.path.join("run.json"), about)
    }

    /// Writes a file of results.
    pub fn result<T: Serialize>(&self, value: &T) -> Result<()> {
        write_json(&self.path.join("result.json"), value)
    }

    /// Adds a line of metrics, here and for TensorBoard.
    pub fn metrics(&mut self, step: u64, line: &BTreeMap<String, f64>) -> Result<()> {
        let text = serde_json::to_string(line).map_err(|e| Error::Stopped(e.to_string()))?;
        self.metrics.append(format!("{text}\n").as_bytes())?;
        let scalars: Vec<(&str, f64)> =
            line.iter().filter(|(k, _)| *k != "update").map(|(k, v)| (k.as_str(), *v)).collect();
        let mut bytes = Vec::new();
        if self.board.length == 0 {
            bytes.extend(tensorboard::opening(now()));
        }
        bytes.extend(tensorboard::event(now(), step, &scalars));
        self.board.append(&bytes)
    }

    /// Adds a line on where the time went.
    pub fn timing(&mut self, line: &BTreeMap<String, f64>) -> Result<()> {
        let mut line = line.clone();
        line.insert("attempt".to_owned(), f64::from(self.attempt));
        let text = serde_json::to_string(&line).map_err(|e| Error::Stopped(e.to_string()))?;
        let path = self.path.join("timing.jsonl");
        writeln!(self.timing, "{text}").map_err(Error::io(&path))
    }

    /// Adds a line for people.
    pub fn log(&mut self, line: &str) {
        // A log that cannot be written must not stop a run that otherwise can go on.
        let _ = writeln!(self.log, "{line}");
    }

    /// Writes an update's episodes.
    pub fn episodes<'r>(
        &self,
        update: u64,
        records: impl Iterator<Item = (&'r Trajectory, serde_json::Value)>,
    ) -> Result<()> {
        let path = self.path.join(format!("episodes/{update:06}.jsonl.zst"));
        let mut text = String::new();
        for (record, learned) in records {
            let line = serde_json::json!({ "record": record, "learned": learned });
            text.push_str(&line.to_string());
            text.push('\n');
        }
        let packed = compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
        write_atomic(&path, &packed)
    }

    /// Makes a checkpoint: `save` fills the folder. One of just this moment that is there and whole stays as it is: to put another in
    /// its place would leave none for a moment.
    pub fn checkpoint(&self, progress: &TrainProgress, save: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if self.is_at(progress.update) {
            return Ok(());
        }
        let folder = self.path.join("checkpoints");
        let (staging, place) = (folder.join(".unfinished"), folder.join(name(progress.update)));
        if staging.exists() {
            fs::remove_dir_all(&staging).map_err(Error::io(&staging))?;
        }
        fs::create_dir_all(&staging).map_err(Error::io(&staging))?;
        save(&staging)?;
        let progress =
            TrainProgress { metrics_bytes: self.metrics.length, board_bytes: self.board.length, ..progress.clone() };
        write_json(&staging.join("progress.json"), &progress)?;
        let mut hashes = BTreeMap::new();
        for file in files(&staging)? {
            let bytes = fs::read(&file).map_err(Error::io(&file))?;
            File::open(&file).and_then(|f| f.sync_all()).map_err(Error::io(&file))?;
            let relative = file.strip_prefix(&staging).unwrap_or(&file).display().to_string();
            hashes.insert(relative, blake3::hash(&bytes).to_hex().to_string());
        }
        write_json(&staging.join(MANIFEST), &hashes)?;
        if place.exists() {
            fs::remove_dir_all(&place).map_err(Error::io(&place))?;
        }
        fs::rename(&staging, &place).map_err(Error::io(&place))?;
        File::open(&folder).and_then(|f| f.sync_all()).map_err(Error::io(&folder))
    }

    /// Writes down which weights did best on the panel.
    pub fn best(&self, update: u64, score: f64) -> Result<()> {
        let best = serde_json::json!({ "update": update, "score": score, "model": model(update) });
        write_json(&self.path.join("best.json"), &best)
    }

    /// Removes all but the last `keep` checkpoints and the best; `each` hears of one before it goes.
    pub fn prune(&self, keep: usize, best: Option<u64>, each: impl Fn(&Path)) -> Result<()> {
        let all = checkpoints(&self.path)?;
        let spare = all.len().saturating_sub(keep);
        for update in all[..spare].iter().filter(|u| Some(**u) != best) {
            let path = self.path.join(model(*update));
            each(&path);
            fs::remove_dir_all(&path).map_err(Error::io(&path))?;
        }
        Ok(())
    }

    /// Whether the newest checkpoint is that of an update, and whole, and the metrics are those of then.
    pub fn is_at(&self, update: u64) -> bool {
        let newest = checkpoints(&self.path).is_ok_and(|all| all.last() == Some(&update));
        newest && verify(&self.path.join(model(update))).is_ok_and(|p| p.metrics_bytes == self.metrics.length)
    }

    /// The newest checkpoint that is whole, with what was known then; `damaged` hears what is wrong with newer ones.
    pub fn newest(&self, mut damaged: impl FnMut(String)) -> Result<Option<(PathBuf, TrainProgress)>> {
        let mut found = None;
        let all = checkpoints(&self.path)?;
        for update in all.iter().rev() {
            let path = self.path.join(model(*update));
            match verify(&path) {
                Ok(progress) => {
                    found = Some((path, progress));
                    break;
                }
                // What was learned is gone then: not something to begin anew over without a word.
                Err(e) if all.first() == Some(update) => {
                    let problem = format!(
                        "none of its checkpoints is whole, so there is nothing to go on from ({e}); start a new run"
                    );
                    return Err(Error::Run { path: self.path.clone(), problem });
                }
                Err(e) => damaged(format!("{e}; going back to an earlier checkpoint")),
            }
        }
        // The first checkpoint comes before the first line of metrics.
        if all.is_empty() && self.metrics.length > 0 {
            let problem =
                "it has metrics, but no checkpoint to go on from; put its checkpoints back, or start a new run";
            return Err(Error::Run { path: self.path.clone(), problem: problem.to_owned() });
        }
        if found.as_ref().is_some_and(|(_, p)| self.metrics.length < p.metrics_bytes) {
            let problem = "it is shorter than it was at the checkpoint; put it back, or start anew".to_owned();
            return Err(Error::Run { path: self.metrics.path.clone(), problem });
        }
        Ok(found)
    }

    /// Cuts metrics back to what they were at a checkpoint.
    pub fn rewind(&mut self, to: &TrainProgress) -> Result<()> {
        self.metrics.cut(to.metrics_bytes)?;
        self.board.cut(to.board_bytes.min(self.board.length))
    }
}

const MANIFEST: &str = "manifest.json";

fn name(update: u64) -> String {
    format!("{update:06}")
}

/// Where the model after an update lies in its run.
pub fn model(update: u64) -> PathBuf {
    Path::new("checkpoints").join(name(update))
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

/// The model folder of a run: its last checkpoint.
pub fn last_model(run: &Path) -> Result<PathBuf> {
    let none = || Error::Run { path: run.to_owned(), problem: "it has no checkpoint yet".to_owned() };
    let last = *checkpoints(run)?.last().ok_or_else(none)?;
    Ok(run.join(model(last)))
}

/// What the weights of a run's last checkpoint are known by: a hash of the hashes that were written down with them.
pub fn weights(run: &Path) -> Result<String> {
    let manifest = last_model(run)?.join(MANIFEST);
    let text = fs::read(&manifest).map_err(Error::io(&manifest))?;
    let hashes: BTreeMap<String, String> = serde_json::from_slice(&text)
        .map_err(|e| Error::Run { path: manifest, problem: format!("it cannot be read ({e})") })?;
    let of = |numbers: bool| hashes.iter().filter(move |(file, _)| !numbers || file.ends_with(".safetensors"));
    // Where weights are kept elsewhere, all there is to go by is what was written here.
    let all: Vec<_> = if of(true).next().is_some() { of(true).collect() } else { of(false).collect() };
    Ok(mage_env::Hash::of(&all).to_string())
}

/// Compares every file with the manifest.
fn verify(path: &Path) -> Result<TrainProgress> {
    let damaged = |file: &Path, problem: &str| Error::Run { path: file.to_owned(), problem: problem.to_owned() };
    let manifest = path.join(MANIFEST);
    let text = fs::read(&manifest).map_err(Error::io(&manifest))?;
    let hashes: BTreeMap<String, String> =
        serde_json::from_slice(&text).map_err(|e| damaged(&manifest, &format!("it cannot be read ({e})")))?;
    for (file, hash) in &hashes {
        let file = path.join(file);
        let bytes = fs::read(&file).map_err(Error::io(&file))?;
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            return Err(damaged(&file, "its contents are not what was written"));
        }
    }
    let file = path.join("progress.json");
    let text = fs::read(&file).map_err(Error::io(&file))?;
    serde_json::from_slice(&text).map_err(|e| damaged(&file, &format!("it cannot be read ({e})")))
}

const FOLDERS: [&str; 4] = ["checkpoints", "episodes", "logs", "tensorboard"];

/// Whether a directory is empty, or holds nothing but what a run makes before its recipe is in place: then whoever made it
/// was stopped at once, and nothing is lost by beginning anew.
fn hardly_begun(path: &Path) -> Result<bool> {
    let early = [POPULATION.to_owned(), format!("{POPULATION}.unfinished"), format!("{RECIPE}.unfinished")];
    for entry in fs::read_dir(path).map_err(Error::io(path))? {
        let entry = entry.map_err(Error::io(path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let empty = || Ok::<_, Error>(fs::read_dir(entry.path()).map_err(Error::io(path))?.next().is_none());
        let ours = match FOLDERS.contains(&name.as_str()) {
            true => entry.path().is_dir() && empty()?,
            false => early.contains(&name),
        };
        if !ours {
            return Ok(false);
        }
    }
    Ok(true)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).map_err(Error::io(&dir))? {
            let path = entry.map_err(Error::io(&dir))?.path();
            if path.is_dir() { open.push(path) } else { out.push(path) }
        }
    }
    out.sort();
    Ok(out)
}

pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::Stopped(e.to_string()))?;
    write_atomic(path, format!("{text}\n").as_bytes())
}

/// Writes a whole file or nothing.
fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut staging = path.as_os_str().to_owned();
    staging.push(".unfinished");
    let staging = PathBuf::from(staging);
    let mut file = File::create(&staging).map_err(Error::io(&staging))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io(&staging))?;
    fs::rename(&staging, path).map_err(Error::io(path))
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
