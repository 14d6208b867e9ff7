//! A pool of servers that fall over, come back empty, and tell lies.

mod common;

use common::{
    proxy::{Fault, Proxy},
    vllm_double::{Vllm, rule},
};
use mage_engine::{AdapterName, SampleRequest, Sampler, SamplingParams, ScoreRequest, WeightVersion, WeightsId};
use mage_remote::{Fingerprint, Notices, PoolSettings, VllmPool, Waiting};
use std::{
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

type Said = Arc<Mutex<Vec<String>>>;

fn pool(servers: &[&Vllm]) -> (Arc<VllmPool>, Said) {
    pool_with(servers, Duration::from_secs(5))
}

/// With other patience for one attempt.
fn pool_with(servers: &[&Vllm], attempt: Duration) -> (Arc<VllmPool>, Said) {
    pool_waiting(servers, Waiting { attempt, away: Duration::from_secs(20), operation: Duration::from_secs(30) })
}

fn pool_waiting(servers: &[&Vllm], waiting: Waiting) -> (Arc<VllmPool>, Said) {
    pool_at(servers.iter().map(|s| s.url()).collect(), waiting, 64)
}

/// Little patience for an attempt, and enough for all else.
fn hasty() -> Waiting {
    let (attempt, patience) = (Duration::from_secs(1), Duration::from_secs(30));
    Waiting { attempt, away: patience, operation: patience }
}

fn pool_at(servers: Vec<String>, waiting: Waiting, in_flight: usize) -> (Arc<VllmPool>, Said) {
    let said = Said::default();
    let hear = Arc::clone(&said);
    let settings = PoolSettings {
        servers,
        model: "tiny".to_owned(),
        key: None,
        in_flight,
        vocabulary: 16,
        max_context: 256,
        tolerance: 1e-4,
        keep: 2,
        waiting,
        notices: Notices::to(move |line| hear.lock().unwrap().push(line.to_owned())),
    };
    (Arc::new(VllmPool::new(settings).unwrap()), said)
}

/// What the doubles find of the fixed sequence.
fn fingerprint() -> Fingerprint {
    Fingerprint(Fingerprint::tokens(16).iter().enumerate().skip(1).map(|(i, t)| rule(i, *t)).collect())
}

fn policy(version: u64) -> WeightsId {
    WeightsId { name: AdapterName::default(), version: WeightVersion(version) }
}

fn request(seed: u64, weights: &str) -> SampleRequest {
    let params = SamplingParams { max_tokens: 1, seed: seed << 33, ..Default::default() };
    SampleRequest { weights: weights.into(), prompt: vec![1, 2, 3], params, ..Default::default() }
}

/// What a server calls the adapters it has, without what marks the run.
fn names(server: &Vllm) -> Vec<String> {
    let adapters = server.seen.adapters.lock().unwrap();
    adapters.keys().map(|name| name.split_once('.').expect("a mark").0.to_owned()).collect()
}

/// Looks until it is so; a test that waits in vain ends here.
async fn wait_until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it never came to that");
}

