//! Scripted policies: responses to the requests of a meta-episode without a model.
//!
//! A [`ScriptedPolicy`] receives the same prompts as a model and knows only what they contain. If the memory is removed
//! from the prompts, it has none.

use super::Policy;
use crate::{Error, Result};
use mage_core::{Completion, EpisodeConfig, MemoryMode, MetaEpisode, Request, RequestKind, prompt::PromptForm};
use mage_engine::BoxFuture;
use mage_env::{Env, ParsedAction, PromptView, Rng, ScriptedAgent, Seed};
use rand::{RngExt, seq::IndexedRandom};
use std::sync::Arc;

/// Responds to the requests of one meta-episode with a scripted agent or at random.
pub struct ScriptedPolicy {
    kind: ScriptKind,
    episode_config: Arc<EpisodeConfig>,
    /// Its own reflections: its memory with full prompts, which it does not parse.
    reflections: Vec<String>,
}

enum ScriptKind {
    Random(Rng),
    Scripted(Box<dyn ScriptedAgent>),
    /// A scripted agent to imitate; with probability epsilon, its action is replaced by a random legal one.
    Expert {
        agent: Box<dyn ScriptedAgent>,
        epsilon: f64,
        rng: Rng,
    },
}

impl ScriptedPolicy {
    fn new(kind: ScriptKind, episode_config: Arc<EpisodeConfig>) -> Self {
        ScriptedPolicy { kind, episode_config, reflections: Vec::new() }
    }

    /// Plays uniformly random legal actions.
    pub fn random(episode_config: Arc<EpisodeConfig>, seed: Seed) -> Self {
        Self::new(ScriptKind::Random(seed.child("random").rng()), episode_config)
    }

    /// Plays a scripted agent of the environment. Compact prompts only.
    pub fn agent(episode_config: Arc<EpisodeConfig>, agent: Box<dyn ScriptedAgent>) -> Result<Self> {
        if episode_config.prompt_form != PromptForm::Compact {
            return Err(Error::ScriptedPolicy { problem: "scripted agents support compact prompts only" });
        }
        Ok(Self::new(ScriptKind::Scripted(agent), episode_config))
    }

    /// Plays a scripted agent as an expert to imitate, in either prompt form; with probability `epsilon`, an action is
    /// replaced by a random legal one. So is an action that the prompt form cannot express. With full prompts, the
    /// agent sees the compact observation.
    pub fn expert(episode_config: Arc<EpisodeConfig>, agent: Box<dyn ScriptedAgent>, epsilon: f64, seed: Seed) -> Self {
        Self::new(ScriptKind::Expert { agent, epsilon, rng: seed.rng() }, episode_config)
    }

    fn complete(&mut self, request: &Request, meta: &MetaEpisode) -> Result<Completion> {
        let text = match request.body.kind {
            RequestKind::Play => self.act(request, meta)?,
            _ => self.reflect(request, meta)?,
        };
        Ok(Completion::from_text(match (self.episode_config.prompt_form, request.body.kind) {
            (PromptForm::Compact, _) => text,
            (PromptForm::Full, RequestKind::Play) => format!("<action>{text}</action>"),
            (PromptForm::Full, _) => format!("<remark>{text}</remark>"),
        }))
    }

