//! Facts of a daemon that each of its buckets must know.

use std::sync::Arc;

use crate::regions::gossip::common_cuts::GROWTH_DELAY;
use crate::regions::gossip::replica_config::Policy;
use crate::regions::gossip::safety::GossipSafety;
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};

/// For at least so long a demand counts that has not lasted.
pub(super) const AHEAD_MIN: Span = Span::from_secs(1);
/// The step that it is rounded up to.
const AHEAD_STEP: Span = Span::from_millis(500);

/// The daemon that asks: what a bucket must know of the daemon that follows it.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct DaemonContext<'a> {
    pub(in super::super) node: &'a Arc<str>,
    /// Instant at which the daemon's process began.
    pub(in super::super) started: Timestamp,
    /// True if the daemons of this region share one store.
    pub(in super::super) shared_store: bool,
    pub(in super::super) regions: &'a Regions,
    /// After this long a report has reached everyone.
    pub(in super::super) horizon: Span,
    /// Between two reports of a bucket.
    pub(in super::super) interval: Span,
    pub(in super::super) policy: Policy,
    pub(in super::super) safety: GossipSafety,
    /// True if nothing is told of buckets far from their limit.
    pub(in super::super) suppresses_reports: bool,
    /// True if there is so much to tell that only what others would guess wrong is told.
    pub(in super::super) busy: bool,
    /// True if for long all came in time, so that every region divides by the same reports.
    pub(in super::super) settled: bool,
    /// True if this daemon has just begun and waits for the others' word.
    pub(in super::super) waits: bool,
    /// The longest that any region was not heard since that was so.
    pub(in super::super) silence: Span,
}

impl DaemonContext<'_> {
    /// True if any other region is known.
    pub(super) fn has_others(&self) -> bool {
        self.regions.listed_len() > 1
    }

    /// True if a daemon of the own region is there. One that has just begun does not know who is gone.
    pub(super) fn lives(&self, node: &str) -> bool {
        let is_there = || {
            let own = self.regions.get(Regions::OWN);
            own.is_some_and(|region| region.ring.nodes().iter().any(|one| one == node))
        };
        self.waits || **self.node == *node || is_there()
    }

    /// For so long a demand counts that has not lasted: three times as long as it takes until a later report
    /// is in force. Rounded up, so that regions that measure nearly the same delays use the same.
    pub(super) fn ahead(&self) -> Span {
        let in_force = self.horizon + self.interval + GROWTH_DELAY;
        let ahead = in_force.0.saturating_mul(3).div_ceil(AHEAD_STEP.0).saturating_mul(AHEAD_STEP.0);
        Span(ahead).max(AHEAD_MIN)
    }

    /// Returns how many daemons a region has, at least one.
    pub(in super::super) fn daemons(&self, region: RegionId) -> u64 {
        let nodes = self.regions.get(region).map_or(1, |region| region.ring.nodes().len());
        u64::try_from(nodes).unwrap_or(u64::MAX).max(1)
    }
}
