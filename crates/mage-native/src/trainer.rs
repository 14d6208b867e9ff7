//! How do the weights change?
//!
//! A batch is cut into chunks; the chunks are dealt to a fixed number of lanes, each of which adds up its own gradient in
//! order; lanes are added in order at the end. Threads take lanes, so their number cannot change a bit. Models too large
//! for a gradient per lane have one lane, and threads share each kernel instead.

use crate::batch::{self, Chunk};
use crate::checkpoint::{self, NumberFormat};
use crate::engine::{Shared, write_folder};
use crate::kernels::cpu::Cpu;
use crate::kernels::{AdamW, Choice, Kernels};
use crate::layout::Tensor;
use crate::model::{Weights, Workspace};
use crate::published::Release;
use mage_engine::{
    AdapterName, Error, KlForm, Loss, LossReport, OptimStep, Reduction, Result, StepReport, TokenForest, Trainer,
    TrainerCaps, WeightVersion,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Gradients of all lanes together take at most this many bytes, unless that leaves fewer than [`FEWEST_LANES`].
const LANE_BYTES: usize = 4 << 20;
const FEWEST_LANES: usize = 4;
const MOST_LANES: usize = 16;
/// Models above this many parameters have a single lane.
const ONE_LANE_ABOVE: usize = 1 << 23;

/// The embedded trainer.
pub struct NativeTrainer {
    shared: Arc<Shared>,
    caps: TrainerCaps,
    weights: Weights<Cpu>,
    grads: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    /// A gradient for each lane; empty where there is one lane, which adds to the trainer's own.
    lanes: Vec<Vec<f32>>,
    /// As many as ever worked at once.
    workspaces: Mutex<Vec<Workspace<Cpu>>>,
    state: State,
    /// Whether a gradient waits for its step.
    pending: bool,
}

/// What is saved besides weights and moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    steps: u64,
    skipped: u64,
    skipped_in_a_row: u32,
    published: Vec<PublishedState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedState {
    name: AdapterName,
    version: WeightVersion,
    file: String,
}

impl NativeTrainer {
    pub(crate) fn new(shared: Arc<Shared>, flat: Vec<f32>) -> Self {
        let len = flat.len();
        let lanes = if len > ONE_LANE_ABOVE { 1 } else { (LANE_BYTES / (4 * len)).clamp(FEWEST_LANES, MOST_LANES) };
        let lanes = vec![Vec::new(); lanes];
        let caps = TrainerCaps {
            engine: "native".to_owned(),
            cross_entropy: true,
            importance_sampling: true,
            ppo: true,
            dual_clip: true,
            entropy: true,
            kl: vec![KlForm::K1, KlForm::K2, KlForm::K3],
            masks: true,
            clip_norm: true,
            reduction: Reduction::TokenSum,
            reproducible: true,
            max_context: shared.model.config.max_position_embeddings,
        };
        let weights = shared.pool.install(|| shared.model.weights(flat));
        let mut trainer = NativeTrainer {
            caps,
            weights,
            grads: vec![0.0; len],
            first: vec![0.0; len],
            second: vec![0.0; len],
            lanes,
            workspaces: Mutex::default(),
            state: State::default(),
            pending: false,
            shared,
        };
        trainer.put(&AdapterName::default());
        trainer
    }

    fn put(&mut self, name: &AdapterName) -> WeightVersion {
        let copy = self.shared.pool.install(|| self.shared.model.weights(self.weights.flat.clone()));
        self.shared.published.put(name, Arc::new(copy))
    }

    /// The gradient that has been added up since the last step: name, shape, numbers.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.shared.model.layout.tensors.iter().map(|t| (&t.name[..], &t.shape[..], &self.grads[t.range.clone()]))
    }

    /// The weights of now: name, shape, numbers.
    pub fn weights(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.shared
            .model
            .layout
            .tensors
            .iter()
            .map(|t| (&t.name[..], &t.shape[..], &self.weights.flat[t.range.clone()]))
    }

    /// Writes the weights of now as a folder that `transformers` loads unchanged.
    pub fn save_model(&self, dir: &Path, format: NumberFormat) -> Result<()> {
        write_folder(dir, &self.shared.model.config, &self.weights.flat, self.shared.renderer.as_deref(), format)
    }

    fn tensors(&self) -> &[Tensor] {
        &self.shared.model.layout.tensors
    }
}

