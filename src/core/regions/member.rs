//! The members of the cluster, as membership tells it.

use super::NodeName;

/// A daemon of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Region and node of the member, unique in the cluster.
    pub name: NodeName,
    /// True if membership believes it alive.
    pub live: bool,
    /// True if it is shutting down: it still speaks, but owns nothing any more.
    pub draining: bool,
    /// True if its version sees in a store what capacity of sliding `escrow` rules is lent.
    pub sees_capacity: bool,
}
