//! The level that the own store holds as used, and how much of it was charged for other regions.

use super::{UNIT, permits_up};
use crate::algorithm::Limit;
use crate::regions::by_region::ByRegion;
use crate::regions::gossip::refill::refill;
use crate::regions::membership::{RegionId, Regions};
use crate::time::Timestamp;

/// The own store's level, in millionths.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct StoredLevel {
    used: i128,
    at: Timestamp,
    /// The parts of it that were charged for each other region. All parts drain alike.
    others: ByRegion<i128>,
}

impl StoredLevel {
    pub(super) fn unused(now: Timestamp) -> Self {
        Self { at: now, ..Self::default() }
    }

    /// Returns what it holds as used, in millionths.
    pub(super) fn used(&self, now: Timestamp, limit: Limit) -> i128 {
        (self.used - refill(limit, now.since(self.at))).max(0)
    }

    /// Returns what it holds as used, in whole permits.
    pub(in super::super) fn in_use(&self, now: Timestamp, limit: Limit) -> u64 {
        u64::try_from(self.used(now, limit) / UNIT).unwrap_or(0)
    }

    /// The same with a started permit counted: what a store is told that forgot it.
    pub(in super::super) fn in_use_up(&self, now: Timestamp, limit: Limit) -> u64 {
        permits_up(self.used(now, limit))
    }

    /// The store took `permits` in that the own region admitted; they were given back if negative.
    pub(in super::super) fn add(&mut self, now: Timestamp, permits: i128, limit: Limit) {
        let used = self.used(now, limit);
        let before = std::mem::replace(&mut self.used, used).max(1);
        for (_, part) in self.others.iter_mut() {
            *part = *part * used / before;
        }
        self.used = (used + permits * UNIT).max(0);
        self.at = self.at.max(now);
    }

    /// The store is charged `permits` for others, of whom each told of so many more.
    pub(in super::super) fn charge(
        &mut self,
        now: Timestamp,
        permits: u64,
        told: &[(RegionId, u64)],
        limit: Limit,
    ) {
        self.add(now, i128::from(permits), limit);
        let all: u64 = told.iter().map(|(_, more)| *more).fold(0, u64::saturating_add);
        for &(region, more) in told.iter().filter(|(region, more)| *region != Regions::OWN && *more > 0) {
            *self.others.of(region) += i128::from(permits) * UNIT * i128::from(more) / i128::from(all.max(1));
        }
    }

    /// It holds nothing as used any more: an operator reset the bucket.
    pub(in super::super) fn empty(&mut self, now: Timestamp) {
        *self = Self::unused(now);
    }

    /// Returns what of it was charged for each other region, to the nearest permit.
    pub(in super::super) fn of_others(&self, now: Timestamp, limit: Limit) -> Vec<(RegionId, u64)> {
        self.others.iter().map(|(region, charged)| (region, self.part(now, *charged, limit))).collect()
    }

    /// The same for one of them.
    pub(in super::super) fn of_other(&self, now: Timestamp, region: RegionId, limit: Limit) -> u64 {
        self.others.get(region).map_or(0, |charged| self.part(now, *charged, limit))
    }

    fn part(&self, now: Timestamp, charged: i128, limit: Limit) -> u64 {
        let (used, before) = (self.used(now, limit), self.used.max(1));
        u64::try_from((charged * used / before + UNIT / 2) / UNIT).unwrap_or(0)
    }
}
