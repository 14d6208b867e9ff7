//! Search for run directories, evaluation trajectories and summaries.

use mage_train::{Error, Result, eval::store};
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// Inputs of a report, each list sorted by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InputFiles {
    /// Run directories.
    pub(super) runs: Vec<PathBuf>,
    /// Files with evaluation trajectories.
    pub(super) trajectories: Vec<PathBuf>,
    /// Files written by `mage eval --summary`.
    pub(super) summaries: Vec<PathBuf>,
    /// Files named by the caller that are none of these.
    pub(super) unknown: Vec<PathBuf>,
    /// Number of superseded results of sweeps, which are not read.
    pub(super) replaced: usize,
}

/// Maximum depth of nested directories.
const MAX_DEPTH: usize = 8;

/// Searches the paths. A path that does not exist is an error.
pub(super) fn find(paths: &[PathBuf]) -> Result<InputFiles> {
    let mut found = InputFiles::default();
    for path in paths {
        scan(path, MAX_DEPTH, true, &mut found)?;
    }
    for list in [&mut found.runs, &mut found.trajectories, &mut found.summaries, &mut found.unknown] {
        list.sort();
        list.dedup();
    }
    Ok(found)
}

/// The run directories under a path, sorted. Superseded runs of sweeps are skipped.
pub fn find_runs(path: &Path) -> Result<Vec<PathBuf>> {
    Ok(find(&[path.to_owned()])?.runs)
}

fn scan(path: &Path, depth: usize, explicit: bool, found: &mut InputFiles) -> Result<()> {
    let metadata = fs::metadata(path).map_err(Error::io(path))?;
    if metadata.is_dir() {
        if path.join("recipe.resolved.toml").exists() {
            found.runs.push(path.to_owned());
            return Ok(());
        }
        let entries = fs::read_dir(path).map_err(Error::io(path))?;
        for entry in entries {
            let entry = entry.map_err(Error::io(path))?;
            // Symbolic links are skipped, as they can form cycles.
            let kind = entry.file_type().map_err(Error::io(path))?;
            if kind.is_dir() && entry.file_name() == mage_train::sweep::REPLACED {
                found.replaced += mage_train::sweep::count_archived(&entry.path());
            } else if kind.is_file() || (kind.is_dir() && depth > 0) {
                scan(&entry.path(), depth.saturating_sub(1), false, found)?;
            }
        }
        return Ok(());
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("jsonl") if metadata.len() == 0 || starts_with_trajectory(path)? => {
            found.trajectories.push(path.to_owned());
        }
        Some("json") if is_summary(path)? => found.summaries.push(path.to_owned()),
        _ if explicit => found.unknown.push(path.to_owned()),
        _ => {}
    }
    Ok(())
}

fn starts_with_trajectory(path: &Path) -> Result<bool> {
    let mut opening = Vec::new();
    let file = File::open(path).map_err(Error::io(path))?;
    file.take(store::LINE_PREFIX.len() as u64).read_to_end(&mut opening).map_err(Error::io(path))?;
    Ok(opening == store::LINE_PREFIX)
}

/// Whether the text contains the first keys of a summary. A truncated summary counts, so that reading it reports an
/// error.
fn is_summary(path: &Path) -> Result<bool> {
    let file = File::open(path).map_err(Error::io(path))?;
    let mut text = Vec::new();
    file.take(MAX_SUMMARY_BYTES).read_to_end(&mut text).map_err(Error::io(path))?;
    let text = String::from_utf8_lossy(&text);
    Ok(["\"format\"", "\"env\"", "\"split\""].iter().all(|field| text.contains(field)))
}

/// Number of bytes of a file that are searched for a summary's keys.
const MAX_SUMMARY_BYTES: u64 = 1 << 26;
