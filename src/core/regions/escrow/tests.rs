//! Rights between regions in the virtual world, whose network loses, doubles, delays and reorders, and whose
//! stores forget.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::super::algorithm::{Counting, Limit};
use super::super::super::rule::Global;
use super::super::super::wire::rights::{
    CountedLimit, LevelTotals, MovedTotals, PlacesTotals, RightKind, RightsFrame, Statement, Total, Transfer,
    WindowTotals,
};
use super::super::super::wire::{DEMAND_MAX, OwnLimit};
use super::*;
use crate::virtual_world::switches;

mod calendar;
mod few;
mod honest;
mod levels;
mod newcomers;
mod own;
mod sliding;
mod world;

use world::{CALM, EscrowWorld, Weather};

const START: Timestamp = Timestamp(1_700_000_000_000_000);

fn key() -> WorldKey {
    WorldKey { rule: rule_name(), identity: b"\x01u".to_vec() }
}

fn rule_name() -> RuleName {
    RuleName { domain: "default".into(), name: "r".into() }
}

#[test]
fn rights_move_to_where_the_demand_is() {
    let mut world = EscrowWorld::new(3, 1_000, CALM, EscrowSafety::ALL);
    world.press(1, 20, 500);
    assert_eq!(world.check(), Ok(()));
    assert!(world.used(5) >= 990, "{}: {:?}", world.used(5), world.admitted);
    assert!(world.events().any(|event| matches!(event, Event::Gave { to, .. } if to == "r1")));
}

