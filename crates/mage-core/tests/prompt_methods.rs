//! Golden files of every prompt method in every environment with a scripted model: prompts, requests and the final
//! content of the memory. After an intended change: `UPDATE_EXPECT=1 cargo test -p mage-core --test integration prompt_methods`,
//! and review the diff.

use crate::common::transcript;
use expect_test::expect_file;
use mage_core::{
    Completion, EpisodeConfig, Lexical, MemoryFactory, MemoryScope, MetaEpisode, Next, PromptMethod, Request,
    RequestKind, Trajectory,
    prompt::{PromptForm, PromptLibrary},
};
use mage_env::{Registry, Seed, Task};
use serde_json::Value;
use std::sync::Arc;

fn task(env: &str) -> Task {
    let registry = Registry::builtin();
    let env_spec = registry.get(env).unwrap();
    env_spec.default_population().sample_task("train", env_spec.info().seats, Seed::new(3)).unwrap()
}

fn config(prompt_method: PromptMethod) -> EpisodeConfig {
    prompt_method.configure(EpisodeConfig { episodes: 3, max_turns: 2, ..EpisodeConfig::default() })
}

fn factory(env: &str, prompt_method: PromptMethod, scope: MemoryScope) -> MemoryFactory {
    let prompts = PromptLibrary::builtin().get(env).unwrap();
    MemoryFactory::new(prompt_method, scope, Arc::new(Lexical), Arc::new(config(prompt_method)), prompts).unwrap()
}

/// Plays a task and returns the trajectory and the content of the memory.
fn play(factory: &MemoryFactory, task: &Task, mut model: impl FnMut(&Request) -> String) -> (Trajectory, Value) {
    let env = Registry::builtin().build(task).unwrap();
    let prompts = PromptLibrary::builtin().get(task.env.as_str()).unwrap();
    let config = Arc::new(config(factory.prompt_method()));
    let mut meta = MetaEpisode::with_memory(task.clone(), env, prompts, config, factory.make(), Seed::new(5)).unwrap();
    loop {
        match meta.advance().unwrap() {
            Next::Done(trajectory) => return (*trajectory, meta.memory().contents()),
            Next::Request(request) => meta.submit(request.id, Ok(Completion::from_text(model(&request)))).unwrap(),
        }
    }
}

/// The actions of the scripted model in each environment.
fn actions(env: &str) -> [&'static str; 3] {
    match env {
        "kuhn" => ["BET", "PASS", "PASS"],
        "tictactoe" => ["(2, 2)", "(1, 1)", "(1, 1)"],
        "sokoban" => ["up, left, left", "down, right", "nowhere"],
        "alfworld" => ["look", "go to fridge 1", "go to the moon"],
        "webshop" => ["search[wool socks]", "click[back to search]", "search[red shoes]"],
        other => panic!("{other} has no script"),
    }
}

/// A model that cycles through its actions and completes memory requests correctly, loosely and wrongly.
fn scripted(env: &str) -> impl FnMut(&Request) -> String {
    let mut moves = actions(env).into_iter().cycle();
    let (mut plans, mut notes) = (0, 0);
    move |request| {
        match request.body.kind {
        RequestKind::Play => format!("<think>Hm.</think>I choose: <action>{}</action>", moves.next().unwrap()),
        RequestKind::Reflect => format!("<remark>Episode {} taught me patience.</remark>", request.episode),
        RequestKind::Plan => {
            plans += 1;
            if plans == 3 { "I would rather not.".to_owned() } else { format!("<plan>Plan {plans}: look first.</plan>") }
        }
        RequestKind::Note => {
            notes += 1;
            format!(
                "```json\n{{'keywords': ['first', 'move', 'loss {notes}',], \"context\": \"What episode {notes} showed.\", \
                 'tags': 'opening, habit'}}\n```"
            )
        }
        RequestKind::Evolve => r#"{"evolve": true, "actions": ["strengthen", "update_neighbor"], "links": [1, 44],
            "tags": ["opening", "habit", "again"], "neighbors": [{"id": 1, "context": "Seen twice now.", "tags": ["habit"]}]}"#
            .to_owned(),
    }
    }
}

fn golden(env: &str) {
    for prompt_method in PromptMethod::ALL {
        let (trajectory, memory) =
            play(&factory(env, prompt_method, MemoryScope::MetaEpisode), &task(env), scripted(env));
        let kinds: Vec<String> = trajectory.requests.iter().map(|c| format!("{:?}", c.kind)).collect();
        let text = format!(
            "requests: {}\n\n{}======== memory\n{memory:#}\n",
            kinds.join(", "),
            transcript(&trajectory).replace(" \n", "\n")
        );
        let file =
            format!("{}/tests/golden/prompt_methods/{env}_{}.txt", env!("CARGO_MANIFEST_DIR"), prompt_method.name());
        expect_file![file].assert_eq(&text);
    }
}

#[test]
fn prompts_of_all_methods_match_golden_in_kuhn() {
    golden("kuhn");
}

#[test]
fn prompts_of_all_methods_match_golden_in_tictactoe() {
    golden("tictactoe");
}

#[test]
fn prompts_of_all_methods_match_golden_in_sokoban() {
    golden("sokoban");
}

#[test]
fn prompts_of_all_methods_match_golden_in_alfworld() {
    golden("alfworld");
}

#[test]
fn prompts_of_all_methods_match_golden_in_webshop() {
    golden("webshop");
}

