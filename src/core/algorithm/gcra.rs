//! `gcra`: the generic cell rate algorithm (ITU-T I.371), virtual scheduling. A bucket has a theoretical
//! arrival time (TAT): when its next permit is due if they came evenly. A request of cost c conforms while
//! `TAT + c * T - burst * T <= now`, where `T = window / permits` is the time one permit is worth.
//!
//! Bound: as a token bucket of the same burst, decision for decision: in any interval of length t at most
//! `burst + permits * t / window`.
//!
//! T is rarely a whole number of microseconds, so times are counted here in 1/permits of one, where it is
//! exactly `window`. The TAT itself is kept as its distance from the newest instant seen, and that in
//! permits: a time would overflow at the longest windows and would misstate what is used once the rate
//! changes.

use super::level::{Level, LevelAmount, amount_of, capacity, counts_in_level, permits_in, time_to_drain};
use super::{Allowance, Limit, Verdict};
use crate::time::{Span, Timestamp};

/// How far the theoretical arrival time lies ahead.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Gcra(Level);

impl Gcra {
    /// Counts on from this level.
    pub(super) const fn from_level(level: Level) -> Self {
        Self(level)
    }

    /// The present and the theoretical arrival time, which is never in the past, both in 1/permits
    /// microseconds.
    fn schedule(&self, limit: &Limit, now: Timestamp) -> (LevelAmount, LevelAmount) {
        let present = u128::from(self.0.instant(now).0) * u128::from(limit.permits);
        (present, present + self.0.amount(limit, now))
    }

    pub(super) fn check(
        &self,
        limit: &Limit,
        view: Option<&Allowance>,
        now: Timestamp,
        cost: u64,
    ) -> Verdict {
        let (present, tat) = self.schedule(limit, now);
        let tolerance = amount_of(capacity(limit).saturating_add(Allowance::kept_of(view)), limit);
        // Permits that others may take are gone for this region.
        let held = Allowance::held_of(view, limit, self.0.instant(now));
        let increment = amount_of(cost.max(1), limit);
        let due = tat + increment;
        let admitted = due + held <= present + tolerance;
        let tat_after = if admitted { tat + amount_of(cost, limit) } else { tat };
        let backlog = tat_after - present;
        let missing = (due + held).saturating_sub(present + tolerance);
        let retry = || Allowance::time_to_free(view, limit, self.0.instant(now), missing);
        let early = backlog.saturating_sub(amount_of(u64::from(limit.burst), limit));
        Verdict {
            admitted,
            remaining: permits_in(tolerance.saturating_sub(backlog + held), limit),
            reset: time_to_drain(backlog, limit),
            retry: (!admitted && increment <= tolerance).then(retry),
            delay: if admitted && cost > 0 { time_to_drain(early, limit) } else { Span::ZERO },
        }
    }
}

counts_in_level!(Gcra);

#[cfg(test)]
mod tests {
    use super::super::oracle::{START, admissions, histories, limits};
    use super::super::{Algorithm, State};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_admits_what_a_token_bucket_of_the_same_burst_admits(limit in limits(), history in histories()) {
            prop_assert_eq!(
                admissions(Algorithm::Gcra, &limit, START, &history),
                admissions(Algorithm::TokenBucket, &limit, START, &history)
            );
        }
    }

    #[test]
    fn a_raised_rate_takes_effect_for_a_bucket_at_its_limit() {
        let slow = Limit { calendar: None, permits: 1, window: Span::from_secs(86_400), burst: 1, queue: 0 };
        let mut state = State::new(Algorithm::Gcra);
        state.take(&slow, Timestamp(START), 1);
        assert_eq!(state.check(&slow, None, Timestamp(START), 1).retry, Some(Span::from_secs(86_400)));
        let fast = Limit { permits: 86_400, ..slow };
        assert_eq!(state.check(&fast, None, Timestamp(START), 1).retry, Some(Span::from_secs(1)));
    }
}
