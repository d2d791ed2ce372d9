//! Who is in the cluster, as membership tells it.

use super::NodeName;

/// A daemon of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its region and node.
    pub name: NodeName,
    /// When its process began, in ms since the epoch.
    pub incarnation: u64,
    /// Whether membership believes it alive.
    pub live: bool,
    /// Whether it is shutting down: it still speaks, but owns nothing any more.
    pub draining: bool,
}