/// What a chunk adds to a report.
#[derive(Default)]
struct Tally {
    loss: f64,
    weight: f64,
    entropy: f64,
    ratio: f64,
    max_ratio: f64,
    clipped: f64,
    mismatch: f64,
    kl: BTreeMap<mage_engine::TokenClass, (f64, f64)>,
    logprobs: Vec<(usize, f32)>,
}

impl Tally {
    /// Notes one prediction and gives the loss's slopes by its log-probability and entropy.
    fn note(&mut self, p: &batch::Prediction, choice: Choice, loss: &Loss) -> (f32, f32) {
        let cost = loss.token(choice.logprob, choice.entropy, &p.inputs);
        let weight = f64::from(p.inputs.weight);
        let size = weight.abs();
        self.loss += weight * cost.value;
        self.weight += size;
        self.entropy += size * f64::from(choice.entropy);
        self.ratio += size * cost.ratio;
        self.max_ratio = self.max_ratio.max(cost.ratio);
        self.clipped += if cost.clipped { size } else { 0.0 };
        self.mismatch += size * (cost.ratio - 1.0 - cost.ratio.ln());
        if loss.needs_reference() {
            let (sum, total) = self.kl.entry(p.inputs.class).or_default();
            *sum += size * cost.kl;
            *total += size;
        }
        self.logprobs.push((p.index, choice.logprob));
        ((weight * cost.by_logprob) as f32, (weight * cost.by_entropy) as f32)
    }

    fn add(&mut self, other: Tally) {
        self.loss += other.loss;
        self.weight += other.weight;
        self.entropy += other.entropy;
        self.ratio += other.ratio;
        self.max_ratio = self.max_ratio.max(other.max_ratio);
        self.clipped += other.clipped;
        self.mismatch += other.mismatch;
        for (class, (sum, total)) in other.kl {
            let mine = self.kl.entry(class).or_default();
            mine.0 += sum;
            mine.1 += total;
        }
        self.logprobs.extend(other.logprobs);
    }

    fn report(self, count: usize) -> LossReport {
        let mean = |x: f64| if self.weight > 0.0 { x / self.weight } else { 0.0 };
        let mut logprobs = vec![0.0; count];
        for (i, l) in &self.logprobs {
            logprobs[*i] = *l;
        }
        LossReport {
            loss: self.loss,
            tokens: count as u64,
            weight: self.weight,
            entropy: mean(self.entropy),
            ratio: mean(self.ratio),
            max_ratio: self.max_ratio,
            clip_fraction: mean(self.clipped),
            mismatch_kl: mean(self.mismatch),
            kl: self.kl.iter().map(|(c, (sum, total))| (*c, sum / total.max(f64::MIN_POSITIVE))).collect(),
            logprobs,
        }
    }
}

/// Deals chunks to lanes: each to the lane with the fewest tokens so far. Depends on the chunks alone.
fn deal(chunks: &[Chunk], lanes: usize) -> Vec<Vec<usize>> {
    let mut hands = vec![(0_usize, Vec::new()); lanes];
    for (i, chunk) in chunks.iter().enumerate() {
        let hand = hands.iter_mut().min_by_key(|(tokens, _)| *tokens);
        if let Some((tokens, hand)) = hand {
            *tokens += chunk.tokens.len();
            hand.push(i);
        }
    }
    hands.into_iter().map(|(_, hand)| hand).filter(|h| !h.is_empty()).collect()
}

