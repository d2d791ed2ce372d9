//! `escrow`: never above the limit, whatever happens, and nearly all of it used wherever the demand is.

use std::time::Duration;

use super::world::{Plan, Store, Window, World, sums, window, windows};

const fn plan(regions: usize, rtt_ms: u64, store: Store) -> Plan {
    let rtt = Duration::from_millis(rtt_ms);
    Plan { regions, rtt, store, limit: 300, global: "mode = \"escrow\"" }
}

/// In every window: no noise of this machine excuses a single permit.
fn never_over(windows: &[Window], limit: u64) {
    eprintln!("{windows:?}");
    assert!(windows.iter().all(|window| window.admitted <= limit), "{windows:?}");
}

/// What was admitted, in percent of what could have been.
fn used(windows: &[Window], limit: u64) -> f64 {
    let could: u64 = windows.iter().map(|window| window.asked.min(limit)).sum();
    let did: u64 = windows.iter().map(|window| window.admitted).sum();
    did as f64 / could.max(1) as f64 * 100.0
}

/// All load in one region, then in another: rights are where they are needed.
fn follows_demand(plan: Plan) {
    let world = World::start(plan);
    let mut weights = vec![0; plan.regions];
    weights[0] = 1;
    let loads = world.load(2.0, &weights);
    let rate = plan.limit * 2;
    windows(3);
    for place in [1, 2, 0] {
        for (other, load) in loads.iter().enumerate() {
            load.set_rate(if other == place { rate } else { 0 });
        }
        let seen = sums(&loads, windows(4));
        never_over(&seen, plan.limit);
        // In the first window they have to notice.
        assert!(used(&seen[1..], plan.limit) >= 95.0, "{seen:?}");
    }
    let metric = |line: &str| world.daemons[1].metric(line);
    assert!(metric("tidegate_rights_moved_total{from=\"us-east\",to=\"eu-west\"}") > Some(0.0));
    assert_eq!(metric("tidegate_global_overshoot_permits_total{rule=\"world\"}"), Some(0.0));
}

#[test]
fn rights_follow_demand_between_three_regions() {
    follows_demand(plan(3, 80, Store::Memory));
}

#[test]
fn rights_follow_demand_around_the_world() {
    follows_demand(plan(5, 250, Store::Memory));
}

#[test]
fn rights_follow_demand_between_regions_that_count_in_redis() {
    follows_demand(plan(3, 20, Store::Redis));
}

#[test]
fn a_request_may_wait_for_rights_on_their_way() {
    let rtt = Duration::from_millis(80);
    let global = "mode = \"escrow\"\nwait = \"400ms\"";
    let world = World::start(Plan { regions: 3, rtt, store: Store::Memory, limit: 30, global });
    let daemon = &world.daemons[1];
    windows(3);
    let first = window();
    let mut admitted = Vec::new();
    // One client, which asks again when it was answered: it has no more demand than that.
    while window() < first + 4 {
        if daemon.check(&[("who", "one")])["allowed"] == true {
            admitted.push(window());
        }
    }
    let whole = |second: u64| admitted.iter().filter(|at| **at == first + second).count();
    let seen = [whole(1), whole(2), whole(3)];
    // Its own region mints ten. An answer may arrive in the next second.
    assert!(seen.iter().sum::<usize>() > 32 && seen.iter().all(|seen| *seen <= 33), "{seen:?}");
    assert!(daemon.metric("tidegate_rights_waits_total{outcome=\"admitted\"}") > Some(0.0));
}

#[test]
fn no_cut_and_no_crash_lets_a_single_permit_too_many_through() {
    survives(plan(3, 80, Store::Memory));
}

#[test]
fn no_cut_and_no_crash_lets_a_single_permit_too_many_through_in_redis() {
    survives(plan(3, 80, Store::Redis));
}

fn survives(plan: Plan) {
    let mut world = World::start(plan);
    let loads = world.load(3.0, &[4, 1, 1]);
    let together = sums(&loads, windows(4));
    world.cut(2);
    let apart = sums(&loads, windows(3));
    world.heal(2);
    world.wait_until_connected();
    let healed = sums(&loads, windows(3));
    world.daemons[0].kill();
    world.daemons[0].start_again();
    world.wait_until_connected();
    let again = sums(&loads, windows(5));
    for seen in [&together, &apart, &healed, &again] {
        never_over(seen, plan.limit);
    }
    assert!(used(&together[2..], plan.limit) >= 97.0, "{together:?}");
    assert!(used(&again[3..], plan.limit) >= 95.0, "{again:?}");
}
