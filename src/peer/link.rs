//! One address, and the one connection that we dial to it and send on.
//!
//! A peer's messages come on the connection that it dialled (`inbound.rs`). So each direction has one owner,
//! and two peers that dial each other at once need no agreement.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, VarInt};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::codec;
use super::counters::{Counters, Refusal};
use super::endpoint::{self, DialError, Endpoint, Refuser, RemotePeer};
use super::queue::Queue;
use super::trust::Trust;
use crate::core::regions::NodeName;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::WireVersion;
use crate::telemetry::traces::{SpanKind, Tracer};

/// The first wait before dialling again; doubled up to [`BACKOFF_MAX`].
pub(super) const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest wait before dialling again.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A connection that answers nothing for this many looks, two seconds, is given up and dialled anew, though a
/// sign of life goes out every second. QUIC itself would wait much longer: after a cut its round trips look
/// long, and it doubles its patience with every probe.
const SILENT_LOOKS: u32 = 8;
/// Time between two looks at that.
const SILENCE_LOOK: Duration = Duration::from_millis(250);
/// A connection that lived this long was good: dialling again begins at [`BACKOFF_MIN`].
const STEADY: Duration = Duration::from_secs(1);
/// An address that turned out to be our own is tried again after this long: its name may come to mean
/// another.
const OWN_AGAIN: Duration = Duration::from_secs(60);
/// Longest time to hand one message to the network.
const SEND_DEADLINE: Duration = Duration::from_secs(2);
/// Messages kept from before a connection was up: what is older is stale.
const KEPT_ON_CONNECT: usize = 8;

/// The state of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// Address that the link dials, again whenever it is down.
    pub address: SocketAddr,
    /// Node that answered there last, by its certificate.
    pub peer: Option<NodeName>,
    /// True if the connection is up.
    pub connected: bool,
    /// The wire version that is spoken on it, while it is up.
    pub version: Option<WireVersion>,
    /// Round trip, while it is up.
    pub rtt: Option<Span>,
    /// Bytes of messages handed to the network since the link began.
    pub sent_bytes: u64,
    /// Bytes of messages received from this peer on the connections that it dialled.
    pub received_bytes: u64,
    /// Bytes of UDP payload sent on this link, everything included.
    pub udp_sent_bytes: u64,
    /// Bytes of UDP payload received on this link: acknowledgements.
    pub udp_received_bytes: u64,
    /// Packets that QUIC believes lost on this link.
    pub packets_lost: u64,
    /// Messages that wait to be sent on this link.
    pub queue_len: usize,
    /// Messages dropped because the queue was full, stale, or could not be sent in time.
    pub dropped: u64,
    /// Reason why it is down, or was down last.
    pub error: Option<String>,
    /// True if this daemon itself answers there.
    pub own: bool,
    /// Side that does not accept the other, if that is why it is down.
    pub refused: Option<Refuser>,
}

/// UDP bytes out, in, and packets lost.
#[derive(Debug, Default, Clone, Copy)]
struct Traffic([u64; 3]);

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    peer: Option<NodeName>,
    own: bool,
    /// The version of the connection, or of the last one: most likely the next one has it, too.
    version: Option<WireVersion>,
    /// True if the other side has said that it accepts us. Until then it may still refuse our certificate.
    confirmed: bool,
    error: Option<String>,
    refused: Option<Refuser>,
    /// Traffic of connections that are over.
    past: Traffic,
}

/// The parts of the node that every link needs.
pub(super) struct LinkContext {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) counters: Arc<Counters>,
    pub(super) own: NodeName,
    pub(super) tracer: Option<Arc<Tracer>>,
}

/// One link. Sending never waits and never fails.
pub(super) struct Link {
    address: SocketAddr,
    queue: Queue,
    state: Mutex<State>,
    sent_bytes: AtomicU64,
    dropped: AtomicU64,
    counters: Arc<Counters>,
    pub(super) stop: CancellationToken,
}

impl Link {
    /// A link that does nothing until it is [`run`].
    pub(super) fn new(address: SocketAddr, counters: Arc<Counters>, stop: CancellationToken) -> Self {
        Self {
            address,
            queue: Queue::default(),
            state: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            counters,
            stop,
        }
    }

    /// Queues a message.
    pub(super) fn send(&self, message: Bytes) {
        let dropped = self.queue.push(message);
        if dropped > 0 {
            let why = if self.connection().is_some() { Refusal::QueueFull } else { Refusal::Unconnected };
            self.drop_many(why, dropped);
        }
    }

