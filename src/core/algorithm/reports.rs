//! Reports, seen from outside: whatever comes in whatever order, no permit that was reported is lost. Tests
//! only.

use proptest::prelude::*;

use super::oracle::START;
use super::{Algorithm, Limit, State};
use crate::request::ReportedCost;
use crate::time::{Span, Timestamp};

const SECOND: u64 = 1_000_000;

fn limit(permits: u32) -> Limit {
    Limit { calendar: None, permits, window: Span(SECOND), burst: permits, queue: 0 }
}

/// Takes all that is left. Returns how much that was.
fn drain(state: &mut State, limit: &Limit, now: Timestamp) -> u64 {
    let left = state.check(limit, None, now, 0).remaining;
    if left > 0 {
        assert!(state.check(limit, None, now, left).admitted);
        state.take(limit, now, left);
    }
    assert!(!state.check(limit, None, now, 0).admitted, "a check of cost 0 is denied while nothing is left");
    left
}

/// What an algorithm lets flow until `end`, to one who always takes what is left and began at `begin`: the
/// whole sum is known.
fn flow(algorithm: Algorithm, limit: &Limit, begin: u64, end: u64) -> u64 {
    let permits = u64::from(limit.permits);
    match algorithm {
        Algorithm::FixedWindow => permits * (end / SECOND - begin / SECOND + 1),
        _ => permits + permits * (end - begin) / SECOND,
    }
}

proptest! {
    /// Somebody takes whatever is left at every step, so that nothing lapses unused. What is admitted and
    /// what is charged must then be what flows, once the last debt is paid: a report that was lost would show
    /// as permits too many, one that was charged twice as permits too few.
    #[test]
    fn what_is_reported_is_paid_to_the_permit(
        permits in 1_u32..200,
        debt_max in 0_u32..700,
        steps in proptest::collection::vec((0..700_u64, proptest::option::of(1..900_u64)), 1..40),
    ) {
        let limit = limit(permits);
        for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
            let (mut state, mut now) = (State::new(algorithm), START);
            let mut flown = drain(&mut state, &limit, Timestamp(now));
            let (mut reported, mut charged, mut beyond) = (0, 0, 0);
            for (pause, cost) in &steps {
                // Every microsecond that is one of a permit, so that levels have no part of one left.
                now += pause * 1_000;
                flown += drain(&mut state, &limit, Timestamp(now));
                if let Some(cost) = *cost {
                    let report = ReportedCost { permits: cost, debt_max };
                    let taken = state.report(&limit, None, Timestamp(now), &report);

                    (reported, charged, beyond) = (reported + cost, charged + taken, beyond + cost - taken);
                }
            }
            prop_assert_eq!(reported, charged + beyond);
            let owed_at_most = u64::from(permits) + u64::from(debt_max);
            prop_assert!(state.used(&limit, Timestamp(now)) <= owed_at_most);
            // Until all is paid, and no longer.
            let windows = u64::from(debt_max) / u64::from(permits) + 2;
            let end = (now / SECOND + windows) * SECOND + SECOND - 1;
            for at in (now..=end).step_by(10_000).chain([end]) {
                flown += drain(&mut state, &limit, Timestamp(at));
            }
            let expected = flow(algorithm, &limit, START, end);
            prop_assert!(flown + charged <= expected, "{algorithm:?}: {flown} + {charged} of {expected}");
            // A level gives no started permit.
            let started = u64::from(algorithm != Algorithm::FixedWindow);
            prop_assert!(flown + charged + started >= expected, "{algorithm:?}: {flown} + {charged} of {expected}");
        }
    }

    /// When a report does not fit, the answer says when one permit is free again: then one is, and not a
    /// microsecond before.
    #[test]
    fn the_retry_after_a_report_is_true(
        permits in 1_u32..100,
        debt_max in 0_u32..500,
        steps in proptest::collection::vec((0..3_000_000_u64, 1..400_u64), 1..12),
    ) {
        let limit = limit(permits);
        for algorithm in Algorithm::OF_COSTS {
            let (mut state, mut now) = (State::new(algorithm), START);
            for (pause, cost) in &steps {
                now += pause;
                state.report(&limit, None, Timestamp(now), &ReportedCost { permits: *cost, debt_max });
                let verdict = state.check(&limit, None, Timestamp(now), 1);
                let Some(Span(retry)) = verdict.retry else {
                    prop_assert!(verdict.admitted);
                    continue;
                };
                prop_assert_eq!(verdict.remaining, 0);
                prop_assert!(state.check(&limit, None, Timestamp(now + retry), 1).admitted, "{algorithm:?}");
                prop_assert!(!state.check(&limit, None, Timestamp(now + retry - 1), 1).admitted, "{algorithm:?}");
            }
        }
    }
}

