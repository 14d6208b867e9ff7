//! Retry backoff: exponential with jitter, so that clients do not retry in lockstep after an outage.

use mage_rng::Seed;
use rand::RngExt;
use std::time::{Duration, SystemTime};

/// First backoff before jitter.
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);
/// Maximum backoff, unless the server asks for more.
const MAX_BACKOFF: Duration = Duration::from_secs(20);
/// Upper bound of `Retry-After`, against overflow.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(1 << 30);

/// Backoff after failure number `failure`, counted from 0: between half and all of the doubled delay. A `Retry-After`
/// of the server is a lower bound.
pub(crate) fn backoff(failure: u32, retry_after: Option<Duration>, seed: Seed) -> Duration {
    let doubled = INITIAL_BACKOFF.saturating_mul(1_u32.checked_shl(failure).unwrap_or(u32::MAX)).min(MAX_BACKOFF);
    let jitter: f64 = seed.child("pause").at(u64::from(failure)).rng().random_range(0.5..1.0);
    match retry_after {
        None => doubled.mul_f64(jitter),
        Some(delay) => delay + INITIAL_BACKOFF.mul_f64(jitter),
    }
}

/// Parses a `Retry-After` header: seconds or an HTTP date.
pub(crate) fn parse_retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds.max(0.0)).ok().map(|delay| delay.min(MAX_RETRY_AFTER));
    }
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(now).unwrap_or_default().min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_a_limit_with_jitter() {
        let all: Vec<Duration> = (0..40).map(|i| backoff(i, None, Seed::new(1))).collect();
        for (i, delay) in all.iter().enumerate() {
            let full = INITIAL_BACKOFF.saturating_mul(1 << i.min(20)).min(MAX_BACKOFF);
            assert!(*delay >= full / 2 && *delay < full, "{i}: {delay:?}");
        }
        assert_ne!(backoff(0, None, Seed::new(1)), backoff(0, None, Seed::new(2)));
    }

    #[test]
    fn retry_after_is_a_lower_bound() {
        let retry_after = Duration::from_secs(30);
        let delay = backoff(0, Some(retry_after), Seed::new(1));
        assert!(delay >= retry_after && delay < retry_after + INITIAL_BACKOFF);
    }

    #[test]
    fn retry_after_header_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(parse_retry_after(" 3", now), Some(Duration::from_secs(3)));
        assert_eq!(parse_retry_after("0.5", now), Some(Duration::from_millis(500)));
        assert_eq!(parse_retry_after("-1", now), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:49:40 GMT", now), Some(Duration::from_secs(3)));
        assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:49:30 GMT", now), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("1e19", now), Some(MAX_RETRY_AFTER));
        assert_eq!(parse_retry_after("soon", now), None);
        assert_eq!(parse_retry_after("inf", now), None);
    }
}
