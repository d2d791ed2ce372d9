//! Connections that others dialled: who may come in, and what is taken from them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connecting, Connection, ConnectionError, ReadToEndError, RecvStream, VarInt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::PeerEvent;
use super::codec::{self, MESSAGE_BYTES_MAX, Message};
use super::contacts::{Contacts, Present};
use super::counters::{Counters, Refusal};
use super::endpoint::{self, Endpoint, HANDSHAKE_DEADLINE, RemotePeer};
use super::links::Links;
use super::negotiation::{self, Offers};
use super::rules::{self, READERS_MAX, SavedRules};
use super::strangers::Strangers;
use super::tls::STREAMS_MAX;
use super::trust::Trust;
use crate::core::regions::NodeName;
use crate::core::wire::WireVersion;
use crate::engine::clock::{Clock, Stopwatch};

/// Connections of others, handshakes included. More are refused and counted.
pub(super) const CONNECTIONS_MAX: usize = 1_024;
/// Handshakes under way. Past a quarter, an address must first show that it can be answered, which costs it a
/// round trip and this side nothing (RFC 9000, 8.1.2). Past three quarters, only addresses of known daemons
/// may begin one.
const HANDSHAKES_MAX: usize = 256;
/// Handshakes that others may begin in a second, whoever they are: each costs this side a key exchange, also
/// where it fails at once. Past them an address must first show that it can be answered.
const BEGUN_MAX: u32 = 50;
/// The same for addresses that showed it. Past them only addresses of known daemons may begin one.
const BEGUN_VALIDATED_MAX: u32 = 200;
/// Longest time for one stream to arrive.
const STREAM_DEADLINE: Duration = Duration::from_secs(5);

/// The receivers of what comes in.
pub(super) struct Inbox {
    pub(super) own: NodeName,
    pub(super) events: mpsc::Sender<PeerEvent>,
    pub(super) chitchat: mpsc::Sender<(SocketAddr, Bytes)>,
    pub(super) contacts: Arc<Contacts>,
    pub(super) links: Arc<Links>,
    pub(super) counters: Arc<Counters>,
    pub(super) rules: Arc<SavedRules>,
    pub(super) strangers: Strangers,
    /// Wire versions that are spoken here, the newest first.
    pub(super) versions: Vec<WireVersion>,
}

impl Inbox {
    /// Counts a refusal, and logs it once for each address and reason. `offered`: the other side named these
    /// protocols, and none of them is spoken here.
    fn refuse(
        &self,
        address: SocketAddr,
        why: Refusal,
        error: &dyn std::fmt::Display,
        offered: Option<String>,
    ) {
        self.counters.refuse(why);
        if !matches!(why, Refusal::Certificate | Refusal::Identity | Refusal::Protocol) {
            tracing::debug!(%address, %error, "a connection was refused");
            return;
        }
        let Some(times) = self.strangers.refuse(Clock::System.now(), address.ip(), why) else { return };
        // A daemon dials from the address that it listens on.
        let known = self.links.get(address).and_then(|link| link.peer());
        let by = known.map_or_else(|| "unknown".to_owned(), |name| format!("{}/{}", name.region, name.node));
        let reason = why.as_str();
        if why == Refusal::Protocol {
            let (spoken, offered) = (negotiation::named(&self.versions), offered.unwrap_or_default());
            tracing::warn!(
                %address, last_known_as = %by, reason, times, %spoken, %offered,
                "a daemon was refused: it and this one share no wire version"
            );
            return;
        }
        tracing::warn!(
            %address, last_known_as = %by, reason, times, %error,
            "a daemon was refused: its certificate is not accepted here"
        );
    }
}

/// Accepts connections until `stop`.
pub(super) async fn accept(
    endpoint: Arc<Endpoint>,
    inbox: Arc<Inbox>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let (mut begun, mut second) = (0, Stopwatch::start());
    loop {
        let incoming = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        let known = inbox.links.get(incoming.remote_address()).is_some();
        let shaking = HANDSHAKES_MAX - handshakes.available_permits();
        if second.elapsed() >= Duration::from_secs(1) {
            (begun, second) = (0, Stopwatch::start());
        }
        let turn = Turn::of(Handshakes { shaking, begun }, incoming.remote_address_validated(), known);
        if turn == Turn::Later {
            // An address that has a token already is refused below.
            let _ = incoming.retry();
            continue;
        }
        let places = match turn {
            Turn::Now => places(&room, &handshakes),
            Turn::Later | Turn::Never => None,
        };
        let Some((permit, handshake)) = places else {
            inbox.counters.refuse(Refusal::Connections);
            incoming.refuse();
            continue;
        };
        begun = begun.saturating_add(1);
        let (inbox, stop) = (Arc::clone(&inbox), stop.clone());
        let (trust, offers) = (endpoint.trust(), endpoint.offers());
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = welcome(incoming, handshake, trust, &offers, &inbox) => {}
            }
            drop(permit);
        });
    }
}

