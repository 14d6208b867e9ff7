//! What does a reader find while a file is being written? The old one, whole.
//!
//! Every file goes to a name of its own first and takes its place at once when it is complete, so neither a crash nor a
//! full disk leaves half a file behind.

use mage_engine::{Error, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Lets `write` write a file elsewhere, then puts it at `path`.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let part = part_of(path);
    let done = write(&part).and_then(|()| {
        // On the disk before it takes the place of what was there.
        File::open(&part).and_then(|f| f.sync_all()).map_err(Error::write(&part))?;
        fs::rename(&part, path).map_err(Error::write(path))
    });
    if done.is_err() {
        // The error that matters is the first one; what cannot be removed does no harm under its own name.
        let _ = fs::remove_file(&part);
    }
    done
}

/// The same for a text.
pub(crate) fn replace_text(path: &Path, text: &str) -> Result<()> {
    replace(path, |part| fs::write(part, text).map_err(Error::write(part)))
}

/// Two processes that write the same file must not write the same part of it.
fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
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
