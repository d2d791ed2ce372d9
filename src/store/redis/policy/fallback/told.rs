//! The newest word of this daemon to Redis on one bucket: the part of a worldwide limit that its region may
//! use. It holds while Redis is away, and shows that Redis has lost it.

use std::time::Duration;

use crate::core::algorithm::{Allowance, RegionUse, State, WindowAllowance};
use crate::core::time::{Span, Timestamp};

/// What Redis is to be told of the other regions' use of one bucket.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct AllowanceWord {
    pub(in crate::store::redis) allowance: Allowance,
    pub(in crate::store::redis) error_bound: u64,
    /// How long Redis keeps it.
    pub(in crate::store::redis) kept: Span,
}

/// When a decision was sent, and now, since this daemon began.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct Elapsed {
    pub(in crate::store::redis) sent: Duration,
    pub(in crate::store::redis) now: Duration,
}

/// The newest word to Redis on one bucket.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct ToldAllowance {
    pub(in crate::store::redis) allowance: Allowance,
    pub(in crate::store::redis) error_bound: u64,
    /// Instant at which Redis forgets it, by its clock.
    pub(super) until: Timestamp,
    /// The newest one that Redis has confirmed.
    pub(super) confirmed: Option<Confirmed>,
}

/// The time in which an allowance of a bucket is in Redis, since this daemon began.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct Confirmed {
    /// When the first write was confirmed, of those that followed each other: an answer to a decision that
    /// was sent before may have been made without any.
    pub(in crate::store::redis) from: Duration,
    /// When Redis forgets the newest.
    pub(in crate::store::redis) until: Duration,
}

impl Confirmed {
    /// The same, behind an earlier one: in between Redis has one or the other.
    pub(super) fn after(self, before: Option<Self>) -> Self {
        let from = before.filter(|before| self.from < before.until).map_or(self.from, |before| before.from);
        Self { from, ..self }
    }

    /// True if a decision that was sent then, and is answered by now, finds it.
    pub(super) fn holds(self, times: Elapsed) -> bool {
        self.from < times.sent && times.now < self.until
    }
}

impl ToldAllowance {
    /// This daemon's part of it, of so many that share the region's: at least one permit, so that no budget
    /// becomes a ban. The parts of a level follow from the capacity.
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
    /// True if an allowance was there.
    pub(in crate::store::redis) has_allowance: bool,
    /// The newest instant that it had seen; `None` where it was not there, or stays in Redis.
    pub(in crate::store::redis) newest: Option<Timestamp>,
    /// True if nothing of it was in use.
    pub(in crate::store::redis) was_empty: bool,
    /// Instant at which it was asked, by the server's clock.
    pub(in crate::store::redis) now: Timestamp,
}

impl BucketBefore {
    /// True if Redis has forgotten what it had said at `told`: then the bucket was `known`. A bucket never
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

/// The memory of a bucket that Redis has lost, as far as this daemon knows it.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct Forgotten {
    /// Use of the bucket by the region, as far as is known here.
    pub(in crate::store::redis) used: Option<RegionUse>,
    /// Allowance of the other regions that Redis was told.
    pub(in crate::store::redis) told: Option<ToldAllowance>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_decision_that_was_sent_after_the_write_shows_that_it_is_lost() {
        let [before, from, after, until] = [1, 2, 3, 4].map(Duration::from_secs);
        let confirmed = Confirmed { from, until };
        let times = |sent, now| Elapsed { sent, now };
        assert!(confirmed.holds(times(after, after)));
        assert!(!confirmed.holds(times(before, after)), "it may have been answered before the write");
        assert!(!confirmed.holds(times(after, until)), "it has lapsed");
        let next = Confirmed { from: after, until: Duration::from_secs(9) };
        assert!(next.after(Some(confirmed)).holds(times(after, after)), "the one before was there");
        assert!(!next.after(None).holds(times(after, after)));
        let late = Confirmed { from: until, ..next };
        assert!(!late.after(Some(confirmed)).holds(times(until, until)), "between the two there was none");
    }
}
