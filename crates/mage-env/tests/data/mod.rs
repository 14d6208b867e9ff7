//! Recordings and data sets that are not part of the repository.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// A file or directory under `MAGE_DATA`, or under `data/` at the root of the workspace if unset. Prints a message if it is
/// missing.
pub(crate) fn file(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("MAGE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data"), PathBuf::from);
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("MAGE_DATA").is_none(), "MAGE_DATA is set, but {} does not exist", path.display());
    // Direct write: the test harness captures `eprintln!`.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED: {} does not exist; set MAGE_DATA to the directory of test data",
        path.display()
    );
    None
}
