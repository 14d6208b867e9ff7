//! The meta-episode: a state machine over episodes and memory.
//!
//! A meta-episode plays an episode, reflects on it, plays again with the reflection in memory, and so on.
//! [`MetaEpisode`] is driven from outside: [`advance`](MetaEpisode::advance) returns one [`Request`] at a time, and
//! [`submit`](MetaEpisode::submit) takes its completion. The caller decides about threads and batching, so thousands
//! can be in flight and a test can drive one step by step.
//!
//! ```
//! use mage_core::{Completion, EpisodeConfig, MetaEpisode, Next, RequestKind, prompt::PromptLibrary};
//! use mage_env::{Registry, Seed};
//! use std::sync::Arc;
//!
//! let registry = Registry::builtin();
//! let task = registry.get("kuhn")?.default_population().sample_task("train", 2, Seed::new(1))?;
//! let env = registry.build(&task)?;
//! let prompts = PromptLibrary::builtin().get("kuhn")?;
//! let mut meta = MetaEpisode::new(task, env, prompts, Arc::new(EpisodeConfig::default()), Seed::new(7))?;
//! let trajectory = loop {
//!     match meta.advance()? {
//!         Next::Done(trajectory) => break trajectory,
//!         Next::Request(request) => {
//!             let text = match request.body.kind {
//!                 RequestKind::Play => "<action>BET</action>",
//!                 _ => "<remark>I always bet.</remark>",
//!             };
//!             meta.submit(request.id, Ok(Completion::from_text(text)))?;
//!         }
//!     }
//! };
//! assert_eq!(trajectory.episodes.len(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{
    Completion, EpisodeConfig, Error, Memory, MemoryStep, Message, RecallQuery, Request, RequestBody, RequestId,
    RequestKind, RequestRecord, Result, Trajectory, TrajectoryKey,
    episode::{Episode, Turn},
    memory::{EpisodicMemory, FinishedEpisode},
    parse,
    prompt::{MemoryBlock, PlayView, PromptForm, PromptSet},
};
use mage_env::{End, Env, GameTree, Hash, ParsedAction, Seed, Task};
use std::{mem, sync::Arc};

/// The next step of a meta-episode.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// A request that needs a completion.
    Request(Request),
    /// The meta-episode has ended.
    Done(Box<Trajectory>),
}

/// N episodes of one task, with memory between them.
pub struct MetaEpisode {
    task: Task,
    env: Box<dyn Env>,
    prompts: Arc<PromptSet>,
    config: Arc<EpisodeConfig>,
    memory: Box<dyn Memory>,
    seed: Seed,
    episodes: Vec<Episode>,
    requests: Vec<RequestRecord>,
    error: Option<String>,
    stage: MetaEpisodeStage,
    /// Completions of the memory's requests in the current stage.
    completions: Vec<Completion>,
    pending: Option<Request>,
    /// Precomputed hash of the prompt method, if the caller provided one.
    method_hash: Option<Hash>,
}

/// The step to take when no request is pending.
#[derive(Clone, Debug, PartialEq)]
enum MetaEpisodeStage {
    /// Start an episode.
    Begin,
    /// Recall memory for the prompt.
    Recall,
    /// Request an action.
    Play(MemoryBlock),
    /// Record the finished episode in memory.
    Record,
    /// The meta-episode has ended.
    Over,
}

impl MetaEpisode {
    /// A meta-episode with the paper's memory. `seed` determines the agent's randomness; the task has a seed of its
    /// own.
    pub fn new(
        task: Task,
        env: Box<dyn Env>,
        prompts: Arc<PromptSet>,
        config: Arc<EpisodeConfig>,
        seed: Seed,
    ) -> Result<Self> {
        let memory = EpisodicMemory::new(Arc::clone(&config), Arc::clone(&prompts));
        Self::with_memory(task, env, prompts, config, Box::new(memory), seed)
    }

    /// A meta-episode with a given memory.
    pub fn with_memory(
        task: Task,
        env: Box<dyn Env>,
        prompts: Arc<PromptSet>,
        config: Arc<EpisodeConfig>,
        memory: Box<dyn Memory>,
        seed: Seed,
    ) -> Result<Self> {
        config.validate()?;
        Ok(MetaEpisode {
            task,
            env,
            prompts,
            config,
            memory,
            seed,
            episodes: Vec::new(),
            requests: Vec::new(),
            error: None,
            stage: MetaEpisodeStage::Begin,
            completions: Vec::new(),
            pending: None,
            method_hash: None,
        })
    }

    /// Sets the hash of the prompt method. Without it, every meta-episode hashes its configuration.
    #[must_use]
    pub fn with_method_hash(mut self, method_hash: Hash) -> Self {
        self.method_hash = Some(method_hash);
        self
    }

    /// The task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The memory.
    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// The environment in its current state.
    pub fn env(&self) -> &dyn Env {
        &*self.env
    }

