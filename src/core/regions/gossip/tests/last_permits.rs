//! The last permits of a limit: whoever asks for them finds them soon, wherever others have stopped asking,
//! and is not told that there are any where there are none.

use super::journeys::World;
use super::*;

const WINDOWED: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];

/// Regions of which others have just used half of a limit of 100, from `at` on in a window. `seed` is the
/// world's luck.
fn half_used(seed: u64, regions: usize, rule: &WorldRule, at: Span) -> World {
    let mut world = World::new(seed, regions, rule);
    let length = rule.limit.window;
    if length < Span::from_secs(3_600) {
        let window = world.cluster.now().window_index(length);
        let next = Timestamp::window_start(window + 1, length) + at;
        world.run(next.since(world.cluster.now()));
    }
    for region in 1..regions.min(3) {
        for _ in 0..50 / (regions.min(3) - 1) {
            world.ask(region, 1);
            world.run(Span::from_millis(10));
        }
    }
    world.run(Span::from_millis(600));
    world
}

/// Asks for all that is left, and comes back as told. How many refusals follow each other at most while the
/// cost is free.
fn refusals_in_a_row(world: &mut World, cost: u64) -> u64 {
    let (mut most, mut row) = (0, 0);
    let until = world.cluster.now() + Span::from_secs(9);
    while world.cluster.now() < until {
        let asked = world.ask(0, cost);
        if asked.free < cost {
            break;
        }
        row = if asked.admitted { 0 } else { row + 1 };
        most = most.max(row);
        let pause = if asked.admitted { Span::ZERO } else { asked.retry.unwrap_or(Span::from_secs(2)) };
        world.run(pause + Span::from_millis(10));
    }
    most
}

#[test]
fn the_last_permits_are_not_kept_for_who_has_stopped_asking() {
    let mut wrong = Vec::new();
    for (number, seconds) in (1..).zip([10, 20, 60, 86_400]) {
        for algorithm in WINDOWED {
            for (regions, cost) in [(3, 1), (3, 3), (2, 1), (5, 1), (10, 3)] {
                let rule = rule(algorithm, 100, Span::from_secs(seconds), OnPartition::default());
                let mut world = half_used(number, regions, &rule, Span::from_millis(200));
                let row = refusals_in_a_row(&mut world, cost);
                if row > 2 {
                    wrong.push(format!(
                        "{algorithm:?} of {seconds} s, {regions} regions, cost {cost}: {row} refusals in a row"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_is_said_to_be_free_elsewhere_while_a_log_is_full_everywhere() {
    let mut wrong = Vec::new();
    for (number, seconds) in (1..).zip([20, 60, 120]) {
        for regions in [2, 3, 10] {
            let length = Span::from_secs(seconds);
            let rule = rule(Algorithm::SlidingLog, 100, length, OnPartition::default());
            let mut world = half_used(number, regions, &rule, Span(length.0 / 2));
            refusals_in_a_row(&mut world, 1);
            // Until the first of what others used leaves, in the middle of the next window; when it was used
            // is remembered to a thirty-second of the window.
            let next = Timestamp::window_start(world.cluster.now().window_index(length) + 1, length);
            let (mut said, mut told, mut row) = (0_u64, 0_u64, 0_u64);
            while world.cluster.now() < next + Span(length.0 / 2 - length.0 / 32) {
                world.run(Span(length.0 / 40));
                let asked = world.ask(0, 1);
                if asked.free == 0 && world.cluster.now() > next {
                    row = if asked.elsewhere { row + 1 } else { 0 };
                    (told, said) = (told + 1, said.max(row));
                }
            }
            if told < 15 || said > 2 {
                wrong.push(format!("{seconds} s, {regions} regions: {said} of {told} refusals in a row"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_cost_that_the_last_permits_of_a_level_just_cover_is_admitted_to_who_comes_back_as_told() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        for (number, regions) in (1..).zip([2, 3, 10]) {
            // Half a hundredth of it is worth no message, and more than what is left beyond the cost.
            let rule = rule(algorithm, 30_000, Span::from_secs(86_400), OnPartition::default());
            let mut world = World::new(number, regions, &rule);
            for _ in 0..9 {
                let asked = world.ask(0, 2_990);
                if !asked.admitted {
                    world.come_back(0, 2_990, asked);
                }
                world.run(Span::from_millis(300));
            }
            let asked = world.ask(0, 3_050);
            assert!(asked.free >= 3_050, "{algorithm:?}, {regions} regions: {asked:?}");
            if !asked.admitted {
                let again = world.come_back(0, 3_050, asked);
                assert!(again.admitted, "{algorithm:?}, {regions} regions: {asked:?}, then {again:?}");
            }
        }
    }
}

#[test]
fn a_slice_is_a_part_of_what_is_left_however_much_another_region_will_soon_need() {
    for algorithm in WINDOWED {
        for (number, regions) in (1..).zip([2, 3, 5]) {
            let rule = rule(algorithm, 10_000, Span::from_secs(3_600), OnPartition::default());
            let mut world = World::new(number, regions, &rule);
            // A tenth of the limit each second, until a third is left.
            while world.ask(0, 150).free > 3_300 {
                world.run(Span::from_millis(150));
            }
            world.run(Span::from_millis(400));
            let slice = 3_000 / 10 / u64::try_from(regions).unwrap();
            let asked = world.ask(1, slice);
            assert!(asked.admitted, "{algorithm:?}, {regions} regions, {slice} permits: {asked:?}");
        }
    }
}
