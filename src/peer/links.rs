//! Every link of this node: one for each address, made when something is to be sent there, ended when nobody
//! is there any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counters::Refusal;
use super::link::{self, Link, LinkContext};
use crate::core::regions::NodeName;
use crate::core::wire::WireVersion;

/// Most addresses dialled at once. More are refused and counted.
pub(super) const LINKS_MAX: usize = 1_024;

/// The bytes of a message, or why there are none.
type Encoded = Result<Bytes, Refusal>;

/// The links.
pub(super) struct Links {
    context: Arc<LinkContext>,
    by_address: Mutex<BTreeMap<SocketAddr, Arc<Link>>>,
    by_name: RwLock<HashMap<NodeName, Arc<Link>>>,
    /// Addresses of this daemon itself, which are never dialled.
    own: Vec<SocketAddr>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Links {
    /// No links yet.
    pub(super) fn new(
        context: LinkContext,
        own: Vec<SocketAddr>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self {
            context: Arc::new(context),
            by_address: Mutex::default(),
            by_name: RwLock::default(),
            own,
            tasks,
            stop,
        }
    }

    /// True if this is an address of ours.
    pub(super) fn is_own(&self, address: SocketAddr) -> bool {
        self.own.contains(&address)
    }

    /// Queues a message for whoever is at an address, encoded for the version that is spoken there. Never
    /// waits, never fails.
    pub(super) fn send_to(&self, address: SocketAddr, encode: impl FnOnce(WireVersion) -> Encoded) {
        if let Some(link) = self.get_or_dial(address) {
            self.queue(&link, encode);
        }
    }

    /// The same for a node. For one that is not known the message is dropped and counted.
    pub(super) fn send(&self, name: &NodeName, encode: impl FnOnce(WireVersion) -> Encoded) {
        let found = self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        match found {
            Some(link) => self.queue(&link, encode),
            None => self.context.counters.refuse(Refusal::UnknownNode),
        }
    }

    fn queue(&self, link: &Link, encode: impl FnOnce(WireVersion) -> Encoded) {
        match encode(link.version()) {
            Ok(message) => link.send(message),
            Err(why) => self.context.counters.refuse(why),
        }
    }

    /// The connection to a node, while there is one, and the version that is spoken on it.
    pub(super) fn connection(&self, name: &NodeName) -> Option<(quinn::Connection, WireVersion)> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name)?.connection()
    }

    /// The link to an address, if there is one.
    pub(super) fn get(&self, address: SocketAddr) -> Option<Arc<Link>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner).get(&address).cloned()
    }

    /// The link to an address, begun if there is none yet; `None` for our own address, or if there are too
    /// many.
    pub(super) fn get_or_dial(&self, address: SocketAddr) -> Option<Arc<Link>> {
        if self.is_own(address) || self.stop.is_cancelled() {
            return None;
        }
        let mut links = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&address) {
            return Some(Arc::clone(link));
        }
        if links.len() >= LINKS_MAX {
            self.context.counters.refuse(Refusal::Members);
            return None;
        }
        let link = Arc::new(Link::new(address, Arc::clone(&self.context.counters), self.stop.child_token()));
        links.insert(address, Arc::clone(&link));
        self.tasks.spawn(link::run(Arc::clone(&link), Arc::clone(&self.context)));
        Some(link)
    }

    /// Names are reached at these addresses from now on.
    pub(super) fn route(&self, routes: impl IntoIterator<Item = (NodeName, SocketAddr)>) {
        let routes = routes
            .into_iter()
            .filter_map(|(name, address)| Some((name, self.get_or_dial(address)?)))
            .collect();
        *self.by_name.write().unwrap_or_else(PoisonError::into_inner) = routes;
    }

    /// Ends the links to all other addresses.
    pub(super) fn keep_only(&self, addresses: &BTreeSet<SocketAddr>) {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner).retain(|address, link| {
            let kept = addresses.contains(address);
            if !kept {
                link.stop.cancel();
            }
            kept
        });
    }

    /// Every link, in the order of addresses.
    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
