//! Buckets without windows: what lies idle flows to where it is asked for, and large costs gather what they
//! need.

use super::*;

impl EscrowWorld {
    fn level(&self, place: usize) -> level::LevelLedger {
        self.balance(place).ledger.as_level().unwrap().clone()
    }
}

#[test]
fn permits_flow_to_where_a_bucket_is_asked_for() {
    let mut world = EscrowWorld::of(Algorithm::TokenBucket, 3, 1_000, CALM, EscrowSafety::ALL);
    world.press(1, 15, 1_000);
    assert_eq!(world.check(), Ok(()));
    // One burst and ten seconds, of which its own part is a third.
    let admitted: u64 = world.admitted.values().sum();
    assert!((10_500..=11_000).contains(&admitted), "{admitted}");
}

#[test]
fn a_short_burst_flows_in_every_round_trip() {
    let limit = Limit { calendar: None, permits: 1_000, window: Span::from_secs(1), burst: 100, queue: 0 };
    let mut world = EscrowWorld::held_to(limit, Algorithm::TokenBucket, 3, CALM, EscrowSafety::ALL);
    world.press(1, 20, 1_000);
    assert_eq!(world.check(), Ok(()));
    // Its own third, and three quarters of both other bursts in a round trip and a tick at each end.
    let admitted: u64 = world.admitted.values().sum();
    assert!((8_000..=10_100).contains(&admitted), "{admitted}");
}

#[test]
fn without_windows_too_balanced_overload_moves_nothing_and_idleness_says_nothing() {
    let mut world = EscrowWorld::of(Algorithm::Gcra, 3, 999, CALM, EscrowSafety::ALL);
    for _ in 0..500 {
        for place in 0..3 {
            for _ in 0..30 {
                world.request(place, 1);
            }
        }
        world.tick();
    }
    assert!(
        !world.events().any(|event| matches!(event, Event::Gave { .. })),
        "{:?}",
        world.events().collect::<Vec<_>>()
    );
    let mut quiet = EscrowWorld::of(Algorithm::Gcra, 3, 999, CALM, EscrowSafety::ALL);
    quiet.press(0, 1, 300);
    assert_eq!(quiet.regions().map(|region| region.machine.tally().entries_out).sum::<u64>(), 0);
}

#[test]
fn a_bucket_follows_a_region_that_lost_its_memory_and_one_that_was_cut_off() {
    let mut world = EscrowWorld::of(Algorithm::TokenBucket, 3, 900, CALM, EscrowSafety::ALL);
    for step in 0..1_500 {
        for _ in 0..12 {
            world.request(1, 1);
        }
        world.cut_off(0, (300..500).contains(&step));
        if step == 700 {
            world.crash(1);
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    let admitted: u64 = world.admitted.values().sum();
    // Fifteen seconds: two with a region less, a burst that was burnt, and a second until its memory has a
    // name.
    assert!(admitted >= 12_000, "{admitted}");
    for place in 0..world.count() {
        assert!(world.level(place).charged() <= 150, "{:?}", world.level(place));
    }
}

#[test]
fn a_region_is_believed_to_have_forwarded_no_more_than_it_can_have() {
    let mut world = EscrowWorld::of(Algorithm::TokenBucket, 3, 300, CALM, EscrowSafety::ALL);
    world.press(1, 10, 100);
    let before = world.machine(1).tally().beyond;
    world.send(0, 1, 100_000);
    assert_eq!(world.machine(1).tally().beyond, before + 1);
    assert!(world.balance(1).free() <= 100);
}

#[test]
fn a_cost_larger_than_a_share_of_a_burst_gathers_its_permits() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
        let mut world = EscrowWorld::of(algorithm, 3, 60, CALM, EscrowSafety::ALL);
        let mut admitted = 0;
        for step in 0..1_000 {
            // It asks again a second after it was refused, as it is told to.
            if step % 100 == 0 {
                admitted += u64::from(world.request(2, 45));
            }
            world.tick();
        }
        assert_eq!(world.check(), Ok(()));
        // Ten seconds refill 600, and every second time it finds what was gathered for it.
        assert!(admitted >= 4, "{admitted} by {algorithm:?}");
        // What can never come is not gathered for: here its own share and three quarters of the others'.
        for _ in 0..100 {
            world.request(1, 59);
            world.tick();
        }
        let kept = |place: usize| world.level(place).kept();
        assert_eq!(kept(1), 0, "{algorithm:?}");
    }
}

#[test]
fn of_two_regions_that_gather_for_large_costs_each_is_served() {
    let mut world = EscrowWorld::of(Algorithm::TokenBucket, 3, 60, CALM, EscrowSafety::ALL);
    let mut admitted = [0, 0];
    for step in 0..3_000 {
        if step % 100 == 0 {
            for (place, admitted) in admitted.iter_mut().enumerate() {
                *admitted += u64::from(world.request(place, 45));
            }
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    // Half a minute refills 1,800. What either holds the other lacks, until it is kept no more.
    assert!(admitted.iter().all(|admitted| *admitted >= 2), "{admitted:?}");
}

#[test]
fn a_burst_smaller_than_the_number_of_regions_is_used_wherever_it_is_wanted() {
    let mut world = EscrowWorld::of(Algorithm::TokenBucket, 5, 2, CALM, EscrowSafety::ALL);
    for step in 0..1_000 {
        if step % 10 == 0 {
            world.request(4, 1);
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    // It has no share of its own; ten seconds refill twenty.
    assert!(world.admitted.values().sum::<u64>() >= 8, "{:?}", world.admitted);
}
