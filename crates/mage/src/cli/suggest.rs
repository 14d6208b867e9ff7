//! Errors of the command line in plain words, with suggestions for what clap does not know: keys of recipes, and names
//! of other tools' commands.

use clap::{
    Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};
use mage_train::recipe::{Recipe, explain};
use std::ffi::OsString;

/// Commands under the names that other tools use.
const OTHER_NAMES: [(&str, &str); 12] = [
    ("ls", "runs"),
    ("list", "runs"),
    ("ps", "runs"),
    ("evaluate", "eval"),
    ("test", "eval"),
    ("envs", "env list"),
    ("environments", "env list"),
    ("recipes", "recipe list"),
    ("config", "recipe show"),
    ("generate", "model generate"),
    ("merge", "model merge"),
    ("version", "--version"),
];

/// Commands with `--set KEY=VALUE`.
const WITH_SET: [&str; 5] = ["train", "warmstart", "recipe", "doctor", "sweep"];

/// Adds a suggestion to an error, if there is one.
pub(crate) fn with_suggestion(mut e: Error, args: &[OsString]) -> Error {
    let invalid = |kind| match e.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let suggestion = match e.kind() {
        ErrorKind::UnknownArgument => invalid(ContextKind::InvalidArg).and_then(|flag| recipe_key(&flag, args)),
        ErrorKind::InvalidSubcommand if e.get(ContextKind::SuggestedSubcommand).is_none() => {
            let name = invalid(ContextKind::InvalidSubcommand);
            let known = name.and_then(|name| OTHER_NAMES.iter().find(|(other, _)| *other == name));
            known.map(|(_, command)| format!("use 'mage {command}'"))
        }
        _ => None,
    };
    if let Some(text) = suggestion {
        // Replaces clap's advice to pass the flag as a value.
        e.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(text)]));
    }
    e
}

/// The advice for a flag that is a key of recipes.
fn recipe_key(flag: &str, args: &[OsString]) -> Option<String> {
    if !args.get(1).is_some_and(|command| WITH_SET.iter().any(|known| command == *known)) {
        return None;
    }
    let name = flag.strip_prefix("--")?.replace('-', "_");
    let fields = explain("", &Recipe::default()).ok()?;
    let keys: Vec<&str> = fields.iter().map(|f| &*f.key).filter(|key| last_part(key) == name || *key == name).collect();
    let value = value_of(flag, args).unwrap_or_else(|| "VALUE".to_owned());
    let settings: Vec<String> = keys.iter().map(|key| format!("'--set {key}={value}'")).collect();
    (!settings.is_empty()).then(|| format!("use {}", settings.join(" or ")))
}

fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// The value that follows a flag.
fn value_of(flag: &str, args: &[OsString]) -> Option<String> {
    let position = args.iter().position(|arg| arg.to_str().is_some_and(|arg| arg.split('=').next() == Some(flag)))?;
    match args[position].to_str()?.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => args.get(position + 1)?.to_str().filter(|next| !next.starts_with("--")).map(str::to_owned),
    }
}

/// The text of an error, with the messages of Rust's number parser in plain words.
pub(crate) fn text(e: &Error) -> String {
    e.render()
        .ansi()
        .to_string()
        .replace("invalid digit found in string", "expected a whole number of at least 0")
        .replace("number too large to fit in target type", "the number is too large")
        .replace("cannot parse integer from empty string", "expected a whole number")
        .replace("invalid float literal", "expected a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(words: &[&str]) -> String {
        let args: Vec<OsString> = ["mage"].iter().chain(words).map(OsString::from).collect();
        let e = crate::cli::parse(&args).expect_err("invalid");
        anstream::adapter::strip_str(&text(&with_suggestion(e, &args))).to_string()
    }

    #[test]
    fn flags_that_are_recipe_keys_suggest_set() {
        for words in [&["train", "--updates", "5"][..], &["train", "kuhn", "--updates=5"]] {
            let text = message(words);
            assert!(text.contains("use '--set optim.updates=5'") && !text.contains("as a value"), "{text}");
        }
        let text = message(&["train", "--learning-rate"]);
        assert!(text.contains("'--set optim.learning_rate=VALUE'"), "{text}");
        assert!(!message(&["eval", "bayes", "--updates", "5"]).contains("--set"), "eval has no --set");
        assert!(message(&["train", "--sed", "5"]).contains("'--seed'"), "clap's own suggestion is kept");
    }

    #[test]
    fn names_of_other_tools_suggest_the_command() {
        assert!(message(&["ls"]).contains("use 'mage runs'"), "{}", message(&["ls"]));
        assert!(message(&["trian"]).contains("'train'"));
    }

    #[test]
    fn numbers_out_of_bounds_are_explained() {
        for (words, expected) in [
            (&["eval", "bayes", "--tasks", "-1"][..], "expected a whole number from 1 to 1000000"),
            (&["eval", "bayes", "--tasks", "0"], "expected a whole number from 1 to 1000000"),
            (&["eval", "bayes", "--episodes", "-3"], "expected a whole number from 1 to 1000"),
            (&["eval", "bayes", "--seed", "-1"], "expected a whole number of at least 0"),
            (&["train", "--seed", "99999999999999999999"], "the number is too large"),
            (&["bench", "sampler", "m", "--requests", "-5"], "expected a whole number"),
        ] {
            let text = message(words);
            assert!(text.contains(expected) && !text.contains("tip:"), "{words:?}: {text}");
        }
    }
}