    /// Returns who answered at this address last.
    pub(super) fn peer(&self) -> Option<NodeName> {
        self.lock().peer.clone()
    }

    /// True if we answer there ourselves.
    pub(super) fn is_own(&self) -> bool {
        self.lock().own
    }

    /// The version to encode messages for.
    pub(super) fn version(&self) -> WireVersion {
        self.lock().version.unwrap_or(WireVersion::NEWEST)
    }

    /// Its connection, while it is up, and the version that is spoken on it.
    pub(super) fn connection(&self) -> Option<(Connection, WireVersion)> {
        let state = self.lock();
        let up = state.connection.clone().filter(|connection| connection.close_reason().is_none());
        Some((up?, state.version?))
    }

    /// Returns what the link is doing, without what it received.
    pub(super) fn status(&self) -> LinkStatus {
        let state = self.lock();
        let up = state.connection.as_ref().filter(|connection| connection.close_reason().is_none());
        let Traffic([udp_sent_bytes, udp_received_bytes, packets_lost]) =
            state.connection.as_ref().map_or(state.past, |connection| state.past.plus(connection));
        LinkStatus {
            address: self.address,
            peer: state.peer.clone(),
            connected: up.is_some() && state.confirmed,
            version: state.version.filter(|_| up.is_some()),
            rtt: up.map(|connection| Span::from(connection.rtt())),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: 0,
            udp_sent_bytes,
            udp_received_bytes,
            packets_lost,
            queue_len: self.queue.len(),
            dropped: self.dropped.load(Ordering::Relaxed),
            error: state.error.clone().filter(|_| up.is_none()),
            own: state.own,
            refused: state.refused.filter(|_| up.is_none()),
        }
    }

    fn drop_many(&self, why: Refusal, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        if count > 0 {
            self.dropped.fetch_add(count, Ordering::Relaxed);
            self.counters.refuse_many(why, count);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Traffic {
    fn plus(self, connection: &Connection) -> Self {
        let stats = connection.stats();
        let [sent, received, lost] = self.0;
        Self([
            sent.saturating_add(stats.udp_tx.bytes),
            received.saturating_add(stats.udp_rx.bytes),
            lost.saturating_add(stats.path.lost_packets),
        ])
    }
}

/// Dials, sends, dials again, until the link is stopped.
pub(super) async fn run(link: Arc<Link>, context: Arc<LinkContext>) {
    let stop = link.stop.clone();
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = keep_connected(&link, &context) => {}
    }
    if let Some(connection) = link.lock().connection.take() {
        connection.close(VarInt::from_u32(0), b"leaving");
    }
}

async fn keep_connected(link: &Link, context: &LinkContext) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let began = context.tracer.as_ref().map(|tracer| tracer.now());
        let trust = context.endpoint.trust();
        let wait = match context.endpoint.dial(link.address).await {
            Ok((connection, peer)) if peer.name == context.own => {
                connection.close(VarInt::from_u32(0), b"this is myself");
                note_own(link);
                OWN_AGAIN
            }
            Ok((connection, peer)) => {
                if serve(link, connection, peer, began, trust, context).await {
                    backoff = BACKOFF_MIN;
                }
                backoff
            }
            Err(error) => {
                note_failure(link, &error, context);
                backoff
            }
        };
        sleep(wait).await;
        backoff = backoff.saturating_mul(2).min(BACKOFF_MAX);
    }
}

fn note_failure(link: &Link, error: &DialError, context: &LinkContext) {
    if let Some(why) = error.refusal() {
        context.counters.refuse(why);
    }
    let mut state = link.lock();
    state.refused = error.refuser();
    state.error = Some(error.to_string());
}

fn note_own(link: &Link) {
    let mut state = link.lock();
    if !state.own {
        tracing::info!(address = %link.address, "a peer address is our own, or another's who uses our certificate: left alone");
    }
    state.own = true;
    state.error = Some("answers with this node's own certificate".into());
}

