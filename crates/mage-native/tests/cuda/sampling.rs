//! Tests of scoring and sampling on a GPU against the CPU.

use super::*;

pub(crate) fn requests(vocabulary: u32) -> Vec<ScoreRequest> {
    let mut rng = Seed::new(9).rng();
    let common: Vec<u32> = (0..90).map(|_| rng.random_range(0..vocabulary)).collect();
    [1_usize, 2, 15, 16, 17, 63, 64, 65, 100, 300]
        .into_iter()
        .enumerate()
        .map(|(i, len)| {
            let mut tokens = if i % 2 == 0 { common.clone() } else { Vec::new() };
            tokens.extend((0..=len).map(|_| rng.random_range(0..vocabulary)));
            ScoreRequest { from: 1.max(tokens.len() / 3), tokens, ..Default::default() }
        })
        .collect()
}

pub(crate) fn scores(sampler: &NativeSampler, requests: &[ScoreRequest]) -> Vec<Scores> {
    let futures: Vec<_> = requests.iter().map(|r| sampler.score(r.clone())).collect();
    futures.into_iter().map(|f| block_on(f).unwrap()).collect()
}

pub(crate) fn scores_and_responses_agree_with_the_cpu() {
    for config in shapes() {
        let cpu = model(&config).sampler(EngineOptions::default()).unwrap();
        let gpu = model(&config).sampler_on(Device::Cuda(0), EngineOptions::default()).unwrap();
        let score_requests = requests(config.vocab_size as u32);
        for (a, b) in scores(&cpu, &score_requests).iter().zip(scores(&gpu, &score_requests)) {
            assert_near(&a.logprobs, &b.logprobs);
            assert_near(&a.entropies, &b.entropies);
        }
        // Responses of different lengths in flight at once. The CPU's score of each sampled token must agree.
        let make = |i: usize| SampleRequest {
            prompt: score_requests[i % score_requests.len()].tokens.clone(),
            params: SamplingParams { max_tokens: 3 + 7 * (i as u32 % 9), seed: i as u64, ..Default::default() },
            ..Default::default()
        };
        let futures: Vec<_> = (0..70).map(|i| gpu.sample(make(i))).collect();
        let mut equal_responses = 0;
        for (i, future) in futures.into_iter().enumerate() {
            let (response, request) = (block_on(future).unwrap(), make(i));
            assert_eq!(response.tokens.len(), request.params.max_tokens as usize);
            let tokens = [&request.prompt[..], &response.tokens].concat();
            let r = ScoreRequest { tokens, from: request.prompt.len(), ..Default::default() };
            let scored = block_on(cpu.score(r)).unwrap();
            assert_near(&scored.logprobs, &response.logprobs);
            equal_responses += usize::from(block_on(cpu.sample(request)).unwrap().tokens == response.tokens);
        }
        // The uniform variates are the same, so many responses are equal. The fewer tokens, the rarer a different
        // choice.
        eprintln!("head_dim {}: {equal_responses} of 70 responses equal the CPU's", config.head_dim);
        assert!(equal_responses > 0);
    }
}

