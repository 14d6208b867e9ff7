//! How does a meta-episode go?
//!
//! Play an episode, look back on it, play again with what was remembered, and so on. [`MetaEpisode`] is a state machine
//! driven from outside: it hands out one [`Request`] at a time and goes on when it is answered. Thousands can be in flight,
//! and a test can drive one by hand.
//!
//! ```
//! use mage_core::{Completion, MetaEpisode, Next, RequestKind, EpisodeConfig, prompt::PromptLibrary};
//! use mage_env::{Hash, Registry, Seed};
//! use std::sync::Arc;
//!
//! let registry = Registry::builtin();
//! let task = registry.get("kuhn")?.default_population().draw("train", 2, Seed::new(1))?;
//! let env = registry.build(&task)?;
//! let prompts = PromptLibrary::builtin().get("kuhn")?;
//! let mut meta = MetaEpisode::new(task, env, prompts, Arc::new(EpisodeConfig::default()), Seed::new(7))?;
//! let record = loop {
//!     match meta.advance()? {
//!         Next::Done(record) => break record,
//!         Next::Request(call) => {
//!             let text = match call.request.purpose {
//!                 RequestKind::Play => "<action>BET</action>",
//!                 _ => "<remark>I always bet.</remark>",
//!             };
//!             meta.answer(call.id, Ok(Completion::text(text)))?;
//!         }
//!     }
//! };
//! assert_eq!(record.episodes.len(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{
    Completion, EpisodeConfig, EpisodicMemory, Error, Memory, MemoryStep, Message, RecallQuery, Request, RequestBody,
    RequestId, RequestKind, RequestRecord, Result, Trajectory, TrajectoryKey,
    history::{Episode, Turn},
    memory::FinishedEpisode,
    parse,
    prompt::{MemoryBlock, PlayView, PromptForm, PromptSet},
};
use mage_env::{End, Env, GameTree, Hash, ParsedAction, Seed, Task};
use std::{mem, sync::Arc};

/// What a meta-episode needs next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// An answer to this.
    Request(Request),
    /// Nothing: it is over.
    Done(Box<Trajectory>),
}

/// N episodes of one task, with memory between them.
pub struct MetaEpisode {
    task: Task,
    env: Box<dyn Env>,
    prompts: Arc<PromptSet>,
    settings: Arc<EpisodeConfig>,
    memory: Box<dyn Memory>,
    seed: Seed,
    episodes: Vec<Episode>,
    calls: Vec<RequestRecord>,
    error: Option<String>,
    stage: Stage,
    /// Answers to what memory has asked for in the present stage.
    answers: Vec<Completion>,
    open: Option<Request>,
    /// The settings' hash, where it is known.
    method: Option<Hash>,
}

/// What happens when no call is open.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// An episode starts.
    Begin,
    /// Memory is asked what to show.
    Recall,
    /// An action is asked for.
    Play(MemoryBlock),
    /// Memory takes in the finished episode.
    Record,
    /// Nothing happens any more.
    Over,
}

impl MetaEpisode {
    /// A meta-episode with the paper's memory. `seed` is the agent's own luck, apart from the task's.
    pub fn new(
        task: Task,
        env: Box<dyn Env>,
        prompts: Arc<PromptSet>,
        settings: Arc<EpisodeConfig>,
        seed: Seed,
    ) -> Result<Self> {
        let memory = EpisodicMemory::new(Arc::clone(&settings), Arc::clone(&prompts));
        Self::with_memory(task, env, prompts, settings, Box::new(memory), seed)
    }

    /// A meta-episode with any memory.
    pub fn with_memory(
        task: Task,
        env: Box<dyn Env>,
        prompts: Arc<PromptSet>,
        settings: Arc<EpisodeConfig>,
        memory: Box<dyn Memory>,
        seed: Seed,
    ) -> Result<Self> {
        settings.check()?;
        Ok(MetaEpisode {
            task,
            env,
            prompts,
            settings,
            memory,
            seed,
            episodes: Vec::new(),
            calls: Vec::new(),
            error: None,
            stage: Stage::Begin,
            answers: Vec::new(),
            open: None,
            method: None,
        })
    }

    /// The hash of the settings, from whoever plays many meta-episodes with the same: it is then not worked out for each.
    #[must_use]
    pub fn with_method(mut self, method: Hash) -> Self {
        self.method = Some(method);
        self
    }