    /// The current episode, or the last one.
    pub fn episode(&self) -> Option<&Episode> {
        self.episodes.last()
    }

    /// Runs until a completion is needed or the meta-episode ends. Idempotent: a second call returns the same request.
    /// After an error the meta-episode is over and its trajectory contains the error.
    pub fn advance(&mut self) -> Result<Next> {
        let next = self.run();
        if let Err(e) = &next {
            self.error = Some(e.to_string());
            self.stage = MetaEpisodeStage::Over;
        }
        next
    }

    fn run(&mut self) -> Result<Next> {
        loop {
            if let Some(request) = &self.pending {
                return Ok(Next::Request(request.clone()));
            }
            match mem::replace(&mut self.stage, MetaEpisodeStage::Over) {
                MetaEpisodeStage::Over => return Ok(Next::Done(Box::new(self.trajectory()))),
                MetaEpisodeStage::Begin => {
                    let start = self.env.reset(self.episodes.len() as u32);
                    self.episodes.push(Episode { start, ..Episode::default() });
                    self.stage = MetaEpisodeStage::Recall;
                }
                MetaEpisodeStage::Recall => {
                    let current = self.episodes.last().expect("an episode has started");
                    let turn = current.turns.len() as u32;
                    let query = RecallQuery { episode: self.episode_index(), turn, seat: self.task.seat, current };
                    match self.memory.recall(&query, &self.completions)? {
                        MemoryStep::Request(body) => self.issue(body, MetaEpisodeStage::Recall),
                        MemoryStep::Done(block, unusable) => {
                            self.close_completions(unusable);
                            self.stage = MetaEpisodeStage::Play(block);
                        }
                    }
                }
                MetaEpisodeStage::Play(block) => {
                    let body = self.play_request(&block)?;
                    self.issue(body, MetaEpisodeStage::Play(block));
                }
                MetaEpisodeStage::Record => self.record_episode()?,
            }
        }
    }

    /// Submits the completion of the pending request. An `Err` is the reason why there is none: it ends the
    /// meta-episode and becomes the error of its trajectory.
    pub fn submit(&mut self, id: RequestId, completion: std::result::Result<Completion, String>) -> Result<()> {
        let Some(request) = self.pending.take_if(|r| r.id == id) else {
            return Err(Error::NotPending { got: id, pending: self.pending.as_ref().map(|r| r.id) });
        };
        let completion = match completion {
            Ok(completion) => completion,
            Err(problem) => {
                self.error = Some(problem);
                self.stage = MetaEpisodeStage::Over;
                return Ok(());
            }
        };
        let is_play = request.body.kind == RequestKind::Play;
        let action = is_play.then(|| self.parse_action(&completion));
        if !is_play {
            self.completions.push(completion.clone());
        }
        self.requests.push(RequestRecord {
            id: request.id,
            kind: request.body.kind,
            episode: request.episode,
            turn: request.turn,
            trainable: request.body.trainable,
            messages: request.body.messages,
            allowed: request.body.allowed,
            completion,
            invalid: None,
        });
        if let Some(action) = action {
            self.act(request.id, action);
        }
        Ok(())
    }

    /// Ends the meta-episode with an error and returns its trajectory. The driver calls it after a panic of the
    /// environment or a failure of the policy.
    pub fn fail(&mut self, error: String) -> Trajectory {
        self.error = Some(error);
        self.stage = MetaEpisodeStage::Over;
        self.pending = None;
        self.trajectory()
    }

    fn episode_index(&self) -> u32 {
        self.episodes.len() as u32 - 1
    }

    /// Makes `body` the pending request; `stage` continues after its completion.
    fn issue(&mut self, body: RequestBody, stage: MetaEpisodeStage) {
        // A request between two episodes belongs to the later one.
        let between = stage == MetaEpisodeStage::Record;
        let episode = self.episode_index() + u32::from(between);
        let turn = if between { 0 } else { self.episodes.last().map_or(0, |e| e.turns.len() as u32) };
        let id = RequestId(self.requests.len() as u32);
        let seed = self.seed.child("request").at(u64::from(id.0));
        self.stage = stage;
        self.pending = Some(Request { id, episode, turn, seed, body });
    }

    /// The play request for a hypothetical state of the current episode, with `legal` as its legal actions; `None`
    /// unless a play request is pending. Exact evaluation scores the policy in states that were not visited.
    pub fn counterfactual_request(&self, episode: &Episode, legal: Option<Vec<String>>) -> Option<Result<RequestBody>> {
        match (&self.pending, &self.stage) {
            (Some(_), MetaEpisodeStage::Play(block)) => Some(self.play_request_for(block, episode, legal)),
            _ => None,
        }
    }