/// How many handshakes are under way, and were begun in this second.
#[derive(Debug, Clone, Copy)]
struct Handshakes {
    shaking: usize,
    begun: u32,
}

/// The answer to an address that begins a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It goes on.
    Now,
    /// It has to come again with a token, which only an address that can be answered gets.
    Later,
    /// It is refused.
    Never,
}

impl Turn {
    const fn of(handshakes: Handshakes, validated: bool, known: bool) -> Self {
        let Handshakes { shaking, begun } = handshakes;
        if shaking < HANDSHAKES_MAX / 4 && begun < BEGUN_MAX {
            Self::Now
        } else if !validated {
            Self::Later
        } else if (shaking < HANDSHAKES_MAX / 4 * 3 && begun < BEGUN_VALIDATED_MAX) || known {
            Self::Now
        } else {
            Self::Never
        }
    }
}

/// A place among the connections, and one among the handshakes.
fn places(
    room: &Arc<Semaphore>,
    handshakes: &Arc<Semaphore>,
) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).try_acquire_owned().ok()?;
    let handshake = Arc::clone(handshakes).try_acquire_owned().ok()?;
    Some((permit, handshake))
}

/// The connection once its handshake is over. The first packet alone may say enough to refuse it.
async fn shaken(accepted: Result<Connecting, ConnectionError>) -> Result<Connection, ConnectionError> {
    match timeout(HANDSHAKE_DEADLINE, accepted?).await {
        Ok(shaken) => shaken,
        Err(_) => Err(ConnectionError::TimedOut),
    }
}

/// Finishes the handshake, asks who it is, and reads until the connection ends.
async fn welcome(
    incoming: quinn::Incoming,
    handshake: OwnedSemaphorePermit,
    mut trust: watch::Receiver<Arc<Trust>>,
    offers: &Offers,
    inbox: &Inbox,
) {
    let address = incoming.remote_address();
    let accepted = incoming.accept();
    let offered = offers.take_unknown();
    let shaken = shaken(accepted).await;
    drop(handshake);
    let connection = match shaken {
        Ok(connection) => connection,
        Err(error) => {
            inbox.refuse(address, endpoint::refusal_of(&error), &error, offered);
            return;
        }
    };
    let peer = match RemotePeer::of(&connection) {
        Ok(peer) => peer,
        Err(error) => {
            inbox.refuse(address, Refusal::Identity, &error, None);
            connection.close(endpoint::UNNAMED, b"your certificate names no node");
            return;
        }
    };
    if peer.name == inbox.own {
        // Ourselves, through an address that we do not know as ours.
        connection.close(VarInt::from_u32(0), b"this is myself");
        return;
    }
    let Some(present) = inbox.contacts.enter(&peer.name, address) else {
        inbox.counters.refuse(Refusal::Connections);
        connection.close(VarInt::from_u32(2), b"too many connections");
        return;
    };
    tokio::select! {
        biased;
        why = withdrawn(&connection, &mut trust) => {
            let NodeName { region, node } = &peer.name;
            tracing::info!(%address, %region, %node, "a connection was closed: {why}");
        }
        () = read(&connection, &peer, &present, inbox) => {}
    }
}

/// Returns once the other's certificate is not accepted any more, with the reason. The connection is closed
/// then.
async fn withdrawn(connection: &Connection, trust: &mut watch::Receiver<Arc<Trust>>) -> String {
    while trust.changed().await.is_ok() {
        let now = Arc::clone(&trust.borrow_and_update());
        if let Some(why) = endpoint::end_if_withdrawn(connection, &now) {
            return why;
        }
    }
    // The endpoint is gone, and every connection with it.
    std::future::pending().await
}

