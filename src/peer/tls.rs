//! Admission of daemons: mutual TLS 1.3 against the cluster's authority, the same on both sides of a
//! connection.
//!
//! One certificate serves dialling and accepting. Nothing of the process's default provider is used, so that
//! several daemons with different authorities live in one process.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, ServerConfig, TransportConfig, VarInt};
use ring::hmac;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, crypto};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::certificate;
use super::congestion::Congestion;
use super::identity::{self, IdentityError};
use super::negotiation::{self, Offers};
use super::rules::READERS_MAX;
use super::trust::{self, Trust};
use crate::core::regions::NodeName;
use crate::core::time::Timestamp;
use crate::core::wire::WireVersion;

/// A connection that others dialled is over without a sign of life for this long, or longer where answers
/// were late (RFC 9000, 10.1).
pub const IDLE_TIMEOUT_MS: u32 = 5_000;
/// A sign of life goes out at least this often, and is answered.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Streams that a peer may have open to us. More wait on its side.
pub const STREAMS_MAX: u32 = 64;
/// Datagrams waiting to be read, or to be sent, in bytes. Full: the oldest are dropped.
const DATAGRAM_BUFFER_BYTES: usize = 256 * 1_024;
/// The bytes that a peer may send on all streams of a connection before they are read.
const RECEIVE_WINDOW_BYTES: u32 = 1024 * 1_024;
/// Assumed until a round trip was measured: a lost first packet is repeated after three of these.
const RTT_ASSUMED: Duration = Duration::from_millis(100);
/// Handshakes begun by others and not yet looked at. More are refused by QUIC itself.
const INCOMING_MAX: usize = 256;

/// The cluster's authority and this node's certificate, as PEM texts.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsPem {
    /// The authority's certificate; several while authorities are exchanged.
    pub ca: Vec<u8>,
    /// Certificate of the node in PEM, with those up to its authority.
    pub cert: Vec<u8>,
    /// Its private key. While the two files are replaced there are several: the one that belongs to the
    /// certificate counts.
    pub key: Vec<u8>,
    /// Lists of the certificates that the authorities revoked; empty: they revoked none.
    pub revoked: Vec<u8>,
}

impl std::fmt::Debug for TlsPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsPem(..)")
    }
}

/// Reasons why these certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM text does not hold what it should.
    #[error("{what} cannot be read: {reason}; `tidegate cert` makes certificates")]
    Pem {
        /// Names the text that cannot be read, such as `the node's certificate`.
        what: &'static str,
        /// Parser's reason, in its own words.
        reason: String,
    },
    /// The certificate names no node.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate was not issued to this node.
    #[error(
        "the certificate was issued to node {:?} of region {:?}, but this is node {:?} of region {:?}",
        certificate.node, certificate.region, configured.node, configured.region
    )]
    OtherNode {
        /// Region and node that the certificate names.
        certificate: NodeName,
        /// Region and node that the configuration names.
        configured: NodeName,
    },
    /// Certificate, key and authority do not go together.
    #[error("the peer certificate cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority cannot be used.
    #[error("the cluster's authority cannot be used: {0}")]
    Authority(String),
    /// The certificate is over.
    #[error("the node's certificate ended on {0}: issue a new one with `tidegate cert issue`")]
    Ended(String),
    /// The certificate is not valid yet.
    #[error("the node's certificate begins on {0} only: is this machine's clock right?")]
    NotBegun(String),
    /// The authority's certificate is over.
    #[error(
        "the certificate of the cluster's authority ended on {0}: make a new authority with `tidegate cert ca`"
    )]
    AuthorityEnded(String),
    /// The key is another certificate's.
    #[error("the node's private key does not belong to its certificate")]
    OtherKey,
    /// The certificate was signed by somebody else.
    #[error("the node's certificate was not signed by the cluster's authority: the others would refuse it")]
    OtherAuthority,
    /// The certificate is revoked.
    #[error("the node's certificate is revoked: issue a new one with `tidegate cert issue`")]
    Revoked,
    /// It is not accepted for another reason.
    #[error("the others would refuse the node's certificate: {0}")]
    Unfit(String),
}

