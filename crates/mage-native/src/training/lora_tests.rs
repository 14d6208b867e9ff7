//! Tests of the CPU trainer with a LoRA adapter: gradients, frozen base weights, exact resume.

use super::tests::{losses, params_mut, random_batch, refresh};
use super::*;
use crate::cpu::testing::{self, check_gradient_at};
use crate::engine::{EngineOptions, NativeModel};
use crate::weights::hf_config::{Config, tests::tiny};
use mage_engine::Objective;
use mage_engine::model::{LoraConfig, Projection};
use mage_rng::Seed;

fn shapes() -> [LoraConfig; 3] {
    [
        LoraConfig { rank: 3, alpha: 6.0, targets: Projection::ALL.to_vec() },
        LoraConfig { rank: 1, alpha: 0.5, targets: vec![Projection::VProj, Projection::QProj, Projection::UpProj] },
        LoraConfig { rank: 5, alpha: 5.0, targets: vec![Projection::OProj, Projection::DownProj] },
    ]
}

/// A trainer with random adapter weights. In a new adapter the B matrices are zero, and so are most gradients.
fn trainer(config: Config, lora: &LoraConfig, options: EngineOptions) -> CpuTrainer {
    let model = NativeModel::new(config, 0.3, Seed::new(4), None).unwrap();
    let mut t = model.with_new_adapter(lora, Seed::new(5)).unwrap().train(options).unwrap().0;
    let random = testing::random_values(t.exp_avg.len(), 6);
    params_mut(&mut t).iter_mut().zip(random).for_each(|(x, r)| *x = 0.3 * r);
    refresh(&mut t);
    t.publish(&WeightsName::default()).unwrap();
    t
}

#[test]
fn gradients_of_all_losses_match_finite_differences() {
    for (lora, (tied, recompute)) in shapes().iter().zip([(true, false), (false, true), (true, true)]) {
        let config = Config { tie_word_embeddings: tied, ..tiny() };
        let mut t = trainer(config, lora, EngineOptions { recompute, threads: 1, ..Default::default() });
        let batch = random_batch(&mut t, 6, 1);
        for loss in losses() {
            t.grads.fill(0.0);
            t.forward_backward(&batch, &loss).unwrap();
            let (start, gradient) = (t.params.flat().clone(), t.grads.clone());
            assert!(gradient.iter().all(|g| *g != 0.0), "every parameter has a gradient");
            for tensor in t.tensors().to_vec() {
                let label = format!("{} under {loss:?}", tensor.name);
                let range = tensor.range.clone();
                check_gradient_at(&label, 4, &start[range.clone()], &gradient[range.clone()], |part| {
                    params_mut(&mut t)[range.clone()].copy_from_slice(part);
                    refresh(&mut t);
                    t.forward_backward(&batch, &loss).unwrap().loss
                });
                params_mut(&mut t).copy_from_slice(&start);
            }
            refresh(&mut t);
        }
    }
}

#[test]
fn new_adapter_has_no_effect_and_base_weights_stay_frozen() {
    let make = || NativeModel::new(tiny(), 0.3, Seed::new(4), None).unwrap();
    let mut full = make().train(EngineOptions::default()).unwrap().0;
    let adapted = make().with_new_adapter(&shapes()[0], Seed::new(5)).unwrap();
    let mut t = adapted.train(EngineOptions::default()).unwrap().0;
    let batch = random_batch(&mut full, 10, 2);
    let loss = Loss::of(Objective::CrossEntropy);
    let (a, b) = (full.forward_backward(&batch, &loss).unwrap(), t.forward_backward(&batch, &loss).unwrap());
    assert!(a.logprobs == b.logprobs, "the LoRA term is zero");
    let before = full.params.flat().clone();
    let first = b.loss;
    for _ in 0..20 {
        t.optim_step(&OptimStep { learning_rate: 0.02, ..Default::default() }).unwrap();
        t.forward_backward(&batch, &loss).unwrap();
    }
    let last = t.forward_backward(&batch, &loss).unwrap().loss;
    assert!(last < 0.7 * first, "the loss should decrease: {first} to {last}");
    assert!(t.params.base_and_adapter().0.flat == before);
    assert_eq!(t.exp_avg.len(), t.params.flat().len(), "moments exist only for the adapter");
    assert!(t.gradients().all(|(name, _, _)| name.contains(".lora_")));
}

#[test]
fn thread_count_and_gradient_checkpointing_do_not_change_results() {
    for chunk_tokens in [20, 0] {
        let of = |threads, recompute| {
            let options = EngineOptions { threads, chunk_tokens, recompute, ..Default::default() };
            let mut t = trainer(tiny(), &shapes()[0], options);
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
fn resumed_trainer_continues_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (lora, step) = (&shapes()[1], OptimStep { weight_decay: 0.01, ..Default::default() });
    let mut a = trainer(tiny(), lora, EngineOptions::default());
    let batch = random_batch(&mut a, 10, 7);
    let update = |t: &mut CpuTrainer| {
        let loss = t.forward_backward(&batch, &losses()[1]).unwrap().loss;
        t.optim_step(&step).unwrap();
        loss
    };
    a.publish(&"past self".into()).unwrap();
    for _ in 0..3 {
        update(&mut a);
    }
    a.publish(&WeightsName::default()).unwrap();
    a.save(dir.path()).unwrap();
    let mut b = trainer(tiny(), lora, EngineOptions { threads: 1, ..Default::default() });
    b.load(dir.path()).unwrap();
    let (saved, loaded) = (a.shared.registry.all(), b.shared.registry.all());
    assert_eq!(saved.keys().map(WeightsName::as_str).collect::<Vec<_>>(), ["base", "past self", "policy"]);
    assert!(saved.keys().eq(loaded.keys()));
    for (name, published) in saved {
        let other = &loaded[&name];
        let flat =
            |r: &crate::weights::registry::PublishedWeights| r.weights.cpu().adapter.as_ref().map(|a| a.flat.clone());
        assert!(other.version == published.version && flat(other) == flat(&published), "{name}");
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

    let refusal = |t: &mut CpuTrainer| t.load(dir.path()).unwrap_err().to_string();
    let mut other = trainer(tiny(), &shapes()[2], EngineOptions::default());
    assert!(refusal(&mut other).contains("rank: 5"), "{}", refusal(&mut other));
    let model = |seed| NativeModel::new(tiny(), 0.3, Seed::new(seed), None).unwrap();
    let mut full = model(4).train(EngineOptions::default()).unwrap().0;
    assert!(refusal(&mut full).contains("the checkpoint of an adapter"));
    let other_base = model(9).with_new_adapter(lora, Seed::new(5)).unwrap();
    let mut other_base = other_base.train(EngineOptions::default()).unwrap().0;
    assert!(refusal(&mut other_base).contains("another base model"));
    let full_dir = tempfile::tempdir().unwrap();
    full.save(full_dir.path()).unwrap();
    assert!(b.load(full_dir.path()).unwrap_err().to_string().contains("the checkpoint of a full model"));
    let before = b.params.flat().clone();
    std::fs::write(dir.path().join("training_state/optimizer.safetensors"), "short").unwrap();
    assert!(refusal(&mut b).contains("optimizer.safetensors"));
    assert!(*b.params.flat() == before);
}
