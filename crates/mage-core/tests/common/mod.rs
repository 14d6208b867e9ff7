//! Driving meta-episodes by hand.
#![allow(dead_code)] // each test binary uses its own part

use mage_core::{Completion, EpisodeConfig, MetaEpisode, Next, Request, Trajectory, prompt::PromptLibrary};
use mage_env::{EnvId, OpponentSpec, OptionMap, Registry, Seed, Task};
use std::{fmt::Write, sync::Arc};

/// A Kuhn task with a fixed seed.
pub(crate) fn kuhn_task(opponent: &str, seat: u8) -> Task {
    Task {
        env: EnvId::new("kuhn"),
        options: OptionMap::default(),
        opponent: Some(OpponentSpec::of_kind(opponent)),
        seat,
        seed: Seed::new(11),
    }
}

/// A meta-episode of that task.
pub(crate) fn kuhn(task: Task, settings: EpisodeConfig) -> MetaEpisode {
    let env = Registry::builtin().build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    MetaEpisode::new(task, env, prompts, Arc::new(settings), Seed::new(5)).unwrap()
}

/// Answers every call with `model` until the meta-episode is over.
pub(crate) fn drive(mut meta: MetaEpisode, mut model: impl FnMut(&Request) -> String) -> Trajectory {
    loop {
        match meta.advance().unwrap() {
            Next::Done(record) => return *record,
            Next::Request(call) => {
                let answer = Completion::from_text(model(&call));
                meta.submit(call.id, Ok(answer)).unwrap();
            }
        }
    }
}

/// Every prompt with its answer, to read and to compare.
pub(crate) fn transcript(record: &Trajectory) -> String {
    let mut out = String::new();
    for call in &record.requests {
        let _ = writeln!(out, "======== {:?}, episode {}, turn {}", call.kind, call.episode, call.turn);
        let _ = writeln!(out, "{}", call.messages[0].content);
        let _ = writeln!(out, "-------- answer: {}", call.completion.text);
        if let Some(why) = &call.invalid {
            let _ = writeln!(out, "-------- invalid: {why}");
        }
    }
    out
}
