//! Random schedules on a backend whose blocks store tokens instead of keys and values: a sequence must read its own prefix,
//! and its results must not depend on other sequences.

use super::super::response::ResponseHandle;
use super::super::sequence::LogitQuery;
use super::*;
use mage_engine::{ActionCursor, ActionSet, SampleRequest, SamplingParams, ScoreRequest, WeightsId};
use mage_rng::{Rng, Seed};
use rand::RngExt;
use std::collections::HashMap;

#[path = "fairness_tests.rs"]
mod fairness;

/// A backend whose blocks hold (weights, token) per slot.
struct TokenBackend {
    blocks: Vec<[Option<(u32, u32)>; BLOCK_SIZE]>,
}

fn digest(weights: u32, tokens: &[u32]) -> u64 {
    tokens.iter().fold(Seed::new(u64::from(weights)), |s, t| s.at(u64::from(*t))).value()
}

/// The result that every backend must return after these tokens.
fn expected_result(weights: u32, tokens: &[u32], query: &LogitQuery<'_>) -> LogitResult {
    let d = digest(weights, tokens);
    let token = match query {
        LogitQuery::Sample { params, index, .. } => (Seed::new(d ^ params.seed).at(*index as u64).value() % 5) as u32,
        LogitQuery::Score { token, .. } => *token,
    };
    LogitResult { token, logprob: -((d % 1000) as f32), aux: (d % 77) as f32, ..Default::default() }
}

impl StepExecutor for TokenBackend {
    fn execute(&mut self, step: &ScheduledStep, sequences: &SequenceTable, results: &mut [LogitResult]) -> Result<()> {
        for &(from, to) in &step.block_copies {
            self.blocks[to as usize] = self.blocks[from as usize];
        }
        let mut written = std::collections::HashSet::new();
        for &ScheduledSlice { weights, slice, .. } in &step.slices {
            let blocks = &step.block_tables[slice.block_table_offset..];
            for i in 0..slice.num_tokens {
                let p = slice.start_position + i;
                let block = blocks[p / BLOCK_SIZE] as usize;
                self.blocks[block][p % BLOCK_SIZE] = Some((weights, step.tokens[slice.token_offset + i]));
                if i == 0 || p % BLOCK_SIZE == 0 {
                    assert!(written.insert(block), "two sequences write block {block}");
                }
            }
        }
        for &ScheduledSlice { sequence, weights: own, logit_offset, slice } in &step.slices {
            let blocks = &step.block_tables[slice.block_table_offset..];
            for p in &blocks[..slice.start_position / BLOCK_SIZE] {
                assert!(!written.contains(&(*p as usize)), "block {p} is read while it is written");
            }
            let end = slice.start_position + slice.num_tokens;
            let seen: Vec<u32> = (0..end)
                .map(|p| {
                    let (weights, token) =
                        self.blocks[blocks[p / BLOCK_SIZE] as usize][p % BLOCK_SIZE].expect("never written");
                    assert_eq!(weights, own, "a block of other weights");
                    token
                })
                .collect();
            let a = sequences.at(sequence);
            assert_eq!(seen, a.tokens[..end], "the blocks hold another prefix");
            for i in 0..slice.num_logits {
                let position = end - slice.num_logits + i;
                results[logit_offset + i] = expected_result(own, &seen[..=position], &a.logit_query(position));
            }
        }
        Ok(())
    }
}

fn prompt(rng: &mut Rng) -> Vec<u32> {
    // Few prefixes, so that many blocks are shared, and few tokens, so that many blocks match partly.
    let root = rng.random_range(0..3_u32);
    let shared = rng.random_range(0..60_usize);
    let own = rng.random_range(1..20_usize);
    let start = (0..shared as u32).map(|i| (i * 7 + root) % 5);
    start.chain((0..own).map(|_| rng.random_range(0..5))).collect()
}

enum Expected {
    Sample(Vec<u32>, SamplingParams, u32),
    Score(Vec<u32>, usize, u32),
}

fn check(expected: &Expected, response: SamplerResponse) {
    match (expected, response) {
        (Expected::Sample(prompt, params, weights), SamplerResponse::Sample(s)) => {
            let mut tokens = prompt.clone();
            for index in 0..params.max_tokens as usize {
                let query = LogitQuery::Sample { params, cursor: None, index };
                let a = expected_result(*weights, &tokens, &query);
                assert_eq!((s.tokens[index], s.logprobs[index]), (a.token, a.logprob));
                tokens.push(a.token);
                if params.stop_ids.contains(&a.token) {
                    break;
                }
            }
            assert_eq!(tokens[prompt.len()..], s.tokens);
        }
        (Expected::Score(tokens, from, weights), SamplerResponse::Scores(s)) => {
            let want: Vec<f32> = (*from..tokens.len())
                .map(|t| {
                    expected_result(*weights, &tokens[..t], &LogitQuery::Score { token: tokens[t], allowed: None })
                        .logprob
                })
                .collect();
            assert_eq!(s.logprobs, want);
        }
        _ => panic!("the response kind does not match the request kind"),
    }
}

