//! TLS on a listener: one certificate, which can be exchanged while the listener runs, and, where clients
//! have to show one, the authorities that sign theirs.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_names::NamedClients;

/// Time that a client may take to agree on keys.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// The name of HTTP/2 in a handshake (RFC 9113, 3.2).
pub(super) const ALPN_HTTP2: &[u8] = b"h2";
/// The name of HTTP/1.1 in a handshake.
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// The texts, in PEM, by which a listener proves who it is.
#[derive(Clone)]
pub struct ListenerPem {
    /// The certificate and those between it and its authority.
    pub cert: Vec<u8>,
    /// Private key of the certificate, in PEM. A secret.
    pub key: Vec<u8>,
    /// Authorities of which a client has to show a certificate; `None`: clients show none.
    pub clients: Option<Vec<u8>>,
    /// Lists of the clients' certificates that are revoked; read only with `clients`.
    pub revoked: Option<Vec<u8>>,
    /// Names of which a client's certificate must have one; read only with `clients`. None: any name will do.
    pub names: Vec<String>,
}

impl std::fmt::Debug for ListenerPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ListenerPem(..)")
    }
}

/// Reasons why a listener cannot use its certificate.
#[derive(Debug, thiserror::Error)]
pub enum ListenerTlsError {
    /// A PEM text does not hold what it should.
    #[error("{what} cannot be read: {reason}")]
    Pem {
        /// Names the text that cannot be read, such as `the private key`.
        what: &'static str,
        /// The parser's reason, in its own words.
        reason: String,
    },
    /// The key is another certificate's.
    #[error("the private key does not belong to the certificate")]
    OtherKey,
    /// Something else is wrong with them.
    #[error("the certificate cannot be used: {0}")]
    Unfit(String),
    /// The clients' authorities or the list of revoked certificates cannot be used.
    #[error("the authorities of clients cannot be used: {0}")]
    Authorities(String),
    /// A certificate cannot have this name.
    #[error("names must list names of hosts or IP addresses, not {0:?}")]
    Name(String),
}

/// The protocol that a listener speaks inside of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// HTTP/2 or HTTP/1.1, as the client likes best.
    Http,
    /// HTTP/2 alone, for gRPC.
    Grpc,
    /// The Redis protocol, which names none.
    Resp,
}

/// The TLS of one listener. Handshakes use the certificate that is in force when they begin.
pub struct ListenerTls {
    config: RwLock<Arc<ServerConfig>>,
    inside: Inside,
}

impl std::fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerTls").field("inside", &self.inside).finish_non_exhaustive()
    }
}

impl ListenerTls {
    /// TLS with this certificate.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn new(pem: &ListenerPem, inside: Inside) -> Result<Self, ListenerTlsError> {
        Ok(Self { config: RwLock::new(server_config(pem, inside)?), inside })
    }

    /// Uses another certificate from the next handshake on. Connections that are open stay.
    ///
    /// # Errors
    /// Why it cannot be used; the one before stays in force.
    pub fn replace(&self, pem: &ListenerPem) -> Result<(), ListenerTlsError> {
        let config = server_config(pem, self.inside)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Agrees on keys with a client.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        let handshake = TlsAcceptor::from(config).accept(stream);
        match tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await {
            Ok(agreed) => agreed,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long")),
        }
    }
}

fn server_config(pem: &ListenerPem, inside: Inside) -> Result<Arc<ServerConfig>, ListenerTlsError> {
    let chain = certificates("the certificate", &pem.cert)?;
    let key = PrivateKeyDer::from_pem_slice(&pem.key)
        .map_err(|error| ListenerTlsError::Pem { what: "the private key", reason: error.to_string() })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unfit = |error: rustls::Error| match error {
        rustls::Error::InconsistentKeys(_) => ListenerTlsError::OtherKey,
        error => ListenerTlsError::Unfit(error.to_string()),
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unfit)?;
    let builder = match &pem.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let wrong = |error: String| ListenerTlsError::Authorities(error);
            let mut roots = RootCertStore::empty();
            for authority in certificates("the authority of clients", clients)? {
                roots.add(authority).map_err(|error| wrong(error.to_string()))?;
            }
            let lists = revoked(pem.revoked.as_deref().unwrap_or_default())?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(lists)
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| wrong(error.to_string()))?;
            let verifier = NamedClients::verifier(verifier, &pem.names).map_err(ListenerTlsError::Name)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unfit)?;
    config.alpn_protocols = match inside {
        Inside::Http => vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()],
        Inside::Grpc => vec![ALPN_HTTP2.to_vec()],
        Inside::Resp => Vec::new(),
    };
    if pem.clients.is_some() {
        // No resumption: a client's certificate is checked in every handshake, so one that is revoked is
        // refused at once.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    }
    Ok(Arc::new(config))
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ListenerTlsError> {
    let wrong = |reason: String| ListenerTlsError::Pem { what, reason };
    let read: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(error.to_string()))?;
    if read.is_empty() { Err(wrong("it holds no certificate in PEM".to_owned())) } else { Ok(read) }
}

/// The lists of a file, which may be empty. By one that holds something else nobody would be revoked.
fn revoked(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, ListenerTlsError> {
    let wrong = |reason: String| ListenerTlsError::Pem { what: "the list of revoked certificates", reason };
    let read: Vec<_> = CertificateRevocationListDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(error.to_string()))?;
    match read.is_empty() && !pem.trim_ascii().is_empty() {
        true => Err(wrong("it holds no list in PEM, and is not empty".to_owned())),
        false => Ok(read),
    }
}
