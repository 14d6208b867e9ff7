//! Do adapters learn and speak as on the CPU?

use super::answers::{requests, scores};
use super::*;

/// An adapter that has learnt a little, so that none of its matrices is 0.
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

fn loras() -> [LoraConfig; 3] {
    let some = vec![Projection::QProj, Projection::VProj, Projection::DownProj];
    [
        LoraConfig::default(),
        LoraConfig { rank: 8, alpha: 8.0, targets: some },
        LoraConfig { rank: 24, alpha: 12.0, targets: vec![Projection::UpProj] },
    ]
}

#[test]
fn adapters_learn_as_on_the_cpu() {
    if !card() {
        return;
    }
    for (config, recompute) in shapes().into_iter().zip([false, true].into_iter().cycle()) {
        for lora in loras() {
            let options = EngineOptions { recompute, ..Default::default() };
            let model = || model(&config).with_adapter(adapter(&config, &lora)).unwrap();
            let (mut cpu, mut gpu) = (model().train(options).unwrap().0, model().train_on_gpu(0, options).unwrap().0);
            let batch = batch(config.vocab_size as u32, 11);
            let (a, b) =
                (cpu.forward_backward(&batch, &loss()).unwrap(), gpu.forward_backward(&batch, &loss()).unwrap());
            near(&a.logprobs, &b.logprobs);
            let mut worst = (0.0, String::new());
            let theirs = gpu.gradients().unwrap();
            assert_eq!(theirs.len(), cpu.gradients().count());
            for ((name, _, want), (other, got)) in cpu.gradients().zip(theirs) {
                assert_eq!(name, other);
                let d = distance(&got, want);
                if d > worst.0 || d.is_nan() {
                    worst = (d, other);
                }
            }
            eprintln!("heads of {}, rank {}: worst gradient {:.4} of {}", config.head_dim, lora.rank, worst.0, worst.1);
            assert!(worst.0 < 0.05, "the gradient of {} is {} apart", worst.1, worst.0);
        }
    }
}

#[test]
fn an_adapter_in_training_continues_exactly_and_leaves_the_model_alone() {
    if !card() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = &shapes()[0];
    let start = || model(config).with_new_adapter(&LoraConfig::default(), Seed::new(1)).unwrap();
    let batch = batch(config.vocab_size as u32, 4);
    let go = |t: &mut CudaTrainer| {
        let l = t.forward_backward(&batch, &loss()).unwrap().loss;
        t.optim_step(&OptimStep { learning_rate: 0.01, ..Default::default() }).unwrap();
        l.to_bits()
    };
    let (mut a, sampler) = start().train_on_gpu(0, EngineOptions::default()).unwrap();
    let ask = |sampler: &NativeSampler, weights: &str| {
        let r = ScoreRequest { tokens: (3..40).collect(), from: 1, weights: weights.into(), ..Default::default() };
        block_on(sampler.score(r)).unwrap().logprobs
    };
    let before = ask(&sampler, AdapterName::BASE);
    assert_eq!(ask(&sampler, AdapterName::default().as_str()), before, "a new adapter changes nothing");
    a.publish(&"reference".into()).unwrap();
    for _ in 0..3 {
        go(&mut a);
    }
    a.publish(&AdapterName::default()).unwrap();
    let learnt = ask(&sampler, AdapterName::default().as_str());
    assert_ne!(learnt, before);
    assert_eq!((ask(&sampler, AdapterName::BASE), ask(&sampler, "reference")), (before.clone(), before.clone()));
    a.save(dir.path()).unwrap();
    let (mut b, other) = start().train_on_gpu(0, EngineOptions::default()).unwrap();
    b.load(dir.path()).unwrap();
    assert_eq!((ask(&other, AdapterName::default().as_str()), ask(&other, "reference")), (learnt, before));
    for _ in 0..3 {
        assert_eq!(go(&mut a), go(&mut b));
    }
    // The CPU reads the same files and goes on from them.
    let mut cpu = start().train(EngineOptions::default()).unwrap().0;
    cpu.load(dir.path()).unwrap();
}

#[test]
fn several_adapters_answer_side_by_side_as_on_the_cpu() {
    if !card() {
        return;
    }
    let config = &shapes()[3];
    let (cpu, gpu) = (
        model(config).sampler(EngineOptions::default()).unwrap(),
        model(config).sampler_on(Device::Cuda(0), EngineOptions::default()).unwrap(),
    );
    let names = ["one", "two", "three"];
    for (name, lora) in names.iter().zip(loras()) {
        let adapter = adapter(config, &lora);
        for sampler in [&cpu, &gpu] {
            sampler.publish(&AdapterName::new(name), &adapter).unwrap();
        }
    }
    let odd = NativeAdapter::new(config, &LoraConfig { rank: 12, ..Default::default() }, Seed::new(1)).unwrap();
    let error = gpu.publish(&AdapterName::new("odd"), &odd).unwrap_err().to_string();
    assert!(error.contains("multiple of 8"), "{error}");
    let asked: Vec<ScoreRequest> = requests(config.vocab_size as u32)
        .into_iter()
        .enumerate()
        .map(|(i, r)| match names.get(i % 4) {
            Some(name) => ScoreRequest { weights: AdapterName::new(name), ..r },
            None => r,
        })
        .collect();
    for (a, b) in scores(&cpu, &asked).iter().zip(scores(&gpu, &asked)) {
        near(&a.logprobs, &b.logprobs);
    }
    let make = |i: usize| SampleRequest {
        prompt: asked[i % asked.len()].tokens.clone(),
        weights: asked[i % asked.len()].weights.clone(),
        params: SamplingParams { max_tokens: 20, seed: i as u64, ..Default::default() },
        ..Default::default()
    };
    let futures: Vec<_> = (0..40).map(|i| gpu.sample(make(i))).collect();
    for (i, future) in futures.into_iter().enumerate() {
        let (answer, request) = (block_on(future).unwrap(), make(i));
        let tokens = [&request.prompt[..], &answer.tokens].concat();
        let r =
            ScoreRequest { tokens, from: request.prompt.len(), weights: request.weights.clone(), ..Default::default() };
        near(&block_on(cpu.score(r)).unwrap().logprobs, &answer.logprobs);
    }
}
