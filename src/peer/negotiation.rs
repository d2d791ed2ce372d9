//! The wire version of a connection. Both sides name theirs in the handshake, by ALPN (RFC 7301), and the
//! side that was dialled takes the newest that it finds in both lists. TLS protects the choice, so nobody
//! between two daemons can talk them into an older version.

use std::sync::{Arc, Mutex, PoisonError};

use quinn::Connection;
use quinn::crypto::rustls::HandshakeData;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::core::wire::WireVersion;

/// So many protocols of a stranger are logged, and so many bytes of each.
const OFFERED_MAX: usize = 8;
const OFFERED_BYTES_MAX: usize = 32;

/// The name of a version in a handshake. A name once given stays: daemons of both versions go by it.
const fn protocol(version: WireVersion) -> &'static [u8] {
    match version {
        // Versions up to this one had no names of their own.
        WireVersion::V5 => b"tidegate/1",
        WireVersion::V6 => b"tidegate/6",
    }
}

/// These versions as a handshake offers them.
pub(super) fn protocols(versions: &[WireVersion]) -> Vec<Vec<u8>> {
    versions.iter().map(|version| protocol(*version).to_vec()).collect()
}

/// These versions with their names in handshakes, for people.
pub(super) fn named(versions: &[WireVersion]) -> String {
    let named = |version: &WireVersion| format!("{version} ({})", protocol(*version).escape_ascii());
    versions.iter().map(named).collect::<Vec<_>>().join(", ")
}

/// The version that the handshake of a connection agreed on. Without an agreement there is no connection
/// (RFC 9001, 8.1); should there be one all the same, the older version says less.
pub(super) fn agreed(connection: &Connection) -> WireVersion {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    let chosen = data.and_then(|data| data.protocol);
    let version = |chosen: Vec<u8>| WireVersion::SPOKEN.into_iter().find(|known| protocol(*known) == chosen);
    chosen.and_then(version).unwrap_or(WireVersion::PREVIOUS)
}

/// Gives out the one certificate of this daemon, and notes what a daemon offered that shares no version: TLS
/// ends such a handshake without a word of it.
#[derive(Debug)]
pub(super) struct Offers {
    certificate: Arc<CertifiedKey>,
    spoken: Vec<Vec<u8>>,
    /// Name that the newest handshake asked for that will fail.
    unknown: Mutex<Option<String>>,
}

impl Offers {
    pub(super) fn new(certificate: CertifiedKey, versions: &[WireVersion]) -> Self {
        Self { certificate: Arc::new(certificate), spoken: protocols(versions), unknown: Mutex::default() }
    }

    /// The protocols that the handshake which has just failed had named. Each of two that fail in the same
    /// moment may be told the other's.
    pub(super) fn take_unknown(&self) -> Option<String> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note<'a>(&self, offered: impl Iterator<Item = &'a [u8]> + Clone) {
        if offered.clone().any(|name| self.spoken.iter().any(|spoken| spoken == name)) {
            return;
        }
        let text = |name: &'a [u8]| name.get(..OFFERED_BYTES_MAX).unwrap_or(name).escape_ascii().to_string();
        let texts: Vec<String> = offered.take(OFFERED_MAX).map(text).collect();
        *self.unknown.lock().unwrap_or_else(PoisonError::into_inner) = Some(texts.join(", "));
    }
}

impl ResolvesServerCert for Offers {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match hello.alpn() {
            Some(offered) => self.note(offered.collect::<Vec<_>>().into_iter()),
            None => self.note(std::iter::empty()),
        }
        Some(Arc::clone(&self.certificate))
    }
}
