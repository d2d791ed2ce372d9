//! The node that serves each slot, as last seen.

use std::sync::Arc;

use crate::store::redis::client::slots::{ClusterSlot, SLOTS};
use crate::store::redis::servers::node::Node;

/// The nodes, and which serves each slot.
#[derive(Debug)]
pub(in crate::store::redis) struct Map {
    pub(super) nodes: Vec<Arc<Node>>,
    /// One for each slot: the node's place, or beyond them all for none.
    pub(super) slots: Vec<u16>,
    /// Addresses of the replicas that stand by, as `host:port`.
    pub(super) replicas: Vec<String>,
}

impl Map {
    /// The node that serves a slot.
    pub(in crate::store::redis) fn node(&self, slot: ClusterSlot) -> Option<&Arc<Node>> {
        let place = self.slots.get(usize::from(slot.0))?;
        self.nodes.get(usize::from(*place))
    }

    /// True if every slot has a node.
    pub(in crate::store::redis) fn is_whole(&self) -> bool {
        self.slots.iter().all(|place| usize::from(*place) < self.nodes.len())
    }

    /// Returns who stands by.
    pub(in crate::store::redis) fn replicas(&self) -> &[String] {
        &self.replicas
    }

    /// Without nodes.
    pub(super) fn empty() -> Self {
        Self { nodes: Vec::new(), slots: vec![u16::MAX; SLOTS], replicas: Vec::new() }
    }

    /// All nodes that serve.
    pub(in crate::store::redis) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }
}