fn random_schedule(seed: Seed) -> SamplerStats {
    let mut rng = seed.rng();
    let limits = SchedulerLimits {
        num_blocks: rng.random_range(7..40),
        max_prefill_tokens: rng.random_range(1..100),
        max_running: rng.random_range(1..20),
    };
    let prefix_caching = rng.random_range(0..8) > 0;
    let mut scheduler = Scheduler::new(limits, prefix_caching, None);
    let mut backend = TokenBackend { blocks: vec![[None; BLOCK_SIZE]; limits.num_blocks as usize] };
    let mut weights = vec![scheduler.add_weights(), scheduler.add_weights()];
    let mut users: HashMap<u32, usize> = HashMap::new();
    let mut expected: HashMap<u32, Expected> = HashMap::new();
    let mut remaining = rng.random_range(5..60_u32);
    while remaining > 0 || !scheduler.idle() {
        for _ in 0..rng.random_range(0..4_u32).min(remaining) {
            remaining -= 1;
            let tokens = prompt(&mut rng);
            let w = weights[rng.random_range(0..weights.len())];
            let (sequence, want) = if rng.random_range(0..4) == 0 && tokens.len() > 1 {
                let from = rng.random_range(1..tokens.len());
                let r = ScoreRequest { tokens: tokens.clone(), from, ..Default::default() };
                (
                    Sequence::score(r, WeightsId::default(), w, ResponseHandle::new(false)),
                    Expected::Score(tokens, from, w),
                )
            } else {
                let params = SamplingParams {
                    max_tokens: rng.random_range(1..30),
                    seed: rng.random(),
                    stop_ids: if rng.random_range(0..2) == 0 { vec![3] } else { vec![] },
                    ..Default::default()
                };
                let r = SampleRequest { prompt: tokens.clone(), params: params.clone(), ..Default::default() };
                let sequence = Sequence::sample(r, WeightsId::default(), w, 1 << 20, ResponseHandle::new(false));
                (sequence, Expected::Sample(tokens, params, w))
            };
            let blocks = sequence.max_blocks();
            match scheduler.add_sequence(sequence) {
                Ok(key) => {
                    expected.insert(key, want);
                    scheduler.sequences.at(key).response.set_key(key);
                    *users.entry(w).or_default() += 1;
                }
                Err(e) => {
                    assert!(blocks > limits.num_blocks as usize, "{e}");
                    assert!(e.to_string().contains("cache_mib"));
                }
            }
        }
        if rng.random_range(0..10) == 0
            && let Some(key) = expected.keys().copied().min()
        {
            let w = scheduler.sequences.at(key).weights;
            scheduler.cancel(key);
            expected.remove(&key);
            *users.entry(w).or_default() -= 1;
        }
        if rng.random_range(0..20) == 0 {
            // New weights reuse the slot of unused ones.
            if let Some(i) = (0..weights.len()).find(|i| users.get(&weights[*i]).is_none_or(|u| *u == 0)) {
                scheduler.drop_weights(weights.swap_remove(i));
                for block in &mut backend.blocks {
                    // Invalidate what was computed with them.
                    for slot in block.iter_mut().flatten() {
                        slot.0 |= if weights.contains(&slot.0) { 0 } else { 1 << 20 };
                    }
                }
                weights.push(scheduler.add_weights());
            }
        }
        scheduler
            .step(&mut backend, |sequence, error| {
                assert!(error.is_none());
                *users.entry(sequence.weights).or_default() -= 1;
                let want =
                    expected.remove(&sequence.response.key().unwrap()).expect("finished twice, or never submitted");
                check(&want, sequence.into_response().1);
            })
            .unwrap();
    }
    assert!(expected.is_empty());
    assert!(scheduler.stats.prefix_hit_tokens <= scheduler.stats.prompt_tokens, "{:?}", scheduler.stats);
    assert_eq!(scheduler.sequences.load(), (0, 0));
    // Every block is free or in the tree, and all blocks in the tree can be evicted.
    assert_eq!(scheduler.tree.num_evictable(), scheduler.tree.num_blocks());
    assert_eq!(scheduler.pool.num_free() + scheduler.tree.num_blocks(), limits.num_blocks as usize);
    for w in weights {
        scheduler.drop_weights(w);
    }
    assert_eq!((scheduler.tree.num_blocks(), scheduler.pool.num_free()), (0, limits.num_blocks as usize));
    scheduler.stats
}

