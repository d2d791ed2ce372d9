//! A `sliding_log` under `gossip`: its limit holds in every interval as long as its window, by what was asked
//! and answered here.

use std::time::Duration;

use tidegate::core::algorithm::Algorithm;

use super::figures::{PATTERNS, run};
use super::world::{Plan, Store, World, rules};

/// Windows that a run measures, and runs of which one must hold: a machine that stands still tells nobody
/// anything in time.
const MEASURED: u64 = 8;
const RUNS: usize = 3;

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
