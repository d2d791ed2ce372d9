//! Limits of a few permits: none of them lies idle in one region while another one refuses.

use super::*;

/// So long that nothing refills and no window ends.
const WINDOW: Span = Span::from_secs(3_600);
const COUNTED: [Algorithm; 4] =
    [Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket];

fn world(algorithm: Algorithm, regions: usize, permits: u32, owd: u64) -> EscrowWorld {
    let limit = Limit { calendar: None, permits, window: WINDOW, burst: permits, queue: 0 };
    let weather = Weather { owd: Span::from_millis(owd), ..CALM };
    EscrowWorld::held_to(limit, algorithm, regions, weather, EscrowSafety::ALL)
}

impl EscrowWorld {
    /// One region is asked for one permit each so many ticks. How many it gave.
    fn ask_alone(&mut self, place: usize, every: usize, times: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += u64::from(self.request(place, 1));
            for _ in 0..every {
                self.tick();
            }
        }
        assert_eq!(self.check(), Ok(()));
        admitted
    }
}

#[test]
fn one_region_that_is_asked_finds_all_of_a_small_limit_within_two_seconds() {
    for (algorithm, regions) in COUNTED.into_iter().flat_map(|one| (2..=5).map(move |count| (one, count))) {
        for (permits, owd) in (1..=12).flat_map(|permits| [(permits, 40), (permits, 80)]) {
            for place in 0..regions {
                let mut world = world(algorithm, regions, permits, owd);
                let admitted = world.ask_alone(place, 5, 40);
                let of = format!("{permits} by {algorithm:?} in r{place} of {regions}, {owd} ms apart");
                assert_eq!(admitted, u64::from(permits), "{of}");
            }
        }
    }
}

#[test]
fn whoever_asks_again_a_second_after_a_refusal_is_served_while_a_permit_lies_anywhere() {
    for (algorithm, regions) in COUNTED.into_iter().flat_map(|one| (2..=5).map(move |count| (one, count))) {
        for permits in [1, 2, 3, 5, 7, 12, 30] {
            for place in 0..regions {
                let mut world = world(algorithm, regions, permits, 40);
                let (mut admitted, mut refused) = (0, 0);
                while admitted < permits && refused < 2 {
                    let served = world.request(place, 1);
                    (admitted, refused) = if served { (admitted + 1, 0) } else { (admitted, refused + 1) };
                    for _ in 0..if served { 3 } else { 100 } {
                        world.tick();
                    }
                }
                assert_eq!(world.check(), Ok(()));
                assert_eq!(admitted, permits, "by {algorithm:?} in r{place} of {regions}");
            }
        }
    }
}

/// True if a region says now that no region has any left.
fn is_dry(world: &EscrowWorld, place: usize) -> bool {
    let mark = dry_mark(world.algorithm, world.limit.windows(), world.clock(place));
    let events = &world.regions().nth(place).unwrap().events;
    let said = events.iter().rev().find_map(|event| match event {
        Event::Dry { window, .. } => Some(*window),
        _ => None,
    });
    said.is_some_and(|said| said >= mark)
}

#[test]
fn that_all_is_used_is_said_once_it_is_and_within_seconds() {
    for algorithm in COUNTED.into_iter().chain([Algorithm::SlidingWindow]) {
        for (permits, pause) in [2, 3, 5].into_iter().flat_map(|permits| [(permits, 2), (permits, 15)]) {
            let mut world = world(algorithm, 3, permits, 40);
            let (mut admitted, mut since) = (0, 0);
            for ask in 0..400 {
                admitted += u32::from(world.request(1, 1));
                for _ in 0..pause {
                    world.tick();
                    let of =
                        format!("{admitted} of {permits} by {algorithm:?}, ask {ask}, {pause} ticks apart");
                    assert!(admitted == permits || !is_dry(&world, 1), "{of}");
                }
                since = if admitted < permits { 0 } else { since + pause };
                // It hears of it in a way, or counts silence for nothing after two seconds.
                if since > 300 {
                    assert!(is_dry(&world, 1), "{permits} by {algorithm:?} are used for {since} ticks");
                    break;
                }
            }
            assert_eq!(admitted, permits, "by {algorithm:?}");
        }
    }
}

#[test]
fn a_region_that_burns_what_it_forgot_is_not_waited_for() {
    let mut world = world(Algorithm::SlidingWindow, 3, 30, 40);
    world.crash(2);
    // Its own third, and what the one beside it lends.
    let admitted = world.ask_alone(0, 5, 60);
    assert!((15..=20).contains(&admitted), "{admitted}");
    // It asks again as it is told to.
    for _ in 0..4 {
        world.request(0, 1);
        (0..101).for_each(|_| world.tick());
    }
    world.request(0, 1);
    assert!(is_dry(&world, 0));
}

#[test]
fn a_region_that_lost_its_memory_uses_what_the_others_let_it_have_of_a_level() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        let mut world = world(algorithm, 3, 60, 40);
        world.crash(1);
        // Until its memory has a name.
        (0..200).for_each(|_| world.tick());
        let there = world.ask_alone(1, 5, 200);
        let beside = world.ask_alone(0, 5, 100) + world.ask_alone(2, 5, 100);
        // Its own third may have been used before. Of the others' two thirds hardly any is lost on the way.
        assert!((36..=41).contains(&(there + beside)), "{algorithm:?}: {there} there and {beside} beside");
        assert!(there >= 20, "{algorithm:?}: {there} there and {beside} beside");
    }
}

#[test]
fn what_a_region_has_left_of_a_small_limit_goes_to_the_one_that_is_asked_after_it() {
    for regions in 2..=5 {
        for permits in [2, 3, 5, 8, 12] {
            for pause in [1, 100, 1_000, 6_000] {
                let mut world = world(Algorithm::FixedWindow, regions, permits, 40);
                let first = world.ask_alone(0, 5, usize::try_from(permits / 2).unwrap());
                (0..pause).for_each(|_| world.tick());
                let second = world.ask_alone(regions - 1, 5, 60);
                let of = format!("{permits} in {regions} regions, {pause} ticks apart");
                assert_eq!(first + second, u64::from(permits), "{first} and {second} of {of}");
            }
        }
    }
}

#[test]
fn of_a_single_permit_wanted_everywhere_nobody_gives_away_what_it_was_given() {
    for regions in 2..=5 {
        let mut world = world(Algorithm::FixedWindow, regions, 1, 40);
        // It is the first region's. All others ask once, and nobody any more.
        for place in 1..regions {
            assert!(!world.request(place, 1));
        }
        (0..600).for_each(|_| world.tick());
        let moved = world.events().filter(|event| matches!(event, Event::Gave { .. })).count();
        // To each at most once: not to and fro for as long as the window lasts.
        assert!((1..regions).contains(&moved), "{moved} times between {regions} regions");
    }
}
