//! Server addresses: parsing, normalisation and detection of the wrong kind of server.

use crate::http::client::{HttpClient, HttpRequest};
use mage_engine::Hint;
use reqwest::Url;
use serde_json::Value;

/// Kind of server expected at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A server with the Tinker protocol.
    Tinker,
    /// A vLLM server.
    Vllm,
}

impl Service {
    /// Normalises an address: equal results mean the same server. Errors do not repeat the input, which may contain a
    /// password.
    pub fn normalize_address(self, text: &str) -> Result<String, String> {
        let mut url = parse_address(text)?;
        let path = url.path().trim_end_matches('/').to_owned();
        let path = match self {
            Service::Tinker => path.strip_suffix("/api/v1").unwrap_or(&path),
            Service::Vllm if path.ends_with("/api/v1") => {
                return Err(
                    "this is the address of a Tinker server; a vLLM address ends in /v1 or has no path".to_owned()
                );
            }
            Service::Vllm => path.strip_suffix("/v1").unwrap_or(&path),
        };
        url.set_path(path);
        Ok(url.as_str().trim_end_matches('/').to_owned())
    }

    /// Describes what runs at the address instead of the expected service, with a hint.
    pub(crate) async fn describe_wrong_server(self, http: &HttpClient) -> (String, &'static [Hint]) {
        let (request, name) = match self {
            Service::Tinker => (HttpRequest::get("../../v1/models"), "no Tinker server found"),
            Service::Vllm => (HttpRequest::get("api/v1/healthz"), "no vLLM server found"),
        };
        let found = http.send_once(&request).await.ok().and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        match (self, found) {
            (Service::Tinker, Some(body)) if body["data"].is_array() => {
                (format!("{name} here: this looks like a vLLM server"), &[Hint::AddToPool])
            }
            (Service::Vllm, Some(body)) if body.is_object() => {
                (format!("{name} here: this looks like a Tinker server"), &[Hint::SetTrainerAddress])
            }
            _ => (format!("{name} here"), &[Hint::CheckAddress]),
        }
    }
}

/// Whether an address is on this machine.
pub fn is_loopback(address: &str) -> bool {
    Url::parse(address).is_ok_and(|url| is_loopback_url(&url))
}

/// Parses and checks an address.
pub(crate) fn parse_address(address: &str) -> Result<Url, String> {
    let url = Url::parse(address)
        .map_err(|e| format!("invalid address ({e}); expected a form like http://127.0.0.1:8000"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("invalid address; expected a form like http://127.0.0.1:8000".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("remove the login; put the API key into an environment variable".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("remove the query or fragment (`?` or `#`); put an API key into an environment variable".to_owned());
    }
    Ok(url)
}

/// Whether a URL points to this machine.
pub(crate) fn is_loopback_url(base: &Url) -> bool {
    match base.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|a| a.is_loopback()),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_are_rejected_and_not_repeated() {
        for bad in [
            "localhost:8000",
            "ftp://x",
            "127.0.0.1",
            "",
            "http://",
            "http://me:hush@127.0.0.1:1",
            "http://x?key=hush",
            "http://x/#hush",
        ] {
            for service in [Service::Tinker, Service::Vllm] {
                let e = service.normalize_address(bad).unwrap_err();
                assert!(!e.contains("hush"), "{bad}: {e}");
            }
        }
        for good in ["http://127.0.0.1:8000", "https://engine.example/tinker", "http://[::1]:8000"] {
            assert_eq!(Service::Tinker.normalize_address(good).as_deref(), Ok(good));
        }
    }

    #[test]
    fn addresses_of_one_server_are_normalised_to_one() {
        for text in ["http://Host:80", "http://host/", "http://host/v1", "http://host:80/v1/", "HTTP://HOST"] {
            assert_eq!(Service::Vllm.normalize_address(text).as_deref(), Ok("http://host"), "{text}");
        }
        for text in ["https://Host:443/api/v1", "https://host/api/v1/", "https://host"] {
            assert_eq!(Service::Tinker.normalize_address(text).as_deref(), Ok("https://host"), "{text}");
        }
        assert_ne!(
            Service::Vllm.normalize_address("http://host:8000"),
            Service::Vllm.normalize_address("http://host:8001")
        );
        assert!(Service::Vllm.normalize_address("http://host:1/api/v1").unwrap_err().contains("Tinker"));
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        assert!(["http://127.0.0.1:80", "http://[::1]:80", "http://localhost"].into_iter().all(is_loopback));
        assert!(!is_loopback("http://10.0.0.1") && !is_loopback("https://example.org"));
    }
}
