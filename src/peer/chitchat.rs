//! Carries `chitchat`'s messages over our links, and looks at them before `chitchat` does.
//!
//! `chitchat` trusts what it is sent: it adds up unbounded sizes and asserts what peers say. So a message is
//! refused here unless it is bounded in every part and names only nodes that could exist. `membership.rs`
//! tells what a member of the cluster can still do.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatId, ChitchatMessage, Deserializable, Serializable};
use tokio::sync::mpsc;

use super::codec;
use super::counters::{Counters, Refusal};
use super::identity;
use super::links::Links;

/// Most nodes kept, old incarnations of the last minutes included. Gossip that names more is refused.
pub(super) const NODES_MAX: usize = 512;
/// Most bytes that all nodes may take in one digest: `chitchat` subtracts it from its message size without a
/// check.
const DIGEST_BYTES_MAX: usize = 40 * 1_024;
/// The bytes of a digest for each node beside its name: heartbeat and two versions.
const NODE_DIGEST_BYTES: usize = 24;
/// Blocks in one message; each may unpack to 64 KiB.
const BLOCKS_MAX: usize = 16;
/// Magic number, version and type.
const HEADER_BYTES: usize = 4;
const SYN: u8 = 0;
const SYN_ACK: u8 = 1;
const ACK: u8 = 2;

/// Every node that `chitchat` keeps, so that what it keeps stays bounded.
#[derive(Debug, Default)]
pub(super) struct Roster(Mutex<HashSet<ChitchatId>>);

impl Roster {
    /// These are the nodes kept now.
    pub(super) fn reset(&self, ids: impl Iterator<Item = ChitchatId>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ids.collect();
    }

    /// Adds what a digest names. `false`: there is no room for all of them, and none is added.
    fn admit(&self, ids: Vec<ChitchatId>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new: HashSet<_> = ids.into_iter().filter(|id| !known.contains(id)).collect();
        let bytes: usize = known.iter().chain(&new).map(|id| id.serialized_len() + NODE_DIGEST_BYTES).sum();
        let fits = known.len() + new.len() <= NODES_MAX && bytes <= DIGEST_BYTES_MAX;
        if fits {
            known.extend(new);
        }
        fits
    }
}

/// Reads a message, if it is bounded and names only nodes that could exist.
fn read(message: &[u8], roster: &Roster) -> Result<ChitchatMessage, Refusal> {
    let kind = *message.get(HEADER_BYTES - 1).ok_or(Refusal::Malformed)?;
    let mut rest = message.get(HEADER_BYTES..).unwrap_or_default();
    let named = if matches!(kind, SYN | SYN_ACK) { read_digest(&mut rest)? } else { Vec::new() };
    if matches!(kind, SYN_ACK | ACK) {
        count_blocks(&mut rest)?;
        if !rest.is_empty() {
            return Err(Refusal::Trailing);
        }
    }
    let mut unread = message;
    let read = ChitchatMessage::deserialize(&mut unread).map_err(|_| Refusal::Malformed)?;
    if !unread.is_empty() {
        return Err(Refusal::Trailing);
    }
    if roster.admit(named) { Ok(read) } else { Err(Refusal::Members) }
}

/// Reads a message as a member wrote it.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzzed(message: &[u8]) {
    let _ = read(message, &Roster::default());
}

fn read_digest(rest: &mut &[u8]) -> Result<Vec<ChitchatId>, Refusal> {
    let count = usize::from(u16::deserialize(rest).map_err(|_| Refusal::Malformed)?);
    if count > NODES_MAX {
        return Err(Refusal::Members);
    }
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        let id = ChitchatId::deserialize(rest).map_err(|_| Refusal::Malformed)?;
        if identity::parse_path(&id.node_id).is_none() || rest.len() < NODE_DIGEST_BYTES {
            return Err(Refusal::Malformed);
        }
        rest.advance(NODE_DIGEST_BYTES);
        ids.push(id);
    }
    Ok(ids)
}

/// Walks over the packed blocks without unpacking them: a few bytes could unpack to very many.
fn count_blocks(rest: &mut &[u8]) -> Result<(), Refusal> {
    for _ in 0..=BLOCKS_MAX {
        if u8::deserialize(rest).map_err(|_| Refusal::Malformed)? == 0 {
            return Ok(());
        }
        let length = usize::from(u16::deserialize(rest).map_err(|_| Refusal::Malformed)?);
        if rest.len() < length {
            return Err(Refusal::Malformed);
        }
        rest.advance(length);
    }
    Err(Refusal::Oversize)
}

/// The messages that came in and wait for `chitchat`. Shared, so that a new gossip task takes over from one
/// that died.
pub(super) type ChitchatInbox = Arc<tokio::sync::Mutex<mpsc::Receiver<(SocketAddr, Bytes)>>>;

