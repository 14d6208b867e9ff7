//! What lies under the paths that were named?

use mage_train::{Error, Result, eval::store};
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// What was found, each by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Run directories.
    pub(super) runs: Vec<PathBuf>,
    /// Files of records.
    pub(super) records: Vec<PathBuf>,
    /// Files that `mage eval --summary` wrote.
    pub(super) summaries: Vec<PathBuf>,
    /// Files that are none of these though they look like it.
    pub(super) unknown: Vec<PathBuf>,
    /// Folders of results that a sweep has put aside, which are not looked into.
    pub(super) replaced: usize,
}

/// Folders within folders, at most so many.
const DEPTH: usize = 8;

/// Looks under the paths. What does not exist is an error.
pub(super) fn find(paths: &[PathBuf]) -> Result<Found> {
    let mut found = Found::default();
    for path in paths {
        look(path, DEPTH, true, &mut found)?;
    }
    for list in [&mut found.runs, &mut found.records, &mut found.summaries, &mut found.unknown] {
        list.sort();
        list.dedup();
    }
    Ok(found)
}

fn look(path: &Path, depth: usize, named: bool, found: &mut Found) -> Result<()> {
    let about = fs::metadata(path).map_err(Error::io(path))?;
    if about.is_dir() {
        if path.join("recipe.resolved.toml").exists() {
            found.runs.push(path.to_owned());
            return Ok(());
        }
        let entries = fs::read_dir(path).map_err(Error::io(path))?;
        for entry in entries {
            let entry = entry.map_err(Error::io(path))?;
            // Links are not followed: they may lead round in circles.
            let kind = entry.file_type().map_err(Error::io(path))?;
            if kind.is_dir() && entry.file_name() == mage_train::sweep::REPLACED {
                found.replaced += mage_train::sweep::count_archived(&entry.path());
            } else if kind.is_file() || (kind.is_dir() && depth > 0) {
                look(&entry.path(), depth.saturating_sub(1), false, found)?;
            }
        }
        return Ok(());
    }
    match path.extension().and_then(|e| e.to_str()) {
        Some("jsonl") if about.len() == 0 || begins_as_record(path)? => found.records.push(path.to_owned()),
        Some("json") if is_summary(path)? => found.summaries.push(path.to_owned()),
        _ if named => found.unknown.push(path.to_owned()),
        _ => {}
    }
    Ok(())
}

fn begins_as_record(path: &Path) -> Result<bool> {
    let mut opening = Vec::new();
    let file = File::open(path).map_err(Error::io(path))?;
    file.take(store::LINE_PREFIX.len() as u64).read_to_end(&mut opening).map_err(Error::io(path))?;
    Ok(opening == store::LINE_PREFIX)
}

/// Whether the text names what a summary has. Its first lines suffice: what was cut off is to be complained of, not passed over.
fn is_summary(path: &Path) -> Result<bool> {
    let file = File::open(path).map_err(Error::io(path))?;
    let mut text = Vec::new();
    file.take(MOST_TEXT).read_to_end(&mut text).map_err(Error::io(path))?;
    let text = String::from_utf8_lossy(&text);
    Ok(["\"format\"", "\"env\"", "\"split\""].iter().all(|field| text.contains(field)))
}

/// So much of a file is looked at.
const MOST_TEXT: u64 = 1 << 26;