    /// The task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// What it remembers.
    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// The environment as it stands.
    pub fn env(&self) -> &dyn Env {
        &*self.env
    }

    /// The episode that is being played, or was played last.
    pub fn episode(&self) -> Option<&Episode> {
        self.episodes.last()
    }

    /// Goes on until an answer is needed or everything is over. Asking again changes nothing; after an error it is
    /// over, with the error in its record.
    pub fn advance(&mut self) -> Result<Next> {
        let next = self.go_on();
        if let Err(e) = &next {
            self.error = Some(e.to_string());
            self.stage = Stage::Over;
        }
        next
    }

    fn go_on(&mut self) -> Result<Next> {
        loop {
            if let Some(call) = &self.open {
                return Ok(Next::Request(call.clone()));
            }
            match mem::replace(&mut self.stage, Stage::Over) {
                Stage::Over => return Ok(Next::Done(Box::new(self.record()))),
                Stage::Begin => {
                    let start = self.env.reset(self.episodes.len() as u32);
                    self.episodes.push(Episode { start, ..Episode::default() });
                    self.stage = Stage::Recall;
                }
                Stage::Recall => {
                    let current = self.episodes.last().expect("an episode has begun");
                    let turn = current.turns.len() as u32;
                    let query = RecallQuery { episode: self.episode_index(), turn, seat: self.task.seat, current };
                    match self.memory.recall(&query, &self.answers)? {
                        MemoryStep::Request(request) => self.ask(request, Stage::Recall),
                        MemoryStep::Done(block, unusable) => {
                            self.close_answers(unusable);
                            self.stage = Stage::Play(block);
                        }
                    }
                }
                Stage::Play(block) => {
                    let request = self.play_request(&block)?;
                    self.ask(request, Stage::Play(block));
                }
                Stage::Record => self.take_in_episode()?,
            }
        }
    }

    /// Answers the open call, or says why it cannot be answered; then the meta-episode ends with that error in its
    /// record.
    pub fn answer(&mut self, id: RequestId, answer: std::result::Result<Completion, String>) -> Result<()> {
        let Some(call) = self.open.take_if(|c| c.id == id) else {
            return Err(Error::NotOpen { got: id, open: self.open.as_ref().map(|c| c.id) });
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(problem) => {
                self.error = Some(problem);
                self.stage = Stage::Over;
                return Ok(());
            }
        };
        let playing = call.request.purpose == RequestKind::Play;
        let action = playing.then(|| self.read_action(&answer));
        if !playing {
            self.answers.push(answer.clone());
        }
        self.calls.push(RequestRecord {
            id: call.id,
            purpose: call.request.purpose,
            episode: call.episode,
            turn: call.turn,
            trainable: call.request.trainable,
            messages: call.request.messages,
            allowed: call.request.allowed,
            answer,
            invalid: None,
        });
        if let Some(action) = action {
            self.act(call.id, action);
        }
        Ok(())
    }

    fn episode_index(&self) -> u32 {
        self.episodes.len() as u32 - 1
    }

    fn ask(&mut self, request: RequestBody, back_to: Stage) {
        // Between two episodes a call belongs to the one it will help.
        let between = back_to == Stage::Record;
        let episode = self.episode_index() + u32::from(between);
        let turn = if between { 0 } else { self.episodes.last().map_or(0, |e| e.turns.len() as u32) };
        let id = RequestId(self.calls.len() as u32);
        let seed = self.seed.child("call").at(u64::from(id.0));
        self.stage = back_to;
        self.open = Some(Request { id, episode, turn, seed, request });
    }

    /// What would be asked now if the present episode had gone as `episode` says and `legal` were possible; `None` unless
    /// an action is being asked for. For judging a policy at decisions it did not come to.
    pub fn request_if(&self, episode: &Episode, legal: Option<Vec<String>>) -> Option<Result<RequestBody>> {
        match (&self.open, &self.stage) {
            (Some(_), Stage::Play(block)) => Some(self.request_at(block, episode, legal)),
            _ => None,
        }
    }

    /// What can happen in the present episode; see [`Env::game_tree`].
    pub fn game_tree(&self, limit: usize) -> Option<GameTree> {
        self.env.game_tree(self.episode_index(), limit)
    }