async fn ask_many(pool: &Arc<VllmPool>, n: u64) -> Vec<u32> {
    let all: Vec<_> = (0..n)
        .map(|i| {
            let pool = Arc::clone(pool);
            tokio::spawn(async move { pool.sample(request(i, "policy")).await.unwrap().tokens[0] })
        })
        .collect();
    let mut out = Vec::new();
    for one in all {
        out.push(one.await.unwrap());
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_share_the_work_and_the_least_busy_gets_more() {
    let (quick, slow) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::from_millis(200)).await);
    let (pool, _) = pool(&[&quick, &slow]);
    let workers: Vec<_> = (0..4)
        .map(|w| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move {
                for i in 0..50 {
                    let said = pool.sample(request(50 * w + i, "base")).await.unwrap();
                    assert_eq!(u64::from(said.tokens[0]), (50 * w + i) % 16);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let slowly = slow.seen.requests.load(Ordering::SeqCst);
    // Taking turns would give it a hundred.
    assert!((1..60).contains(&slowly), "{slowly}");
    assert!(pool.servers().iter().all(|s| s.load == 0 && s.up));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_waited_for_and_not_asked_for_again() {
    let slow = Vllm::start(Duration::from_millis(600)).await;
    let (pool, _) = pool_with(&[&slow], Duration::from_millis(200));
    assert_eq!(pool.sample(request(3, "base")).await.unwrap().tokens, [3]);
    assert_eq!(slow.seen.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_names_and_old_ones_stay_for_opponents() {
    let server = Vllm::start(Duration::ZERO).await;
    let (pool, _) = pool(&[&server]);
    for version in 0..4 {
        pool.push_adapter(&policy(version), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    }
    assert_eq!(names(&server), ["policy@2", "policy@3"], "as many as are kept");
    assert_eq!(pool.sample(request(0, "policy")).await.unwrap().weights, policy(3));
    assert_eq!(pool.sample(request(0, "policy@2")).await.unwrap().weights, policy(2));
    let e = pool.sample(request(0, "policy@1")).await.unwrap_err().to_string();
    assert!(e.contains("there is base@0, policy@2, policy@3"), "{e}");
    // Going on from a checkpoint: the same version again, under a name that no cache knows.
    let before = server.seen.adapters.lock().unwrap().clone();
    pool.push_adapter(&policy(3), Path::new("/elsewhere"), &fingerprint()).await.unwrap();
    let there = server.seen.adapters.lock().unwrap().clone();
    let new: Vec<_> = there.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
    assert!(new.len() == 1 && new[0].0.starts_with("policy@3.") && new[0].1 == "/elsewhere", "{there:?}");
    assert_eq!(names(&server), ["policy@2", "policy@3"], "the other is gone");
    // A pool of somebody else's has names of its own.
    let (other, _) = self::pool(&[&server]);
    other.push_adapter(&policy(3), Path::new("/theirs"), &fingerprint()).await.unwrap();
    assert_eq!(server.seen.adapters.lock().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lies_about_a_push_is_refused() {
    let (good, bad) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, _) = pool(&[&good, &bad]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    *bad.seen.stale.lock().unwrap() = 0.01;
    let e = pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap_err().to_string();
    assert!(e.contains(&bad.url()) && e.contains("it does not have policy@1") && e.contains("1.000e-2"), "{e}");
    assert_eq!(pool.sample(request(0, "policy")).await.unwrap().weights, policy(0), "nobody sees it");
    for server in [&good, &bad] {
        assert_eq!(names(server), ["policy@0"], "it is taken back everywhere");
    }
    // Whole models too: the reload says all is well.
    let e = pool.push_weights(Path::new("/model"), &fingerprint()).await.unwrap_err().to_string();
    assert!(e.contains(&bad.url()) && e.contains("the weights of /model"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_is_done_without_and_fed_when_it_is_back() {
    let (one, two) = (Vllm::start(Duration::from_millis(20)).await, Vllm::start(Duration::from_millis(20)).await);
    let (pool, said) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let (address, work) = (
        two.address,
        tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { ask_many(&pool, 400).await }
        }),
    );
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(two);
    assert_eq!(work.await.unwrap().len(), 400, "all were answered by the other");
    assert!(said.lock().unwrap().iter().any(|l| l.contains("does not answer")), "{:?}", said.lock().unwrap());
    // Now the other goes too, and the first comes back with nothing.
    let again = Vllm::start_at(address, Duration::ZERO).await;
    drop(one);
    assert_eq!(ask_many(&pool, 10).await.len(), 10);
    let said = said.lock().unwrap().clone();
    assert!(said.iter().any(|l| l.contains("is back, 1 adapters were given to it again")), "{said:?}");
    assert_eq!(again.seen.adapters.lock().unwrap().len(), 1, "it was fed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_goes_to_all_servers_at_once() {
    let servers =
        [Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await];
    // Each holds its answer to a load until all have been asked to.
    let together = Arc::new(tokio::sync::Barrier::new(servers.len()));
    for server in &servers {
        *server.seen.together.lock().unwrap() = Some(Arc::clone(&together));
    }
    let (pool, said) = pool(&servers.iter().collect::<Vec<_>>());
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert!(said.lock().unwrap().is_empty(), "{said:?}");
    pool.withdraw().await;
    assert!(servers.iter().all(|s| s.seen.adapters.lock().unwrap().is_empty()), "a run that ends leaves nothing");
    assert!(pool.sample(request(0, "policy")).await.is_err() && pool.sample(request(0, "base")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_back_works_again_beside_the_others() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, said) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let address = two.address;
    drop(two);
    ask_many(&pool, 20).await;
    assert_eq!(pool.servers().iter().filter(|s| s.up).count(), 1);
    let two = Vllm::start_at(address, Duration::ZERO).await;
    // The next push finds it, and gives it what it missed.
    pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert_eq!(pool.servers().iter().filter(|s| s.up).count(), 2, "{said:?}");
    assert_eq!(names(&two), ["policy@0", "policy@1"]);
    ask_many(&pool, 20).await;
    assert!(two.seen.requests.load(Ordering::SeqCst) > 2 * 23, "more than fingerprints");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_back_with_other_numbers_under_our_name_gets_no_requests() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, said) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let (address, adapters) = (two.address, two.seen.adapters.lock().unwrap().clone());
    drop(two);
    ask_many(&pool, 20).await;
    // It lists the name, as one whose network broke would, but not with these numbers.
    let two = Vllm::start_at(address, Duration::ZERO).await;
    *two.seen.adapters.lock().unwrap() = adapters;
    *two.seen.stale.lock().unwrap() = 0.01;
    pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert_eq!(names(&two), ["policy@0"], "it is left out");
    pool.push_adapter(&policy(2), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let lines = said.lock().unwrap().clone();
    let about: Vec<&String> = lines.iter().filter(|l| l.contains("gets no requests")).collect();
    assert!(about.len() == 1 && about[0].contains(&two.url()) && about[0].contains("policy@0"), "{lines:?}");
    // Where nobody else is left there is no going on.
    drop(one);
    let e = pool.sample(request(0, "policy")).await.unwrap_err().to_string();
    assert!(e.contains(&two.url()) && e.contains("it does not have policy@1"), "{e}");
    // With the right numbers it is what it was, and lacks one of the two that are kept.
    *two.seen.stale.lock().unwrap() = 0.0;
    assert_eq!(ask_many(&pool, 3).await.len(), 3);
    assert!(names(&two).contains(&"policy@2".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_server_holds_up_no_push() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    // Patience that outlasts the test: whoever is waited for ends it.
    let hour = Duration::from_secs(3600);
    let (pool, said) = pool_waiting(&[&one, &two], Waiting { attempt: hour, away: hour, operation: hour });
    let address = two.address;
    drop(two);
    let pushes = async {
        for version in 0..3 {
            pool.push_adapter(&policy(version), Path::new("/somewhere"), &fingerprint()).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), pushes).await.expect("nobody waits for the dead one");
    assert_eq!(names(&one), ["policy@1", "policy@2"]);
    let lines = said.lock().unwrap().clone();
    let dead = format!("http://{address}");
    assert!(lines.len() == 1 && lines[0].starts_with(&dead) && lines[0].contains("when it is back"), "{lines:?}");
    // With nobody there, somebody is waited for.
    drop(one);
    let push = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.push_adapter(&policy(3), Path::new("/somewhere"), &fingerprint()).await }
    });
    while !said.lock().unwrap().iter().any(|l| l.contains("waiting, up to 3600 s")) {
        assert!(!push.is_finished());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let two = Vllm::start_at(address, Duration::ZERO).await;
    push.await.unwrap().unwrap();
    assert_eq!(names(&two), ["policy@2", "policy@3"], "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_server_gets_nothing_new() {
    let (one, two) = (Vllm::start(Duration::from_millis(50)).await, Vllm::start(Duration::from_millis(50)).await);
    let (pool, _) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let work = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { ask_many(&pool, 40).await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    pool.drain(&two.url()).await.unwrap();
    let before = two.seen.requests.load(Ordering::SeqCst);
    assert_eq!((work.await.unwrap().len(), two.seen.now.load(Ordering::SeqCst)), (40, 0));
    ask_many(&pool, 10).await;
    assert_eq!(two.seen.requests.load(Ordering::SeqCst), before);
    pool.undrain(&two.url()).unwrap();
    ask_many(&pool, 60).await;
    // It is looked at when somebody needs it: while the first is drained.
    pool.drain(&one.url()).await.unwrap();
    ask_many(&pool, 10).await;
    assert!(two.seen.requests.load(Ordering::SeqCst) > before);
    assert!(pool.drain("http://127.0.0.1:1").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_server_can_do_is_refused_by_name() {
    let server = Vllm::start(Duration::ZERO).await;
    let (pool, _) = pool(&[&server]);
    let masked = mage_engine::ActionSet::new([[3]], None, None).unwrap();
    let e = pool.sample(SampleRequest { allowed: Some(masked), ..request(0, "base") }).await.unwrap_err();
    assert!(e.to_string().contains("mask_actions"), "{e}");
    let masked = ScoreRequest { weights: "base".into(), tokens: vec![1, 2], from: 1, allowed: vec![Some([2].into())] };
    assert!(pool.score(masked).await.is_err());
    assert_eq!(server.seen.requests.load(Ordering::SeqCst), 0);
}

const NOT_A_NUMBER: &str =
    r#"{"choices":[{"token_ids":[4],"logprobs":{"token_logprobs":[NaN]},"finish_reason":"length"}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_passes_during_a_push_is_no_reason_to_stop() {
    let mut faults = Vec::new();
    for path in ["/v1/completions", "/v1/load_lora_adapter"] {
        let statuses = [500, 502, 429, 408, 425].map(|status| Fault::reply(status, "not now"));
        faults.extend(statuses.into_iter().chain([Fault::Reset, Fault::Hang]).map(|fault| (path, fault)));
    }
    faults.push(("/v1/completions", Fault::reply(200, NOT_A_NUMBER)));
    faults.push(("/v1/completions", Fault::reply(200, "<html>")));
    // It loaded the adapter, and only the answer was lost.
    faults.push(("/v1/load_lora_adapter", Fault::HalfBody));
    let cases = faults.into_iter().map(|(path, fault)| {
        tokio::spawn(async move {
            let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
            let proxy = Proxy::start_before(two.address, path, [fault.clone()]).await;
            let (pool, said) = pool_at(vec![one.url(), proxy.url()], hasty(), 64);
            pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            assert!(pool.servers().iter().all(|s| s.up), "{path} {fault:?}: {said:?}");
            assert_eq!((names(&one), names(&two)), (vec!["policy@0".to_owned()], vec!["policy@0".to_owned()]));
            assert!(said.lock().unwrap().is_empty(), "{path} {fault:?}: {said:?}");
        })
    });
    for case in cases.collect::<Vec<_>>() {
        case.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_stays_during_a_push_puts_one_server_away_until_it_passes() {
    let cases = [
        ("/v1/completions", Fault::reply(500, "broken")),
        ("/v1/completions", Fault::reply(200, NOT_A_NUMBER)),
        ("/v1/load_lora_adapter", Fault::reply(429, "too many")),
        ("/v1/load_lora_adapter", Fault::Reset),
        ("/v1/load_lora_adapter", Fault::Hang),
    ]
    .map(|(path, fault)| {
        tokio::spawn(async move {
            let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
            let proxy = Proxy::start_before(two.address, path, vec![fault.clone(); 4]).await;
            let (pool, said) = pool_at(vec![one.url(), proxy.url()], hasty(), 64);
            pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            let up: Vec<bool> = pool.servers().iter().map(|s| s.up).collect();
            assert_eq!(up, [true, false], "{path} {fault:?}: {said:?}");
            assert_eq!(ask_many(&pool, 8).await, (0..8).collect::<Vec<u32>>());
            let lines = said.lock().unwrap().clone();
            assert!(lines.len() == 1 && lines[0].starts_with(&proxy.url()) && lines[0].contains("when it is back"));
            // It has passed: the server is given both.
            pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            wait_until(|| pool.servers().iter().all(|s| s.up)).await;
            for server in [&one, &two] {
                assert_eq!(names(server), ["policy@0", "policy@1"], "{path} {fault:?}: {said:?}");
            }
        })
    });
    for case in cases {
        case.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_will_never_take_is_refused_at_once() {
    let server = Vllm::start(Duration::ZERO).await;
    let proxy =
        Proxy::start_before(server.address, "/v1/load_lora_adapter", [Fault::reply(400, "rank too large")]).await;
    let (pool, _) = pool_at(vec![proxy.url()], hasty(), 64);
    let e = pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap_err().to_string();
    assert!(e.contains(&proxy.url()) && e.contains("rank too large"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_returned_server_that_hangs_while_it_is_fed_holds_up_nobody() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, said) = pool_waiting(&[&one, &two], hasty());
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let address = two.address;
    drop(two);
    ask_many(&pool, 20).await;
    let two = Vllm::start_at(address, Duration::ZERO).await;
    // Its loads wait for somebody who never comes.
    *two.seen.together.lock().unwrap() = Some(Arc::new(tokio::sync::Barrier::new(2)));
    let work = async {
        for version in 1..4 {
            pool.push_adapter(&policy(version), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            assert_eq!(ask_many(&pool, 8).await, (0..8).collect::<Vec<u32>>());
        }
    };
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("the other does the work");
    assert_eq!(names(&one), ["policy@2", "policy@3"]);
    let fed = format!("{} is back, and is still being given", two.url());
    wait_until(|| said.lock().unwrap().iter().any(|l| l.starts_with(&fed))).await;
    // Once it does what it is asked, it has all that is wanted by now, and nothing else.
    *two.seen.together.lock().unwrap() = None;
    let back = async {
        while !pool.servers().iter().all(|s| s.up) {
            ask_many(&pool, 1).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("it is looked at again");
    assert_eq!(names(&two), ["policy@2", "policy@3"], "{said:?}");
    let lines = said.lock().unwrap().clone();
    assert_eq!(lines.iter().filter(|l| l.starts_with(&fed)).count(), 1, "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_with_open_connections_is_done_without() {
    let (one, two) = (Vllm::start(Duration::from_millis(50)).await, Vllm::start(Duration::from_millis(50)).await);
    let (pool, said) = pool_waiting(&[&one, &two], hasty());
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    two.seen.stopped.store(true, Ordering::SeqCst);
    // More than the other has seats for: some of them meet the one that is stopped.
    let answers = tokio::time::timeout(Duration::from_secs(30), ask_many(&pool, 40)).await.expect("they go elsewhere");
    assert_eq!(answers, (0..40).map(|i| i % 16).collect::<Vec<u32>>(), "each once");
    let lines = said.lock().unwrap().clone();
    assert!(lines.len() == 1 && lines[0].starts_with(&two.url()) && lines[0].contains("/health"), "{lines:?}");
    assert!(pool.servers().iter().all(|s| s.load == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_gets_as_many_requests_at_once_as_it_may() {
    let (one, two) = (Vllm::start(Duration::from_millis(20)).await, Vllm::start(Duration::from_millis(20)).await);
    let (pool, _) = pool_at(vec![one.url(), two.url()], hasty(), 3);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    ask_many(&pool, 60).await;
    drop(two);
    ask_many(&pool, 60).await;
    assert_eq!(one.seen.peak.load(Ordering::SeqCst), 3, "the dead one's are not its");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_tokens_that_do_not_exist_is_asked_for_elsewhere() {
    let nonsense = r#"{"choices":[{"token_ids":[16],"logprobs":{"token_logprobs":[-1.0]},"finish_reason":"length"}]}"#;
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let always = || vec![Fault::reply(200, nonsense); 100];
    let proxy = Proxy::start_before(two.address, "/v1/completions", always()).await;
    let (pool, said) = pool_at(vec![one.url(), proxy.url()], hasty(), 64);
    for i in 0..30 {
        assert_eq!(pool.sample(request(i, "base")).await.unwrap().tokens, [i as u32 % 16]);
    }
    // It had its chances, and somebody hears who it is.
    let lines = said.lock().unwrap().clone();
    assert!(lines[0].starts_with(&proxy.url()) && lines[0].contains("token 16"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_well_until_it_is_asked_is_told_about_once() {
    let server = Vllm::start(Duration::ZERO).await;
    let proxy = Proxy::start_before(server.address, "/v1/completions", vec![Fault::Reset; 1000]).await;
    let (pool, said) = pool_at(vec![proxy.url()], Waiting { away: Duration::from_secs(6), ..hasty() }, 64);
    let e = pool.sample(request(0, "base")).await.unwrap_err().to_string();
    assert!(e.contains(&proxy.url()) && e.contains("no server for 6 s"), "{e}");
    let lines = said.lock().unwrap().clone();
    assert_eq!(lines.len(), 3, "away, back, and again: {lines:?}");
    assert!(lines[2].contains("less and less often"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_started_anew_after_whole_weights_were_pushed_gets_them_again() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, said) = pool_waiting(&[&one, &two], hasty());
    pool.push_weights(Path::new("/model"), &fingerprint()).await.unwrap();
    let address = two.address;
    drop(two);
    for i in 0..4 {
        pool.sample(request(i, "base")).await.unwrap();
    }
    drop(one);
    // It has what it started with.
    let two = Vllm::start_at(address, Duration::ZERO).await;
    *two.seen.stale.lock().unwrap() = 0.01;
    let e = pool.sample(request(0, "base")).await.unwrap_err().to_string();
    assert!(e.contains(&two.url()) && e.contains("it does not have the weights of /model"), "{e} {said:?}");
    // This time a reload does what it says.
    two.seen.reloads.store(true, Ordering::SeqCst);
    assert_eq!(pool.sample(request(5, "base")).await.unwrap().tokens, [5]);
    // Nobody asks while it is started anew once more.
    drop(two);
    let two = Vllm::start_at(address, Duration::ZERO).await;
    *two.seen.stale.lock().unwrap() = 0.01;
    two.seen.reloads.store(true, Ordering::SeqCst);
    tokio::time::sleep(hasty().attempt * 2).await;
    let sample = pool.sample(request(5, "base")).await.unwrap();
    assert_eq!((sample.tokens, sample.logprobs), (vec![5], vec![rule(3, 5)]), "{said:?}");
    let again = |l: &&String| l.contains("no longer has the weights of /model");
    assert_eq!(said.lock().unwrap().iter().filter(again).count(), 2, "once for each time: {said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_passes_while_whole_weights_are_pushed_leaves_nobody_drained() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let proxy = Proxy::start_before(two.address, "/collective_rpc", vec![Fault::reply(500, "broken"); 4]).await;
    let (pool, said) = pool_at(vec![one.url(), proxy.url()], hasty(), 64);
    pool.push_weights(Path::new("/model"), &fingerprint()).await.unwrap();
    let states = pool.servers();
    assert!(states.iter().all(|s| !s.draining) && states[0].up && !states[1].up, "{states:?}");
    assert_eq!(said.lock().unwrap().len(), 1, "{said:?}");
    drop(one);
    assert_eq!(pool.sample(request(5, "base")).await.unwrap().tokens, [5], "{said:?}");
}
