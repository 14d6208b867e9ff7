//! Every odd request has a defined answer, and nothing is left behind.

use mage_engine::{
    ActionSet, FinishReason, SampleRequest, Sampler, SamplingParams, ScoreRequest, block_on, for_each_concurrent,
};
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

/// A cache of one MiB: 512 pages, 8192 tokens.
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
fn odd_requests_are_refused_with_reasons() {
    let sampler = sampler();
    assert_eq!(refusal(&sampler, request(0, 1, 1)), "prompt: it has no tokens; give at least one");
    assert!(refusal(&sampler, request(9001, 1, 1)).contains("more than the context of 9000; shorten"));
    assert!(refusal(&sampler, request(9000, 1, 1)).contains("no room for an answer"));
    assert!(
        refusal(&sampler, request(8500, 10, 1)).contains("raise cache_mib"),
        "the context is larger than the cache"
    );
    let mut unknown = request(3, 1, 1);
    unknown.weights = "nobody".into();
    assert!(refusal(&sampler, unknown).contains("published: base, policy"));
    let empty = ActionSet::new(Vec::<Vec<u32>>::new(), None, None).unwrap_err().to_string();
    assert!(empty.contains("no answers"), "{empty}");
    let mut outside = request(3, 1, 1);
    outside.allowed = Some(ActionSet::new([[30]], None, None).unwrap());
    assert!(refusal(&sampler, outside).contains("outside the vocabulary"));
    let none = ScoreRequest { tokens: vec![1, 2], from: 2, ..Default::default() };
    assert!(block_on(sampler.score(none)).unwrap().logprobs.is_empty());
    assert!(block_on(sampler.sample(request(8000, 3, 1))).is_ok(), "and the next one is answered as ever");
}

#[test]
fn weights_that_give_no_numbers_are_an_error_everywhere() {
    // Each number is one; the logits they make are not.
    let dir = tempfile::tempdir().unwrap();
    NativeModel::new(config(), 100.0, Seed::new(2), None).unwrap().save(dir.path(), WeightDtype::F32).unwrap();
    let path = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let place = |i: usize| data + header["model.norm.weight"]["data_offsets"][i].as_u64().unwrap() as usize;
    bytes[place(0)..place(1)].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&1e38_f32.to_le_bytes()));
    std::fs::write(&path, bytes).unwrap();
    let sampler = NativeModel::open(dir.path()).unwrap().sampler(EngineOptions::default()).unwrap();
    let said = refusal(&sampler, request(5, 3, 1));
    assert!(said.contains("policy") && said.contains("earlier checkpoint"), "{said}");
    assert_eq!(sampler.generate(&request(5, 3, 1), |_| ()).unwrap_err().to_string(), said);
    let score = ScoreRequest { tokens: vec![1, 2, 3], from: 1, ..Default::default() };
    assert_eq!(block_on(sampler.score(score.clone())).unwrap_err().to_string(), said);
    assert_eq!(sampler.score_all(&[score]).unwrap_err().to_string(), said);
    let mut stream = sampler.stream(request(5, 3, 1)).unwrap();
    assert_eq!(block_on(stream.next()), None);
    assert_eq!(block_on(stream.finish()).unwrap_err().to_string(), said);
}

#[test]
fn what_the_machine_cannot_do_is_refused() {
    let refusal = |options: EngineOptions| {
        let model = NativeModel::new(config(), 0.3, Seed::new(2), None).unwrap();
        model.sampler(options).err().unwrap().to_string()
    };
    let said = refusal(EngineOptions { threads: 100_000, ..Default::default() });
    assert!(said.starts_with("threads") && said.contains("1024"), "{said}");
    for cache_mib in [1 << 40, usize::MAX] {
        let said = refusal(EngineOptions { cache_mib, ..Default::default() });
        assert!(said.starts_with("cache_mib") && said.contains("free"), "{said}");
    }
}

#[test]
fn a_full_cache_delays_but_loses_nothing() {
    let sampler = sampler();
    // Forty times 400 tokens and more do not fit into 8192.
    let requests: Vec<SampleRequest> = (0..40).map(|i| request(200, 200, i)).collect();
    let mut answers = vec![None; requests.len()];
    let futures = requests.iter().map(|r| sampler.sample(r.clone()));
    for_each_concurrent(futures, 40, |i, answer| answers[i] = Some(answer.unwrap()));
    for (r, answer) in requests.iter().zip(answers) {
        assert!(answer.unwrap() == sampler.generate(r, |_| ()).unwrap());
    }
    let stats = sampler.stats();
    assert!(stats.preemptions > 0 && stats.evicted_blocks > 0, "{stats:?}");
    assert_eq!((stats.finished, stats.total_blocks), (40, 512));
}

fn sampler_for(queue: usize) -> NativeSampler {
    let model = NativeModel::new(config(), 0.3, Seed::new(2), None).unwrap();
    model.sampler(EngineOptions { threads: 2, queue, ..Default::default() }).unwrap()
}

