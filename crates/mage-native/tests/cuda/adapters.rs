//! Tests of LoRA adapters on a GPU against the CPU.

use super::sampling::{requests, scores};
use super::*;

/// An adapter after a few training steps, so that none of its matrices is 0.
fn adapter(config: &Config, lora: &LoraConfig) -> NativeAdapter {
    let dir = tempfile::tempdir().unwrap();
    let mut t = model(config).with_new_adapter(lora, Seed::new(5)).unwrap().train(EngineOptions::default()).unwrap().0;
    for i in 0..4 {
        t.forward_backward(&batch(config.vocab_size as u32, i), &loss()).unwrap();
        t.optim_step(&OptimStep { learning_rate: 0.02, ..Default::default() }).unwrap();
    }
    t.save_model(dir.path(), WeightDtype::F32).unwrap();
    NativeAdapter::open(dir.path(), config).unwrap()
}

fn lora_configs() -> [LoraConfig; 3] {
    let subset = vec![Projection::QProj, Projection::VProj, Projection::DownProj];
    [
        LoraConfig::default(),
        LoraConfig { rank: 8, alpha: 8.0, targets: subset },
        LoraConfig { rank: 24, alpha: 12.0, targets: vec![Projection::UpProj] },
    ]
}

pub(crate) fn adapter_gradients_agree_with_the_cpu() {
    for (config, recompute) in shapes().into_iter().zip([false, true].into_iter().cycle()) {
        for lora in lora_configs() {
            let options = EngineOptions { recompute, ..Default::default() };
            let model = || model(&config).with_adapter(adapter(&config, &lora)).unwrap();
            let (mut cpu, mut gpu) = (model().train(options).unwrap().0, model().train_on_gpu(0, options).unwrap().0);
            let batch = batch(config.vocab_size as u32, 11);
            let (a, b) =
                (cpu.forward_backward(&batch, &loss()).unwrap(), gpu.forward_backward(&batch, &loss()).unwrap());
            assert_near(&a.logprobs, &b.logprobs);
            let mut worst = (0.0, String::new());
            let gpu_gradients = gpu.gradients().unwrap();
            assert_eq!(gpu_gradients.len(), cpu.gradients().count());
            for ((name, _, want), (other, got)) in cpu.gradients().zip(gpu_gradients) {
                assert_eq!(name, other);
                let difference = distance(&got, want);
                if difference > worst.0 || difference.is_nan() {
                    worst = (difference, other);
                }
            }
            eprintln!(
                "head_dim {}, rank {}: largest gradient error {:.4} in {}",
                config.head_dim, lora.rank, worst.0, worst.1
            );
            assert!(worst.0 < 0.05, "the gradient of {} differs by {}", worst.1, worst.0);
        }
    }
}

pub(crate) fn a_trained_adapter_resumes_with_identical_bits_and_leaves_the_base_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let config = &shapes()[0];
    let start = || model(config).with_new_adapter(&LoraConfig::default(), Seed::new(1)).unwrap();
    let batch = batch(config.vocab_size as u32, 4);
    let train_step = |t: &mut CudaTrainer| {
        let l = t.forward_backward(&batch, &loss()).unwrap().loss;
        t.optim_step(&OptimStep { learning_rate: 0.01, ..Default::default() }).unwrap();
        l.to_bits()
    };
    let (mut a, sampler) = start().train_on_gpu(0, EngineOptions::default()).unwrap();
    let score = |sampler: &NativeSampler, weights: &str| {
        let r = ScoreRequest { tokens: (3..40).collect(), from: 1, weights: weights.into(), ..Default::default() };
        block_on(sampler.score(r)).unwrap().logprobs
    };
    let before = score(&sampler, WeightsName::BASE);
    assert_eq!(score(&sampler, WeightsName::default().as_str()), before, "a new adapter does not change results");
    a.publish(&"reference".into()).unwrap();
    for _ in 0..3 {
        train_step(&mut a);
    }
    a.publish(&WeightsName::default()).unwrap();
    let trained = score(&sampler, WeightsName::default().as_str());
    assert_ne!(trained, before);
    assert_eq!((score(&sampler, WeightsName::BASE), score(&sampler, "reference")), (before.clone(), before.clone()));
    a.save(dir.path()).unwrap();
    let (mut b, other) = start().train_on_gpu(0, EngineOptions::default()).unwrap();
    b.load(dir.path()).unwrap();
    assert_eq!((score(&other, WeightsName::default().as_str()), score(&other, "reference")), (trained, before));
    for _ in 0..3 {
        assert_eq!(train_step(&mut a), train_step(&mut b));
    }
    // The CPU trainer resumes from the same files.
    let mut cpu = start().train(EngineOptions::default()).unwrap().0;
    cpu.load(dir.path()).unwrap();
}

pub(crate) fn several_adapters_in_one_batch_agree_with_the_cpu() {
    let config = &shapes()[3];
    let (cpu, gpu) = (
        model(config).sampler(EngineOptions::default()).unwrap(),
        model(config).sampler_on(Device::Cuda(0), EngineOptions::default()).unwrap(),
    );
    let names = ["one", "two", "three"];
    for (name, lora) in names.iter().zip(lora_configs()) {
        let adapter = adapter(config, &lora);
        for sampler in [&cpu, &gpu] {
            sampler.publish(&WeightsName::new(name), &adapter).unwrap();
        }
    }
    let unsupported = NativeAdapter::new(config, &LoraConfig { rank: 12, ..Default::default() }, Seed::new(1)).unwrap();
    let error = gpu.publish(&WeightsName::new("odd"), &unsupported).unwrap_err().to_string();
    assert!(error.contains("multiple of 8"), "{error}");
    let score_requests: Vec<ScoreRequest> = requests(config.vocab_size as u32)
        .into_iter()
        .enumerate()
        .map(|(i, r)| match names.get(i % 4) {
            Some(name) => ScoreRequest { weights: WeightsName::new(name), ..r },
            None => r,
        })
        .collect();
    for (a, b) in scores(&cpu, &score_requests).iter().zip(scores(&gpu, &score_requests)) {
        assert_near(&a.logprobs, &b.logprobs);
    }
    let make = |i: usize| SampleRequest {
        prompt: score_requests[i % score_requests.len()].tokens.clone(),
        weights: score_requests[i % score_requests.len()].weights.clone(),
        params: SamplingParams { max_tokens: 20, seed: i as u64, ..Default::default() },
        ..Default::default()
    };
    let futures: Vec<_> = (0..40).map(|i| gpu.sample(make(i))).collect();
    for (i, future) in futures.into_iter().enumerate() {
        let (response, request) = (block_on(future).unwrap(), make(i));
        let tokens = [&request.prompt[..], &response.tokens].concat();
        let r =
            ScoreRequest { tokens, from: request.prompt.len(), weights: request.weights.clone(), ..Default::default() };
        assert_near(&block_on(cpu.score(r)).unwrap().logprobs, &response.logprobs);
    }
}