/// The ends of certificates, in seconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateDates {
    /// End of the node's certificate, in seconds since the epoch.
    pub node: i64,
    /// The authority's; of several the one that holds longest.
    pub authority: i64,
}

/// Checks whether the others will accept this certificate at `now`, and until when.
///
/// # Errors
/// Why they will not.
pub fn check(pem: &TlsPem, now: Timestamp) -> Result<CertificateDates, TlsError> {
    let Parts { chain, keys, authorities, lists } = Parts::of(pem)?;
    let own = chain.first().ok_or(IdentityError::Missing)?;
    let seconds = now.micros() / 1_000_000;
    let now = i64::try_from(seconds).unwrap_or(i64::MAX);

    let (begins, ends) = validity(own).ok_or(IdentityError::Unreadable)?;
    if ends.0 < now {
        return Err(TlsError::Ended(ends.1));
    }
    if begins.0 > now {
        return Err(TlsError::NotBegun(begins.1));
    }
    let last = authorities.iter().filter_map(|authority| Some(validity(authority)?.1)).max();
    let authority = last.ok_or_else(|| TlsError::Authority("it cannot be read".into()))?;
    if authority.0 < now {
        return Err(TlsError::AuthorityEnded(authority.1));
    }

    let provider = Arc::new(crypto::ring::default_provider());
    key_of(&chain, keys, &provider)?;
    let trust = Trust::new(&authorities, &lists, &provider).map_err(TlsError::Authority)?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    trust.check(&chain, at).map_err(|error| match error {
        error if trust::signed_by_another(&error) => TlsError::OtherAuthority,
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => TlsError::Revoked,
        error => TlsError::Unfit(error.to_string()),
    })?;
    Ok(CertificateDates { node: ends.0, authority: authority.0 })
}

/// Says whether the certificate is this node's.
///
/// # Errors
/// It is another one's, or cannot be read.
pub fn check_name(pem: &TlsPem, name: &NodeName) -> Result<(), TlsError> {
    Parts::of(pem)?.name(name)
}

/// From when and until when a certificate holds: seconds since the epoch, and for people.
fn validity(certificate: &CertificateDer<'_>) -> Option<((i64, String), (i64, String))> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let validity = certificate.validity();
    let date = |time: &ASN1Time| (time.timestamp(), certificate::date(time.timestamp()));
    Some((date(&validity.not_before), date(&validity.not_after)))
}

/// The contents of the texts.
struct Parts {
    chain: Vec<CertificateDer<'static>>,
    keys: Vec<PrivateKeyDer<'static>>,
    authorities: Vec<CertificateDer<'static>>,
    lists: Vec<CertificateRevocationListDer<'static>>,
}

impl Parts {
    fn name(&self, name: &NodeName) -> Result<(), TlsError> {
        let certificate = identity::node_of(self.chain.first().ok_or(IdentityError::Missing)?)?;
        if certificate == *name {
            return Ok(());
        }
        Err(TlsError::OtherNode { certificate, configured: name.clone() })
    }

    fn of(pem: &TlsPem) -> Result<Self, TlsError> {
        // An empty file revokes nobody. One that holds something else is a mistake, by which nobody would be
        // revoked.
        let lists = match pem.revoked.trim_ascii() {
            [] => Vec::new(),
            text => some("the list of revoked certificates", text)?,
        };
        Ok(Self {
            chain: some("the node's certificate", &pem.cert)?,
            keys: some("the node's private key", &pem.key)?,
            authorities: some("the cluster's authority", &pem.ca)?,
            lists,
        })
    }
}

/// Everything of a kind that a text holds, which must be something.
fn some<T: PemObject>(what: &'static str, pem: &[u8]) -> Result<Vec<T>, TlsError> {
    let unreadable = |error: rustls::pki_types::pem::Error| TlsError::Pem { what, reason: error.to_string() };
    let found = T::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    if found.is_empty() { Err(unreadable(rustls::pki_types::pem::Error::NoItemsFound)) } else { Ok(found) }
}