/// Our links as `chitchat` wants to see them.
#[derive(Clone)]
pub(super) struct Carrier {
    pub(super) links: Arc<Links>,
    pub(super) inbox: ChitchatInbox,
    pub(super) roster: Arc<Roster>,
    pub(super) counters: Arc<Counters>,
    /// Address at which we can be dialled: the others see it as ours.
    pub(super) advertise: SocketAddr,
}

#[async_trait]
impl Transport for Carrier {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Socket for Carrier {
    /// Never an error: one would end the gossip for ever.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let body = message.serialize_to_vec();
        self.links.send_to(to, |version| codec::encode_chitchat(version, self.advertise, &body));
        Ok(())
    }

    /// Never an error, and safe to be cancelled: nothing is taken from the queue before it can be returned.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let received = self.inbox.lock().await.recv().await;
            let Some((from, body)) = received else {
                // The endpoint is closing; the gossip ends by command.
                return std::future::pending().await;
            };
            match read(&body, &self.roster) {
                Ok(message) => return Ok((from, message)),
                Err(why) => self.counters.refuse(why),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(ids: &[ChitchatId]) -> Vec<u8> {
        let mut bytes = u16::try_from(ids.len()).unwrap().to_le_bytes().to_vec();
        for id in ids {
            id.serialize(&mut bytes);
            bytes.extend([1; NODE_DIGEST_BYTES]);
        }
        bytes
    }

    fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut bytes = 45_139_u16.to_le_bytes().to_vec();
        bytes.extend([0, kind]);
        parts.iter().for_each(|part| bytes.extend(*part));
        bytes
    }

    fn syn(ids: &[ChitchatId]) -> Vec<u8> {
        message(SYN, &[&digest(ids), b"\x02\0tg"])
    }

    fn node(nth: usize) -> ChitchatId {
        ChitchatId::new(format!("eu/node-{nth}"), 1, ([10, 0, 0, 1], 7946).into())
    }

    #[test]
    fn honest_gossip_is_read() {
        let roster = Roster::default();
        assert!(matches!(read(&syn(&[node(1), node(2)]), &roster), Ok(ChitchatMessage::Syn { .. })));
        assert!(matches!(read(&message(ACK, &[&[0]]), &roster), Ok(ChitchatMessage::Ack { .. })));
        assert!(matches!(
            read(&message(SYN_ACK, &[&digest(&[node(1)]), &[0]]), &roster),
            Ok(ChitchatMessage::SynAck { .. })
        ));
        assert!(matches!(read(&message(3, &[]), &roster), Ok(ChitchatMessage::BadCluster)));
    }

    #[test]
    fn nodes_that_cannot_exist_are_refused() {
        for hostile in ["eu", "eu/", "/a", "eu/a/b", "eu/%61", ""] {
            let id = ChitchatId::new(hostile, 1, ([10, 0, 0, 1], 7946).into());
            assert_eq!(read(&syn(&[id]), &Roster::default()), Err(Refusal::Malformed), "{hostile}");
        }
    }

    #[test]
    fn more_nodes_than_are_kept_are_refused_and_the_old_ones_stay() {
        let roster = Roster::default();
        let many: Vec<_> = (0..NODES_MAX).map(node).collect();
        assert!(read(&syn(&many), &roster).is_ok());
        assert_eq!(read(&syn(&[node(NODES_MAX)]), &roster), Err(Refusal::Members));
        assert!(read(&syn(&many[..3]), &roster).is_ok());
        roster.reset(many.into_iter().skip(1));
        assert!(read(&syn(&[node(NODES_MAX)]), &roster).is_ok());
    }

    #[test]
    fn a_digest_that_would_outgrow_a_message_is_refused() {
        let roster = Roster::default();
        let long = |nth: usize| {
            ChitchatId::new(
                format!("{}/{}{nth}", "r".repeat(250), "n".repeat(250)),
                1,
                ([10, 0, 0, 1], 1).into(),
            )
        };
        let most: Vec<_> = (0..60).map(long).collect();
        assert!(read(&syn(&most), &roster).is_ok());
        let more: Vec<_> = (60..120).map(long).collect();
        assert_eq!(read(&syn(&more), &roster), Err(Refusal::Members));
    }

    #[test]
    fn a_message_that_would_unpack_to_very_much_is_refused() {
        let blocks = [1, 0, 0].repeat(BLOCKS_MAX + 1);
        assert_eq!(read(&message(ACK, &[&blocks, &[0]]), &Roster::default()), Err(Refusal::Oversize));
    }

    #[test]
    fn bytes_behind_a_message_are_refused() {
        for mut bytes in [syn(&[node(1)]), message(ACK, &[&[0]]), message(3, &[])] {
            bytes.push(0);
            assert_eq!(read(&bytes, &Roster::default()), Err(Refusal::Trailing));
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..300), kind in 0_u8..5) {
            let _ = read(&body, &Roster::default());
            let _ = read(&message(kind, &[&body]), &Roster::default());
            let _ = read(&message(kind, &[&digest(&[node(1)]), &body]), &Roster::default());
        }
    }
}
