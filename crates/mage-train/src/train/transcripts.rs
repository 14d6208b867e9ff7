//! What did somebody say that a model should learn to say?
//!
//! A file of conversations, one JSON object a line: `{"messages": [{"role": "user", "content": "…"}, {"role": "assistant",
//! "content": "…"}]}`. Everything an assistant says is an answer to learn, given what came before it.

use crate::{
    Error, Result,
    policy::codec::PromptCodec,
    recipe::Aggregation,
    train::samples::{TokenizedSample, forest},
};
use mage_core::{Message, Role};
use mage_engine::{PerToken, TokenForest};
use mage_env::Seed;
use rand::seq::SliceRandom;
use serde::Deserialize;
use std::path::Path;

/// Answers to learn, as tokens.
pub struct Transcripts {
    /// Prompt and answer.
    answers: Vec<(Vec<u32>, Vec<u32>)>,
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
    /// Reads a file; whatever is wrong is named with its line. No answer may be longer than `context` with what comes before.
    pub fn read(path: &Path, speech: &PromptCodec, context: usize) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let mut answers = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let wrong =
                |problem: String| Error::Recipe { place: format!("{}, line {}", path.display(), number + 1), problem };
            let TranscriptLine { messages } = serde_json::from_str(line).map_err(|e| wrong(format!("{e}")))?;
            let messages: Vec<Message> =
                messages.into_iter().map(|m| Message { role: m.role, content: m.content }).collect();
            let before = answers.len();
            for (i, said) in messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant) {
                if let Some(word) = messages[..=i].iter().find_map(|m| speech.unknown_word(&m.content)) {
                    return Err(wrong(format!("the model's vocabulary has no word `{word}`")));
                }
                let (prompt, answer) = (speech.prompt(&messages[..i])?, speech.spoken(&said.content)?);
                let long = prompt.len() + answer.len();
                if long > context {
                    return Err(wrong(format!(
                        "message {} ends at token {long}; the model has room for {context}",
                        i + 1
                    )));
                }
                if prompt.is_empty() {
                    return Err(wrong("nothing comes before the first answer; begin with a question".to_owned()));
                }
                answers.push((prompt, answer));
            }
            if answers.len() == before {
                return Err(wrong("no message is from the assistant: there is nothing to learn".to_owned()));
            }
        }
        if answers.is_empty() {
            let problem = "it is empty: give one JSON object a line, {\"messages\": […]}".to_owned();
            return Err(Error::Recipe { place: path.display().to_string(), problem });
        }
        Ok(Transcripts { answers })
    }

    /// The answers of a step: all in turn, in an order that is new each time round.
    pub(crate) fn batch(&self, step: u64, count: usize, seed: Seed) -> TokenForest {
        let all = self.answers.len() as u64;
        let mut order: (u64, Vec<usize>) = (u64::MAX, Vec::new());
        let chosen = (0..count as u64).map(|i| {
            let place = step * count as u64 + i;
            let round = place / all;
            if order.0 != round {
                order = (round, (0..self.answers.len()).collect());
                order.1.shuffle(&mut seed.child("transcripts").at(round).rng());
            }
            let (prompt, response) = &self.answers[order.1[(place % all) as usize]];
            TokenizedSample { prompt, response, train: PerToken::default() }
        });
        forest(chosen, Aggregation::Token)
    }
}
