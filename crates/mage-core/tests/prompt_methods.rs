//! Golden runs of every approach in every environment with a scripted model: the prompts it gets, the calls it is asked for,
//! and what memory holds in the end. After a deliberate change: `UPDATE_EXPECT=1 cargo test -p mage-core --test prompt_methods`,
//! and read the difference.

mod common;

use common::transcript;
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
    env_spec.default_population().draw("train", env_spec.info().seats, Seed::new(3)).unwrap()
}

fn settings(approach: PromptMethod) -> EpisodeConfig {
    approach.configure(EpisodeConfig { episodes: 3, max_turns: 2, ..EpisodeConfig::default() })
}

fn maker(env: &str, approach: PromptMethod, scope: MemoryScope) -> MemoryFactory {
    let prompts = PromptLibrary::builtin().get(env).unwrap();
    MemoryFactory::new(approach, scope, Arc::new(Lexical), Arc::new(settings(approach)), prompts).unwrap()
}

/// Plays a task and gives back the record and what memory holds.
fn play(maker: &MemoryFactory, task: &Task, mut model: impl FnMut(&Request) -> String) -> (Trajectory, Value) {
    let env = Registry::builtin().build(task).unwrap();
    let prompts = PromptLibrary::builtin().get(task.env.as_str()).unwrap();
    let settings = Arc::new(settings(maker.prompt_method()));
    let mut meta = MetaEpisode::with_memory(task.clone(), env, prompts, settings, maker.make(), Seed::new(5)).unwrap();
    loop {
        match meta.advance().unwrap() {
            Next::Done(record) => return (*record, meta.memory().contents()),
            Next::Request(call) => meta.submit(call.id, Ok(Completion::from_text(model(&call)))).unwrap(),
        }
    }
}

/// What the scripted model does in each environment.
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

/// A model that plays by turns and answers memory's questions well, sloppily and badly.
fn scripted(env: &str) -> impl FnMut(&Request) -> String {
    let mut moves = actions(env).into_iter().cycle();
    let (mut plans, mut notes) = (0, 0);
    move |call| {
        match call.body.kind {
        RequestKind::Play => format!("<think>Hm.</think>I choose: <action>{}</action>", moves.next().unwrap()),
        RequestKind::Reflect => format!("<remark>Episode {} taught me patience.</remark>", call.episode),
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
    for approach in PromptMethod::ALL {
        let (record, memory) = play(&maker(env, approach, MemoryScope::MetaEpisode), &task(env), scripted(env));
        let asked: Vec<String> = record.requests.iter().map(|c| format!("{:?}", c.kind)).collect();
        let text = format!(
            "requests: {}\n\n{}======== memory\n{memory:#}\n",
            asked.join(", "),
            transcript(&record).replace(" \n", "\n")
        );
        let file = format!("{}/tests/golden/prompt_methods/{env}_{}.txt", env!("CARGO_MANIFEST_DIR"), approach.name());
        expect_file![file].assert_eq(&text);
    }
}

#[test]
fn kuhn() {
    golden("kuhn");
}

#[test]
fn tictactoe() {
    golden("tictactoe");
}

#[test]
fn sokoban() {
    golden("sokoban");
}

#[test]
fn alfworld() {
    golden("alfworld");
}

#[test]
fn webshop() {
    golden("webshop");
}

#[test]
fn clean_slates_know_nothing_of_earlier_episodes() {
    for approach in [PromptMethod::React, PromptMethod::Cot] {
        let (record, memory) =
            play(&maker("kuhn", approach, MemoryScope::MetaEpisode), &task("kuhn"), scripted("kuhn"));
        assert!(
            record.requests.iter().all(|c| c.kind == RequestKind::Play && !c.messages[0].content.contains("pisode"))
        );
        assert!(memory.is_null() || memory.as_array().is_some_and(Vec::is_empty));
    }
}

#[test]
fn a_failed_memory_call_leaves_the_store_unchanged_and_is_counted() {
    let failed = |record: &Trajectory| {
        let failed = record.requests.iter().filter(|c| c.kind != RequestKind::Play && c.invalid.is_some());
        failed.map(|c| (c.kind, c.episode)).collect::<Vec<_>>()
    };
    let good = r#"{"keywords": ["a"], "context": "b", "tags": ["c"]}"#;
    // No note can be described: none is kept, and nobody is asked to link one.
    let notes = maker("kuhn", PromptMethod::AMem, MemoryScope::MetaEpisode);
    let (record, memory) = play(&notes, &task("kuhn"), |call| match call.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        _ => "{\"keywords\": [".to_owned(),
    });
    assert_eq!(failed(&record), [(RequestKind::Note, 1), (RequestKind::Note, 2)]);
    assert_eq!(memory, Value::Array(vec![]));
    // Notes are described, but what to link cannot be read: they stay as they are.
    let (record, memory) = play(&notes, &task("kuhn"), |call| match call.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        RequestKind::Note => good.to_owned(),
        _ => "<think>{\"evolve\": true, \"actions\": [\"strengthen\"], \"links\": [1]}".to_owned(),
    });
    assert_eq!(failed(&record), [(RequestKind::Evolve, 2)]);
    let notes = memory.as_array().unwrap();
    assert_eq!(notes.len(), 2);
    assert!(notes.iter().all(|n| n["links"] == Value::Array(vec![]) && n["context"] == "b"));
    // A plan that is none: the episode is played without.
    let cases = maker("kuhn", PromptMethod::Memento, MemoryScope::MetaEpisode);
    let (record, memory) = play(&cases, &task("kuhn"), |call| match call.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        _ => "no plan".to_owned(),
    });
    assert_eq!(failed(&record), [(RequestKind::Plan, 0), (RequestKind::Plan, 1), (RequestKind::Plan, 2)]);
    assert_eq!(memory.as_array().unwrap().len(), 2);
    assert!(memory.as_array().unwrap().iter().all(|c| c["plan"].is_null()));
}

