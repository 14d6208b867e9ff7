//! Conversion of training batches to Tinker requests.
//!
//! Our loss is the sum over tokens of weight times loss. For a server that sums, weights are multiplied into
//! advantages. For a server that averages over tokens of a sequence and then over sequences, advantages are also
//! multiplied by its divisor: policy losses are proportional to the advantage, so that the total is the same.
//! Cross-entropy has no advantage; if sequences have different total weights, it is sent as importance sampling against
//! the current log-probs, which has the same gradient.

use super::codec::{Datum, ModelInputChunk, TensorData};
use mage_engine::{Error, Hint, Loss, LossReport, Objective, Reduction, Result, TokenForest, TokenInputs};
use std::collections::BTreeMap;

/// A sequence with the loss inputs of its trained segment.
struct TrainingSequence {
    tokens: Vec<u32>,
    /// Index of the first token of the trained segment.
    from: usize,
    inputs: Vec<TokenInputs>,
}

/// A batch as sequences, with its loss.
pub(super) struct TinkerBatch {
    sequences: Vec<TrainingSequence>,
    loss: Loss,
}

/// Loss function and configuration of a request.
pub(super) struct LossSpec {
    pub(super) loss_fn: &'static str,
    pub(super) config: BTreeMap<String, f64>,
}

impl TinkerBatch {
    /// Checks a batch and splits it into sequences.
    pub(super) fn new(forest: &TokenForest, loss: &Loss, vocab_size: usize, max_seq_len: usize) -> Result<Self> {
        forest.check(loss, vocab_size, max_seq_len)?;
        let mut sequences = Vec::new();
        for (s, segment) in forest.segments.iter().enumerate() {
            let Some(train) = &segment.train else { continue };
            if train.weights.iter().all(|w| *w == 0.0) {
                continue;
            }
            if let Some(i) = (0..segment.tokens.len()).find(|i| train.allowed_at(*i).is_some()) {
                let what = format!("train with action masks (segment {s}, token {i})");
                return Err(Error::unsupported(what, "the protocol has none").with_hints(&[Hint::DisableActionMasks]));
            }
            if let Some(i) = train.weights.iter().position(|w| *w < 0.0) {
                let problem = format!("{} is negative, which would invert the clipping", train.weights[i]);
                return Err(Error::invalid(format!("segment {s}, token {i}: weights"), problem));
            }
            let path = forest.path(s);
            let mut tokens: Vec<u32> = Vec::new();
            for &at in &path[..path.len() - 1] {
                tokens.extend(&forest.segments[at].tokens);
            }
            let from = tokens.len();
            tokens.extend(&segment.tokens);
            let inputs = (0..segment.tokens.len()).map(|i| train.at(i)).collect();
            sequences.push(TrainingSequence { tokens, from, inputs });
        }
        if sequences.is_empty() {
            return Err(Error::invalid("batch", "no token has a non-zero weight"));
        }
        Ok(TinkerBatch { sequences, loss: loss.clone() })
    }

    /// Whether the current log-probs are needed before the gradient request.
    pub(super) fn needs_current_logprobs(&self, reduction: Reduction) -> bool {
        if self.loss.objective != Objective::CrossEntropy || reduction == Reduction::TokenSum {
            return false;
        }
        let total = |s: &TrainingSequence| s.inputs.iter().map(|t| f64::from(t.weight)).sum::<f64>();
        let equal_weight = 1.0 / self.sequences.len() as f64;
        self.sequences.iter().any(|s| (total(s) / equal_weight - 1.0).abs() > 1e-6)
    }

