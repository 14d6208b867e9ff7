//! Which failures to connect do not pass by waiting?
//!
//! A name that nobody knows or a port where nobody listens may be there tomorrow. A certificate that is not trusted, or no TLS
//! where it was asked for, is for somebody to mend.

use rustls::{CertificateError, Error as Tls};
use std::{error::Error, io};

/// What the verifier calls a certificate that may sign others, shown by a server as its own; it has no type of its own.
const AUTHORITY: &str = "CaUsedAsEndEntity";

/// What to do about a connection that fails for good; `None` where it may pass.
pub(crate) fn for_good(e: &(dyn Error + 'static)) -> Option<String> {
    match tls(e)? {
        Tls::InvalidCertificate(CertificateError::Other(why)) if why.to_string() == AUTHORITY => Some(format!(
            "its certificate is that of an authority, which signs others' and is not for a server to show ({why}): make one \
             for the server (CA:FALSE, with its name or address) and sign it with the authority's key, have the server show \
             that one, and have SSL_CERT_FILE name a file with the authority's"
        )),
        Tls::InvalidCertificate(problem) => {
            Some(format!("its certificate is not accepted ({problem}): {}", mend(problem)))
        }
        Tls::NoCertificatesPresented => Some("it shows no certificate: have its TLS set up, or use http".to_owned()),
        Tls::InvalidMessage(_) => Some("it does not speak TLS: does its address begin with http://?".to_owned()),
        Tls::PeerIncompatible(problem) => Some(format!("it speaks no TLS that is spoken here ({problem:?})")),
        _ => None,
    }
}

fn mend(problem: &CertificateError) -> &'static str {
    match problem {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "give its address by the name the certificate is for"
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => "have it renewed, or set this machine's clock",
        _ => "have SSL_CERT_FILE name a file with the certificate of whoever signed it",
    }
}

/// The cause that TLS gives, wherever it is in the chain. An error of the system hides what it is made of from `source`.
fn tls<'e>(e: &'e (dyn Error + 'static)) -> Option<&'e Tls> {
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
