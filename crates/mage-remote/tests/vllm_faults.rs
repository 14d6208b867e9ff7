//! Faults of pool servers (transient, permanent, hanging): requests and versions are neither lost nor duplicated.

use crate::common::{
    proxy::{Fault, Proxy},
    vllm_double::Vllm,
    vllm_script::{
        fingerprint, names, policy, pool, pool_at, pool_with_timeouts, request, sample_many, short_attempts,
        wait_until, wait_until_all_healthy,
    },
};
use mage_engine::{Hint, Sampler};
use mage_remote::Timeouts;
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

const NAN_LOGPROB: &str =
    r#"{"choices":[{"token_ids":[4],"logprobs":{"token_logprobs":[NaN]},"finish_reason":"length"}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn transient_fault_during_a_push_is_retried() {
    let mut faults = Vec::new();
    for path in ["/v1/completions", "/v1/load_lora_adapter"] {
        let statuses = [500, 502, 429, 408, 425].map(|status| Fault::reply(status, "not now"));
        faults.extend(statuses.into_iter().chain([Fault::Reset, Fault::Hang]).map(|fault| (path, fault)));
    }
    faults.push(("/v1/completions", Fault::reply(200, NAN_LOGPROB)));
    faults.push(("/v1/completions", Fault::reply(200, "<html>")));
    // The adapter was loaded and only the response was lost.
    faults.push(("/v1/load_lora_adapter", Fault::HalfBody));
    let cases = faults.into_iter().map(|(path, fault)| {
        tokio::spawn(async move {
            let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
            let proxy = Proxy::start_before(two.address, path, [fault.clone()]).await;
            let (pool, log_lines) = pool_at(vec![one.url(), proxy.url()], short_attempts(), 64);
            pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            assert!(pool.servers().iter().all(|s| s.healthy), "{path} {fault:?}: {log_lines:?}");
            assert_eq!((names(&one), names(&two)), (vec!["policy@0".to_owned()], vec!["policy@0".to_owned()]));
            assert!(log_lines.lock().unwrap().is_empty(), "{path} {fault:?}: {log_lines:?}");
        })
    });
    for case in cases.collect::<Vec<_>>() {
        case.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn persistent_fault_during_a_push_makes_the_server_unhealthy_until_it_passes() {
    let cases = [
        ("/v1/completions", Fault::reply(500, "broken")),
        ("/v1/completions", Fault::reply(200, NAN_LOGPROB)),
        ("/v1/load_lora_adapter", Fault::reply(429, "too many")),
        ("/v1/load_lora_adapter", Fault::Reset),
        ("/v1/load_lora_adapter", Fault::Hang),
    ]
    .map(|(path, fault)| {
        tokio::spawn(async move {
            let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
            let proxy = Proxy::start_before(two.address, path, vec![fault.clone(); 4]).await;
            let (pool, log_lines) = pool_at(vec![one.url(), proxy.url()], short_attempts(), 64);
            pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            let up: Vec<bool> = pool.servers().iter().map(|s| s.healthy).collect();
            assert_eq!(up, [true, false], "{path} {fault:?}: {log_lines:?}");
            assert_eq!(sample_many(&pool, 8).await, (0..8).collect::<Vec<u32>>());
            let lines = log_lines.lock().unwrap().clone();
            assert!(lines.len() == 1 && lines[0].starts_with(&proxy.url()) && lines[0].contains("when it recovers"));
            // The fault has passed: the server gets both versions.
            pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            wait_until(|| pool.servers().iter().all(|s| s.healthy)).await;
            for server in [&one, &two] {
                assert_eq!(names(server), ["policy@0", "policy@1"], "{path} {fault:?}: {log_lines:?}");
            }
        })
    });
    for case in cases {
        case.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_push_fails_at_once() {
    let server = Vllm::start(Duration::ZERO).await;
    let proxy =
        Proxy::start_before(server.address, "/v1/load_lora_adapter", [Fault::reply(400, "rank too large")]).await;
    let (pool, _) = pool_at(vec![proxy.url()], short_attempts(), 64);
    let e = pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap_err().to_string();
    assert!(e.contains(&proxy.url()) && e.contains("rank too large"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn not_found_during_a_push_fails_with_a_remedy() {
    let server = Vllm::start(Duration::ZERO).await;
    let unseen = "Loading lora policy@0 failed: No adapter found for /somewhere";
    let cases: [(&str, &str, &[Hint]); 2] = [
        (r#"{"detail":"Not Found"}"#, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", &[]),
        (unseen, "the server must see /somewhere under the same path and be able to read it", &[Hint::ShareAdapterDir]),
    ];
    for (body, remedy, hints) in cases {
        let proxy = Proxy::start_before(server.address, "/v1/load_lora_adapter", [Fault::reply(404, body)]).await;
        let (pool, _) = pool_at(vec![proxy.url()], short_attempts(), 64);
        let e = pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap_err();
        assert!(e.to_string().contains("404 Not Found") && e.to_string().contains(remedy), "{e}");
        assert_eq!(e.hints(), hints);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_adapters_are_unloaded_from_a_recovered_server() {
    let (one, other) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, _) = pool_at(vec![one.url(), other.url()], short_attempts(), 64);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let ours = other.state.adapters.lock().unwrap().keys().next().unwrap().clone();
    // A leftover of a failed push, and an adapter of another pool.
    let (left, theirs) =
        (format!("policy@1.{}-2", &ours[ours.find('.').unwrap() + 1..ours.len() - 2]), "policy@1.0123abcd-2");
    let address = other.address;
    drop(other);
    sample_many(&pool, 20).await;
    let other = Vllm::start_at(address, Duration::ZERO).await;
    let stale = [left.as_str(), theirs].map(|n| (n.to_owned(), "/gone".to_owned()));
    other.state.adapters.lock().unwrap().extend(stale);
    wait_until_all_healthy(&pool).await;
    let mut loaded: Vec<String> = other.state.adapters.lock().unwrap().keys().cloned().collect();
    loaded.sort();
    let mut expected = [ours, theirs.to_owned()];
    expected.sort();
    assert_eq!(loaded, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_hangs_during_reconciliation_delays_no_requests() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, log_lines) = pool_with_timeouts(&[&one, &two], short_attempts());
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let address = two.address;
    drop(two);
    sample_many(&pool, 20).await;
    let two = Vllm::start_at(address, Duration::ZERO).await;
    // Its loads block at a barrier.
    *two.state.load_barrier.lock().unwrap() = Some(Arc::new(tokio::sync::Barrier::new(2)));
    let work = async {
        for version in 1..4 {
            pool.push_adapter(&policy(version), Path::new("/somewhere"), &fingerprint()).await.unwrap();
            assert_eq!(sample_many(&pool, 8).await, (0..8).collect::<Vec<u32>>());
        }
    };
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("the other server serves requests");
    assert_eq!(names(&one), ["policy@2", "policy@3"]);
    let reconciled = format!("{} is available again; still pushing", two.url());
    wait_until(|| log_lines.lock().unwrap().iter().any(|l| l.starts_with(&reconciled))).await;
    // Once loads work, it has exactly the current versions.
    *two.state.load_barrier.lock().unwrap() = None;
    wait_until_all_healthy(&pool).await;
    assert_eq!(names(&two), ["policy@2", "policy@3"], "{log_lines:?}");
    let lines = log_lines.lock().unwrap().clone();
    assert_eq!(lines.iter().filter(|l| l.starts_with(&reconciled)).count(), 1, "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_recovers_during_a_push_gets_the_version() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, log_lines) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let address = two.address;
    drop(two);
    sample_many(&pool, 20).await;
    // The push blocks at the first server until the second has recovered.
    let still = Arc::new(tokio::sync::Barrier::new(2));
    *one.state.load_barrier.lock().unwrap() = Some(Arc::clone(&still));
    let push = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await }
    });
    let two = Vllm::start_at(address, Duration::ZERO).await;
    wait_until_all_healthy(&pool).await;
    *one.state.load_barrier.lock().unwrap() = None;
    tokio::time::timeout(Duration::from_secs(30), still.wait()).await.expect("the push waits at the barrier");
    push.await.unwrap().unwrap();
    assert!(pool.servers().iter().all(|s| s.healthy), "{log_lines:?}");
    assert_eq!(names(&two), ["policy@0", "policy@1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_server_with_open_connections_is_detected() {
    let (one, two) = (Vllm::start(Duration::from_millis(50)).await, Vllm::start(Duration::from_millis(50)).await);
    let (pool, log_lines) = pool_with_timeouts(&[&one, &two], short_attempts());
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    two.state.stopped.store(true, Ordering::SeqCst);
    // Half of the requests go to it.
    let answers = tokio::time::timeout(Duration::from_secs(30), sample_many(&pool, 40))
        .await
        .expect("requests go to the other server");
    assert_eq!(answers, (0..40).map(|i| i % 16).collect::<Vec<u32>>(), "each once");
    let lines = log_lines.lock().unwrap().clone();
    assert!(lines.len() == 1 && lines[0].starts_with(&two.url()) && lines[0].contains("/health"), "{lines:?}");
    assert!(pool.servers().iter().all(|s| s.in_flight == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_per_server_are_limited() {
    let (one, two) = (Vllm::start(Duration::from_millis(20)).await, Vllm::start(Duration::from_millis(20)).await);
    let (pool, _) = pool_at(vec![one.url(), two.url()], short_attempts(), 3);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    sample_many(&pool, 60).await;
    drop(two);
    sample_many(&pool, 60).await;
    assert_eq!(one.state.peak.load(Ordering::SeqCst), 3, "the limit stays the same after the other died");
}

#[tokio::test(flavor = "multi_thread")]
async fn response_with_invalid_tokens_is_retried_elsewhere() {
    let nonsense = r#"{"choices":[{"token_ids":[16],"logprobs":{"token_logprobs":[-1.0]},"finish_reason":"length"}]}"#;
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let always = || vec![Fault::reply(200, nonsense); 100];
    let proxy = Proxy::start_before(two.address, "/v1/completions", always()).await;
    let (pool, log_lines) = pool_at(vec![one.url(), proxy.url()], short_attempts(), 64);
    for i in 0..30 {
        assert_eq!(pool.sample(request(i, "base")).await.unwrap().tokens, [i as u32 % 16]);
    }
    // It is marked unhealthy, and the log names it.
    let lines = log_lines.lock().unwrap().clone();
    assert!(lines[0].starts_with(&proxy.url()) && lines[0].contains("token 16"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_fails_only_requests_is_logged_once() {
    let server = Vllm::start(Duration::ZERO).await;
    let proxy = Proxy::start_before(server.address, "/v1/completions", vec![Fault::Reset; 1000]).await;
    let (pool, log_lines) =
        pool_at(vec![proxy.url()], Timeouts { outage: Duration::from_secs(6), ..short_attempts() }, 64);
    let e = pool.sample(request(0, "base")).await.unwrap_err().to_string();
    assert!(e.contains(&proxy.url()) && e.contains("no server available for 6 s"), "{e}");
    let lines = log_lines.lock().unwrap().clone();
    assert_eq!(lines.len(), 3, "unhealthy, recovered, and unhealthy again: {lines:?}");
    assert!(lines[2].contains("probing it less often"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_servers_are_reconciled_concurrently() {
    let start = || Vllm::start(Duration::ZERO);
    let (one, two, three) = (start().await, start().await, start().await);
    let (pool, log_lines) = pool_with_timeouts(&[&one, &two, &three], short_attempts());
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let addresses = [two.address, three.address];
    drop((two, three));
    let missed = async {
        while pool.servers().iter().filter(|s| s.healthy).count() > 1 {
            sample_many(&pool, 20).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), missed).await.expect("both are detected as unreachable");
    // Both loads block until both have started.
    let together = Arc::new(tokio::sync::Barrier::new(2));
    let mut back = Vec::new();
    for address in addresses {
        let server = Vllm::start_at(address, Duration::ZERO).await;
        *server.state.load_barrier.lock().unwrap() = Some(Arc::clone(&together));
        back.push(server);
    }
    pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    wait_until(|| pool.servers().iter().all(|s| s.healthy)).await;
    for server in &back {
        assert_eq!(names(server), ["policy@0", "policy@1"], "{log_lines:?}");
    }
}
