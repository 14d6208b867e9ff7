//! Who answers the calls of a meta-episode when there is no model?
//!
//! A [`Player`] plays by rule, and still goes through the whole machine: it answers prompts, and what it knows is what
//! it can read there. Take the memory out of the prompts, and it has none.

use crate::{Error, Result};
use mage_core::{Answer, Call, MemoryMode, Purpose, Settings, prompt::Size};
use mage_env::{Reference, Rng, Seed, Seen};
use rand::{RngExt, seq::IndexedRandom};
use std::sync::Arc;

/// Answers the calls of one meta-episode by rule.
pub struct Player {
    rule: Rule,
    settings: Arc<Settings>,
}

enum Rule {
    Random(Rng),
    Reference(Box<dyn Reference>),
    /// A reference that now and then does anything legal.
    Mixed {
        reference: Box<dyn Reference>,
        stray: f64,
        rng: Rng,
    },
}

impl Player {
    /// Plays any legal action.
    pub fn random(settings: Arc<Settings>, seed: Seed) -> Self {
        Player { rule: Rule::Random(seed.child("random").rng()), settings }
    }

    /// Plays as an environment's own agent does. It reads compact prompts only.
    pub fn reference(settings: Arc<Settings>, reference: Box<dyn Reference>) -> Result<Self> {
        if settings.size != Size::Compact {
            return Err(Error::Player { problem: "agents that play by rule read compact prompts only" });
        }
        Ok(Player { rule: Rule::Reference(reference), settings })
    }

    /// Plays as an environment's own agent does, but for a share of its actions, which are any legal ones.
    pub fn mixed(settings: Arc<Settings>, reference: Box<dyn Reference>, stray: f64, seed: Seed) -> Result<Self> {
        let Player { rule, settings } = Player::reference(settings, reference)?;
        let rule = match rule {
            Rule::Reference(reference) => Rule::Mixed { reference, stray, rng: seed.rng() },
            other => other,
        };
        Ok(Player { rule, settings })
    }

    /// Answers a call, from what stands in its prompt and the list of allowed answers.
    pub fn answer(&mut self, call: &Call) -> Result<Answer> {
        let legal = call.request.allowed.as_deref().unwrap_or_default();
        let strays = match &mut self.rule {
            Rule::Mixed { stray, rng, .. } if call.request.purpose == Purpose::Play && !legal.is_empty() => {
                rng.random_bool(*stray)
            }
            _ => false,
        };
        let text = match (&mut self.rule, call.request.purpose) {
            (Rule::Random(rng), Purpose::Play) => legal.choose(rng).cloned().ok_or(Error::Player {
                problem: "a random player needs the legal actions; set mask_actions where the environment lists them",
            })?,
            (Rule::Random(_), _) => "_".to_owned(),
            (Rule::Mixed { rng, .. }, _) if strays => legal.choose(rng).cloned().unwrap_or_default(),
            (Rule::Reference(agent) | Rule::Mixed { reference: agent, .. }, Purpose::Play) => {
                let prompt = CompactPrompt::read(call, &self.settings)?;
                agent.act(&Seen {
                    episode: call.episode,
                    memory: &prompt.memory,
                    observation: &prompt.observation,
                    legal,
                })
            }
            (Rule::Reference(agent) | Rule::Mixed { reference: agent, .. }, _) => {
                let words = inside(call, "BOS BACK ")?;
                agent.reflect(words)
            }
        };
        Ok(Answer::text(match (self.settings.size, call.request.purpose) {
            (Size::Compact, _) => text,
            (Size::Full, Purpose::Play) => format!("<action>{text}</action>"),
            (Size::Full, _) => format!("<remark>{text}</remark>"),
        }))
    }
}

/// A compact play prompt, taken apart.
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