#[test]
fn memoryless_prompts_do_not_mention_earlier_episodes() {
    for prompt_method in [PromptMethod::React, PromptMethod::Cot] {
        let (trajectory, memory) =
            play(&factory("kuhn", prompt_method, MemoryScope::MetaEpisode), &task("kuhn"), scripted("kuhn"));
        assert!(
            trajectory
                .requests
                .iter()
                .all(|c| c.kind == RequestKind::Play && !c.messages[0].content.contains("pisode"))
        );
        assert!(memory.is_null() || memory.as_array().is_some_and(Vec::is_empty));
    }
}

#[test]
fn failed_memory_request_leaves_the_store_unchanged_and_is_counted() {
    let failed = |trajectory: &Trajectory| {
        let failed = trajectory.requests.iter().filter(|c| c.kind != RequestKind::Play && c.invalid.is_some());
        failed.map(|c| (c.kind, c.episode)).collect::<Vec<_>>()
    };
    let good = r#"{"keywords": ["a"], "context": "b", "tags": ["c"]}"#;
    // No description can be parsed: no note is stored, and no link is requested.
    let notes = factory("kuhn", PromptMethod::AMem, MemoryScope::MetaEpisode);
    let (trajectory, memory) = play(&notes, &task("kuhn"), |request| match request.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        _ => "{\"keywords\": [".to_owned(),
    });
    assert_eq!(failed(&trajectory), [(RequestKind::Note, 1), (RequestKind::Note, 2)]);
    assert_eq!(memory, Value::Array(vec![]));
    // Descriptions are valid, decisions cannot be parsed: notes stay unchanged.
    let (trajectory, memory) = play(&notes, &task("kuhn"), |request| match request.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        RequestKind::Note => good.to_owned(),
        _ => "<think>{\"evolve\": true, \"actions\": [\"strengthen\"], \"links\": [1]}".to_owned(),
    });
    assert_eq!(failed(&trajectory), [(RequestKind::Evolve, 2)]);
    let notes = memory.as_array().unwrap();
    assert_eq!(notes.len(), 2);
    assert!(notes.iter().all(|n| n["links"] == Value::Array(vec![]) && n["context"] == "b"));
    // An invalid plan: the episode is played without one.
    let cases = factory("kuhn", PromptMethod::Memento, MemoryScope::MetaEpisode);
    let (trajectory, memory) = play(&cases, &task("kuhn"), |request| match request.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        _ => "no plan".to_owned(),
    });
    assert_eq!(failed(&trajectory), [(RequestKind::Plan, 0), (RequestKind::Plan, 1), (RequestKind::Plan, 2)]);
    assert_eq!(memory.as_array().unwrap().len(), 2);
    assert!(memory.as_array().unwrap().iter().all(|c| c["plan"].is_null()));
}

#[test]
fn memory_passes_between_tasks_only_if_shared() {
    let model = |request: &Request| match request.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        RequestKind::Plan => "<plan>MARKER</plan>".to_owned(),
        RequestKind::Note => r#"{"keywords": ["MARKER"], "context": "MARKER", "tags": []}"#.to_owned(),
        _ => r#"{"evolve": false}"#.to_owned(),
    };
    let first_prompt_has_memory = |factory: &MemoryFactory| {
        let (first, _) = play(factory, &task("kuhn"), model);
        assert!(!first.requests[0].messages[0].content.contains("MARKER"));
        let (second, memory) = play(factory, &task("kuhn"), model);
        let last_recorded = second.requests.iter().any(|c| c.episode == 3);
        (second.requests[0].messages[0].content.contains("MARKER"), memory.as_array().unwrap().len(), last_recorded)
    };
    for (prompt_method, requests_after_last) in [(PromptMethod::AMem, true), (PromptMethod::Memento, false)] {
        assert_eq!(
            first_prompt_has_memory(&factory("kuhn", prompt_method, MemoryScope::MetaEpisode)),
            (false, 2, false)
        );
        // A shared memory also records the last episode of a task.
        assert_eq!(
            first_prompt_has_memory(&factory("kuhn", prompt_method, MemoryScope::Shared)),
            (true, 6, requests_after_last)
        );
    }
}

#[test]
fn invalid_prompt_methods_are_rejected() {
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let rejection = |prompt_method: PromptMethod, scope, prompt_form| {
        let config = Arc::new(EpisodeConfig { prompt_form, ..config(prompt_method) });
        MemoryFactory::new(prompt_method, scope, Arc::new(Lexical), config, Arc::clone(&prompts))
            .err()
            .map(|e| e.to_string())
    };
    let own = MemoryScope::MetaEpisode;
    assert!(
        rejection(PromptMethod::Reflexion, MemoryScope::Shared, PromptForm::Full)
            .unwrap()
            .contains("no memory that tasks")
    );
    assert!(rejection(PromptMethod::AMem, own, PromptForm::Compact).unwrap().contains("needs full prompts"));
    assert_eq!(rejection(PromptMethod::Reflexion, own, PromptForm::Compact), None);
    assert_eq!(PromptMethod::named("a-mem").unwrap(), PromptMethod::AMem);
    assert!(PromptMethod::named("amem").unwrap_err().to_string().contains("a-mem"));
}

#[test]
fn method_hashes_differ_and_plain_methods_hash_their_config() {
    let hash = |prompt_method, scope| factory("kuhn", prompt_method, scope).method_hash();
    let own = MemoryScope::MetaEpisode;
    let mut all: Vec<_> = PromptMethod::ALL.into_iter().map(|a| hash(a, own)).collect();
    all.extend([hash(PromptMethod::AMem, MemoryScope::Shared), hash(PromptMethod::Memento, MemoryScope::Shared)]);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 7);
    assert_eq!(hash(PromptMethod::Reflexion, own), mage_env::Hash::of(&config(PromptMethod::Reflexion)));
}
