//! One QUIC endpoint on one UDP socket that dials and accepts.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use quinn::{
    AsyncUdpSocket, ConnectError, Connection, ConnectionError, EndpointConfig, Runtime, TokioRuntime, VarInt,
};
use quinn_proto::HashedConnectionIdGenerator;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::certificate::SERVER_NAME;
use super::counters::{Counters, Refusal};
use super::identity::{self, IdentityError};
use super::negotiation::{self, Offers};
use super::socket::Watched;
use super::tls::{Lasting, Sides};
use super::trust::Trust;
use crate::core::regions::NodeName;
use crate::core::wire::WireVersion;

/// Longest handshake that others began.
pub(super) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// Longest handshake of ours. A connection that was begun while nothing passed waits longer and longer
/// between its packets: beginning anew is quicker.
const DIAL_DEADLINE: Duration = Duration::from_secs(3);

/// Reasons why a peer could not be dialled.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("cannot be dialled: {0}")]
    Connect(#[from] ConnectError),
    #[error("no answer in time")]
    Deadline,
    #[error("{0}")]
    Connection(ConnectionError),
    #[error("it speaks none of this daemon's wire versions: one of both is too old for the other ({0})")]
    Version(ConnectionError),
    #[error("{0}")]
    Identity(#[from] IdentityError),
}

/// The side of a link that does not accept the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refuser {
    /// This daemon does not accept the other's certificate.
    Here,
    /// The one that is dialled does not accept this one's.
    There,
    /// They speak no wire version that both know.
    Versions,
}

impl From<ConnectionError> for DialError {
    fn from(error: ConnectionError) -> Self {
        if refusal_of(&error) == Refusal::Protocol { Self::Version(error) } else { Self::Connection(error) }
    }
}

impl DialError {
    /// The reason, where it is the other's fault; nobody being there is nobody's.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Connect(_) | Self::Deadline => None,
            Self::Version(_) => Some(Refusal::Protocol),
            Self::Identity(_) => Some(Refusal::Identity),
            Self::Connection(error) => Some(refusal_of(error))
                .filter(|why| !matches!(why, Refusal::Handshake | Refusal::SlowHandshake)),
        }
    }

    /// Returns which side does not accept the other, where that is what is wrong.
    pub(super) fn refuser(&self) -> Option<Refuser> {
        match self {
            Self::Version(_) => Some(Refuser::Versions),
            Self::Identity(_) => Some(Refuser::Here),
            Self::Connection(error) if refusal_of(error) == Refusal::Certificate => match error {
                ConnectionError::ConnectionClosed(_) => Some(Refuser::There),
                _ => Some(Refuser::Here),
            },
            Self::Connection(ConnectionError::ApplicationClosed(close))
                if [UNNAMED, WITHDRAWN].contains(&close.error_code) =>
            {
                Some(Refuser::There)
            }
            _ => None,
        }
    }
}

/// The code of a connection closed because the other's certificate names no node.
pub(super) const UNNAMED: VarInt = VarInt::from_u32(1);
/// The code of a connection closed because the other's certificate is not accepted any more.
const WITHDRAWN: VarInt = VarInt::from_u32(5);
/// Time between two looks whether a handshake is confirmed.
const CONFIRMED_LOOK: Duration = Duration::from_millis(5);

/// Waits until the other side has said that the handshake is complete: with TLS 1.3 whoever dials is done
/// before its own certificate was looked at.
pub(super) async fn confirmed(connection: &Connection) {
    while connection.stats().frame_rx.handshake_done == 0 {
        sleep(CONFIRMED_LOOK).await;
    }
}

/// The carrier of datagrams and time: the machine's socket and runtime, or a simulation's.
pub struct Wire {
    runtime: Arc<dyn Runtime>,
    socket: Arc<dyn AsyncUdpSocket>,
    seed: Option<[u8; 32]>,
}

impl Wire {
    /// A UDP socket of this machine. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If it cannot be bound.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        let runtime = Arc::new(TokioRuntime);
        let socket = runtime.wrap_udp_socket(std::net::UdpSocket::bind(listen)?)?;
        Ok(Self { runtime, socket, seed: None })
    }

    /// Anything else, with the seed that QUIC draws its own numbers from, so that a run can be repeated.
    #[must_use]
    pub fn simulated(runtime: Arc<dyn Runtime>, socket: Arc<dyn AsyncUdpSocket>, seed: [u8; 32]) -> Self {
        Self { runtime, socket, seed: Some(seed) }
    }
}

/// The endpoint.
pub(super) struct Endpoint {
    quinn: quinn::Endpoint,
    client: ArcSwap<quinn::ClientConfig>,
    trust: watch::Sender<Arc<Trust>>,
    offers: ArcSwap<Offers>,
}

