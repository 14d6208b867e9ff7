//! The command line with recordings of the original engines and official data.

use crate::common::{json, mage, text};
use mage_testing::data_path;
use std::io::Write;

/// Win rate of an episode, from 0.
fn won(report: &serde_json::Value, episode: usize) -> f64 {
    report["summary"]["overall"]["by_episode"][episode]["won"]["rate"].as_f64().unwrap()
}

pub(crate) fn textworld_recordings_are_replayed() {
    let folder = data_path("alfworld");
    let data = folder.to_str().unwrap();
    let golden = folder.join("textworld_traces.jsonl.gz");
    let args = ["env", "conform", "alfworld", "--golden", golden.to_str().unwrap(), "--data", data];
    let output = mage(&args);
    assert!(output.status.success() && text(&output).contains("all equal"), "{}", text(&output));
    assert_eq!(json(&mage(&[&args[..], &["--json"]].concat()))["different"], 0);
    // A different recording is reported.
    let mut unpacked = String::new();
    let mut packed = flate2::read::MultiGzDecoder::new(std::fs::File::open(golden).unwrap());
    std::io::Read::read_to_string(&mut packed, &mut unpacked).unwrap();
    let line = unpacked.lines().next().unwrap().replacen("You arrive at", "You sneak up to", 1);
    let mut other = tempfile::NamedTempFile::new().unwrap();
    writeln!(other, "{line}").unwrap();
    let output = mage(&["env", "conform", "alfworld", "--golden", other.path().to_str().unwrap(), "--data", data]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("first difference") && text(&output).contains("1 differ"), "{}", text(&output));
}

pub(crate) fn generated_games_can_be_played_and_invalid_files_are_reported() {
    let folder = data_path("alfworld");
    let out = tempfile::tempdir().unwrap();
    let path = out.path().to_str().unwrap();
    let args = ["env", "generate", "alfworld", "--out", path, "--data", folder.to_str().unwrap(), "--count", "5"];
    let files = json(&mage(&[&args[..], &["--json"]].concat()));
    let files: Vec<&str> = files.as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    assert_eq!(files.len(), 5);
    let data = format!("data={path}");
    let eval = ["eval", "--env", "alfworld", "--population", "official", "--split", "train", "--option", &data];
    let eval = [&eval[..], &["expert", "--tasks", "10", "--episodes", "1", "--json"]].concat();
    assert_eq!(won(&json(&mage(&eval)), 0), 1.0);

    let whole = std::fs::read(files[2]).unwrap();
    std::fs::write(files[2], &whole[..whole.len() / 3]).unwrap();
    // `play` needs the one game that it names; an evaluation counts the failure and plays the other games.
    let play = ["play", "alfworld", "--population", "official", "--split", "train", "--option", &data];
    let game = format!("game={}", files[2].strip_prefix(path).unwrap().trim_start_matches('/'));
    let one = mage(&[&play[..], &["--option", &game]].concat());
    assert_eq!(one.status.code(), Some(2), "{}", text(&one));
    assert!(text(&one).contains(files[2]), "{}", text(&one));
    let output = mage(&eval);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains(files[2]) && text(&output).contains("EOF while parsing"), "{}", text(&output));
    let output = mage(&[&eval[..], &["--skip-bad", "--quiet"]].concat());
    assert!(output.status.success(), "{}", text(&output));
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warnings.contains("skipped: ") && warnings.contains(files[2]), "{warnings}");
    assert_eq!(won(&serde_json::from_slice(&output.stdout).unwrap(), 0), 1.0);
}
/// Boxoban splits have more turns than the paper's seven, in which few Boxoban levels can be won.
pub(crate) fn boxoban_levels_are_solvable_within_their_maximum_turns() {
    let won = |tasks: &str, extra: &[&str]| {
        let base =
            ["eval", "--env", "sokoban", "optimal", "--episodes", "1", "--tasks", tasks, "--seeds", "1", "--json"];
        let report = json(&mage(&[&base[..], extra].concat()));
        report["summary"]["overall"]["by_episode"][0]["won"]["rate"].as_f64().unwrap()
    };
    for split in ["boxoban", "boxoban-medium", "boxoban-hard"] {
        assert_eq!(won("10", &["--split", split]), 1.0, "{split}");
        assert!(won("100", &["--split", split, "--max-turns", "7"]) < 0.4, "{split}");
    }
}

pub(crate) fn webshop_recordings_are_replayed() {
    let folder = data_path("webshop");
    let golden = folder.join("search_goldens.jsonl.gz");
    let args = ["env", "conform", "webshop", "--golden", golden.to_str().unwrap(), "--data", folder.to_str().unwrap()];
    let output = mage(&args);
    assert!(output.status.success() && text(&output).contains("all equal"), "{}", text(&output));
    // A different recording is reported.
    let mut other = tempfile::NamedTempFile::new().unwrap();
    writeln!(other, "{{\"query\": \"console table\", \"hits\": [[\"B000000000\", 1.0]]}}").unwrap();
    let name = other.path().to_str().unwrap();
    let args = ["env", "conform", "webshop", "--golden", name, "--data", folder.to_str().unwrap()];
    let output = mage(&args);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("first difference") && text(&output).contains("1 differ"), "{}", text(&output));
}
