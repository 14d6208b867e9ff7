//! Tokenisation of requests and completions.

use crate::{Error, Result};
use mage_core::{Completion, CompletionTokens, Finish, Message, Request, RequestBody, Role, prompt::PromptForm};
use mage_engine::{
    ActionSet, Allowed, ChatMessage, ChatRole, FinishReason, Renderer, Sample, SampleRequest, SamplingParams, Thinking,
};
use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

/// First token of compact prompts.
pub(crate) const BOS: &str = "BOS";
/// Last token of compact responses.
pub(crate) const END: &str = "END";

/// Encodes requests for a sampler and decodes its samples. Shared by all meta-episodes.
pub struct PromptCodec {
    renderer: Arc<Renderer>,
    form: PromptForm,
    thinking: Thinking,
    /// Compact vocabulary: one token per word.
    words: HashMap<String, u32>,
    unknown: u32,
    end: u32,
    /// Cache of action sets; a small game has a handful.
    action_sets: RwLock<HashMap<Vec<String>, ActionSet>>,
}

impl PromptCodec {
    /// A codec that uses `renderer`.
    pub fn new(renderer: Arc<Renderer>, form: PromptForm, thinking: Thinking) -> Result<Self> {
        let missing = |what: &str| Error::Recipe {
            location: "model.path".to_owned(),
            problem: format!("the vocabulary has no {what}; use a model with a chat vocabulary or a compact one"),
        };
        if thinking == Thinking::On && renderer.control().think_end.is_none() {
            return Err(missing("thinking tags (`</think>`), which thinking needs"));
        }
        let end = renderer.control().end_of_turn.ok_or_else(|| missing("end-of-turn token"))?;
        let (words, unknown) = match form {
            PromptForm::Full => (HashMap::new(), 0),
            PromptForm::Compact => {
                let ids = 0..renderer.vocab_size() as u32;
                let words: HashMap<String, u32> = ids.filter_map(|id| Some((renderer.token_text(id)?, id))).collect();
                let unknown = *words.get("?").ok_or_else(|| missing("word `?`, which compact prompts need"))?;
                (words, unknown)
            }
        };
        Ok(PromptCodec { renderer, form, thinking, words, unknown, end, action_sets: RwLock::default() })
    }

    /// The prompt form for which a vocabulary was made: a compact one has words for control tokens.
    pub(crate) fn form_of(renderer: &Renderer) -> PromptForm {
        let text = |id: Option<u32>| id.and_then(|id| renderer.token_text(id));
        let control = renderer.control();
        match (text(control.bos).as_deref(), text(control.end_of_turn).as_deref()) {
            (Some(BOS), Some(END)) => PromptForm::Compact,
            _ => PromptForm::Full,
        }
    }

    /// The prompt form.
    pub fn form(&self) -> PromptForm {
        self.form
    }

    /// Tokenizer and chat template.
    pub fn renderer(&self) -> &Arc<Renderer> {
        &self.renderer
    }

    /// Whether the model thinks before it responds.
    pub fn thinking(&self) -> Thinking {
        self.thinking
    }

