//! A bucket that a clock counted which was far ahead, once the clock is right again.
//!
//! A bucket never counts backwards. Without this a client that used something while the clock was a year
//! ahead would be refused for a year. Nobody knows any more what the bucket had counted before, so it is
//! taken for used up now: no window admits more than its limit, and it is free again when any full bucket is.

use super::{Limit, State, leaky_bucket, level};
use crate::time::{Span, Timestamp};

/// A clock that shows so much less than a bucket has seen was not set back a little: it was wrong.
const WRONG_ABOVE: Span = Span::from_secs(3_600);

impl State {
    /// The bucket as it counts from `now` on, if its newest instant lies further ahead than an hour, and than
    /// a bucket that is used up takes to be free again: used up, and owing what it owed. Else, and always of
    /// places, `None`: it counts on.
    #[must_use]
    pub fn brought_back(&self, limit: &Limit, now: Timestamp) -> Option<Self> {
        let is_wrong = |newest: Timestamp| {
            let ahead = newest.since(now);
            ahead > WRONG_ABOVE && ahead > self.lasts(limit)
        };
        Some(match self {
            Self::FixedWindow(one) if is_wrong(one.newest()) => Self::FixedWindow(one.used_up(limit, now)),
            Self::SlidingWindow(one) if is_wrong(one.newest()) => {
                Self::SlidingWindow(one.used_up(limit, now))
            }
            Self::SlidingLog(one) if is_wrong(one.newest()) => Self::SlidingLog(one.used_up(limit, now)),
            Self::TokenBucket(one) if is_wrong(one.newest()) => Self::TokenBucket(one.used_up(limit, now)),
            Self::LeakyBucket(one) if is_wrong(one.newest()) => Self::LeakyBucket(one.used_up(limit, now)),
            Self::Gcra(one) if is_wrong(one.newest()) => Self::Gcra(one.used_up(limit, now)),
            _ => return None,
        })
    }

    /// After so long a bucket that is used up is free again, at the latest: two windows, or the whole windows
    /// that it takes to refill.
    fn lasts(&self, limit: &Limit) -> Span {
        let whole_windows = |capacity: u64| capacity.checked_div(u64::from(limit.permits)).unwrap_or(0) + 1;
        let windows = match self {
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) | Self::Concurrency(_) => 2,
            Self::TokenBucket(_) | Self::Gcra(_) => whole_windows(level::capacity(limit)),
            Self::LeakyBucket(_) => whole_windows(leaky_bucket::capacity(limit)),
        };
        Span(limit.window.0.saturating_mul(windows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::request::ReportedCost;

    const NOW: Timestamp = Timestamp(1_700_000_000_000_000);
    const YEAR: Span = Span::from_secs(31_536_000);
    const LIMIT: Limit =
        Limit { calendar: None, permits: 10, window: Span::from_secs(60), burst: 20, queue: 0 };

    fn used(algorithm: Algorithm, at: Timestamp, permits: u64) -> State {
        let mut state = State::new(algorithm);
        state.report(&LIMIT, None, at, &ReportedCost { permits, debt_max: 10 });
        state
    }

    #[test]
    fn what_a_clock_counted_a_year_ahead_locks_nobody_for_longer_than_a_full_bucket_and_its_debt() {
        for algorithm in Algorithm::OF_COSTS {
            for permits in [1, 10, 1_000] {
                let state = used(algorithm, NOW + YEAR, permits);
                let back = state.brought_back(&LIMIT, NOW).unwrap();
                let verdict = back.check(&LIMIT, None, NOW, 1);
                assert!(!verdict.admitted, "{algorithm:?}: nobody knows what was used before");
                let retry = verdict.retry.unwrap();
                assert!(retry <= Span::from_secs(240), "{algorithm:?} {permits}: {retry:?}");
                let later = NOW + retry;
                assert!(back.check(&LIMIT, None, later, 1).admitted, "{algorithm:?} {permits}");
                assert_eq!(back.brought_back(&LIMIT, NOW), None, "once");
            }
        }
    }

    #[test]
    fn what_is_owed_stays_owed() {
        for algorithm in Algorithm::OF_COSTS {
            let back = |permits| used(algorithm, NOW + YEAR, permits).brought_back(&LIMIT, NOW).unwrap();
            let retry = |state: &State| state.check(&LIMIT, None, NOW, 1).retry.unwrap();
            let (nothing, debt) = (back(1), back(1_000));
            assert!(retry(&nothing) < retry(&debt) || algorithm == Algorithm::SlidingLog, "{algorithm:?}");
            assert!(nothing.used(&LIMIT, NOW) < debt.used(&LIMIT, NOW), "{algorithm:?}");
        }
    }

    #[test]
    fn a_clock_that_is_a_little_ahead_or_within_the_same_long_window_is_none() {
        for algorithm in Algorithm::OF_COSTS {
            for ahead in [Span::ZERO, Span::from_secs(1), Span::from_secs(3_600)] {
                assert_eq!(used(algorithm, NOW + ahead, 5).brought_back(&LIMIT, NOW), None, "{algorithm:?}");
            }
            let month = Limit { window: Span::from_secs(2_592_000), ..LIMIT };
            let state = used(algorithm, NOW + Span::from_secs(86_400), 5);
            assert_eq!(state.brought_back(&month, NOW), None, "{algorithm:?}");
        }
    }
}
