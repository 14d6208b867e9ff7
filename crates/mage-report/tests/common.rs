//! Records with hand-written results, and reports of them.

use mage_core::{
    Completion, Message, MetaEpisodeResult, RequestId, RequestKind, RequestRecord, Trajectory, TrajectoryKey,
    UnplayedEpisodes,
    episode::{Episode, Turn},
    summarise,
};
use mage_env::{Anchor, End, EnvId, Hash, Observation, OpponentSpec, OptionMap, Outcome, ParsedAction, Seed, Task};
use mage_report::{Report, ReportLimits, ReportTable, figures, html, load_report, tables};
use serde_json::json;
use std::{fs, path::Path};

/// Model output that attempts to inject markup.
pub(crate) const INJECTION: &str = "</script><img src=x onerror=alert(1)> <b>&amp; ünï 中文 \u{202e}\u{0}";

pub(crate) fn task_set() -> Hash {
    Hash::of("task set")
}

/// A meta-episode with the given scores: positive for a win, 0 for a draw, negative for a loss.
pub(crate) fn record(task: u64, opponent: &str, seed: u64, scores: &[f32]) -> Trajectory {
    let task = Task {
        env: EnvId::new("kuhn"),
        options: OptionMap::default(),
        opponent: Some(OpponentSpec::of_kind(opponent)),
        seat: 0,
        seed: Seed::new(task),
    };
    let observation = |text: &str| Observation { text: text.to_owned(), compact: String::new() };
    let episodes = scores.iter().enumerate().map(|(n, score)| {
        let outcome = match *score {
            s if s > 0.0 => Outcome::Won,
            s if s < 0.0 => Outcome::Lost,
            _ => Outcome::Draw,
        };
        let turn = Turn {
            request: RequestId(n as u32),
            anchor: Anchor(format!("state {}", n % 2)),
            action: ParsedAction::Act(if *score > 0.0 { "BET" } else { "PASS" }.to_owned()),
            valid: true,
            reward: *score,
            observation: observation("over"),
        };
        Episode {
            start: observation("begins"),
            turns: vec![turn],
            end: Some(End::Terminated { outcome, score: *score }),
            expected: None,
        }
    });
    let requests = (0..scores.len() as u32).map(|n| RequestRecord {
        id: RequestId(n),
        kind: RequestKind::Play,
        episode: n,
        turn: 0,
        trainable: true,
        messages: vec![Message::user("PASS or BET?")],
        allowed: None,
        completion: Completion::from_text(INJECTION),
        invalid: None,
    });
    Trajectory {
        key: TrajectoryKey {
            task_set: task_set(),
            task: task.hash(),
            method: Hash::of("method"),
            weights: "weights".to_owned(),
            seed: Seed::new(seed),
        },
        task,
        stopped_early: false,
        episodes: episodes.collect(),
        requests: requests.collect(),
        error: None,
    }
}

pub(crate) fn write(path: &Path, records: &[Trajectory]) {
    fs::write(path, records.iter().map(|r| r.to_json_line() + "\n").collect::<String>()).unwrap();
}

/// A file as written by `mage eval --summary`; `model` is false for a scripted agent.
pub(crate) fn summary(
    records: &[Trajectory],
    policy: &str,
    prompt_method: Option<&str>,
    model: bool,
) -> serde_json::Value {
    let results: Vec<(usize, MetaEpisodeResult)> = records.iter().filter_map(Trajectory::result).enumerate().collect();
    let episodes = results.iter().map(|(_, r)| r.episodes.len()).max().unwrap_or(0) as u32;
    json!({
        "format": 3, "env": "kuhn", "preset": "kuhn", "split": "in-domain", "unit": "chips per hand", "episodes": episodes,
        "early_stop": false, "tasks": results.len(), "seed": 0, "seeds": 1, "task_set": task_set(), "population": task_set(),
        "ceilings": { "mean": { "memoryless": [0.125, 0.125], "sum": { "by_episode": [0.125, 0.5] }, "pass_at_k": [0.6, 0.84] } },
        "policies": [{
            "name": policy, "policy": policy, "prompt_method": prompt_method, "method": Hash::of("method"), "weights": "weights",
            "sampling": model.then(|| json!({})), "errors": 0,
            "summary": summarise(&results, episodes, UnplayedEpisodes::NotCounted),
        }],
        "comparisons": [],
    })
}

/// Four tasks of two episodes: a win in both, a win in the second, a draw and a loss, two losses.
pub(crate) fn four_records() -> Vec<Trajectory> {
    vec![
        record(1, "aggressive", 0, &[1.0, 1.0]),
        record(2, "aggressive", 0, &[-1.0, 2.0]),
        record(3, "conservative", 0, &[0.0, -1.0]),
        record(4, "conservative", 0, &[-1.0, -2.0]),
    ]
}

pub(crate) fn report_of(records: &[Trajectory], summary: Option<serde_json::Value>) -> Report {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("r.jsonl"), records);
    if let Some(summary) = summary {
        fs::write(dir.path().join("s.json"), serde_json::to_string_pretty(&summary).unwrap()).unwrap();
    }
    load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap()
}

pub(crate) fn page(report: &Report) -> String {
    html(report, &tables(report), &figures(report))
}

/// The table of a report with this identifier.
pub(crate) fn table(report: &Report, id: &str) -> Option<ReportTable> {
    tables(report).into_iter().find(|table| table.id == id)
}