#[test]
fn the_fourth_request_after_three_responses_of_400_is_denied() {
    let limit = Limit { window: Span::from_secs(60), ..limit(1_000) };
    for algorithm in Algorithm::OF_COSTS {
        let (mut state, now) = (State::new(algorithm), Timestamp(START));
        for turn in 1..=3 {
            assert!(state.check(&limit, None, now, 0).remaining > 0, "request {turn} with {algorithm:?}");
            state.report(&limit, None, now, &ReportedCost { permits: 400, debt_max: 1_000 });
        }
        let fourth = state.check(&limit, None, now, 0);
        assert_eq!((fourth.admitted, fourth.remaining), (false, 0), "{algorithm:?}");
        assert_eq!(state.used(&limit, now), 1_200, "{algorithm:?}");
    }
}

#[test]
fn as_many_windows_pay_as_it_takes() {
    let limit = limit(100);
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let mut state = State::new(algorithm);
        let begin = Timestamp(1_000 * SECOND);
        assert_eq!(state.report(&limit, None, begin, &ReportedCost { permits: 350, debt_max: 1_000 }), 350);
        let left = |state: &State, second: u64| {
            state.check(&limit, None, Timestamp((1_000 + second) * SECOND), 0).remaining
        };
        let expected =
            if algorithm == Algorithm::FixedWindow { [0, 0, 0, 50, 100] } else { [0, 0, 0, 0, 50] };
        assert_eq!([0, 1, 2, 3, 4].map(|second| left(&state, second)), expected, "{algorithm:?}");
        // Also where somebody looks and takes in between.
        state.settle(&limit, None, Timestamp(1_001 * SECOND));
        state.settle(&limit, None, Timestamp(1_002 * SECOND + 5));
        assert_eq!([3, 4].map(|second| left(&state, second)), [expected[3], expected[4]], "{algorithm:?}");
        assert!(state.expiry(&limit) >= Timestamp(1_004 * SECOND));
    }
}

#[test]
fn what_exceeds_the_largest_debt_is_not_charged_and_nothing_overflows() {
    let limit = limit(1_000);
    for algorithm in Algorithm::OF_COSTS {
        let mut state = State::new(algorithm);
        let report = |permits, debt_max| ReportedCost { permits, debt_max };
        assert_eq!(state.report(&limit, None, Timestamp(START), &report(1_000_000_000, 500)), 1_500);
        assert_eq!(state.report(&limit, None, Timestamp(START), &report(u64::from(u32::MAX), 500)), 0);
        assert_eq!(state.report(&limit, None, Timestamp(START), &report(7, 0)), 0, "an older debt stays");
        assert_eq!(state.used(&limit, Timestamp(START)), 1_500, "{algorithm:?}");
        let charged = state.report(&limit, None, Timestamp(START), &report(u64::MAX, u32::MAX));
        assert!(charged >= u64::from(u32::MAX) - 2_500, "{algorithm:?}: {charged}");
        let _ = state.check(&limit, None, Timestamp(START), u64::MAX);
        assert!(state.expiry(&limit) > Timestamp(START));
    }
}

#[test]
fn a_refund_pays_what_is_owed_first() {
    let limit = limit(10);
    for algorithm in Algorithm::OF_COSTS {
        let mut state = State::new(algorithm);
        let now = Timestamp(1_000 * SECOND);
        state.report(&limit, None, now, &ReportedCost { permits: 15, debt_max: 10 });
        assert_eq!(state.refund(&limit, now, 6), 6, "{algorithm:?}");
        assert_eq!(state.check(&limit, None, now, 1).remaining, 0, "{algorithm:?}");
        assert_eq!(state.used(&limit, now), 9);
    }
}
