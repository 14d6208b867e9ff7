//! Classification of TLS failures: untrusted certificates and missing TLS are permanent, other connection failures may
//! pass.

use rustls::{CertificateError, Error as Tls};
use std::{error::Error, io};

/// Text of the verifier's error for a CA certificate used as a server certificate; it has no type of its own.
const CA_AS_END_ENTITY: &str = "CaUsedAsEndEntity";

/// Error and remedy of a permanent TLS failure; `None` if the failure may pass.
pub(crate) fn permanent_failure(e: &(dyn Error + 'static)) -> Option<String> {
    match find_tls_error(e)? {
        Tls::InvalidCertificate(CertificateError::Other(why)) if why.to_string() == CA_AS_END_ENTITY => Some(format!(
            "the server presents a CA certificate ({why}): create a certificate for the server (CA:FALSE, with its name or \
             address), sign it with the CA's key, configure the server to present it, and set SSL_CERT_FILE to a file with the \
             CA certificate"
        )),
        Tls::InvalidCertificate(problem) => {
            Some(format!("the server's certificate is not accepted ({problem}): {}", remedy(problem)))
        }
        Tls::NoCertificatesPresented => {
            Some("the server presents no certificate: configure its TLS or use http".to_owned())
        }
        Tls::InvalidMessage(_) => Some("the server does not use TLS: use an http:// address".to_owned()),
        Tls::PeerIncompatible(problem) => Some(format!("no common TLS version or cipher ({problem:?})")),
        _ => None,
    }
}

fn remedy(problem: &CertificateError) -> &'static str {
    match problem {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "use the host name that the certificate was issued for"
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => "renew the certificate or correct this machine's clock",
        _ => "set SSL_CERT_FILE to a file with the certificate of its issuer",
    }
}

/// The TLS error in the chain of causes. `io::Error` hides its inner error from `source`.
fn find_tls_error<'e>(e: &'e (dyn Error + 'static)) -> Option<&'e Tls> {
    let inner = |e: &'e (dyn Error + 'static)| -> Option<&'e (dyn Error + 'static)> {
        match e.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => e.source(),
        }
    };
    let mut next = Some(e);
    while let Some(e) = next {
        if let Some(found) = e.downcast_ref::<Tls>() {
            return Some(found);
        }
        next = inner(e);
    }
    None
}
