//! Capacity of sliding windows and logs, which is lent as places are.

use super::*;

const SLIDING: [Algorithm; 2] = [Algorithm::SlidingWindow, Algorithm::SlidingLog];

/// A world of so many regions, of a limit a second.
fn world(algorithm: Algorithm, count: usize, permits: u32) -> EscrowWorld {
    EscrowWorld::of(algorithm, count, permits, CALM, EscrowSafety::ALL)
}

/// The most permits that were admitted in any second, of those that are noted with their instants.
fn most_in_a_second(admitted: &[Timestamp]) -> usize {
    let second = Span::from_secs(1);
    (0..admitted.len())
        .map(|last| {
            let first = admitted.partition_point(|at| *at + second <= admitted[last]);
            last + 1 - first
        })
        .max()
        .unwrap_or(0)
}

#[test]
fn capacity_moves_to_where_the_demand_is() {
    for algorithm in SLIDING {
        let mut world = world(algorithm, 3, 1_000);
        world.press(1, 20, 500);
        assert_eq!(world.check(), Ok(()));
        assert!(world.used(5) >= 970, "{algorithm:?} {}: {:?}", world.used(5), world.admitted);
        assert!(world.events().any(|event| matches!(event, Event::Gave { to, .. } if to == "r1")));
    }
}

#[test]
fn what_fades_follows_a_demand_that_moves_from_region_to_region() {
    for algorithm in SLIDING {
        let mut world = world(algorithm, 3, 1_000);
        for round in 0..6 {
            world.press(round % 3, 20, 400);
            assert_eq!(world.check(), Ok(()));
        }
        assert!(world.used(24) >= 950, "{algorithm:?} {}: {:?}", world.used(24), world.admitted);
    }
}

#[test]
fn a_log_of_the_whole_world_never_holds_more_than_the_limit() {
    let mut world = world(Algorithm::SlidingLog, 3, 90);
    let mut admitted = Vec::new();
    for step in 0..1_500_usize {
        for place in [step / 40 % 3, step / 7 % 3] {
            if world.request(place, 1) {
                admitted.push(world.now());
            }
        }
        world.tick();
    }
    assert_eq!(world.check(), Ok(()));
    assert!(most_in_a_second(&admitted) <= 90, "{}", most_in_a_second(&admitted));
    assert!(admitted.len() >= 90 * 14, "{}", admitted.len());
}

#[test]
fn the_last_permit_goes_where_it_is_wanted() {
    for algorithm in SLIDING {
        let mut world = world(algorithm, 3, 1);
        let served = (0..600).filter(|step| {
            let served = step % 5 == 0 && world.request(step / 200, 1);
            world.tick();
            served
        });
        let served = served.count();
        assert_eq!(world.check(), Ok(()));
        // Six seconds, and it moves twice.
        assert!(served >= 4, "{algorithm:?}: {served}");
    }
}

#[test]
fn a_memory_that_is_lost_counts_as_used_until_all_that_it_admitted_counts_no_more() {
    for (algorithm, closed) in [(Algorithm::SlidingWindow, 300), (Algorithm::SlidingLog, 200)] {
        let mut world = world(algorithm, 3, 900);
        world.press(1, 20, 150);
        world.crash(1);
        for step in 0..closed {
            assert!(!world.request(1, 1), "{algorithm:?}, {step} ticks after the loss");
            world.tick();
        }
        // Soon after it was named the others have said what they have of it.
        world.press(1, 1, 50);
        let before: u64 = world.admitted.values().sum();
        world.press(1, 20, 200);
        assert_eq!(world.check(), Ok(()));
        let after = world.admitted.values().sum::<u64>() - before;
        assert!(after >= 1_500, "{algorithm:?}: {after}");
    }
}

#[test]
fn a_region_that_is_cut_off_keeps_to_what_it_has() {
    for algorithm in SLIDING {
        let mut world = world(algorithm, 3, 900);
        for step in 0..900 {
            if step == 200 || step == 600 {
                world.cut_off(1, step == 200);
            }
            for place in 0..3 {
                for _ in 0..5 {
                    world.request(place, 1);
                }
            }
            world.tick();
            assert_eq!(world.check(), Ok(()));
        }
        assert!(world.used(9) >= 850, "{algorithm:?} {}: {:?}", world.used(9), world.admitted);
    }
}

#[test]
fn nothing_is_lent_beside_a_daemon_whose_version_does_not_see_it() {
    for sees in [true, false] {
        let mut world = world(Algorithm::SlidingWindow, 3, 900);
        for place in 0..3 {
            let name = |region: usize| NodeName { region: format!("r{region}"), node: "n".into() };
            let mut members: Vec<Member> = (0..3)
                .map(|region| Member { name: name(region), live: true, draining: false, sees_capacity: true })
                .collect();
            // It may be cut off from here alone.
            let sibling = NodeName { region: format!("r{place}"), node: "older".into() };
            members.push(Member { name: sibling, live: false, draining: false, sees_capacity: sees });
            let now = world.clock(place);
            world.machine_mut(place).handle_members(now, &members);
        }
        world.press(1, 20, 400);
        let gave = world.events().any(|event| matches!(event, Event::Gave { .. }));
        assert_eq!(gave, sees);
        if !sees {
            assert!(world.used(4) <= 300, "{:?}", world.admitted);
        }
    }
}

#[test]
fn a_world_in_which_everything_is_used_is_known_to_be_dry_until_something_fades() {
    let mut world = world(Algorithm::SlidingWindow, 3, 90);
    for _ in 0..150 {
        for place in 0..3 {
            world.request(place, 1);
            world.request(place, 1);
        }
        world.tick();
    }
    let said = |world: &EscrowWorld| -> Vec<u64> {
        let dry = world.regions().flat_map(|region| &region.events);
        dry.filter_map(|event| if let Event::Dry { window, .. } = event { Some(*window) } else { None })
            .collect()
    };
    let dry = said(&world);
    assert!(dry.iter().any(|window| *window > 0), "{dry:?}");
    // Two windows later all is free, and nobody need think otherwise.
    for _ in 0..300 {
        world.tick();
    }
    assert!(world.request(0, 20));
    let mark = dry_mark(world.algorithm, world.limit.windows(), world.clock(0));
    assert!(said(&world).iter().all(|window| *window < mark), "{mark}: {:?}", said(&world));
}
