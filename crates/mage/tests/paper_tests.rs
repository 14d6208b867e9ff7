//! Test names in the tables of `PAPER.md`.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

/// All Rust files below a directory.
fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The names after `fn ` in a source file.
fn function_names(source: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    source.split("fn ").skip(1).map(move |rest| rest.split(|c| !is_name(c)).next().unwrap_or_default())
}

#[test]
fn tests_named_in_the_paper_tables_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    rust_files(&root.join("crates"), &mut files);
    let sources: Vec<String> = files.iter().map(|f| fs::read_to_string(f).unwrap()).collect();
    let functions: HashSet<&str> = sources.iter().flat_map(|s| function_names(s)).collect();

    let paper = fs::read_to_string(root.join("PAPER.md")).unwrap();
    let (mut column, mut missing, mut count) = (None, Vec::new(), 0);
    for line in paper.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        column = if line.starts_with('|') { column.or_else(|| cells.iter().position(|c| *c == "test")) } else { None };
        let Some(cell) = column.and_then(|column| cells.get(column)) else { continue };
        // Every second part of the cell is in backticks. Paths contain `/` or `.`.
        for name in cell.split('`').skip(1).step_by(2).filter(|n| n.contains('_') && !n.contains(['/', '.'])) {
            count += 1;
            if !functions.contains(name) {
                missing.push(name);
            }
        }
    }
    assert!(count > 30, "only {count} test names found in the tables of PAPER.md");
    assert!(missing.is_empty(), "PAPER.md names tests that do not exist: {missing:?}");
}
