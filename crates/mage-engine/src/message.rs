//! Chat messages.

use serde::{Deserialize, Serialize};

/// Author of a chat message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    /// Instructions.
    System,
    /// The environment or a person.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Author.
    pub role: ChatRole,
    /// Text.
    pub content: String,
}

impl ChatMessage {
    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        ChatMessage { role: ChatRole::System, content: content.into() }
    }

    /// A message to the model.
    pub fn user(content: impl Into<String>) -> Self {
        ChatMessage { role: ChatRole::User, content: content.into() }
    }

    /// A message by the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        ChatMessage { role: ChatRole::Assistant, content: content.into() }
    }
}