    fn play_request(&self, block: &MemoryBlock) -> Result<RequestBody> {
        let legal = match self.settings.size {
            PromptForm::Full => self.env.legal(),
            PromptForm::Compact => self.env.compact_legal(),
        };
        self.request_at(block, self.episodes.last().expect("an episode has begun"), legal)
    }

    fn request_at(&self, block: &MemoryBlock, episode: &Episode, legal: Option<Vec<String>>) -> Result<RequestBody> {
        let view = PlayView {
            seat: self.task.seat,
            memory: block,
            number: if self.memory.continuous() { self.episode_index() + 1 } else { 0 },
            episode,
            legal: legal.as_deref(),
            turns_left: self.settings.max_turns - episode.turns.len() as u32,
        };
        let slots = self.settings.compact_slots(&block.entries);
        let prompt = self.prompts.play(self.settings.size, &view, &slots)?;
        Ok(RequestBody {
            purpose: RequestKind::Play,
            messages: vec![Message::user(prompt)],
            allowed: if self.settings.mask_actions { legal } else { None },
            max_tokens: self.settings.play_tokens,
            trainable: true,
        })
    }

    fn read_action(&self, answer: &Completion) -> ParsedAction {
        let text = match self.settings.size {
            PromptForm::Full => parse::tagged(&answer.text, "action").map_err(|e| e.explain("action")),
            PromptForm::Compact => Ok(answer.text.trim()),
        };
        match text {
            Ok(text) => self.env.parse(text),
            Err(reason) => ParsedAction::Invalid { reason },
        }
    }

    fn act(&mut self, call: RequestId, action: ParsedAction) {
        let anchor = self.env.anchor();
        let step = self.env.step(&action);
        let invalid = match &action {
            ParsedAction::Invalid { reason } => Some(reason.clone()),
            ParsedAction::Act(a) if !step.valid => Some(format!("{a} is not possible here")),
            ParsedAction::Act(_) => None,
        };
        self.calls.last_mut().expect("the call was just recorded").invalid = invalid;
        let max_turns = self.settings.max_turns as usize;
        let episode = self.episodes.last_mut().expect("an episode has begun");
        episode.turns.push(Turn {
            call,
            anchor,
            action,
            valid: step.valid,
            reward: step.reward,
            observation: step.observation,
        });
        episode.end = step.end.or((episode.turns.len() >= max_turns).then_some(End::Truncated));
        self.stage = if episode.end.is_none() { Stage::Recall } else { self.after_episode() };
    }

    /// Whether nothing is played after the present episode: it is the last one or, with early stop, it was won.
    fn was_last(&self) -> bool {
        let won = self.episodes.last().is_some_and(Episode::won);
        let last = self.episodes.len() as u32 == self.settings.episodes;
        last || (won && self.settings.early_stop)
    }

    fn after_episode(&self) -> Stage {
        if self.was_last() && !self.memory.outlives() { Stage::Over } else { Stage::Record }
    }

    /// Marks the answers that memory could not use; it has seen them all.
    fn close_answers(&mut self, unusable: Vec<(usize, String)>) {
        let first = self.calls.len() - self.answers.len();
        for (i, reason) in unusable {
            self.calls[first + i].invalid = Some(reason);
        }
        self.answers.clear();
    }

    fn take_in_episode(&mut self) -> Result<()> {
        let index = self.episode_index();
        let episode = self.episodes.last().expect("an episode has been played");
        let finished = FinishedEpisode { index, seat: self.task.seat, episode };
        match self.memory.record(&finished, &self.answers)? {
            MemoryStep::Request(request) => self.ask(request, Stage::Record),
            MemoryStep::Done((), unusable) => {
                self.close_answers(unusable);
                self.stage = if self.was_last() { Stage::Over } else { Stage::Begin };
            }
        }
        Ok(())
    }

    fn record(&self) -> Trajectory {
        let task = self.task.hash();
        let last_weights = self.calls.iter().rev().find_map(|c| c.answer.weights.clone());
        Trajectory {
            key: TrajectoryKey {
                panel: Hash::of(&[task]),
                task,
                method: self.method.unwrap_or_else(|| Hash::of(&*self.settings)),
                weights: last_weights.unwrap_or_default(),
                seed: self.seed,
            },
            task: self.task.clone(),
            stopped_early: self.error.is_none() && (self.episodes.len() as u32) < self.settings.episodes,
            episodes: self.episodes.clone(),
            calls: self.calls.clone(),
            error: self.error.clone(),
        }
    }
}