    /// The loss in the server's terms.
    pub(super) fn loss_spec(&self, with_current_logprobs: bool) -> LossSpec {
        match self.loss.objective {
            Objective::CrossEntropy if with_current_logprobs => {
                LossSpec { loss_fn: "importance_sampling", config: BTreeMap::new() }
            }
            Objective::CrossEntropy => LossSpec { loss_fn: "cross_entropy", config: BTreeMap::new() },
            Objective::ImportanceSampling => LossSpec { loss_fn: "importance_sampling", config: BTreeMap::new() },
            Objective::PpoClip { low, high, .. } => LossSpec { loss_fn: "ppo", config: clip_bounds(low, high) },
            Objective::Cispo { low, high } => LossSpec { loss_fn: "cispo", config: clip_bounds(low, high) },
        }
    }

    /// Request data for log-probs only.
    pub(super) fn scoring_data(&self) -> Vec<Datum> {
        self.sequences.iter().map(|s| datum(s, [("weights", vec![1.0; s.tokens.len() - 1])])).collect()
    }

    /// Request data for a gradient. `current` are the current log-probs if
    /// [`needs_current_logprobs`](Self::needs_current_logprobs).
    pub(super) fn training_data(&self, reduction: Reduction, current: Option<&[Vec<f32>]>) -> Result<Vec<Datum>> {
        let mut data = Vec::with_capacity(self.sequences.len());
        for (s, sequence) in self.sequences.iter().enumerate() {
            let num_targets = sequence.tokens.len() - 1;
            let num_weighted = sequence.inputs.iter().filter(|t| t.weight != 0.0).count();
            // Cancels the server's division.
            let scale = match reduction {
                Reduction::TokenSum => 1.0,
                Reduction::SequenceMean => (num_weighted * self.sequences.len()) as f64,
            };
            let policy = self.loss.objective != Objective::CrossEntropy;
            let (mut weights, mut advantages, mut old) =
                (vec![0.0; num_targets], vec![0.0; num_targets], vec![0.0; num_targets]);
            for (i, t) in sequence.inputs.iter().enumerate().filter(|(_, t)| t.weight != 0.0) {
                let at = sequence.from + i - 1;
                // Cross-entropy sent as such has equal sequence weights, or the server sums.
                weights[at] = if policy || current.is_some() { 1.0 } else { t.weight };
                let advantage = if policy { f64::from(t.advantage) } else { 1.0 };
                advantages[at] = (advantage * f64::from(t.weight) * scale) as f32;
                old[at] = match current {
                    Some(current) => current[s][i],
                    None => t.old_logprob,
                };
                if !advantages[at].is_finite() {
                    let problem = format!("{} is not finite after scaling", advantages[at]);
                    return Err(Error::invalid(format!("sequence {s}, token {i}: advantages"), problem));
                }
            }
            data.push(match policy || current.is_some() {
                true => datum(sequence, [("weights", weights), ("advantages", advantages), ("logprobs", old)]),
                false => datum(sequence, [("weights", weights)]),
            });
        }
        Ok(data)
    }

    /// Extracts the log-probs of the trained segments from a response.
    pub(super) fn split_logprobs(&self, logprobs: Vec<Vec<f32>>) -> std::result::Result<Vec<Vec<f32>>, String> {
        if logprobs.len() != self.sequences.len() {
            return Err(format!("the response has {} sequences for {}", logprobs.len(), self.sequences.len()));
        }
        let mut out = Vec::with_capacity(logprobs.len());
        for (s, (sequence, all)) in self.sequences.iter().zip(logprobs).enumerate() {
            if all.len() != sequence.tokens.len() - 1 {
                return Err(format!(
                    "sequence {s} has {} log-probs for {} tokens",
                    all.len(),
                    sequence.tokens.len() - 1
                ));
            }
            // The first token of a sequence has no log-prob.
            let mut segment = if sequence.from == 0 { vec![0.0] } else { Vec::new() };
            segment.extend(&all[sequence.from.max(1) - 1..]);
            out.push(segment);
        }
        Ok(out)
    }

