//! Golden runs of every approach in every environment with a scripted model: the prompts it gets, the calls it is asked for,
//! and what memory holds in the end. After a deliberate change: `UPDATE_EXPECT=1 cargo test -p mage-core --test approaches`,
//! and read the difference.

mod common;

use common::transcript;
use expect_test::expect_file;
use mage_core::{
    Answer, Approach, Call, EpisodeRecord, Lexical, MemoryMaker, MemoryScope, MetaEpisode, Next, Purpose, Settings,
    prompt::{PromptLibrary, Size},
};
use mage_env::{Registry, Seed, Task};
use serde_json::Value;
use std::sync::Arc;

fn task(env: &str) -> Task {
    let registry = Registry::builtin();
    let env_spec = registry.get(env).unwrap();
    env_spec.default_population().draw("train", env_spec.info().seats, Seed::new(3)).unwrap()
}

fn settings(approach: Approach) -> Settings {
    approach.settings(Settings { episodes: 3, max_turns: 2, ..Settings::default() })
}

fn maker(env: &str, approach: Approach, scope: MemoryScope) -> MemoryMaker {
    let prompts = PromptLibrary::builtin().get(env).unwrap();
    MemoryMaker::new(approach, scope, Arc::new(Lexical), Arc::new(settings(approach)), prompts).unwrap()
}

