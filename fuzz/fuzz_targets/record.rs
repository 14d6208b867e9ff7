//! Fuzz target: lines of evaluation trajectories and of transcripts are read, or refused with an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_core::{Trajectory, prompt::PromptForm};
use mage_engine::Thinking;
use mage_native::{WordControlTokens, word_tokenizer};
use mage_train::{
    eval::store::{LINE_PREFIX, TrajectoryStore, read_trajectories},
    policy::codec::PromptCodec,
    train::transcripts::Transcripts,
};
use std::{fs, path::PathBuf, sync::Arc, sync::LazyLock};

static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("mage-fuzz-record-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
});

static CODEC: LazyLock<PromptCodec> = LazyLock::new(|| {
    let words = ["?", "BET", "PASS", "one", "two"].map(str::to_owned);
    let renderer = word_tokenizer(&words, &WordControlTokens::default()).unwrap();
    PromptCodec::new(Arc::new(renderer), PromptForm::Compact, Thinking::Off).unwrap()
});

fuzz_target!(|bytes: &[u8]| {
    let path = DIR.join("lines.jsonl");
    fs::write(&path, bytes).unwrap();
    let read: Vec<_> = read_trajectories(&path).unwrap().collect();
    for trajectory in read.iter().flatten() {
        let line = trajectory.to_json_line();
        assert!(line.as_bytes().starts_with(LINE_PREFIX));
        assert_eq!(Trajectory::from_json_line(&line).unwrap().to_json_line(), line);
        let _ = (trajectory.result(), trajectory.invalid_actions());
    }
    match TrajectoryStore::open(&path) {
        // What is kept is a prefix, and opening it again changes nothing.
        Ok(store) => {
            assert!(read.iter().all(Result::is_ok));
            drop(store);
            let kept = fs::read(&path).unwrap();
            assert!(bytes.starts_with(&kept));
            assert_eq!(TrajectoryStore::open(&path).unwrap().repaired_bytes(), 0);
        }
        Err(_) => assert_eq!(fs::read(&path).unwrap(), bytes, "a foreign file is not changed"),
    }
    let _ = Transcripts::read(&path, &CODEC, 64);
});
