//! Are these the weights they are said to be?
//!
//! One fixed sequence of tokens, scored by whoever trains and by whoever samples. A push that a server confirms and then does
//! not carry out (vLLM's reload has kept a tied head from before) shows in these numbers and nowhere else.

use mage_engine::{Error, Result};
use serde::{Deserialize, Serialize};

/// Tokens of the sequence.
const LENGTH: u32 = 24;

/// Log-probabilities of the fixed sequence under some weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub Vec<f32>);

impl Fingerprint {
    /// The sequence for a vocabulary.
    pub fn tokens(vocabulary: usize) -> Vec<u32> {
        let n = vocabulary.max(1) as u64;
        // Any rule that visits many tokens and never changes.
        (0..u64::from(LENGTH)).map(|i| ((i * i * 7 + i * 3 + 1) % n) as u32).collect()
    }

    /// The largest difference to another's.
    pub fn distance(&self, other: &Fingerprint) -> f32 {
        if self.0.len() != other.0.len() {
            return f32::INFINITY;
        }
        let far = |(a, b): (&f32, &f32)| if a == b { 0.0 } else { (a - b).abs() };
        let apart = self.0.iter().zip(&other.0).map(far);
        // A number that is none is as far as can be.
        apart.fold(0.0, |most, d| if d.is_nan() { f32::INFINITY } else { most.max(d) })
    }

    /// Refuses `theirs` if it is further off than `tolerance`.
    pub fn check(&self, theirs: &Fingerprint, tolerance: f32, who: &str, weights: &str) -> Result<()> {
        let distance = self.distance(theirs);
        if distance <= tolerance {
            return Ok(());
        }
        let start = |f: &Fingerprint| f.0.iter().take(3).map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(", ");
        Err(Error::Engine {
            engine: who.to_owned(),
            reason: format!(
                "it does not have {weights}: log-probabilities of a fixed sequence are off by up to {distance:.3e}, and \
                 {tolerance:.0e} is allowed ({}… there, {}… in training)",
                start(theirs),
                start(self)
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_inside_every_vocabulary() {
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
    fn other_weights_are_told_apart() {
        let ours = Fingerprint(vec![-6.619_074, -5.704_937]);
        assert!(ours.check(&Fingerprint(vec![-6.619_1, -5.704_9]), 1e-3, "x", "policy@1").is_ok());
        // A stale head, as measured.
        let e = ours.check(&Fingerprint(vec![-6.428_356, -6.251_1]), 1e-3, "x", "policy@1").unwrap_err().to_string();
        assert!(e.contains("x failed: it does not have policy@1") && e.contains("5.462e-1"), "{e}");
        assert!(ours.check(&Fingerprint(vec![f32::NAN, -5.7]), 1e3, "x", "w").is_err());
        assert!(ours.check(&Fingerprint(vec![-6.6]), 1e3, "x", "w").is_err());
    }
}
