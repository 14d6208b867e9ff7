//! Fuzz target: the cells of a sweep have unique folders inside that of the sweep.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_train::sweep::Sweep;
use std::{collections::HashSet, path::Component, path::Path};

fuzz_target!(|text: &str| {
    let Ok(sweep) = Sweep::from_toml(text, "fuzz") else { return };
    let cells = sweep.cells();
    let mut ids = HashSet::new();
    for cell in &cells {
        let parts: Vec<_> = Path::new(&cell.id).components().collect();
        assert!(parts.len() == 2 && parts.iter().all(|p| matches!(p, Component::Normal(_))), "{}", cell.id);
        assert!(ids.insert(&cell.id), "{}", cell.id);
        assert!(sweep.weight(cell, 10).is_finite());
        assert!(!cell.finished(Path::new("/nonexistent")));
    }
});