#[test]
fn balanced_overload_moves_next_to_nothing() {
    let mut world = EscrowWorld::new(3, 999, CALM, EscrowSafety::ALL);
    for _ in 0..500 {
        for place in 0..3 {
            for _ in 0..30 {
                world.request(place, 1);
            }
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(world.used(5) >= 995, "{:?}", world.admitted);
    let moved: u64 =
        world.events().map(|event| if let Event::Gave { permits, .. } = event { *permits } else { 0 }).sum();
    assert!(moved < 300, "{moved}");
}

#[test]
fn a_world_without_rights_is_known_to_be_dry_once_a_window() {
    let mut world = EscrowWorld::new(3, 90, CALM, EscrowSafety::ALL);
    for _ in 0..400 {
        for place in 0..3 {
            world.request(place, 1);
            world.request(place, 1);
        }
        world.tick();
    }
    let dry = world.events().filter(|event| matches!(event, Event::Dry { .. })).count();
    // Each of three regions, in each of four windows and the one under way.
    assert!((9..=15).contains(&dry), "{dry}");
    let lone = {
        let mut world = EscrowWorld::new(3, 90, CALM, EscrowSafety::ALL);
        for _ in 0..400 {
            world.request(0, 1);
            world.tick();
        }
        world.events().filter(|event| matches!(event, Event::Dry { .. })).count()
    };
    assert!(lone <= 4, "{lone}");
}

#[test]
fn an_idle_bucket_says_nothing() {
    let mut world = EscrowWorld::new(3, 1_000, CALM, EscrowSafety::ALL);
    for _ in 0..300 {
        world.request(0, 1);
        world.tick();
    }
    let frames: u64 = world.regions().map(|region| region.machine.tally().entries_out).sum();
    assert_eq!(frames, 0);
}

#[test]
fn a_limit_smaller_than_the_number_of_regions_is_used_wherever_it_is_wanted() {
    let mut world = EscrowWorld::new(5, 2, CALM, EscrowSafety::ALL);
    for step in 0..500 {
        if step % 10 == 0 {
            world.request(4, 1);
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(world.admitted.values().sum::<u64>() >= 8, "{:?}", world.admitted);
}

#[test]
fn a_cost_larger_than_a_share_gathers_its_rights() {
    let mut world = EscrowWorld::new(3, 99, CALM, EscrowSafety::ALL);
    let mut admitted = 0;
    for step in 0..500 {
        if step % 20 == 0 {
            admitted += u64::from(world.request(2, 80));
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(admitted >= 4, "{admitted}: {:?}", world.admitted);
}

#[test]
fn a_region_that_forgets_burns_its_rights_and_may_be_given_others() {
    let mut world = EscrowWorld::new(3, 900, CALM, EscrowSafety::ALL);
    for step in 0..600 {
        for _ in 0..10 {
            world.request(1, 1);
        }
        if step == 230 {
            world.crash(1);
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    let windows: Vec<u64> = world.admitted.values().copied().collect();
    assert!(windows[5] >= 890, "{windows:?}");
    // What it had left was burnt, yet the others gave to its new memory what they had.
    assert!(windows[2] < 900 && windows[3] > 100, "{windows:?}");
}

#[test]
fn a_region_that_is_cut_off_spends_what_it_holds_and_comes_back() {
    let mut world = EscrowWorld::new(3, 900, CALM, EscrowSafety::ALL);
    for step in 0..900 {
        for place in 0..3 {
            for _ in 0..5 {
                world.request(place, 1);
            }
        }
        world.cut_off(0, (300..600).contains(&step));
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(world.admitted.values().skip(1).all(|used| *used >= 880), "{:?}", world.admitted);
}

#[test]
fn closed_windows_are_counted_worldwide() {
    let mut world = EscrowWorld::new(3, 300, CALM, EscrowSafety::ALL);
    for _ in 0..500 {
        for place in 0..3 {
            world.request(place, 2);
        }
        world.tick();
    }
    let closed: Vec<(u64, u64)> = world
        .events()
        .filter_map(|event| match event {
            Event::Closed { window, used, .. } => Some((*window, *used)),
            _ => None,
        })
        .collect();
    assert!(closed.len() >= 6, "{closed:?}");
    assert!(
        closed.iter().all(|(window, used)| world.admitted.get(window) == Some(used)),
        "{closed:?} {:?}",
        world.admitted
    );
}

#[test]
fn no_number_that_another_region_says_is_too_large() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        numbers_are_bounded(EscrowWorld::of(algorithm, 3, u32::MAX, CALM, EscrowSafety::ALL));
    }
}

fn numbers_are_bounded(mut world: EscrowWorld) {
    let level = world.algorithm.counting() == Counting::Level;
    let total = |permits| vec![Total { region: "r1".into(), session: START.0, permits }];
    for step in 0..100 {
        world.request(1, 1);
        world.tick();
        let most = [0, 1, u64::MAX / 2, u64::MAX][step % 4];
        let said = Statement {
            rule: rule_name(),
            identity: key().identity,
            stamp: Timestamp(world.now().0 + 1),
            session: 1 + u64::try_from(step / 50).unwrap_or(0),
            free: most,
            demand: DEMAND_MAX,
            wanted: u64::MAX >> (step % 64),
            totals: if level {
                MovedTotals::Level(LevelTotals { settled: total(most), kept: total(u64::MAX) })
            } else {
                let window = world.now().window_index(world.limit.window);
                let (taken, given) = (total(most), total(u64::MAX));
                MovedTotals::Window(WindowTotals { window, taken, given, closed: None })
            },
            limit: CountedLimit::default(),
        };
        let frame = RightsFrame { sent: world.now(), statements: vec![said], transfers: Vec::new() };
        world.deliver(0, 1, frame);
    }
}

#[derive(Debug, Clone)]
enum Act {
    Requests { place: usize, count: u8, cost: u64 },
    Ticks(u8),
    Crash(usize),
    CutOff(usize, bool),
    Clock(usize, i64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => (0..5_usize, 1..60_u8, prop_oneof![4 => Just(1_u64), 1 => 1..40_u64])
            .prop_map(|(place, count, cost)| Act::Requests { place, count, cost }),
        8 => (1..12_u8).prop_map(Act::Ticks),
        1 => (0..5_usize).prop_map(Act::Crash),
        1 => (0..5_usize, any::<bool>()).prop_map(|(place, cut)| Act::CutOff(place, cut)),
        1 => (0..5_usize, -1_500_000..1_500_000_i64).prop_map(|(place, ahead)| Act::Clock(place, ahead)),
    ];
    proptest::collection::vec(act, 20..160)
}

fn weathers() -> impl Strategy<Value = Weather> {
    (1_000..150_000_u64, 0..900_000_u64, 0..300_u32, 0..500_u32).prop_map(|(owd, jitter, loss, doubled)| {
        Weather { owd: Span(owd), jitter: Span(jitter), loss, doubled, seed: 1 }
    })
}

/// Plays a history. Why it is wrong, if it is.
fn play(mut world: EscrowWorld, acts: &[Act]) -> Result<(), String> {
    let count = world.count();
    for act in acts {
        match act {
            Act::Requests { place, count: times, cost } => {
                for _ in 0..*times {
                    world.request(place % count, *cost);
                }
            }
            Act::Ticks(ticks) => {
                for _ in 0..*ticks {
                    world.tick();
                    world.check()?;
                }
            }
            Act::Crash(place) => world.crash(place % count),
            Act::CutOff(place, cut) => world.cut_off(place % count, *cut),
            // Without windows permits come by the clock: one that jumps brings some that are not due.
            Act::Clock(..) if world.algorithm.counting() == Counting::Level => {}
            // A clock may be set at any time, but not back over a crash by more than the margin.
            Act::Clock(place, ahead) => {
                world.set_ahead(place % count, (*ahead).clamp(-400_000, 400_000));
            }
        }
        world.check()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_history_admits_more_than_the_limit_or_creates_a_right(
        count in 2..6_usize,
        permits in 1..200_u32,
        weather in weathers(),
        acts in acts(),
    ) {
        prop_assert_eq!(play(EscrowWorld::new(count, permits, weather, EscrowSafety::ALL), &acts), Ok(()));
    }

    #[test]
    fn no_history_takes_buckets_above_their_arrival_curve(
        count in 2..6_usize,
        permits in 1..200_u32,
        algorithm in proptest::sample::select(vec![Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra]),
        weather in weathers(),
        acts in acts(),
    ) {
        prop_assert_eq!(play(EscrowWorld::of(algorithm, count, permits, weather, EscrowSafety::ALL), &acts), Ok(()));
    }
}

/// Demand that jumps between regions, a bad network and stores that forget. Why it goes wrong, if it does.
fn torment(algorithm: Algorithm, seed: u64, safety: EscrowSafety) -> Result<(), String> {
    let weather =
        Weather { owd: Span::from_millis(20), jitter: Span::from_millis(900), loss: 50, doubled: 500, seed };
    let mut world = EscrowWorld::of(algorithm, 3, 60, weather, safety);
    world.set_slow(seed.is_multiple_of(2));
    for step in 0..400_usize {
        let busy = (step / 40 + usize::try_from(seed).unwrap_or(0)) % 3;
        // A bucket without windows is full, and so can be too full, only after nobody has asked for a while.
        let (alone, silent) = if seed % 4 < 2 { (40, 80) } else { (20, 180) };
        for place in 0..3 {
            let count = match (algorithm.counting() == Counting::Level, step % (silent + 20)) {
                (false, _) if place != busy => world.dice.below(3),
                (true, at) if at < alone && place != busy => 0,
                (true, at) if (alone..silent).contains(&at) => 0,
                _ => 8,
            };
            for _ in 0..count {
                world.request(place, 1);
            }
        }
        // More than its capacity, which it gathers for while nobody asks.
        if algorithm.counting() == Counting::Level && step % (silent + 20) == alone {
            world.request(busy, 45);
        }
        if world.dice.below(100) == 0 {
            let place = world.dice.below(3);
            world.crash(usize::try_from(place).unwrap_or(0));
        }
        world.tick();
        world.check()?;
    }
    Ok(())
}

#[test]
fn without_any_one_safety_rule_some_history_goes_wrong() {
    let windows = switches::OF_WINDOWS.map(|without| (Algorithm::FixedWindow, without));
    let levels = switches::OF_LEVELS.map(|without| (Algorithm::TokenBucket, without));
    for (algorithm, (name, safety)) in windows.into_iter().chain(levels) {
        assert!((0..100).any(|seed| torment(algorithm, seed, safety).is_err()), "{name} could be left out");
    }
    for seed in 0..20 {
        for algorithm in [Algorithm::FixedWindow, Algorithm::TokenBucket] {
            assert_eq!(torment(algorithm, seed, EscrowSafety::ALL), Ok(()), "seed {seed}");
        }
    }
}