/// Plays a task and gives back the record and what memory holds.
fn play(maker: &MemoryMaker, task: &Task, mut model: impl FnMut(&Call) -> String) -> (EpisodeRecord, Value) {
    let env = Registry::builtin().build(task).unwrap();
    let prompts = PromptLibrary::builtin().get(task.env.as_str()).unwrap();
    let settings = Arc::new(settings(maker.approach()));
    let mut meta = MetaEpisode::with_memory(task.clone(), env, prompts, settings, maker.make(), Seed::new(5)).unwrap();
    loop {
        match meta.advance().unwrap() {
            Next::Done(record) => return (*record, meta.memory().contents()),
            Next::Call(call) => meta.answer(call.id, Ok(Answer::text(model(&call)))).unwrap(),
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
fn scripted(env: &str) -> impl FnMut(&Call) -> String {
    let mut moves = actions(env).into_iter().cycle();
    let (mut plans, mut notes) = (0, 0);
    move |call| {
        match call.request.purpose {
        Purpose::Play => format!("<think>Hm.</think>I choose: <action>{}</action>", moves.next().unwrap()),
        Purpose::Reflect => format!("<remark>Episode {} taught me patience.</remark>", call.episode),
        Purpose::Plan => {
            plans += 1;
            if plans == 3 { "I would rather not.".to_owned() } else { format!("<plan>Plan {plans}: look first.</plan>") }
        }
        Purpose::Note => {
            notes += 1;
            format!(
                "```json\n{{'keywords': ['first', 'move', 'loss {notes}',], \"context\": \"What episode {notes} showed.\", \
                 'tags': 'opening, habit'}}\n```"
            )
        }
        Purpose::Evolve => r#"{"evolve": true, "actions": ["strengthen", "update_neighbor"], "links": [1, 44],
            "tags": ["opening", "habit", "again"], "neighbors": [{"id": 1, "context": "Seen twice now.", "tags": ["habit"]}]}"#
            .to_owned(),
    }
    }
}

fn golden(env: &str) {
    for approach in Approach::ALL {
        let (record, memory) = play(&maker(env, approach, MemoryScope::MetaEpisode), &task(env), scripted(env));
        let asked: Vec<String> = record.calls.iter().map(|c| format!("{:?}", c.purpose)).collect();
        let text = format!(
            "calls: {}\n\n{}======== memory\n{memory:#}\n",
            asked.join(", "),
            transcript(&record).replace(" \n", "\n")
        );
        let file = format!("{}/tests/golden/approaches/{env}_{}.txt", env!("CARGO_MANIFEST_DIR"), approach.name());
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
    for approach in [Approach::React, Approach::Cot] {
        let (record, memory) =
            play(&maker("kuhn", approach, MemoryScope::MetaEpisode), &task("kuhn"), scripted("kuhn"));
        assert!(record.calls.iter().all(|c| c.purpose == Purpose::Play && !c.messages[0].content.contains("pisode")));
        assert!(memory.is_null() || memory.as_array().is_some_and(Vec::is_empty));
    }
}

#[test]
fn a_failed_memory_call_leaves_the_store_unchanged_and_is_counted() {
    let failed = |record: &EpisodeRecord| {
        let failed = record.calls.iter().filter(|c| c.purpose != Purpose::Play && c.invalid.is_some());
        failed.map(|c| (c.purpose, c.episode)).collect::<Vec<_>>()
    };
    let good = r#"{"keywords": ["a"], "context": "b", "tags": ["c"]}"#;
    // No note can be described: none is kept, and nobody is asked to link one.
    let notes = maker("kuhn", Approach::AMem, MemoryScope::MetaEpisode);
    let (record, memory) = play(&notes, &task("kuhn"), |call| match call.request.purpose {
        Purpose::Play => "<action>BET</action>".to_owned(),
        _ => "{\"keywords\": [".to_owned(),
    });
    assert_eq!(failed(&record), [(Purpose::Note, 1), (Purpose::Note, 2)]);
    assert_eq!(memory, Value::Array(vec![]));
    // Notes are described, but what to link cannot be read: they stay as they are.
    let (record, memory) = play(&notes, &task("kuhn"), |call| match call.request.purpose {
        Purpose::Play => "<action>BET</action>".to_owned(),
        Purpose::Note => good.to_owned(),
        _ => "<think>{\"evolve\": true, \"actions\": [\"strengthen\"], \"links\": [1]}".to_owned(),
    });
    assert_eq!(failed(&record), [(Purpose::Evolve, 2)]);
    let notes = memory.as_array().unwrap();
    assert_eq!(notes.len(), 2);
    assert!(notes.iter().all(|n| n["links"] == Value::Array(vec![]) && n["context"] == "b"));
    // A plan that is none: the episode is played without.
    let cases = maker("kuhn", Approach::Memento, MemoryScope::MetaEpisode);
    let (record, memory) = play(&cases, &task("kuhn"), |call| match call.request.purpose {
        Purpose::Play => "<action>BET</action>".to_owned(),
        _ => "no plan".to_owned(),
    });
    assert_eq!(failed(&record), [(Purpose::Plan, 0), (Purpose::Plan, 1), (Purpose::Plan, 2)]);
    assert_eq!(memory.as_array().unwrap().len(), 2);
    assert!(memory.as_array().unwrap().iter().all(|c| c["plan"].is_null()));
}

#[test]
fn tasks_learn_from_each_other_only_where_memory_is_shared() {
    let model = |call: &Call| match call.request.purpose {
        Purpose::Play => "<action>BET</action>".to_owned(),
        Purpose::Plan => "<plan>MARKER</plan>".to_owned(),
        Purpose::Note => r#"{"keywords": ["MARKER"], "context": "MARKER", "tags": []}"#.to_owned(),
        _ => r#"{"evolve": false}"#.to_owned(),
    };
    let first_prompt_knows = |maker: &MemoryMaker| {
        let (first, _) = play(maker, &task("kuhn"), model);
        assert!(!first.calls[0].messages[0].content.contains("MARKER"));
        let (second, memory) = play(maker, &task("kuhn"), model);
        let last_recorded = second.calls.iter().any(|c| c.episode == 3);
        (second.calls[0].messages[0].content.contains("MARKER"), memory.as_array().unwrap().len(), last_recorded)
    };
    for (approach, asks_to_record) in [(Approach::AMem, true), (Approach::Memento, false)] {
        assert_eq!(first_prompt_knows(&maker("kuhn", approach, MemoryScope::MetaEpisode)), (false, 2, false));
        // The last episode of a task is of use to the next task.
        assert_eq!(first_prompt_knows(&maker("kuhn", approach, MemoryScope::Shared)), (true, 6, asks_to_record));
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let refusal = |approach: Approach, scope, size| {
        let settings = Arc::new(Settings { size, ..settings(approach) });
        MemoryMaker::new(approach, scope, Arc::new(Lexical), settings, Arc::clone(&prompts))
            .err()
            .map(|e| e.to_string())
    };
    let own = MemoryScope::MetaEpisode;
    assert!(refusal(Approach::Reflexion, MemoryScope::Shared, Size::Full).unwrap().contains("no memory that tasks"));
    assert!(refusal(Approach::AMem, own, Size::Compact).unwrap().contains("needs full prompts"));
    assert_eq!(refusal(Approach::Reflexion, own, Size::Compact), None);
    assert_eq!(Approach::named("a-mem").unwrap(), Approach::AMem);
    assert!(Approach::named("amem").unwrap_err().to_string().contains("a-mem"));
}

#[test]
fn methods_differ_in_their_hashes_and_plain_ones_are_known_by_their_settings() {
    let hash = |approach, scope| maker("kuhn", approach, scope).method();
    let own = MemoryScope::MetaEpisode;
    let mut all: Vec<_> = Approach::ALL.into_iter().map(|a| hash(a, own)).collect();
    all.extend([hash(Approach::AMem, MemoryScope::Shared), hash(Approach::Memento, MemoryScope::Shared)]);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 7);
    assert_eq!(hash(Approach::Reflexion, own), mage_env::Hash::of(&settings(Approach::Reflexion)));
}
