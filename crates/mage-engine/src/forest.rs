//! Token forests: training batches in which sequences share prefixes.
//!
//! A [`Segment`] continues its parent; a single sequence is a tree with one segment. A shared prefix is stored and trained
//! on once. Per-token values at a position refer to the prediction of *that* token, given all tokens before it.

use crate::sampler::check_allowed;
use crate::{Allowed, Error, Loss, Result};
use serde::{Deserialize, Serialize};

/// Token class chosen by the caller; loss terms can be restricted to one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenClass(pub u8);

/// Training sequences with shared prefixes. Parents precede their children.
#[derive(Clone, Debug, Default)]
pub struct TokenForest {
    /// Segments, parents first.
    pub segments: Vec<Segment>,
}

/// A run of tokens that continues another segment or starts a sequence.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// Index of the segment that this one continues.
    pub parent: Option<u32>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Loss inputs; `None` for context only.
    pub train: Option<PerToken>,
}

/// Loss inputs of a segment, one value per token. A list has the length of the segment, or is empty where that is
/// documented.
#[derive(Clone, Debug, Default)]
pub struct PerToken {
    /// Loss weight; 0 excludes the token. The first token of a sequence must have 0, since it has no context.
    pub weights: Vec<f32>,
    /// Advantages; may be empty for cross-entropy.
    pub advantages: Vec<f32>,
    /// Log-probs at sampling time; may be empty for cross-entropy.
    pub old_logprobs: Vec<f32>,
    /// Log-probs under the reference policy; may be empty without a KL term.
    pub ref_logprobs: Vec<f32>,
    /// Token classes; empty means class 0 for all.
    pub classes: Vec<TokenClass>,
    /// Action masks; empty means that no token is masked.
    pub allowed: Vec<Option<Allowed>>,
}

/// Loss inputs of one token.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenInputs {
    /// See [`PerToken::weights`].
    pub weight: f32,
    /// See [`PerToken::advantages`].
    pub advantage: f32,
    /// See [`PerToken::old_logprobs`].
    pub old_logprob: f32,
    /// See [`PerToken::ref_logprobs`].
    pub ref_logprob: f32,
    /// See [`PerToken::classes`].
    pub class: TokenClass,
}

impl PerToken {
    /// Loss inputs of one token. Values of empty lists are 0.
    pub fn at(&self, i: usize) -> TokenInputs {
        let or_zero = |v: &[f32]| v.get(i).copied().unwrap_or(0.0);
        TokenInputs {
            weight: self.weights[i],
            advantage: or_zero(&self.advantages),
            old_logprob: or_zero(&self.old_logprobs),
            ref_logprob: or_zero(&self.ref_logprobs),
            class: self.classes.get(i).copied().unwrap_or_default(),
        }
    }

    /// Action mask of one token.
    pub fn allowed_at(&self, i: usize) -> Option<&Allowed> {
        self.allowed.get(i).and_then(Option::as_ref)
    }
}

impl TokenForest {
    /// A batch of sequences without shared prefixes.
    pub fn from_sequences(sequences: impl IntoIterator<Item = (Vec<u32>, PerToken)>) -> Self {
        let segments =
            sequences.into_iter().map(|(tokens, train)| Segment { parent: None, tokens, train: Some(train) }).collect();
        TokenForest { segments }
    }

    /// Number of tokens; shared prefixes count once.
    pub fn tokens(&self) -> usize {
        self.segments.iter().map(|s| s.tokens.len()).sum()
    }

    /// The segments from the root to `segment`, in order.
    pub fn path(&self, segment: usize) -> Vec<usize> {
        let mut path = vec![segment];
        while let Some(parent) = self.segments[path[path.len() - 1]].parent {
            path.push(parent as usize);
        }
        path.reverse();
        path
    }

    /// Returns an error that names the segment and token if the batch is invalid.
    pub fn check(&self, loss: &Loss, vocab_size: usize, max_seq_len: usize) -> Result<()> {
        loss.check()?;
        let mut length = Vec::with_capacity(self.segments.len());
        for (s, segment) in self.segments.iter().enumerate() {
            let subject = || format!("segment {s}");
            let before = match segment.parent {
                None => 0,
                Some(p) if (p as usize) < s => length[p as usize],
                Some(p) => {
                    return Err(Error::invalid(subject(), format!("its parent {p} does not precede it")));
                }
            };
            if segment.tokens.is_empty() {
                return Err(Error::invalid(subject(), "has no tokens"));
            }
            let total: usize = before + segment.tokens.len();
            if total > max_seq_len {
                return Err(Error::invalid(
                    subject(),
                    format!("its sequence has {total} tokens, which exceeds the context of {max_seq_len}"),
                ));
            }
            length.push(total);
            if let Some(i) = segment.tokens.iter().position(|&t| t as usize >= vocab_size) {
                return Err(Error::invalid(
                    format!("segment {s}, token {i}"),
                    format!("{} is outside the vocabulary of {vocab_size}", segment.tokens[i]),
                ));
            }
            if let Some(train) = &segment.train {
                train.check(s, &segment.tokens, before, loss, vocab_size)?;
            }
        }
        Ok(())
    }
}