    fn act(&mut self, request: &Request, meta: &MetaEpisode) -> Result<String> {
        let allowed = request.body.allowed.as_deref().unwrap_or_default();
        let prompt = match (&self.kind, self.episode_config.prompt_form) {
            (ScriptKind::Random(_), _) => CompactPrompt::default(),
            (_, PromptForm::Compact) => CompactPrompt::parse(request, &self.episode_config)?,
            (_, PromptForm::Full) => CompactPrompt {
                memory: self.recalled_reflections(),
                observation: meta.episode().map_or_else(String::new, |e| e.last_observation().compact.clone()),
            },
        };
        let (agent, mut exploration) = match &mut self.kind {
            ScriptKind::Random(rng) => {
                return allowed.choose(rng).cloned().ok_or(Error::ScriptedPolicy {
                    problem: "random play needs the legal actions; set mask_actions, in an environment that lists them",
                });
            }
            ScriptKind::Scripted(agent) => (agent, None),
            ScriptKind::Expert { agent, epsilon, rng } => (agent, Some((rng, *epsilon))),
        };
        if let Some((rng, epsilon)) = exploration.as_mut().filter(|_| !allowed.is_empty())
            && rng.random_bool(*epsilon)
        {
            return Ok(allowed.choose(rng).cloned().unwrap_or_default());
        }
        let turns = meta.episode().map_or(&[][..], |e| &e.turns);
        let done: Vec<String> = turns.iter().filter(|t| t.valid).filter_map(|t| action_text(&t.action)).collect();
        let legal = meta.env().compact_legal().unwrap_or_default();
        let action = agent.act(&PromptView {
            episode: request.episode,
            memory: &prompt.memory,
            observation: &prompt.observation,
            legal: &legal,
            history: &done,
        });
        let expressed = express(meta.env(), self.episode_config.prompt_form, &legal, &action);
        Ok(match (exploration, expressed) {
            (Some((rng, _)), Some(text)) if !allowed.is_empty() && !allowed.contains(&text) => {
                allowed.choose(rng).cloned().unwrap_or(text)
            }
            (Some((rng, _)), None) if !allowed.is_empty() => allowed.choose(rng).cloned().unwrap_or(action),
            (_, expressed) => expressed.unwrap_or(action),
        })
    }

    /// Its reflections, as many as a prompt would contain.
    fn recalled_reflections(&self) -> Vec<String> {
        let limit = match self.episode_config.memory {
            MemoryMode::None => 0,
            _ => self.episode_config.recall_limit.unwrap_or(usize::MAX),
        };
        self.reflections[self.reflections.len().saturating_sub(limit)..].to_vec()
    }

    fn reflect(&mut self, request: &Request, meta: &MetaEpisode) -> Result<String> {
        let text = match (&mut self.kind, self.episode_config.prompt_form) {
            (ScriptKind::Random(_), _) => "_".to_owned(),
            (ScriptKind::Scripted(agent) | ScriptKind::Expert { agent, .. }, PromptForm::Compact) => {
                agent.reflect(prompt_body(request, "BOS REFLECT ")?)
            }
            (ScriptKind::Scripted(agent) | ScriptKind::Expert { agent, .. }, PromptForm::Full) => {
                agent.reflect(meta.episode().map_or("", |e| &e.last_observation().compact))
            }
        };
        self.reflections.push(text.clone());
        Ok(text)
    }
}

impl Policy for ScriptedPolicy {
    fn respond<'a>(&'a mut self, request: &'a Request, meta: &MetaEpisode) -> BoxFuture<'a, Result<Completion>> {
        let completion = self.complete(request, meta);
        Box::pin(async { completion })
    }
}

fn action_text(action: &ParsedAction) -> Option<String> {
    match action {
        ParsedAction::Act(text) => Some(text.clone()),
        ParsedAction::Invalid { .. } => None,
    }
}

/// The text of an action in a prompt form; `None` if the form cannot express it. `legal` are the compact names.
fn express(env: &dyn Env, form: PromptForm, legal: &[String], action: &str) -> Option<String> {
    let parsed = env.parse(action);
    match form {
        PromptForm::Full => action_text(&parsed),
        PromptForm::Compact if legal.iter().any(|word| word == action) => Some(action.to_owned()),
        PromptForm::Compact => legal.iter().find(|word| env.parse(word) == parsed).cloned(),
    }
}

/// The parts of a compact play prompt.
#[derive(Default)]
struct CompactPrompt {
    memory: Vec<String>,
    observation: String,
}

impl CompactPrompt {
    fn parse(request: &Request, episode_config: &EpisodeConfig) -> Result<Self> {
        let words: Vec<&str> = prompt_body(request, "BOS ")?.split(' ').collect();
        let recalled = match episode_config.memory {
            MemoryMode::None => 0,
            _ => (request.episode as usize).min(episode_config.recall_limit.unwrap_or(usize::MAX)),
        };
        let slots = recalled.max(episode_config.slots);
        let memory_len = slots * episode_config.slot_words;
        if words.len() <= memory_len {
            return Err(Error::ScriptedPolicy { problem: "the compact prompt is shorter than its memory slots" });
        }
        let blank = |slot: &&[&str]| slot.iter().all(|w| *w == "_");
        let memory =
            words[..memory_len].chunks(episode_config.slot_words.max(1)).filter(|s| !blank(s)).map(|s| s.join(" "));
        Ok(CompactPrompt { memory: memory.collect(), observation: words[memory_len..].join(" ") })
    }
}

