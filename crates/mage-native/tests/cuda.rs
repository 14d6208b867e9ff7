//! Does a card give what the CPU gives?
//!
//! The CPU computes in fp32, a card in bf16 with fp32 sums, so numbers agree to bf16's rounding (8 bits) and no further.
//! Without a card every test here says loudly that it skips. With one: `cargo test --release -p mage-native --test cuda`.

use mage_engine::{
    ActionSet, AdapterName, Loss, Objective, OptimStep, PerToken, SampleRequest, Sampler, SamplingParams, ScoreRequest,
    Scores, Segment, TokenForest, Trainer, block_on,
};
use mage_env::Seed;
use mage_native::{
    Config, CudaTrainer, Device, Lora, NativeAdapter, NativeModel, NativeSampler, NativeTrainer, NumberFormat, Options,
    Projection,
};
use rand::RngExt;
use std::io::Write;

/// Whether there is a card; says so where there is none. One that is there and does not work is no reason to skip.
fn card() -> bool {
    let there = mage_cuda::Card::count().unwrap() > 0;
    if !there {
        // Past the test runner, which would keep it to itself.
        let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: no CUDA card here, so nothing was compared with one ***");
    }
    there
}

/// Shapes with every head size, odd vocabularies, one or many queries per key.
fn shapes() -> Vec<Config> {
    let shape = |head_dim, heads, kv, hidden, vocab_size| Config {
        vocab_size,
        hidden_size: hidden,
        intermediate_size: 2 * hidden,
        num_hidden_layers: 2,
        num_attention_heads: heads,
        num_key_value_heads: kv,
        head_dim,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: head_dim != 64,
        max_position_embeddings: 1024,
        bos_token_id: None,
        eos_token_ids: vec![],
    };
    vec![
        shape(16, 4, 2, 64, 97),
        shape(32, 4, 1, 64, 100),
        shape(64, 3, 3, 136, 1001),
        shape(128, 8, 2, 256, 300),
        shape(24, 2, 1, 48, 61),
        shape(80, 4, 2, 64, 120),
        shape(128, 16, 2, 128, 200),
        shape(64, 10, 2, 72, 90),
        shape(32, 16, 1, 64, 111),
    ]
}

fn model(config: &Config) -> NativeModel {
    NativeModel::new(config.clone(), 0.08, Seed::new(3), None).unwrap()
}

fn both(config: &Config, options: Options) -> (NativeTrainer, CudaTrainer) {
    (model(config).train(options).unwrap().0, model(config).train_on_card(0, options).unwrap().0)
}

/// Rows of several lengths, shorter and longer than a tile, some sharing beginnings, some with masks.
fn batch(vocabulary: u32, seed: u64) -> TokenForest {
    let mut rng = Seed::new(seed).rng();
    let mut forest = TokenForest::default();
    for (i, len) in [5_usize, 64, 65, 130, 3, 200, 17].into_iter().enumerate() {
        let tokens: Vec<u32> = (0..len).map(|_| rng.random_range(0..vocabulary)).collect();
        let mut weights: Vec<f32> = (0..len).map(|t| if t % 5 == 4 { 0.0 } else { rng.random::<f32>() }).collect();
        let parent = (i == 2).then_some(1);
        if parent.is_none() {
            weights[0] = 0.0;
        }
        let allowed = tokens.iter().enumerate().map(|(t, &token)| {
            let mut set = vec![token, (token + 7) % vocabulary, (token + 31) % vocabulary];
            set.sort_unstable();
            set.dedup();
            (t % 3 == 2).then(|| set.into())
        });
        let train = PerToken {
            weights,
            advantages: (0..len).map(|t| if t % 2 == 0 { 1.3 } else { -0.8 }).collect(),
            old_logprobs: vec![-3.0; len],
            allowed: allowed.collect(),
            ..Default::default()
        };
        forest.segments.push(Segment { parent, tokens, train: Some(train) });
    }
    forest
}

