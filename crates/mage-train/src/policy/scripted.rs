//! Who answers the calls of a meta-episode when there is no model?
//!
//! A [`Player`] plays by rule, and still goes through the whole machine: it answers prompts, and what it knows is what
//! it can read there. Take the memory out of the prompts, and it has none.

use crate::{Error, Result};
use mage_core::{Completion, EpisodeConfig, MemoryMode, MetaEpisode, Request, RequestKind, prompt::PromptForm};
use mage_env::{Env, ParsedAction, PromptView, Rng, ScriptedAgent, Seed};
use rand::{RngExt, seq::IndexedRandom};
use std::sync::Arc;

/// Answers the calls of one meta-episode by rule.
pub struct Player {
    rule: PlayerKind,
    settings: Arc<EpisodeConfig>,
    /// What it wrote itself: its memory where prompts are not made of words it reads.
    notes: Vec<String>,
}

enum PlayerKind {
    Random(Rng),
    Reference(Box<dyn ScriptedAgent>),
    /// A reference that shows others how it is done, and now and then does anything legal.
    Teacher {
        reference: Box<dyn ScriptedAgent>,
        stray: f64,
        rng: Rng,
    },
}

impl Player {
    fn new(rule: PlayerKind, settings: Arc<EpisodeConfig>) -> Self {
        Player { rule, settings, notes: Vec::new() }
    }

    /// Plays any legal action.
    pub fn random(settings: Arc<EpisodeConfig>, seed: Seed) -> Self {
        Self::new(PlayerKind::Random(seed.child("random").rng()), settings)
    }

    /// Plays as an environment's own agent does. It reads compact prompts only.
    pub fn reference(settings: Arc<EpisodeConfig>, reference: Box<dyn ScriptedAgent>) -> Result<Self> {
        if settings.prompt_form != PromptForm::Compact {
            return Err(Error::Player { problem: "agents that play by rule read compact prompts only" });
        }
        Ok(Self::new(PlayerKind::Reference(reference), settings))
    }

    /// Plays as an environment's own agent does, but for a share of its actions, which are any legal ones. Its answers are
    /// there to be imitated: they are written as prompts of either size ask for, and what cannot be written so gives way to
    /// a legal action too. Full prompts it does not read: it is shown what a compact one would say.
    pub fn teacher(settings: Arc<EpisodeConfig>, reference: Box<dyn ScriptedAgent>, stray: f64, seed: Seed) -> Self {
        Self::new(PlayerKind::Teacher { reference, stray, rng: seed.rng() }, settings)
    }

    /// Answers the open call of a meta-episode.
    pub fn answer(&mut self, call: &Request, meta: &MetaEpisode) -> Result<Completion> {
        let text = match call.body.kind {
            RequestKind::Play => self.act(call, meta)?,
            _ => self.note(call, meta)?,
        };
        Ok(Completion::from_text(match (self.settings.prompt_form, call.body.kind) {
            (PromptForm::Compact, _) => text,
            (PromptForm::Full, RequestKind::Play) => format!("<action>{text}</action>"),
            (PromptForm::Full, _) => format!("<remark>{text}</remark>"),
        }))
    }

    fn act(&mut self, call: &Request, meta: &MetaEpisode) -> Result<String> {
        let allowed = call.body.allowed.as_deref().unwrap_or_default();
        let prompt = match (&self.rule, self.settings.prompt_form) {
            (PlayerKind::Random(_), _) => CompactPrompt::default(),
            (_, PromptForm::Compact) => CompactPrompt::read(call, &self.settings)?,
            (_, PromptForm::Full) => CompactPrompt {
                memory: self.remembered(),
                observation: meta.episode().map_or_else(String::new, |e| e.last_observation().compact.clone()),
            },
        };
        let (agent, mut luck) = match &mut self.rule {
            PlayerKind::Random(rng) => {
                return allowed.choose(rng).cloned().ok_or(Error::Player {
                    problem: "a random player needs the legal actions; set mask_actions where the environment lists \
                              them",
                });
            }
            PlayerKind::Reference(agent) => (agent, None),
            PlayerKind::Teacher { reference, stray, rng } => (reference, Some((rng, *stray))),
        };
        if let Some((rng, stray)) = luck.as_mut().filter(|_| !allowed.is_empty())
            && rng.random_bool(*stray)
        {
            return Ok(allowed.choose(rng).cloned().unwrap_or_default());
        }
        let turns = meta.episode().map_or(&[][..], |e| &e.turns);
        let done: Vec<String> = turns.iter().filter(|t| t.valid).filter_map(|t| act_of(&t.action)).collect();
        let legal = meta.env().compact_legal().unwrap_or_default();
        let meant = agent.act(&PromptView {
            episode: call.episode,
            memory: &prompt.memory,
            observation: &prompt.observation,
            legal: &legal,
            history: &done,
        });
        let written = written(meta.env(), self.settings.prompt_form, &legal, &meant);
        Ok(match (luck, written) {
            (Some((rng, _)), Some(text)) if !allowed.is_empty() && !allowed.contains(&text) => {
                allowed.choose(rng).cloned().unwrap_or(text)
            }
            (Some((rng, _)), None) if !allowed.is_empty() => allowed.choose(rng).cloned().unwrap_or(meant),
            (_, written) => written.unwrap_or(meant),
        })
    }

