//! Memories of prompt methods, with a model that fails or panics during the evaluation.

use crate::faulty_kuhn::{Fault, FaultyKuhn, task_number};
use mage_core::{EpisodeConfig, Lexical, MemoryFactory, MemoryScope, PromptMethod, Trajectory, prompt::PromptLibrary};
use mage_engine::{
    BoxFuture, ChatCompletion, ChatModel, ChatRequest, ChatUsage, Error, FinishReason, Result, SamplingParams, Thinking,
};
use mage_env::{EnvSpec, Hash, Seed, Task};
use mage_train::{
    TaskSet,
    eval::Evaluator,
    eval::store::{TrajectoryStore, read_trajectories},
    policy::{DecodingConfig, NamedPolicy},
    rollout::MetaEpisodeBuilder,
    train::runtime,
};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Responds to every prompt differently, so that the content of the memory shows. Fails after `remaining` responses.
struct FailingModel {
    remaining: AtomicUsize,
    /// Whether it panics instead of returning an error.
    panics: bool,
}

impl ChatModel for FailingModel {
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
            assert!(remaining.is_ok() || !self.panics, "the model panicked");
            remaining.map_err(|_| Error::engine("failing", "unreachable"))?;
            Ok(ChatCompletion { text, finish: FinishReason::Stop, usage: ChatUsage::default() })
        })
    }
}

fn evaluator(prompt_method: PromptMethod, scope: MemoryScope, responses: usize) -> Arc<Evaluator> {
    faulty_evaluator(prompt_method, scope, responses, |_| None)
}