fn loss() -> Loss {
    Loss::of(Objective::ImportanceSampling).with_entropy(0.3)
}

/// How far apart two lists of numbers are, relative to the second.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let apart: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (apart / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}

/// bf16 has 8 bits: numbers of size 5 that went through some of them are a few hundredths apart, rarely a tenth.
fn near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let apart = || a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let (worst, square) = (apart().fold(0.0, f32::max), apart().map(|d| d * d).sum::<f32>() / a.len().max(1) as f32);
    assert!(worst < 0.12 && square.sqrt() < 0.05, "{worst} apart, {} on average", square.sqrt());
}

#[test]
fn gradients_agree_with_the_cpus() {
    if !card() {
        return;
    }
    for config in shapes() {
        for recompute in [false, true] {
            let (mut cpu, mut gpu) = both(&config, Options { recompute, ..Default::default() });
            let batch = batch(config.vocab_size as u32, 1);
            let (a, b) =
                (cpu.forward_backward(&batch, &loss()).unwrap(), gpu.forward_backward(&batch, &loss()).unwrap());
            near(&a.logprobs, &b.logprobs);
            assert!((a.loss - b.loss).abs() < 0.02 * a.loss.abs().max(1.0), "{} and {}", a.loss, b.loss);
            let mut worst: (f64, String) = (0.0, String::new());
            for ((name, _, want), (other, got)) in cpu.gradients().zip(gpu.gradients().unwrap()) {
                assert_eq!(name, other);
                let d = distance(&got, want);
                if d > worst.0 || d.is_nan() {
                    worst = (d, other);
                }
            }
            eprintln!(
                "heads of {}, recompute {recompute}: worst gradient {:.4} of {}",
                config.head_dim, worst.0, worst.1
            );
            assert!(worst.0 < 0.04, "the gradient of {} is {} apart", worst.1, worst.0);
        }
    }
}

#[test]
fn the_same_batch_gives_the_same_bits_with_and_without_recomputation() {
    if !card() {
        return;
    }
    let config = &shapes()[3];
    let run = |recompute| {
        let options = Options { recompute, ..Default::default() };
        let mut t = model(config).train_on_card(0, options).unwrap().0;
        let batch = batch(config.vocab_size as u32, 2);
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(t.forward_backward(&batch, &loss()).unwrap().loss.to_bits());
            seen.push(
                t.optim_step(&OptimStep { weight_decay: 0.1, ..Default::default() }).unwrap().grad_norm.to_bits(),
            );
        }
        t.forward_backward(&batch, &loss()).unwrap();
        (seen, t.gradients().unwrap())
    };
    let first = run(false);
    assert!(first == run(false), "twice the same");
    assert!(first == run(true), "computed again");
}

#[test]
fn training_follows_the_cpus_curve() {
    if !card() {
        return;
    }
    let config = &shapes()[0];
    let (mut cpu, mut gpu) = both(config, Options::default());
    let step = OptimStep { learning_rate: 3e-3, ..Default::default() };
    // Something to learn: each token follows from the one before it.
    let rows = |seed: u64| {
        let mut rng = Seed::new(seed).rng();
        let one = |_| {
            let first = rng.random_range(0..97_u32);
            let tokens: Vec<u32> = std::iter::successors(Some(first), |t| Some((t * 5 + 3) % 97)).take(24).collect();
            let weights = (0..24).map(|t| if t == 0 { 0.0 } else { 1.0 / (16.0 * 23.0) }).collect();
            (tokens, PerToken { weights, ..Default::default() })
        };
        TokenForest::of_rows((0..16).map(one).collect::<Vec<_>>())
    };
    let loss = Loss::of(Objective::CrossEntropy);
    let mut curves = (Vec::new(), Vec::new());
    for i in 0..200 {
        let batch = rows(i);
        curves.0.push(cpu.forward_backward(&batch, &loss).unwrap().loss);
        curves.1.push(gpu.forward_backward(&batch, &loss).unwrap().loss);
        cpu.optim_step(&step).unwrap();
        gpu.optim_step(&step).unwrap();
    }
    let (a, b) = (curves.0[199], curves.1[199]);
    eprintln!("after 200 steps: CPU {a:.4}, card {b:.4}, from {:.4}", curves.0[0]);
    assert!(a < 0.5 && b < 0.5, "both learn");
    let apart = curves.0.iter().zip(&curves.1).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart < 0.15, "the curves come {apart} apart");
}

