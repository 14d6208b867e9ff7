//! How does a conversation become one text?
//!
//! By the model's own chat template, a Jinja text that comes with its tokenizer, under the settings `transformers` uses.

use crate::{Error, Message, Result, Thinking};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};

const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    env: Environment<'static>,
    source: String,
}

impl ChatTemplate {
    pub(crate) fn new(source: &str) -> Result<Self> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| Error::invalid("chat template", describe(&e)))?);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |text: String| -> std::result::Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        env.add_template_owned(NAME, source.to_owned()).map_err(|e| Error::invalid("chat template", describe(&e)))?;
        Ok(ChatTemplate { env, source: source.to_owned() })
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages` and, unless `open` is false, the beginning of the model's turn.
    pub(crate) fn render(
        &self,
        messages: &[Message],
        thinking: Thinking,
        open: bool,
        bos: Option<&str>,
        eos: Option<&str>,
    ) -> Result<String> {
        let context = context! {
            messages => Serde(messages),
            add_generation_prompt => open,
            enable_thinking => thinking == Thinking::On,
            bos_token => bos,
            eos_token => eos,
        };
        self.env
            .get_template(NAME)
            .and_then(|t| t.render(context))
            .map_err(|e| Error::invalid("chat template", describe(&e)))
    }
}

/// The error and what caused it, on one line.
fn describe(e: &minijinja::Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(c) = cause {
        text = format!("{text}: {c}");
        cause = c.source();
    }
    text
}
