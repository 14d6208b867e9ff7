//! Fairness under load, measured in steps.

use super::*;

/// A sequence that shares no prefix with any other.
fn request(id: u32, prompt: usize, max_tokens: u32, weights: u32) -> Sequence {
    let prompt = [100 + id].into_iter().chain((1..prompt as u32).map(|i| i % 5)).collect();
    let params = SamplingParams { max_tokens, seed: u64::from(id), ..Default::default() };
    let r = SampleRequest { prompt, params, ..Default::default() };
    Sequence::sample(r, WeightsId::default(), weights, 1 << 20, ResponseHandle::new(false))
}

struct Load {
    scheduler: Scheduler,
    backend: TokenBackend,
    weights: u32,
    next: u32,
}

impl Load {
    fn new(limits: SchedulerLimits) -> Self {
        let mut scheduler = Scheduler::new(limits, true, None);
        let backend = TokenBackend { blocks: vec![[None; BLOCK_SIZE]; limits.num_blocks as usize] };
        let weights = scheduler.add_weights();
        Load { scheduler, backend, weights, next: 0 }
    }

    fn submit(&mut self, prompt: usize, max_tokens: u32) -> u32 {
        self.next += 1;
        let key = self.scheduler.add_sequence(request(self.next, prompt, max_tokens, self.weights)).ok().unwrap();
        self.scheduler.sequences.at(key).response.set_key(key);
        key
    }

    /// Executes one step and returns the keys of the sequences that finished.
    fn step(&mut self) -> Vec<u32> {
        let mut done = Vec::new();
        let each = |a: Sequence, e: Option<Error>| {
            assert!(e.is_none());
            done.push(a.response.key().unwrap());
        };
        self.scheduler.step(&mut self.backend, each).unwrap();
        done
    }

    fn num_generated(&self, key: u32) -> usize {
        let a = self.scheduler.sequences.at(key);
        a.tokens.len() - a.prompt_len
    }
}

#[test]
fn decoding_never_pauses_while_long_prompts_arrive() {
    let max_prefill_tokens = 64;
    let mut load = Load::new(SchedulerLimits { num_blocks: 20_000, max_prefill_tokens, max_running: 10_000 });
    let decoding: Vec<u32> = (0..10).map(|_| load.submit(4, 400)).collect();
    load.step();
    for step in 1..300 {
        load.submit(500, 5); // more than the prefill budget
        load.step();
        for w in &decoding {
            assert_eq!(load.num_generated(*w), step + 1, "one token per step, whatever arrives");
        }
        let num_decoding =
            load.scheduler.running.iter().filter(|k| num_uncomputed(load.scheduler.sequences.at(**k)) == 1).count();
        assert!(
            load.scheduler.step.tokens.len() <= max_prefill_tokens + num_decoding + decoding.len(),
            "steps stay short"
        );
    }
    assert!(load.scheduler.running.len() > 50, "many sequences are in prefill");
}

#[test]
fn a_late_short_request_overtakes_long_ones() {
    let mut load = Load::new(SchedulerLimits { num_blocks: 50_000, max_prefill_tokens: 64, max_running: 10_000 });
    let long: Vec<u32> = (0..100).map(|_| load.submit(6400, 5)).collect();
    for _ in 0..150 {
        assert!(load.step().is_empty());
    }
    let short = load.submit(100, 5);
    let steps = (1..).find(|_| load.step().contains(&short)).unwrap();
    // One block for each of 101 sequences takes 26 steps; the short one has seven blocks, then decodes.
    assert!(steps < 26 * 7 + 10, "{steps} steps");
    for key in long {
        assert!(num_uncomputed(load.scheduler.sequences.at(key)) > 5000, "the long ones are still in prefill");
    }
}