/// Sends on one connection until it ends. `true`: it lived long enough to be called good.
async fn serve(
    link: &Link,
    connection: Connection,
    peer: RemotePeer,
    began: Option<Timestamp>,
    mut trust: watch::Receiver<Arc<Trust>>,
    context: &LinkContext,
) -> bool {
    let RemotePeer { name, version } = peer;
    link.drop_many(Refusal::Unconnected, link.queue.keep_newest(KEPT_ON_CONNECT));
    {
        let mut state = link.lock();
        state.peer = Some(name.clone());
        state.own = false;
        state.version = Some(version);
        state.confirmed = false;
        state.connection = Some(connection.clone());
    }
    let (steady, silent) = (sleep(STEADY), silent(&connection));
    let pump = pump(link, &connection, version);
    let confirmed = endpoint::confirmed(&connection);
    tokio::pin!(steady, silent, pump, confirmed);
    let (mut was_steady, mut was_confirmed) = (false, false);
    let reason = loop {
        tokio::select! {
            biased;
            reason = connection.closed() => {
                if !was_confirmed {
                    let mut state = link.lock();
                    state.past = state.past.plus(&connection);
                    state.connection = None;
                    drop(state);
                    note_failure(link, &DialError::from(reason), context);
                    return false;
                }
                break reason.to_string();
            }
            () = &mut confirmed, if !was_confirmed => {
                was_confirmed = true;
                let mut state = link.lock();
                state.confirmed = true;
                (state.error, state.refused) = (None, None);
                note_connected(link.address, &name, version);
                trace(context, link.address, &name, began);
            }
            () = &mut silent => {
                connection.close(VarInt::from_u32(4), b"silent");
                break format!("no answer for {} s", (SILENCE_LOOK * SILENT_LOOKS).as_secs());
            }
            Ok(()) = trust.changed() => {
                let now = Arc::clone(&trust.borrow_and_update());
                if let Some(why) = endpoint::end_if_withdrawn(&connection, &now) {
                    break why;
                }
            }
            () = &mut steady, if !was_steady => was_steady = true,
            never = &mut pump => match never {},
        }
    };
    let mut state = link.lock();
    state.past = state.past.plus(&connection);
    state.connection = None;
    if was_confirmed {
        tracing::info!(address = %link.address, region = %name.region, node = %name.node, %reason, "peer disconnected");
    }
    state.error = Some(reason);
    was_steady
}

fn note_connected(address: SocketAddr, name: &NodeName, version: WireVersion) {
    let NodeName { region, node } = name;
    tracing::info!(%address, %region, %node, wire_version = %version, "peer connected");
    if version < WireVersion::NEWEST {
        let own = WireVersion::NEWEST;
        tracing::info!(%address, %region, %node, "a peer is older: both speak wire version {version} until it has {own}, too");
    }
}

/// Tells of a connection that was made, from the first packet to the peer's consent.
fn trace(context: &LinkContext, address: SocketAddr, name: &NodeName, began: Option<Timestamp>) {
    let (Some(tracer), Some(began)) = (&context.tracer, began) else { return };
    let mut span = tracer.open(None, "peer connect", SpanKind::Client).since(began);
    span.set("network.peer.address", address.to_string().as_str());
    span.set("tidegate.peer.region", name.region.as_str());
    span.set("tidegate.peer.node", name.node.as_str());
    span.set("tidegate.region", context.own.region.as_str());
}

/// Sends what is queued, for ever. Some of it may have been encoded before the version was known.
async fn pump(link: &Link, connection: &Connection, version: WireVersion) -> Infallible {
    loop {
        let message = link.queue.pop().await;
        match codec::in_version(version, message) {
            Ok(message) => send(link, connection, message).await,
            Err(why) => link.drop_many(why, 1),
        }
    }
}

/// Returns once nothing has come on a connection for [`SILENT_LOOKS`].
async fn silent(connection: &Connection) {
    let (mut last, mut looks) = (0, 0);
    while looks < SILENT_LOOKS {
        sleep(SILENCE_LOOK).await;
        let received = connection.stats().udp_rx.datagrams;
        looks = if received == last { looks + 1 } else { 0 };
        last = received;
    }
}

/// Hands one message to the network: a datagram if it fits in one, else a stream of its own.
async fn send(link: &Link, connection: &Connection, message: Bytes) {
    let length = message.len();
    let fits = connection.max_datagram_size().is_some_and(|most| length <= most);
    let sent = timeout(SEND_DEADLINE, async {
        if fits {
            connection.send_datagram_wait(message).await.is_ok()
        } else {
            stream(connection, &message).await
        }
    });
    match sent.await {
        Ok(true) => {
            link.sent_bytes.fetch_add(u64::try_from(length).unwrap_or(0), Ordering::Relaxed);
        }
        // Lost with its connection, like whatever was under way.
        Ok(false) if connection.close_reason().is_some() => {}
        Ok(false) | Err(_) => link.drop_many(Refusal::Unsent, 1),
    }
}

async fn stream(connection: &Connection, message: &[u8]) -> bool {
    let Ok(mut stream) = connection.open_uni().await else { return false };
    stream.write_all(message).await.is_ok() && stream.finish().is_ok()
}