fn faulty_evaluator(
    prompt_method: PromptMethod,
    scope: MemoryScope,
    responses: usize,
    fault: impl Fn(&Task) -> Option<Fault> + Send + Sync + 'static,
) -> Arc<Evaluator> {
    let env_spec: Arc<dyn EnvSpec> = Arc::new(FaultyKuhn::new(fault));
    let episode_config = EpisodeConfig { episodes: 2, ..EpisodeConfig::default() };
    let episode_config = prompt_method.configure(episode_config);
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let memories = MemoryFactory::new(
        prompt_method,
        scope,
        Arc::new(Lexical),
        Arc::new(episode_config.clone()),
        Arc::clone(&prompts),
    );
    let decoding = DecodingConfig { params: SamplingParams::default(), thinking: Thinking::Off };
    let model = Arc::new(FailingModel { remaining: responses.into(), panics: false });
    let builder = MetaEpisodeBuilder::new(Arc::clone(&env_spec), prompts, episode_config);
    Arc::new(Evaluator {
        builder: builder.with_memories(Arc::new(memories.unwrap())),
        policy: NamedPolicy::chat("failing", "failing", model, decoding, 4),
        task_set: TaskSet::new(&*env_spec, &env_spec.default_population(), "train", 12, Seed::new(3)).unwrap(),
        seed: Seed::new(4),
        exact_max_states: 0,
        policy_must_not_fail: false,
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
        let start = |responses| evaluator(prompt_method, MemoryScope::Shared, responses);
        let whole = dir.path().join(format!("{}-whole", prompt_method.name()));
        start(10_000).run_into(runtime.handle(), &mut TrajectoryStore::open(&whole).unwrap(), |_, _| ()).unwrap();
        let whole = finished(&whole);
        let first_prompt_len = |t: &Trajectory| t.requests[0].messages[0].content.len();
        assert!(
            first_prompt_len(&whole[11]) > first_prompt_len(&whole[0]),
            "prompts of later tasks contain the memory of earlier ones"
        );
        let parts = dir.path().join(format!("{}-parts", prompt_method.name()));
        let error =
            start(25).run_into(runtime.handle(), &mut TrajectoryStore::open(&parts).unwrap(), |_, _| ()).unwrap_err();
        assert!(error.to_string().contains("later tasks depend on the memory of this one"), "{error}");
        let stored = finished(&parts).len();
        assert!((1..12).contains(&stored));
        start(10_000).run_into(runtime.handle(), &mut TrajectoryStore::open(&parts).unwrap(), |_, _| ()).unwrap();
        assert_eq!(finished(&parts), whole, "equal text, in the order of the task set");
    }
}

#[test]
fn a_task_that_panics_leaves_no_trace_in_a_shared_memory() {
    let runtime = runtime(2).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let fails = |task: &Task| task_number(task).is_multiple_of(4);
    for prompt_method in [PromptMethod::AMem, PromptMethod::Memento] {
        // With `PanicInLaterEpisode`, the memory has recorded the first episode.
        let play = |path: &Path, fault: Option<Fault>, responses| {
            let fault = move |task: &Task| fault.filter(|_| fails(task));
            let evaluator = faulty_evaluator(prompt_method, MemoryScope::Shared, responses, fault);
            let mut store = TrajectoryStore::open(path).unwrap();
            let mut failures = 0;
            let add = |_, t: Trajectory| failures += usize::from(t.error.is_some());
            evaluator.run_into(runtime.handle(), &mut store, add).map(|()| failures)
        };
        let path = |name: &str| dir.path().join(format!("{}-{name}", prompt_method.name()));
        let early = play(&path("build"), Some(Fault::PanicInBuild), 10_000).unwrap();
        let late = play(&path("late"), Some(Fault::PanicInLaterEpisode), 10_000).unwrap();
        assert!((1..12).contains(&early) && early == late, "the evaluation completes");
        let (early, late_tasks) = (finished(&path("build")), finished(&path("late")));
        assert_eq!(early, late_tasks, "{}", prompt_method.name());
        // Interrupted, resumed with the same faults, and then without: the memory is restored in the order of play.
        let parts = path("parts");
        play(&parts, Some(Fault::PanicInLaterEpisode), 25).unwrap_err();
        assert_eq!(play(&parts, Some(Fault::PanicInLaterEpisode), 10_000).unwrap(), late);
        assert_eq!(finished(&parts), late_tasks);
        assert_eq!(play(&parts, Some(Fault::PanicInLaterEpisode), 10_000).unwrap(), late, "they fail again");
        play(&parts, None, 5).unwrap_err();
        assert_eq!(play(&parts, None, 10_000).unwrap(), 0);
        assert_eq!(finished(&parts).len(), 12);
        assert_eq!(&finished(&parts)[..late_tasks.len()], late_tasks, "failed tasks come last");
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
        let start = |responses| evaluator(prompt_method, MemoryScope::MetaEpisode, responses);
        let (once, twice) = (dir.path().join("once"), dir.path().join("twice"));
        let whole = start(10_000);
        whole.run_into(runtime.handle(), &mut TrajectoryStore::open(&once).unwrap(), |_, _| ()).unwrap();
        let requests: usize = finished(&once).iter().map(|t| t.requests.len()).sum();
        assert_eq!(whole.policy.counter.completions(), requests as u64, "{}", prompt_method.name());
        let mut store = TrajectoryStore::open(&twice).unwrap();
        let mut failures = 0;
        let first = start(25).run_into(runtime.handle(), &mut store, |_, r| failures += usize::from(r.error.is_some()));
        assert!(first.is_ok() || first.unwrap_err().to_string().contains("consecutive tasks failed"));
        assert!(failures > 0 && store.len() < 12);
        drop(store);
        start(10_000).run_into(runtime.handle(), &mut TrajectoryStore::open(&twice).unwrap(), |_, _| ()).unwrap();
        assert_eq!(by_key(&twice), by_key(&once), "{}", prompt_method.name());
        for path in [once, twice] {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn a_panic_of_the_model_ends_only_its_task() {
    let runtime = runtime(2).unwrap();
    for prompt_method in PromptMethod::ALL {
        let trajectories = |responses, panics| {
            let mut evaluator = Arc::into_inner(evaluator(prompt_method, MemoryScope::MetaEpisode, 0)).unwrap();
            let model = Arc::new(FailingModel { remaining: AtomicUsize::new(responses), panics });
            let decoding = evaluator.policy.decoding.clone().unwrap();
            evaluator.policy = NamedPolicy::chat("failing", "failing", model, decoding, 4);
            let mut all = BTreeMap::new();
            let add = |task, trajectory: Trajectory| assert!(all.insert(task, trajectory).is_none());
            Arc::new(evaluator).run(runtime.handle(), add).unwrap();
            all
        };
        let (undisturbed, disturbed) = (trajectories(10_000, false), trajectories(25, true));
        assert_eq!(disturbed.len(), 12);
        let failed = disturbed
            .values()
            .filter_map(|t| t.error.as_ref())
            .inspect(|e| assert!(e.contains("the model panicked"), "{e}"));
        assert!((1..12).contains(&failed.count()), "{}", prompt_method.name());
        assert!(disturbed.iter().all(|(task, t)| t.error.is_some() || *t == undisturbed[task]));
    }
}
