//! Settings of a replica: those of its daemon's configuration, and those that only simulations change.

use super::safety::GossipSafety;
use crate::regions::NodeName;
use crate::time::Span;

/// Buckets followed unless the configuration says otherwise.
pub const KEYS_MAX_DEFAULT: usize = 100_000;
/// The time between two reports unless the configuration says otherwise.
pub const INTERVAL_DEFAULT: Span = Span::from_millis(50);

/// The settings of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// Region and node of this daemon, unique in the cluster.
    pub name: NodeName,
    /// Every region that may hold a share, present or not; empty means those seen.
    pub regions: Vec<String>,
    /// Begin of this process, in ms since the epoch.
    pub incarnation: u64,
    /// Between two reports of a bucket.
    pub interval: Span,
    /// Most buckets that the replica follows at once.
    pub keys_max: usize,
    /// True where the daemons of this region share one store: it counts what the siblings admitted already.
    pub shared_store: bool,
    /// Policy by which budgets are worked out of reports.
    pub policy: Policy,
    /// Rules that only simulations switch off.
    pub safety: GossipSafety,
    /// True where others are told only what they would otherwise guess wrong, and nothing of buckets that are
    /// far from their limit. Without it everything is told at once.
    pub suppresses_reports: bool,
}

/// Policies by which the budget of a region is worked out. Anything but the default is for measuring what the
/// default is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Common cuts, and most of what nobody asks for is kept where the bucket is at home.
    #[default]
    Tidegate,
    /// Always the limit less what the others are known to have admitted.
    Sum,
    /// Common cuts, and what nobody asks for is kept by weight alone.
    Cut,
}

impl ReplicaConfig {
    /// The usual settings for this daemon.
    #[must_use]
    pub const fn new(name: NodeName, incarnation: u64) -> Self {
        Self {
            name,
            regions: Vec::new(),
            incarnation,
            interval: INTERVAL_DEFAULT,
            keys_max: KEYS_MAX_DEFAULT,
            shared_store: false,
            policy: Policy::Tidegate,
            safety: GossipSafety::ALL,
            suppresses_reports: true,
        }
    }
}
