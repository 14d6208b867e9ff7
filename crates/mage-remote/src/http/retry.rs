//! How long to wait before trying again?
//!
//! Twice as long each time, up to a limit, and never exactly as long as everybody else: a server that fell over under many
//! requests must not get them all back at the same moment.

use mage_rng::Seed;
use rand::RngExt;
use std::time::{Duration, SystemTime};

/// The first pause, before chance enters.
const FIRST: Duration = Duration::from_millis(250);
/// No pause is longer, unless the server asks for it.
const LONGEST: Duration = Duration::from_secs(20);
/// As good as never: what is longer is not added up.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// The pause after failure number `failure` (from 0): between half of the doubled pause and all of it. A server's own wish
/// is never undercut.
pub(crate) fn pause(failure: u32, wish: Option<Duration>, luck: Seed) -> Duration {
    let doubled = FIRST.saturating_mul(1_u32.checked_shl(failure).unwrap_or(u32::MAX)).min(LONGEST);
    let share: f64 = luck.child("pause").at(u64::from(failure)).rng().random_range(0.5..1.0);
    match wish {
        None => doubled.mul_f64(share),
        Some(wish) => wish + FIRST.mul_f64(share),
    }
}

/// What a `Retry-After` header asks for: seconds, or a date.
pub(crate) fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds.max(0.0)).ok().map(|wish| wish.min(NEVER));
    }
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(now).unwrap_or_default().min(NEVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let all: Vec<Duration> = (0..40).map(|i| pause(i, None, Seed::new(1))).collect();
        for (i, pause) in all.iter().enumerate() {
            let full = FIRST.saturating_mul(1 << i.min(20)).min(LONGEST);
            assert!(*pause >= full / 2 && *pause < full, "{i}: {pause:?}");
        }
        assert_ne!(pause(0, None, Seed::new(1)), pause(0, None, Seed::new(2)));
    }

    #[test]
    fn a_wish_is_respected() {
        let wish = Duration::from_secs(30);
        let waited = pause(0, Some(wish), Seed::new(1));
        assert!(waited >= wish && waited < wish + FIRST);
    }

    #[test]
    fn wishes_are_seconds_or_dates() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(retry_after(" 3", now), Some(Duration::from_secs(3)));
        assert_eq!(retry_after("0.5", now), Some(Duration::from_millis(500)));
        assert_eq!(retry_after("-1", now), Some(Duration::ZERO));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:40 GMT", now), Some(Duration::from_secs(3)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:30 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("1e19", now), Some(NEVER));
        assert_eq!(retry_after("soon", now), None);
        assert_eq!(retry_after("inf", now), None);
    }
}