/// The text between `prefix` and `GO` in a compact prompt.
fn prompt_body<'c>(request: &'c Request, prefix: &str) -> Result<&'c str> {
    let text = request.body.messages.first().map_or("", |m| m.content.as_str());
    text.strip_prefix(prefix)
        .and_then(|t| t.strip_suffix(" GO"))
        .ok_or(Error::ScriptedPolicy { problem: "the prompt is not compact" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetaEpisodeBuilder;
    use futures_executor::block_on;
    use mage_core::{Trajectory, prompt::PromptLibrary};
    use mage_env::{Registry, ScriptedAgentQuery};

    /// Expert play in 25 tasks.
    fn expert_play(env: &str, expert: &str, form: PromptForm, epsilon: f64) -> Vec<Trajectory> {
        let env_spec = Registry::builtin().get(env).unwrap().clone();
        let env_info = env_spec.info();
        let episode_config = match form {
            PromptForm::Compact => EpisodeConfig::compact(&env_info, 2),
            PromptForm::Full => EpisodeConfig {
                episodes: 2,
                max_turns: env_info.max_turns,
                mask_actions: true,
                ..EpisodeConfig::default()
            },
        };
        let (population, prompts) = (env_spec.default_population(), PromptLibrary::builtin().get(env).unwrap());
        let query = ScriptedAgentQuery { name: expert, population: &population, split: "train", episodes: 2 };
        let factory = env_spec.scripted_agent(&query).unwrap();
        let builder = MetaEpisodeBuilder::new(env_spec, prompts, episode_config);
        let play = |i: u64| {
            let task = population.sample_task("train", env_info.seats, Seed::new(i)).unwrap();
            let (agent, seed) = (factory.make(&task, Seed::new(i)), Seed::new(i).child("epsilon"));
            let mut expert = ScriptedPolicy::expert(Arc::clone(builder.config()), agent, epsilon, seed);
            let played = block_on(builder.play(&task, Seed::new(i), &mut expert, &()));
            assert!(played.policy_error.is_none() && played.trajectory.error.is_none());
            played.trajectory
        };
        (0..25).map(play).collect()
    }

    #[test]
    fn expert_responses_are_valid_in_either_form() {
        for (env, expert) in [("webshop", "oracle"), ("alfworld", "expert"), ("tictactoe", "bayes"), ("kuhn", "bayes")]
        {
            for (form, epsilon) in [
                (PromptForm::Compact, 0.0),
                (PromptForm::Compact, 0.3),
                (PromptForm::Full, 0.0),
                (PromptForm::Full, 0.3),
            ] {
                for record in expert_play(env, expert, form, epsilon).iter().flat_map(|t| &t.requests) {
                    assert_eq!(record.invalid, None, "{env}, {form:?}: {}", record.completion.text);
                    let Some(allowed) = &record.allowed else { continue };
                    let action = match form {
                        PromptForm::Compact => record.completion.text.as_str(),
                        PromptForm::Full => mage_core::parse::last_tag(&record.completion.text, "action").unwrap(),
                    };
                    assert!(allowed.iter().any(|a| a == action), "{env}, {form:?}: {action} is not in {allowed:?}");
                }
            }
        }
    }

    #[test]
    fn informed_experts_succeed_in_either_form() {
        for (env, expert) in [("webshop", "oracle"), ("alfworld", "expert")] {
            for form in [PromptForm::Compact, PromptForm::Full] {
                let won = |epsilon| {
                    let trajectories = expert_play(env, expert, form, epsilon);
                    trajectories.iter().flat_map(|t| &t.episodes).filter(|e| e.won()).count()
                };
                assert!(won(0.0) >= 48, "{env}, {form:?}: {} of 50", won(0.0));
                assert!(won(0.1) >= 30, "{env}, {form:?}: {} of 50 with epsilon 0.1", won(0.1));
            }
        }
    }
}
