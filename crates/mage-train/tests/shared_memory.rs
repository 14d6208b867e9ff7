//! Memories that all tasks share, through a model that fails in the middle.

use mage_core::{EpisodeConfig, Lexical, MemoryFactory, MemoryScope, PromptMethod, Trajectory, prompt::PromptLibrary};
use mage_engine::{
    BoxFuture, ChatCompletion, ChatPolicy, ChatRequest, ChatUsage, Error, FinishReason, Result, SamplingParams,
    Thinking,
};
use mage_env::{Hash, Registry, Seed};
use mage_train::{
    TaskSet,
    eval::store::{TrajectoryStore, read_trajectories},
    eval::{Agent, DecodingConfig, Evaluation, ModelAgent, runtime},
};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::runtime::Handle;

/// Says something else to every prompt, so that what is remembered shows; fails after so many answers.
struct Fickle {
    left: AtomicUsize,
}

impl ChatPolicy for Fickle {
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatCompletion>> {
        let prompt = &request.messages[0].content;
        let mark = Hash::of(prompt).to_string();
        let text = if prompt.contains("<plan>") {
            format!("<plan>{mark}</plan>")
        } else if prompt.contains("\"evolve\"") {
            r#"{"evolve": true, "actions": ["strengthen"], "links": [1], "tags": []}"#.to_owned()
        } else if prompt.contains("\"keywords\"") {
            format!(r#"{{"keywords": ["{mark}"], "context": "{mark}", "tags": []}}"#)
        } else {
            let action = if mark.as_bytes()[0].is_multiple_of(2) { "BET" } else { "PASS" };
            format!("<action>{action}</action>")
        };
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        Box::pin(async move {
            left.map_err(|_| Error::Engine { engine: "fickle".to_owned(), reason: "gone".to_owned() })?;
            Ok(ChatCompletion {
                text,
                finish: FinishReason::Stop,
                prompt_tokens: vec![],
                tokens: vec![],
                logprobs: vec![],
                weights: None,
                usage: ChatUsage::default(),
            })
        })
    }
}

fn evaluation(approach: PromptMethod, scope: MemoryScope, answers: usize, runtime: &Handle) -> Arc<Evaluation> {
    let registry = Registry::builtin();
    let env_spec = registry.get("kuhn").unwrap();
    let settings = EpisodeConfig { episodes: 2, ..EpisodeConfig::default() };
    let settings = Arc::new(approach.configure(settings));
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let maker = MemoryFactory::new(approach, scope, Arc::new(Lexical), Arc::clone(&settings), Arc::clone(&prompts));
    let drawn = DecodingConfig { params: SamplingParams::default(), thinking: Thinking::Off };
    let policy = Arc::new(Fickle { left: answers.into() });
    Arc::new(Evaluation {
        env_spec: Arc::clone(env_spec),
        prompts,
        episode_config: settings,
        memories: Some(Arc::new(maker.unwrap())),
        task_set: TaskSet::new(&env_spec.default_population(), "train", 2, 12, Seed::new(3)).unwrap(),
        agent: Agent::Model(ModelAgent::chat("fickle", "fickle", policy, drawn, runtime.clone(), 4)),
        seed: Seed::new(4),
        stop: Arc::default(),
    })
}

fn finished(path: &Path) -> Vec<Trajectory> {
    let all = read_trajectories(path).unwrap().map(|r| r.unwrap());
    all.filter(|r| r.error.is_none()).collect()
}

#[test]
fn a_shared_memory_is_the_same_after_an_interruption() {
    let runtime = runtime(2).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for approach in [PromptMethod::AMem, PromptMethod::Memento] {
        let start = |answers| evaluation(approach, MemoryScope::Shared, answers, runtime.handle());
        let whole = dir.path().join(format!("{}-whole", approach.name()));
        start(10_000).run_into(&mut TrajectoryStore::open(&whole).unwrap(), |_| ()).unwrap();
        let whole = finished(&whole);
        let marks = |r: &Trajectory| r.requests[0].messages[0].content.len();
        assert!(marks(&whole[11]) > marks(&whole[0]), "later tasks know of earlier ones");
        let parts = dir.path().join(format!("{}-parts", approach.name()));
        let error = start(25).run_into(&mut TrajectoryStore::open(&parts).unwrap(), |_| ()).unwrap_err();
        assert!(error.to_string().contains("later tasks depend on its memory"), "{error}");
        let so_far = finished(&parts).len();
        assert!((1..12).contains(&so_far));
        start(10_000).run_into(&mut TrajectoryStore::open(&parts).unwrap(), |_| ()).unwrap();
        assert_eq!(finished(&parts), whole, "word for word, in the panel's order");
    }
}

#[test]
fn tasks_with_memories_of_their_own_do_not_depend_on_company() {
    let runtime = runtime(2).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let by_key = |path: &Path| {
        let mut all = finished(path);
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    };
    for approach in PromptMethod::ALL {
        let start = |answers| evaluation(approach, MemoryScope::MetaEpisode, answers, runtime.handle());
        let (once, twice) = (dir.path().join("once"), dir.path().join("twice"));
        start(10_000).run_into(&mut TrajectoryStore::open(&once).unwrap(), |_| ()).unwrap();
        let mut store = TrajectoryStore::open(&twice).unwrap();
        let mut failures = 0;
        let first = start(25).run_into(&mut store, |r| failures += usize::from(r.error.is_some()));
        assert!(first.is_ok() || first.unwrap_err().to_string().contains("consecutive tasks failed"));
        assert!(failures > 0 && store.len() < 12);
        drop(store);
        start(10_000).run_into(&mut TrajectoryStore::open(&twice).unwrap(), |_| ()).unwrap();
        assert_eq!(by_key(&twice), by_key(&once), "{}", approach.name());
        for path in [once, twice] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
