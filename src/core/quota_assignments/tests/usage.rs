//! How much of a limit one to three gateways use whose demand of 50 requests a second each is steady.

use super::world::{QuotaWorld, STEP};
use crate::quota_assignments::{BucketAssignments, RightsLeft, UsageReport};
use crate::time::{Span, Timestamp};

const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;

fn run(world: &mut QuotaWorld, seconds: u64) {
    for _ in 0..seconds * 1_000_000 / STEP.0 {
        world.step();
    }
    world.check();
}

fn world(limit: u64, window: u64, gateways: usize) -> QuotaWorld {
    let mut world = QuotaWorld::new(limit, Span::from_secs(window));
    (0..gateways).for_each(|_| world.add(50));
    world
}

/// The least used of the whole windows, in thousandths of the limit.
fn least(world: &QuotaWorld, limit: u64) -> u64 {
    world.used.values().rev().skip(1).map(|used| used * 1_000 / limit).min().unwrap()
}

#[test]
fn every_window_is_used_where_demand_is_as_high_as_the_limit() {
    for (window, of_whole) in [(MINUTE, 955), (5 * MINUTE, 985), (HOUR, 995)] {
        for gateways in 1..=3 {
            let limit = 50 * window * u64::try_from(gateways).unwrap();
            let mut world = world(limit, window, gateways);
            run(&mut world, 3 * window + 2);
            let least = least(&world, limit);
            assert!(least >= of_whole, "{gateways} gateways, {window} s: {least} thousandths");
        }
    }
}

#[test]
fn every_window_is_used_where_demand_is_higher_than_the_limit() {
    for window in [MINUTE, 5 * MINUTE, HOUR] {
        for gateways in 1..=3 {
            for part in [2, 5, 20] {
                let limit = 50 * window * u64::try_from(gateways).unwrap() / part;
                let mut world = world(limit, window, gateways);
                run(&mut world, 3 * window + 2);
                let least = least(&world, limit);
                assert!(least >= 970, "{gateways} gateways, {limit} in {window} s: {least} thousandths");
            }
        }
    }
}

/// A limit that is a few seconds of demand is used in full in a few reports.
#[test]
fn what_is_left_is_used_up_soon() {
    for (limit, gateways, seconds) in
        [(300, 1, 11), (300, 3, 21), (1_500, 1, 41), (1_500, 2, 31), (1_500, 3, 26)]
    {
        let mut world = world(limit, DAY, gateways);
        run(&mut world, seconds);
        let used: u64 = world.used.values().sum();
        assert!(used * 100 >= limit * 95, "{gateways} gateways: {used} of {limit} in {seconds} s");
    }
}

/// What nobody needs is not assigned: of a limit that gateways hardly ask for others find nearly all, once it
/// is known how little that is.
#[test]
fn a_small_demand_leaves_the_rest_to_others() {
    let mut world = QuotaWorld::new(6_000, Span::from_secs(MINUTE));
    (0..3).for_each(|_| world.add(1));
    world.others = 100;
    run(&mut world, 4 * MINUTE + 2);
    let after_first: Vec<u64> = world.used.values().rev().skip(1).take(3).copied().collect();
    assert!(after_first.iter().all(|used| *used >= 5_850), "{after_first:?} of 6,000");
}

/// Why windows below a minute are not assigned of.
#[test]
fn a_window_of_ten_seconds_would_leave_a_tenth_and_more_unused() {
    let mut world = world(500, 10, 1);
    run(&mut world, 62);
    let least = least(&world, 500);
    assert!((500..=900).contains(&least), "{least} thousandths");
}

/// Where other regions may give more, what is lacking is asked for once a report, and what came is assigned.
#[test]
fn what_other_regions_may_give_is_asked_for() {
    let (begins, name) = (Timestamp(1_800_000_000_000_000), 7);
    let ends = begins + Span::from_secs(DAY);
    let left = |permits| RightsLeft { permits, begins, ends, may_grow: true };
    let usage = |allowed, denied, seconds| UsageReport { allowed, denied, elapsed: Span::from_secs(seconds) };
    let at = |seconds: u64| begins + Span::from_secs(seconds);
    let mut bucket = BucketAssignments::default();
    bucket.join(name);
    bucket.enter(ends, at(10));
    bucket.report(name, usage(0, 1, 0), None, at(10));
    let plan = bucket.plan(name, left(20), at(10)).unwrap();
    assert_eq!((plan.take, plan.wish), (20, Some(64)));
    assert_eq!(bucket.assign(name, plan, true, at(10)).unwrap().terms.max_tokens, 19);
    bucket.written(name, at(10));
    bucket.received(name, at(11), at(11));
    bucket.report(name, usage(20, 230, 5), Some(at(14)), at(15));
    let plan = bucket.plan(name, left(9), at(15)).unwrap();
    assert_eq!((plan.take, plan.wish), (9, Some(365)), "6.5 s of 56 a second");
    assert!(bucket.assign(name, plan, true, at(15)).is_some());
    bucket.written(name, at(15));
    bucket.received(name, at(16), at(16));
    assert!(bucket.due(name, at(15)).is_some_and(|due| due <= at(16)));
    let plan = bucket.plan(name, left(200), at(16)).unwrap();
    assert_eq!((plan.take, plan.wish), (200, None), "asked for once");
}