impl Trainer for NativeTrainer {
    fn caps(&self) -> &TrainerCaps {
        &self.caps
    }

    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport> {
        batch.check(loss, self.shared.model.config.vocab_size, self.caps.max_context)?;
        let (chunks, count) = batch::chunks(batch, self.shared.chunk_tokens());
        let Shared { model, pool, options, .. } = &*self.shared;
        let (weights, recompute) = (&self.weights, options.recompute);
        let workspaces = &self.workspaces;
        // Does a lane's chunks in order, in the workspace that was used last: it is warm.
        let work = |k: &Cpu, hand: &[usize], grads: &mut Vec<f32>| {
            let free = workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut workspace = free.unwrap_or_else(|| Workspace::new(k));
            let tallies: Vec<(usize, Tally)> = hand
                .iter()
                .map(|&i| {
                    let (chunk, mut tally) = (&chunks[i], Tally::default());
                    model.forward_backward(k, weights, chunk, &mut workspace, grads, recompute, |p, choice| {
                        tally.note(&chunk.predictions[p], choice, loss)
                    });
                    (i, tally)
                })
                .collect();
            workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
            tallies
        };
        let mut total = Tally::default();
        if self.lanes.len() == 1 {
            let (all, grads): (Vec<usize>, _) = ((0..chunks.len()).collect(), &mut self.grads);
            for (_, tally) in pool.install(|| work(&model.kernels, &all, grads)) {
                total.add(tally);
            }
        } else {
            let hands = deal(&chunks, self.lanes.len());
            // With more threads than lanes the kernels share the rest among them.
            let kernels = if pool.current_num_threads() > hands.len() { model.kernels } else { model.kernels.alone() };
            let lanes = &mut self.lanes[..hands.len()];
            let mut tallies: Vec<(usize, Tally)> = pool.install(|| {
                let each = lanes.par_iter_mut().zip(&hands).with_max_len(1);
                each.flat_map_iter(|(grads, hand)| {
                    grads.clear();
                    grads.resize(weights.flat.len(), 0.0);
                    work(&kernels, hand, grads)
                })
                .collect()
            });
            tallies.sort_by_key(|(i, _)| *i);
            for (_, tally) in tallies {
                total.add(tally);
            }
            let lanes = &*lanes;
            pool.install(|| {
                const PIECE: usize = 1 << 14;
                self.grads.par_chunks_mut(PIECE).enumerate().for_each(|(i, sum)| {
                    for lane in lanes {
                        kernels.add(&lane[i * PIECE..][..sum.len()], sum);
                    }
                });
            });
        }
        self.pending = true;
        Ok(total.report(count))
    }

    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport> {
        step.check()?;
        let shared = Arc::clone(&self.shared);
        let (k, tensors) = (&shared.model.kernels, &shared.model.layout.tensors);
        let squares: Vec<f64> =
            shared.pool.install(|| tensors.iter().map(|t| k.sum_of_squares(&self.grads[t.range.clone()])).collect());
        let norm = squares.iter().sum::<f64>().sqrt();
        if let Some(bad) = squares.iter().position(|s| !s.is_finite()) {
            let tensor = &tensors[bad];
            let value = self.grads[tensor.range.clone()].iter().copied().find(|g| !g.is_finite()).unwrap_or(f32::NAN);
            self.grads.fill(0.0);
            self.pending = false;
            self.state.skipped += 1;
            self.state.skipped_in_a_row += 1;
            let place = format!("the gradient of `{}`", tensor.name);
            if self.state.skipped_in_a_row >= step.give_up_after.max(1) {
                return Err(Error::NotFinite {
                    place,
                    value,
                    times: self.state.skipped_in_a_row,
                    hint: "lower the learning rate, or look for extreme advantages or log-probabilities".to_owned(),
                });
            }
            return Ok(StepReport {
                grad_norm: norm,
                skipped: Some(tensor.name.clone()),
                skipped_steps: self.state.skipped,
                steps: self.state.steps,
            });
        }
        self.state.skipped_in_a_row = 0;
        self.state.steps += 1;
        let t = self.state.steps as f64;
        let clip = f64::from(step.clip_norm);
        let set = AdamW {
            learning_rate: step.learning_rate,
            beta1: step.beta1,
            beta2: step.beta2,
            epsilon: step.epsilon,
            weight_decay: 0.0,
            grad_scale: if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) as f32 } else { 1.0 },
            correction1: (1.0 - f64::from(step.beta1).powf(t)) as f32,
            correction2: (1.0 - f64::from(step.beta2).powf(t)) as f32,
        };
        shared.pool.install(|| {
            for tensor in tensors {
                let weight_decay = if tensor.shape.len() > 1 { step.weight_decay } else { 0.0 };
                let at = || tensor.range.clone();
                k.adamw(
                    AdamW { weight_decay, ..set },
                    &mut self.weights.flat[at()],
                    &self.grads[at()],
                    &mut self.first[at()],
                    &mut self.second[at()],
                );
            }
        });
        self.grads.fill(0.0);
        self.pending = false;
        shared.pool.install(|| shared.model.repack(&mut self.weights));
        Ok(StepReport { grad_norm: norm, skipped: None, skipped_steps: self.state.skipped, steps: self.state.steps })
    }

    fn publish(&mut self, name: &AdapterName) -> Result<WeightVersion> {
        Ok(self.put(name))
    }

    /// Writes the model as a folder that `transformers` loads, and beside it `training_state/`: moments, counters and
    /// every published set of weights.
    fn save(&self, dir: &Path) -> Result<()> {
        if self.pending {
            return Err(Error::invalid("save", "a gradient waits for its step; call optim_step first"));
        }
        self.save_model(dir, NumberFormat::F32)?;
        let folder = dir.join("training_state");
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let moments = [("first.", &self.first[..]), ("second.", &self.second[..])];
        checkpoint::write_tensors(&folder.join("optimizer.safetensors"), &moments, self.tensors(), NumberFormat::F32)?;
        let mut state = self.state.clone();
        state.published.clear();
        for (i, (name, release)) in self.shared.published.all().into_iter().enumerate() {
            let file = format!("published-{i}.safetensors");
            let flat = [("", &release.weights.flat[..])];
            checkpoint::write_tensors(&folder.join(&file), &flat, self.tensors(), NumberFormat::F32)?;
            state.published.push(PublishedState { name, version: release.version, file });
        }
        let path = folder.join("state.json");
        let text = serde_json::to_string_pretty(&state).map_err(|e| Error::invalid("state", e.to_string()))?;
        std::fs::write(&path, text + "\n").map_err(Error::write(&path))
    }

    fn load(&mut self, dir: &Path) -> Result<()> {
        let folder = dir.join("training_state");
        let path = folder.join("state.json");
        let text = std::fs::read_to_string(&path).map_err(Error::read(&path))?;
        let state: State =
            serde_json::from_str(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))?;
        let saved = crate::config::Config::read(&dir.join("config.json"))?;
        if saved != self.shared.model.config {
            return Err(Error::invalid(dir.display().to_string(), "its config.json is of another model than this one"));
        }
        // Everything is read before anything is changed.
        let tensors = self.tensors();
        let flat = checkpoint::read_folder(dir, tensors, &[])?;
        let len = flat.len();
        let shifted = |prefix: &str, by: usize| {
            tensors
                .iter()
                .map(move |t| Tensor {
                    name: format!("{prefix}{}", t.name),
                    shape: t.shape.clone(),
                    range: t.range.start + by..t.range.end + by,
                })
                .collect::<Vec<_>>()
        };
        let both = [shifted("first.", 0), shifted("second.", len)].concat();
        let mut moments = checkpoint::read_tensors(&[folder.join("optimizer.safetensors")], &both, &[])?;
        let mut published = BTreeMap::new();
        for p in &state.published {
            let plain = Path::new(&p.file).file_name().is_some_and(|n| n == p.file.as_str());
            if !plain {
                return Err(Error::invalid(
                    path.display().to_string(),
                    format!("`{}` is not a plain file name", p.file),
                ));
            }
            let flat = checkpoint::read_tensors(&[folder.join(&p.file)], tensors, &[])?;
            let weights = Arc::new(self.shared.pool.install(|| self.shared.model.weights(flat)));
            published.insert(p.name.clone(), Release { version: p.version, weights });
        }
        self.second = moments.split_off(len);
        self.first = moments;
        self.weights = self.shared.pool.install(|| self.shared.model.weights(flat));
        self.grads.fill(0.0);
        self.pending = false;
        self.state = State { published: Vec::new(), ..state };
        self.shared.published.replace(published);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, tests::tiny};
    use crate::engine::{NativeModel, Options};
    use crate::kernels::cpu::testing::check_some_slopes;
    use mage_engine::{Objective, PerToken, Segment, TokenClass};
    use mage_env::Seed;
    use rand::RngExt;

    fn trainer(config: Config, options: Options) -> NativeTrainer {
        NativeModel::new(config, 0.3, Seed::new(4), None).unwrap().train(options).unwrap().0
    }

    /// Rows of random tokens with masks, classes and every input a loss may want; old and reference log-probabilities
    /// lie at chosen distances from those of now, clear of every kink.
    fn rows(trainer: &mut NativeTrainer, count: usize, seed: u64) -> TokenForest {
        let mut rng = Seed::new(seed).rng();
        let mut forest = TokenForest::default();
        for i in 0..count {
            let len = rng.random_range(2..14_usize);
            let tokens: Vec<u32> = (0..len).map(|_| rng.random_range(0..29)).collect();
            let mut weights: Vec<f32> = (0..len).map(|t| if t % 3 == 2 { 0.0 } else { rng.random::<f32>() }).collect();
            weights[0] = 0.0;
            weights[len - 1] = 1.0;
            let allowed = tokens
                .iter()
                .enumerate()
                .map(|(t, &token)| {
                    let mut set = vec![token, (token + 5) % 29, (token + 11) % 29];
                    set.sort_unstable();
                    (t % 4 == 3).then(|| set.into())
                })
                .collect();
            let train = PerToken {
                weights,
                advantages: (0..len).map(|t| if t % 2 == 0 { 1.3 } else { -0.8 }).collect(),
                old_logprobs: vec![0.0; len],
                ref_logprobs: vec![0.0; len],
                classes: (0..len).map(|t| TokenClass((t % 2) as u8)).collect(),
                allowed,
            };
            let parent = (i % 3 == 2).then(|| i as u32 - 1);
            forest.segments.push(Segment { parent, tokens, train: Some(train) });
        }
        for s in &mut forest.segments {
            if s.parent.is_some() {
                s.train.as_mut().unwrap().weights[0] = 0.7;
            }
        }
        let report = trainer.forward_backward(&forest, &Loss::of(Objective::CrossEntropy)).unwrap();
        trainer.grads.fill(0.0);
        trainer.pending = false;
        let mut now = report.logprobs.into_iter();
        for s in &mut forest.segments {
            let t = s.train.as_mut().unwrap();
            for i in (0..t.weights.len()).filter(|&i| t.weights[i] != 0.0) {
                let logprob = now.next().unwrap();
                t.old_logprobs[i] = logprob - [0.0, 0.05, -0.9, 0.9, 1.6][i % 5];
                t.ref_logprobs[i] = logprob - [0.4, -0.3, 0.1][i % 3];
            }
        }
        assert!(now.next().is_none());
        forest
    }

    fn losses() -> Vec<Loss> {
        let dual = Objective::PpoClip { low: 0.2, high: 0.3, dual: Some(3.0) };
        vec![
            Loss::of(Objective::CrossEntropy),
            Loss::of(Objective::ImportanceSampling).with_entropy(0.2),
            Loss::of(Objective::ppo(0.2, 0.3)).with_kl(None, KlForm::K1, 0.5),
            Loss::of(dual).with_kl(Some(TokenClass(1)), KlForm::K2, 0.5).with_entropy(-0.1),
            Loss::of(dual).with_kl(Some(TokenClass(0)), KlForm::K3, 0.5),
        ]
    }

    #[test]
    fn the_gradient_of_every_loss_is_its_slope() {
        for (tied, recompute) in [(true, false), (false, true)] {
            let config = Config { tie_word_embeddings: tied, ..tiny() };
            let mut t = trainer(config, Options { recompute, threads: 1, ..Default::default() });
            let batch = rows(&mut t, 6, 1);
            for loss in losses() {
                t.grads.fill(0.0);
                t.forward_backward(&batch, &loss).unwrap();
                let (start, gradient) = (t.weights.flat.clone(), t.grads.clone());
                for tensor in t.tensors().to_vec() {
                    let place = format!("{} under {loss:?}", tensor.name);
                    check_some_slopes(
                        &place,
                        4,
                        &start[tensor.range.clone()],
                        &gradient[tensor.range.clone()],
                        |part| {
                            t.weights.flat.copy_from_slice(&start);
                            t.weights.flat[tensor.range.clone()].copy_from_slice(part);
                            let shared = Arc::clone(&t.shared);
                            shared.model.repack(&mut t.weights);
                            t.forward_backward(&batch, &loss).unwrap().loss
                        },
                    );
                }
                t.weights.flat.copy_from_slice(&start);
                let shared = Arc::clone(&t.shared);
                shared.model.repack(&mut t.weights);
            }
        }
    }

    #[test]
    fn threads_and_recomputation_change_no_bit() {
        for chunk_tokens in [20, 0] {
            let of = |threads, recompute| {
                let mut t = trainer(tiny(), Options { threads, chunk_tokens, recompute, ..Default::default() });
                let batch = rows(&mut t, 60, 2);
                let mut seen = Vec::new();
                for _ in 0..3 {
                    let report = t.forward_backward(&batch, &losses()[3]).unwrap();
                    seen.push((report.loss.to_bits(), report.logprobs, t.grads.clone()));
                    t.optim_step(&OptimStep { weight_decay: 0.1, ..Default::default() }).unwrap();
                }
                (seen, t.weights.flat.clone())
            };
            let want = of(1, false);
            for (threads, recompute) in [(2, false), (5, false), (1, true), (24, true)] {
                assert!(of(threads, recompute) == want, "{threads} threads, recompute {recompute}");
            }
        }
    }

    #[test]
    fn a_row_says_the_same_in_any_company() {
        let mut t = trainer(tiny(), Options::default());
        let batch = rows(&mut t, 40, 3);
        let all = t.forward_backward(&batch, &Loss::of(Objective::CrossEntropy)).unwrap().logprobs;
        let mut alone = Vec::new();
        for s in batch.segments.iter().filter(|s| s.parent.is_none()) {
            let one = TokenForest { segments: vec![s.clone()] };
            alone.push(t.forward_backward(&one, &Loss::of(Objective::CrossEntropy)).unwrap().logprobs);
        }
        let mut at = 0;
        let mut roots = alone.iter();
        for s in &batch.segments {
            let count = s.train.as_ref().unwrap().weights.iter().filter(|w| **w != 0.0).count();
            if s.parent.is_none() {
                assert!(all[at..at + count] == roots.next().unwrap()[..]);
            }
            at += count;
        }
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let mut t = trainer(tiny(), Options::default());
        let batch = rows(&mut t, 30, 5);
        let plain = TokenForest { segments: batch.segments.iter().filter(|s| s.parent.is_none()).cloned().collect() };
        t.forward_backward(&plain, &losses()[4]).unwrap();
        let whole = std::mem::replace(&mut t.grads, vec![0.0; t.first.len()]);
        for s in &plain.segments {
            t.forward_backward(&TokenForest { segments: vec![s.clone()] }, &losses()[4]).unwrap();
        }
        let scale = whole.iter().map(|g| g.abs()).fold(0.0, f32::max);
        assert!(whole.iter().zip(&t.grads).all(|(a, b)| (a - b).abs() <= 1e-5 * scale));
    }

    #[test]
    fn steps_that_would_ruin_the_weights_are_skipped_and_counted() {
        let mut t = trainer(tiny(), Options::default());
        let start = t.weights.flat.clone();
        let bad = t.shared.model.layout.layers[1].down.start + 7;
        let step = OptimStep { give_up_after: 2, ..Default::default() };
        t.grads[bad] = f32::NAN;
        let report = t.optim_step(&step).unwrap();
        assert_eq!(report.skipped.as_deref(), Some("model.layers.1.mlp.down_proj.weight"));
        assert!(t.weights.flat == start && t.grads.iter().all(|g| *g == 0.0));
        assert_eq!((report.skipped_steps, report.steps), (1, 0));
        t.grads[0] = 1.0;
        assert_eq!(t.optim_step(&step).unwrap().skipped, None);
        t.grads[bad] = f32::INFINITY;
        assert!(t.optim_step(&step).unwrap().skipped.is_some(), "a good step starts the count anew");
        t.grads[bad] = f32::INFINITY;
        let e = t.optim_step(&step).unwrap_err().to_string();
        assert!(e.contains("mlp.down_proj") && e.contains("inf in 2 updates in a row"), "{e}");
    }

    #[test]
    fn bad_batches_touch_nothing() {
        let mut t = trainer(tiny(), Options::default());
        let mut batch = rows(&mut t, 4, 6);
        batch.segments[2].train.as_mut().unwrap().advantages[1] = f32::NAN;
        batch.segments[2].train.as_mut().unwrap().weights[1] = 1.0;
        let e = t.forward_backward(&batch, &losses()[2]).unwrap_err().to_string();
        assert!(e.contains("segment 2, token 1: advantages"), "{e}");
        assert!(t.grads.iter().all(|g| *g == 0.0) && !t.pending);
    }

    #[test]
    fn a_saved_trainer_continues_exactly() {
        let dir = tempfile::tempdir().unwrap();
        let mut a = trainer(tiny(), Options::default());
        let batch = rows(&mut a, 10, 7);
        let step = OptimStep { weight_decay: 0.01, ..Default::default() };
        let go = |t: &mut NativeTrainer| {
            let loss = t.forward_backward(&batch, &losses()[1]).unwrap().loss;
            t.optim_step(&step).unwrap();
            loss
        };
        a.publish(&"reference".into()).unwrap();
        for _ in 0..3 {
            go(&mut a);
        }
        a.publish(&AdapterName::default()).unwrap();
        a.save(dir.path()).unwrap();
        let mut b =
            NativeModel::open(dir.path()).unwrap().train(Options { threads: 1, ..Default::default() }).unwrap().0;
        b.load(dir.path()).unwrap();
        for (name, release) in a.shared.published.all() {
            let other = &b.shared.published.all()[&name];
            assert!(other.version == release.version && other.weights.flat == release.weights.flat);
        }
        for _ in 0..3 {
            assert_eq!(go(&mut a).to_bits(), go(&mut b).to_bits());
        }
        assert!(a.weights.flat == b.weights.flat && a.first == b.first && a.second == b.second && a.state == b.state);
        a.forward_backward(&batch, &losses()[0]).unwrap();
        assert!(a.save(dir.path()).unwrap_err().to_string().contains("optim_step first"));
        std::fs::write(dir.path().join("training_state/optimizer.safetensors"), "short").unwrap();
        let before = b.weights.flat.clone();
        assert!(b.load(dir.path()).unwrap_err().to_string().contains("optimizer.safetensors"));
        assert!(b.weights.flat == before);
    }

    #[test]
    fn a_large_model_has_one_lane_and_the_same_gradient() {
        let mut small = trainer(tiny(), Options::default());
        let mut large = trainer(tiny(), Options::default());
        large.lanes.truncate(1);
        let batch = rows(&mut small, 30, 8);
        small.forward_backward(&batch, &losses()[0]).unwrap();
        large.forward_backward(&batch, &losses()[0]).unwrap();
        let scale = small.grads.iter().map(|g| g.abs()).fold(0.0, f32::max);
        assert!(small.grads.iter().zip(&large.grads).all(|(a, b)| (a - b).abs() <= 1e-5 * scale));
    }
}
