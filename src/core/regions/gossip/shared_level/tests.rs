//! The level and its parts, report by report.

use super::*;

const START: Timestamp = Timestamp(1_700_000_000_000_000);
const PARTIES: [(RegionId, u64); 3] = [(0, 1), (1, 1), (2, 1)];
const LIMIT: Limit = Limit { calendar: None, permits: 90, window: Span::from_secs(1), burst: 90, queue: 0 };

fn share() -> LevelScope<'static> {
    let horizon = Span::from_millis(50);
    LevelScope {
        limit: LIMIT,
        capacity: 90,
        permits: 90,
        parties: &PARTIES,
        horizon,
        apart: 0,
        corrects: true,
        rounding_offset: 0,
        exact: false,
    }
}

fn told(ms: u64, admitted: u64, demand: u64) -> LevelReport {
    let account =
        ReportFigures { stamp: START + Span::from_millis(ms), admitted, demand: demand * 1_000_000 };
    LevelReport { account, past: false }
}

#[test]
fn a_full_bucket_that_nobody_asks_for_is_shared_by_weight() {
    let shared_level = SharedLevel::full(90, START);
    let view = shared_level.view(START, 0, Span::ZERO, share()).unwrap();
    assert_eq!((view.held_back, view.growth), (60, 60));
}

#[test]
fn who_alone_asks_has_all_of_it_once_that_is_in_force() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 0, told(0, 0, 10_000), share().horizon);
    let now = START + Span::from_millis(60);
    shared_level.advance(now, share());
    assert_eq!(shared_level.view(now, 0, Span::ZERO, share()), None);
}

#[test]
fn a_bucket_that_refills_while_words_travel_is_used_whole() {
    let limit = Limit { permits: 1_000, burst: 50, ..LIMIT };
    let share = LevelScope { limit, capacity: 50, permits: 1_000, horizon: Span::from_millis(70), ..share() };
    let mut shared_level = SharedLevel::full(50, START);
    for tick in 1..=100 {
        let (now, own) = (START + Span::from_millis(tick * 10), tick * 10);
        shared_level.store.add(now, 10, LIMIT);
        shared_level.admitted(now, own, share.horizon);
        shared_level.hear(now, 0, told(tick * 10, own, 1_000), share.horizon);
        shared_level.advance(now, share);
        // It alone asks, and all that it took has refilled.
        assert!(tick < 20 || shared_level.view(now, own, Span::ZERO, share).is_none(), "at {tick}");
    }
}

#[test]
fn a_longer_horizon_refills_nothing_again() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 0, told(0, 0, 1_000), share().horizon);
    shared_level.hear(START, 1, told(0, 60, 0), share().horizon);
    let now = START + Span::from_millis(60);
    shared_level.advance(now, share());
    let later = LevelScope { horizon: Span::from_millis(500), ..share() };
    // Of the thirty that were left and what refilled since.
    assert!(shared_level.view(now, 0, Span::ZERO, later).unwrap().held_back >= 90 - 30 - 6);
}

#[test]
fn what_refilled_before_a_burst_into_a_full_bucket_is_not_there_after_it() {
    let mut shared_level = SharedLevel::full(90, START);
    let now = START + Span::from_secs(5);
    shared_level.store.add(now, 30, LIMIT);
    shared_level.admitted(now, 30, share().horizon);
    shared_level.advance(now, share());
    // Its part was 30 of 90, and 60 of 90 are in the store.
    assert_eq!(shared_level.view(now, 30, Span::ZERO, share()).unwrap().held_back, 60);
}

#[test]
fn what_was_admitted_beyond_the_bucket_is_a_debt_that_all_carry() {
    let mut shared_level = SharedLevel::full(90, START);
    for region in 0..3 {
        shared_level.hear(START, region, told(0, 60, 1_000), share().horizon);
    }
    let now = START + Span::from_millis(50);
    shared_level.advance(now, share());
    assert_eq!(shared_level.permits(now, share()), -90);
    shared_level.store.add(now, 180, LIMIT);
    // Half the debt is paid after half a second; then nothing may be taken yet.
    let later = now + Span::from_millis(500);
    assert_eq!(shared_level.permits(later, share()), -45);
    let view = shared_level.view(later, 60, Span::ZERO, share()).unwrap();
    assert!(view.growth == 60, "{view:?}");
}

#[test]
fn a_claim_beyond_all_measure_is_a_debt_of_two_buckets() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 1, told(0, 0, 1_000), share().horizon);
    for ms in 1..=20 {
        shared_level.hear(START, 1, told(ms, u64::MAX / 100 * ms, 1_000), share().horizon);
    }
    let now = START + Span::from_millis(70);
    shared_level.advance(now, share());
    // What it held, what refills in these milliseconds, and twice of both from the one that is not believed.
    let level = shared_level.permits(now, share());
    assert!((-95..=-85).contains(&level), "{level}");
}

