//! Pool of vLLM servers: load balancing, versions, verification of pushes, and restarts.

use crate::common::{
    vllm_double::Vllm,
    vllm_script::{fingerprint, names, policy, pool, pool_with, pool_with_timeouts, request, sample_many, wait_until},
};
use mage_engine::{SampleRequest, Sampler, ScoreRequest};
use mage_remote::Timeouts;
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_to_the_least_busy_server() {
    let (quick, slow) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::from_millis(200)).await);
    let (pool, _) = pool(&[&quick, &slow]);
    let workers: Vec<_> = (0..4)
        .map(|w| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move {
                for i in 0..50 {
                    let sample = pool.sample(request(50 * w + i, "base")).await.unwrap();
                    assert_eq!(u64::from(sample.tokens[0]), (50 * w + i) % 16);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let slowly = slow.state.requests.load(Ordering::SeqCst);
    // Round-robin would give it a hundred.
    assert!((1..60).contains(&slowly), "{slowly}");
    assert!(pool.servers().iter().all(|s| s.in_flight == 0 && s.healthy));
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_response_is_not_requested_twice() {
    let slow = Vllm::start(Duration::from_millis(600)).await;
    let (pool, _) = pool_with(&[&slow], Duration::from_millis(200));
    assert_eq!(pool.sample(request(3, "base")).await.unwrap().tokens, [3]);
    assert_eq!(slow.state.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn recent_versions_stay_available_by_name() {
    let server = Vllm::start(Duration::ZERO).await;
    let (pool, _) = pool(&[&server]);
    for version in 0..4 {
        pool.push_adapter(&policy(version), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    }
    assert_eq!(names(&server), ["policy@2", "policy@3"], "`keep_versions` versions");
    assert_eq!(pool.sample(request(0, "policy")).await.unwrap().weights, policy(3));
    assert_eq!(pool.sample(request(0, "policy@2")).await.unwrap().weights, policy(2));
    let e = pool.sample(request(0, "policy@1")).await.unwrap_err().to_string();
    assert!(e.contains("available: base@0, policy@2, policy@3"), "{e}");
    // After a resume: the same version again, under a new name on the server.
    let before = server.state.adapters.lock().unwrap().clone();
    pool.push_adapter(&policy(3), Path::new("/elsewhere"), &fingerprint()).await.unwrap();
    let there = server.state.adapters.lock().unwrap().clone();
    let new: Vec<_> = there.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
    assert!(new.len() == 1 && new[0].0.starts_with("policy@3.") && new[0].1 == "/elsewhere", "{there:?}");
    assert_eq!(names(&server), ["policy@2", "policy@3"], "the replaced version is unloaded");
    // Another pool uses names of its own.
    let (other, _) = crate::common::vllm_script::pool(&[&server]);
    other.push_adapter(&policy(3), Path::new("/theirs"), &fingerprint()).await.unwrap();
    assert_eq!(server.state.adapters.lock().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn push_with_a_wrong_fingerprint_is_rejected_everywhere() {
    let (good, bad) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, _) = pool(&[&good, &bad]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    *bad.state.stale.lock().unwrap() = 0.01;
    let e = pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap_err().to_string();
    assert!(e.contains(&bad.url()) && e.contains("it does not have policy@1") && e.contains("1.000e-2"), "{e}");
    assert_eq!(pool.sample(request(0, "policy")).await.unwrap().weights, policy(0), "the version is not published");
    for server in [&good, &bad] {
        assert_eq!(names(server), ["policy@0"], "the version is removed from all servers");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_server_is_reconciled() {
    let (one, two) = (Vllm::start(Duration::from_millis(20)).await, Vllm::start(Duration::from_millis(20)).await);
    let (pool, log_lines) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let (address, work) = (
        two.address,
        tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { sample_many(&pool, 1000).await }
        }),
    );
    // Half-way: some requests are done, many are pending.
    wait_until(|| two.state.requests.load(Ordering::SeqCst) >= 64).await;
    drop(two);
    assert_eq!(work.await.unwrap().len(), 1000, "the other server served all requests");
    assert!(log_lines.lock().unwrap().iter().any(|l| l.contains("is unreachable")), "{:?}", log_lines.lock().unwrap());
    // Now the other dies too, and the first restarts empty.
    let again = Vllm::start_at(address, Duration::ZERO).await;
    drop(one);
    assert_eq!(sample_many(&pool, 10).await.len(), 10);
    let log_lines = log_lines.lock().unwrap().clone();
    assert!(log_lines.iter().any(|l| l.contains("is available again, pushed 1 adapters again")), "{log_lines:?}");
    assert_eq!(again.state.adapters.lock().unwrap().len(), 1, "the adapter was pushed again");
}

#[tokio::test(flavor = "multi_thread")]
async fn push_is_concurrent() {
    let servers =
        [Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await];
    // Each load completes only when all servers have received a load request.
    let together = Arc::new(tokio::sync::Barrier::new(servers.len()));
    for server in &servers {
        *server.state.load_barrier.lock().unwrap() = Some(Arc::clone(&together));
    }
    let (pool, log_lines) = pool(&servers.iter().collect::<Vec<_>>());
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert!(log_lines.lock().unwrap().is_empty(), "{log_lines:?}");
    pool.unload_all_adapters().await;
    assert!(servers.iter().all(|s| s.state.adapters.lock().unwrap().is_empty()), "no adapter remains after the run");
    assert!(pool.sample(request(0, "policy")).await.is_err() && pool.sample(request(0, "base")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_server_gets_requests_again() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, log_lines) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let address = two.address;
    drop(two);
    sample_many(&pool, 20).await;
    assert_eq!(pool.servers().iter().filter(|s| s.healthy).count(), 1);
    let two = Vllm::start_at(address, Duration::ZERO).await;
    // The next push detects it and pushes what it missed.
    pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert_eq!(pool.servers().iter().filter(|s| s.healthy).count(), 2, "{log_lines:?}");
    assert_eq!(names(&two), ["policy@0", "policy@1"]);
    sample_many(&pool, 20).await;
    assert!(two.state.requests.load(Ordering::SeqCst) > 2 * 23, "more than fingerprints");
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_server_with_a_wrong_fingerprint_gets_no_requests() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let (pool, log_lines) = pool(&[&one, &two]);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let (address, adapters) = (two.address, two.state.adapters.lock().unwrap().clone());
    drop(two);
    sample_many(&pool, 20).await;
    // It lists the name, as after a network failure, but with another fingerprint.
    let two = Vllm::start_at(address, Duration::ZERO).await;
    *two.state.adapters.lock().unwrap() = adapters;
    *two.state.stale.lock().unwrap() = 0.01;
    pool.push_adapter(&policy(1), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert_eq!(names(&two), ["policy@0"], "the server is excluded");
    pool.push_adapter(&policy(2), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let lines = log_lines.lock().unwrap().clone();
    let about: Vec<&String> = lines.iter().filter(|l| l.contains("gets no requests")).collect();
    assert!(about.len() == 1 && about[0].contains(&two.url()) && about[0].contains("policy@0"), "{lines:?}");
    // Without another server, the request fails.
    drop(one);
    let e = pool.sample(request(0, "policy")).await.unwrap_err().to_string();
    assert!(e.contains(&two.url()) && e.contains("it does not have policy@1"), "{e}");
    // With the right fingerprint it is used again, and gets the version it lacks.
    *two.state.stale.lock().unwrap() = 0.0;
    assert_eq!(sample_many(&pool, 3).await.len(), 3);
    assert!(names(&two).contains(&"policy@2".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_server_does_not_delay_pushes() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    // Timeouts that outlast the test, so that any wait fails it.
    let hour = Duration::from_secs(3600);
    let (pool, log_lines) =
        pool_with_timeouts(&[&one, &two], Timeouts { attempt: hour, outage: hour, operation: hour });
    let address = two.address;
    drop(two);
    let pushes = async {
        for version in 0..3 {
            pool.push_adapter(&policy(version), Path::new("/somewhere"), &fingerprint()).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), pushes).await.expect("pushes do not wait for the dead server");
    assert_eq!(names(&one), ["policy@1", "policy@2"]);
    let lines = log_lines.lock().unwrap().clone();
    let dead = format!("http://{address}");
    assert!(lines.len() == 1 && lines[0].starts_with(&dead) && lines[0].contains("when it recovers"), "{lines:?}");
    // Without any server, the push waits.
    drop(one);
    let push = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.push_adapter(&policy(3), Path::new("/somewhere"), &fingerprint()).await }
    });
    wait_until(|| {
        push.is_finished() || log_lines.lock().unwrap().iter().any(|l| l.contains("retrying for up to 3600 s"))
    })
    .await;
    assert!(!push.is_finished());
    let two = Vllm::start_at(address, Duration::ZERO).await;
    tokio::time::timeout(Duration::from_secs(60), push).await.expect("the push completes").unwrap().unwrap();
    assert_eq!(names(&two), ["policy@2", "policy@3"], "{log_lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_requests_are_rejected_before_sending() {
    let server = Vllm::start(Duration::ZERO).await;
    let (pool, _) = pool(&[&server]);
    let masked = mage_engine::ActionSet::new([[3]], None, None).unwrap();
    let e = pool.sample(SampleRequest { allowed: Some(masked), ..request(0, "base") }).await.unwrap_err();
    assert_eq!(e.hints(), [mage_engine::Hint::DisableActionMasks], "{e}");
    let masked = ScoreRequest { weights: "base".into(), tokens: vec![1, 2], from: 1, allowed: vec![Some([2].into())] };
    assert!(pool.score(masked).await.is_err());
    assert_eq!(server.state.requests.load(Ordering::SeqCst), 0);
}
