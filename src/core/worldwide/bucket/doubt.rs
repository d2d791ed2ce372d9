//! How far a worldwide count may be off now, and by how much closed windows were above their limit.

use super::news::REMINDED;
use super::{Bucket, Here};
use crate::core::time::Timestamp;
use crate::core::worldwide::partition::most_of_silent;
use crate::core::worldwide::regions::{RegionId, Regions};

/// What makes a worldwide count uncertain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// News is on its way.
    Lag,
    /// A region that has told has not been heard of this bucket for too long.
    Stale,
    /// A region is cut off.
    Partition,
    /// Regions do not tell of buckets that are far from their limit.
    Untold,
}

impl Doubt {
    /// As operators read it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lag => "lag",
            Self::Stale => "stale",
            Self::Partition => "partition",
            Self::Untold => "untold",
        }
    }
}

impl Bucket {
    /// How far the worldwide count may lie above what is believed, and what most of that is due to. Of a region that
    /// speaks: what it may have admitted since it told, going by the demand that it told and by what it was given, and what
    /// is too little to be told. Of one that is cut off: all that the rule lets it admit on its own. Of one that told
    /// nothing: what need not be told.
    pub(in super::super) fn error_bound(&self, now: Timestamp, here: Here<'_>) -> (u64, Doubt) {
        let limit = self.rule.limit.capacity(self.rule.algorithm);
        let speaks = here.regions.owned_by(here.node, &self.key);
        if !speaks && here.thrift && !self.has_spoken(self.window_at(now)) {
            // Who speaks for the bucket does not know yet that it is counted here too, and says nothing of it.
            return (limit, Doubt::Untold);
        }
        let (mut sum, mut most) = (0_u64, (0, Doubt::Lag));
        if !here.shared_store {
            sum = self.untold_by_siblings(here, Regions::OWN);
            most = (sum, Doubt::Untold);
        }
        for (id, region) in here.regions.iter().skip(1) {
            let (bound, doubt) = self.error_of(now, here, id, region.cut_off, limit);
            sum = sum.saturating_add(bound);
            if bound > most.0 {
                most = (bound, doubt);
            }
        }
        (sum, most.1)
    }

    fn error_of(
        &self,
        now: Timestamp,
        here: Here<'_>,
        id: RegionId,
        cut_off: bool,
        limit: u64,
    ) -> (u64, Doubt) {
        let told = self.period(self.window_at(now)).and_then(|period| period.told(id));
        let known = if self.windowed() { told.map_or(0, |told| self.believed(told.counts.net())) } else { 0 };
        if cut_off {
            return (most_of_silent(&self.rule, here.regions, id).saturating_sub(known), Doubt::Partition);
        }
        let quiet = |spoken| if here.thrift { self.quiet_of(id, here, spoken) } else { 0 };
        let untold = self.untold_by_siblings(here, id);
        let window = self.window_at(now);
        // What it told of the window before says what it is asked for in this one.
        let newest = told.or_else(|| self.periods.iter().rev().find_map(|period| period.told(id)));
        let spoken = told.is_some() || self.has_spoken(window);
        let little = if self.windowed() { quiet(spoken).saturating_sub(known) } else { quiet(spoken) };
        let untold = untold.saturating_add(little);
        let Some(told) = newest else { return (untold, Doubt::Untold) };
        let since = if self.windowed() {
            told.stamp.max(Timestamp::window_start(window, self.rule.limit.window))
        } else {
            told.stamp
        };
        let asked = u128::from(told.demand) * u128::from(now.since(since).0) / 1_000_000_000_000;
        let likely = u64::try_from(asked + 2 * asked.isqrt()).unwrap_or(u64::MAX);
        let given = self.cut.given(id).filter(|&given| given > 0).unwrap_or(limit);
        let stale = now.since(told.stamp) > REMINDED + here.horizon && told.demand > 0;
        let since = likely.min(given.min(limit).saturating_sub(known));
        let doubt = match (untold > since, stale) {
            (true, _) => Doubt::Untold,
            (false, true) => Doubt::Stale,
            (false, false) => Doubt::Lag,
        };
        (since.saturating_add(untold), doubt)
    }

    /// What the daemons of a region need not tell the one that speaks for it: each hears of no other, and so is quiet about
    /// as much as if nobody had told.
    fn untold_by_siblings(&self, here: Here<'_>, region: RegionId) -> u64 {
        let siblings = here.daemons(region) - 1;
        if here.thrift { self.quiet_of(region, here, false).saturating_mul(siblings) } else { 0 }
    }

    /// Permits that the closed windows not yet looked at had above the limit, by what all regions told in the end.
    pub(in super::super) fn overshoot(&mut self, now: Timestamp) -> u64 {
        if !self.windowed() {
            return 0;
        }
        let closed = self.window_at(now).saturating_sub(2);
        let limit = u64::from(self.rule.limit.permits);
        let audited = self.audited;
        self.audited = audited.max(closed);
        let due = self.periods.iter().filter(|period| period.window > audited && period.window <= closed);
        let above = due.map(|period| {
            period.live.net().saturating_add(self.told_by_others(period)).saturating_sub(limit)
        });
        above.fold(0, u64::saturating_add)
    }
}
