//! Do scores and answers agree with the CPU's, and draws with what is said of them?

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

#[test]
fn scores_and_answers_agree_with_the_cpus() {
    if !card() {
        return;
    }
    for config in shapes() {
        let cpu = model(&config).sampler(EngineOptions::default()).unwrap();
        let gpu = model(&config).sampler_on(Device::Cuda(0), EngineOptions::default()).unwrap();
        let asked = requests(config.vocab_size as u32);
        for (a, b) in scores(&cpu, &asked).iter().zip(scores(&gpu, &asked)) {
            near(&a.logprobs, &b.logprobs);
            near(&a.entropies, &b.entropies);
        }
        // Answers of many lengths in flight at once; what is said of each token is what the CPU says of it.
        let make = |i: usize| SampleRequest {
            prompt: asked[i % asked.len()].tokens.clone(),
            params: SamplingParams { max_tokens: 3 + 7 * (i as u32 % 9), seed: i as u64, ..Default::default() },
            ..Default::default()
        };
        let futures: Vec<_> = (0..70).map(|i| gpu.sample(make(i))).collect();
        let mut same = 0;
        for (i, future) in futures.into_iter().enumerate() {
            let (answer, request) = (block_on(future).unwrap(), make(i));
            assert_eq!(answer.tokens.len(), request.params.max_tokens as usize);
            let tokens = [&request.prompt[..], &answer.tokens].concat();
            let r = ScoreRequest { tokens, from: request.prompt.len(), ..Default::default() };
            let told = block_on(cpu.score(r)).unwrap();
            near(&told.logprobs, &answer.logprobs);
            same += usize::from(block_on(cpu.sample(request)).unwrap().tokens == answer.tokens);
        }
        // The point drawn is the same, so many answers are, too: the fewer the tokens, the farther a boundary.
        eprintln!("heads of {}: {same} of 70 answers are the CPU's", config.head_dim);
        assert!(same > 0);
    }
}

#[test]
fn draws_follow_the_stated_distribution() {
    if !card() {
        return;
    }
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
    for (name, params, kept, heat) in cases {
        let mut want = vec![0.0; 97];
        for &t in &kept {
            want[t] = p[t].powf(1.0 / heat);
        }
        let total: f64 = want.iter().sum();
        want.iter_mut().for_each(|w| *w /= total);
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
            assert!(want[t] > 0.0, "{name}: {t} was cut");
            // Rounding differs with what else is in the batch.
            let told = f64::from(s.processed_logprobs[0]);
            assert!((told - want[t].ln()).abs() < 0.03, "{name}: {t} is said to have {told}, not {}", want[t].ln());
            counts[t] += 1.0;
        }
        let freedom = (kept.len() - 1) as f64;
        let follow = |want: &[f64], whose: &str| {
            let chi: f64 = (0..97)
                .filter(|t| want[*t] > 0.0)
                .map(|t| (counts[t] - want[t] * N as f64).powi(2) / (want[t] * N as f64))
                .sum();
            // Five standard deviations of a chi-square above its mean.
            let most = freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9;
            assert!(chi <= most, "{name}, {whose}: {chi} with {freedom} degrees of freedom");
        };
        follow(&want, "the card's own distribution");
        // Where nothing is cut, no rounding decides what stays: then it is the CPU's distribution, too.
        if kept.len() == 97 {
            let hot: Vec<f64> = exact.iter().map(|p| p.powf(1.0 / heat)).collect();
            let total: f64 = hot.iter().sum();
            follow(&hot.iter().map(|p| p / total).collect::<Vec<_>>(), "the CPU's");
        }
    }
}

#[test]
fn batch_invariant_answers_are_the_same_bits_in_any_company() {
    if !card() {
        return;
    }
    for config in shapes() {
        let start = |options: EngineOptions| model(&config).sampler_on(Device::Cuda(0), options).unwrap();
        let invariant = EngineOptions { batch_invariant: true, ..Default::default() };
        let together = start(invariant);
        // One at a time, prompts read in small pieces, nothing shared.
        let alone = start(EngineOptions { chunk_tokens: 48, no_prefix_cache: true, ..invariant });
        assert!(together.caps().batch_invariant && !start(EngineOptions::default()).caps().batch_invariant);
        let asked = requests(config.vocab_size as u32);
        let make = |i: usize| SampleRequest {
            prompt: asked[i % asked.len()].tokens.clone(),
            params: SamplingParams { max_tokens: 3 + 7 * (i as u32 % 5), seed: i as u64, ..Default::default() },
            ..Default::default()
        };
        let futures: Vec<_> = (0..90).map(|i| together.sample(make(i))).collect();
        for (i, future) in futures.into_iter().enumerate() {
            let (a, b) = (block_on(future).unwrap(), block_on(alone.sample(make(i))).unwrap());
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(
                (a.tokens, bits(&a.logprobs)),
                (b.tokens, bits(&b.logprobs)),
                "heads of {}, answer {i}",
                config.head_dim
            );
        }
        for (a, r) in scores(&together, &asked).iter().zip(&asked) {
            assert_eq!(a.logprobs, block_on(alone.score(r.clone())).unwrap().logprobs);
        }
    }
}
