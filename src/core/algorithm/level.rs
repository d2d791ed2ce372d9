//! An exact level that rises by what is taken and drains at `permits` a window: what `token_bucket`,
//! `leaky_bucket` and `gcra` count with. It knows how much is used and when; what that means for a request is
//! theirs to say.
//!
//! It is kept as usage, not as what is left, so that a changed limit or burst takes effect at once, and in
//! permits, not in time, so that a changed rate neither forgives nor invents usage. Fractions are whole
//! numbers of 1/window permits: draining for `t` microseconds takes exactly `t * permits` of them, so nothing
//! drifts however often it is done.

use super::Limit;
use crate::time::{Span, Timestamp};

/// Usage as of the newest instant seen. Bytes rather than wide integers: the state beside its tag must fit 24
/// bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Level {
    at: [u8; 8],
    /// In 1/window permits; less than one permit.
    part: [u8; 8],
    whole: u32,
}

/// An amount in 1/window permits. The largest, `u32::MAX` permits of the longest window, needs 77 bits.
pub(super) type LevelAmount = u128;

/// So many permits as an amount.
pub(super) fn amount_of(permits: u64, limit: &Limit) -> LevelAmount {
    u128::from(permits) * u128::from(limit.window.0.max(1))
}

/// Permits that `token_bucket` and `gcra` hold at most. A limit of zero admits nothing, whatever its burst,
/// and no level counts beyond `u32::MAX`.
pub(super) fn capacity(limit: &Limit) -> u64 {
    if limit.permits == 0 { 0 } else { u64::from(limit.burst.saturating_add(limit.queue)) }
}

/// Whole permits in an amount.
pub(super) fn permits_in(amount: LevelAmount, limit: &Limit) -> u64 {
    divide(amount, limit.window.0.max(1))
}

/// Whole permits in an amount, a started one counted.
pub(super) fn permits_in_up(amount: LevelAmount, limit: &Limit) -> u64 {
    divide_up(amount, limit.window.0.max(1))
}

/// How long an amount takes to drain, rounded up; one window if the limit is zero, since then it never does.
pub(super) fn time_to_drain(amount: LevelAmount, limit: &Limit) -> Span {
    if amount == 0 {
        Span::ZERO
    } else if limit.permits == 0 {
        limit.window
    } else {
        Span(divide_up(amount, u64::from(limit.permits)))
    }
}

impl Level {
    /// Holds what another process wrote down.
    pub(super) const fn from_parts(at: Timestamp, whole: u32, part: u64) -> Self {
        Self { at: at.0.to_ne_bytes(), part: part.to_ne_bytes(), whole }
    }

    fn at(&self) -> Timestamp {
        Timestamp(u64::from_ne_bytes(self.at))
    }

    /// `now`, or the newest instant seen if that is later: nothing drains twice.
    pub(super) fn instant(&self, now: Timestamp) -> Timestamp {
        now.max(self.at())
    }

    pub(super) fn newest(&self) -> Timestamp {
        self.at()
    }

    /// As holding at least `capacity` permits at `now`.
    pub(super) fn used_up(&self, limit: &Limit, capacity: u64, now: Timestamp) -> Self {
        let mut level = Self::default();
        level.hold(limit, now, self.held(limit).max(amount_of(capacity, limit)));
        level
    }

    /// What is in use at `now`.
    #[inline]
    pub(super) fn amount(&self, limit: &Limit, now: Timestamp) -> LevelAmount {
        let held = self.held(limit);
        if held == 0 {
            return 0;
        }
        held.saturating_sub(u128::from(now.since(self.at()).0) * u128::from(limit.permits))
    }

    fn held(&self, limit: &Limit) -> LevelAmount {
        let window = limit.window.0.max(1);
        // Where a bucket is read with another window than it was written with, a part stays less than one
        // permit.
        let part = u64::from_ne_bytes(self.part).min(window - 1);
        u128::from(self.whole) * u128::from(window) + u128::from(part)
    }

    /// Holds `amount` as of `now`; beyond `u32::MAX` permits it stays there.
    pub(super) fn hold(&mut self, limit: &Limit, now: Timestamp, amount: LevelAmount) {
        let window = limit.window.0.max(1);
        let whole = divide(amount, window);
        let (whole, part) = match u32::try_from(whole) {
            Ok(whole) => (whole, amount - u128::from(whole) * u128::from(window)),
            Err(_) => (u32::MAX, 0),
        };
        self.whole = whole;
        self.part = u64::try_from(part).unwrap_or(0).to_ne_bytes();
        self.at = self.instant(now).0.to_ne_bytes();
    }

    /// Puts `cost` permits in, whether or not they fit.
    pub(super) fn put(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        if cost > 0 {
            let amount = self.amount(limit, now) + amount_of(cost, limit);
            self.hold(limit, now, amount);
        }
    }

    /// Puts in what was used already, up to `most` permits in use in all. Returns the permits charged.
    pub(super) fn report(&mut self, limit: &Limit, now: Timestamp, cost: u64, most: u64) -> u64 {
        let most = amount_of(most.min(u64::from(u32::MAX)), limit);
        let charged = cost.min(permits_in(most.saturating_sub(self.amount(limit, now)), limit));
        self.put(limit, now, charged);
        charged
    }

    /// Counts as at least `permits` in use.
    pub(super) fn raise(&mut self, limit: &Limit, now: Timestamp, permits: u64) {
        let least = amount_of(permits, limit);
        if self.amount(limit, now) < least {
            self.hold(limit, now, least);
        }
    }

