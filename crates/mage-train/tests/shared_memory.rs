//! Memory shared between tasks, with a model that fails during the evaluation.

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

/// Responds to every prompt differently, so that the content of the memory shows. Fails after `remaining` responses.
struct FailingModel {
    remaining: AtomicUsize,
}

impl ChatPolicy for FailingModel {
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
        let remaining = self.remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        Box::pin(async move {
            remaining.map_err(|_| Error::Engine { engine: "failing".to_owned(), reason: "unreachable".to_owned() })?;
            Ok(ChatCompletion { text, finish: FinishReason::Stop, usage: ChatUsage::default() })
        })
    }
}

fn evaluation(prompt_method: PromptMethod, scope: MemoryScope, responses: usize, runtime: &Handle) -> Arc<Evaluation> {
    let registry = Registry::builtin();
    let env_spec = registry.get("kuhn").unwrap();
    let episode_config = EpisodeConfig { episodes: 2, ..EpisodeConfig::default() };
    let episode_config = Arc::new(prompt_method.configure(episode_config));
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let memories =
        MemoryFactory::new(prompt_method, scope, Arc::new(Lexical), Arc::clone(&episode_config), Arc::clone(&prompts));
    let decoding = DecodingConfig { params: SamplingParams::default(), thinking: Thinking::Off };
    let policy = Arc::new(FailingModel { remaining: responses.into() });
    Arc::new(Evaluation {
        env_spec: Arc::clone(env_spec),
        prompts,
        episode_config,
        memories: Some(Arc::new(memories.unwrap())),
        task_set: TaskSet::new(&env_spec.default_population(), "train", 2, 12, Seed::new(3)).unwrap(),
        agent: Agent::Model(ModelAgent::chat("failing", "failing", policy, decoding, runtime.clone(), 4)),
        seed: Seed::new(4),
        stop: Arc::default(),
    })
}

fn finished(path: &Path) -> Vec<Trajectory> {
    let all = read_trajectories(path).unwrap().map(|r| r.unwrap());
    all.filter(|r| r.error.is_none()).collect()
}

#[test]
fn a_shared_memory_is_restored_after_an_interruption() {
    let runtime = runtime(2).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for prompt_method in [PromptMethod::AMem, PromptMethod::Memento] {
        let start = |responses| evaluation(prompt_method, MemoryScope::Shared, responses, runtime.handle());
        let whole = dir.path().join(format!("{}-whole", prompt_method.name()));
        start(10_000).run_into(&mut TrajectoryStore::open(&whole).unwrap(), |_| ()).unwrap();
        let whole = finished(&whole);
        let first_prompt_len = |t: &Trajectory| t.requests[0].messages[0].content.len();
        assert!(
            first_prompt_len(&whole[11]) > first_prompt_len(&whole[0]),
            "prompts of later tasks contain the memory of earlier ones"
        );
        let parts = dir.path().join(format!("{}-parts", prompt_method.name()));
        let error = start(25).run_into(&mut TrajectoryStore::open(&parts).unwrap(), |_| ()).unwrap_err();
        assert!(error.to_string().contains("later tasks depend on its memory"), "{error}");
        let stored = finished(&parts).len();
        assert!((1..12).contains(&stored));
        start(10_000).run_into(&mut TrajectoryStore::open(&parts).unwrap(), |_| ()).unwrap();
        assert_eq!(finished(&parts), whole, "equal text, in the order of the task set");
    }
}

#[test]
fn tasks_with_separate_memories_do_not_depend_on_each_other() {
    let runtime = runtime(2).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let by_key = |path: &Path| {
        let mut all = finished(path);
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    };
    for prompt_method in PromptMethod::ALL {
        let start = |responses| evaluation(prompt_method, MemoryScope::MetaEpisode, responses, runtime.handle());
        let (once, twice) = (dir.path().join("once"), dir.path().join("twice"));
        start(10_000).run_into(&mut TrajectoryStore::open(&once).unwrap(), |_| ()).unwrap();
        let mut store = TrajectoryStore::open(&twice).unwrap();
        let mut failures = 0;
        let first = start(25).run_into(&mut store, |r| failures += usize::from(r.error.is_some()));
        assert!(first.is_ok() || first.unwrap_err().to_string().contains("consecutive tasks failed"));
        assert!(failures > 0 && store.len() < 12);
        drop(store);
        start(10_000).run_into(&mut TrajectoryStore::open(&twice).unwrap(), |_| ()).unwrap();
        assert_eq!(by_key(&twice), by_key(&once), "{}", prompt_method.name());
        for path in [once, twice] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
