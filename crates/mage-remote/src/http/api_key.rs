//! API keys.
//!
//! A key prints as `[key]` and is redacted from every response and error text, since some servers repeat it in their
//! errors.

use mage_engine::{Error, Result};
use std::fmt;

/// A secret that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// Replacement for a redacted key.
const REDACTED: &str = "[key]";
/// Shorter keys are not redacted from responses, since they could match ordinary words.
const MIN_REDACTED_LEN: usize = 8;

impl ApiKey {
    /// Reads the key from an environment variable; `None` if it is unset or empty.
    pub fn from_env(variable: &str) -> Result<Option<Self>> {
        check_env_var_name(variable).map_err(|problem| Error::invalid("name of the API key variable", problem))?;
        match std::env::var(variable) {
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Error::invalid(format!("environment variable {variable}"), "its value is not valid UTF-8"))
            }
            Ok(text) => {
                Self::new(&text).map_err(|problem| Error::invalid(format!("environment variable {variable}"), problem))
            }
        }
    }

    /// Parses a key and trims white space.
    fn new(text: &str) -> std::result::Result<Option<Self>, &'static str> {
        match text.trim() {
            "" => Ok(None),
            text if text.bytes().all(|b| b.is_ascii_graphic()) => Ok(Some(ApiKey(text.to_owned()))),
            _ => Err("an API key consists of printable ASCII characters without spaces"),
        }
    }

    /// Value of the `Authorization` header.
    pub(crate) fn bearer_header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// The key itself, for other headers.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn for_test(text: &str) -> Self {
        ApiKey(text.to_owned())
    }

    /// Redacts the key from a text, both plain and in JSON escaping.
    pub(crate) fn redact(&self, text: &str) -> String {
        let quoted = serde_json::Value::from(self.0.as_str()).to_string();
        text.replace(quoted.trim_matches('"'), REDACTED).replace(&self.0, REDACTED)
    }

    /// Redacts the key from a UTF-8 response. Binary responses are unchanged, and so is every response if the key is
    /// shorter than [`MIN_REDACTED_LEN`].
    pub(crate) fn redact_response(&self, response: Vec<u8>) -> Vec<u8> {
        if self.0.len() < MIN_REDACTED_LEN {
            return response;
        }
        match String::from_utf8(response) {
            Ok(text) => self.redact(&text).into_bytes(),
            Err(data) => data.into_bytes(),
        }
    }
}

/// Checks the name of an environment variable. The error does not repeat it, since it may be the key itself.
pub fn check_env_var_name(name: &str) -> std::result::Result<(), String> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let valid_name = name.bytes().all(valid) && !name.as_bytes().first().is_some_and(u8::is_ascii_digit);
    // Some keys consist of letters only. Names of variables are upper case, unless such a variable is set.
    let upper_case_or_set = || !name.bytes().any(|b| b.is_ascii_lowercase()) || std::env::var_os(name).is_some();
    match valid_name && upper_case_or_set() {
        true => Ok(()),
        false => {
            Err("not the name of an environment variable (upper case, digits and _, or one that is set): put the key \
                      into a variable and pass the name of the variable"
                .to_owned())
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_passed_as_variable_name_is_rejected_and_not_repeated() {
        for key in ["sk-hush", "tml-Hush123", "hush0123456789abcdef", "1HUSH", "TWO HUSH", "HUSH=1", "hüsh"] {
            let e = check_env_var_name(key).unwrap_err();
            assert!(!e.to_lowercase().contains("hush") && e.contains("pass the name of the variable"), "{e}");
            let e = ApiKey::from_env(key).unwrap_err().to_string();
            assert!(!e.to_lowercase().contains("hush"), "{e}");
        }
        for name in ["TINKER_API_KEY", "_K2", ""] {
            check_env_var_name(name).unwrap();
        }
        // Lower-case names of variables that are set are accepted.
        for (name, _) in std::env::vars().filter(|(n, _)| n.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')) {
            check_env_var_name(&name).unwrap();
        }
    }

    #[test]
    fn key_is_never_printed() {
        let key = ApiKey::new(" sk-secret\n").unwrap().unwrap();
        assert_eq!(format!("{key:?} {key} {:?}", Some(&key)), "[key] [key] Some([key])");
        assert_eq!(key.redact("bad key: sk-secret!"), "bad key: [key]!");
        assert_eq!(key.bearer_header(), "Bearer sk-secret");
        let odd = ApiKey::for_test(r#"sk"se\cret"#);
        assert_eq!(odd.redact(r#"sk"se\cret, written "sk\"se\\cret""#), r#"[key], written "[key]""#);
        assert_eq!(key.redact_response(b"{\"id\": \"sk-secret\"}".to_vec()), b"{\"id\": \"[key]\"}");
        assert_eq!(key.redact_response(b"sk-secret\xff".to_vec()), b"sk-secret\xff", "binary");
        assert_eq!(ApiKey::for_test("model").redact_response(b"model_id".to_vec()), b"model_id");
        assert_eq!(ApiKey::new("  "), Ok(None));
        assert!(ApiKey::new("two words").is_err() && ApiKey::new("sk-schlüssel").is_err());
    }
}
