//! Under load, is everybody served? Steps are counted, not seconds.

use super::*;

/// Requests that have nothing in common, so that each costs what it would cost alone.
fn request(number: u32, prompt: usize, answer: u32, weights: u32) -> Sequence {
    let prompt = [100 + number].into_iter().chain((1..prompt as u32).map(|i| i % 5)).collect();
    let params = SamplingParams { max_tokens: answer, seed: u64::from(number), ..Default::default() };
    let r = SampleRequest { prompt, params, ..Default::default() };
    Sequence::sample(r, WeightsId::default(), weights, 1 << 20, ResponseHandle::new(false))
}

struct Load {
    scheduler: Scheduler,
    device: TokenMemory,
    weights: u32,
    next: u32,
}

impl Load {
    fn new(limits: Limits) -> Self {
        let mut scheduler = Scheduler::new(limits, true, None);
        let device = TokenMemory { blocks: vec![[None; BLOCK_SIZE]; limits.num_blocks as usize] };
        let weights = scheduler.add_weights();
        Load { scheduler, device, weights, next: 0 }
    }

    fn submit(&mut self, prompt: usize, answer: u32) -> u32 {
        self.next += 1;
        let key = self.scheduler.add_sequence(request(self.next, prompt, answer, self.weights)).ok().unwrap();
        self.scheduler.sequences.at(key).response.set_key(key);
        key
    }

    /// One step; gives the numbers of those that finished in it.
    fn step(&mut self) -> Vec<u32> {
        let mut done = Vec::new();
        let each = |a: Sequence, e: Option<Error>| {
            assert!(e.is_none());
            done.push(a.response.key().unwrap());
        };
        self.scheduler.step(&mut self.device, each).unwrap();
        done
    }

    fn written(&self, key: u32) -> usize {
        let a = self.scheduler.sequences.at(key);
        a.tokens.len() - a.prompt_len
    }
}

#[test]
fn writing_never_pauses_while_long_prompts_arrive() {
    let reading = 64;
    let mut load = Load::new(Limits { num_blocks: 20_000, max_prefill_tokens: reading, max_running: 10_000 });
    let writers: Vec<u32> = (0..10).map(|_| load.submit(4, 400)).collect();
    load.step();
    for step in 1..300 {
        load.submit(500, 5); // more than can be read
        load.step();
        for w in &writers {
            assert_eq!(load.written(*w), step + 1, "a token each step, whatever arrives");
        }
        let writing =
            load.scheduler.running.iter().filter(|k| num_uncomputed(load.scheduler.sequences.at(**k)) == 1).count();
        assert!(load.scheduler.step.tokens.len() <= reading + writing + writers.len(), "steps stay short");
    }
    assert!(load.scheduler.running.len() > 50, "many are being read meanwhile");
}

#[test]
fn a_late_short_request_passes_long_ones() {
    let mut load = Load::new(Limits { num_blocks: 50_000, max_prefill_tokens: 64, max_running: 10_000 });
    let long: Vec<u32> = (0..100).map(|_| load.submit(6400, 5)).collect();
    for _ in 0..150 {
        assert!(load.step().is_empty());
    }
    let short = load.submit(100, 5);
    let steps = (1..).find(|_| load.step().contains(&short)).unwrap();
    // A block for each of 101 takes 26 steps; the short one has seven, and some answer to write.
    assert!(steps < 26 * 7 + 10, "{steps} steps");
    for key in long {
        assert!(num_uncomputed(load.scheduler.sequences.at(key)) > 5000, "the long ones are far from read");
    }
}

#[test]
fn a_long_prompt_ends_though_short_ones_keep_coming() {
    // Half of what can be read arrives each step, then almost all, then twice as much.
    for (arriving, most_steps) in [(1, 200), (2, 1600), (4, 1600)] {
        let mut load = Load::new(Limits { num_blocks: 5000, max_prefill_tokens: 64, max_running: 10_000 });
        let long = load.submit(3200, 5);
        let steps = (1..)
            .find(|_| {
                for _ in 0..arriving {
                    load.submit(30, 3);
                }
                load.step().contains(&long)
            })
            .unwrap();
        assert!(steps < most_steps, "{steps} steps, {arriving} arriving at each");
    }
}

/// A small cache and as many askers as there are `clients`, each with another request as soon as one is answered: gives how
/// long each request took, and how long all before it and itself would take one after another.
fn contended(seed: Seed, clients: usize, requests: usize, load: &mut Load) -> Vec<(u64, u64)> {
    let mut rng = seed.rng();
    let mut under_way: Vec<(u32, u64, u64, u64)> = Vec::new(); // number, since, alone, bound
    let (mut times, mut left, mut now) = (Vec::new(), requests, 0);
    loop {
        while under_way.len() < clients && left > 0 {
            left -= 1;
            let (prompt, answer) = (rng.random_range(1..60_usize), rng.random_range(1..60_u32));
            let key = load.submit(prompt, answer);
            let alone = u64::from(answer) + 3;
            let bound = alone + under_way.iter().map(|u| u.2).sum::<u64>();
            under_way.push((key, now, alone, bound));
        }
        if under_way.is_empty() {
            return times;
        }
        for key in load.step() {
            let at = under_way.iter().position(|u| u.0 == key).unwrap();
            let (_, since, _, bound) = under_way.remove(at);
            times.push((now - since, bound));
        }
        now += 1;
    }
}

#[test]
fn nobody_is_set_back_for_good() {
    let mut set_back = 0;
    for i in 0..50 {
        let mut load = Load::new(Limits { num_blocks: 12, max_prefill_tokens: 256, max_running: 100 });
        let times = contended(Seed::new(5).at(i), 10, 100, &mut load);
        assert_eq!(times.len(), 100);
        for (took, bound) in times {
            assert!(took <= bound, "{took} steps, and {bound} if all before it had gone one by one");
        }
        set_back += load.scheduler.stats.preemptions;
    }
    assert!(set_back > 1000, "{set_back}");
}

#[test]
fn what_is_read_again_is_not_counted_again() {
    let mut load = Load::new(Limits { num_blocks: 12, max_prefill_tokens: 256, max_running: 100 });
    contended(Seed::new(6), 10, 200, &mut load);
    let stats = load.scheduler.stats;
    assert!(stats.preemptions > 20, "{stats:?}");
    assert_eq!(stats.prefix_hit_tokens, 0, "they have nothing in common: {stats:?}");
    let mut rng = Seed::new(6).rng();
    let prompts: u64 = (0..200).map(|_| (rng.random_range(1..60_u64), rng.random_range(1..60_u32)).0).sum();
    assert_eq!(stats.prompt_tokens, prompts);
    // A group that is set back has its prompt in common, once each.
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
        load.scheduler.step(&mut load.device, |_, _| ()).unwrap();
    }
    let after = load.scheduler.stats;
    assert!(after.preemptions > stats.preemptions);
    assert_eq!(after.prompt_tokens - prompts, 20 * 40);
    assert!(after.prefix_hit_tokens <= 19 * 39, "{after:?}");
}
