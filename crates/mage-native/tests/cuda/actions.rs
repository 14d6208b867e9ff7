//! Do answers stay within what is possible?

use super::answers::requests;
use super::*;

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
        model(config).sampler(EngineOptions::default()).unwrap(),
        model(config).sampler_on(Device::Cuda(0), EngineOptions::default()).unwrap(),
    );
    // Some 27,000 words each, where there is room for a million: a few at once, and then more at once than fit.
    let sets: Vec<ActionSet> = (0..130).map(|i| action_set(1001, 60, i % 3 == 0, i)).collect();
    assert!(sets.iter().map(|s| s.trie_data().len()).sum::<usize>() > 3 << 19, "all of them fit");
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
