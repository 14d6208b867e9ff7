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
    let exchanges = Arc::<Mutex<Vec<Value>>>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let recorded = Arc::clone(&exchanges);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let recorded = Arc::clone(&recorded);
            tokio::spawn(async move {
                let Ok(Some(request)) = read_request(&mut client).await else { return };
                let response = forward(&request, server).await.unwrap();
                recorded.lock().unwrap().push(exchange(&request, &response));
                let _ = client.write_all(&response).await;
            });
        }
    });
    (address, exchanges)
}

fn exchange(request: &[u8], response: &[u8]) -> Value {
    let (head, body) = split(request);
    let mut first = head.lines().next().unwrap().split(' ');
    let (method, path) = (first.next().unwrap().to_owned(), first.next().unwrap().to_owned());
    let (response_head, response) = split(response);
    let status: u16 = response_head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = response_head.to_lowercase().contains("transfer-encoding: chunked");
    let response = if chunked { decode_chunked(response) } else { response.to_vec() };
    json!({"method": method, "path": path, "body": hex(body), "status": status, "answer": hex(&response)})
}

fn split(message: &[u8]) -> (String, &[u8]) {
    let end = message.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    (String::from_utf8_lossy(&message[..end]).into_owned(), &message[end..])
}

fn decode_chunked(mut bytes: &[u8]) -> Vec<u8> {
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
