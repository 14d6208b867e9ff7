//! Fingerprints of weights.
//!
//! A fingerprint holds the log-probs of one fixed token sequence, computed by the trainer and by each sampling server.
//! It detects a push that a server confirms but does not apply: vLLM's weight reload has kept a stale tied head.

use mage_engine::{Error, Result};
use serde::{Deserialize, Serialize};

/// Number of tokens of the sequence.
const LENGTH: u32 = 24;

/// Log-probs of the fixed sequence under some weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub Vec<f32>);

impl Fingerprint {
    /// The fixed sequence for a vocabulary size.
    pub fn tokens(vocab_size: usize) -> Vec<u32> {
        let n = vocab_size.max(1) as u64;
        // Any fixed rule that visits many tokens.
        (0..u64::from(LENGTH)).map(|i| ((i * i * 7 + i * 3 + 1) % n) as u32).collect()
    }

    /// Largest absolute difference to another fingerprint; infinite if lengths differ or a difference is NaN.
    pub fn distance(&self, other: &Fingerprint) -> f32 {
        if self.0.len() != other.0.len() {
            return f32::INFINITY;
        }
        let difference = |(a, b): (&f32, &f32)| if a == b { 0.0 } else { (a - b).abs() };
        let differences = self.0.iter().zip(&other.0).map(difference);
        differences.fold(0.0, |max, d| if d.is_nan() { f32::INFINITY } else { max.max(d) })
    }

    /// Returns an error if `theirs` differs by more than `tolerance`.
    pub fn check(&self, theirs: &Fingerprint, tolerance: f32, server: &str, weights: &str) -> Result<()> {
        let distance = self.distance(theirs);
        if distance <= tolerance {
            return Ok(());
        }
        let head = |f: &Fingerprint| f.0.iter().take(3).map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(", ");
        Err(Error::engine(
            server,
            format!(
                "it does not have {weights}: log-probs of the fingerprint sequence differ by up to {distance:.3e}, \
                 above the tolerance of {tolerance:.0e} ({}… on the server, {}… in training)",
                head(theirs),
                head(self)
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_tokens_are_inside_every_vocabulary() {
        for n in [1, 2, 16, 151_936] {
            let tokens = Fingerprint::tokens(n);
            assert!(tokens.len() == LENGTH as usize && tokens.iter().all(|t| (*t as usize) < n));
        }
        let mut many = Fingerprint::tokens(151_936);
        many.sort_unstable();
        many.dedup();
        assert_eq!(many.len(), LENGTH as usize);
    }

    #[test]
    fn fingerprints_of_different_weights_differ() {
        let ours = Fingerprint(vec![-6.619_074, -5.704_937]);
        assert!(ours.check(&Fingerprint(vec![-6.619_1, -5.704_9]), 1e-3, "x", "policy@1").is_ok());
        // A stale tied head, as measured.
        let e = ours.check(&Fingerprint(vec![-6.428_356, -6.251_1]), 1e-3, "x", "policy@1").unwrap_err().to_string();
        assert!(e.contains("x failed: it does not have policy@1") && e.contains("5.462e-1"), "{e}");
        assert!(ours.check(&Fingerprint(vec![f32::NAN, -5.7]), 1e3, "x", "w").is_err());
        assert!(ours.check(&Fingerprint(vec![-6.6]), 1e3, "x", "w").is_err());
    }
}