#[test]
fn tasks_learn_from_each_other_only_where_memory_is_shared() {
    let model = |call: &Request| match call.body.kind {
        RequestKind::Play => "<action>BET</action>".to_owned(),
        RequestKind::Plan => "<plan>MARKER</plan>".to_owned(),
        RequestKind::Note => r#"{"keywords": ["MARKER"], "context": "MARKER", "tags": []}"#.to_owned(),
        _ => r#"{"evolve": false}"#.to_owned(),
    };
    let first_prompt_knows = |maker: &MemoryFactory| {
        let (first, _) = play(maker, &task("kuhn"), model);
        assert!(!first.requests[0].messages[0].content.contains("MARKER"));
        let (second, memory) = play(maker, &task("kuhn"), model);
        let last_recorded = second.requests.iter().any(|c| c.episode == 3);
        (second.requests[0].messages[0].content.contains("MARKER"), memory.as_array().unwrap().len(), last_recorded)
    };
    for (approach, asks_to_record) in [(PromptMethod::AMem, true), (PromptMethod::Memento, false)] {
        assert_eq!(first_prompt_knows(&maker("kuhn", approach, MemoryScope::MetaEpisode)), (false, 2, false));
        // The last episode of a task is of use to the next task.
        assert_eq!(first_prompt_knows(&maker("kuhn", approach, MemoryScope::Shared)), (true, 6, asks_to_record));
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let refusal = |approach: PromptMethod, scope, prompt_form| {
        let settings = Arc::new(EpisodeConfig { prompt_form, ..settings(approach) });
        MemoryFactory::new(approach, scope, Arc::new(Lexical), settings, Arc::clone(&prompts))
            .err()
            .map(|e| e.to_string())
    };
    let own = MemoryScope::MetaEpisode;
    assert!(
        refusal(PromptMethod::Reflexion, MemoryScope::Shared, PromptForm::Full)
            .unwrap()
            .contains("no memory that tasks")
    );
    assert!(refusal(PromptMethod::AMem, own, PromptForm::Compact).unwrap().contains("needs full prompts"));
    assert_eq!(refusal(PromptMethod::Reflexion, own, PromptForm::Compact), None);
    assert_eq!(PromptMethod::named("a-mem").unwrap(), PromptMethod::AMem);
    assert!(PromptMethod::named("amem").unwrap_err().to_string().contains("a-mem"));
}

#[test]
fn methods_differ_in_their_hashes_and_plain_ones_are_known_by_their_settings() {
    let hash = |approach, scope| maker("kuhn", approach, scope).method_hash();
    let own = MemoryScope::MetaEpisode;
    let mut all: Vec<_> = PromptMethod::ALL.into_iter().map(|a| hash(a, own)).collect();
    all.extend([hash(PromptMethod::AMem, MemoryScope::Shared), hash(PromptMethod::Memento, MemoryScope::Shared)]);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 7);
    assert_eq!(hash(PromptMethod::Reflexion, own), mage_env::Hash::of(&settings(PromptMethod::Reflexion)));
}
