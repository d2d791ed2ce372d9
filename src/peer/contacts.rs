//! The members that have shown us their certificates by dialling us, and what came from each.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::regions::NodeName;

/// Names kept. Full: one without a connection is forgotten, or the newcomer is refused.
pub(super) const CONTACTS_MAX: usize = 1_024;
/// Connections that one node may hold to us: one, and some that are not over yet after restarts.
pub(super) const CONNECTIONS_PER_NODE_MAX: usize = 16;

/// Everyone who dialled us.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    by_name: Mutex<HashMap<NodeName, Arc<Contact>>>,
}

/// One node.
#[derive(Debug, Default)]
pub(super) struct Contact {
    open: Mutex<Vec<Arc<Seat>>>,
    received_bytes: AtomicU64,
}

/// One of its connections.
#[derive(Debug)]
struct Seat {
    source: SocketAddr,
    /// Address at which it says it can be dialled.
    claim: Mutex<Option<SocketAddr>>,
    /// True if anything came over it.
    active: AtomicBool,
}

impl Seat {
    fn claim(&self) -> Option<SocketAddr> {
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where its daemon is. A daemon that knows two of our addresses has two connections, and says
    /// the same on both; over one that is only kept ready nothing comes.
    fn place(&self) -> Option<SocketAddr> {
        self.claim().or_else(|| self.active.load(Ordering::Relaxed).then_some(self.source))
    }
}

impl Contact {
    fn seats(&self) -> MutexGuard<'_, Vec<Arc<Seat>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection of a node, as long as it lives.
#[derive(Debug)]
pub(super) struct Present {
    contact: Arc<Contact>,
    seat: Arc<Seat>,
}

impl Contacts {
    /// A node has connected. `None`: it holds too many connections, or there are too many nodes.
    pub(super) fn enter(&self, name: &NodeName, source: SocketAddr) -> Option<Present> {
        let mut by_name = self.lock();
        if !by_name.contains_key(name) && by_name.len() >= CONTACTS_MAX {
            let absent = by_name
                .iter()
                .find(|(_, contact)| contact.seats().is_empty())
                .map(|(name, _)| name.clone())?;
            by_name.remove(&absent);
        }
        let contact = Arc::clone(by_name.entry(name.clone()).or_default());
        let seat = Arc::new(Seat { source, claim: Mutex::default(), active: AtomicBool::new(false) });
        let mut seats = contact.seats();
        if seats.len() >= CONNECTIONS_PER_NODE_MAX {
            return None;
        }
        seats.push(Arc::clone(&seat));
        drop(seats);
        Some(Present { contact, seat })
    }

    /// Nodes that are connected from two places at once or more, and these.
    pub(super) fn twice(&self) -> Vec<(NodeName, BTreeSet<SocketAddr>)> {
        let places = |contact: &Contact| contact.seats().iter().filter_map(|seat| seat.place()).collect();
        let each =
            self.lock().iter().map(|(name, contact)| (name.clone(), places(contact))).collect::<Vec<_>>();
        each.into_iter().filter(|(_, places): &(_, BTreeSet<SocketAddr>)| places.len() > 1).collect()
    }

    /// True if this node has ever connected, as far as is remembered.
    pub(super) fn knows(&self, name: &NodeName) -> bool {
        self.lock().contains_key(name)
    }

    /// Bytes of messages received from a node.
    pub(super) fn received_bytes(&self, name: &NodeName) -> u64 {
        self.lock().get(name).map_or(0, |contact| contact.received_bytes.load(Ordering::Relaxed))
    }

    /// Returns where connected nodes say they can be dialled.
    pub(super) fn claims(&self) -> BTreeSet<SocketAddr> {
        let last = |contact: &Contact| contact.seats().iter().rev().find_map(|seat| seat.claim());
        self.lock().values().filter_map(|contact| last(contact)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Arc<Contact>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    /// Bytes came.
    pub(super) fn received(&self, bytes: usize) {
        self.seat.active.store(true, Ordering::Relaxed);
        self.contact.received_bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// It says where it can be dialled; one address at a time is remembered.
    pub(super) fn claim(&self, address: SocketAddr) {
        *self.seat.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.contact.seats().retain(|seat| !Arc::ptr_eq(seat, &self.seat));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(node: usize) -> NodeName {
        NodeName { region: "eu".into(), node: node.to_string() }
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn one_certificate_at_two_places_at_once_is_seen() {
        let contacts = Contacts::default();
        let first = contacts.enter(&name(1), at(1)).unwrap();
        first.claim(at(7));
        // The same daemon by another of our addresses: nothing comes, or it says the same.
        let again = contacts.enter(&name(1), at(2)).unwrap();
        assert!(contacts.twice().is_empty());
        again.claim(at(7));
        again.received(1);
        assert!(contacts.twice().is_empty());
        let other = contacts.enter(&name(1), at(3)).unwrap();
        other.received(1);
        assert_eq!(contacts.twice(), [(name(1), BTreeSet::from([at(3), at(7)]))]);
        other.claim(at(8));
        assert_eq!(contacts.twice(), [(name(1), BTreeSet::from([at(7), at(8)]))]);
        assert_eq!(contacts.claims(), BTreeSet::from([at(8)]), "one at a time");
        drop(other);
        assert!(contacts.twice().is_empty() && contacts.claims() == BTreeSet::from([at(7)]));
    }

    #[test]
    fn one_node_holds_a_bounded_number_of_connections() {
        let contacts = Contacts::default();
        let mut held: Vec<_> =
            (0..CONNECTIONS_PER_NODE_MAX).map(|_| contacts.enter(&name(1), at(1)).unwrap()).collect();
        assert!(contacts.enter(&name(1), at(1)).is_none());
        assert!(contacts.enter(&name(2), at(1)).is_some());
        held.pop();
        assert!(contacts.enter(&name(1), at(1)).is_some());
    }

    #[test]
    fn newcomers_displace_only_those_who_are_gone() {
        let contacts = Contacts::default();
        let mut held: Vec<_> =
            (0..CONTACTS_MAX).map(|node| contacts.enter(&name(node), at(1)).unwrap()).collect();
        assert!(contacts.enter(&name(CONTACTS_MAX), at(1)).is_none());
        held.pop();
        assert!(contacts.enter(&name(CONTACTS_MAX), at(1)).is_some());
        assert!(!contacts.knows(&name(CONTACTS_MAX - 1)) && contacts.knows(&name(0)));
    }
}
