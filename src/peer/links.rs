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

/// Most addresses dialled at once. More are refused and counted.
pub(super) const LINKS_MAX: usize = 1_024;

/// The links.
pub(super) struct Links {
    context: Arc<LinkContext>,
    by_address: Mutex<BTreeMap<SocketAddr, Arc<Link>>>,
    by_name: RwLock<HashMap<NodeName, Arc<Link>>>,
    /// Our own addresses: never dialled.
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

    /// Whether this is an address of ours.
    pub(super) fn is_own(&self, address: SocketAddr) -> bool {
        self.own.contains(&address)
    }

    /// Queues a message for whoever is at an address. Never waits, never fails.
    pub(super) fn send_to(&self, address: SocketAddr, message: Bytes) {
        if let Some(link) = self.get_or_dial(address) {
            link.send(message);
        }
    }

    /// Queues a message for a node. `false`: there is no such node, and the message is dropped and counted.
    pub(super) fn send(&self, name: &NodeName, message: Bytes) -> bool {
        let found = self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        match &found {
            Some(link) => link.send(message),
            None => self.context.counters.refuse(Refusal::UnknownNode),
        }
        found.is_some()
    }

    /// The connection to a node, while there is one.
    pub(super) fn connection(&self, name: &NodeName) -> Option<quinn::Connection> {
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
