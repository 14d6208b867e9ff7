//! Faulty network proxy: applies a scripted fault to each request.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Fault of one request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// No fault.
    Pass,
    /// Connection reset before the response.
    Reset,
    /// No response.
    Hang,
    /// A response by the proxy: status, headers (each with line break) and body.
    Reply(u16, String, String),
    /// A truncated response.
    HalfBody,
    /// The response in small chunks with this delay.
    Drip(Duration),
    /// The response in this many chunks with this delay.
    Parts(usize, Duration),
}

impl Fault {
    pub(crate) fn reply(status: u16, body: &str) -> Self {
        Fault::Reply(status, String::new(), body.to_owned())
    }
}

/// A running proxy. It stops when dropped.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// Requests received, without heartbeats, whose number depends on timing.
    pub(crate) requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Applies the faults to the first requests, one each; later ones pass.
    pub(crate) async fn start(server: SocketAddr, faults: impl IntoIterator<Item = Fault>) -> Self {
        Self::start_before(server, "", faults).await
    }

    /// Applies the faults to the first requests whose request line contains `path`; all others pass.
    pub(crate) async fn start_before(
        server: SocketAddr,
        path: &'static str,
        faults: impl IntoIterator<Item = Fault>,
    ) -> Self {
        let faults: Arc<Mutex<VecDeque<Fault>>> = Arc::new(Mutex::new(faults.into_iter().collect()));
        let requests = Arc::<AtomicUsize>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counter = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (faults, counter) = (Arc::clone(&faults), Arc::clone(&counter));
                // A disconnecting client ends only its own connection.
                tokio::spawn(async move {
                    let _ = serve(client, server, path, &faults, &counter).await;
                });
            }
        });
        Proxy { address, requests, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Handles one request on one connection.
async fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    path: &str,
    faults: &Mutex<VecDeque<Fault>>,
    counter: &AtomicUsize,
) -> std::io::Result<()> {
    let Some(request) = read_request(&mut client).await? else { return Ok(()) };
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    if line.contains("session_heartbeat") {
        return client.write_all(&forward(&request, server).await?).await;
    }
    counter.fetch_add(1, Ordering::SeqCst);
    let fault = match line.contains(path) {
        true => faults.lock().unwrap().pop_front().unwrap_or(Fault::Pass),
        false => Fault::Pass,
    };
    match fault {
        Fault::Reset => {
            client.set_zero_linger()?;
            drop(client);
        }
        Fault::Hang => tokio::time::sleep(Duration::from_secs(3600)).await,
        Fault::Reply(status, headers, body) => {
            let length = body.len();
            let text = format!(
                "HTTP/1.1 {status} Injected\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            client.write_all(text.as_bytes()).await?;
        }
        Fault::Pass => client.write_all(&forward(&request, server).await?).await?,
        Fault::HalfBody => {
            let answer = forward(&request, server).await?;
            client.write_all(&answer[..answer.len() - 20]).await?;
        }
        Fault::Drip(pause) => drip(&mut client, &forward(&request, server).await?, 16, pause).await?,
        Fault::Parts(parts, pause) => {
            let answer = forward(&request, server).await?;
            drip(&mut client, &answer, answer.len().div_ceil(parts), pause).await?;
        }
    }
    Ok(())
}

async fn drip(client: &mut TcpStream, answer: &[u8], size: usize, pause: Duration) -> std::io::Result<()> {
    for drop in answer.chunks(size) {
        client.write_all(drop).await?;
        client.flush().await?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// Reads head and body of a request.
pub(crate) async fn read_request(client: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        let head_end = bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4);
        if let Some(end) = head_end {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            if bytes.len() >= end + length.unwrap_or(0) {
                return Ok(Some(bytes));
            }
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}

/// The complete response of the server, which closes the connection.
pub(crate) async fn forward(request: &[u8], server: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut upstream = TcpStream::connect(server).await?;
    let line_end = request.windows(2).position(|w| w == b"\r\n").expect("a request line") + 2;
    upstream.write_all(&request[..line_end]).await?;
    upstream.write_all(b"connection: close\r\n").await?;
    upstream.write_all(&request[line_end..]).await?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).await?;
    Ok(answer)
}