#[test]
fn what_was_admitted_long_before_a_daemon_began_is_no_debt() {
    let mut shared_level = SharedLevel::full(90, START);
    let statement = told(0, 1_000_000, 50);
    shared_level.hear(START, 1, LevelReport { past: true, ..statement }, share().horizon);
    shared_level.hear(START, 1, told(10, 1_000_009, 50), share().horizon);
    let now = START + Span::from_millis(60);
    shared_level.advance(now, share());
    let level = shared_level.permits(now, share());
    assert!((-9..=0).contains(&level), "{level}");
}

/// The same share where the third region is cut off.
fn without_the_third() -> LevelScope<'static> {
    LevelScope { permits: 60, parties: &PARTIES[..2], apart: bit(2), ..share() }
}

#[test]
fn in_a_cut_a_side_refills_at_its_part_of_the_rate_however_long_the_cut_is() {
    let alone = LevelScope { permits: 30, parties: &PARTIES[..1], apart: bit(1) | bit(2), ..share() };
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 0, told(0, 0, 1_000), share().horizon);
    let mut own = 0;
    for tick in 1..=1_000 {
        let now = START + Span::from_millis(tick * 10);
        shared_level.admitted(now, own, alone.horizon);
        shared_level.advance(now, alone);
        // What the store would admit: what is free, less what is held back.
        let free = alone.capacity - shared_level.store.in_use(now, LIMIT);
        let held = shared_level.view(now, own, Span::ZERO, alone).map_or(0, |view| view.held_back);
        let taken = free.saturating_sub(held);
        own += taken;
        shared_level.store.add(now, i128::from(taken), alone.limit);
        shared_level.admitted(now, own, alone.horizon);
        shared_level.hear(now, 0, told(tick * 10, own, 1_000), alone.horizon);
    }
    assert!(
        (300..=331).contains(&own),
        "{own} where a third of the bucket and ten seconds of a third are 330"
    );
}

#[test]
fn what_a_region_admitted_of_its_part_while_it_was_cut_off_is_no_debt() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 2, told(0, 0, 0), share().horizon);
    let at = |ms| START + Span::from_millis(ms);
    shared_level.advance(at(600), without_the_third());
    assert_eq!(shared_level.permits(at(600), without_the_third()), 60);
    // A third of the bucket, and of ten seconds.
    shared_level.hear(at(10_650), 2, told(10_600, 330, 1_000), share().horizon);
    shared_level.advance(at(10_700), without_the_third());
    shared_level.advance(at(10_710), share());
    let level = shared_level.permits(at(10_710), share());
    assert!((58..=92).contains(&level), "{level}");
}

#[test]
fn what_it_admitted_beyond_its_part_is_a_debt() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 2, told(0, 0, 0), share().horizon);
    let at = |ms| START + Span::from_millis(ms);
    shared_level.advance(at(600), without_the_third());
    shared_level.hear(at(1_650), 2, told(1_600, 300, 1_000), share().horizon);
    shared_level.advance(at(1_700), without_the_third());
    shared_level.advance(at(1_710), share());
    let level = shared_level.permits(at(1_710), share());
    assert!((-130..=-90).contains(&level), "{level}");
}

#[test]
fn what_it_admitted_beyond_its_part_is_charged_to_nobody_else_while_it_is_apart() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 2, told(0, 0, 0), share().horizon);
    let at = |ms| START + Span::from_millis(ms);
    shared_level.advance(at(600), without_the_third());
    // It hears nobody and is heard: what it tells waits first, and is in force then.
    shared_level.hear(at(1_650), 2, told(1_600, 300, 1_000), share().horizon);
    for now in [at(1_650), at(1_700)] {
        shared_level.advance(now, without_the_third());
        assert_eq!(
            shared_level.used_by_all(now, 0, without_the_third()),
            30,
            "no more than the whole of its part"
        );
    }
}

#[test]
fn what_another_region_will_be_given_once_its_word_is_in_force_counts_already() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 1, told(0, 0, 1_000), share().horizon);
    let of_the_first = |arrived| {
        let given = shared_level.given(START, arrived, Span::ZERO, share());
        given.into_iter().find(|(id, _)| *id == 1).map_or(0, |(_, part)| part)
    };
    assert!(shared_level.awaits());
    assert_eq!((of_the_first(false), of_the_first(true)), (32, 92));
}

#[test]
fn where_nothing_may_be_admitted_all_is_held_back() {
    let mut shared_level = SharedLevel::full(90, START);
    let denied = LevelScope { permits: 0, ..without_the_third() };
    shared_level.advance(START, denied);
    let view = shared_level.view(START, 0, Span::ZERO, denied).unwrap();
    assert_eq!((view.held_back, view.held_back_max), (90, 90));
}

