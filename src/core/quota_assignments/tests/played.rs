//! What may happen to gateways, by name and at random.

use proptest::prelude::*;

use super::world::{QuotaWorld, STEP};
use crate::time::Span;

const MINUTE: Span = Span::from_secs(60);

fn run(world: &mut QuotaWorld, seconds: u64) {
    for _ in 0..seconds * 1_000_000 / STEP.0 {
        world.step();
    }
    world.check();
}

fn world(limit: u64, demands: &[u64]) -> QuotaWorld {
    let mut world = QuotaWorld::new(limit, MINUTE);
    demands.iter().for_each(|demand| world.add(*demand));
    world
}

/// The permits used in the whole windows so far, by thousandths of the limit.
fn use_of(world: &QuotaWorld, limit: u64) -> u64 {
    let whole: Vec<u64> = world.used.values().copied().rev().skip(1).collect();
    let windows = u64::try_from(whole.len()).unwrap();
    whole.iter().sum::<u64>() * 1_000 / (limit * windows)
}

#[test]
fn three_gateways_use_the_limit_and_ask_rarely() {
    for (limit, demands) in [(9_000, [50, 50, 50]), (9_000, [67, 67, 67]), (12_000, [200, 100, 50])] {
        let mut world = world(limit, &demands);
        run(&mut world, 242);
        let used = use_of(&world, limit);
        assert!(used >= 930, "{demands:?} of {limit}: {used} thousandths");
        assert!(world.messages < 3 * 242 / 2, "{}", world.messages);
    }
}

#[test]
fn longer_windows_are_used_nearly_in_full() {
    for demands in [[50, 50, 50], [67, 67, 67]] {
        let mut world = QuotaWorld::new(45_000, Span::from_secs(300));
        demands.iter().for_each(|demand| world.add(*demand));
        run(&mut world, 910);
        let used = use_of(&world, 45_000);
        assert!(used >= 970, "{demands:?}: {used} thousandths");
    }
}

#[test]
fn a_small_demand_is_served_beside_a_greedy_one() {
    let mut world = world(6_000, &[5, 400]);
    run(&mut world, 242);
    let [small, greedy] = &*world.gateways else { panic!("two") };
    assert!(small.passed * 100 >= small.asked * 80, "{} of {}", small.passed, small.asked);
    assert!(greedy.passed > 15_000, "{}", greedy.passed);
}

#[test]
fn demand_below_the_limit_passes() {
    let mut world = world(60_000, &[50, 80, 20]);
    run(&mut world, 20);
    let before: Vec<(u64, u64)> = world.gateways.iter().map(|one| (one.passed, one.asked)).collect();
    run(&mut world, 160);
    for (gateway, (passed, asked)) in world.gateways.iter().zip(before) {
        let (passed, asked) = (gateway.passed - passed, gateway.asked - asked);
        assert!(passed * 1_000 >= asked * 950, "{passed} of {asked}");
    }
}

#[test]
fn bytes_that_are_held_back_for_nine_seconds_are_spent() {
    for after in [0, 2, 4, 7, 31, 48, 52, 55, 58] {
        for length in [2, 9, 40] {
            let mut world = world(3_000, &[100, 100, 100]);
            run(&mut world, after + 1);
            world.stall(0, Span::from_secs(length));
            run(&mut world, 130);
            world.stall(1, Span::from_secs(length));
            run(&mut world, 60);
        }
    }
}

#[test]
fn kills_restarts_and_a_reload_are_spent() {
    let mut world = world(3_000, &[100, 100, 100]);
    for turn in 0..20 {
        run(&mut world, 7);
        match turn % 4 {
            0 => world.kill(0),
            1 => world.cut(1),
            2 => world.reset(2),
            // A second stream before the first ends.
            _ => world.add(100),
        }
    }
    run(&mut world, 120);
}

/// What happens, and to which gateway.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Cut,
    Reset,
    Stall(u64),
    Reload,
    Demand(u64),
    Others(u64),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Kill),
        Just(Fault::Cut),
        Just(Fault::Reset),
        (100_u64..40_000).prop_map(Fault::Stall),
        Just(Fault::Reload),
        (0_u64..400).prop_map(Fault::Demand),
        (0_u64..200).prop_map(Fault::Others),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_limit_is_never_exceeded(
        limit in 100_u64..20_000,
        demands in proptest::collection::vec(0_u64..300, 1..4),
        faults in proptest::collection::vec((0_u64..9_000, 0_usize..8, fault()), 0..40),
    ) {
        let mut world = world(limit, &demands);
        for (wait, at, fault) in faults {
            for _ in 0..wait * 1_000 / STEP.0 {
                world.step();
            }
            let at = at % world.gateways.len();
            match fault {
                Fault::Kill => world.kill(at),
                Fault::Cut => world.cut(at),
                Fault::Reset => world.reset(at),
                Fault::Stall(millis) => world.stall(at, Span::from_millis(millis)),
                Fault::Reload if world.gateways.len() < 8 => world.add(demands[0]),
                Fault::Reload => {}
                Fault::Demand(demand) => world.gateways[at].demand = demand,
                Fault::Others(demand) => world.others = demand,
            }
            world.check();
        }
        run(&mut world, 70);
    }
}

#[test]
fn buckets_that_nobody_has_any_more_are_forgotten() {
    let mut world = world(3_000, &[20, 20]);
    run(&mut world, 20);
    world.stall(0, Span::from_secs(60));
    run(&mut world, 8);
    for at in 0..2 {
        world.gateways[at].demand = 0;
        world.cut(at);
    }
    assert_eq!(world.buckets(), 1, "what is lost is spent in later windows too");
    for gateway in &mut world.gateways {
        gateway.retire();
    }
    run(&mut world, 300);
    assert_eq!(world.buckets(), 0);
}
