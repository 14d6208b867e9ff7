//! Edge cases of sampler requests: invalid input, memory pressure, admission, cancellation, streams and action masks.

use futures_executor::{block_on, block_on_stream};
use futures_util::{StreamExt, future::join_all, stream};
use mage_engine::{ActionSet, FinishReason, SampleRequest, Sampler, SamplingParams, ScoreRequest};
use mage_native::{Config, EngineOptions, NativeModel, NativeSampler, WeightDtype};
use mage_rng::Seed;
use std::task::{Context, Waker};

fn config() -> Config {
    Config {
        vocab_size: 30,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        max_position_embeddings: 9000,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

/// A sampler with a KV cache of one MiB: 512 blocks, 8192 tokens.
fn sampler() -> NativeSampler {
    let model = NativeModel::new(config(), 0.3, Seed::new(2), None).unwrap();
    model.sampler(EngineOptions { cache_mib: 1, threads: 2, ..Default::default() }).unwrap()
}

fn request(len: usize, max_tokens: u32, seed: u64) -> SampleRequest {
    let prompt = (0..len as u64).map(|i| (Seed::new(seed).at(i).value() % 30) as u32).collect();
    let params = SamplingParams { max_tokens, seed, ..Default::default() };
    SampleRequest { prompt, params, ..Default::default() }
}

fn refusal(sampler: &NativeSampler, request: SampleRequest) -> String {
    block_on(sampler.sample(request)).unwrap_err().to_string()
}

#[test]
fn invalid_requests_are_refused_with_reasons() {
    let sampler = sampler();
    assert_eq!(refusal(&sampler, request(0, 1, 1)), "prompt: has no tokens; pass at least one");
    assert!(refusal(&sampler, request(9001, 1, 1)).contains("exceed the context of 9000; shorten"));
    assert!(refusal(&sampler, request(9000, 1, 1)).contains("no room for a completion"));
    assert!(
        refusal(&sampler, request(8500, 10, 1)).contains("raise cache_mib"),
        "the context is larger than the cache"
    );
    let mut unknown = request(3, 1, 1);
    unknown.weights = "unknown".into();
    assert!(refusal(&sampler, unknown).contains("published: base, policy"));
    let empty = ActionSet::new(Vec::<Vec<u32>>::new(), None, None).unwrap_err().to_string();
    assert!(empty.contains("no completions"), "{empty}");
    let mut outside = request(3, 1, 1);
    outside.allowed = Some(ActionSet::new([[30]], None, None).unwrap());
    assert!(refusal(&sampler, outside).contains("outside the vocabulary"));
    let nothing_to_score = ScoreRequest { tokens: vec![1, 2], from: 2, ..Default::default() };
    assert!(block_on(sampler.score(nothing_to_score)).unwrap().logprobs.is_empty());
    assert!(block_on(sampler.sample(request(8000, 3, 1))).is_ok(), "refusals should not affect later requests");
}

#[test]
fn non_finite_logits_are_an_error_in_every_operation() {
    // The weights are finite; their logits are not.
    let dir = tempfile::tempdir().unwrap();
    NativeModel::new(config(), 100.0, Seed::new(2), None).unwrap().save(dir.path(), WeightDtype::F32).unwrap();
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let offset = |i: usize| data + header["model.norm.weight"]["data_offsets"][i].as_u64().unwrap() as usize;
    bytes[offset(0)..offset(1)].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&1e38_f32.to_le_bytes()));
    std::fs::write(&path, bytes).unwrap();
    let sampler = NativeModel::open(dir.path()).unwrap().sampler(EngineOptions::default()).unwrap();
    let error = refusal(&sampler, request(5, 3, 1));
    assert!(error.contains("policy") && error.contains("earlier checkpoint"), "{error}");
    assert_eq!(sampler.generate(&request(5, 3, 1), |_| ()).unwrap_err().to_string(), error);
    let score = ScoreRequest { tokens: vec![1, 2, 3], from: 1, ..Default::default() };
    assert_eq!(block_on(sampler.score(score.clone())).unwrap_err().to_string(), error);
    assert_eq!(sampler.score_all(&[score]).unwrap_err().to_string(), error);
    let mut stream = sampler.stream(request(5, 3, 1)).unwrap();
    assert_eq!(block_on(stream.next()), None);
    assert_eq!(block_on(stream.finish()).unwrap_err().to_string(), error);
}