#[test]
fn parts_of_the_refill_add_up_to_the_rate() {
    let demands = [[1_000, 1_000, 1_000], [1_000, 10, 0], [30, 30, 30], [0, 0, 0], [5, 1_000, 40]];
    for demand in demands {
        // Each region sees the same, itself first.
        let rates = (0..3).map(|own: usize| {
            let mut shared_level = SharedLevel::full(90, START);
            for (region, wanted) in demand.into_iter().enumerate() {
                let id = if region == own {
                    0
                } else if region < own {
                    region + 1
                } else {
                    region
                };
                shared_level.hear(START, id, told(0, 0, wanted), share().horizon);
            }
            let now = START + Span::from_millis(60);
            shared_level.advance(now, share());
            let order: Vec<(RegionId, u64)> = (0..3)
                .map(|one| {
                    (
                        if one == own {
                            0
                        } else if one < own {
                            one + 1
                        } else {
                            one
                        },
                        1,
                    )
                })
                .collect();
            shared_level.part(now, false, LevelScope { parties: &order, ..share() }).rate
        });
        assert_eq!(rates.sum::<u64>(), 90, "{demand:?}");
    }
}

/// A daemon that stood still for ten seconds, and heard then that another region used the whole refill.
fn after_a_standstill() -> SharedLevel {
    let at = |ms| START + Span::from_millis(ms);
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(at(10), 1, told(0, 10, 90), share().horizon);
    shared_level.advance(at(60), share());
    shared_level.stood_still();
    shared_level.hear(at(10_010), 1, told(10_000, 900, 90), share().horizon);
    shared_level.advance(at(10_060), share());
    let level = shared_level.permits(at(10_060), share());
    assert!((0..=1).contains(&level), "all may be in use, and is no debt: {level}");
    shared_level
}

#[test]
fn what_others_admit_was_there_though_it_was_assumed_to_be_used() {
    let at = |ms| START + Span::from_millis(ms);
    let mut shared_level = after_a_standstill();
    // It had 60 left, and used them at once.
    shared_level.hear(at(10_110), 1, told(10_100, 960, 90), share().horizon);
    assert_eq!(shared_level.used_by_all(at(10_120), 0, share()), 90, "what waits is judged alike");
    shared_level.advance(at(10_160), share());
    let level = shared_level.permits(at(10_160), share());
    assert!((0..=5).contains(&level), "what it used was there: {level}");
}

#[test]
fn what_others_admit_beyond_all_that_may_have_been_there_is_a_debt() {
    let at = |ms| START + Span::from_millis(ms);
    let mut shared_level = after_a_standstill();
    shared_level.hear(at(10_110), 1, told(10_100, 1_040, 90), share().horizon);
    shared_level.advance(at(10_160), share());
    let level = shared_level.permits(at(10_160), share());
    // A full bucket may have been there, and no more.
    assert!((-55..=-45).contains(&level), "{level}");
    // Once the bucket has been full nothing is assumed of it any more.
    let later = 10_160 + 2_000;
    shared_level.advance(at(later), share());
    shared_level.hear(at(later), 1, told(later, 1_040 + 120, 90), share().horizon);
    shared_level.advance(at(later + 50), share());
    let level = shared_level.permits(at(later + 50), share());
    assert!((-31..=-25).contains(&level), "{level}");
}

#[test]
fn what_refilled_in_vain_in_a_cut_pays_for_nothing_that_is_admitted_long_after_it() {
    let mut shared_level = SharedLevel::full(90, START);
    shared_level.hear(START, 2, told(0, 0, 0), share().horizon);
    let at = |ms| START + Span::from_millis(ms);
    shared_level.advance(at(600), without_the_third());
    shared_level.advance(at(60_000), without_the_third());
    shared_level.hear(at(60_050), 2, told(60_000, 0, 0), share().horizon);
    shared_level.advance(at(60_100), share());
    assert_eq!(shared_level.permits(at(60_100), share()), 90);
    // It rests, and asks for a bucket all at once.
    let mut admitted = 0;
    for second in [62, 64, 66] {
        admitted += 90;
        shared_level.hear(at(second * 1_000), 2, told(second * 1_000, admitted, 90), share().horizon);
        shared_level.advance(at(second * 1_000 + 50), share());
        let level = shared_level.permits(at(second * 1_000 + 50), share());
        assert!((0..=1).contains(&level), "in second {second}: {level}");
    }
}

#[test]
fn who_begins_to_ask_of_a_small_bucket_finds_some_of_it_while_little_of_the_rate_is_used() {
    let limit = Limit { permits: 1_400, burst: 30, ..LIMIT };
    let horizon = Span::from_millis(540);
    let share = LevelScope { limit, capacity: 30, permits: 1_400, horizon, ..share() };
    let mut shared_level = SharedLevel::full(30, START);
    shared_level.hear(START, 1, told(0, 0, 60), share.horizon);
    shared_level.hear(START, 2, told(0, 0, 60), share.horizon);
    let now = START + Span::from_millis(600);
    shared_level.advance(now, share);
    let held = shared_level.view(now, 0, Span::ZERO, share).unwrap().held_back;
    // They ask for an eleventh of the rate.
    assert!(held <= 25, "{held} of 30 are held back from who asks for the first time");
}
