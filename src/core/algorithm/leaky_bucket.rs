//! `leaky_bucket`: a queue of `burst` permits that drains at a constant pace. A request waits until
//! everything before it has drained, so what leaves is evenly spaced however it arrived.
//!
//! Bound: a request that follows one of cost c leaves at least `c * window / permits` after it (to the
//! microsecond), so departures never exceed the rate; arrivals are admitted while the queue holds at most its
//! capacity. With a `queue` (the `throttle` action's longest delay) the capacity is the smaller of the two.

use super::level::{Level, amount_of, counts_in_level, permits_in, time_to_drain};
use super::{Allowance, Limit, Verdict};
use crate::time::{Span, Timestamp};

/// Permits that are queued and not yet drained.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct LeakyBucket(Level);

/// Permits that the queue holds at most.
pub(super) fn capacity(limit: &Limit) -> u64 {
    match (limit.permits, limit.queue) {
        (0, _) => 0,
        (_, 0) => u64::from(limit.burst),
        (_, queue) => u64::from(limit.burst.min(queue)),
    }
}

impl LeakyBucket {
    /// Counts on from this level.
    pub(super) const fn from_level(level: Level) -> Self {
        Self(level)
    }

    pub(super) fn check(
        &self,
        limit: &Limit,
        view: Option<&Allowance>,
        now: Timestamp,
        cost: u64,
    ) -> Verdict {
        let queued = self.0.amount(limit, now);
        let capacity = amount_of(capacity(limit).saturating_add(Allowance::kept_of(view)), limit);
        // Permits that others may take are gone for this region.
        let held = Allowance::held_of(view, limit, self.0.instant(now));
        let asked = amount_of(cost.max(1), limit);
        let admitted = queued + held + asked <= capacity;
        let after = if admitted { queued + amount_of(cost, limit) } else { queued };
        let missing = (queued + held + asked).saturating_sub(capacity);
        let retry = || Allowance::time_to_free(view, limit, self.0.instant(now), missing);
        Verdict {
            admitted,
            remaining: permits_in(capacity.saturating_sub(after + held), limit),
            reset: time_to_drain(after, limit),
            retry: (!admitted && asked <= capacity).then(retry),
            delay: if admitted && cost > 0 { time_to_drain(queued, limit) } else { Span::ZERO },
        }
    }
}

counts_in_level!(LeakyBucket);

#[cfg(test)]
mod tests {
    use super::super::Algorithm;
    use super::super::oracle::{START, admissions, histories, limits};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn departures_are_spaced_by_what_left_before(limit in limits(), history in histories()) {
            let admitted = admissions(Algorithm::LeakyBucket, &limit, START, &history);
            for pair in admitted.windows(2) {
                let ((_, cost, left), (.., leaves)) = (pair[0], pair[1]);
                let gap = u128::from(cost) * u128::from(limit.window.0) / u128::from(limit.permits);
                prop_assert!(leaves == u64::MAX || u128::from(leaves - left) >= gap);
            }
        }
    }
}
