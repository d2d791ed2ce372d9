//! Sliding rules, by what was asked and answered here. A `sliding_log` under `gossip`: its limit holds in
//! every interval as long as its window. Under `escrow` capacity follows demand, and nothing is ever above
//! the limit.

use std::time::Duration;

use tidegate::core::algorithm::Algorithm;

use super::figures::{PATTERNS, run};
use super::world::{Plan, Store, World, rules};

/// Windows that a run measures, and runs of which one must hold: a machine that stands still tells nobody
/// anything in time.
const MEASURED: u64 = 8;
const RUNS: usize = 3;
/// Stands for an `escrow` rule that names no algorithm.
const DEFAULT: &str = "";

fn every_interval_is_held(pattern: &str) {
    let rtt = Duration::from_millis(80);
    let plan = Plan { regions: 3, rtt, store: Store::Memory, limit: 210, global: "mode = \"gossip\"" };
    let world = World::with_rules(plan, &rules(plan, "sliding_log"));
    let (_, demand) = PATTERNS.into_iter().find(|(name, _)| *name == pattern).unwrap();
    let mut seen = Vec::new();
    for _ in 0..RUNS {
        let held = run(&world, demand, Algorithm::SlidingLog, MEASURED);
        eprintln!("{held:?}");
        if held.over_mean <= 0.02 && held.over_max <= 5.0 && held.used >= 70.0 {
            return;
        }
        seen.push(held);
    }
    panic!("{seen:?}");
}

#[test]
fn a_sliding_log_holds_every_interval_under_even_demand() {
    every_interval_is_held("even");
}

#[test]
fn a_sliding_log_holds_every_interval_where_demand_moves() {
    every_interval_is_held("anti");
}

/// Demand of three regions that comes and goes: never is a permit above the limit, in any run. A machine that
/// stands still leaves some of it unused.
fn capacity_follows(algorithm: &str, pattern: &str) {
    let rtt = Duration::from_millis(80);
    let plan = Plan { regions: 3, rtt, store: Store::Memory, limit: 210, global: "mode = \"escrow\"" };
    let named = rules(plan, algorithm);
    let world = match algorithm {
        DEFAULT => World::with_rules(plan, &named.replace("algorithm = \"\"\n", "")),
        _ => World::with_rules(plan, &named),
    };
    let counts = if algorithm == DEFAULT { Algorithm::SlidingWindow } else { Algorithm::SlidingLog };
    let (_, demand) = PATTERNS.into_iter().find(|(name, _)| *name == pattern).unwrap();
    let mut seen = Vec::new();
    for _ in 0..RUNS {
        let held = run(&world, demand, counts, MEASURED);
        eprintln!("{counts:?} {pattern}: {held:?}");
        assert!(held.over_max == 0.0, "{held:?}");
        if held.used >= 90.0 {
            return;
        }
        seen.push(held);
    }
    panic!("{seen:?}");
}

#[test]
fn an_escrow_rule_without_an_algorithm_follows_demand_and_is_never_over() {
    capacity_follows(DEFAULT, "even");
    capacity_follows(DEFAULT, "lunch");
}

#[test]
fn a_sliding_log_under_escrow_follows_demand_and_is_never_over() {
    capacity_follows("sliding_log", "lunch");
}
