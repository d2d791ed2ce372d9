//! `token_bucket`: `burst` permits that refill at exactly `permits` a window. Counted as what is taken and not yet refilled.
//!
//! Bound: in any interval of length t at most `burst + permits * t / window` permits are admitted (a worldwide limit's
//! debts come on top of the interval they fall in, and out of later ones). With a `queue`, up to that many permits more
//! are admitted ahead, each with the delay after which it would have conformed to `burst`.

use super::level::{Level, amount_of, capacity, permits_in, time_to_drain};
use super::{Limit, Verdict, View};
use crate::core::time::{Span, Timestamp};

/// What is taken and not yet refilled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenBucket(Level);

impl TokenBucket {
    /// Counts on from this level.
    pub(super) const fn from_level(level: Level) -> Self {
        Self(level)
    }

    pub(super) fn check(&self, limit: &Limit, _: Option<&View>, now: Timestamp, cost: u64) -> Verdict {
        let taken = self.0.amount(limit, now);
        let capacity = amount_of(capacity(limit), limit);
        let asked = amount_of(cost.max(1), limit);
        let admitted = taken + asked <= capacity;
        let after = if admitted { taken + amount_of(cost, limit) } else { taken };
        let retry = || time_to_drain((taken + asked).saturating_sub(capacity), limit);
        let ahead = after.saturating_sub(amount_of(u64::from(limit.burst), limit));
        Verdict {
            admitted,
            remaining: permits_in(capacity.saturating_sub(after), limit),
            reset: time_to_drain(after, limit),
            retry: (!admitted && asked <= capacity).then(retry),
            delay: if admitted && cost > 0 { time_to_drain(ahead, limit) } else { Span::ZERO },
        }
    }

    pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        self.0.put(limit, now, cost);
    }

    pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        self.0.refund(limit, now, cost)
    }

    pub(super) fn debit(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        self.0.put(limit, now, cost);
    }

    pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        self.0.used(limit, now)
    }

    pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
        self.0.expiry(limit)
    }
}
