//! `CL.THROTTLE key max_burst count period [quantity]`: the generic cell rate algorithm with the arrival time
//! as its only state, as the Redis module redis-cell answers it. Parameters may change at each call; the
//! arrival time stays.

use super::{CellChange, CellValue, Nanos, Reply, Stored};

/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;
/// Nanoseconds of a millisecond.
const MILLISECOND: i64 = 1_000_000;
/// The longest time that permits may be worth together, 70 years: twice that, from now on, is exact.
const WORTH_MAX: Nanos = 70 * 365 * 86_400 * SECOND;

/// A rate, a burst and how much of it a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Permits at once: `max_burst + 1`.
    limit: i64,
    /// The time that one permit is worth.
    emission: Nanos,
    /// The time that all of them are worth.
    tolerance: Nanos,
    /// The time that the asked ones are worth.
    increment: Nanos,
}

/// A call whose numbers mean no rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermsError {
    /// No permits, no time, or more than one permit in a nanosecond.
    ZeroRate,
    /// A negative number, or permits that are worth more than seventy years.
    OutOfRange,
}

impl Terms {
    /// Reads the numbers of a call: a burst, permits in a period of whole seconds, and permits asked for.
    ///
    /// # Errors
    /// Numbers that mean no rate.
    pub fn new(max_burst: i64, count: i64, period: i64, quantity: i64) -> Result<Self, TermsError> {
        if max_burst < 0 || count < 0 || period < 0 || quantity < 0 {
            return Err(TermsError::OutOfRange);
        }
        let counted = |time: &Nanos| *time <= WORTH_MAX;
        let period = period.checked_mul(SECOND).ok_or(TermsError::OutOfRange)?;
        let emission =
            period.checked_div(count).filter(|emission| *emission > 0).ok_or(TermsError::ZeroRate)?;
        let limit = max_burst.checked_add(1).ok_or(TermsError::OutOfRange)?;
        let tolerance = emission.checked_mul(limit).filter(counted).ok_or(TermsError::OutOfRange)?;
        let increment = emission.checked_mul(quantity).filter(counted).ok_or(TermsError::OutOfRange)?;
        Ok(Self { limit, emission, tolerance, increment })
    }

    /// The time that a bucket which is used up takes to be free again.
    pub(super) const fn full(&self) -> Nanos {
        self.tolerance
    }

    /// Answers from the arrival time that is stored.
    pub(super) fn apply(&self, stored: Option<Nanos>, now: Nanos) -> (Reply, CellChange) {
        let arrival = stored.unwrap_or(now).max(now);
        let after = arrival.saturating_add(self.increment);
        let early = after.saturating_sub(self.tolerance).saturating_sub(now);
        let limited = early > 0;
        let kept = if limited { arrival } else { after };
        let until_free = kept.saturating_sub(now);
        let retry = (limited && self.increment <= self.tolerance).then_some(early);
        let throttled = Throttled {
            limited,
            limit: self.limit,
            remaining: (self.tolerance.saturating_sub(until_free) / self.emission).max(0),
            retry_after: retry.map_or(-1, seconds_up),
            reset_after: seconds_up(until_free),
        };
        let takes = !limited && self.increment > 0;
        let put = Stored { value: CellValue::Arrival(after), expires: Some(after), since: Some(now) };
        (Reply::Throttled(throttled), if takes { CellChange::Put(put) } else { CellChange::Keep })
    }
}

/// The five numbers that `CL.THROTTLE` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttled {
    /// True if the call is refused.
    pub limited: bool,
    /// Permits that can be taken at once, `max_burst` and one more.
    pub limit: i64,
    /// Permits that are left at once.
    pub remaining: i64,
    /// Seconds until the same call passes; -1 where it passed, or never can.
    pub retry_after: i64,
    /// Seconds until all is left again.
    pub reset_after: i64,
}