    /// The first invalid log-prob of a token with a weight, with its position, in the output of
    /// [`split_logprobs`](Self::split_logprobs).
    pub(super) fn find_invalid_logprob(&self, logprobs: &[Vec<f32>]) -> Option<String> {
        let all = self.sequences.iter().zip(logprobs).enumerate();
        all.into_iter().find_map(|(s, (sequence, logprobs))| {
            let weighted = sequence.inputs.iter().zip(logprobs).enumerate().filter(|(_, (t, _))| t.weight != 0.0);
            let (i, (t, bad)) = weighted.into_iter().find(|(_, (_, l))| !l.is_finite() || **l > 1e-3)?;
            let position = format!(
                "sequence {s} of {}, token {} of {}",
                self.sequences.len(),
                sequence.from + i,
                sequence.tokens.len()
            );
            let details = match self.loss.objective {
                Objective::CrossEntropy => String::new(),
                _ => format!("; advantage {}, old log-prob {}", t.advantage, t.old_logprob),
            };
            Some(format!("invalid log-prob {bad} ({position}{details})"))
        })
    }

    /// Loss statistics from the output of [`split_logprobs`](Self::split_logprobs). Entropies are unknown.
    pub(super) fn report(&self, logprobs: &[Vec<f32>]) -> LossReport {
        let mut report = LossReport { entropy: f64::NAN, ..LossReport::default() };
        for (sequence, logprobs) in self.sequences.iter().zip(logprobs) {
            for (t, logprob) in sequence.inputs.iter().zip(logprobs).filter(|(t, _)| t.weight != 0.0) {
                let cost = self.loss.token_loss(*logprob, 0.0, t);
                let weight = f64::from(t.weight);
                report.loss += weight * cost.value;
                report.tokens += 1;
                report.weight += weight;
                report.ratio += weight * cost.ratio;
                report.max_ratio = report.max_ratio.max(cost.ratio);
                report.clip_fraction += if cost.clipped { weight } else { 0.0 };
                report.mismatch_kl += weight * (cost.ratio - 1.0 - cost.ratio.ln());
                report.logprobs.push(*logprob);
            }
        }
        for mean in [&mut report.ratio, &mut report.clip_fraction, &mut report.mismatch_kl] {
            *mean /= report.weight.max(f64::MIN_POSITIVE);
        }
        report
    }
}

/// Clip bounds of the ratio, not distances from 1.
fn clip_bounds(low: f32, high: f32) -> BTreeMap<String, f64> {
    [
        ("clip_low_threshold".to_owned(), 1.0 - shortest_decimal(low)),
        ("clip_high_threshold".to_owned(), 1.0 + shortest_decimal(high)),
    ]
    .into()
}

/// Converts 0.2 to 0.2, not to the double nearest to the float.
fn shortest_decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// A datum with its loss inputs. The target of each token is the next token.
fn datum<const N: usize>(sequence: &TrainingSequence, loss_inputs: [(&str, Vec<f32>); N]) -> Datum {
    let last = sequence.tokens.len() - 1;
    let mut inputs: BTreeMap<String, TensorData> =
        loss_inputs.into_iter().map(|(name, values)| (name.to_owned(), TensorData::floats(&values))).collect();
    inputs.insert("target_tokens".to_owned(), TensorData::tokens(&sequence.tokens[1..]));
    Datum { model_input: vec![ModelInputChunk::text(&sequence.tokens[..last])], loss_fn_inputs: inputs }
}

#[cfg(test)]
mod tests {
    use super::super::codec::floats;
    use super::*;
    use mage_engine::{PerToken, Segment};

    /// Two sequences of different lengths and weights with a shared prompt.
    fn forest() -> TokenForest {
        let train = |weights: Vec<f32>, advantage: f32| PerToken {
            advantages: vec![advantage; weights.len()],
            old_logprobs: vec![-1.0; weights.len()],
            weights,
            ..Default::default()
        };
        let segment = |parent, tokens: &[u32], train| Segment { parent, tokens: tokens.to_vec(), train };
        TokenForest {
            segments: vec![
                segment(None, &[1, 2, 3], None),
                segment(Some(0), &[4, 5], Some(train(vec![0.25, 0.0], 2.0))),
                segment(Some(0), &[6, 7, 8], Some(train(vec![0.1, 0.2, 0.1], -1.0))),
            ],
        }
    }

