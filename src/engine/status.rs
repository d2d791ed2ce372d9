//! What the engine can say of itself and of the world, for operators.

use crate::core::algorithm::View;
use crate::core::decision::Decision;
use crate::core::ruleset::Reason;
use crate::core::time::Span;
use crate::core::worldwide::NodeName;

/// Why a request is decided as it is. Nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What the answer would be.
    pub decision: Decision,
    /// Every rule of the domain, in order of precedence, and what it had to do with the request.
    pub considered: Vec<(String, Reason)>,
}

/// What one bucket holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketStatus {
    /// The rule.
    pub rule: String,
    /// Names and values of the rule's `per`.
    pub identity: Vec<(String, String)>,
    /// Permits per window.
    pub limit: u32,
    /// The window.
    pub window: Span,
    /// Permits in use in this region.
    pub used: u64,
    /// Permits left.
    pub remaining: u64,
    /// Until it is unused again, or its window ends.
    pub reset: Span,
    /// What the world leaves this region, for a worldwide rule that has heard of others.
    pub view: Option<View>,
    /// How far the worldwide count may lie above what is believed, in permits.
    pub error_bound: u64,
}

/// What is known of another daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its region and node.
    pub name: NodeName,
    /// Where it is dialled.
    pub address: String,
    /// Whether the link to it is up.
    pub connected: bool,
    /// Whether membership believes it alive.
    pub live: bool,
    /// Whether it is shutting down.
    pub draining: bool,
    /// Round trip, as measured by QUIC.
    pub rtt: Option<Span>,
    /// Age of the newest frame heard from it.
    pub lag: Option<Span>,
    /// Bytes sent to it since the start, and received from it.
    pub bytes: (u64, u64),
    /// Why the link is down, if it is.
    pub error: Option<String>,
}

/// Every daemon of the cluster, as seen from here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorldStatus {
    /// All others.
    pub peers: Vec<PeerStatus>,
    /// Regions whose every daemon has been silent for too long: the limits that span them follow `on_partition`.
    pub cut_off: Vec<String>,
    /// How far each global rule's worldwide total may lie above what is believed, in permits: the worst of its buckets.
    pub error_bounds: Vec<(String, u64)>,
}