    /// The game tree of the current episode; see [`Env::game_tree`].
    pub fn game_tree(&self, limit: usize) -> Option<GameTree> {
        self.env.game_tree(self.episode_index(), limit)
    }

    fn play_request(&self, block: &MemoryBlock) -> Result<RequestBody> {
        let legal = match self.config.prompt_form {
            PromptForm::Full => self.env.legal(),
            PromptForm::Compact => self.env.compact_legal(),
        };
        self.play_request_for(block, self.episodes.last().expect("an episode has started"), legal)
    }

    fn play_request_for(
        &self,
        block: &MemoryBlock,
        episode: &Episode,
        legal: Option<Vec<String>>,
    ) -> Result<RequestBody> {
        let view = PlayView {
            seat: self.task.seat,
            memory: block,
            number: if self.memory.reveals_past_episodes() { self.episode_index() + 1 } else { 0 },
            episode,
            legal: legal.as_deref(),
            turns_left: self.config.max_turns - episode.turns.len() as u32,
        };
        let slots = self.config.compact_slots(&block.entries);
        let prompt = self.prompts.play(self.config.prompt_form, &view, &slots)?;
        Ok(RequestBody {
            kind: RequestKind::Play,
            messages: vec![Message::user(prompt)],
            allowed: if self.config.mask_actions { legal } else { None },
            max_tokens: self.config.play_tokens,
            trainable: true,
        })
    }

    fn parse_action(&self, completion: &Completion) -> ParsedAction {
        let text = match self.config.prompt_form {
            PromptForm::Full => parse::last_tag(&completion.text, "action").map_err(|e| e.explain("action")),
            PromptForm::Compact => Ok(completion.text.trim()),
        };
        match text {
            Ok(text) => self.env.parse(text),
            Err(reason) => ParsedAction::Invalid { reason },
        }
    }

    fn act(&mut self, request: RequestId, action: ParsedAction) {
        let anchor = self.env.anchor();
        let step = self.env.step(&action);
        let invalid = match &action {
            ParsedAction::Invalid { reason } => Some(reason.clone()),
            ParsedAction::Act(a) if !step.valid => Some(format!("{a} is not possible here")),
            ParsedAction::Act(_) => None,
        };
        self.requests.last_mut().expect("the request was just recorded").invalid = invalid;
        let max_turns = self.config.max_turns as usize;
        let episode = self.episodes.last_mut().expect("an episode has started");
        episode.turns.push(Turn {
            request,
            anchor,
            action,
            valid: step.valid,
            reward: step.reward,
            observation: step.observation,
        });
        episode.end = step.end.or((episode.turns.len() >= max_turns).then_some(End::Truncated));
        self.stage = if episode.end.is_none() { MetaEpisodeStage::Recall } else { self.stage_after_episode() };
    }

    /// Whether the current episode is the last: by number or, with early stop, because it was won.
    fn is_last_episode(&self) -> bool {
        let won = self.episodes.last().is_some_and(Episode::won);
        let last = self.episodes.len() as u32 == self.config.episodes;
        last || (won && self.config.early_stop)
    }

    fn stage_after_episode(&self) -> MetaEpisodeStage {
        if self.is_last_episode() && !self.memory.is_shared() {
            MetaEpisodeStage::Over
        } else {
            MetaEpisodeStage::Record
        }
    }

    /// Marks the completions that memory could not use, and clears them.
    fn close_completions(&mut self, unusable: Vec<(usize, String)>) {
        let first = self.requests.len() - self.completions.len();
        for (i, reason) in unusable {
            self.requests[first + i].invalid = Some(reason);
        }
        self.completions.clear();
    }

    fn record_episode(&mut self) -> Result<()> {
        let index = self.episode_index();
        let episode = self.episodes.last().expect("an episode has ended");
        let finished = FinishedEpisode { index, seat: self.task.seat, episode };
        match self.memory.record(&finished, &self.completions)? {
            MemoryStep::Request(body) => self.issue(body, MetaEpisodeStage::Record),
            MemoryStep::Done((), unusable) => {
                self.close_completions(unusable);
                self.stage = if self.is_last_episode() { MetaEpisodeStage::Over } else { MetaEpisodeStage::Begin };
            }
        }
        Ok(())
    }

    fn trajectory(&self) -> Trajectory {
        let task = self.task.hash();
        let last_weights = self.requests.iter().rev().find_map(|r| r.completion.weights.clone());
        Trajectory {
            key: TrajectoryKey {
                task_set: Hash::of(&[task]),
                task,
                method: self.method_hash.unwrap_or_else(|| Hash::of(&*self.config)),
                weights: last_weights.unwrap_or_default(),
                seed: self.seed,
            },
            task: self.task.clone(),
            stopped_early: self.error.is_none() && (self.episodes.len() as u32) < self.config.episodes,
            episodes: self.episodes.clone(),
            requests: self.requests.clone(),
            error: self.error.clone(),
        }
    }
}
