//! How does a call become tokens, and an answer text?

use crate::{Error, Result};
use mage_core::{Completion, CompletionTokens, Finish, Message, Request, RequestBody, Role, prompt::PromptForm};
use mage_engine::{
    ActionSet, Allowed, ChatMessage as Said, ChatRole as Speaker, FinishReason, Renderer, Sample, SampleRequest,
    SamplingParams, Thinking,
};
use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

/// Speaks a model's language. Shared by everything in flight.
pub struct PromptCodec {
    renderer: Arc<Renderer>,
    size: PromptForm,
    thinking: Thinking,
    /// The compact vocabulary: one word, one token.
    words: HashMap<String, u32>,
    unknown: u32,
    end: u32,
    /// Sets of legal actions seen before; a small game has a handful.
    sets: RwLock<HashMap<Vec<String>, ActionSet>>,
}

impl PromptCodec {
    /// Speaks through `renderer`.
    pub fn new(renderer: Arc<Renderer>, size: PromptForm, thinking: Thinking) -> Result<Self> {
        let lacks = |what: &str| Error::Recipe {
            place: "model.path".to_owned(),
            problem: format!("its vocabulary has no {what}; give a model with a chat vocabulary, or a compact one"),
        };
        let end = renderer.control().end_of_turn.ok_or_else(|| lacks("token that ends a turn"))?;
        let (words, unknown) = match size {
            PromptForm::Full => (HashMap::new(), 0),
            PromptForm::Compact => {
                let ids = 0..renderer.vocab_size() as u32;
                let words: HashMap<String, u32> = ids.filter_map(|id| Some((renderer.token_text(id)?, id))).collect();
                let unknown = *words.get("?").ok_or_else(|| lacks("word `?`, as compact prompts need"))?;
                (words, unknown)
            }
        };
        Ok(PromptCodec { renderer, size, thinking, words, unknown, end, sets: RwLock::default() })
    }

    /// The tokenizer and template.
    pub fn renderer(&self) -> &Arc<Renderer> {
        &self.renderer
    }

    /// A prompt's tokens.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>> {
        match self.size {
            // Compact prompts are made of our own words alone: what an agent wrote was made harmless before it came here.
            PromptForm::Compact => Ok(messages.iter().flat_map(|m| self.compact_words(&m.content)).collect()),
            PromptForm::Full => Ok(self.renderer.encode_chat(&as_engines_say(messages), self.thinking, true)?),
        }
    }

    fn compact_words<'t>(&'t self, text: &'t str) -> impl Iterator<Item = u32> + 't {
        text.split(' ').map(|w| self.words.get(w).copied().unwrap_or(self.unknown))
    }

    /// An answer's tokens as the model would write them, the end included where it has one: for imitation.
    pub fn answer_tokens(&self, request: &RequestBody, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.said(text)?;
        if !self.ends_by_itself(request) {
            tokens.push(self.end);
        }
        Ok(tokens)
    }

    /// A text's tokens, in the model's own words.
    fn said(&self, text: &str) -> Result<Vec<u32>> {
        match self.size {
            PromptForm::Compact => Ok(self.compact_words(text).collect()),
            PromptForm::Full => Ok(self.renderer.encode(text)?),
        }
    }

    /// What somebody said, as a model would say it and end.
    pub(crate) fn spoken(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.said(text)?;
        tokens.push(self.end);
        Ok(tokens)
    }

    /// The first word of a text that a compact vocabulary lacks; a full one has letters for all.
    pub(crate) fn unknown_word<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self.size {
            PromptForm::Compact => text.split(' ').find(|w| !self.words.contains_key(*w)),
            PromptForm::Full => None,
        }
    }

    /// Whether an answer is over without a token that says so: a compact action of a single word.
    fn ends_by_itself(&self, request: &RequestBody) -> bool {
        self.size == PromptForm::Compact && request.max_tokens == 1
    }

    /// The request for tokens that a call comes to.
    pub fn request(&self, request: &RequestBody, params: &SamplingParams, seed: u64) -> Result<SampleRequest> {
        let mut params = SamplingParams { max_tokens: request.max_tokens, seed, ..params.clone() };
        params.stop_ids.push(self.end);
        let allowed = request.allowed.as_ref().map(|answers| self.action_set(request, answers)).transpose()?;
        Ok(SampleRequest { prompt: self.prompt(&request.messages)?, params, allowed, ..Default::default() })
    }

    /// The set of possible answers.
    fn action_set(&self, request: &RequestBody, answers: &[String]) -> Result<ActionSet> {
        if let Some(set) = self.sets.read().expect("no holder panics").get(answers) {
            return Ok(set.clone());
        }
        let encoded = answers.iter().map(|a| match self.size {
            PromptForm::Compact => Ok(self.compact_words(a).collect()),
            // A model that was asked for tags puts its action between them.
            PromptForm::Full => {
                let lead = if self.thinking == Thinking::On { "\n\n" } else { "" };
                self.renderer.encode(&format!("{lead}<action>{a}</action>"))
            }
        });
        let encoded = encoded.collect::<mage_engine::Result<Vec<Vec<u32>>>>()?;
        let end = (!self.ends_by_itself(request)).then_some(self.end);
        let thinking_ends = match self.thinking {
            Thinking::Off => None,
            Thinking::On => self.renderer.control().think_end,
        };
        let set = ActionSet::new(encoded, end, thinking_ends)?;
        self.sets.write().expect("no holder panics").insert(answers.to_vec(), set.clone());
        Ok(set)
    }

    /// What was possible at each token of a sampled answer.
    pub fn masks(&self, request: &RequestBody, answer: &[u32]) -> Result<Vec<Option<Allowed>>> {
        match &request.allowed {
            None => Ok(Vec::new()),
            Some(answers) => Ok(self.action_set(request, answers)?.masks(answer)?),
        }
    }

    /// The answer a sample is.
    pub fn answer(&self, prompt: Vec<u32>, sample: Sample, weights: &str) -> Result<Completion> {
        Ok(Completion {
            text: match self.size {
                PromptForm::Full => self.renderer.decode(&sample.tokens)?,
                PromptForm::Compact => self.spell(&sample.tokens),
            },
            finish: finish(sample.finish),
            tokens: Some(CompletionTokens { prompt, response: sample.tokens, logprobs: sample.logprobs }),
            weights: Some(weights.to_owned()),
            usage: None,
        })
    }

    fn spell(&self, tokens: &[u32]) -> String {
        let words = tokens.iter().filter(|t| **t != self.end).filter_map(|t| self.renderer.token_text(*t));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// A conversation in the engines' words.
pub(crate) fn as_engines_say(messages: &[Message]) -> Vec<Said> {
    let role = |role: Role| match role {
        Role::System => Speaker::System,
        Role::User => Speaker::User,
        Role::Assistant => Speaker::Assistant,
    };
    messages.iter().map(|m| Said { role: role(m.role), content: m.content.clone() }).collect()
}

/// Why an answer ended, in the core's words.
pub(crate) fn finish(reason: FinishReason) -> Finish {
    match reason {
        FinishReason::Stop => Finish::Stop,
        FinishReason::Length => Finish::Length,
    }
}

/// Where a call's sampling starts.
pub(crate) fn call_seed(call: &Request) -> u64 {
    call.seed.value()
}
