//! What this daemon told Redis of one bucket: the part of a worldwide limit that its region may use. It holds
//! while Redis is away, and shows that Redis has lost it.

use std::time::Duration;

use crate::core::algorithm::{Allowance, RegionUse, State, WindowAllowance};
use crate::core::time::Timestamp;

/// What Redis was told of one bucket.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct ToldAllowance {
    pub(in crate::store::redis) allowance: Allowance,
    pub(in crate::store::redis) error_bound: u64,
    /// When Redis forgets it, by its clock.
    pub(super) until: Timestamp,
    /// Until when Redis keeps one that it has confirmed, by the time since this daemon began.
    pub(super) confirmed: Option<Duration>,
}

impl ToldAllowance {
    /// This daemon's part of it, of so many that share the region's: at least one permit, so that no budget
    /// becomes a ban. Of a level the parts follow from the capacity.
    pub(super) fn part(&self, daemons: u32) -> Allowance {
        let part = |permits: u32| if permits == 0 { 0 } else { (permits / daemons.max(1)).max(1) };
        match self.allowance {
            Allowance::Window(told) => Allowance::Window(WindowAllowance {
                budget: part(told.budget),
                next_budget: part(told.next_budget),
                ..told
            }),
            told @ (Allowance::Level(_) | Allowance::Kept { .. }) => told,
        }
    }
}

/// A bucket as an answer showed it, before the answer changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) struct BucketBefore {
    /// Whether an allowance was there.
    pub(in crate::store::redis) has_allowance: bool,
    /// The newest instant that it had seen; `None` where it was not there, or stays in Redis.
    pub(in crate::store::redis) newest: Option<Timestamp>,
    /// Whether nothing of it was in use.
    pub(in crate::store::redis) was_empty: bool,
    /// When it was asked, by the server's clock.
    pub(in crate::store::redis) now: Timestamp,
}

impl BucketBefore {
    /// Whether Redis has forgotten what it had said at `told`: then the bucket was `known`. A bucket never
    /// goes back in time. One that is gone while its allowance is there was reset, unless Redis was in
    /// `trouble` since.
    pub(super) fn is_older_than(&self, known: &State, told: Timestamp, trouble: Timestamp) -> bool {
        if self.was_empty {
            return told < trouble && told < self.now;
        }
        let both = self.newest.zip(known.newest());
        both.is_some_and(|(newest, known)| newest < known && known <= self.now && told < self.now)
    }
}

/// What Redis has forgotten of a bucket, as far as this daemon knows it.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct Forgotten {
    /// What the region had used.
    pub(in crate::store::redis) used: Option<RegionUse>,
    /// What Redis was told of the other regions.
    pub(in crate::store::redis) told: Option<ToldAllowance>,
}
