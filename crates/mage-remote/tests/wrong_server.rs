//! Wrong kinds of servers, unreachable addresses and TLS failures: the error names the problem at once.

use crate::common::{tinker_double::TinkerDouble, tinker_script as script, vllm_double::Vllm};
use mage_engine::{Hint, WeightVersion, WeightsId, WeightsName};
use mage_remote::{Fingerprint, StatusLog, Timeouts, TinkerTrainer, VllmPool, VllmPoolSettings};
use std::{path::Path, sync::Arc, time::Duration};

fn pool(servers: Vec<String>) -> mage_engine::Result<VllmPool> {
    VllmPool::new(VllmPoolSettings {
        servers,
        model: "tiny".to_owned(),
        api_key: None,
        max_in_flight: 4,
        vocab_size: 16,
        max_seq_len: 256,
        tolerance: 1e-4,
        keep_versions: 2,
        timeouts: Timeouts::default(),
        request_timeout: Duration::from_secs(60),
        status_log: StatusLog::default(),
    })
}

#[test]
fn vllm_server_at_the_tinker_address_is_detected() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let vllm = runtime.block_on(Vllm::start(Duration::ZERO));
    let dir = tempfile::tempdir().unwrap();
    let settings = script::settings(&vllm.url(), dir.path(), StatusLog::default());
    let e = TinkerTrainer::connect(settings, None).err().unwrap();
    assert!(e.to_string().contains("this looks like a vLLM server"), "{e}");
    assert_eq!(e.hints(), [Hint::AddToPool]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tinker_server_at_a_vllm_address_is_detected() {
    let tinker = TinkerDouble::start(None).await;
    let pool = pool(vec![tinker.url()]).unwrap();
    let served = pool.served_models().await.remove(0).1.unwrap_err();
    let weights = WeightsId { name: WeightsName::default(), version: WeightVersion(0) };
    let fingerprint = Fingerprint(vec![-1.0; 23]);
    let pushed = pool.push_adapter(&weights, Path::new("/x"), &fingerprint).await.unwrap_err();
    for e in [served, pushed] {
        assert!(e.to_string().contains("this looks like a Tinker server"), "{e}");
        assert_eq!(e.hints(), [Hint::SetTrainerAddress]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_does_not_wait_for_an_unreachable_server() {
    let closed_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut server = script::settings(&format!("http://{closed_port}"), dir.path(), StatusLog::default()).server;
    // Outlasts the test.
    server.timeouts.outage = Duration::from_secs(3600);
    let e = server.probe(Duration::from_secs(1)).await.unwrap_err().to_string();
    assert!(e.contains("refused") && e.contains("waited 1 s"), "{e}");
    let served = pool(vec![server.url]).unwrap().served_models().await.remove(0).1;
    assert!(served.unwrap_err().to_string().contains("refused"));
}

/// A TLS server on loopback with a certificate; it only performs handshakes.
fn tls_server(pem: &[u8]) -> std::net::SocketAddr {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    let (certificate, key) =
        (CertificateDer::from_pem_slice(pem).unwrap(), PrivateKeyDer::from_pem_slice(pem).unwrap());
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config =
        rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let (config, listener) = (Arc::new(config), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap();
    // Ends with the test process.
    std::thread::spawn(move || {
        for mut caller in listener.incoming().flatten() {
            let mut tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            while tls.is_handshaking() && tls.complete_io(&mut caller).is_ok() {}
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn untrusted_certificate_fails_at_once() {
    let plain = TinkerDouble::start(None).await;
    let dir = tempfile::tempdir().unwrap();
    for (address, words) in [
        // A self-signed certificate, and a CA certificate as `openssl req -x509` creates it.
        (tls_server(include_bytes!("common/unsigned.pem")), ["certificate is not accepted", "SSL_CERT_FILE"]),
        (
            tls_server(include_bytes!("common/authority.pem")),
            ["presents a CA certificate", "sign it with the CA's key"],
        ),
        (plain.address, ["does not use TLS", "http://"]),
    ] {
        let mut server = script::settings(&format!("https://{address}"), dir.path(), StatusLog::default()).server;
        // Outlasts the test.
        server.timeouts.outage = Duration::from_secs(3600);
        let e = server.probe(Duration::from_secs(3600)).await.unwrap_err().to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{e}");
        let served = pool(vec![server.url]).unwrap().served_models().await.remove(0).1.unwrap_err().to_string();
        assert!(words.iter().all(|w| served.contains(w)), "{served}");
    }
}

#[test]
fn duplicate_addresses_are_rejected() {
    let e = pool(vec!["http://Host:80/v1".into(), "http://host/".into()]).unwrap_err().to_string();
    assert!(e.contains("http://host is listed twice"), "{e}");
}
