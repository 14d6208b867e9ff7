//! Who may know the key?
//!
//! The server, and nobody else: a key prints as `[key]` whichever way it is printed, and is taken out of every text that
//! comes back, since some servers repeat it in their complaints.

use mage_engine::{Error, Result};
use std::fmt;

/// A secret that prints as something else.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// What stands where a key was.
const HIDDEN: &str = "[key]";
/// A key of fewer letters is not looked for in answers: they would no longer say what they say.
const SHORT: usize = 8;

impl ApiKey {
    /// The key in an environment variable; `None` where the variable is not set or empty.
    pub fn from_env(variable: &str) -> Result<Option<Self>> {
        check_env_var_name(variable).map_err(|problem| Error::invalid("the name of a key's variable", problem))?;
        match std::env::var(variable) {
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Error::invalid(format!("environment variable {variable}"), "it is no text"))
            }
            Ok(text) => {
                Self::new(&text).map_err(|problem| Error::invalid(format!("environment variable {variable}"), problem))
            }
        }
    }

    /// A key from a text, without the white space around it.
    fn new(text: &str) -> std::result::Result<Option<Self>, &'static str> {
        match text.trim() {
            "" => Ok(None),
            text if text.bytes().all(|b| b.is_ascii_graphic()) => Ok(Some(ApiKey(text.to_owned()))),
            _ => Err("a key has no spaces, line breaks or letters beyond ASCII"),
        }
    }

    /// The header's value.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// The key itself, for a header of its own.
    pub(crate) fn plain(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn for_test(text: &str) -> Self {
        ApiKey(text.to_owned())
    }

    /// The text without the key, as it is or as JSON writes it between quotes.
    pub(crate) fn hide_in(&self, text: &str) -> String {
        let quoted = serde_json::Value::from(self.0.as_str()).to_string();
        text.replace(quoted.trim_matches('"'), HIDDEN).replace(&self.0, HIDDEN)
    }

    /// An answer without the key, where it is a text. What is no text is data, and stays as it is; so does everything where the
    /// key is so short that any word may hold it.
    pub(crate) fn hide_in_answer(&self, answer: Vec<u8>) -> Vec<u8> {
        if self.0.len() < SHORT {
            return answer;
        }
        match String::from_utf8(answer) {
            Ok(text) => self.hide_in(&text).into_bytes(),
            Err(data) => data.into_bytes(),
        }
    }
}

/// Refuses what is no name of an environment variable. It is not repeated: it may be the key itself.
pub fn check_env_var_name(name: &str) -> std::result::Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let named = name.bytes().all(plain) && !name.as_bytes().first().is_some_and(u8::is_ascii_digit);
    // Some keys are made of letters alone; names of variables are in capitals, but for those that somebody has set.
    let known = || !name.bytes().any(|b| b.is_ascii_lowercase()) || std::env::var_os(name).is_some();
    match named && known() {
        true => Ok(()),
        false => {
            Err("this is no environment variable's name (capitals, digits and _, or one that is set): put the key \
                      into a variable, and give the variable's name"
                .to_owned())
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_place_of_its_variables_name_is_refused_and_not_repeated() {
        for key in ["sk-hush", "tml-Hush123", "hush0123456789abcdef", "1HUSH", "TWO HUSH", "HUSH=1", "hüsh"] {
            let e = check_env_var_name(key).unwrap_err();
            assert!(!e.to_lowercase().contains("hush") && e.contains("give the variable's name"), "{e}");
            let e = ApiKey::from_env(key).unwrap_err().to_string();
            assert!(!e.to_lowercase().contains("hush"), "{e}");
        }
        for name in ["TINKER_API_KEY", "_K2", ""] {
            check_env_var_name(name).unwrap();
        }
        // The system's own: one in small letters that is there is a name.
        for (name, _) in std::env::vars().filter(|(n, _)| n.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')) {
            check_env_var_name(&name).unwrap();
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let key = ApiKey::new(" sk-secret\n").unwrap().unwrap();
        assert_eq!(format!("{key:?} {key} {:?}", Some(&key)), "[key] [key] Some([key])");
        assert_eq!(key.hide_in("bad key: sk-secret!"), "bad key: [key]!");
        assert_eq!(key.bearer(), "Bearer sk-secret");
        let odd = ApiKey::for_test(r#"sk"se\cret"#);
        assert_eq!(odd.hide_in(r#"sk"se\cret, written "sk\"se\\cret""#), r#"[key], written "[key]""#);
        assert_eq!(key.hide_in_answer(b"{\"id\": \"sk-secret\"}".to_vec()), b"{\"id\": \"[key]\"}");
        assert_eq!(key.hide_in_answer(b"sk-secret\xff".to_vec()), b"sk-secret\xff", "no text");
        assert_eq!(ApiKey::for_test("model").hide_in_answer(b"model_id".to_vec()), b"model_id");
        assert_eq!(ApiKey::new("  "), Ok(None));
        assert!(ApiKey::new("two words").is_err() && ApiKey::new("sk-schlüssel").is_err());
    }
}
