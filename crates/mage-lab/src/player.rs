//! Who answers the calls of a meta-episode when there is no model?
//!
//! A [`Player`] plays by rule, and still goes through the whole machine: it answers prompts, and what it knows is what
//! it can read there. Take the memory out of the prompts, and it has none.

use crate::{Error, Result};
use mage_core::{Answer, Call, MemoryMode, MetaEpisode, Purpose, Settings, prompt::Size};
use mage_env::{Env, ParsedAction, Reference, Rng, Seed, Seen};
use rand::{RngExt, seq::IndexedRandom};
use std::sync::Arc;

/// Answers the calls of one meta-episode by rule.
pub struct Player {
    rule: Rule,
    settings: Arc<Settings>,
    /// What it wrote itself: its memory where prompts are not made of words it reads.
    notes: Vec<String>,
}

enum Rule {
    Random(Rng),
    Reference(Box<dyn Reference>),
    /// A reference that shows others how it is done, and now and then does anything legal.
    Teacher {
        reference: Box<dyn Reference>,
        stray: f64,
        rng: Rng,
    },
}

impl Player {
    fn new(rule: Rule, settings: Arc<Settings>) -> Self {
        Player { rule, settings, notes: Vec::new() }
    }

    /// Plays any legal action.
    pub fn random(settings: Arc<Settings>, seed: Seed) -> Self {
        Self::new(Rule::Random(seed.child("random").rng()), settings)
    }

    /// Plays as an environment's own agent does. It reads compact prompts only.
    pub fn reference(settings: Arc<Settings>, reference: Box<dyn Reference>) -> Result<Self> {
        if settings.size != Size::Compact {
            return Err(Error::Player { problem: "agents that play by rule read compact prompts only" });
        }
        Ok(Self::new(Rule::Reference(reference), settings))
    }

    /// Plays as an environment's own agent does, but for a share of its actions, which are any legal ones. Its answers are
    /// there to be imitated: they are written as prompts of either size ask for, and what cannot be written so gives way to
    /// a legal action too. Full prompts it does not read: it is shown what a compact one would say.
    pub fn teacher(settings: Arc<Settings>, reference: Box<dyn Reference>, stray: f64, seed: Seed) -> Self {
        Self::new(Rule::Teacher { reference, stray, rng: seed.rng() }, settings)
    }

    /// Answers the open call of a meta-episode.
    pub fn answer(&mut self, call: &Call, meta: &MetaEpisode) -> Result<Answer> {
        let text = match call.request.purpose {
            Purpose::Play => self.act(call, meta)?,
            _ => self.note(call, meta)?,
        };
        Ok(Answer::text(match (self.settings.size, call.request.purpose) {
            (Size::Compact, _) => text,
            (Size::Full, Purpose::Play) => format!("<action>{text}</action>"),
            (Size::Full, _) => format!("<remark>{text}</remark>"),
        }))
    }

