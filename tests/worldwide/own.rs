//! A user's own limit, raised and lowered: held and used worldwide as the rule's is.

use std::time::Duration;

use super::world::{Plan, Store, World, judge, rules, sums, windows};

/// Windows in which this machine stood still for longer than this are not judged.
const PATIENCE: Duration = Duration::from_millis(30);

/// Regions that know of one user whose limit is `plan.limit` where the rule's is `rule`.
fn world(plan: Plan, rule: u64, algorithm: &str) -> World {
    let rules = rules(Plan { limit: rule, ..plan }, algorithm);
    let own = format!("[[users]]\nid = \"u\"\noverrides = {{ world = {{ limit = {} }} }}\n", plan.limit);
    World::with_rules(plan, &(rules + &own))
}

const fn plan(store: Store, limit: u64, global: &'static str) -> Plan {
    Plan { regions: 3, rtt: Duration::from_millis(20), store, limit, global }
}

/// Asks for twice the limit, in one region and in all: it is never above the limit by more than `over`
/// percent, and `used` of it are used.
fn is_held(world: &World, over: f64, used: f64) {
    for weights in [[1, 0, 0], [1, 1, 1]] {
        let loads = world.load(2.0, &weights);
        windows(3);
        let held = judge(&sums(&loads, windows(6)), world.plan.limit, PATIENCE);
        assert!(held.over_max <= over && held.used >= used, "asked for by {weights:?}: {held:?}");
    }
}

#[test]
fn a_raised_limit_is_held_and_used_under_gossip() {
    is_held(&world(plan(Store::Memory, 300, "mode = \"gossip\""), 20, "fixed_window"), 5.0, 95.0);
}

#[test]
fn a_raised_limit_is_held_and_used_under_gossip_in_redis() {
    is_held(&world(plan(Store::Redis, 300, "mode = \"gossip\""), 20, "fixed_window"), 5.0, 90.0);
}

#[test]
fn a_lowered_limit_is_held_and_used_under_gossip() {
    is_held(&world(plan(Store::Memory, 60, "mode = \"gossip\""), 300, "fixed_window"), 7.0, 90.0);
}

#[test]
fn a_raised_limit_is_held_and_used_under_escrow() {
    is_held(&world(plan(Store::Memory, 300, "mode = \"escrow\""), 20, "fixed_window"), 0.0, 90.0);
}

#[test]
fn a_raised_limit_is_held_and_used_under_escrow_in_redis() {
    is_held(&world(plan(Store::Redis, 300, "mode = \"escrow\""), 20, "fixed_window"), 0.0, 90.0);
}

#[test]
fn a_lowered_limit_is_held_and_used_under_escrow() {
    is_held(&world(plan(Store::Memory, 60, "mode = \"escrow\""), 300, "fixed_window"), 0.0, 85.0);
}

/// Each region has its share, whatever the others use.
#[test]
fn own_limits_are_shared_out_under_split() {
    for (rule, limit) in [(30, 300), (300, 60)] {
        let world = world(plan(Store::Memory, limit, "mode = \"split\""), rule, "fixed_window");
        for (weights, held) in [([1, 0, 0], limit / 3), ([1, 1, 1], limit)] {
            let loads = world.load(3.0, &weights);
            windows(2);
            for seen in sums(&loads, windows(4)) {
                // A busy machine asks some regions for less than their share.
                assert!(seen.admitted <= held, "{held} of {limit}: {seen:?}");
                let little = seen.admitted * 10 < held * 7 && seen.stall <= PATIENCE;
                assert!(!little || seen.asked < held, "{held} of {limit}: {seen:?}");
            }
        }
    }
}