impl Endpoint {
    /// Speaks over this wire. Must be called inside a tokio runtime.
    pub(super) fn on(wire: Wire, sides: Sides, counters: Arc<Counters>) -> io::Result<Self> {
        let socket = Watched::new(wire.socket, counters);
        let Lasting { reset, ids } = sides.lasting;
        let mut config = EndpointConfig::new(Arc::new(reset));
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
        // With the bit greased, garbage could not be told from QUIC.
        config.grease_quic_bit(false);
        config.rng_seed(wire.seed);
        let quinn = quinn::Endpoint::new_with_abstract_socket(
            config,
            Some(sides.server),
            Arc::new(socket),
            wire.runtime,
        )?;
        let (trust, _) = watch::channel(sides.trust);
        let offers = ArcSwap::new(sides.offers);
        Ok(Self { quinn, client: ArcSwap::from_pointee(sides.client), trust, offers })
    }

    /// New connections, either way, use these certificates from now on. Open ones whose certificate is not
    /// accepted any more end.
    pub(super) fn replace(&self, sides: Sides) {
        self.quinn.set_server_config(Some(sides.server));
        self.client.store(Arc::new(sides.client));
        self.offers.store(sides.offers);
        // Last: a handshake that began with the certificates before hears of the change.
        self.trust.send_replace(sides.trust);
    }

    /// Returns which certificates are accepted, and when that changes. Taken before a handshake begins, so
    /// that no change is missed during it.
    pub(super) fn trust(&self) -> watch::Receiver<Arc<Trust>> {
        self.trust.subscribe()
    }

    /// Returns what those ask for who speak no version of ours.
    pub(super) fn offers(&self) -> Arc<Offers> {
        self.offers.load_full()
    }

    /// The bound address.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.quinn.local_addr()
    }

    /// Dials, and reads from the certificate who answered.
    pub(super) async fn dial(&self, address: SocketAddr) -> Result<(Connection, RemotePeer), DialError> {
        let client = quinn::ClientConfig::clone(&self.client.load());
        let connecting = self.quinn.connect_with(client, address, SERVER_NAME)?;
        let connection = timeout(DIAL_DEADLINE, connecting).await.map_err(|_| DialError::Deadline)??;
        match RemotePeer::of(&connection) {
            Ok(peer) => Ok((connection, peer)),
            Err(error) => {
                connection.close(UNNAMED, b"your certificate names no node");
                Err(error.into())
            }
        }
    }

    /// The next connection that somebody wants; `None` after [`Self::close`].
    pub(super) async fn accept(&self) -> Option<quinn::Incoming> {
        self.quinn.accept().await
    }

    /// Closes every connection, telling the peers, and accepts no more.
    pub(super) fn close(&self) {
        self.quinn.close(VarInt::from_u32(0), b"leaving");
    }

    /// Waits until the peers know.
    pub(super) async fn closed(&self) {
        self.quinn.wait_idle().await;
    }
}

/// The daemon on the other side of a connection, and the version that is spoken on it.
#[derive(Debug)]
pub(super) struct RemotePeer {
    /// Region and node that the peer's certificate names.
    pub(super) name: NodeName,
    /// Wire version that the handshake agreed on.
    pub(super) version: WireVersion,
}

impl RemotePeer {
    pub(super) fn of(connection: &Connection) -> Result<Self, IdentityError> {
        let chain = chain_of(connection).ok_or(IdentityError::Missing)?;
        let name = identity::node_of(chain.first().ok_or(IdentityError::Missing)?)?;
        Ok(Self { name, version: negotiation::agreed(connection) })
    }
}

/// The certificates that the other side of a connection showed, its own first.
pub(super) fn chain_of(connection: &Connection) -> Option<Vec<CertificateDer<'static>>> {
    connection.peer_identity()?.downcast().ok().map(|chain| *chain)
}

/// Ends a connection if the other's certificate is not accepted any more, and says why.
pub(super) fn end_if_withdrawn(connection: &Connection, trust: &Trust) -> Option<String> {
    let chain = chain_of(connection)?;
    let error = trust.still_accepts(&chain).err()?;
    connection.close(WITHDRAWN, b"your certificate is not accepted any more");
    Some(format!("the other's certificate is not accepted any more: {error}"))
}

/// Returns why a handshake failed, as a reason to count.
pub(super) fn refusal_of(error: &ConnectionError) -> Refusal {
    let code = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        ConnectionError::TimedOut => return Refusal::SlowHandshake,
        _ => return Refusal::Handshake,
    };
    // QUIC carries TLS alerts as 0x100 and the alert's number (RFC 9001, 4.8).
    match code.checked_sub(0x100) {
        Some(120) => Refusal::Protocol,
        Some(42..=49 | 51 | 113..=116) => Refusal::Certificate,
        _ => Refusal::Handshake,
    }
}
