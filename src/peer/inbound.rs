//! Connections that others dialled: who may come in, and what is taken from them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadToEndError, RecvStream, VarInt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::PeerEvent;
use super::codec::{self, MESSAGE_BYTES_MAX, Message};
use super::contacts::{Contacts, Present};
use super::counters::{Counters, Refusal};
use super::endpoint::{self, Endpoint, HANDSHAKE_DEADLINE};
use super::links::Links;
use super::rules::{self, READERS_MAX, Shelf};
use super::tls::STREAMS_MAX;
use crate::core::worldwide::NodeName;

/// Connections of others, handshakes included. More are refused and counted.
pub(super) const CONNECTIONS_MAX: usize = 1_024;
/// Longest time for one stream to arrive.
const STREAM_DEADLINE: Duration = Duration::from_secs(5);

/// Where what comes in goes.
pub(super) struct Inbox {
    pub(super) own: NodeName,
    pub(super) events: mpsc::Sender<PeerEvent>,
    pub(super) gossip: mpsc::Sender<(SocketAddr, Bytes)>,
    pub(super) contacts: Arc<Contacts>,
    pub(super) links: Arc<Links>,
    pub(super) counters: Arc<Counters>,
    pub(super) rules: Arc<Shelf>,
}

/// Accepts connections until `stop`.
pub(super) async fn accept(
    endpoint: Arc<Endpoint>,
    inbox: Arc<Inbox>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let incoming = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            inbox.counters.refuse(Refusal::Connections);
            incoming.refuse();
            continue;
        };
        let (inbox, stop) = (Arc::clone(&inbox), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = welcome(incoming, &inbox) => {}
            }
            drop(permit);
        });
    }
}

/// Finishes the handshake, asks who it is, and reads until the connection ends.
async fn welcome(incoming: quinn::Incoming, inbox: &Inbox) {
    let address = incoming.remote_address();
    let connection = match incoming.accept() {
        // The first packet alone may say enough to refuse it.
        Err(error) => Err(error),
        Ok(connecting) => match timeout(HANDSHAKE_DEADLINE, connecting).await {
            Ok(shaken) => shaken,
            Err(_) => Err(ConnectionError::TimedOut),
        },
    };
    let connection = match connection {
        Ok(connection) => connection,
        Err(error) => {
            tracing::debug!(%address, %error, "a connection was refused");
            inbox.counters.refuse(endpoint::refusal_of(&error));
            return;
        }
    };
    let name = match endpoint::identity_of(&connection) {
        Ok(name) => name,
        Err(error) => {
            tracing::warn!(%address, %error, "a certificate of our authority names no node");
            inbox.counters.refuse(Refusal::Identity);
            connection.close(VarInt::from_u32(1), b"your certificate names no node");
            return;
        }
    };
    if name == inbox.own {
        // Ourselves, through an address that we do not know as ours.
        connection.close(VarInt::from_u32(0), b"this is myself");
        return;
    }
    let Some(present) = inbox.contacts.enter(&name) else {
        inbox.counters.refuse(Refusal::Connections);
        connection.close(VarInt::from_u32(2), b"too many connections");
        return;
    };
    read(&connection, &name, &present, inbox).await;
}

async fn read(connection: &Connection, name: &NodeName, present: &Present, inbox: &Inbox) {
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
                    answers.spawn(rules::answer(Arc::clone(&inbox.rules), send, receive));
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
        take(&message, name, present, inbox);
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

fn take(message: &Bytes, name: &NodeName, present: &Present, inbox: &Inbox) {
    present.received(message.len());
    let taken = match codec::decode(message) {
        Ok(Message::Sync(frame)) => inbox
            .events
            .try_send(PeerEvent::Frame { from: name.clone(), frame, bytes: message.len() })
            .map_err(|_| Refusal::ReaderBusy),
        Ok(Message::Rights(frame)) => inbox
            .events
            .try_send(PeerEvent::Rights { from: name.clone(), frame })
            .map_err(|_| Refusal::ReaderBusy),
        Ok(Message::Gossip { from, body }) => take_gossip(from, body, name, present, inbox),
        Err(why) => Err(why),
    };
    if let Err(why) = taken {
        inbox.counters.refuse(why);
    }
}

/// Gossip is answered at the address that the sender claims, so nobody may claim an address where another answers.
fn take_gossip(
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
    inbox.gossip.try_send((from, body)).map_err(|_| Refusal::ReaderBusy)
}