    /// Tokens of a prompt.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>> {
        match self.form {
            // Compact prompts contain only vocabulary words: text of an agent is sanitised before it enters a prompt.
            PromptForm::Compact => Ok(messages.iter().flat_map(|m| self.compact_tokens(&m.content)).collect()),
            PromptForm::Full => Ok(self.renderer.encode_chat(&to_engine_messages(messages), self.thinking, true)?),
        }
    }

    fn compact_tokens<'t>(&'t self, text: &'t str) -> impl Iterator<Item = u32> + 't {
        text.split(' ').map(|w| self.words.get(w).copied().unwrap_or(self.unknown))
    }

    /// Tokens of a response as the model would generate them, with the end token if the response has one.
    pub fn response_tokens(&self, request: &RequestBody, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.encode(text)?;
        if !self.ends_implicitly(request) {
            tokens.push(self.end);
        }
        Ok(tokens)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self.form {
            PromptForm::Compact => Ok(self.compact_tokens(text).collect()),
            PromptForm::Full => Ok(self.renderer.encode(text)?),
        }
    }

    /// Tokens of an assistant message with the end token.
    pub(crate) fn message_tokens(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.encode(text)?;
        tokens.push(self.end);
        Ok(tokens)
    }

    /// The first word of a text that is not in the compact vocabulary. A full vocabulary can encode any text.
    pub(crate) fn unknown_word<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self.form {
            PromptForm::Compact => text.split(' ').find(|w| !self.words.contains_key(*w)),
            PromptForm::Full => None,
        }
    }

    /// Whether a response has no end token: a compact action of a single word.
    fn ends_implicitly(&self, request: &RequestBody) -> bool {
        self.form == PromptForm::Compact && request.max_tokens == 1
    }

    /// The sampler request of a request.
    pub fn request(&self, request: &RequestBody, params: &SamplingParams, seed: u64) -> Result<SampleRequest> {
        let mut params = SamplingParams { max_tokens: request.max_tokens, seed, ..params.clone() };
        params.stop_ids.push(self.end);
        let allowed = request.allowed.as_ref().map(|texts| self.action_set(request, texts)).transpose()?;
        Ok(SampleRequest { prompt: self.prompt(&request.messages)?, params, allowed, ..Default::default() })
    }

    /// The action mask of a set of legal responses.
    fn action_set(&self, request: &RequestBody, texts: &[String]) -> Result<ActionSet> {
        if let Some(set) = self.action_sets.read().expect("no holder panics").get(texts) {
            return Ok(set.clone());
        }
        let encoded = texts.iter().map(|text| match self.form {
            PromptForm::Compact => Ok(self.compact_tokens(text).collect()),
            // Full prompts request the action in tags.
            PromptForm::Full => {
                let lead = if self.thinking == Thinking::On { "\n\n" } else { "" };
                self.renderer.encode(&format!("{lead}<action>{text}</action>"))
            }
        });
        let encoded = encoded.collect::<mage_engine::Result<Vec<Vec<u32>>>>()?;
        let end = (!self.ends_implicitly(request)).then_some(self.end);
        let think_end = match self.thinking {
            Thinking::Off => None,
            Thinking::On => self.renderer.control().think_end,
        };
        let set = ActionSet::new(encoded, end, think_end)?;
        self.action_sets.write().expect("no holder panics").insert(texts.to_vec(), set.clone());
        Ok(set)
    }

    /// The allowed tokens at each position of a response.
    pub fn masks(&self, request: &RequestBody, response: &[u32]) -> Result<Vec<Option<Allowed>>> {
        match &request.allowed {
            None => Ok(Vec::new()),
            Some(texts) => Ok(self.action_set(request, texts)?.masks(response)?),
        }
    }

    /// Decodes a sample.
    pub fn completion(&self, prompt: Vec<u32>, sample: Sample, weights: &str) -> Result<Completion> {
        Ok(Completion {
            text: match self.form {
                PromptForm::Full => self.renderer.decode(&sample.tokens)?,
                PromptForm::Compact => self.decode_compact(&sample.tokens),
            },
            finish: to_core_finish(sample.finish),
            tokens: Some(CompletionTokens { prompt, response: sample.tokens, logprobs: sample.logprobs }),
            weights: Some(weights.to_owned()),
            usage: None,
        })
    }

    fn decode_compact(&self, tokens: &[u32]) -> String {
        let words = tokens.iter().filter(|t| **t != self.end).filter_map(|t| self.renderer.token_text(*t));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Converts messages to the engine's type.
pub(crate) fn to_engine_messages(messages: &[Message]) -> Vec<ChatMessage> {
    let role = |role: Role| match role {
        Role::System => ChatRole::System,
        Role::User => ChatRole::User,
        Role::Assistant => ChatRole::Assistant,
    };
    messages.iter().map(|m| ChatMessage { role: role(m.role), content: m.content.clone() }).collect()
}

/// Converts a finish reason to the core's type.
pub(crate) fn to_core_finish(reason: FinishReason) -> Finish {
    match reason {
        FinishReason::Stop => Finish::Stop,
        FinishReason::Length => Finish::Length,
    }
}

/// Sampling seed of a request.
pub(crate) fn request_seed(request: &Request) -> u64 {
    request.seed.value()
}
