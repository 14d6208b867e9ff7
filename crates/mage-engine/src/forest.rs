//! What is trained on?
//!
//! Rows that share beginnings form a forest: a [`Segment`] continues its parent. A plain row is a tree of one. Numbers at
//! a position concern the choice of *that* token, given everything before it.

use crate::sampler::check_allowed;
use crate::{Allowed, Error, Loss, Result};
use serde::{Deserialize, Serialize};

/// A number for the sort of token, of the caller's choice; losses may treat each differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenClass(pub u8);

/// Training rows that share beginnings. Parents stand before their children.
#[derive(Clone, Debug, Default)]
pub struct TokenForest {
    /// The pieces.
    pub segments: Vec<Segment>,
}

/// A run of tokens that continues another, or starts a row.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// The segment it continues, by index.
    pub parent: Option<u32>,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// What to learn from them; `None` for context only.
    pub train: Option<PerToken>,
}

/// What the loss needs for each token of a segment. Every list is as long as the segment's tokens; where it says so, it
/// may be empty instead.
#[derive(Clone, Debug, Default)]
pub struct PerToken {
    /// How much the token counts; 0 leaves it out. The first token of a row cannot count: nothing precedes it.
    pub weights: Vec<f32>,
    /// How much better than expected; may be empty for cross-entropy.
    pub advantages: Vec<f32>,
    /// Log-probability when it was sampled; may be empty for cross-entropy.
    pub old_logprobs: Vec<f32>,
    /// Log-probability under the reference; may be empty where no KL is asked for.
    pub ref_logprobs: Vec<f32>,
    /// The sort of token; empty means class 0 throughout.
    pub classes: Vec<TokenClass>,
    /// What was possible; empty means everything, always.
    pub allowed: Vec<Option<Allowed>>,
}

/// Where one token's numbers are: everything the loss needs, borrowed.
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
    /// The numbers for one token; what is absent is 0.
    pub fn at(&self, i: usize) -> TokenInputs {
        let or0 = |v: &[f32]| v.get(i).copied().unwrap_or(0.0);
        TokenInputs {
            weight: self.weights[i],
            advantage: or0(&self.advantages),
            old_logprob: or0(&self.old_logprobs),
            ref_logprob: or0(&self.ref_logprobs),
            class: self.classes.get(i).copied().unwrap_or_default(),
        }
    }

    /// What was possible at one token.
    pub fn allowed_at(&self, i: usize) -> Option<&Allowed> {
        self.allowed.get(i).and_then(Option::as_ref)
    }
}

impl TokenForest {
    /// Plain rows, none sharing anything.
    pub fn of_rows(rows: impl IntoIterator<Item = (Vec<u32>, PerToken)>) -> Self {
        let segments =
            rows.into_iter().map(|(tokens, train)| Segment { parent: None, tokens, train: Some(train) }).collect();
        TokenForest { segments }
    }

    /// How many tokens the segments hold, shared ones once.
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

    /// Refuses what cannot be trained on, naming the segment and the token, before anything is touched.
    pub fn check(&self, loss: &Loss, vocabulary: usize, max_context: usize) -> Result<()> {
        loss.check()?;
        let mut length = Vec::with_capacity(self.segments.len());
        for (s, segment) in self.segments.iter().enumerate() {
            let place = || format!("segment {s}");
            let before = match segment.parent {
                None => 0,
                Some(p) if (p as usize) < s => length[p as usize],
                Some(p) => {
                    return Err(Error::invalid(place(), format!("its parent {p} does not stand before it")));
                }
            };
            if segment.tokens.is_empty() {
                return Err(Error::invalid(place(), "it has no tokens"));
            }
            let total: usize = before + segment.tokens.len();
            if total > max_context {
                return Err(Error::invalid(
                    place(),
                    format!("its row has {total} tokens, more than the context of {max_context}"),
                ));
            }
            length.push(total);
            if let Some(i) = segment.tokens.iter().position(|&t| t as usize >= vocabulary) {
                return Err(Error::invalid(
                    format!("segment {s}, token {i}"),
                    format!("{} is outside the vocabulary of {vocabulary}", segment.tokens[i]),
                ));
            }
            if let Some(train) = &segment.train {
                train.check(s, &segment.tokens, before, loss, vocabulary)?;
            }
        }
        Ok(())
    }
}

