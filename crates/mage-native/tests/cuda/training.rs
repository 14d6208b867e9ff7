//! Tests of gradients, optimizer steps and saved states on a GPU.

use super::*;

pub(crate) fn gradients_agree_with_the_cpu() {
    for config in shapes() {
        for recompute in [false, true] {
            let (mut cpu, mut gpu) = both(&config, EngineOptions { recompute, ..Default::default() });
            let batch = batch(config.vocab_size as u32, 1);
            let (a, b) =
                (cpu.forward_backward(&batch, &loss()).unwrap(), gpu.forward_backward(&batch, &loss()).unwrap());
            assert_near(&a.logprobs, &b.logprobs);
            assert!(
                (a.loss - b.loss).abs() < 0.02 * a.loss.abs().max(1.0),
                "{} on the CPU, {} on the GPU",
                a.loss,
                b.loss
            );
            let mut worst: (f64, String) = (0.0, String::new());
            let gpu_gradients = gpu.gradients().unwrap();
            assert_eq!(cpu.gradients().count(), gpu_gradients.len());
            for ((name, _, want), (other, got)) in cpu.gradients().zip(gpu_gradients) {
                assert_eq!(name, other);
                let difference = distance(&got, want);
                if difference > worst.0 || difference.is_nan() {
                    worst = (difference, other);
                }
            }
            eprintln!(
                "head_dim {}, recompute {recompute}: largest gradient error {:.4} in {}",
                config.head_dim, worst.0, worst.1
            );
            assert!(worst.0 < 0.04, "the gradient of {} differs by {}", worst.1, worst.0);
        }
    }
}

pub(crate) fn passes_are_deterministic_with_and_without_recomputation() {
    let config = &shapes()[3];
    let run = |recompute| {
        let options = EngineOptions { recompute, ..Default::default() };
        let mut t = model(config).train_on_gpu(0, options).unwrap().0;
        let batch = batch(config.vocab_size as u32, 2);
        let mut values = Vec::new();
        for _ in 0..3 {
            values.push(t.forward_backward(&batch, &loss()).unwrap().loss.to_bits());
            values.push(
                t.optim_step(&OptimStep { weight_decay: 0.1, ..Default::default() }).unwrap().grad_norm.to_bits(),
            );
        }
        t.forward_backward(&batch, &loss()).unwrap();
        (values, t.gradients().unwrap())
    };
    let first = run(false);
    assert!(first == run(false), "two runs differ");
    assert!(first == run(true), "recomputation changes bits");
}

pub(crate) fn loss_curves_agree_with_the_cpu() {
    let config = &shapes()[0];
    let (mut cpu, mut gpu) = both(config, EngineOptions::default());
    let step = OptimStep { learning_rate: 3e-3, ..Default::default() };
    // Learnable data: each token is a function of the previous one.
    let batch_of = |seed: u64| {
        let mut rng = Seed::new(seed).rng();
        let sequence = |_| {
            let first = rng.random_range(0..97_u32);
            let tokens: Vec<u32> = std::iter::successors(Some(first), |t| Some((t * 5 + 3) % 97)).take(24).collect();
            let weights = (0..24).map(|t| if t == 0 { 0.0 } else { 1.0 / (16.0 * 23.0) }).collect();
            (tokens, PerToken { weights, ..Default::default() })
        };
        TokenForest::from_sequences((0..16).map(sequence).collect::<Vec<_>>())
    };
    let loss = Loss::of(Objective::CrossEntropy);
    let mut curves = (Vec::new(), Vec::new());
    for i in 0..200 {
        let batch = batch_of(i);
        curves.0.push(cpu.forward_backward(&batch, &loss).unwrap().loss);
        curves.1.push(gpu.forward_backward(&batch, &loss).unwrap().loss);
        cpu.optim_step(&step).unwrap();
        gpu.optim_step(&step).unwrap();
    }
    let (a, b) = (curves.0[199], curves.1[199]);
    eprintln!("after 200 steps: CPU {a:.4}, GPU {b:.4}, from {:.4}", curves.0[0]);
    assert!(a < 0.5 && b < 0.5, "both losses decrease");
    let max_difference = curves.0.iter().zip(&curves.1).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(max_difference < 0.15, "the loss curves differ by {max_difference}");
}

pub(crate) fn a_saved_trainer_resumes_with_identical_bits() {
    let dir = tempfile::tempdir().unwrap();
    let config = &shapes()[1];
    let batch = batch(config.vocab_size as u32, 4);
    let train_step = |t: &mut CudaTrainer| {
        let l = t.forward_backward(&batch, &loss()).unwrap().loss;
        t.optim_step(&OptimStep::default()).unwrap();
        l.to_bits()
    };
    let mut a = model(config).train_on_gpu(0, EngineOptions::default()).unwrap().0;
    a.publish(&"reference".into()).unwrap();
    for _ in 0..3 {
        train_step(&mut a);
    }
    a.save(dir.path()).unwrap();
    let (mut b, sampler) = NativeModel::open(dir.path()).unwrap().train_on_gpu(0, EngineOptions::default()).unwrap();
    b.load(dir.path()).unwrap();
    for _ in 0..3 {
        assert_eq!(train_step(&mut a), train_step(&mut b));
    }
    // Published weights are restored, and the CPU reads the same files.
    let r = ScoreRequest { tokens: vec![1, 2, 3], from: 1, weights: "reference".into(), ..Default::default() };
    block_on(sampler.score(r)).unwrap();
    let mut cpu = NativeModel::open(dir.path()).unwrap().train(EngineOptions::default()).unwrap().0;
    cpu.load(dir.path()).unwrap();
}
