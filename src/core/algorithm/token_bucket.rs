//! `token_bucket`: `burst` permits that refill at exactly `permits` a window. Counted as what is taken and
//! not yet refilled.
//!
//! Bound: in any interval of length t at most `burst + permits * t / window` permits are admitted (a
//! worldwide limit's debts come on top of the interval they fall in, and out of later ones). With a `queue`,
//! up to that many permits more are admitted ahead, each with the delay after which it would have conformed
//! to `burst`.

use super::level::{Level, amount_of, capacity, counts_in_level, permits_in, time_to_drain};
use super::{Allowance, Limit, Verdict};
use crate::time::{Span, Timestamp};

/// Permits that are taken and not yet refilled.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct TokenBucket(Level);

impl TokenBucket {
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
        let taken = self.0.amount(limit, now);
        let capacity = amount_of(capacity(limit).saturating_add(Allowance::kept_of(view)), limit);
        // Permits that others may take are gone for this region.
        let held = Allowance::held_of(view, limit, self.0.instant(now));
        let asked = amount_of(cost.max(1), limit);
        let admitted = taken + held + asked <= capacity;
        let after = if admitted { taken + amount_of(cost, limit) } else { taken };
        let missing = (taken + held + asked).saturating_sub(capacity);
        let retry = || Allowance::time_to_free(view, limit, self.0.instant(now), missing);
        let ahead = after.saturating_sub(amount_of(u64::from(limit.burst), limit));
        Verdict {
            admitted,
            remaining: permits_in(capacity.saturating_sub(after + held), limit),
            reset: time_to_drain(after, limit),
            retry: (!admitted && asked <= capacity).then(retry),
            delay: if admitted && cost > 0 { time_to_drain(ahead, limit) } else { Span::ZERO },
        }
    }
}

counts_in_level!(TokenBucket);

#[cfg(test)]
mod tests {
    use super::super::oracle::{START, admissions, histories, limits, runs};
    use super::super::{Algorithm, LevelAllowance, State};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_interval_admits_more_than_its_burst_and_what_refilled_in_it(limit in limits(), history in histories()) {
            let admitted = admissions(Algorithm::TokenBucket, &limit, START, &history);
            let window = u128::from(limit.window.0);
            let capacity = u128::from(limit.burst) + u128::from(limit.queue);
            for (lasted, sum) in runs(&admitted) {
                let refilled = u128::from(lasted) * u128::from(limit.permits);
                prop_assert!(sum * window <= capacity * window + refilled);
            }
        }
    }

    #[test]
    fn what_is_queued_is_delayed_until_it_conforms() {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(1), burst: 2, queue: 3 };
        let mut state = State::new(Algorithm::TokenBucket);
        let mut delays = Vec::new();
        for _ in 0..6 {
            let verdict = state.check(&limit, None, Timestamp(0), 1);
            delays.push((verdict.admitted, verdict.delay.0));
            if verdict.admitted {
                state.take(&limit, Timestamp(0), 1);
            }
        }
        let expected = [(true, 0), (true, 0), (true, 100_000), (true, 200_000), (true, 300_000), (false, 0)];
        assert_eq!(delays, expected);
    }

    #[test]
    fn a_wait_counts_what_is_held_back_for_others_meanwhile() {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(1), burst: 10, queue: 0 };
        let view = |growth, held_back_max| {
            let since = Timestamp(0);
            Allowance::Level(LevelAllowance { since, held_back: 0, growth, held_back_max, capacity: 10 })
        };
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let mut state = State::new(algorithm);
            state.take(&limit, Timestamp(0), 10);
            for (growth, most, expected) in
                [(0, 9, 100_000), (5, 9, 200_000), (5, 1, 200_000), (10, 2, 300_000)]
            {
                let view = view(growth, most);
                let retry = state.check(&limit, Some(&view), Timestamp(0), 1).retry.unwrap().0;
                assert_eq!(retry, expected, "{algorithm:?} {growth} {most}");
                assert!(state.check(&limit, Some(&view), Timestamp(retry), 1).admitted);
                assert!(!state.check(&limit, Some(&view), Timestamp(retry - 1), 1).admitted);
            }
        }
    }

    #[test]
    fn a_debt_is_paid_back_with_time() {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(1), burst: 10, queue: 0 };
        let mut state = State::new(Algorithm::TokenBucket);
        state.debit(&limit, Timestamp(0), 25);
        let verdict = state.check(&limit, None, Timestamp(0), 1);
        assert_eq!((verdict.admitted, verdict.retry), (false, Some(Span(1_600_000))));
        assert!(state.check(&limit, None, Timestamp(1_600_000), 1).admitted);
    }

    #[test]
    fn refill_is_exact_after_years_of_idling() {
        let limit =
            Limit { calendar: None, permits: 7, window: Span(366 * 86_400_000_000), burst: 7, queue: 0 };
        let mut state = State::new(Algorithm::TokenBucket);
        state.take(&limit, Timestamp(START), 7);
        let seventh = limit.window.0.div_ceil(7);
        assert_eq!(state.check(&limit, None, Timestamp(START + seventh - 1), 0).remaining, 0);
        assert_eq!(state.check(&limit, None, Timestamp(START + seventh), 0).remaining, 1);
        assert_eq!(state.check(&limit, None, Timestamp(START + 90 * limit.window.0), 0).remaining, 7);
    }
}