    fn loss_input(datum: &Datum, name: &str) -> Vec<f32> {
        floats(datum.loss_fn_inputs[name].dense.as_ref().unwrap()).unwrap()
    }

    /// SkyRL's JAX reduction: the mean over sequences of each sequence's weighted mean.
    fn sequence_mean(data: &[Datum], cost: impl Fn(f32, f32) -> f64, logprob: impl Fn(usize, usize) -> f32) -> f64 {
        let mut total = 0.0;
        for (r, d) in data.iter().enumerate() {
            let (weights, n) = (loss_input(d, "weights"), data.len() as f64);
            let advantages = d.loss_fn_inputs.contains_key("advantages").then(|| loss_input(d, "advantages"));
            let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            for (t, w) in weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
                let a = advantages.as_ref().map_or(1.0, |a| a[t]);
                total += f64::from(*w) * cost(logprob(r, t), a) / sum / n;
            }
        }
        total
    }

    #[test]
    fn sequence_mean_is_scaled_to_the_token_sum() {
        let loss = Loss::of(Objective::ImportanceSampling);
        let batch = TinkerBatch::new(&forest(), &loss, 10, 16).unwrap();
        let data = batch.training_data(Reduction::SequenceMean, None).unwrap();
        let logprob = |r: usize, t: usize| -0.3 - 0.1 * (r + t) as f32;
        let server_loss = sequence_mean(&data, |l, a| -f64::from((l + 1.0).exp()) * f64::from(a), logprob);
        let logprobs: Vec<Vec<f32>> = (0..2).map(|r| (0..4 + r).map(|t| logprob(r, t)).collect()).collect();
        let ours = batch.report(&batch.split_logprobs(logprobs).unwrap());
        assert!((server_loss - ours.loss).abs() < 1e-6, "{server_loss} {ours:?}");
        assert_eq!((ours.tokens, ours.logprobs.len()), (4, 4));
    }

    #[test]
    fn weights_are_multiplied_into_advantages_for_a_sum() {
        let batch = TinkerBatch::new(&forest(), &Loss::of(Objective::ppo(0.2, 0.2)), 10, 16).unwrap();
        let data = batch.training_data(Reduction::TokenSum, None).unwrap();
        assert_eq!(loss_input(&data[0], "advantages"), [0.0, 0.0, 0.5, 0.0]);
        assert_eq!(loss_input(&data[0], "weights"), [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(loss_input(&data[1], "advantages"), [0.0, 0.0, -0.1, -0.2, -0.1]);
        let spec = batch.loss_spec(false);
        assert_eq!((spec.loss_fn, spec.config["clip_low_threshold"]), ("ppo", 0.8));
        assert_eq!(spec.config["clip_high_threshold"], 1.2);
        let cispo = Loss::of(Objective::Cispo { low: 1.0, high: 4.0 });
        let spec = TinkerBatch::new(&forest(), &cispo, 10, 16).unwrap().loss_spec(false);
        assert_eq!(spec.loss_fn, "cispo");
        assert_eq!((spec.config["clip_low_threshold"], spec.config["clip_high_threshold"]), (0.0, 5.0));
    }

    #[test]
    fn unequal_cross_entropy_is_sent_as_importance_sampling() {
        let loss = Loss::of(Objective::CrossEntropy);
        let batch = TinkerBatch::new(&forest(), &loss, 10, 16).unwrap();
        assert!(
            batch.needs_current_logprobs(Reduction::SequenceMean) && !batch.needs_current_logprobs(Reduction::TokenSum)
        );
        let current: Vec<Vec<f32>> = vec![vec![-0.5, -0.6], vec![-0.7, -0.8, -0.9]];
        let data = batch.training_data(Reduction::SequenceMean, Some(&current)).unwrap();
        assert_eq!(batch.loss_spec(true).loss_fn, "importance_sampling");
        // The derivative by each log-prob is minus its weight, as for cross-entropy.
        let (advantages, old) = (loss_input(&data[1], "advantages"), loss_input(&data[1], "logprobs"));
        assert_eq!(old[2..], current[1][..]);
        for (a, weight) in advantages[2..].iter().zip([0.1_f32, 0.2, 0.1]) {
            assert!((a / (3.0 * 2.0) - weight).abs() < 1e-6);
        }
        // Sequences of equal weight do not need it.
        let mut equal = forest();
        for (s, w) in [(1, vec![0.25, 0.25]), (2, vec![0.1, 0.2, 0.2])] {
            equal.segments[s].train.as_mut().unwrap().weights = w;
        }
        let batch = TinkerBatch::new(&equal, &loss, 10, 16).unwrap();
        assert!(!batch.needs_current_logprobs(Reduction::SequenceMean));
        let data = batch.training_data(Reduction::SequenceMean, None).unwrap();
        let server_loss = sequence_mean(&data, |l, _| -f64::from(l), |_, t| -0.1 * t as f32);
        let logprobs = (0..2).map(|r| (0..4 + r).map(|t| -0.1 * t as f32).collect()).collect();
        assert!((server_loss - batch.report(&batch.split_logprobs(logprobs).unwrap()).loss).abs() < 1e-6);
    }

    #[test]
    fn invalid_values_are_rejected_before_sending() {
        let loss = Loss::of(Objective::ImportanceSampling);
        let rejection = |change: fn(&mut PerToken)| {
            let mut f = forest();
            change(f.segments[2].train.as_mut().unwrap());
            TinkerBatch::new(&f, &loss, 10, 16)
                .and_then(|b| b.training_data(Reduction::SequenceMean, None))
                .unwrap_err()
        };
        let rejection_text = |change: fn(&mut PerToken)| rejection(change).to_string();
        assert!(rejection_text(|t| t.advantages[1] = f32::NAN).contains("segment 2, token 1: advantages: NaN"));
        assert!(rejection_text(|t| _ = t.old_logprobs.pop()).contains("2 values for 3 tokens"));
        assert!(rejection_text(|t| t.weights[0] = -1.0).contains("negative"));
        assert!(rejection_text(|t| t.advantages[1] = 3e38).contains("not finite after scaling"));
        let masked = rejection(|t| t.allowed = vec![None, Some([7, 8].into()), None]);
        assert_eq!(masked.hints(), [Hint::DisableActionMasks], "{masked}");
    }

    #[test]
    fn invalid_logprobs_in_responses_are_rejected() {
        let batch = TinkerBatch::new(&forest(), &Loss::of(Objective::ImportanceSampling), 10, 16).unwrap();
        let with = |position: usize, x: f32| {
            let mut first = vec![-1.0; 4];
            first[position] = x;
            batch.find_invalid_logprob(&batch.split_logprobs(vec![first, vec![-1.0; 5]]).unwrap())
        };
        let details = "(sequence 0 of 2, token 3 of 5; advantage 2, old log-prob -1)";
        assert_eq!(with(2, f32::NAN).unwrap(), format!("invalid log-prob NaN {details}"));
        assert_eq!(with(2, 0.5).unwrap(), format!("invalid log-prob 0.5 {details}"));
        assert_eq!((with(2, -0.5), with(3, f32::NAN)), (None, None), "tokens without weight are not checked");
        assert!(batch.split_logprobs(vec![vec![-1.0; 4]]).unwrap_err().contains("1 sequences for 2"));
        assert!(batch.split_logprobs(vec![vec![-1.0; 4], vec![-1.0; 4]]).unwrap_err().contains("4 log-probs for 5"));
    }
}
