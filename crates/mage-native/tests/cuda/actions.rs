//! Tests of constrained sampling on a GPU.

use super::sampling::requests;
use super::*;

/// Responses of two tokens, `branching` × `branching` of them, ended by token 0; optionally after thinking, which token
/// 1 ends.
fn action_set(vocabulary: u32, branching: usize, thinking: bool, seed: u64) -> ActionSet {
    let mut rng = Seed::new(seed).rng();
    let mut tokens = || (0..branching).map(|_| rng.random_range(1..vocabulary)).collect::<Vec<_>>();
    let first_tokens = tokens();
    let sequences = first_tokens.iter().flat_map(|first| tokens().into_iter().map(|second| [*first, second]));
    ActionSet::new(sequences.collect::<Vec<_>>(), Some(0), thinking.then_some(1)).unwrap()
}

pub(crate) fn constrained_responses_stay_within_their_sets_and_agree_with_the_cpu() {
    let mut ended_thinking = 0;
    for (config, batch_invariant) in shapes().into_iter().zip([false, true].into_iter().cycle()) {
        let vocabulary = config.vocab_size as u32;
        let cpu = model(&config).sampler(EngineOptions::default()).unwrap();
        let options = EngineOptions { batch_invariant, ..Default::default() };
        let gpu = model(&config).sampler_on(Device::Cuda(0), options).unwrap();
        let prompts = requests(vocabulary);
        let filters = [
            SamplingParams::default(),
            SamplingParams { temperature: 0.0, ..Default::default() },
            SamplingParams { top_k: 3, temperature: 1.5, ..Default::default() },
            SamplingParams { top_p: 0.7, min_p: 0.05, ..Default::default() },
        ];
        // Some requests share a set, some have none. If thinking does not end in time, the response is truncated in it.
        let sets: Vec<ActionSet> = (0..16).map(|i| action_set(vocabulary, 1 + i, i % 2 == 0, i as u64)).collect();
        let make = |i: usize| SampleRequest {
            prompt: prompts[i % prompts.len()].tokens.clone(),
            params: SamplingParams { max_tokens: 60, seed: i as u64, ..filters[i % 4].clone() },
            allowed: sets.get(i % 20).cloned(),
            ..Default::default()
        };
        let futures: Vec<_> = (0..120).map(|i| gpu.sample(make(i))).collect();
        let mut equal_responses = 0;
        for (i, future) in futures.into_iter().enumerate() {
            let (response, request) = (block_on(future).unwrap(), make(i));
            let Some(set) = &request.allowed else { continue };
            let allowed = set.masks(&response.tokens).unwrap();
            let thinking_tokens = allowed.iter().take_while(|a| a.is_none()).count();
            assert!(
                response.tokens.len() == 60 || response.tokens.len() == thinking_tokens + 3,
                "response {i} is truncated"
            );
            ended_thinking += usize::from(thinking_tokens > 0 && thinking_tokens < 60);
            let (tokens, from) = ([&request.prompt[..], &response.tokens].concat(), request.prompt.len());
            let scores = block_on(cpu.score(ScoreRequest { tokens, from, allowed, ..Default::default() })).unwrap();
            assert_near(&scores.logprobs, &response.logprobs);
            equal_responses += usize::from(block_on(cpu.sample(request)).unwrap().tokens == response.tokens);
        }
        eprintln!("head_dim {}: {equal_responses} of 96 responses equal the CPU's", config.head_dim);
        // Half of the responses have no thinking and two tokens.
        assert!(equal_responses > 24);
    }
    assert!(ended_thinking > 20, "only {ended_thinking} responses ended their thinking");
}

pub(crate) fn action_sets_beyond_the_gpu_cache_are_uploaded_again() {
    let config = &shapes()[2];
    let (cpu, gpu) = (
        model(config).sampler(EngineOptions::default()).unwrap(),
        model(config).sampler_on(Device::Cuda(0), EngineOptions::default()).unwrap(),
    );
    // About 27,000 words each, and the cache holds a million: first a few at a time, then more at a time than fit.
    let sets: Vec<ActionSet> = (0..130).map(|i| action_set(1001, 60, i % 3 == 0, i)).collect();
    assert!(sets.iter().map(|s| s.trie_data().len()).sum::<usize>() > 3 << 19, "all sets fit into the cache");
    let make = |i: usize| SampleRequest {
        prompt: vec![5 + i as u32, 9],
        params: SamplingParams { max_tokens: 12, seed: i as u64, ..Default::default() },
        allowed: Some(sets[i % sets.len()].clone()),
        ..Default::default()
    };
    let mut equal_responses = 0;
    for at_once in [10, 130] {
        let indices: Vec<usize> = (0..260).collect();
        for chunk in indices.chunks(at_once) {
            let futures: Vec<_> = chunk.iter().map(|i| gpu.sample(make(*i))).collect();
            for (i, future) in chunk.iter().zip(futures) {
                let (response, request) = (block_on(future).unwrap(), make(*i));
                assert!(sets[i % sets.len()].masks(&response.tokens).is_ok(), "response {i} is outside its set");
                equal_responses += usize::from(block_on(cpu.sample(request)).unwrap().tokens == response.tokens);
            }
        }
    }
    eprintln!("{equal_responses} of 520 responses equal the CPU's");
    assert!(equal_responses > 200);
}
