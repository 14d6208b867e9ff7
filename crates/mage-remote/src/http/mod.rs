//! HTTP client for engines, and what every client shares: addresses, API keys, backoff, outage tracking, TLS errors.

pub(crate) mod address;
pub(crate) mod api_key;
pub(crate) mod client;
pub(crate) mod log;
pub(crate) mod outage;
pub(crate) mod retry;
pub(crate) mod timeout;
pub(crate) mod tls;
