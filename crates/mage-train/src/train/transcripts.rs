//! Transcripts: user-provided conversations for supervised training.
//!
//! A transcript file holds one JSON object per line: `{"messages": [{"role": "user", "content": "…"}, {"role":
//! "assistant", "content": "…"}]}`. Every assistant message is a target, given the messages before it.

use crate::{
    Error, Result,
    policy::codec::PromptCodec,
    recipe::Aggregation,
    train::samples::{TokenizedSample, token_forest},
};
use mage_core::{Message, Role};
use mage_engine::{PerToken, TokenForest};
use mage_env::Seed;
use rand::seq::SliceRandom;
use serde::Deserialize;
use std::path::Path;

/// Tokenized assistant messages with their prompts.
pub struct Transcripts {
    /// Prompt and response.
    samples: Vec<(Vec<u32>, Vec<u32>)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TranscriptLine {
    messages: Vec<TranscriptMessage>,
}

#[derive(Deserialize)]
struct TranscriptMessage {
    role: Role,
    content: String,
}

impl Transcripts {
    /// Reads a file; errors name the line. No response may end after token `max_seq_len` of its conversation.
    pub fn read(path: &Path, codec: &PromptCodec, max_seq_len: usize) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let mut samples = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let invalid = |problem: String| Error::Recipe {
                location: format!("{}, line {}", path.display(), number + 1),
                problem,
            };
            let TranscriptLine { messages } = serde_json::from_str(line).map_err(|e| invalid(format!("{e}")))?;
            let messages: Vec<Message> =
                messages.into_iter().map(|m| Message { role: m.role, content: m.content }).collect();
            let count_before = samples.len();
            for (i, message) in messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant) {
                if let Some(word) = messages[..=i].iter().find_map(|m| codec.unknown_word(&m.content)) {
                    return Err(invalid(format!("the model's vocabulary has no word `{word}`")));
                }
                let (prompt, response) = (codec.prompt(&messages[..i])?, codec.message_tokens(&message.content)?);
                let length = prompt.len() + response.len();
                if length > max_seq_len {
                    return Err(invalid(format!(
                        "message {} ends at token {length}; the model's maximum sequence length is {max_seq_len}",
                        i + 1
                    )));
                }
                if prompt.is_empty() {
                    return Err(invalid(
                        "the first message is from the assistant; start with a user message".to_owned(),
                    ));
                }
                samples.push((prompt, response));
            }
            if samples.len() == count_before {
                return Err(invalid("no message is from the assistant; there is nothing to train on".to_owned()));
            }
        }
        if samples.is_empty() {
            let problem = "the file is empty; write one JSON object per line, {\"messages\": […]}".to_owned();
            return Err(Error::Recipe { location: path.display().to_string(), problem });
        }
        Ok(Transcripts { samples })
    }

    /// The batch of a step. Every pass over the samples has its own order.
    pub(crate) fn batch(&self, step: u64, count: usize, seed: Seed) -> TokenForest {
        let total = self.samples.len() as u64;
        let mut order: (u64, Vec<usize>) = (u64::MAX, Vec::new());
        let selected = (0..count as u64).map(|i| {
            let position = step * count as u64 + i;
            let epoch = position / total;
            if order.0 != epoch {
                order = (epoch, (0..self.samples.len()).collect());
                order.1.shuffle(&mut seed.child("transcripts").at(epoch).rng());
            }
            let (prompt, response) = &self.samples[order.1[(position % total) as usize]];
            TokenizedSample { prompt, response, train: PerToken::default() }
        });
        token_forest(selected, Aggregation::Token)
    }
}
