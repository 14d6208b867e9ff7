//! Fuzz target: a run directory with arbitrary files is opened and reported, or refused with an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_report::{ReportLimits, csv, figures, html, load_report, markdown, tables};
use mage_train::{
    recipe::Recipe,
    run_dir::{RunDir, best, checkpoint_hash, failure, last_episode_optima, last_model, update_seconds},
};
use std::{fs, path::PathBuf, sync::LazyLock};

/// Files of a run, in the order of the input's parts.
const FILES: [&str; 10] = [
    "recipe.resolved.toml",
    "population.toml",
    "metrics.jsonl",
    "timing.jsonl",
    "run.json",
    "best.json",
    "logs/attempt-1.log",
    "checkpoints/000002/progress.json",
    "result.json",
    "checkpoints/000002/manifest.json",
];

/// Byte between the parts.
const SEPARATOR: u8 = 0x1e;

static DIR: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("mage-fuzz-run-dir-{}", std::process::id())));

static RECIPE: LazyLock<String> = LazyLock::new(|| Recipe::default().to_toml());

static POPULATION: LazyLock<String> = LazyLock::new(|| {
    toml::to_string(&mage_env::Registry::builtin().get("kuhn").unwrap().default_population()).unwrap()
});

fuzz_target!(|input: &[u8]| {
    let run = DIR.join("run");
    let _ = fs::remove_dir_all(&*DIR);
    for folder in ["checkpoints/000002", "logs", "tensorboard"] {
        fs::create_dir_all(run.join(folder)).unwrap();
    }
    // Without a recipe and a population of its own, a run has valid ones, so that its other files are read; and a
    // checkpoint a valid manifest.
    fs::write(run.join(FILES[0]), &*RECIPE).unwrap();
    fs::write(run.join(FILES[1]), &*POPULATION).unwrap();
    for (name, part) in FILES.iter().zip(input.split(|byte| *byte == SEPARATOR)).filter(|(_, part)| !part.is_empty()) {
        fs::write(run.join(name), part).unwrap();
        if *name == FILES[7] {
            let manifest = format!("{{\"progress.json\": \"{}\"}}", blake3::hash(part).to_hex());
            fs::write(run.join(FILES[9]), manifest).unwrap();
        }
    }

    let _ = (RunDir::recipe(&run), RunDir::population(&run), best(&run), checkpoint_hash(&run), last_model(&run));
    let _ = (failure(&run), last_episode_optima(&run), update_seconds(&run));
    if let Ok(mut open) = RunDir::open(&run) {
        let _ = open.info();
        if let Ok(Some((_, progress))) = open.newest(|_| ()) {
            let _ = open.is_at(progress.update);
            open.rewind(&progress).unwrap();
            assert!(open.ends_at(&progress));
        }
    }
    if let Ok(report) = load_report(&[DIR.clone()], ReportLimits::default()) {
        let (tables, figures) = (tables(&report), figures(&report));
        html(&report, &tables, &figures);
        markdown(&report, &tables, &figures);
        csv(&report);
    }
});
