//! Recording proxy, with which `tests/recorded/tinker.jsonl` was made.

use super::proxy::{forward, read_request};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{io::AsyncWriteExt, net::TcpListener};

/// Forwards to `server` and records all exchanges. Needs a running runtime.
pub(crate) async fn record(server: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<Value>>>) {
    let kept = Arc::<Mutex<Vec<Value>>>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let keeping = Arc::clone(&kept);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let keeping = Arc::clone(&keeping);
            tokio::spawn(async move {
                let Ok(Some(request)) = read_request(&mut client).await else { return };
                let answer = forward(&request, server).await.unwrap();
                keeping.lock().unwrap().push(exchange(&request, &answer));
                let _ = client.write_all(&answer).await;
            });
        }
    });
    (address, kept)
}

fn exchange(request: &[u8], answer: &[u8]) -> Value {
    let (head, body) = split(request);
    let mut first = head.lines().next().unwrap().split(' ');
    let (method, path) = (first.next().unwrap().to_owned(), first.next().unwrap().to_owned());
    let (answer_head, answer) = split(answer);
    let status: u16 = answer_head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = answer_head.to_lowercase().contains("transfer-encoding: chunked");
    let answer = if chunked { unchunk(answer) } else { answer.to_vec() };
    json!({"method": method, "path": path, "body": hex(body), "status": status, "answer": hex(&answer)})
}

fn split(message: &[u8]) -> (String, &[u8]) {
    let end = message.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    (String::from_utf8_lossy(&message[..end]).into_owned(), &message[end..])
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.extend(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 4 + size..];
    }
    out
}

/// Text unchanged, binary data in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\u{0}') => text.to_owned(),
        _ => format!("hex:{}", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()),
    }
}
