//! Loading and caching of level files.

use super::level::SokobanLevel;
use crate::{Error, Result, files::VisitedFolders};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// File extensions of level files.
const EXTENSIONS: [&str; 3] = ["txt", "xsb", "sok"];

/// Cache of parsed level files.
#[derive(Default)]
pub(super) struct LevelCache {
    read: Mutex<HashMap<PathBuf, Arc<[SokobanLevel]>>>,
}

impl LevelCache {
    /// All levels of a file or directory.
    pub(super) fn get(&self, path: &Path) -> Result<Arc<[SokobanLevel]>> {
        let found = find(path)?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(levels) = read.get(&found) {
            return Ok(Arc::clone(levels));
        }
        let levels: Arc<[SokobanLevel]> = load_levels(&found)?.into();
        read.insert(found, Arc::clone(&levels));
        Ok(levels)
    }
}

/// Resolves a path, relative to the working directory or to the data directory.
fn find(path: &Path) -> Result<PathBuf> {
    if path.is_absolute() && !path.exists() {
        return Err(Error::invalid(path.display().to_string(), "no such level file or directory"));
    }
    let data = std::env::var_os("MAGE_DATA").map_or_else(|| PathBuf::from("data"), PathBuf::from);
    let under_data = data.join("sokoban").join(path);
    match [path, &under_data].into_iter().find(|p| p.exists()) {
        Some(found) => Ok(found.to_owned()),
        None => Err(Error::invalid(
            path.display().to_string(),
            format!(
                "no such level file or directory, nor {}; set MAGE_DATA to the directory that contains sokoban/{}",
                under_data.display(),
                path.display()
            ),
        )),
    }
}

/// All levels of a file, or of every level file (`.txt`, `.xsb`, `.sok`) below a directory, in order of names.
pub fn load_levels(path: &Path) -> Result<Vec<SokobanLevel>> {
    let mut files = Vec::new();
    collect(path, &mut files, &mut VisitedFolders::default())?;
    let mut levels = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).map_err(|source| Error::Read { path: file.clone(), source })?;
        levels.extend(SokobanLevel::parse_all(&text, &file.display().to_string())?);
    }
    if levels.is_empty() {
        let problem = format!("contains no level files (extensions .{})", EXTENSIONS.join(", ."));
        return Err(Error::invalid(path.display().to_string(), problem));
    }
    Ok(levels)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>, visited: &mut VisitedFolders) -> Result<()> {
    if !path.is_dir() {
        // A pipe or a device would block or never end.
        if path.exists() && !path.is_file() {
            return Err(Error::invalid(path.display().to_string(), "is not a regular file; level files must be"));
        }
        files.push(path.to_owned());
        return Ok(());
    }
    visited.enter(path)?;
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let entries: std::io::Result<Vec<_>> =
        std::fs::read_dir(path).map_err(failed)?.map(|entry| entry.map(|e| e.path())).collect();
    let mut entries = entries.map_err(failed)?;
    entries.sort();
    for entry in entries {
        let level_file = entry.extension().is_some_and(|e| EXTENSIONS.iter().any(|known| e == *known));
        if entry.is_dir() || level_file {
            collect(&entry, files, visited)?;
        }
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_in_circles_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            std::os::unix::fs::symlink(".", folder.path().join(name)).unwrap();
        }
        let device = load_levels(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(device.contains("/dev/null: is not a regular file"), "{device}");
        let error = load_levels(folder.path()).unwrap_err().to_string();
        assert!(error.contains("remove the link"), "{error}");
    }
}
