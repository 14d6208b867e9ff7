//! How does a forest of rows become a request, whatever the server divides by?
//!
//! Our loss is the sum over tokens of weight times cost. A server that sums gets weights multiplied into advantages. One that
//! takes each row's mean and the mean over rows gets them multiplied by what it will divide by: costs of policy losses are
//! proportional to the advantage, so that the sum comes out the same. Cross-entropy has no advantage to put them in; where
//! rows count differently it is asked for as importance sampling against the policy's own log-probabilities, whose gradient
//! is the same.

use super::codec::{Chunk, Datum, Tensor};
use mage_engine::{Error, Loss, LossReport, Objective, Reduction, Result, TokenForest, TokenInputs};
use std::collections::BTreeMap;

/// One row: its tokens, and what counts of them.
struct Row {
    tokens: Vec<u32>,
    /// The first token that may count.
    from: usize,
    inputs: Vec<TokenInputs>,
}

/// A batch as rows, for one loss.
pub(super) struct Batch {
    rows: Vec<Row>,
    loss: Loss,
}

/// What a request says besides its rows.
pub(super) struct Named {
    pub(super) loss_fn: &'static str,
    pub(super) config: BTreeMap<String, f64>,
}

impl Batch {
    /// Takes a checked batch apart.
    pub(super) fn new(forest: &TokenForest, loss: &Loss, vocabulary: usize, max_seq_len: usize) -> Result<Self> {
        forest.check(loss, vocabulary, max_seq_len)?;
        let mut rows = Vec::new();
        for (s, segment) in forest.segments.iter().enumerate() {
            let Some(train) = &segment.train else { continue };
            if train.weights.iter().all(|w| *w == 0.0) {
                continue;
            }
            if let Some(i) = (0..segment.tokens.len()).find(|i| train.allowed_at(*i).is_some()) {
                return Err(Error::unsupported(
                    format!("train with masks (segment {s}, token {i})"),
                    "play without them: play.mask_actions = false",
                ));
            }
            if let Some(i) = train.weights.iter().position(|w| *w < 0.0) {
                let problem = format!("{} is negative, which a clip would turn around", train.weights[i]);
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
            rows.push(Row { tokens, from, inputs });
        }
        if rows.is_empty() {
            return Err(Error::invalid("batch", "no token counts"));
        }
        Ok(Batch { rows, loss: loss.clone() })
    }

    /// Whether log-probabilities of now must be known before the gradient can be asked for.
    pub(super) fn needs_own_logprobs(&self, reduction: Reduction) -> bool {
        if self.loss.objective != Objective::CrossEntropy || reduction == Reduction::TokenSum {
            return false;
        }
        let total = |r: &Row| r.inputs.iter().map(|t| f64::from(t.weight)).sum::<f64>();
        let even = 1.0 / self.rows.len() as f64;
        self.rows.iter().any(|r| (total(r) / even - 1.0).abs() > 1e-6)
    }

    /// The loss as the server calls it.
    pub(super) fn named(&self, own_logprobs: bool) -> Named {
        match self.loss.objective {
            Objective::CrossEntropy if own_logprobs => {
                Named { loss_fn: "importance_sampling", config: BTreeMap::new() }
            }
            Objective::CrossEntropy => Named { loss_fn: "cross_entropy", config: BTreeMap::new() },
            Objective::ImportanceSampling => Named { loss_fn: "importance_sampling", config: BTreeMap::new() },
            Objective::PpoClip { low, high, .. } => Named { loss_fn: "ppo", config: bounds(low, high) },
            Objective::Cispo { low, high } => Named { loss_fn: "cispo", config: bounds(low, high) },
        }
    }

    /// Rows for log-probabilities alone.
    pub(super) fn scored(&self) -> Vec<Datum> {
        self.rows.iter().map(|row| datum(row, [("weights", vec![1.0; row.tokens.len() - 1])])).collect()
    }

    /// Rows for a gradient. `own` are the log-probabilities of now, where [`needs_own_logprobs`](Self::needs_own_logprobs)
    /// says so.
    pub(super) fn trained(&self, reduction: Reduction, own: Option<&[Vec<f32>]>) -> Result<Vec<Datum>> {
        let mut data = Vec::with_capacity(self.rows.len());
        for (r, row) in self.rows.iter().enumerate() {
            let targets = row.tokens.len() - 1;
            let counted = row.inputs.iter().filter(|t| t.weight != 0.0).count();
            // What the server will divide by, undone beforehand.
            let undo = match reduction {
                Reduction::TokenSum => 1.0,
                Reduction::SequenceMean => (counted * self.rows.len()) as f64,
            };
            let policy = self.loss.objective != Objective::CrossEntropy;
            let (mut weights, mut advantages, mut old) = (vec![0.0; targets], vec![0.0; targets], vec![0.0; targets]);
            for (i, t) in row.inputs.iter().enumerate().filter(|(_, t)| t.weight != 0.0) {
                let at = row.from + i - 1;
                // Cross-entropy that comes here as such counts every row the same, or sums.
                weights[at] = if policy || own.is_some() { 1.0 } else { t.weight };
                let advantage = if policy { f64::from(t.advantage) } else { 1.0 };
                advantages[at] = (advantage * f64::from(t.weight) * undo) as f32;
                old[at] = match own {
                    Some(own) => own[r][i],
                    None => t.old_logprob,
                };
                if !advantages[at].is_finite() {
                    let problem = format!("{} is not a finite number once scaled", advantages[at]);
                    return Err(Error::invalid(format!("row {r}, token {i}: advantages"), problem));
                }
            }
            data.push(match policy || own.is_some() {
                true => datum(row, [("weights", weights), ("advantages", advantages), ("logprobs", old)]),
                false => datum(row, [("weights", weights)]),
            });
        }
        Ok(data)
    }

    /// Each row's log-probabilities of the tokens of its segment, out of an answer's.
    pub(super) fn segments(&self, rows: Vec<Vec<f32>>) -> std::result::Result<Vec<Vec<f32>>, String> {
        if rows.len() != self.rows.len() {
            return Err(format!("it has {} rows for {}", rows.len(), self.rows.len()));
        }
        let mut out = Vec::with_capacity(rows.len());
        for (r, (row, all)) in self.rows.iter().zip(rows).enumerate() {
            if all.len() != row.tokens.len() - 1 {
                return Err(format!("its row {r} has {} numbers for {} tokens", all.len(), row.tokens.len() - 1));
            }
            // A row that starts with its own first token has nothing to say about that one.
            let mut own = if row.from == 0 { vec![0.0] } else { Vec::new() };
            own.extend(&all[row.from.max(1) - 1..]);
            out.push(own);
        }
        Ok(out)
    }

    /// What is no log-probability where it counts, out of [`segments`](Self::segments): the first, and where it is.
    pub(super) fn unsound(&self, rows: &[Vec<f32>]) -> Option<String> {
        let all = self.rows.iter().zip(rows).enumerate();
        all.into_iter().find_map(|(r, (row, logprobs))| {
            let counted = row.inputs.iter().zip(logprobs).enumerate().filter(|(_, (t, _))| t.weight != 0.0);
            let (i, (t, bad)) = counted.into_iter().find(|(_, (_, l))| !l.is_finite() || **l > 1e-3)?;
            let place = format!("row {r} of {}, token {} of {}", self.rows.len(), row.from + i, row.tokens.len());
            let about = match self.loss.objective {
                Objective::CrossEntropy => String::new(),
                _ => format!("; its advantage is {}, and it was sampled with {}", t.advantage, t.old_logprob),
            };
            Some(format!("a log-probability of {bad} ({place}{about})"))
        })
    }

    /// What is told about a gradient, from the log-probabilities of [`segments`](Self::segments). Entropies are not known.
    pub(super) fn report(&self, rows: &[Vec<f32>]) -> LossReport {
        let mut report = LossReport { entropy: f64::NAN, ..LossReport::default() };
        for (row, logprobs) in self.rows.iter().zip(rows) {
            for (t, logprob) in row.inputs.iter().zip(logprobs).filter(|(t, _)| t.weight != 0.0) {
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

/// Bounds of the ratio, not distances from 1.
fn bounds(low: f32, high: f32) -> BTreeMap<String, f64> {
    [("clip_low_threshold".to_owned(), 1.0 - short(low)), ("clip_high_threshold".to_owned(), 1.0 + short(high))].into()
}

/// 0.2 as 0.2, not as the nearest double to the nearest float.
fn short(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// A row with its numbers; the target of each token is the next.
fn datum<const N: usize>(row: &Row, numbers: [(&str, Vec<f32>); N]) -> Datum {
    let last = row.tokens.len() - 1;
    let mut inputs: BTreeMap<String, Tensor> =
        numbers.into_iter().map(|(name, values)| (name.to_owned(), Tensor::floats(&values))).collect();
    inputs.insert("target_tokens".to_owned(), Tensor::tokens(&row.tokens[1..]));
    Datum { model_input: vec![Chunk::text(&row.tokens[..last])], loss_fn_inputs: inputs }
}

#[cfg(test)]
mod tests {
    use super::super::codec::floats;
    use super::*;
    use mage_engine::{PerToken, Segment};

    /// Two rows of different lengths and weights that share a prompt.
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

    fn numbers(datum: &Datum, name: &str) -> Vec<f32> {
        floats(datum.loss_fn_inputs[name].dense.as_ref().unwrap()).unwrap()
    }

    /// What SkyRL's JAX backend makes of a request: the mean over rows of each row's weighted mean.
    fn row_mean(data: &[Datum], cost: impl Fn(f32, f32) -> f64, logprob: impl Fn(usize, usize) -> f32) -> f64 {
        let mut total = 0.0;
        for (r, d) in data.iter().enumerate() {
            let (weights, n) = (numbers(d, "weights"), data.len() as f64);
            let advantages = d.loss_fn_inputs.contains_key("advantages").then(|| numbers(d, "advantages"));
            let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            for (t, w) in weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
                let a = advantages.as_ref().map_or(1.0, |a| a[t]);
                total += f64::from(*w) * cost(logprob(r, t), a) / sum / n;
            }
        }
        total
    }

    #[test]
    fn a_mean_over_rows_comes_to_our_sum() {
        let loss = Loss::of(Objective::ImportanceSampling);
        let batch = Batch::new(&forest(), &loss, 10, 16).unwrap();
        let data = batch.trained(Reduction::SequenceMean, None).unwrap();
        let logprob = |r: usize, t: usize| -0.3 - 0.1 * (r + t) as f32;
        let theirs = row_mean(&data, |l, a| -f64::from((l + 1.0).exp()) * f64::from(a), logprob);
        let rows: Vec<Vec<f32>> = (0..2).map(|r| (0..4 + r).map(|t| logprob(r, t)).collect()).collect();
        let ours = batch.report(&batch.segments(rows).unwrap());
        assert!((theirs - ours.loss).abs() < 1e-6, "{theirs} {ours:?}");
        assert_eq!((ours.tokens, ours.logprobs.len()), (4, 4));
    }

    #[test]
    fn a_sum_gets_weights_inside_advantages() {
        let batch = Batch::new(&forest(), &Loss::of(Objective::ppo(0.2, 0.2)), 10, 16).unwrap();
        let data = batch.trained(Reduction::TokenSum, None).unwrap();
        assert_eq!(numbers(&data[0], "advantages"), [0.0, 0.0, 0.5, 0.0]);
        assert_eq!(numbers(&data[0], "weights"), [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(numbers(&data[1], "advantages"), [0.0, 0.0, -0.1, -0.2, -0.1]);
        let named = batch.named(false);
        assert_eq!((named.loss_fn, named.config["clip_low_threshold"]), ("ppo", 0.8));
        assert_eq!(named.config["clip_high_threshold"], 1.2);
        let cispo = Loss::of(Objective::Cispo { low: 1.0, high: 4.0 });
        let named = Batch::new(&forest(), &cispo, 10, 16).unwrap().named(false);
        assert_eq!(named.loss_fn, "cispo");
        assert_eq!((named.config["clip_low_threshold"], named.config["clip_high_threshold"]), (0.0, 5.0));
    }

    #[test]
    fn imitation_with_rows_that_differ_goes_by_importance() {
        let loss = Loss::of(Objective::CrossEntropy);
        let batch = Batch::new(&forest(), &loss, 10, 16).unwrap();
        assert!(batch.needs_own_logprobs(Reduction::SequenceMean) && !batch.needs_own_logprobs(Reduction::TokenSum));
        let own: Vec<Vec<f32>> = vec![vec![-0.5, -0.6], vec![-0.7, -0.8, -0.9]];
        let data = batch.trained(Reduction::SequenceMean, Some(&own)).unwrap();
        assert_eq!(batch.named(true).loss_fn, "importance_sampling");
        // The slope by each log-probability is minus its weight, as cross-entropy's is.
        let (advantages, old) = (numbers(&data[1], "advantages"), numbers(&data[1], "logprobs"));
        assert_eq!(old[2..], own[1][..]);
        for (a, weight) in advantages[2..].iter().zip([0.1_f32, 0.2, 0.1]) {
            assert!((a / (3.0 * 2.0) - weight).abs() < 1e-6);
        }
        // Rows that all count the same need none of it.
        let mut even = forest();
        for (s, w) in [(1, vec![0.25, 0.25]), (2, vec![0.1, 0.2, 0.2])] {
            even.segments[s].train.as_mut().unwrap().weights = w;
        }
        let batch = Batch::new(&even, &loss, 10, 16).unwrap();
        assert!(!batch.needs_own_logprobs(Reduction::SequenceMean));
        let data = batch.trained(Reduction::SequenceMean, None).unwrap();
        let theirs = row_mean(&data, |l, _| -f64::from(l), |_, t| -0.1 * t as f32);
        let rows = (0..2).map(|r| (0..4 + r).map(|t| -0.1 * t as f32).collect()).collect();
        assert!((theirs - batch.report(&batch.segments(rows).unwrap()).loss).abs() < 1e-6);
    }

    #[test]
    fn what_a_server_would_swallow_is_refused() {
        let loss = Loss::of(Objective::ImportanceSampling);
        let refused = |change: fn(&mut PerToken)| {
            let mut f = forest();
            change(f.segments[2].train.as_mut().unwrap());
            Batch::new(&f, &loss, 10, 16)
                .and_then(|b| b.trained(Reduction::SequenceMean, None))
                .unwrap_err()
                .to_string()
        };
        assert!(refused(|t| t.advantages[1] = f32::NAN).contains("segment 2, token 1: advantages: NaN"));
        assert!(refused(|t| _ = t.old_logprobs.pop()).contains("2 values for 3 tokens"));
        assert!(refused(|t| t.weights[0] = -1.0).contains("negative"));
        assert!(refused(|t| t.advantages[1] = 3e38).contains("once scaled"));
        assert!(refused(|t| t.allowed = vec![None, Some([7, 8].into()), None]).contains("mask_actions"));
    }

    #[test]
    fn answers_that_are_no_log_probabilities_are_refused() {
        let batch = Batch::new(&forest(), &Loss::of(Objective::ImportanceSampling), 10, 16).unwrap();
        let with = |place: usize, x: f32| {
            let mut first = vec![-1.0; 4];
            first[place] = x;
            batch.unsound(&batch.segments(vec![first, vec![-1.0; 5]]).unwrap())
        };
        let about = "(row 0 of 2, token 3 of 5; its advantage is 2, and it was sampled with -1)";
        assert_eq!(with(2, f32::NAN).unwrap(), format!("a log-probability of NaN {about}"));
        assert_eq!(with(2, 0.5).unwrap(), format!("a log-probability of 0.5 {about}"));
        assert_eq!((with(2, -0.5), with(3, f32::NAN)), (None, None), "what does not count is not looked at");
        assert!(batch.segments(vec![vec![-1.0; 4]]).unwrap_err().contains("1 rows for 2"));
        assert!(batch.segments(vec![vec![-1.0; 4], vec![-1.0; 4]]).unwrap_err().contains("4 numbers for 5"));
    }
}