/// Whole seconds: the part below a millisecond is dropped, what then is left of a second counts as one.
const fn seconds_up(time: Nanos) -> i64 {
    let millis = time / MILLISECOND;
    millis / 1_000 + if millis % 1_000 > 0 { 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::Operation;
    use super::*;
    use proptest::prelude::*;

    /// Returns what a run of calls on a fresh key is answered, all at one instant.
    fn answers(calls: &[(i64, i64, i64, i64)]) -> Vec<[i64; 5]> {
        let now = 1_780_000_000 * SECOND;
        let mut stored = None;
        let mut out = Vec::new();
        for &(burst, count, period, quantity) in calls {
            let terms = Terms::new(burst, count, period, quantity).unwrap();
            let (reply, change) = Operation::Throttle(terms).apply(stored, now);
            let Reply::Throttled(told) = reply else { panic!("{reply:?}") };
            if let CellChange::Put(put) = change {
                stored = Some(put);
            }
            let limited = i64::from(told.limited);
            out.push([limited, told.limit, told.remaining, told.retry_after, told.reset_after]);
        }
        out
    }

    #[test]
    fn it_answers_as_redis_cell_does() {
        for (calls, last) in [
            (&[(15, 30, 60, 1)][..], [0, 16, 15, -1, 2]),
            (&[(0, 1, 2, 1)], [0, 1, 0, -1, 2]),
            (&[(0, 1, 2, 1), (0, 1, 2, 1)], [1, 1, 0, 2, 2]),
            (&[(5, 5, 3_600, 1)], [0, 6, 5, -1, 720]),
            (&[(15, 30, 60, 5)], [0, 16, 11, -1, 10]),
            (&[(15, 30, 60, 0)], [0, 16, 16, -1, 0]),
            // Never possible, so there is nothing to wait for.
            (&[(15, 30, 60, 17)], [1, 16, 16, -1, 0]),
            (&[(15, 30, 60, 5), (15, 30, 60, 12)], [1, 16, 11, 2, 10]),
            // The arrival time stays where the numbers change: 2 s are a third of a permit at 10 a minute.
            (&[(15, 30, 60, 1), (15, 10, 60, 1)], [0, 16, 14, -1, 8]),
        ] {
            assert_eq!(answers(calls).last(), Some(&last), "{calls:?}");
        }
    }

    #[test]
    fn numbers_that_mean_no_rate_are_told_apart() {
        for (burst, count, period) in [(1, 0, 60), (1, 1, 0), (1, 2 * SECOND, 1)] {
            assert_eq!(Terms::new(burst, count, period, 1), Err(TermsError::ZeroRate));
        }
        for (burst, count, period, quantity) in [
            (-1, 1, 1, 1),
            (1, -1, 1, 1),
            (1, 1, -1, 1),
            (1, 1, 1, -1),
            (i64::MAX, 1, 1, 1),
            (1, 1, i64::MAX, 1),
            (0, 1, 7_500_000_000, 1),
            (1, 1, WORTH_MAX / SECOND, 1),
            (0, 1, WORTH_MAX / SECOND, 2),
        ] {
            assert_eq!(Terms::new(burst, count, period, quantity), Err(TermsError::OutOfRange));
        }
    }

    #[test]
    fn the_longest_terms_limit_as_any_others() {
        let now = 1_780_000_000 * SECOND;
        let terms = Terms::new(0, 1, WORTH_MAX / SECOND, 1).unwrap();
        let (_, CellChange::Put(put)) = terms.apply(None, now) else { panic!("it passes") };
        for later in [0, 1_000_000_000, WORTH_MAX / SECOND - 1] {
            let (Reply::Throttled(told), _) =
                Operation::Throttle(terms).apply(Some(put), now + later * SECOND)
            else {
                panic!()
            };
            assert!(told.limited, "{later}");
            assert_eq!(told.retry_after, WORTH_MAX / SECOND - later);
        }
    }

    proptest! {
        #[test]
        fn who_waits_as_told_is_admitted(
            burst in 0..50_i64, count in 1..1_000_i64, period in 1..100_000_i64, quantity in 0..60_i64, ahead in 0..200_000_i64,
        ) {
            let now = 1_780_000_000 * SECOND;
            let terms = Terms::new(burst, count, period, quantity).unwrap();
            let arrival = now + ahead * SECOND;
            let stored = Stored { value: CellValue::Arrival(arrival), expires: Some(arrival), since: Some(now) };
            let (Reply::Throttled(told), change) = Operation::Throttle(terms).apply(Some(stored), now) else { panic!() };
            prop_assert_eq!(told.limited, change == CellChange::Keep && (quantity > 0 || told.limited));
            if told.limited && told.retry_after >= 0 {
                let later = now + told.retry_after * SECOND + MILLISECOND;
                let (Reply::Throttled(then), _) = Operation::Throttle(terms).apply(Some(stored), later) else { panic!() };
                prop_assert!(!then.limited, "{told:?} {then:?}");
            }
        }
    }
}
