//! Chat templates: the model's own Jinja template, rendered with the settings of `transformers`.

use crate::{ChatMessage, Error, Result, Thinking};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, StringInput, ValueOrKwargs};
use minijinja::{Environment, ErrorKind, State, Value, context, filters};
use minijinja_contrib::pycompat;
use std::io::{self, Write};

const NAME: &str = "chat_template";

/// Instructions of one rendering. The templates of released models need some thousand per message.
const MAX_INSTRUCTIONS: u64 = 20_000_000;

/// Bytes of one rendered conversation.
const MAX_BYTES: usize = 1 << 28;

/// Digits of a field width in a format string.
const MAX_WIDTH_DIGITS: usize = 4;

/// Columns by which `indent` may indent.
const MAX_INDENT: usize = 1000;

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
        env.set_unknown_method_callback(|state, value, method, arguments| {
            if method == "format" {
                check_widths(value)?;
            }
            pycompat::unknown_method_callback(state, value, method, arguments)
        });
        env.add_filter("format", |state: &mut State, format: &Value, values: Rest<ValueOrKwargs>| {
            check_widths(format)?;
            filters::format(state, format, values)
        });
        env.add_filter("indent", indent);
        env.add_filter("tojson", tojson);
        env.add_filter("replace", replace);
        // They can make lists of any length, and templates of released models do not use them.
        env.remove_filter("batch");
        env.remove_filter("slice");
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

/// Refuses a format string with a field of great width or precision, or with one taken from an argument. `%s` starts a
/// field of the filter, `{` one of the method.
fn check_widths(format: &Value) -> std::result::Result<(), minijinja::Error> {
    let text = format.as_str().unwrap_or_default();
    let of_filter = text.split('%').skip(1).map(|field| {
        let field = field.strip_prefix('(').and_then(|named| named.split_once(')')).map_or(field, |(_, field)| field);
        field.split(|c: char| !"#0- +.*123456789".contains(c)).next().unwrap_or_default()
    });
    let of_method = text.split('{').skip(1).map(|field| field.split('}').next().unwrap_or_default());
    let is_wide = |field: &str| {
        let mut numbers = field.rsplit(':').next().unwrap_or_default().split(|c: char| !c.is_ascii_digit());
        numbers.any(|digits| digits.len() > MAX_WIDTH_DIGITS) || field.contains('*')
    };
    match of_filter.chain(of_method).any(is_wide) {
        true => {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "the format string has a field that is too wide"))
        }
        false => Ok(()),
    }
}

/// The filter of minijinja, with a limit.
fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> std::result::Result<Value, minijinja::Error> {
    let columns = width.or(named.get("width")?);
    if columns.is_some_and(|columns| columns > MAX_INDENT) {
        let problem = format!("indent by more than {MAX_INDENT} columns");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, problem));
    }
    filters::indent(text, width, first, blank, named)
}

/// The filter of minijinja, without indentation by more than [`MAX_INDENT`] columns.
fn tojson(value: &Value, indent: Option<Value>, named: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let columns = indent.clone().or(named.get("indent")?).and_then(|columns| columns.as_usize());
    if columns.is_some_and(|columns| columns > MAX_INDENT) {
        let problem = format!("tojson with an indentation of more than {MAX_INDENT} columns");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, problem));
    }
    filters::tojson(value, indent, named)
}

/// The filter of minijinja, with a limit on the length of the result.
fn replace(text: String, from: String, to: String) -> std::result::Result<String, minijinja::Error> {
    let length = text.len().saturating_add(text.matches(&*from).count().saturating_mul(to.len()));
    if length > MAX_BYTES {
        let problem = format!("replace makes a text of more than {MAX_BYTES} bytes");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, problem));
    }
    Ok(text.replace(&*from, &to))
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

    #[test]
    fn wide_fields_and_indents_are_refused() {
        let render = |source: &str| ChatTemplate::new(source).unwrap().render(&[], Thinking::Off, true, None, None);
        for source in [
            "{{ '%1000000000d'|format(1) }}",
            "{{ '%*d'|format(1000000000, 1) }}",
            "{{ '%.1000000000f'|format(1) }}",
            "{{ '{:>1000000000}'.format(1) }}",
            "{{ 'a'|indent(10000000000) }}",
            "{{ 'a'|indent(width=10000000000) }}",
            "{{ [1]|tojson(indent=1000000000) }}",
            "{{ [1]|tojson(1000000000) }}",
        ] {
            let error = render(source).unwrap_err().to_string();
            assert!(error.contains("too wide") || error.contains("1000 columns"), "{source}: {error}");
        }
        for (source, expected) in [
            ("{{ 'a'|list|batch(1000000000)|list }}", "batch"),
            ("{{ 'abc'|slice(1000000000)|list }}", "slice"),
            ("{% set x = 'a' * 20000 %}{{ x|replace('a', x)|length }}", "replace makes a text of more than"),
        ] {
            let error = render(source).unwrap_err().to_string();
            assert!(error.contains(expected), "{source}: {error}");
        }
        let accepted = [
            ("{{ '%5d of 20250101 ** %s'|format(1, 2) }}", "    1 of 20250101 ** 2"),
            ("{{ '{:>3}, {}'.format(1, 2) }}", "  1, 2"),
            ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
            ("{{ {'a': 1}|tojson }} {{ 'aba'|replace('a', 'c') }}", "{\"a\": 1} cbc"),
        ];
        for (source, text) in accepted {
            assert_eq!(render(source).unwrap(), text);
        }
    }
}
