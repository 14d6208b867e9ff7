//! Where are the recordings and data sets that are not part of the repository?

use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// A file or folder under `MAGE_DATA`, else under `data/` at the root of the workspace; says so loudly when it is missing.
pub(crate) fn file(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("MAGE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data"), PathBuf::from);
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("MAGE_DATA").is_none(), "MAGE_DATA is set, but there is no {}", path.display());
    // Straight to the handle: what `eprintln!` writes, a passing test swallows.
    let _ = writeln!(std::io::stderr(), "SKIPPED: no {}; set MAGE_DATA to the folder of test data", path.display());
    None
}