#[test]
fn options_beyond_the_machine_are_refused() {
    let refusal = |options: EngineOptions| {
        let model = NativeModel::new(config(), 0.3, Seed::new(2), None).unwrap();
        model.sampler(options).err().unwrap().to_string()
    };
    let error = refusal(EngineOptions { threads: 100_000, ..Default::default() });
    assert!(error.starts_with("threads") && error.contains("1024"), "{error}");
    for cache_mib in [1 << 40, usize::MAX] {
        let error = refusal(EngineOptions { cache_mib, ..Default::default() });
        assert!(error.starts_with("cache_mib") && error.contains("free"), "{error}");
    }
}

#[test]
fn full_kv_cache_delays_requests_and_loses_none() {
    let sampler = sampler();
    // Forty sequences of up to 400 tokens exceed 8192.
    let requests: Vec<SampleRequest> = (0..40).map(|i| request(200, 200, i)).collect();
    let samples = block_on(join_all(requests.iter().map(|r| sampler.sample(r.clone()))));
    for (r, sample) in requests.iter().zip(samples) {
        assert!(sample.unwrap() == sampler.generate(r, |_| ()).unwrap());
    }
    let stats = sampler.stats();
    assert!(stats.preemptions > 0 && stats.evicted_blocks > 0, "{stats:?}");
    assert_eq!((stats.finished, stats.total_blocks), (40, 512));
}

fn sampler_with_queue(queue: usize) -> NativeSampler {
    let model = NativeModel::new(config(), 0.3, Seed::new(2), None).unwrap();
    model.sampler(EngineOptions { threads: 2, queue, ..Default::default() }).unwrap()
}

#[test]
fn requests_beyond_the_admission_limit_wait_in_their_futures() {
    let sampler = sampler_with_queue(4);
    let requests: Vec<SampleRequest> = (0..50).map(|i| request(10, 20, i)).collect();
    let mut futures: Vec<_> = requests.iter().map(|r| sampler.sample(r.clone())).collect();
    // The others are not polled: four are admitted, and this one is admitted when there is capacity.
    let last = block_on(futures.pop().unwrap()).unwrap();
    assert!(last == sampler.generate(&requests[49], |_| ()).unwrap());
    assert!(sampler.stats().finished <= 5, "{:?}", sampler.stats());
    drop(futures.drain(..10)); // four admitted requests and some waiting ones
    for (r, future) in requests[10..49].iter().zip(futures).rev() {
        assert!(block_on(future).unwrap() == sampler.generate(r, |_| ()).unwrap());
    }
    // All at once; streams and scores wait in the same way.
    let samples = block_on(join_all(requests.iter().map(|r| sampler.sample(r.clone()))));
    assert_eq!(samples.iter().filter(|s| s.is_ok()).count(), 50);
    let mut streams: Vec<_> = requests[..9].iter().map(|r| sampler.stream(r.clone()).unwrap()).collect();
    let score = ScoreRequest { tokens: vec![1, 2, 3], from: 1, ..Default::default() };
    assert_eq!(block_on(sampler.score(score)).unwrap().logprobs.len(), 2);
    let mut seen = Vec::new();
    while let Some(token) = block_on(streams[8].next()) {
        seen.push(token);
    }
    assert_eq!(seen, sampler.generate(&requests[8], |_| ()).unwrap().tokens);
}

