//! Which members have shown us their certificates by dialling us, and what came from each.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
    open: AtomicUsize,
    received_bytes: AtomicU64,
    /// Where it says it can be dialled.
    claim: Mutex<Option<SocketAddr>>,
}

/// A connection of a node, as long as it lives.
#[derive(Debug)]
pub(super) struct Present(Arc<Contact>);

impl Contacts {
    /// A node has connected. `None`: it holds too many connections, or there are too many nodes.
    pub(super) fn enter(&self, name: &NodeName) -> Option<Present> {
        let mut by_name = self.lock();
        if !by_name.contains_key(name) && by_name.len() >= CONTACTS_MAX {
            let absent = by_name
                .iter()
                .find(|(_, contact)| contact.open.load(Ordering::Relaxed) == 0)
                .map(|(name, _)| name.clone())?;
            by_name.remove(&absent);
        }
        let contact = by_name.entry(name.clone()).or_default();
        if contact.open.load(Ordering::Relaxed) >= CONNECTIONS_PER_NODE_MAX {
            return None;
        }
        contact.open.fetch_add(1, Ordering::Relaxed);
        Some(Present(Arc::clone(contact)))
    }

    /// Whether this node has ever connected, as far as is remembered.
    pub(super) fn knows(&self, name: &NodeName) -> bool {
        self.lock().contains_key(name)
    }

    /// Bytes of messages received from a node.
    pub(super) fn received_bytes(&self, name: &NodeName) -> u64 {
        self.lock().get(name).map_or(0, |contact| contact.received_bytes.load(Ordering::Relaxed))
    }

    /// Where connected nodes say they can be dialled.
    pub(super) fn claims(&self) -> BTreeSet<SocketAddr> {
        self.lock()
            .values()
            .filter(|contact| contact.open.load(Ordering::Relaxed) > 0)
            .filter_map(|contact| *contact.claim.lock().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeName, Arc<Contact>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Present {
    /// Bytes came.
    pub(super) fn received(&self, bytes: usize) {
        self.0.received_bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// It says where it can be dialled; one address at a time is remembered.
    pub(super) fn claim(&self, address: SocketAddr) {
        *self.0.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(node: usize) -> NodeName {
        NodeName { region: "eu".into(), node: node.to_string() }
    }

    #[test]
    fn one_node_holds_a_bounded_number_of_connections() {
        let contacts = Contacts::default();
        let mut held: Vec<_> =
            (0..CONNECTIONS_PER_NODE_MAX).map(|_| contacts.enter(&name(1)).unwrap()).collect();
        assert!(contacts.enter(&name(1)).is_none());
        assert!(contacts.enter(&name(2)).is_some());
        held.pop();
        assert!(contacts.enter(&name(1)).is_some());
    }

    #[test]
    fn newcomers_displace_only_those_who_are_gone() {
        let contacts = Contacts::default();
        let mut held: Vec<_> = (0..CONTACTS_MAX).map(|node| contacts.enter(&name(node)).unwrap()).collect();
        assert!(contacts.enter(&name(CONTACTS_MAX)).is_none());
        held.pop();
        assert!(contacts.enter(&name(CONTACTS_MAX)).is_some());
        assert!(!contacts.knows(&name(CONTACTS_MAX - 1)) && contacts.knows(&name(0)));
    }
}