async fn read(connection: &Connection, peer: &RemotePeer, present: &Present, inbox: &Inbox) {
    // Bounded by the streams that a peer may have open.
    let mut streams = JoinSet::new();
    let mut answers = JoinSet::new();
    let readers = usize::try_from(READERS_MAX).unwrap_or(usize::MAX);
    let room = usize::try_from(STREAMS_MAX).unwrap_or(usize::MAX);
    loop {
        let message = tokio::select! {
            biased;
            Some(read) = streams.join_next() => match read {
                Ok(Ok(message)) => message,
                Ok(Err(why)) => {
                    inbox.counters.refuse(why);
                    continue;
                }
                Err(_) => continue,
            },
            Some(answered) = answers.join_next() => {
                if let Ok(Err(why)) = answered {
                    inbox.counters.refuse(why);
                }
                continue;
            }
            asked = connection.accept_bi(), if answers.len() < readers => match asked {
                Ok((send, receive)) => {
                    answers.spawn(rules::answer(peer.version, Arc::clone(&inbox.rules), send, receive));
                    continue;
                }
                Err(_) => return,
            },
            datagram = connection.read_datagram() => match datagram {
                Ok(message) => message,
                Err(_) => return,
            },
            stream = connection.accept_uni(), if streams.len() < room => match stream {
                Ok(stream) => {
                    streams.spawn(read_stream(stream));
                    continue;
                }
                Err(_) => return,
            },
        };
        take(peer, &message, present, inbox);
    }
}

async fn read_stream(mut stream: RecvStream) -> Result<Bytes, Refusal> {
    match timeout(STREAM_DEADLINE, stream.read_to_end(MESSAGE_BYTES_MAX)).await {
        Ok(Ok(message)) => Ok(message.into()),
        Ok(Err(ReadToEndError::TooLong)) => {
            // The sender may go: nothing more is read.
            let _ = stream.stop(VarInt::from_u32(3));
            Err(Refusal::Oversize)
        }
        Ok(Err(ReadToEndError::Read(_))) | Err(_) => Err(Refusal::Malformed),
    }
}

fn take(peer: &RemotePeer, message: &Bytes, present: &Present, inbox: &Inbox) {
    let RemotePeer { name, version } = peer;
    present.received(message.len());
    let taken = match codec::decode(*version, message) {
        Ok(Message::Sync(frame)) => inbox
            .events
            .try_send(PeerEvent::Frame { from: name.clone(), frame, bytes: message.len() })
            .map_err(|_| Refusal::ReaderBusy),
        Ok(Message::Rights(frame)) => inbox
            .events
            .try_send(PeerEvent::Rights { from: name.clone(), frame })
            .map_err(|_| Refusal::ReaderBusy),
        Ok(Message::Chitchat { from, body }) => take_chitchat(from, body, name, present, inbox),
        Err(why) => Err(why),
    };
    if let Err(why) = taken {
        inbox.counters.refuse(why);
    }
}

/// Chitchat is answered at the address that the sender claims, so nobody may claim an address where another
/// answers.
fn take_chitchat(
    from: SocketAddr,
    body: Bytes,
    name: &NodeName,
    present: &Present,
    inbox: &Inbox,
) -> Result<(), Refusal> {
    let others = inbox.links.get(from).and_then(|link| link.peer()).is_some_and(|peer| peer != *name);
    if others || inbox.links.is_own(from) {
        return Err(Refusal::Impostor);
    }
    present.claim(from);
    inbox.chitchat.try_send((from, body)).map_err(|_| Refusal::ReaderBusy)
}

#[cfg(test)]
mod tests {
    use super::{BEGUN_MAX, BEGUN_VALIDATED_MAX, HANDSHAKES_MAX, Handshakes, Turn};

    #[test]
    fn the_fuller_it_is_the_more_an_address_must_show() {
        let quarter = HANDSHAKES_MAX / 4;
        let turn =
            |shaking, begun, validated, known| Turn::of(Handshakes { shaking, begun }, validated, known);
        assert_eq!(turn(quarter - 1, 0, false, false), Turn::Now);
        assert_eq!(turn(quarter, 0, false, true), Turn::Later, "an address may be forged");
        assert_eq!(turn(quarter, 0, true, false), Turn::Now);
        assert_eq!(turn(3 * quarter, 0, true, false), Turn::Never);
        assert_eq!(turn(3 * quarter, 0, true, true), Turn::Now);
        // Those that fail at once are never under way, and cost as much.
        assert_eq!(turn(0, BEGUN_MAX - 1, false, false), Turn::Now);
        assert_eq!(turn(0, BEGUN_MAX, false, true), Turn::Later);
        assert_eq!(turn(0, BEGUN_MAX, true, false), Turn::Now);
        assert_eq!(turn(0, BEGUN_VALIDATED_MAX, true, false), Turn::Never);
        assert_eq!(turn(0, BEGUN_VALIDATED_MAX, true, true), Turn::Now);
    }
}