pub(crate) fn samples_follow_the_reported_distribution() {
    let config = &shapes()[0];
    let sampler = model(config).sampler_on(Device::Cuda(0), EngineOptions::default()).unwrap();
    let prompt = vec![5_u32, 17, 40];
    let p: Vec<f64> = (0..97)
        .map(|t| {
            let r = ScoreRequest { tokens: [&prompt[..], &[t]].concat(), from: 3, ..Default::default() };
            f64::from(block_on(sampler.score(r)).unwrap().logprobs[0]).exp()
        })
        .collect();
    assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-4);
    let cpu = model(config).sampler(EngineOptions::default()).unwrap();
    let exact: Vec<f64> = (0..97)
        .map(|t| {
            let r = ScoreRequest { tokens: [&prompt[..], &[t]].concat(), from: 3, ..Default::default() };
            f64::from(block_on(cpu.score(r)).unwrap().logprobs[0]).exp()
        })
        .collect();
    let mut order: Vec<usize> = (0..97).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]).then(a.cmp(b)));
    let base = SamplingParams { max_tokens: 1, ..Default::default() };
    let sum_to = |n: usize| order[..n].iter().map(|t| p[*t]).sum::<f64>();
    let cases: Vec<(&str, SamplingParams, Vec<usize>, f64)> = vec![
        ("plain", base.clone(), order.clone(), 1.0),
        ("hot", SamplingParams { temperature: 2.0, ..base.clone() }, order.clone(), 2.0),
        ("top-k", SamplingParams { top_k: 7, ..base.clone() }, order[..7].to_vec(), 1.0),
        (
            "top-p",
            SamplingParams { top_p: 0.5, ..base.clone() },
            {
                let n = (1..=97).find(|n| sum_to(*n) >= 0.5).unwrap();
                order[..n].to_vec()
            },
            1.0,
        ),
        (
            "min-p",
            SamplingParams { min_p: 0.4, ..base.clone() },
            { order.iter().copied().filter(|t| p[*t] >= 0.4 * p[order[0]]).collect() },
            1.0,
        ),
        ("greedy", SamplingParams { temperature: 0.0, ..base.clone() }, order[..1].to_vec(), 1.0),
    ];
    for (name, params, support, temperature) in cases {
        let mut expected = vec![0.0; 97];
        for &t in &support {
            expected[t] = p[t].powf(1.0 / temperature);
        }
        let total: f64 = expected.iter().sum();
        expected.iter_mut().for_each(|w| *w /= total);
        const N: u64 = 20_000;
        let mut counts = vec![0.0; 97];
        let make = |seed| SampleRequest {
            prompt: prompt.clone(),
            params: SamplingParams { seed, ..params.clone() },
            ..Default::default()
        };
        let futures: Vec<_> = (0..N).map(|s| sampler.sample(make(s))).collect();
        for f in futures {
            let s = block_on(f).unwrap();
            let t = s.tokens[0] as usize;
            assert!(expected[t] > 0.0, "{name}: {t} was filtered out");
            // Rounding depends on the rest of the batch.
            let scored = f64::from(s.processed_logprobs[0]);
            assert!(
                (scored - expected[t].ln()).abs() < 0.03,
                "{name}: {t} has reported log-probability {scored}, expected {}",
                expected[t].ln()
            );
            counts[t] += 1.0;
        }
        let degrees_of_freedom = (support.len() - 1) as f64;
        let check_chi_square = |expected: &[f64], reference: &str| {
            let chi: f64 = (0..97)
                .filter(|t| expected[*t] > 0.0)
                .map(|t| (counts[t] - expected[t] * N as f64).powi(2) / (expected[t] * N as f64))
                .sum();
            // Five standard deviations above the mean of the chi-square distribution.
            let limit = degrees_of_freedom + 5.0 * (2.0 * degrees_of_freedom).sqrt() + 1e-9;
            assert!(chi <= limit, "{name}, {reference}: {chi} with {degrees_of_freedom} degrees of freedom");
        };
        check_chi_square(&expected, "the GPU's own distribution");
        // Without filters, rounding does not decide which tokens stay, so the CPU's distribution must match, too.
        if support.len() == 97 {
            let hot: Vec<f64> = exact.iter().map(|p| p.powf(1.0 / temperature)).collect();
            let total: f64 = hot.iter().sum();
            check_chi_square(&hot.iter().map(|p| p / total).collect::<Vec<_>>(), "the CPU's distribution");
        }
    }
}

pub(crate) fn batch_invariant_responses_have_identical_bits_in_any_batch() {
    for config in shapes() {
        let sampler = |options: EngineOptions| model(&config).sampler_on(Device::Cuda(0), options).unwrap();
        let invariant = EngineOptions { batch_invariant: true, ..Default::default() };
        let batched = sampler(invariant);
        // One at a time, with chunked prefill and no prefix cache.
        let sequential = sampler(EngineOptions { chunk_tokens: 48, no_prefix_cache: true, ..invariant });
        assert!(batched.caps().batch_invariant && !sampler(EngineOptions::default()).caps().batch_invariant);
        let score_requests = requests(config.vocab_size as u32);
        let make = |i: usize| SampleRequest {
            prompt: score_requests[i % score_requests.len()].tokens.clone(),
            params: SamplingParams { max_tokens: 3 + 7 * (i as u32 % 5), seed: i as u64, ..Default::default() },
            ..Default::default()
        };
        let futures: Vec<_> = (0..90).map(|i| batched.sample(make(i))).collect();
        for (i, future) in futures.into_iter().enumerate() {
            let (a, b) = (block_on(future).unwrap(), block_on(sequential.sample(make(i))).unwrap());
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(
                (a.tokens, bits(&a.logprobs)),
                (b.tokens, bits(&b.logprobs)),
                "head_dim {}, response {i}",
                config.head_dim
            );
        }
        for (a, r) in scores(&batched, &score_requests).iter().zip(&score_requests) {
            assert_eq!(a.logprobs, block_on(sequential.score(r.clone())).unwrap().logprobs);
        }
    }
}
