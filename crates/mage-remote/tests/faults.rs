//! OpenAI-compatible endpoints over an unreliable network.

use crate::common::{
    chat, chat_request, client,
    proxy::{Fault, Proxy},
    server::Server,
};
use mage_engine::{ChatModel, ChatUsage, Error};
use mage_remote::{ApiKey, RemoteChat, RemoteEmbeddings, TokenPrices};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

async fn echo() -> Server {
    Server::start(Duration::ZERO, |text| format!("you said {text}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn response_has_text_and_token_usage() {
    let server = echo().await;
    let chat = chat(server.address);
    let answer = chat.complete(chat_request("two words")).await.unwrap();
    assert_eq!(
        (answer.text.as_str(), answer.usage),
        ("you said two words", ChatUsage { prompt_tokens: 2, completion_tokens: 4 })
    );
    assert_eq!(TokenPrices { prompt: 1e6, completion: 1e5 }.cost(answer.usage), 2.4);
    let body = server.seen.bodies.lock().unwrap()[0].clone();
    assert_eq!((body["model"].as_str(), body["seed"].as_u64()), (Some("tiny"), Some(7 << 7)));
    assert_eq!(*server.seen.keys.lock().unwrap(), [None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_faults_are_retried() {
    let server = echo().await;
    let faults = [
        Fault::Reset,
        Fault::Hang,
        Fault::reply(500, "oops"),
        Fault::reply(503, "<html>busy</html>"),
        Fault::reply(200, "{\"choices\": [{\"mess"),
        Fault::reply(200, "{\"error\": \"overloaded\"}"),
        Fault::HalfBody,
    ];
    for fault in faults {
        let proxy = Proxy::start(server.address, [fault.clone()]).await;
        let chat = chat(proxy.address);
        let answer = chat.complete(chat_request("hello")).await;
        assert_eq!(answer.expect("the second attempt").text, "you said hello", "{fault:?}");
        assert_eq!(proxy.requests.load(Ordering::SeqCst), 2, "{fault:?}");
        assert!(chat.client().outstanding().is_none(), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_timeout_limits_slow_responses() {
    let server = echo().await;
    let slow = Proxy::start(server.address, [Fault::Drip(Duration::from_millis(5))]).await;
    assert_eq!(chat(slow.address).complete(chat_request("hello")).await.unwrap().text, "you said hello");
    assert_eq!(slow.requests.load(Ordering::SeqCst), 1);
    let too_slow = Proxy::start(server.address, [Fault::Drip(Duration::from_secs(5))]).await;
    assert_eq!(chat(too_slow.address).complete(chat_request("hello")).await.unwrap().text, "you said hello");
    assert_eq!(too_slow.requests.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_delays_the_next_attempt() {
    let server = echo().await;
    let busy = Fault::Reply(429, "retry-after: 1\r\n".to_owned(), "slow down".to_owned());
    let proxy = Proxy::start(server.address, [busy]).await;
    let started = Instant::now();
    chat(proxy.address).complete(chat_request("hello")).await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn rejections_are_permanent_and_state_the_reason() {
    let server = echo().await;
    for status in [400, 401, 403, 404, 422, 307] {
        let proxy = Proxy::start(server.address, [Fault::reply(status, "{\"message\": \"no such\nmodel\"}")]).await;
        let chat = chat(proxy.address);
        let error = chat.complete(chat_request("hello")).await.unwrap_err();
        // Wrong key, address or model: every other request would be refused, too.
        let refused = matches!(error, Error::Rejected { status: s, .. } if s == status);
        assert!(if [401, 403, 404].contains(&status) { refused } else { matches!(error, Error::Engine { .. }) });
        let text = error.to_string();
        assert!(text.contains(&status.to_string()) && (status == 307 || text.contains("no such model")), "{text}");
        assert_eq!(proxy.requests.load(Ordering::SeqCst), 1, "{text}");
        assert!(chat.client().outstanding().is_none(), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_end_at_the_deadline() {
    let server = echo().await;
    let proxy = Proxy::start(server.address, (0..1000).map(|_| Fault::reply(502, "bad gateway"))).await;
    let client = client(proxy.address, |e| e.limits.deadline = Duration::from_millis(1200));
    let error = RemoteChat::new(client).complete(chat_request("hello")).await.unwrap_err().to_string();
    assert!(error.contains("502") && error.contains("gave up after") && error.contains("deadline is 1.2 s"), "{error}");
    let tried = proxy.requests.load(Ordering::SeqCst);
    assert!((2..=4).contains(&tried), "pauses of 250, 500 and 1000 ms, at least half of each: {tried}");
    // The same for an unreachable server.
    let no_server = crate::common::client(Server::start(Duration::ZERO, str::to_owned).await.address, |e| {
        e.limits.deadline = Duration::from_millis(400);
    });
    let error = RemoteChat::new(no_server).complete(chat_request("hello")).await.unwrap_err().to_string();
    assert!(error.contains("gave up"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrency_is_limited() {
    let server = Server::start(Duration::from_millis(30), str::to_owned).await;
    let chat = Arc::new(RemoteChat::new(client(server.address, |e| e.limits.max_in_flight = 5)));
    let all: Vec<_> = (0..40)
        .map(|i| {
            let chat = Arc::clone(&chat);
            tokio::spawn(async move { chat.complete(chat_request(&i.to_string())).await.unwrap().text })
        })
        .collect();
    for (i, one) in all.into_iter().enumerate() {
        assert_eq!(one.await.unwrap(), i.to_string());
    }
    assert_eq!(server.seen.peak.load(Ordering::SeqCst), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_is_sent_and_redacted_everywhere() {
    // The only test in this process that uses this variable.
    let key = {
        #[expect(unsafe_code, reason = "the environment of a test process, before any code reads this name")]
        unsafe {
            std::env::set_var("MAGE_REMOTE_TEST_KEY", "sk-very-secret");
        }
        ApiKey::from_env("MAGE_REMOTE_TEST_KEY").unwrap()
    };
    assert!(key.is_some() && ApiKey::from_env("MAGE_REMOTE_TEST_NO_KEY").unwrap().is_none());
    let server = echo().await;
    let with_key = client(server.address, |e| e.key = key.clone());
    RemoteChat::new(with_key.clone()).complete(chat_request("hello")).await.unwrap();
    assert_eq!(*server.seen.keys.lock().unwrap(), [Some("Bearer sk-very-secret".to_owned())]);
    let answer = RemoteChat::new(with_key.clone()).complete(chat_request("sk-very-secret")).await.unwrap();
    assert_eq!(answer.text, "you said [key]", "records contain answers");
    let escaped = r#"{"choices": [{"message": {"content": "it is \u0073k-very-secret"}}]}"#;
    let proxy = Proxy::start(server.address, [Fault::reply(200, escaped)]).await;
    let answer = RemoteChat::new(client(proxy.address, |e| e.key = key.clone())).complete(chat_request("?")).await;
    assert_eq!(answer.unwrap().text, "it is [key]");
    let proxy = Proxy::start(server.address, [Fault::reply(401, "your key sk-very-secret is wrong")]).await;
    let chat = RemoteChat::new(client(proxy.address, |e| e.key = key.clone()));
    let error = chat.complete(chat_request("hello")).await.unwrap_err();
    let shown = format!("{error} {error:?} {with_key:?} {:?}", with_key.endpoint());
    assert!(!shown.contains("secret") && shown.contains("your key [key] is wrong"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_and_texts_are_limited_in_size() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let long = Server::start(Duration::ZERO, |_| "é".repeat(200_000)).await;
    let answer = chat(long.address).complete(chat_request("hello")).await.unwrap();
    let limit = (64 << 10) + 16 * 64;
    assert_eq!((answer.text.len(), answer.finish), (limit, mage_engine::FinishReason::Length));
    for status in ["200 OK", "400 Bad Request"] {
        // A body without an end.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
            let (mut written, mut sent) = (0, stream.write_all(head.as_bytes()).await);
            while sent.is_ok() {
                sent = stream.write_all(&[b'x'; 1 << 16]).await;
                written += 1 << 16;
            }
            written
        });
        let patient = client(address, |e| e.limits.attempt_timeout = Duration::from_secs(20));
        let error = RemoteChat::new(patient).complete(chat_request("hello")).await.unwrap_err().to_string();
        assert!(error.contains(if status.starts_with("200") { "has more than" } else { "400 Bad Request" }), "{error}");
        // Above the limit is only what sockets hold.
        assert!(serving.await.unwrap() < 64 << 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extra_fields_are_added_and_nulls_remove_fields() {
    let server = echo().await;
    let client = client(server.address, |e| {
        e.extra.insert("max_tokens".to_owned(), serde_json::Value::Null);
        e.extra.insert("max_completion_tokens".to_owned(), 99.into());
    });
    RemoteChat::new(client).complete(chat_request("hello")).await.unwrap();
    let body = server.seen.bodies.lock().unwrap()[0].clone();
    assert!(body.get("max_tokens").is_none());
    assert_eq!(body["max_completion_tokens"], 99);
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_are_cached() {
    let server = echo().await;
    let proxy = Proxy::start(server.address, [Fault::Reset]).await;
    let embeddings = RemoteEmbeddings::new(client(proxy.address, |_| ()), tokio::runtime::Handle::current()).unwrap();
    let vectors = embeddings.embed(&["aab", "ab", "cd", "aab"]).unwrap();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    let cosine = |a: &[f32], b: &[f32]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    let near: Vec<f32> = vectors[1..].iter().map(|v| cosine(&vectors[0], v)).collect();
    assert!((near[2] - 1.0).abs() < 1e-6 && near[1] == 0.0 && near[0] > 0.9, "{near:?}");
    assert_eq!(embeddings.embed(&["ab", "aab", "cd"]).unwrap().len(), 3);
    assert_eq!(server.seen.requests(), 1, "all texts were cached");
    assert!(embeddings.id().starts_with("tiny at http://127.0.0.1:"));
    let many: Vec<String> = (0..150).map(|i| format!("a{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(embeddings.embed(&many).unwrap().len(), 150);
    assert_eq!(server.seen.requests(), 4, "three batches of at most 64");
}