    /// Its notes, as many as prompts would recall.
    fn remembered(&self) -> Vec<String> {
        let kept = match self.settings.memory {
            MemoryMode::None => 0,
            _ => self.settings.recall_limit.unwrap_or(usize::MAX),
        };
        self.notes[self.notes.len().saturating_sub(kept)..].to_vec()
    }

    fn note(&mut self, call: &Request, meta: &MetaEpisode) -> Result<String> {
        let text = match (&mut self.rule, self.settings.prompt_form) {
            (PlayerKind::Random(_), _) => "_".to_owned(),
            (PlayerKind::Reference(agent) | PlayerKind::Teacher { reference: agent, .. }, PromptForm::Compact) => {
                agent.reflect(inside(call, "BOS BACK ")?)
            }
            (PlayerKind::Reference(agent) | PlayerKind::Teacher { reference: agent, .. }, PromptForm::Full) => {
                agent.reflect(meta.episode().map_or("", |e| &e.last_observation().compact))
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
fn written(env: &dyn Env, size: PromptForm, legal: &[String], meant: &str) -> Option<String> {
    let action = env.parse(meant);
    match size {
        PromptForm::Full => act_of(&action),
        PromptForm::Compact if legal.iter().any(|word| word == meant) => Some(meant.to_owned()),
        PromptForm::Compact => legal.iter().find(|word| env.parse(word) == action).cloned(),
    }
}

/// A compact play prompt, taken apart.
#[derive(Default)]
struct CompactPrompt {
    memory: Vec<String>,
    observation: String,
}

impl CompactPrompt {
    fn read(call: &Request, settings: &EpisodeConfig) -> Result<Self> {
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
fn inside<'c>(call: &'c Request, opening: &str) -> Result<&'c str> {
    let text = call.body.messages.first().map_or("", |m| m.content.as_str());
    text.strip_prefix(opening)
        .and_then(|t| t.strip_suffix(" GO"))
        .ok_or(Error::Player { problem: "the prompt is not a compact one" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_core::{Next, Trajectory, prompt::PromptLibrary};
    use mage_env::{Registry, ScriptedAgentQuery};

    /// What a teacher shows in a few tasks.
    fn lessons(env: &str, teacher: &str, size: PromptForm, stray: f64) -> Vec<Trajectory> {
        let env_spec = Registry::builtin().get(env).unwrap().clone();
        let env_info = env_spec.info();
        let settings = Arc::new(match size {
            PromptForm::Compact => EpisodeConfig::compact(&env_info, 2),
            PromptForm::Full => EpisodeConfig {
                episodes: 2,
                max_turns: env_info.max_turns,
                mask_actions: true,
                ..EpisodeConfig::default()
            },
        });
        let (population, prompts) = (env_spec.default_population(), PromptLibrary::builtin().get(env).unwrap());
        let query = ScriptedAgentQuery { name: teacher, population: &population, split: "train", episodes: 2 };
        let maker = env_spec.scripted_agent(&query).unwrap();
        let play = |i: u64| {
            let task = population.draw("train", env_info.seats, Seed::new(i)).unwrap();
            let agent = maker.make(&task, Seed::new(i));
            let mut player = Player::teacher(Arc::clone(&settings), agent, stray, Seed::new(i).child("stray"));
            let built = env_spec.build(&task).unwrap();
            let mut meta =
                MetaEpisode::new(task, built, Arc::clone(&prompts), Arc::clone(&settings), Seed::new(i)).unwrap();
            loop {
                match meta.advance().unwrap() {
                    Next::Done(record) => return *record,
                    Next::Request(call) => {
                        let answer = player.answer(&call, &meta).unwrap();
                        meta.submit(call.id, Ok(answer)).unwrap();
                    }
                }
            }
        };
        (0..25).map(play).collect()
    }

    #[test]
    fn teachers_write_what_the_prompt_asks_for_whatever_happened() {
        for (env, teacher) in [("webshop", "told"), ("alfworld", "expert"), ("tictactoe", "bayes"), ("kuhn", "bayes")] {
            for (size, stray) in [
                (PromptForm::Compact, 0.0),
                (PromptForm::Compact, 0.3),
                (PromptForm::Full, 0.0),
                (PromptForm::Full, 0.3),
            ] {
                for call in lessons(env, teacher, size, stray).iter().flat_map(|r| &r.requests) {
                    assert_eq!(call.invalid, None, "{env}, {size:?}: {}", call.completion.text);
                    let Some(allowed) = &call.allowed else { continue };
                    let said = match size {
                        PromptForm::Compact => call.completion.text.as_str(),
                        PromptForm::Full => mage_core::parse::last_tag(&call.completion.text, "action").unwrap(),
                    };
                    assert!(allowed.iter().any(|a| a == said), "{env}, {size:?}: {said} is none of {allowed:?}");
                }
            }
        }
    }

    #[test]
    fn teachers_who_are_told_succeed_in_either_form() {
        for (env, teacher) in [("webshop", "told"), ("alfworld", "expert")] {
            for size in [PromptForm::Compact, PromptForm::Full] {
                let won = |stray| {
                    let records = lessons(env, teacher, size, stray);
                    records.iter().flat_map(|r| &r.episodes).filter(|e| e.won()).count()
                };
                assert!(won(0.0) >= 48, "{env}, {size:?}: {} of 50", won(0.0));
                assert!(won(0.1) >= 30, "{env}, {size:?}: {} of 50 although others meddle", won(0.1));
            }
        }
    }
}