#[test]
fn a_saved_trainer_continues_exactly() {
    if !card() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = &shapes()[1];
    let batch = batch(config.vocab_size as u32, 4);
    let go = |t: &mut CudaTrainer| {
        let l = t.forward_backward(&batch, &loss()).unwrap().loss;
        t.optim_step(&OptimStep::default()).unwrap();
        l.to_bits()
    };
    let mut a = model(config).train_on_card(0, Options::default()).unwrap().0;
    a.publish(&"reference".into()).unwrap();
    for _ in 0..3 {
        go(&mut a);
    }
    a.save(dir.path()).unwrap();
    let (mut b, sampler) = NativeModel::open(dir.path()).unwrap().train_on_card(0, Options::default()).unwrap();
    b.load(dir.path()).unwrap();
    for _ in 0..3 {
        assert_eq!(go(&mut a), go(&mut b));
    }
    // What was published came back too, and the CPU reads the same files.
    let r = ScoreRequest { tokens: vec![1, 2, 3], from: 1, weights: "reference".into(), ..Default::default() };
    block_on(sampler.score(r)).unwrap();
    let mut cpu = NativeModel::open(dir.path()).unwrap().train(Options::default()).unwrap().0;
    cpu.load(dir.path()).unwrap();
}

fn requests(vocabulary: u32) -> Vec<ScoreRequest> {
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

fn scores(sampler: &NativeSampler, requests: &[ScoreRequest]) -> Vec<Scores> {
    let futures: Vec<_> = requests.iter().map(|r| sampler.score(r.clone())).collect();
    futures.into_iter().map(|f| block_on(f).unwrap()).collect()
}

#[test]
fn scores_and_answers_agree_with_the_cpus() {
    if !card() {
        return;
    }
    for config in shapes() {
        let cpu = model(&config).sampler(Options::default()).unwrap();
        let gpu = model(&config).sampler_on(Device::Cuda(0), Options::default()).unwrap();
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
    let sampler = model(config).sampler_on(Device::Cuda(0), Options::default()).unwrap();
    let prompt = vec![5_u32, 17, 40];
    let p: Vec<f64> = (0..97)
        .map(|t| {
            let r = ScoreRequest { tokens: [&prompt[..], &[t]].concat(), from: 3, ..Default::default() };
            f64::from(block_on(sampler.score(r)).unwrap().logprobs[0]).exp()
        })
        .collect();
    assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-4);
    let cpu = model(config).sampler(Options::default()).unwrap();
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
            let told = f64::from(s.drawn_logprobs[0]);
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

/// Answers of two tokens, one of `many` by `many`, ended by token 0; with thinking, which ends with token 1, or without.
fn action_set(vocabulary: u32, many: usize, thinks: bool, seed: u64) -> ActionSet {
    let mut rng = Seed::new(seed).rng();
    let mut some = || (0..many).map(|_| rng.random_range(1..vocabulary)).collect::<Vec<_>>();
    let firsts = some();
    let answers = firsts.iter().flat_map(|first| some().into_iter().map(|second| [*first, second]));
    ActionSet::new(answers.collect::<Vec<_>>(), Some(0), thinks.then_some(1)).unwrap()
}

#[test]
fn constrained_answers_stay_within_their_sets_and_are_scored_as_on_the_cpu() {
    if !card() {
        return;
    }
    let mut thought = 0;
    for (config, batch_invariant) in shapes().into_iter().zip([false, true].into_iter().cycle()) {
        let vocabulary = config.vocab_size as u32;
        let cpu = model(&config).sampler(Options::default()).unwrap();
        let options = Options { batch_invariant, ..Default::default() };
        let gpu = model(&config).sampler_on(Device::Cuda(0), options).unwrap();
        let prompts = requests(vocabulary);
        let filters = [
            SamplingParams::default(),
            SamplingParams { temperature: 0.0, ..Default::default() },
            SamplingParams { top_k: 3, temperature: 1.5, ..Default::default() },
            SamplingParams { top_p: 0.7, min_p: 0.05, ..Default::default() },
        ];
        // Some share a set, some have none. Where thinking does not end by itself, the answer ends in it.
        let sets: Vec<ActionSet> = (0..16).map(|i| action_set(vocabulary, 1 + i, i % 2 == 0, i as u64)).collect();
        let make = |i: usize| SampleRequest {
            prompt: prompts[i % prompts.len()].tokens.clone(),
            params: SamplingParams { max_tokens: 60, seed: i as u64, ..filters[i % 4].clone() },
            allowed: sets.get(i % 20).cloned(),
            ..Default::default()
        };
        let futures: Vec<_> = (0..120).map(|i| gpu.sample(make(i))).collect();
        let mut same = 0;
        for (i, future) in futures.into_iter().enumerate() {
            let (answer, request) = (block_on(future).unwrap(), make(i));
            let Some(set) = &request.allowed else { continue };
            let allowed = set.masks(&answer.tokens).unwrap();
            let thoughts = allowed.iter().take_while(|a| a.is_none()).count();
            assert!(
                answer.tokens.len() == 60 || answer.tokens.len() == thoughts + 3,
                "answer {i} ends where it does not"
            );
            thought += usize::from(thoughts > 0 && thoughts < 60);
            let (tokens, from) = ([&request.prompt[..], &answer.tokens].concat(), request.prompt.len());
            let told = block_on(cpu.score(ScoreRequest { tokens, from, allowed, ..Default::default() })).unwrap();
            near(&told.logprobs, &answer.logprobs);
            same += usize::from(block_on(cpu.sample(request)).unwrap().tokens == answer.tokens);
        }
        eprintln!("heads of {}: {same} of 96 answers are the CPU's", config.head_dim);
        // Half of them do not think, and are of two tokens.
        assert!(same > 24);
    }
    assert!(thought > 20, "only {thought} ended their thinking");
}

#[test]
fn more_sets_than_a_card_keeps_are_put_there_again() {
    if !card() {
        return;
    }
    let config = &shapes()[2];
    let (cpu, gpu) = (
        model(config).sampler(Options::default()).unwrap(),
        model(config).sampler_on(Device::Cuda(0), Options::default()).unwrap(),
    );
    // Some 27,000 words each, where there is room for a million: a few at once, and then more at once than fit.
    let sets: Vec<ActionSet> = (0..130).map(|i| action_set(1001, 60, i % 3 == 0, i)).collect();
    assert!(sets.iter().map(|s| s.words().len()).sum::<usize>() > 3 << 19, "all of them fit");
    let make = |i: usize| SampleRequest {
        prompt: vec![5 + i as u32, 9],
        params: SamplingParams { max_tokens: 12, seed: i as u64, ..Default::default() },
        allowed: Some(sets[i % sets.len()].clone()),
        ..Default::default()
    };
    let mut same = 0;
    for at_once in [10, 130] {
        let all: Vec<usize> = (0..260).collect();
        for some in all.chunks(at_once) {
            let futures: Vec<_> = some.iter().map(|i| gpu.sample(make(*i))).collect();
            for (i, future) in some.iter().zip(futures) {
                let (answer, request) = (block_on(future).unwrap(), make(*i));
                assert!(sets[i % sets.len()].masks(&answer.tokens).is_ok(), "answer {i} left its set");
                same += usize::from(block_on(cpu.sample(request)).unwrap().tokens == answer.tokens);
            }
        }
    }
    eprintln!("{same} of 520 answers are the CPU's");
    assert!(same > 200);
}

/// An adapter that has learnt a little, so that none of its matrices is 0.
fn adapter(config: &Config, lora: &Lora) -> NativeAdapter {
    let dir = tempfile::tempdir().unwrap();
    let mut t = model(config).with_new_adapter(lora, Seed::new(5)).unwrap().train(Options::default()).unwrap().0;
    for i in 0..4 {
        t.forward_backward(&batch(config.vocab_size as u32, i), &loss()).unwrap();
        t.optim_step(&OptimStep { learning_rate: 0.02, ..Default::default() }).unwrap();
    }
    t.save_model(dir.path(), NumberFormat::F32).unwrap();
    NativeAdapter::open(dir.path(), config).unwrap()
}

fn loras() -> [Lora; 3] {
    let some = vec![Projection::QProj, Projection::VProj, Projection::DownProj];
    [
        Lora::default(),
        Lora { rank: 8, alpha: 8.0, targets: some },
        Lora { rank: 24, alpha: 12.0, targets: vec![Projection::UpProj] },
    ]
}

#[test]
fn adapters_learn_as_on_the_cpu() {
    if !card() {
        return;
    }
    for (config, recompute) in shapes().into_iter().zip([false, true].into_iter().cycle()) {
        for lora in loras() {
            let options = Options { recompute, ..Default::default() };
            let model = || model(&config).with_adapter(adapter(&config, &lora)).unwrap();
            let (mut cpu, mut gpu) = (model().train(options).unwrap().0, model().train_on_card(0, options).unwrap().0);
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
    let start = || model(config).with_new_adapter(&Lora::default(), Seed::new(1)).unwrap();
    let batch = batch(config.vocab_size as u32, 4);
    let go = |t: &mut CudaTrainer| {
        let l = t.forward_backward(&batch, &loss()).unwrap().loss;
        t.optim_step(&OptimStep { learning_rate: 0.01, ..Default::default() }).unwrap();
        l.to_bits()
    };
    let (mut a, sampler) = start().train_on_card(0, Options::default()).unwrap();
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
    let (mut b, other) = start().train_on_card(0, Options::default()).unwrap();
    b.load(dir.path()).unwrap();
    assert_eq!((ask(&other, AdapterName::default().as_str()), ask(&other, "reference")), (learnt, before));
    for _ in 0..3 {
        assert_eq!(go(&mut a), go(&mut b));
    }
    // The CPU reads the same files and goes on from them.
    let mut cpu = start().train(Options::default()).unwrap().0;
    cpu.load(dir.path()).unwrap();
}

#[test]
fn several_adapters_answer_side_by_side_as_on_the_cpu() {
    if !card() {
        return;
    }
    let config = &shapes()[3];
    let (cpu, gpu) = (
        model(config).sampler(Options::default()).unwrap(),
        model(config).sampler_on(Device::Cuda(0), Options::default()).unwrap(),
    );
    let names = ["one", "two", "three"];
    for (name, lora) in names.iter().zip(loras()) {
        let adapter = adapter(config, &lora);
        for sampler in [&cpu, &gpu] {
            sampler.publish(&AdapterName::new(name), &adapter).unwrap();
        }
    }
    let odd = NativeAdapter::new(config, &Lora { rank: 12, ..Default::default() }, Seed::new(1)).unwrap();
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

#[test]
fn batch_invariant_answers_are_the_same_bits_in_any_company() {
    if !card() {
        return;
    }
    for config in shapes() {
        let start = |options: Options| model(&config).sampler_on(Device::Cuda(0), options).unwrap();
        let invariant = Options { batch_invariant: true, ..Default::default() };
        let together = start(invariant);
        // One at a time, prompts read in small pieces, nothing shared.
        let alone = start(Options { chunk_tokens: 48, no_sharing: true, ..invariant });
        assert!(together.caps().batch_invariant && !start(Options::default()).caps().batch_invariant);
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
