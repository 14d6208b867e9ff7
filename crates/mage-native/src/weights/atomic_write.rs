//! Atomic file replacement.
//!
//! A file is written under a temporary name, synced, then renamed. Readers see the old or the new file, and neither a crash
//! nor a full disk leaves a partial one. Its permissions follow the umask.

use mage_engine::{Error, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Calls `write` with a temporary path, then renames the result to `path`.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let part = part_of(path);
    let created = File::create(&part).and_then(|f| f.metadata()).map_err(Error::write(&part))?;
    let done = write(&part).and_then(|()| {
        // The writer may have replaced the file by one that only its owner can read.
        fs::set_permissions(&part, created.permissions()).map_err(Error::write(&part))?;
        // On disk before it replaces the old file.
        File::open(&part).and_then(|f| f.sync_all()).map_err(Error::write(&part))?;
        fs::rename(&part, path).map_err(Error::write(path))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        sync_folder(folder).map_err(Error::write(folder))
    });
    if done.is_err() {
        // The first error is reported; a leftover temporary file does no harm.
        let _ = fs::remove_file(&part);
    }
    done
}

/// Replaces a text file atomically.
pub(crate) fn replace_text(path: &Path, text: &str) -> Result<()> {
    replace(path, |part| fs::write(part, text).map_err(Error::write(part)))
}

/// Syncs a folder, so that renames in it survive a loss of power. An empty path is the current folder.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // Windows cannot open folders as files.
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// The temporary path. It contains the process id, so that two processes do not share it.
fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn permissions_follow_the_umask() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (plain, replaced) = (dir.path().join("plain"), dir.path().join("replaced"));
        File::create(&plain).unwrap();
        replace(&replaced, |part| {
            let private = dir.path().join("private");
            fs::write(&private, "x").unwrap();
            fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(private, part).map_err(Error::write(part))
        })
        .unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&replaced), mode(&plain));
    }

    #[test]
    fn replacement_is_atomic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        replace_text(&path, "old").unwrap();
        let failed = replace(&path, |part| {
            fs::write(part, "half").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            Err(Error::invalid("x", "the disk is full"))
        });
        assert!(failed.unwrap_err().to_string().contains("full"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        replace_text(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        assert!(replace_text(&dir.path().join("no/x"), "").is_err());
    }
}
