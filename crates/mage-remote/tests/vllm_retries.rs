//! Retry policy of a vLLM pool: transient failures are retried, and only a request that is at fault everywhere fails.

use crate::common::{
    proxy::{Fault, Proxy},
    vllm_double::Vllm,
    vllm_script::{
        fingerprint, names, policy, pool_at, pool_with_timeouts, request, sample_many, settings, short_attempts,
        wait_until,
    },
};
use mage_engine::Sampler;
use mage_remote::{Timeouts, VllmPool};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

const SAMPLING: &str = "/v1/completions";
const LOADING: &str = "/v1/load_lora_adapter";

fn reply_later(status: u16, retry_after: &str) -> Fault {
    Fault::Reply(status, format!("retry-after: {retry_after}\r\n"), "not now".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_server_is_retried_and_logged_once() {
    let cases = [429, 500].map(|status| {
        tokio::spawn(async move {
            let server = Vllm::start(Duration::ZERO).await;
            // More often than any limit of attempts.
            let proxy = Proxy::start_before(server.address, SAMPLING, vec![reply_later(status, "0.3"); 10]).await;
            let (pool, log_lines) = pool_at(vec![proxy.url()], short_attempts(), 64);
            assert_eq!(pool.sample(request(5, "base")).await.unwrap().tokens, [5]);
            let lines = log_lines.lock().unwrap().clone();
            assert!(lines.len() == 2 && lines.iter().all(|l| l.starts_with(&proxy.url())), "{lines:?}");
            assert!(lines[0].contains(&format!("({status} ")), "{lines:?}");
            assert!(lines[0].contains("retrying for up to 30 s"), "{lines:?}");
            assert!(lines[1].contains("works again after"), "{lines:?}");
        })
    });
    for case in cases {
        case.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_end_at_the_outage_timeout() {
    let server = Vllm::start(Duration::ZERO).await;
    let proxy = Proxy::start_before(server.address, SAMPLING, vec![Fault::reply(500, "broken"); 1000]).await;
    let (pool, _) = pool_at(vec![proxy.url()], Timeouts { outage: Duration::from_secs(2), ..short_attempts() }, 64);
    let e = pool.sample(request(0, "base")).await.unwrap_err().to_string();
    assert!(e.contains(&proxy.url()) && e.contains("broken") && e.contains("no success for 2 s"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_respected() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    for status in [429, 503] {
        let proxy = Proxy::start_before(two.address, SAMPLING, [reply_later(status, "2")]).await;
        let (pool, _) = pool_at(vec![proxy.url()], short_attempts(), 64);
        let started = Instant::now();
        pool.sample(request(0, "base")).await.unwrap();
        assert!(started.elapsed() >= Duration::from_secs(2), "{status}");
        // If there is another server, it is used meanwhile.
        let proxy = Proxy::start_before(two.address, SAMPLING, [reply_later(status, "25")]).await;
        let (pool, _) = pool_at(vec![one.url(), proxy.url()], short_attempts(), 64);
        for i in 0..20 {
            assert_eq!(pool.sample(request(i, "base")).await.unwrap().tokens, [i as u32 % 16]);
        }
        assert_eq!(proxy.requests.load(Ordering::SeqCst), 1, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_request_is_retried_after_the_request_timeout() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    for alone in [true, false] {
        let proxy = Proxy::start_before(two.address, SAMPLING, [Fault::Hang, Fault::Hang]).await;
        let servers = if alone { vec![proxy.url()] } else { vec![proxy.url(), one.url()] };
        let (mut settings, log_lines) = settings(servers, short_attempts(), 64);
        settings.request_timeout = Duration::from_secs(1);
        settings.timeouts.operation = Duration::from_secs(3600);
        let pool = Arc::new(VllmPool::new(settings).unwrap());
        let requests = async {
            for i in 0..4 {
                assert_eq!(pool.sample(request(i, "base")).await.unwrap().tokens, [i as u32]);
            }
        };
        tokio::time::timeout(Duration::from_secs(30), requests).await.expect("lost responses time out");
        let lines = log_lines.lock().unwrap().clone();
        assert!(lines.len() == 1 && lines[0].starts_with(&proxy.url()), "{lines:?}");
        assert!(
            lines[0].contains("did not respond to a request within 1 s") && lines[0].contains("IncreaseRequestTimeout"),
            "{lines:?}"
        );
        assert!(pool.servers().iter().all(|s| s.healthy && s.in_flight == 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_timeouts_are_limited() {
    let server = Vllm::start(Duration::ZERO).await;
    let proxy = Proxy::start_before(server.address, SAMPLING, vec![Fault::Hang; 100]).await;
    let (mut settings, _) = settings(vec![proxy.url()], short_attempts(), 64);
    settings.request_timeout = Duration::from_millis(200);
    let e = VllmPool::new(settings).unwrap().sample(request(0, "base")).await.unwrap_err().to_string();
    assert!(e.contains(&proxy.url()) && e.contains("timed out 4 times"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_request_is_tried_on_another_server() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    for status in [400, 401, 404] {
        let no = vec![Fault::reply(status, "the context is too long"); 1000];
        let proxy = Proxy::start_before(two.address, SAMPLING, no).await;
        let (pool, log_lines) = pool_at(vec![one.url(), proxy.url()], short_attempts(), 64);
        for i in 0..30 {
            assert_eq!(
                pool.sample(request(i, "base")).await.unwrap().tokens,
                [i as u32 % 16],
                "{status}: {log_lines:?}"
            );
        }
        let lines = log_lines.lock().unwrap().clone();
        assert!(lines[0].starts_with(&proxy.url()) && lines[0].contains("the context is too long"), "{lines:?}");
        assert!(lines.len() <= 3, "unhealthy, recovered, and unhealthy again: {lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_rejected_by_two_servers_fails() {
    let server = Vllm::start(Duration::ZERO).await;
    let no = || vec![Fault::reply(400, "the context is too long"); 1000];
    let mut proxies = Vec::new();
    for _ in 0..3 {
        proxies.push(Proxy::start_before(server.address, SAMPLING, no()).await);
    }
    for servers in [1, 3] {
        let before: usize = proxies.iter().map(|p| p.requests.load(Ordering::SeqCst)).sum();
        let (pool, log_lines) = pool_at(proxies[..servers].iter().map(Proxy::url).collect(), short_attempts(), 64);
        let e = pool.sample(request(0, "base")).await.unwrap_err().to_string();
        assert!(e.contains("400") && e.contains("the context is too long"), "{e}");
        let after: usize = proxies.iter().map(|p| p.requests.load(Ordering::SeqCst)).sum();
        assert_eq!(after - before, servers.min(2), "a second server is tried, and no third");
        assert!(
            pool.servers().iter().all(|s| s.healthy) && log_lines.lock().unwrap().is_empty(),
            "the servers are not at fault"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_adapters_are_pushed_again() {
    for others in [0, 1] {
        let mut servers = vec![Vllm::start(Duration::ZERO).await];
        for _ in 0..others {
            servers.push(Vllm::start(Duration::ZERO).await);
        }
        let (pool, log_lines) = pool_with_timeouts(&servers.iter().collect::<Vec<_>>(), short_attempts());
        pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
        servers[0].state.adapters.lock().unwrap().clear();
        assert_eq!(sample_many(&pool, 16).await, (0..16).collect::<Vec<u32>>());
        // A server that got no request yet gets one now.
        let reconciled = async {
            while names(&servers[0]).is_empty() || !pool.servers()[0].healthy {
                sample_many(&pool, 4).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reconciled).await.expect("the adapter is pushed again");
        let lines = log_lines.lock().unwrap().clone();
        assert!(lines.len() == 2 && lines[0].contains("does not exist"), "{lines:?}");
        assert!(lines[1].contains("pushed 1 adapters again"), "{lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_rejects_a_push_is_excluded() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let proxy = Proxy::start_before(two.address, LOADING, vec![Fault::reply(400, "no such folder"); 2]).await;
    let (pool, log_lines) = pool_at(vec![one.url(), proxy.url()], short_attempts(), 64);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert_eq!(pool.servers().iter().map(|s| s.healthy).collect::<Vec<_>>(), [true, false]);
    assert_eq!(sample_many(&pool, 8).await, (0..8).collect::<Vec<u32>>());
    let lines = log_lines.lock().unwrap().clone();
    assert!(lines.len() == 1 && lines[0].contains(&proxy.url()) && lines[0].contains("no such folder"), "{lines:?}");
    // It is probed again and accepts the second push.
    crate::common::vllm_script::wait_until_all_healthy(&pool).await;
    assert_eq!(names(&two), ["policy@0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_is_waited_for_if_another_rejects_the_push() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let proxy = Proxy::start_before(two.address, LOADING, vec![Fault::reply(404, "no such path"); 1000]).await;
    let (pool, log_lines) = pool_at(vec![one.url(), proxy.url()], short_attempts(), 64);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    assert!(!pool.servers()[1].healthy, "it rejected the push: {log_lines:?}");
    // The other restarts.
    let address = one.address;
    drop(one);
    let sample = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.sample(request(5, "policy")).await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let _one = Vllm::start_at(address, Duration::ZERO).await;
    assert_eq!(sample.await.unwrap().unwrap().tokens, [5], "{log_lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn push_rejected_by_all_servers_fails() {
    let (one, two) = (Vllm::start(Duration::ZERO).await, Vllm::start(Duration::ZERO).await);
    let no = || vec![Fault::reply(400, "rank too large"); 10];
    let one = Proxy::start_before(one.address, LOADING, no()).await;
    let two = Proxy::start_before(two.address, LOADING, no()).await;
    let (pool, log_lines) = pool_at(vec![one.url(), two.url()], short_attempts(), 64);
    let e = pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap_err().to_string();
    assert!(e.contains("did not load policy@0") && e.contains("rank too large"), "{e}");
    assert!(log_lines.lock().unwrap().is_empty(), "{log_lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_adapter_load_is_waited_for_and_logged() {
    let server = Vllm::start(Duration::ZERO).await;
    let attempt = Duration::from_millis(200);
    let (pool, log_lines) = pool_with_timeouts(&[&server], Timeouts { attempt, ..short_attempts() });
    server.state.loading.store(true, Ordering::SeqCst);
    let push = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { pool.push_adapter(&policy(17), Path::new("/somewhere"), &fingerprint()).await }
    });
    wait_until(|| server.state.loads.load(Ordering::SeqCst) > 8).await;
    assert!(!push.is_finished());
    server.state.loading.store(false, Ordering::SeqCst);
    push.await.unwrap().unwrap();
    let lines = log_lines.lock().unwrap().clone();
    let waits = format!("still waiting for {} to load policy@17", server.url());
    assert!(!lines.is_empty() && lines.iter().all(|l| l.starts_with(&waits)), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_adapter_load_ends_at_the_outage_timeout() {
    let server = Vllm::start(Duration::ZERO).await;
    let timeouts = Timeouts { attempt: Duration::from_millis(200), outage: Duration::from_secs(2), ..short_attempts() };
    let (pool, _) = pool_with_timeouts(&[&server], timeouts);
    server.state.loading.store(true, Ordering::SeqCst);
    let push = async { pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await };
    let e = tokio::time::timeout(Duration::from_secs(30), push).await.expect("it ends").unwrap_err().to_string();
    assert!(e.contains("no server loaded policy@0 within 2 s") && e.contains(&server.url()), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_without_a_backend_is_waited_for() {
    let server = Vllm::start(Duration::ZERO).await;
    let no_backend = || vec![Fault::reply(503, "no backend"); 8];
    // Fails every request, starting with the push.
    let proxy = Proxy::start(server.address, no_backend()).await;
    let (pool, log_lines) = pool_at(vec![proxy.url()], short_attempts(), 64);
    pool.push_adapter(&policy(0), Path::new("/somewhere"), &fingerprint()).await.unwrap();
    let lines = log_lines.lock().unwrap().clone();
    assert!(lines.iter().any(|l| l.contains("retrying for up to 30 s")), "{lines:?}");
    assert!(lines.last().unwrap().starts_with(&format!("{} is available again", proxy.url())), "{lines:?}");
    // Then with sampling.
    let proxy = Proxy::start(server.address, no_backend()).await;
    let (pool, log_lines) = pool_at(vec![proxy.url()], short_attempts(), 64);
    assert_eq!(pool.sample(request(3, "base")).await.unwrap().tokens, [3]);
    let lines = log_lines.lock().unwrap().clone();
    assert!(lines.len() == 2 && lines[0].contains("retrying for up to 30 s"), "{lines:?}");
    assert!(lines[1].ends_with("is available again"), "{lines:?}");
}