impl PerToken {
    fn check(&self, s: usize, tokens: &[u32], before: usize, loss: &Loss, vocabulary: usize) -> Result<()> {
        let n = tokens.len();
        let lengths = [
            ("weights", self.weights.len(), false),
            ("advantages", self.advantages.len(), !loss.needs_old()),
            ("old_logprobs", self.old_logprobs.len(), !loss.needs_old()),
            ("ref_logprobs", self.ref_logprobs.len(), !loss.needs_reference()),
            ("classes", self.classes.len(), true),
            ("allowed", self.allowed.len(), true),
        ];
        for (name, len, optional) in lengths {
            if len != n && !(len == 0 && optional) {
                return Err(Error::invalid(format!("segment {s}: {name}"), format!("{len} values for {n} tokens")));
            }
        }
        let numbers = [
            ("weights", &self.weights),
            ("advantages", &self.advantages),
            ("old_logprobs", &self.old_logprobs),
            ("ref_logprobs", &self.ref_logprobs),
        ];
        for (i, &token) in tokens.iter().enumerate() {
            if self.weights[i] == 0.0 {
                continue;
            }
            let place = |name: &str| format!("segment {s}, token {i}: {name}");
            for (name, values) in numbers {
                if let Some(v) = values.get(i).filter(|v| !v.is_finite()) {
                    return Err(Error::invalid(place(name), format!("{v} is not a finite number")));
                }
            }
            if before + i == 0 {
                return Err(Error::invalid(
                    place("weights"),
                    "the first token of a row has nothing before it; give it 0",
                ));
            }
            if let Some(allowed) = self.allowed_at(i) {
                check_allowed(&format!("segment {s}, token {i}"), allowed, token, vocabulary)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Objective;

    fn row() -> (Vec<u32>, PerToken) {
        let train = PerToken {
            weights: vec![0.0, 1.0, 1.0],
            advantages: vec![0.0, 1.0, -1.0],
            old_logprobs: vec![0.0, -1.0, -2.0],
            ..Default::default()
        };
        (vec![1, 2, 3], train)
    }

    fn refusal(change: impl FnOnce(&mut Segment)) -> String {
        let mut forest = TokenForest::of_rows([row(), row()]);
        change(&mut forest.segments[1]);
        forest.check(&Loss::of(Objective::ppo(0.2, 0.2)), 10, 8).unwrap_err().to_string()
    }

    #[test]
    fn good_rows_pass() {
        let mut forest = TokenForest::of_rows([row()]);
        forest.segments.push(Segment { parent: Some(0), tokens: vec![4], train: None });
        forest.check(&Loss::of(Objective::ppo(0.2, 0.2)), 10, 8).unwrap();
        assert_eq!(forest.path(1), [0, 1]);
        assert_eq!(forest.tokens(), 4);
    }

    #[test]
    fn bad_rows_are_refused_by_name() {
        let train = |s: &mut Segment, f: fn(&mut PerToken)| f(s.train.as_mut().unwrap());
        assert_eq!(
            refusal(|s| train(s, |t| t.advantages[2] = f32::NAN)),
            "segment 1, token 2: advantages: NaN is not a finite number"
        );
        assert_eq!(
            refusal(|s| train(s, |t| _ = t.old_logprobs.pop())),
            "segment 1: old_logprobs: 2 values for 3 tokens"
        );
        assert!(refusal(|s| train(s, |t| t.weights[0] = 1.0)).contains("nothing before it"));
        assert!(refusal(|s| s.tokens[1] = 10).contains("segment 1, token 1: 10 is outside"));
        assert!(refusal(|s| s.parent = Some(1)).contains("does not stand before"));
        assert!(refusal(|s| s.tokens.clear()).contains("no tokens"));
        assert!(refusal(|s| train(s, |t| t.allowed = vec![None, Some([1, 3].into()), None])).contains("not among"));
    }

    #[test]
    fn the_context_counts_along_the_path() {
        let mut forest = TokenForest::of_rows([row()]);
        for i in 0..3 {
            forest.segments.push(Segment { parent: Some(i), tokens: vec![1, 2], train: None });
        }
        let e = forest.check(&Loss::of(Objective::CrossEntropy), 10, 8).unwrap_err();
        assert!(e.to_string().contains("segment 3: its row has 9 tokens"), "{e}");
    }

    #[test]
    fn masked_out_tokens_may_hold_anything() {
        let mut forest = TokenForest::of_rows([row()]);
        forest.segments[0].train.as_mut().unwrap().advantages[0] = f32::NAN;
        forest.check(&Loss::of(Objective::ppo(0.2, 0.2)), 10, 8).unwrap();
    }
}