#[test]
fn a_long_prompt_finishes_while_short_ones_keep_arriving() {
    // Arriving prompt tokens per step: half of the prefill budget, almost all of it, twice as much.
    for (arriving, max_steps) in [(1, 200), (2, 1600), (4, 1600)] {
        let mut load = Load::new(SchedulerLimits { num_blocks: 5000, max_prefill_tokens: 64, max_running: 10_000 });
        let long = load.submit(3200, 5);
        let steps = (1..)
            .find(|_| {
                for _ in 0..arriving {
                    load.submit(30, 3);
                }
                load.step().contains(&long)
            })
            .unwrap();
        assert!(steps < max_steps, "{steps} steps, {arriving} arriving at each");
    }
}

/// Runs `clients` clients that each submit a new request as soon as the last one finishes, on a small KV cache. Returns for
/// each request its duration and the time that it and all requests in flight before it take one after another.
fn contended(seed: Seed, clients: usize, requests: usize, load: &mut Load) -> Vec<(u64, u64)> {
    let mut rng = seed.rng();
    let mut in_flight: Vec<(u32, u64, u64, u64)> = Vec::new(); // number, since, alone, bound
    let (mut times, mut left, mut now) = (Vec::new(), requests, 0);
    loop {
        while in_flight.len() < clients && left > 0 {
            left -= 1;
            let (prompt, max_tokens) = (rng.random_range(1..60_usize), rng.random_range(1..60_u32));
            let key = load.submit(prompt, max_tokens);
            let alone = u64::from(max_tokens) + 3;
            let bound = alone + in_flight.iter().map(|u| u.2).sum::<u64>();
            in_flight.push((key, now, alone, bound));
        }
        if in_flight.is_empty() {
            return times;
        }
        for key in load.step() {
            let at = in_flight.iter().position(|u| u.0 == key).unwrap();
            let (_, since, _, bound) = in_flight.remove(at);
            times.push((now - since, bound));
        }
        now += 1;
    }
}

#[test]
fn preempted_sequences_finish_in_bounded_time() {
    let mut preemptions = 0;
    for i in 0..50 {
        let mut load = Load::new(SchedulerLimits { num_blocks: 12, max_prefill_tokens: 256, max_running: 100 });
        let times = contended(Seed::new(5).at(i), 10, 100, &mut load);
        assert_eq!(times.len(), 100);
        for (took, bound) in times {
            assert!(took <= bound, "{took} steps, but {bound} one after another");
        }
        preemptions += load.scheduler.stats.preemptions;
    }
    assert!(preemptions > 1000, "{preemptions}");
}

#[test]
fn recomputed_tokens_are_not_counted_again() {
    let mut load = Load::new(SchedulerLimits { num_blocks: 12, max_prefill_tokens: 256, max_running: 100 });
    contended(Seed::new(6), 10, 200, &mut load);
    let stats = load.scheduler.stats;
    assert!(stats.preemptions > 20, "{stats:?}");
    assert_eq!(stats.prefix_hit_tokens, 0, "the sequences share no prefix: {stats:?}");
    let mut rng = Seed::new(6).rng();
    let prompts: u64 = (0..200).map(|_| (rng.random_range(1..60_u64), rng.random_range(1..60_u32)).0).sum();
    assert_eq!(stats.prompt_tokens, prompts);
    // Samples of one prompt that are preempted count its tokens once each.
    let w = load.scheduler.add_weights();
    for seed in 0..20 {
        let params = SamplingParams { max_tokens: 90, seed, ..Default::default() };
        let r = SampleRequest { prompt: (0..40).collect(), params, ..Default::default() };
        load.scheduler
            .add_sequence(Sequence::sample(r, WeightsId::default(), w, 1000, ResponseHandle::new(false)))
            .ok()
            .unwrap();
    }
    while !load.scheduler.idle() {
        load.scheduler.step(&mut load.backend, |_, _| ()).unwrap();
    }
    let after = load.scheduler.stats;
    assert!(after.preemptions > stats.preemptions);
    assert_eq!(after.prompt_tokens - prompts, 20 * 40);
    assert!(after.prefix_hit_tokens <= 19 * 39, "{after:?}");
}
