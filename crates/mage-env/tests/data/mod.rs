//! Paths of test data that the repository does not contain: recordings of the original engines, and official data.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// The path of a file or directory below `$MAGE_DATA` (default: `data/` at the root of the workspace). If it is missing,
/// prints that the test is skipped; panics if `MAGE_DATA` is set.
pub(crate) fn file(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("MAGE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data"), PathBuf::from);
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("MAGE_DATA").is_none(), "MAGE_DATA is set, but {} does not exist", path.display());
    // The test harness captures `eprintln!`, but not a direct write.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED: {} does not exist; set MAGE_DATA to the directory of test data",
        path.display()
    );
    None
}
