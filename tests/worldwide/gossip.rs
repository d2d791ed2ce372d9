//! `gossip`: nearly exact, with the bounds that the simulator gives plus what this machine's noise explains.

use std::time::Duration;

use super::world::{Plan, Store, Window, World, judge, sums, windows};

const PATIENCE: Duration = Duration::from_millis(30);

const fn plan(regions: usize, rtt_ms: u64, store: Store) -> Plan {
    let rtt = Duration::from_millis(rtt_ms);
    Plan { regions, rtt, store, limit: 300, global: "mode = \"gossip\"" }
}

/// Nothing above a little, and nearly all of it used.
fn held(seen: &[Window], plan: Plan) {
    let held = judge(seen, plan.limit, PATIENCE);
    assert!(held.over_mean <= 1.0 && held.over_max <= 5.0 && held.used >= 97.0, "{held:?}");
}

/// Steady load, twice the limit: nothing above a little, all of it used.
fn is_held_and_used(plan: Plan) {
    let world = World::start(plan);
    let loads = world.load(2.0, &vec![1; plan.regions]);
    windows(3);
    held(&sums(&loads, windows(8)), plan);
}

#[test]
fn three_regions_a_continent_apart_hold_and_use_a_limit() {
    is_held_and_used(plan(3, 20, Store::Memory));
}

#[test]
fn five_regions_around_the_world_hold_and_use_a_limit() {
    is_held_and_used(plan(5, 250, Store::Memory));
}

#[test]
fn five_regions_that_count_in_redis_hold_and_use_a_limit() {
    is_held_and_used(plan(5, 250, Store::Redis));
}

/// A region is cut off for five seconds.
fn survives_a_cut(plan: Plan) {
    let world = World::start(plan);
    let loads = world.load(2.0, &[1, 1, 1]);
    windows(3);
    world.cut(2);
    let apart = sums(&loads, windows(5));
    world.heal(2);
    world.wait_until_connected();
    windows(2);
    let again = sums(&loads, windows(4));
    // In the first window they have not noticed yet.
    let apart = judge(&apart[1..], plan.limit, PATIENCE);
    assert!(apart.over_mean <= 1.0 && apart.used >= 90.0, "{apart:?}");
    held(&again, plan);
}

#[test]
fn a_region_that_is_cut_off_keeps_its_share_and_comes_back() {
    survives_a_cut(plan(3, 80, Store::Memory));
}

#[test]
fn a_region_that_is_cut_off_keeps_its_share_in_redis_and_comes_back() {
    survives_a_cut(plan(3, 20, Store::Redis));
}

/// A daemon is killed under load, and started again.
fn survives_a_kill(plan: Plan) {
    let mut world = World::start(plan);
    let loads = world.load(2.0, &[1, 1, 1]);
    windows(2);
    world.daemons[2].kill();
    windows(2);
    world.daemons[2].start_again();
    world.wait_until_connected();
    windows(2);
    held(&sums(&loads, windows(5)), plan);
}

#[test]
fn a_daemon_that_is_killed_comes_back_without_counting_twice() {
    survives_a_kill(plan(3, 80, Store::Memory));
}

#[test]
fn a_daemon_that_is_killed_finds_its_counts_in_redis_and_does_not_count_them_twice() {
    survives_a_kill(plan(3, 80, Store::Redis));
}

#[test]
fn a_limit_follows_demand_that_moves() {
    let plan = plan(3, 80, Store::Memory);
    let world = World::start(plan);
    let loads = world.load(2.0, &[1, 0, 0]);
    let rate = plan.limit * 2;
    windows(3);
    let mut seen = Vec::new();
    for place in [1, 2, 0] {
        for (other, load) in loads.iter().enumerate() {
            load.set_rate(if other == place { rate } else { 0 });
        }
        seen.extend(sums(&loads, windows(3)));
    }
    let held = judge(&seen, plan.limit, PATIENCE);
    assert!(held.over_mean <= 1.5 && held.over_max <= 12.0 && held.used >= 95.0, "{held:?}");
}
