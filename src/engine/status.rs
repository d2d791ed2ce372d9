//! The engine's view of itself and of the world, for operators.

use std::collections::BTreeMap;

use crate::core::algorithm::Allowance;
use crate::core::decision::Decision;
use crate::core::penalty::Penalty;
use crate::core::regions::escrow::EscrowRule;
use crate::core::regions::{NodeName, WorldKey};
use crate::core::rule::Mode;
use crate::core::ruleset::Reason;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::WireVersion;

/// Reasons why a request is decided as it is. Nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The answer as it would be.
    pub decision: Decision,
    /// Rules of the domain, and what each had to do with the request: those that decide come first, then the
    /// others that match; each group in order of precedence.
    pub considered: Vec<(String, Reason)>,
    /// Number of the domain's rules that `considered` leaves out.
    pub left_out: usize,
}

/// The state of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketStatus {
    /// Name of the rule that counts the bucket.
    pub rule: String,
    /// Names and values of the rule's `per`.
    pub identity: Vec<(String, String)>,
    /// Permits per window, of the limit in force.
    pub limit: u32,
    /// Length of the window that the limit counts in; zero where places are held.
    pub window: Span,
    /// The mode in which regions agree on it; `None`: each counts for itself.
    pub mode: Option<Mode>,
    /// Permits in use in this region.
    pub used: u64,
    /// Permits that are left of the limit.
    pub remaining: u64,
    /// Time until it is unused again, or its window ends.
    pub reset: Span,
    /// Instant at which that is; `None`: it is unused.
    pub reset_at: Option<Timestamp>,
    /// Allowance that the world leaves this region, for a worldwide rule that has heard of others.
    pub view: Option<Allowance>,
    /// Permits that each other region is known to have admitted in the window (without windows: those that
    /// are in use still), while it is one of [`WorldStatus::buckets`].
    pub by_region: Option<BTreeMap<String, u64>>,
    /// The most by which the worldwide count may lie above the believed one, in permits.
    pub error_bound: u64,
    /// True if this is only what the daemon knows by itself, because the store did not answer.
    pub degraded: bool,
    /// Penalty in force for the client; `None` without one.
    pub penalty: Option<Penalty>,
}

/// A bucket that was to count from zero again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketReset {
    /// Name of the rule that counts the bucket.
    pub rule: String,
    /// Names and values of the rule's `per`.
    pub identity: Vec<(String, String)>,
    /// True if there was one; `None` if the store did not answer, and nothing is known to have changed.
    pub existed: Option<bool>,
}

/// The state of a store: it answers or it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreState {
    /// All of it.
    #[default]
    Ok,
    /// Some servers do not, or not everything: what they do not answer follows the rules' failure policies.
    Degraded,
    /// Nothing does.
    Down,
}

/// The state of the store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreHealth {
    /// State of the store, as last seen.
    pub state: StoreState,
    /// Arrangement of its servers; `None` for a store without servers.
    pub topology: Option<&'static str>,
    /// Servers of the store; empty for a store without servers.
    pub servers: Vec<ServerHealth>,
    /// Daemons that count in it together, this one included; `None` for a store of this daemon alone.
    pub daemons: Option<u32>,
    /// The troubles of now, a sentence each.
    pub problems: Vec<String>,
}

/// One server of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHealth {
    /// Address of the server, as `host:port`.
    pub address: String,
    /// Purpose of the server: `primary` serves decisions; `replica` stands by; `sentinel` and `seed` are
    /// asked for the others.
    pub role: &'static str,
    /// State of its circuit breaker: `closed` asks it, `half_open` a little, `open` does not; `None` if it is
    /// never asked.
    pub breaker: Option<&'static str>,
    /// The newest round trip; `None` before the first, and for servers that are not asked.
    pub rtt: Option<Span>,
    /// The newest trouble, and how long ago it was.
    pub error: Option<(String, Span)>,
    /// The change that its operator should make.
    pub warning: Option<String>,
}

/// The facts known of another daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Region and node of the other daemon, unique in the cluster.
    pub name: NodeName,
    /// The address at which it is dialled.
    pub address: String,
    /// True if the link to it is up.
    pub connected: bool,
    /// The wire version that the link to it speaks, while it is up.
    pub version: Option<WireVersion>,
    /// True if membership believes it alive.
    pub live: bool,
    /// True if it is shutting down.
    pub draining: bool,
    /// Round trip, as measured by QUIC.
    pub rtt: Option<Span>,
    /// Age of the newest frame heard from it.
    pub lag: Option<Span>,
    /// Microseconds by which its clock seems to be ahead of this one's, negative if it is behind.
    pub ahead: Option<i64>,
    /// Bytes sent to it since the start, and received from it.
    pub bytes: (u64, u64),
    /// The reason for which the link is down, if it is.
    pub error: Option<String>,
}

/// Every daemon of the cluster, as seen from here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorldStatus {
    /// Every other daemon of the cluster.
    pub peers: Vec<PeerStatus>,
    /// Regions whose every daemon has been silent for too long: the limits that span them follow
    /// `on_partition`.
    pub cut_off: Vec<String>,
    /// Regions among them of which nothing has been heard since this daemon began.
    pub unseen: Vec<String>,
    /// Permits by which each global rule's worldwide total may lie above what is believed: the worst of its
    /// buckets; and what most of that is due to: `lag`, `stale`, `partition`, `untold`, `shares` (other
    /// regions spend theirs), `room` (not all buckets in use are followed), `start` (this daemon has just
    /// begun), `none`.
    pub error_bounds: Vec<(String, u64, &'static str)>,
    /// True if this daemon has just begun and waits to hear what it had admitted before.
    pub begins: bool,
    /// Permits that each other region is known to have admitted, of the buckets of `gossip` rules nearest to
    /// their limits: at most [`STATUS_KEYS_MAX`](crate::core::regions::STATUS_KEYS_MAX).
    pub buckets: Vec<(WorldKey, BTreeMap<String, u64>)>,
    /// The rights of this region, for each `escrow` rule whose rights move.
    pub rights: Vec<EscrowRule>,
}