/// The key that belongs to a certificate, and both together.
fn key_of(
    chain: &[CertificateDer<'static>],
    keys: Vec<PrivateKeyDer<'static>>,
    provider: &crypto::CryptoProvider,
) -> Result<(PrivateKeyDer<'static>, CertifiedKey), TlsError> {
    let mut refused = TlsError::OtherKey;
    for key in keys {
        match CertifiedKey::from_der(chain.to_vec(), key.clone_key(), provider) {
            Ok(certified) => return Ok((key, certified)),
            Err(rustls::Error::InconsistentKeys(_)) => {}
            Err(error) => refused = TlsError::Rustls(error),
        }
    }
    Err(refused)
}

/// Both sides of every new connection.
pub(super) struct Sides {
    pub(super) server: ServerConfig,
    pub(super) client: ClientConfig,
    /// Judges the certificates of others, for both sides alike.
    pub(super) trust: Arc<Trust>,
    /// The versions that those asked for who speak none of ours.
    pub(super) offers: Arc<Offers>,
    /// The keys that are the same after a restart.
    pub(super) lasting: Lasting,
}

/// By these a daemon knows that a packet belongs to a connection of the process before it, and says so in a
/// way that the peer believes (RFC 9000, 10.3): it need not wait to find out.
pub(super) struct Lasting {
    /// Key of the answers to such packets.
    pub(super) reset: hmac::Key,
    /// Key of the names by which connections are told apart.
    pub(super) ids: u64,
}

impl Lasting {
    fn of(key: &PrivateKeyDer<'_>) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, key.secret_der());
        let draw = |purpose: &str| hmac::sign(&secret, purpose.as_bytes());
        let ids = draw("tidegate connection ids").as_ref().first_chunk().copied().unwrap_or_default();
        Self {
            reset: hmac::Key::new(hmac::HMAC_SHA256, draw("tidegate stateless reset").as_ref()),
            ids: u64::from_be_bytes(ids),
        }
    }
}

/// Makes both sides from PEM texts. They offer these versions, the one that is liked best first.
///
/// # Errors
/// If they cannot be read, do not go together, or were issued to another node than `name`.
pub(super) fn sides(pem: &TlsPem, name: &NodeName, versions: &[WireVersion]) -> Result<Sides, TlsError> {
    let parts = Parts::of(pem)?;
    parts.name(name)?;
    let Parts { chain, keys, authorities, lists } = parts;
    let provider = Arc::new(crypto::ring::default_provider());
    let (key, certified) = key_of(&chain, keys, &provider)?;
    let offers = Arc::new(Offers::new(certified, versions));
    let lasting = Lasting::of(&key);
    let trust = Arc::new(Trust::new(&authorities, &lists, &provider).map_err(TlsError::Authority)?);

    let mut server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::clone(&trust) as _)
        .with_cert_resolver(Arc::clone(&offers) as _);
    server.alpn_protocols = negotiation::protocols(versions);
    // No resumption: a certificate is checked in every handshake, and a withdrawn authority counts at once.
    server.send_tls13_tickets = 0;

    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&trust) as _)
        .with_client_auth_cert(chain, key)?;
    client.alpn_protocols = negotiation::protocols(versions);
    client.resumption = rustls::client::Resumption::disabled();

    let cipher = |_| TlsError::Rustls(rustls::Error::General("no cipher for QUIC".into()));
    let server = QuicServerConfig::try_from(server).map_err(cipher)?;
    let client = QuicClientConfig::try_from(client).map_err(cipher)?;
    let mut server = ServerConfig::with_crypto(Arc::new(server));
    server.transport_config(Arc::new(accepting())).max_incoming(INCOMING_MAX);
    let mut client = ClientConfig::new(Arc::new(client));
    client.transport_config(Arc::new(dialling()));
    Ok(Sides { server, client, trust, offers, lasting })
}

fn both() -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_TIMEOUT_MS).into()))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .initial_rtt(RTT_ASSUMED)
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .congestion_controller_factory(Arc::new(Congestion::default()))
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES);
    transport
}