#[test]
fn woken_requests_that_are_not_polled_do_not_block_others() {
    let sampler = sampler_with_queue(1);
    let mut context = Context::from_waker(Waker::noop());
    let admitted = sampler.sample(request(10, 200, 1));
    let mut waiting: Vec<_> = (0..5).map(|i| sampler.sample(request(10, 5, i))).collect();
    for future in &mut waiting {
        // Some may be admitted, if the first finishes early; none is polled again.
        let _ = future.as_mut().poll(&mut context);
    }
    assert!(block_on(sampler.sample(request(10, 5, 9))).is_ok());
    assert!(block_on(admitted).is_ok());
    drop(waiting);
    assert!(block_on(sampler.sample(request(10, 5, 10))).is_ok());
}

#[test]
fn dropped_streams_free_their_blocks() {
    let sampler = sampler();
    for round in 0..20 {
        let mut streams: Vec<_> =
            (0..10).map(|i| sampler.stream(request(100, 8000, 100 * round + i)).unwrap()).collect();
        assert!(block_on(streams[3].next()).is_some());
        drop(streams); // some before their first token
        let sample = block_on(sampler.sample(request(8000, 100, round))).unwrap();
        assert_eq!(sample.finish, FinishReason::Length);
    }
    let stats = sampler.stats();
    assert_eq!((stats.finished, stats.cancelled), (20, 200));
}

#[test]
fn streamed_tokens_equal_the_sample() {
    let sampler = sampler();
    let mut stream = sampler.stream(request(20, 50, 5)).unwrap();
    let mut seen = Vec::new();
    while let Some(token) = block_on(stream.next()) {
        seen.push(token);
    }
    let whole = block_on(stream.finish()).unwrap();
    assert!(seen == whole.tokens && whole == sampler.generate(&request(20, 50, 5), |_| ()).unwrap());
}

#[test]
fn masked_samples_follow_scored_probabilities() {
    let sampler = sampler();
    let actions = [vec![3, 4], vec![3, 5, 6], vec![9], vec![11, 12]];
    let set = ActionSet::new(&actions, Some(29), None).unwrap();
    let probabilities: Vec<f64> = actions
        .iter()
        .map(|a| {
            let action = [&a[..], &[29]].concat();
            let tokens = [&request(7, 1, 1).prompt[..], &action].concat();
            let r = ScoreRequest { tokens, from: 7, allowed: set.masks(&action).unwrap(), ..Default::default() };
            block_on(sampler.score(r)).unwrap().logprobs.iter().map(|l| f64::from(*l)).sum::<f64>().exp()
        })
        .collect();
    assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{probabilities:?}");
    let n = 20_000;
    let mut counts = vec![0.0; actions.len()];
    let futures = (0..n).map(|seed| {
        let mut r = request(7, 8, 1);
        r.params.seed = seed;
        r.allowed = Some(set.clone());
        sampler.sample(r)
    });
    for s in block_on_stream(stream::iter(futures).buffer_unordered(500)) {
        let s = s.unwrap();
        assert!(s.finish == FinishReason::Stop && s.tokens.last() == Some(&29));
        let action = &s.tokens[..s.tokens.len() - 1];
        counts[actions.iter().position(|a| a == action).expect("an action of the set")] += 1.0;
    }
    let chi: f64 = counts.iter().zip(&probabilities).map(|(c, p)| (c - p * n as f64).powi(2) / (p * n as f64)).sum();
    assert!(
        chi < 16.3,
        "chi-square {chi} (0.1 % level, three degrees of freedom): {counts:?}, expected {probabilities:?}"
    );
}

#[cfg(feature = "long")]
#[test]
fn memory_stays_flat_over_a_million_requests() {
    fn resident_kib() -> usize {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }
    let sampler = sampler();
    let run = |from: u64, count: u64| {
        let futures =
            (from..from + count).map(|i| sampler.sample(request(5 + (i % 20) as usize, 1 + (i % 4) as u32, i)));
        for s in block_on_stream(stream::iter(futures).buffer_unordered(300)) {
            assert!(s.is_ok());
        }
    };
    run(0, 50_000);
    let before = resident_kib();
    run(50_000, 1_000_000);
    let after = resident_kib();
    eprintln!("{before} KiB before a million requests, {after} after");
    assert!(after < before + 4096, "{before} KiB before, {after} after");
}
