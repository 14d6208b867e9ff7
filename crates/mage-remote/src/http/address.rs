//! Where is an engine, and which one should it be?

use crate::http::client::{HttpClient, HttpRequest};
use reqwest::Url;
use serde_json::Value;

/// What is expected behind an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A server that speaks the Tinker protocol.
    Tinker,
    /// A vLLM server.
    Vllm,
}

impl Service {
    /// An address of such a server, however it was written: two that are equal are the same server. What is refused is not
    /// repeated: it may hold a password.
    pub fn address(self, text: &str) -> Result<String, String> {
        let mut url = parse_address(text)?;
        let path = url.path().trim_end_matches('/').to_owned();
        let path = match self {
            Service::Tinker => path.strip_suffix("/api/v1").unwrap_or(&path),
            Service::Vllm if path.ends_with("/api/v1") => {
                return Err("this ends as a Tinker server's does; a vLLM server's ends in /v1 or in nothing".to_owned());
            }
            Service::Vllm => path.strip_suffix("/v1").unwrap_or(&path),
        };
        url.set_path(path);
        Ok(url.as_str().trim_end_matches('/').to_owned())
    }

    /// Says who answers where this one was expected and did not.
    pub(crate) async fn missing(self, wire: &HttpClient) -> String {
        let (ask, name) = match self {
            Service::Tinker => (HttpRequest::get("../../v1/models"), "the Tinker protocol is not spoken"),
            Service::Vllm => (HttpRequest::get("api/v1/healthz"), "nothing answers as vLLM does"),
        };
        let found = wire.once(&ask).await.ok().and_then(|said| serde_json::from_slice::<Value>(&said).ok());
        match (self, found) {
            (Service::Tinker, Some(said)) if said["data"].is_array() => {
                format!("{name} here: it looks like a vLLM server, whose address belongs into vllm.servers")
            }
            (Service::Vllm, Some(said)) if said.is_object() => {
                format!("{name} here: it looks like a Tinker server, whose address belongs into tinker.url")
            }
            _ => format!("{name} here: is it another server's address?"),
        }
    }
}

/// Whether an address, however it was written, is on this machine.
pub fn is_loopback(address: &str) -> bool {
    Url::parse(address).is_ok_and(|url| is_here(&url))
}

/// Reads an address.
pub(crate) fn parse_address(address: &str) -> Result<Url, String> {
    let url =
        Url::parse(address).map_err(|e| format!("this is no address ({e}); one looks like http://127.0.0.1:8000"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("an address looks like http://127.0.0.1:8000".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("leave logins out; a key belongs into an environment variable".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("leave out what follows `?` or `#`; a key belongs into an environment variable".to_owned());
    }
    Ok(url)
}

/// Whether an address is on this machine.
pub(crate) fn is_here(base: &Url) -> bool {
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
    fn addresses_that_are_none_are_refused_and_not_repeated() {
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
                let e = service.address(bad).unwrap_err();
                assert!(!e.contains("hush"), "{bad}: {e}");
            }
        }
        for good in ["http://127.0.0.1:8000", "https://engine.example/tinker", "http://[::1]:8000"] {
            assert_eq!(Service::Tinker.address(good).as_deref(), Ok(good));
        }
    }

    #[test]
    fn one_server_has_one_address() {
        for text in ["http://Host:80", "http://host/", "http://host/v1", "http://host:80/v1/", "HTTP://HOST"] {
            assert_eq!(Service::Vllm.address(text).as_deref(), Ok("http://host"), "{text}");
        }
        for text in ["https://Host:443/api/v1", "https://host/api/v1/", "https://host"] {
            assert_eq!(Service::Tinker.address(text).as_deref(), Ok("https://host"), "{text}");
        }
        assert_ne!(Service::Vllm.address("http://host:8000"), Service::Vllm.address("http://host:8001"));
        assert!(Service::Vllm.address("http://host:1/api/v1").unwrap_err().contains("Tinker"));
    }
}
