//! A bucket that a clock counted which was ahead, once the clock is set back.
//!
//! A bucket never counts backwards: after a small step its client waits until the clock has caught up, and is
//! told so. Without this a client that used something while the clock was a year ahead would be refused for a
//! year. Nobody knows any more what the bucket had counted before, so it is taken for used up now: no window
//! admits more than its limit, and it is free again when any full bucket is.

use super::{Limit, State, leaky_bucket, level};
use crate::time::{Span, Timestamp};

/// A clock that shows so much less than a bucket has seen was set back: no decision is carried out so late
/// that it brings such an instant.
const SET_BACK_ABOVE: Span = Span::from_secs(5);

impl State {
    /// The bucket as it counts from `now` on, if its newest instant lies further ahead than five seconds, and
    /// than a bucket that is used up takes to be free again: used up, and owing what it owed. Else, and
    /// always of places, `None`: it counts on.
    #[must_use]
    pub fn brought_back(&self, limit: &Limit, now: Timestamp) -> Option<Self> {
        let is_wrong = |newest: Timestamp| {
            let ahead = newest.since(now);
            ahead > SET_BACK_ABOVE && ahead > self.lasts(limit)
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

    /// Has nobody hold a place for longer than from `now` on: a clock that was set back would keep it for as
    /// long as the step. Of what has no places nothing changes.
    pub fn bring_places_back(&mut self, limit: &Limit, now: Timestamp) {
        if let Self::Concurrency(places) = self {
            places.keep_no_longer(limit, now);
        }
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
    use crate::hold::{Hold, HoldStep, Holder};
    use crate::request::ReportedCost;
    use proptest::prelude::*;

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
            for ahead in [Span::ZERO, Span::from_secs(1), Span::from_secs(100)] {
                assert_eq!(used(algorithm, NOW + ahead, 5).brought_back(&LIMIT, NOW), None, "{algorithm:?}");
            }
            let month = Limit { window: Span::from_secs(2_592_000), ..LIMIT };
            let state = used(algorithm, NOW + Span::from_secs(86_400), 5);
            assert_eq!(state.brought_back(&month, NOW), None, "{algorithm:?}");
        }
    }

    /// Steps from 10 ms to a year, and just around the one at which a bucket is brought back.
    fn steps() -> impl Strategy<Value = Span> {
        prop_oneof![
            (10_000..10_000_000_u64).prop_map(Span),
            (1..400_000_u64).prop_map(Span::from_secs),
            Just(YEAR),
        ]
    }

    proptest! {
        #[test]
        fn after_a_clock_is_set_back_a_wait_is_true_at_once_and_bounded(
            algorithm in 0..Algorithm::OF_COSTS.len(),
            back in steps(),
            millis in prop_oneof![Just(100_u64), Just(2_000), Just(60_000), Just(3_600_000)],
            permits in 1..12_u64,
        ) {
            let window = Span::from_millis(millis);
            let limit = Limit { window, permits: 5, burst: 5, ..LIMIT };
            let mut state = State::new(Algorithm::OF_COSTS[algorithm]);
            state.take(&limit, NOW, permits.min(5));
            let now = Timestamp(NOW.0 - back.0);
            let counts_on = |state: &mut State, now| {
                if let Some(back) = state.brought_back(&limit, now) {
                    *state = back;
                }
            };
            counts_on(&mut state, now);
            let verdict = state.check(&limit, None, now, 5);
            if let Some(retry) = verdict.retry {
                // Until the clock has caught up, and then as after any full bucket.
                let most = SET_BACK_ABOVE.0.max(state.lasts(&limit).0) + state.lasts(&limit).0;
                prop_assert!(retry.0 <= most, "{retry:?}");
                let later = now + retry;
                counts_on(&mut state, later);
                prop_assert!(state.check(&limit, None, later, 5).admitted, "{retry:?} is not true");
                let earlier = Timestamp(later.0 - 1);
                prop_assert!(!state.check(&limit, None, earlier, 5).admitted, "{retry:?} is too long");
            } else {
                prop_assert!(verdict.admitted);
            }
        }

        #[test]
        fn after_a_clock_is_set_back_no_place_is_kept_for_longer_than_a_hold(back in steps()) {
            let limit = Limit { permits: 1, ..LIMIT };
            let acquire = |holder| Hold { step: HoldStep::Acquire, holder: Holder([holder; 16]), places: 1 };
            let mut state = State::new(Algorithm::Concurrency);
            state.step(&limit, NOW, &acquire(1));
            let now = Timestamp(NOW.0 - back.0);
            state.bring_places_back(&limit, now);
            let denied = state.check_hold(&limit, now, &acquire(2));
            prop_assert_eq!((denied.admitted, denied.retry), (false, Some(limit.window)));
            let later = now + limit.window;
            state.bring_places_back(&limit, later);
            prop_assert!(state.check_hold(&limit, later, &acquire(2)).admitted);
        }
    }
}