#[test]
fn random_schedules_read_their_own_prefixes() {
    let count = if cfg!(feature = "long") { 20_000 } else { 600 };
    let mut total = SamplerStats::default();
    for i in 0..count {
        let stats = random_schedule(Seed::new(11).at(i));
        total.prefix_hit_tokens += stats.prefix_hit_tokens;
        total.evicted_blocks += stats.evicted_blocks;
        total.preemptions += stats.preemptions;
        total.cancelled += stats.cancelled;
    }
    // The schedules exercise every mechanism.
    assert!(
        total.prefix_hit_tokens > 0 && total.evicted_blocks > 0 && total.preemptions > 0 && total.cancelled > 0,
        "{total:?}"
    );
}

#[test]
fn samples_of_one_prompt_prefill_it_once() {
    let limits = SchedulerLimits { num_blocks: 1000, max_prefill_tokens: 10_000, max_running: 1000 };
    let mut scheduler = Scheduler::new(limits, true, None);
    let mut backend = TokenBackend { blocks: vec![[None; BLOCK_SIZE]; 1000] };
    let w = scheduler.add_weights();
    for seed in 0..50 {
        let params = SamplingParams { max_tokens: 2, seed, ..Default::default() };
        let r = SampleRequest { prompt: (0..40).collect(), params, ..Default::default() };
        scheduler
            .add_sequence(Sequence::sample(r, WeightsId::default(), w, 100, ResponseHandle::new(false)))
            .ok()
            .unwrap();
    }
    let mut done = 0;
    while !scheduler.idle() {
        scheduler.step(&mut backend, |_, _| done += 1).unwrap();
    }
    assert_eq!(done, 50);
    // The first prefills 40 tokens, the others their last one; each then decodes one sampled token.
    assert_eq!(scheduler.stats.computed_tokens, 40 + 49 + 50);
    assert_eq!(scheduler.stats.prefix_hit_tokens, 49 * 39);
}

#[test]
fn a_long_prompt_does_not_delay_a_short_one() {
    let limits = SchedulerLimits { num_blocks: 1000, max_prefill_tokens: 64, max_running: 1000 };
    let mut scheduler = Scheduler::new(limits, true, None);
    let mut backend = TokenBackend { blocks: vec![[None; BLOCK_SIZE]; 1000] };
    let w = scheduler.add_weights();
    let submit = |scheduler: &mut Scheduler, prompt: Vec<u32>| {
        let params = SamplingParams { max_tokens: 3, ..Default::default() };
        let r = SampleRequest { prompt, params, ..Default::default() };
        scheduler
            .add_sequence(Sequence::sample(r, WeightsId::default(), w, 1 << 20, ResponseHandle::new(false)))
            .ok()
            .unwrap()
    };
    let long = submit(&mut scheduler, vec![1; 6400]);
    scheduler.step(&mut backend, |_, _| ()).unwrap();
    submit(&mut scheduler, vec![2; 30]);
    let mut finished = Vec::new();
    for _ in 0..5 {
        scheduler.step(&mut backend, |a, _| finished.push(a.prompt_len)).unwrap();
    }
    assert_eq!(finished, [30], "the short one finishes long before the long one is prefilled");
    assert!(scheduler.sequences.get(long).is_some());
}

/// A sequence constrained to two actions that end with token 9, after thinking that ends with token 7.
fn constrained() -> Sequence {
    let set = ActionSet::new([[1, 2], [1, 3]], Some(9), Some(7)).unwrap();
    let request = SampleRequest { prompt: vec![0], allowed: Some(set), ..Default::default() };
    Sequence::sample(request, WeightsId::default(), 0, 1 << 20, ResponseHandle::new(false))
}

fn trie_node(a: &Sequence) -> Option<u32> {
    let SequenceTask::Sample { cursor, .. } = &a.task else { return None };
    cursor.as_ref().map(ActionCursor::node)
}

#[test]
fn a_trie_node_from_the_backend_equals_the_one_looked_up() {
    let (mut looked_up, mut given_node) = (constrained(), constrained());
    for (i, token) in [5, 2, 7, 1, 3, 9].into_iter().enumerate() {
        let result = LogitResult { token, ..Default::default() };
        let end = apply_results(&mut looked_up, &[result], None);
        let node = trie_node(&looked_up);
        assert!(node.is_some());
        assert_eq!(end.is_some(), i == 5, "complete with its last token");
        let result = LogitResult { next_node_plus_one: node.map_or(0, |n| n + 1), ..result };
        let end = apply_results(&mut given_node, &[result], None);
        assert_eq!((end.is_some(), trie_node(&given_node)), (i == 5, node));
    }
    assert_eq!(looked_up.tokens, given_node.tokens);
}

#[test]
fn a_token_outside_the_action_set_fails_the_request() {
    for (token, next_node_plus_one) in [(3, 0), (1, 1001)] {
        let mut a = constrained();
        assert!(apply_results(&mut a, &[LogitResult { token: 7, ..Default::default() }], None).is_none());
        let end = apply_results(&mut a, &[LogitResult { token, next_node_plus_one, ..Default::default() }], None);
        let error = end.flatten().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(&format!("token {token} was sampled")), "{error}");
    }
}
