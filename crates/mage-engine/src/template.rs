//! Chat templates: the model's own Jinja template, rendered with the settings of `transformers`.

use crate::{ChatMessage, Error, Result, Thinking};
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

    /// Renders `messages`, and the start of the assistant's turn if `add_generation_prompt`.
    pub(crate) fn render(
        &self,
        messages: &[ChatMessage],
        thinking: Thinking,
        add_generation_prompt: bool,
        bos: Option<&str>,
        eos: Option<&str>,
    ) -> Result<String> {
        let context = context! {
            messages => Serde(messages),
            add_generation_prompt => add_generation_prompt,
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

/// Formats the error and its causes on one line.
fn describe(e: &minijinja::Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(c) = cause {
        text = format!("{text}: {c}");
        cause = c.source();
    }
    text
}
