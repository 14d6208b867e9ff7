//! Helpers that drive meta-episodes.

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
pub(crate) fn kuhn(task: Task, config: EpisodeConfig) -> MetaEpisode {
    let env = Registry::builtin().build(&task).unwrap();
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    MetaEpisode::new(task, env, prompts, Arc::new(config), Seed::new(5)).unwrap()
}

/// Completes every request with `model` until the meta-episode ends.
pub(crate) fn drive(mut meta: MetaEpisode, mut model: impl FnMut(&Request) -> String) -> Trajectory {
    loop {
        match meta.advance().unwrap() {
            Next::Done(trajectory) => return *trajectory,
            Next::Request(request) => {
                let completion = Completion::from_text(model(&request));
                meta.submit(request.id, Ok(completion)).unwrap();
            }
        }
    }
}

/// All prompts and completions as text.
pub(crate) fn transcript(trajectory: &Trajectory) -> String {
    let mut out = String::new();
    for request in &trajectory.requests {
        let _ = writeln!(out, "======== {:?}, episode {}, turn {}", request.kind, request.episode, request.turn);
        let _ = writeln!(out, "{}", request.messages[0].content);
        let _ = writeln!(out, "-------- completion: {}", request.completion.text);
        if let Some(why) = &request.invalid {
            let _ = writeln!(out, "-------- invalid: {why}");
        }
    }
    out
}
