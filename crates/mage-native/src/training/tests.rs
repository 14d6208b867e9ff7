//! Tests of the CPU trainer with all parameters trainable.

use super::*;
use crate::cpu::testing::check_gradient_at;
use crate::engine::{EngineOptions, NativeModel};
use crate::weights::hf_config::{Config, tests::tiny};
use mage_engine::{Objective, PerToken, Segment, TokenClass};
use mage_rng::Seed;
use rand::RngExt;

fn trainer(config: Config, options: EngineOptions) -> CpuTrainer {
    NativeModel::new(config, 0.3, Seed::new(4), None).unwrap().train(options).unwrap().0
}

/// The flat buffer of trainable parameters.
pub(super) fn params_mut(trainer: &mut CpuTrainer) -> &mut Vec<f32> {
    trainer.params.params_mut(&trainer.shared.model).1
}

pub(super) fn refresh(trainer: &mut CpuTrainer) {
    let shared = Arc::clone(&trainer.shared);
    trainer.params.refresh(&shared.model);
}

/// Random sequences with masks, classes and all loss inputs. Old and reference log-probabilities differ from the current ones
/// by fixed amounts, away from the kinks of every loss.
pub(super) fn random_batch(trainer: &mut CpuTrainer, count: usize, seed: u64) -> TokenForest {
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

pub(super) fn losses() -> Vec<Loss> {
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
fn gradients_of_all_losses_match_finite_differences() {
    for (tied, recompute) in [(true, false), (false, true)] {
        let config = Config { tie_word_embeddings: tied, ..tiny() };
        let mut t = trainer(config, EngineOptions { recompute, threads: 1, ..Default::default() });
        let batch = random_batch(&mut t, 6, 1);
        for loss in losses() {
            t.grads.fill(0.0);
            t.forward_backward(&batch, &loss).unwrap();
            let (start, gradient) = (t.params.flat().clone(), t.grads.clone());
            for tensor in t.tensors().to_vec() {
                let label = format!("{} under {loss:?}", tensor.name);
                check_gradient_at(&label, 4, &start[tensor.range.clone()], &gradient[tensor.range.clone()], |part| {
                    params_mut(&mut t).copy_from_slice(&start);
                    params_mut(&mut t)[tensor.range.clone()].copy_from_slice(part);
                    refresh(&mut t);
                    t.forward_backward(&batch, &loss).unwrap().loss
                });
            }
            params_mut(&mut t).copy_from_slice(&start);
            refresh(&mut t);
        }
    }
}

/// CISPO stops the gradient at its ratios, so finite differences of its value do not apply. Its gradient equals that of
/// cross-entropy with each token weighted by clipped ratio times advantage.
#[test]
fn cispo_gradient_equals_cross_entropy_weighted_by_clipped_ratios() {
    let mut t = trainer(tiny(), EngineOptions { threads: 1, ..Default::default() });
    let mut batch = random_batch(&mut t, 6, 1);
    let loss = Loss::of(Objective::Cispo { low: 0.2, high: 0.3 });
    let report = t.forward_backward(&batch, &loss).unwrap();
    assert!(report.clip_fraction > 0.1 && report.clip_fraction < 0.9, "{report:?}");
    let gradient = std::mem::take(&mut t.grads);
    t.grads = vec![0.0; gradient.len()];
    let mut now = report.logprobs.into_iter();
    for s in &mut batch.segments {
        let train = s.train.as_mut().unwrap();
        let given = train.old_logprobs.iter().zip(&train.advantages);
        for (weight, (old, advantage)) in train.weights.iter_mut().zip(given).filter(|(w, _)| **w != 0.0) {
            let ratio = (now.next().unwrap() - old).exp();
            *weight *= ratio.clamp(0.8, 1.3) * advantage;
        }
    }
    t.forward_backward(&batch, &Loss::of(Objective::CrossEntropy)).unwrap();
    let size = gradient.iter().fold(0.0_f32, |m, g| m.max(g.abs()));
    assert!(size > 0.1);
    for (a, b) in gradient.iter().zip(&t.grads) {
        assert!((a - b).abs() < 1e-5 * size, "{a} {b}");
    }
}

#[test]
fn thread_count_and_gradient_checkpointing_do_not_change_results() {
    for chunk_tokens in [20, 0] {
        let of = |threads, recompute| {
            let mut t = trainer(tiny(), EngineOptions { threads, chunk_tokens, recompute, ..Default::default() });
            let batch = random_batch(&mut t, 60, 2);
            let mut seen = Vec::new();
            for _ in 0..3 {
                let report = t.forward_backward(&batch, &losses()[3]).unwrap();
                seen.push((report.loss.to_bits(), report.logprobs, t.grads.clone()));
                t.optim_step(&OptimStep { weight_decay: 0.1, ..Default::default() }).unwrap();
            }
            (seen, t.params.flat().clone())
        };
        let want = of(1, false);
        for (threads, recompute) in [(2, false), (5, false), (1, true), (24, true)] {
            assert!(of(threads, recompute) == want, "{threads} threads, recompute {recompute}");
        }
    }
}

#[test]
fn logprobs_do_not_depend_on_the_rest_of_the_batch() {
    let mut t = trainer(tiny(), EngineOptions::default());
    let batch = random_batch(&mut t, 40, 3);
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
fn gradients_accumulate_over_calls() {
    let mut t = trainer(tiny(), EngineOptions::default());
    let batch = random_batch(&mut t, 30, 5);
    let plain = TokenForest { segments: batch.segments.iter().filter(|s| s.parent.is_none()).cloned().collect() };
    t.forward_backward(&plain, &losses()[4]).unwrap();
    let whole = std::mem::replace(&mut t.grads, vec![0.0; t.exp_avg.len()]);
    for s in &plain.segments {
        t.forward_backward(&TokenForest { segments: vec![s.clone()] }, &losses()[4]).unwrap();
    }
    let scale = whole.iter().map(|g| g.abs()).fold(0.0, f32::max);
    assert!(whole.iter().zip(&t.grads).all(|(a, b)| (a - b).abs() <= 1e-5 * scale));
}

#[test]
fn steps_with_non_finite_gradients_are_skipped_and_counted() {
    let mut t = trainer(tiny(), EngineOptions::default());
    let start = t.params.flat().clone();
    let bad = t.shared.model.layout.layers[1].down_proj.start + 7;
    let step = OptimStep { max_nonfinite_steps: 2, ..Default::default() };
    t.grads[bad] = f32::NAN;
    let report = t.optim_step(&step).unwrap();
    assert_eq!(report.skipped.as_deref(), Some("model.layers.1.mlp.down_proj.weight"));
    assert!(*t.params.flat() == start && t.grads.iter().all(|g| *g == 0.0));
    assert_eq!((report.skipped_steps, report.steps), (1, 0));
    t.grads[0] = 1.0;
    assert_eq!(t.optim_step(&step).unwrap().skipped, None);
    t.grads[bad] = f32::INFINITY;
    assert!(t.optim_step(&step).unwrap().skipped.is_some(), "an applied step resets the count");
    t.grads[bad] = f32::INFINITY;
    let e = t.optim_step(&step).unwrap_err().to_string();
    assert!(e.contains("mlp.down_proj") && e.contains("inf in 2 consecutive steps"), "{e}");
}

#[test]
fn invalid_batches_leave_the_gradient_unchanged() {
    let mut t = trainer(tiny(), EngineOptions::default());
    let mut batch = random_batch(&mut t, 4, 6);
    batch.segments[2].train.as_mut().unwrap().advantages[1] = f32::NAN;
    batch.segments[2].train.as_mut().unwrap().weights[1] = 1.0;
    let e = t.forward_backward(&batch, &losses()[2]).unwrap_err().to_string();
    assert!(e.contains("segment 2, token 1: advantages"), "{e}");
    assert!(t.grads.iter().all(|g| *g == 0.0) && !t.pending);
}

#[test]
fn resumed_trainer_continues_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = trainer(tiny(), EngineOptions::default());
    let batch = random_batch(&mut a, 10, 7);
    let step = OptimStep { weight_decay: 0.01, ..Default::default() };
    let update = |t: &mut CpuTrainer| {
        let loss = t.forward_backward(&batch, &losses()[1]).unwrap().loss;
        t.optim_step(&step).unwrap();
        loss
    };
    a.publish(&"reference".into()).unwrap();
    for _ in 0..3 {
        update(&mut a);
    }
    a.publish(&WeightsName::default()).unwrap();
    a.save(dir.path()).unwrap();
    let mut b =
        NativeModel::open(dir.path()).unwrap().train(EngineOptions { threads: 1, ..Default::default() }).unwrap().0;
    b.load(dir.path()).unwrap();
    for (name, published) in a.shared.registry.all() {
        let other = &b.shared.registry.all()[&name];
        assert!(
            other.version == published.version && other.weights.cpu().base.flat == published.weights.cpu().base.flat
        );
    }
    for _ in 0..3 {
        assert_eq!(update(&mut a).to_bits(), update(&mut b).to_bits());
    }
    assert!(
        a.params.flat() == b.params.flat()
            && a.exp_avg == b.exp_avg
            && a.exp_avg_sq == b.exp_avg_sq
            && a.state == b.state
    );
    a.forward_backward(&batch, &losses()[0]).unwrap();
    assert!(a.save(dir.path()).unwrap_err().to_string().contains("optim_step first"));
    std::fs::write(dir.path().join("training_state/optimizer.safetensors"), "short").unwrap();
    let before = b.params.flat().clone();
    assert!(b.load(dir.path()).unwrap_err().to_string().contains("optimizer.safetensors"));
    assert!(*b.params.flat() == before);
}

#[test]
fn single_lane_gradient_matches_multi_lane_gradient() {
    let mut many = trainer(tiny(), EngineOptions::default());
    let mut single = trainer(tiny(), EngineOptions::default());
    single.lanes.truncate(1);
    let batch = random_batch(&mut many, 30, 8);
    many.forward_backward(&batch, &losses()[0]).unwrap();
    single.forward_backward(&batch, &losses()[0]).unwrap();
    let scale = many.grads.iter().map(|g| g.abs()).fold(0.0, f32::max);
    assert!(many.grads.iter().zip(&single.grads).all(|(a, b)| (a - b).abs() <= 1e-5 * scale));
}