#[test]
fn beyond_the_queue_requests_wait_with_whoever_asked() {
    let sampler = sampler_for(4);
    let requests: Vec<SampleRequest> = (0..50).map(|i| request(10, 20, i)).collect();
    let mut futures: Vec<_> = requests.iter().map(|r| sampler.sample(r.clone())).collect();
    // Nobody looks at the others: four are inside, and this one comes in when there is room.
    let last = block_on(futures.pop().unwrap()).unwrap();
    assert!(last == sampler.generate(&requests[49], |_| ()).unwrap());
    assert!(sampler.stats().finished <= 5, "{:?}", sampler.stats());
    drop(futures.drain(..10)); // four that were inside, and some that never were
    for (r, future) in requests[10..49].iter().zip(futures).rev() {
        assert!(block_on(future).unwrap() == sampler.generate(r, |_| ()).unwrap());
    }
    // All at once, and streams and scores like the rest.
    let mut answers = 0;
    let futures = requests.iter().map(|r| sampler.sample(r.clone()));
    for_each_concurrent(futures, 50, |_, s| answers += usize::from(s.is_ok()));
    assert_eq!(answers, 50);
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
fn one_who_is_called_and_does_not_come_holds_nobody_up() {
    let sampler = sampler_for(1);
    let mut context = Context::from_waker(Waker::noop());
    let inside = sampler.sample(request(10, 200, 1));
    let mut outside: Vec<_> = (0..5).map(|i| sampler.sample(request(10, 5, i))).collect();
    for future in &mut outside {
        // Some may come in, if the first is that fast; nobody looks at any of them again.
        let _ = future.as_mut().poll(&mut context);
    }
    assert!(block_on(sampler.sample(request(10, 5, 9))).is_ok());
    assert!(block_on(inside).is_ok());
    drop(outside);
    assert!(block_on(sampler.sample(request(10, 5, 10))).is_ok());
}

#[test]
fn whoever_leaves_makes_room() {
    let sampler = sampler();
    for round in 0..20 {
        let mut streams: Vec<_> =
            (0..10).map(|i| sampler.stream(request(100, 8000, 100 * round + i)).unwrap()).collect();
        assert!(block_on(streams[3].next()).is_some());
        drop(streams); // all vanish, some before their first token
        let answer = block_on(sampler.sample(request(8000, 100, round))).unwrap();
        assert_eq!(answer.finish, FinishReason::Length);
    }
    let stats = sampler.stats();
    assert_eq!((stats.finished, stats.cancelled), (20, 200));
}

#[test]
fn streams_show_what_samples_hold() {
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
fn answers_of_a_set_are_drawn_as_often_as_they_are_likely() {
    let sampler = sampler();
    let answers = [vec![3, 4], vec![3, 5, 6], vec![9], vec![11, 12]];
    let set = ActionSet::new(&answers, Some(29), None).unwrap();
    let likely: Vec<f64> = answers
        .iter()
        .map(|a| {
            let answer = [&a[..], &[29]].concat();
            let tokens = [&request(7, 1, 1).prompt[..], &answer].concat();
            let r = ScoreRequest { tokens, from: 7, allowed: set.masks(&answer).unwrap(), ..Default::default() };
            block_on(sampler.score(r)).unwrap().logprobs.iter().map(|l| f64::from(*l)).sum::<f64>().exp()
        })
        .collect();
    assert!((likely.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{likely:?}");
    let n = 20_000;
    let mut counts = vec![0.0; answers.len()];
    let futures = (0..n).map(|seed| {
        let mut r = request(7, 8, 1);
        r.params.seed = seed;
        r.allowed = Some(set.clone());
        sampler.sample(r)
    });
    for_each_concurrent(futures, 500, |_, s| {
        let s = s.unwrap();
        assert!(s.finish == FinishReason::Stop && s.tokens.last() == Some(&29));
        let written = &s.tokens[..s.tokens.len() - 1];
        counts[answers.iter().position(|a| a == written).expect("an answer of the set")] += 1.0;
    });
    let chi: f64 = counts.iter().zip(&likely).map(|(c, p)| (c - p * n as f64).powi(2) / (p * n as f64)).sum();
    assert!(chi < 16.3, "chi-square {chi} (0.1 % at three degrees of freedom): {counts:?} against {likely:?}");
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
    let go = |from: u64, count: u64| {
        let futures =
            (from..from + count).map(|i| sampler.sample(request(5 + (i % 20) as usize, 1 + (i % 4) as u32, i)));
        for_each_concurrent(futures, 300, |_, s| assert!(s.is_ok()));
    };
    go(0, 50_000);
    let before = resident_kib();
    go(50_000, 1_000_000);
    let after = resident_kib();
    eprintln!("{before} KiB before a million requests, {after} after");
    assert!(after < before + 4096, "{before} KiB before, {after} after");
}