    fn act(&mut self, call: &Call, meta: &MetaEpisode) -> Result<String> {
        let allowed = call.request.allowed.as_deref().unwrap_or_default();
        let prompt = match (&self.rule, self.settings.size) {
            (Rule::Random(_), _) => CompactPrompt::default(),
            (_, Size::Compact) => CompactPrompt::read(call, &self.settings)?,
            (_, Size::Full) => CompactPrompt {
                memory: if self.settings.memory == MemoryMode::None { Vec::new() } else { self.notes.clone() },
                observation: meta.episode().map_or_else(String::new, |e| e.now().compact.clone()),
            },
        };
        let (agent, mut luck) = match &mut self.rule {
            Rule::Random(rng) => {
                return allowed.choose(rng).cloned().ok_or(Error::Player {
                    problem: "a random player needs the legal actions; set mask_actions where the environment lists \
                              them",
                });
            }
            Rule::Reference(agent) => (agent, None),
            Rule::Teacher { reference, stray, rng } => (reference, Some((rng, *stray))),
        };
        if let Some((rng, stray)) = luck.as_mut().filter(|_| !allowed.is_empty())
            && rng.random_bool(*stray)
        {
            return Ok(allowed.choose(rng).cloned().unwrap_or_default());
        }
        let turns = meta.episode().map_or(&[][..], |e| &e.turns);
        let done: Vec<String> = turns.iter().filter(|t| t.valid).filter_map(|t| act_of(&t.action)).collect();
        let legal = meta.env().compact_legal().unwrap_or_default();
        let meant = agent.act(&Seen {
            episode: call.episode,
            memory: &prompt.memory,
            observation: &prompt.observation,
            legal: &legal,
            done: &done,
        });
        let written = written(meta.env(), self.settings.size, &legal, &meant);
        Ok(match (luck, written) {
            (Some((rng, _)), Some(text)) if !allowed.is_empty() && !allowed.contains(&text) => {
                allowed.choose(rng).cloned().unwrap_or(text)
            }
            (Some((rng, _)), None) if !allowed.is_empty() => allowed.choose(rng).cloned().unwrap_or(meant),
            (_, written) => written.unwrap_or(meant),
        })
    }

    fn note(&mut self, call: &Call, meta: &MetaEpisode) -> Result<String> {
        let text = match (&mut self.rule, self.settings.size) {
            (Rule::Random(_), _) => "_".to_owned(),
            (Rule::Reference(agent) | Rule::Teacher { reference: agent, .. }, Size::Compact) => {
                agent.reflect(inside(call, "BOS BACK ")?)
            }
            (Rule::Reference(agent) | Rule::Teacher { reference: agent, .. }, Size::Full) => {
                agent.reflect(meta.episode().map_or("", |e| &e.now().compact))
            }
        };
        self.notes.push(text.clone());
        Ok(text)
    }
}

fn act_of(action: &ParsedAction) -> Option<String> {
    match action {
        ParsedAction::Act(text) => Some(text.clone()),
        ParsedAction::Invalid { .. } => None,
    }
}

/// An action as prompts of this size name it; `None` where they have no name for it. `legal` are the compact names.
fn written(env: &dyn Env, size: Size, legal: &[String], meant: &str) -> Option<String> {
    let action = env.parse(meant);
    match size {
        Size::Full => act_of(&action),
        Size::Compact if legal.iter().any(|word| word == meant) => Some(meant.to_owned()),
        Size::Compact => legal.iter().find(|word| env.parse(word) == action).cloned(),
    }
}

/// A compact play prompt, taken apart.
#[derive(Default)]
struct CompactPrompt {
    memory: Vec<String>,
    observation: String,
}

impl CompactPrompt {
    fn read(call: &Call, settings: &Settings) -> Result<Self> {
        let words: Vec<&str> = inside(call, "BOS ")?.split(' ').collect();
        let remembered = match settings.memory {
            MemoryMode::None => 0,
            _ => (call.episode as usize).min(settings.recall_limit.unwrap_or(usize::MAX)),
        };
        let slots = remembered.max(settings.slots);
        let at = slots * settings.slot_words;
        if words.len() <= at {
            return Err(Error::Player { problem: "the compact prompt is shorter than its memory slots" });
        }
        let blank = |slot: &&[&str]| slot.iter().all(|w| *w == "_");
        let memory = words[..at].chunks(settings.slot_words.max(1)).filter(|s| !blank(s)).map(|s| s.join(" "));
        Ok(CompactPrompt { memory: memory.collect(), observation: words[at..].join(" ") })
    }
}

/// What stands between `opening` and `GO` in a compact prompt.
fn inside<'c>(call: &'c Call, opening: &str) -> Result<&'c str> {
    let text = call.request.messages.first().map_or("", |m| m.content.as_str());
    text.strip_prefix(opening)
        .and_then(|t| t.strip_suffix(" GO"))
        .ok_or(Error::Player { problem: "the prompt is not a compact one" })
}
