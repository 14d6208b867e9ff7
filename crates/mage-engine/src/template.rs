//! Chat templates: the model's own Jinja template, rendered with the settings of `transformers`.

use crate::{ChatMessage, Error, Result, Thinking};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use std::io::{self, Write};

const NAME: &str = "chat_template";

/// Instructions of one rendering. The templates of released models need some thousand per message.
const MAX_INSTRUCTIONS: u64 = 20_000_000;

/// Bytes of one rendered conversation.
const MAX_BYTES: usize = 1 << 28;

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
        env.set_fuel(Some(MAX_INSTRUCTIONS));
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
        let mut out = LimitedText { bytes: Vec::new() };
        let rendered = self.env.get_template(NAME).and_then(|t| t.render_captured_to(context, &mut out).map(drop));
        rendered.map_err(|e| Error::invalid("chat template", describe(&e)))?;
        Ok(String::from_utf8_lossy(&out.bytes).into_owned())
    }
}

/// Rendered text; an error beyond [`MAX_BYTES`].
struct LimitedText {
    bytes: Vec<u8>,
}

impl Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_BYTES - self.bytes.len() {
            return Err(io::Error::other(format!("the text has more than {MAX_BYTES} bytes")));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_without_end_are_refused() {
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        let render = |source: &str| ChatTemplate::new(source).unwrap().render(&[], Thinking::Off, true, None, None);
        let error = render(endless).unwrap_err().to_string();
        assert!(error.contains("chat template") && error.contains("fuel"), "{error}");
        assert_eq!(render("{% for a in range(3) %}x{% endfor %}").unwrap(), "xxx");
    }
}