    /// Takes `cost` permits back out, down to nothing. Returns how many whole permits came out.
    pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        let amount = self.amount(limit, now);
        let back = amount_of(cost, limit).min(amount);
        if back > 0 {
            self.hold(limit, now, amount - back);
        }
        permits_in(back, limit)
    }

    /// Takes an amount back out, down to nothing. Returns what came out.
    pub(super) fn take_back(&mut self, limit: &Limit, now: Timestamp, amount: LevelAmount) -> LevelAmount {
        let held = self.amount(limit, now);
        let back = amount.min(held);
        if back > 0 {
            self.hold(limit, now, held - back);
        }
        back
    }

    /// Permits in use, a started one counted.
    pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        if now <= self.at() {
            // As it was left, which needs no division.
            return u64::from(self.whole) + u64::from(self.part != [0; 8]);
        }
        permits_in_up(self.amount(limit, now), limit)
    }

    /// From when on it is empty. With a limit of zero it never drains, but then nothing is admitted either
    /// way.
    pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
        self.at() + time_to_drain(self.held(limit), limit)
    }
}

/// Gives a machine that is one [`Level`] what all of them do alike: only what a request is answered differs.
macro_rules! counts_in_level {
    ($machine:ident) => {
        impl $machine {
            pub(super) fn newest(&self) -> Timestamp {
                self.0.newest()
            }

            /// As used up at `now`, and owing as much.
            pub(super) fn used_up(&self, limit: &Limit, now: Timestamp) -> Self {
                Self(self.0.used_up(limit, capacity(limit), now))
            }

            pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
                self.0.put(limit, now, cost);
            }

            /// Charges `cost` whatever is left: the level rises above its capacity, and drains as usual.
            pub(super) fn report(
                &mut self,
                limit: &Limit,
                view: Option<&Allowance>,
                now: Timestamp,
                report: &$crate::request::ReportedCost,
            ) -> u64 {
                let capacity = capacity(limit).saturating_add(Allowance::kept_of(view));
                let most = capacity.saturating_add(u64::from(report.debt_max));
                self.0.report(limit, now, report.permits, most)
            }

            pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
                self.0.refund(limit, now, cost)
            }

            pub(super) fn take_back(
                &mut self,
                limit: &Limit,
                now: Timestamp,
                amount: $crate::algorithm::level::LevelAmount,
            ) -> $crate::algorithm::level::LevelAmount {
                self.0.take_back(limit, now, amount)
            }

            pub(super) fn instant(&self, now: Timestamp) -> Timestamp {
                self.0.instant(now)
            }

            pub(super) fn whole(&self, limit: &Limit, now: Timestamp) -> u64 {
                $crate::algorithm::level::permits_in(self.0.amount(limit, now), limit)
            }

            pub(super) fn debit(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
                self.0.put(limit, now, cost);
            }

            pub(super) fn raise(&mut self, limit: &Limit, now: Timestamp, permits: u64) {
                self.0.raise(limit, now, permits);
            }

            pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
                self.0.used(limit, now)
            }

            pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
                self.0.expiry(limit)
            }
        }
    };
}

pub(super) use counts_in_level;

/// Most amounts fit 64 bits, where dividing costs a tenth.
fn divide(amount: LevelAmount, by: u64) -> u64 {
    match u64::try_from(amount) {
        Ok(amount) => amount / by,
        Err(_) => u64::try_from(amount / u128::from(by)).unwrap_or(u64::MAX),
    }
}

fn divide_up(amount: LevelAmount, by: u64) -> u64 {
    match u64::try_from(amount) {
        Ok(amount) => amount.div_ceil(by),
        Err(_) => u64::try_from(amount.div_ceil(u128::from(by))).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(permits: u32, window: u64) -> Limit {
        Limit { calendar: None, permits, window: Span(window), burst: permits, queue: 0 }
    }

    #[test]
    fn a_million_visits_later_nothing_has_drifted() {
        // Three permits in seven microseconds never divide evenly.
        let limit = limit(3, 7);
        let mut level = Level::default();
        level.hold(&limit, Timestamp(0), amount_of(u64::from(u32::MAX), &limit));
        for step in 1..=1_000_000_u64 {
            let now = Timestamp(step * 10);
            let amount = level.amount(&limit, now);
            level.hold(&limit, now, amount);
        }
        let expected = amount_of(u64::from(u32::MAX), &limit) - 10_000_000 * 3;
        assert_eq!(level.amount(&limit, Timestamp(10_000_000)), expected);
    }

    #[test]
    fn a_part_of_another_window_is_never_more_than_a_permit() {
        let long = limit(1, 86_400_000_000);
        let mut level = Level::default();
        level.put(&long, Timestamp(0), 2);
        level.put(&long, Timestamp(1), 1);
        let short = limit(1, 1_000_000);
        assert_eq!(level.used(&short, Timestamp(1)), 3);
    }

    #[test]
    fn a_debt_stops_at_the_largest_number_of_permits() {
        let limit = limit(1, 1_000_000);
        let mut level = Level::default();
        level.put(&limit, Timestamp(5), u64::MAX);
        level.put(&limit, Timestamp(5), u64::MAX);
        assert_eq!(level.used(&limit, Timestamp(5)), u64::from(u32::MAX));
        assert_eq!(level.refund(&limit, Timestamp(5), u64::MAX), u64::from(u32::MAX));
        assert_eq!(level.used(&limit, Timestamp(5)), 0);
    }
}