impl PerToken {
    fn check(&self, s: usize, tokens: &[u32], before: usize, loss: &Loss, vocab_size: usize) -> Result<()> {
        let n = tokens.len();
        let lengths = [
            ("weights", self.weights.len(), false),
            ("advantages", self.advantages.len(), !loss.needs_old_logprobs()),
            ("old_logprobs", self.old_logprobs.len(), !loss.needs_old_logprobs()),
            ("ref_logprobs", self.ref_logprobs.len(), !loss.needs_ref_logprobs()),
            ("classes", self.classes.len(), true),
            ("allowed", self.allowed.len(), true),
        ];
        for (name, len, optional) in lengths {
            if len != n && !(len == 0 && optional) {
                return Err(Error::invalid(format!("segment {s}: {name}"), format!("{len} values for {n} tokens")));
            }
        }
        let value_lists = [
            ("weights", &self.weights),
            ("advantages", &self.advantages),
            ("old_logprobs", &self.old_logprobs),
            ("ref_logprobs", &self.ref_logprobs),
        ];
        for (i, &token) in tokens.iter().enumerate() {
            if self.weights[i] == 0.0 {
                continue;
            }
            let subject = |name: &str| format!("segment {s}, token {i}: {name}");
            for (name, values) in value_lists {
                if let Some(v) = values.get(i).filter(|v| !v.is_finite()) {
                    return Err(Error::invalid(subject(name), format!("{v} is not a finite number")));
                }
            }
            if before + i == 0 {
                return Err(Error::invalid(
                    subject("weights"),
                    "the first token of a sequence has no context; set its weight to 0",
                ));
            }
            if let Some(allowed) = self.allowed_at(i) {
                check_allowed(&format!("segment {s}, token {i}"), allowed, token, vocab_size)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Objective;

    fn sequence() -> (Vec<u32>, PerToken) {
        let train = PerToken {
            weights: vec![0.0, 1.0, 1.0],
            advantages: vec![0.0, 1.0, -1.0],
            old_logprobs: vec![0.0, -1.0, -2.0],
            ..Default::default()
        };
        (vec![1, 2, 3], train)
    }

    fn check_error(change: impl FnOnce(&mut Segment)) -> String {
        let mut forest = TokenForest::from_sequences([sequence(), sequence()]);
        change(&mut forest.segments[1]);
        forest.check(&Loss::of(Objective::ppo(0.2, 0.2)), 10, 8).unwrap_err().to_string()
    }

    #[test]
    fn valid_batch_passes() {
        let mut forest = TokenForest::from_sequences([sequence()]);
        forest.segments.push(Segment { parent: Some(0), tokens: vec![4], train: None });
        forest.check(&Loss::of(Objective::ppo(0.2, 0.2)), 10, 8).unwrap();
        assert_eq!(forest.path(1), [0, 1]);
        assert_eq!(forest.tokens(), 4);
    }

    #[test]
    fn invalid_batch_is_rejected_by_segment_and_token() {
        let train = |s: &mut Segment, f: fn(&mut PerToken)| f(s.train.as_mut().unwrap());
        assert_eq!(
            check_error(|s| train(s, |t| t.advantages[2] = f32::NAN)),
            "segment 1, token 2: advantages: NaN is not a finite number"
        );
        assert_eq!(
            check_error(|s| train(s, |t| _ = t.old_logprobs.pop())),
            "segment 1: old_logprobs: 2 values for 3 tokens"
        );
        assert!(check_error(|s| train(s, |t| t.weights[0] = 1.0)).contains("has no context"));
        assert!(check_error(|s| s.tokens[1] = 10).contains("segment 1, token 1: 10 is outside"));
        assert!(check_error(|s| s.parent = Some(1)).contains("does not precede"));
        assert!(check_error(|s| s.tokens.clear()).contains("no tokens"));
        assert!(check_error(|s| train(s, |t| t.allowed = vec![None, Some([1, 3].into()), None])).contains("not among"));
    }

    #[test]
    fn context_length_is_checked_along_the_path() {
        let mut forest = TokenForest::from_sequences([sequence()]);
        for i in 0..3 {
            forest.segments.push(Segment { parent: Some(i), tokens: vec![1, 2], train: None });
        }
        let e = forest.check(&Loss::of(Objective::CrossEntropy), 10, 8).unwrap_err();
        assert!(e.to_string().contains("segment 3: its sequence has 9 tokens"), "{e}");
    }

    #[test]
    fn zero_weight_tokens_may_hold_any_value() {
        let mut forest = TokenForest::from_sequences([sequence()]);
        forest.segments[0].train.as_mut().unwrap().advantages[0] = f32::NAN;
        forest.check(&Loss::of(Objective::ppo(0.2, 0.2)), 10, 8).unwrap();
    }
}