/// A connection that others dialled: they send, we read; and they may ask for our rules.
fn accepting() -> TransportConfig {
    let mut transport = both();
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_bidi_streams(VarInt::from_u32(READERS_MAX))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES))
        .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOW_BYTES / 8))
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES));
    transport
}

/// A connection that we dialled: we send, and nothing is taken from it.
fn dialling() -> TransportConfig {
    let mut transport = both();
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .send_window(u64::from(RECEIVE_WINDOW_BYTES))
        // `None` would forbid sending, too. More than a byte ends the connection.
        .datagram_receive_buffer_size(Some(1));
    transport
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::certificate::{create_ca, issue};

    fn name(node: &str) -> NodeName {
        NodeName { region: "eu".into(), node: node.into() }
    }

    fn pem(node: &str) -> TlsPem {
        let now = Timestamp(1_760_000_000_000_000);
        let ca = create_ca(now).unwrap();
        let issued = issue(&ca, &name(node), now).unwrap();
        TlsPem {
            ca: ca.certificate_pem().into(),
            cert: issued.certificate_pem.into(),
            key: issued.key_pem.into(),
            revoked: Vec::new(),
        }
    }

    fn sides(pem: &TlsPem, name: &NodeName) -> Result<Sides, TlsError> {
        super::sides(pem, name, &WireVersion::SPOKEN)
    }

    #[test]
    fn a_certificate_of_another_node_is_refused_by_name() {
        assert!(sides(&pem("a"), &name("a")).is_ok());
        let error = sides(&pem("a"), &name("b")).err().unwrap().to_string();
        assert!(error.contains("issued to node \"a\" of region \"eu\", but this is node \"b\""), "{error}");
    }

    #[test]
    fn each_unreadable_text_is_named() {
        for (at, what) in ["certificate", "private key", "authority"].into_iter().enumerate() {
            let mut broken = pem("a");
            *[&mut broken.cert, &mut broken.key, &mut broken.ca][at] = b"nothing".to_vec();
            let error = sides(&broken, &name("a")).err().unwrap().to_string();
            assert!(error.contains(what) && error.contains("tidegate cert"), "{error}");
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let mixed = TlsPem { key: pem("a").key, ..pem("a") };
        assert!(matches!(sides(&mixed, &name("a")), Err(TlsError::OtherKey)));
    }

    /// As `tidegate cert renew` leaves the file between its two steps.
    #[test]
    fn of_several_keys_the_one_of_the_certificate_counts() {
        let good = pem("a");
        for keys in [[pem("a").key, good.key.clone()], [good.key.clone(), pem("a").key]] {
            let both = TlsPem { key: keys.concat(), ..good.clone() };
            assert!(sides(&both, &name("a")).is_ok() && check(&both, NOW).is_ok());
        }
    }

    const NOW: Timestamp = Timestamp(1_760_000_000_000_000);
    const DAY: u64 = 86_400_000_000;

    #[test]
    fn what_the_others_would_refuse_is_found_before_they_do() {
        let good = pem("a");
        let dates = check(&good, NOW).unwrap();
        assert_eq!(dates.node, 1_760_000_000 + 365 * 86_400);
        assert_eq!(dates.authority, 1_760_000_000 + 3_650 * 86_400);
        let error = |pem: &TlsPem, now| check(pem, now).unwrap_err().to_string();
        assert_eq!(
            error(&good, Timestamp(NOW.0 + 366 * DAY)),
            "the node's certificate ended on 2026-10-09: issue a new one with `tidegate cert issue`"
        );
        assert!(error(&good, Timestamp(NOW.0 - DAY)).contains("begins on 2025-10-09 only"));
        let other = TlsPem { ca: pem("a").ca, ..good.clone() };
        assert!(error(&other, NOW).contains("not signed by the cluster's authority"));
        let both = TlsPem { ca: [pem("a").ca, good.ca.clone()].concat(), ..good.clone() };
        assert!(check(&both, NOW).is_ok(), "one of several authorities is enough");
        let other = TlsPem { key: pem("a").key, ..good };
        assert_eq!(error(&other, NOW), "the node's private key does not belong to its certificate");
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", pem("a")), "TlsPem(..)");
    }
}
