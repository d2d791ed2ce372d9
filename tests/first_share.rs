//! What regions admit together at the first instant of a bucket under `gossip`, before any daemon has looked
//! at it. The stores are in memory; `tests/redis` has the same of Redis.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;
use std::time::Duration;

use tidegate::engine::clock::Clock;
use tidegate::engine::port::Store;
use tidegate::store::memory::MemoryStore;

use regions::{World, asks_again_soon, burst_at_home, burst_at_home_of, burst_together};

#[path = "support/regions.rs"]
mod regions;

const ALGORITHMS: [&str; 6] =
    ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra"];

fn world(algorithm: &str, limit: u32, regions: usize) -> World {
    let stores = (0..regions).map(|_| Arc::new(MemoryStore::new(1_000)) as Arc<dyn Store>);
    World::new(algorithm, limit, stores.collect(), (Arc::new(Clock::System), Duration::ZERO))
}

#[test]
fn regions_that_burst_at_once_are_admitted_the_limit() {
    for algorithm in ALGORITHMS {
        for limit in [100, 7] {
            println!("{algorithm} {limit}");
            burst_together(&mut world(algorithm, limit, 5), limit);
        }
    }
}

#[test]
fn of_a_limit_smaller_than_their_number_each_region_admits_one() {
    for algorithm in ALGORITHMS {
        let world = world(algorithm, 3, 5);
        let admitted = [0, 1, 2, 3, 4].map(|region| world.ask(region, 50));
        assert_eq!(admitted, [1; 5], "{algorithm}");
    }
}

#[test]
fn who_is_refused_by_a_first_share_is_told_to_ask_again_soon() {
    for algorithm in ALGORITHMS {
        println!("{algorithm}");
        let stores = (0..5).map(|_| Arc::new(MemoryStore::new(1_000)) as Arc<dyn Store>).collect();
        let time = (Arc::new(Clock::System), Duration::ZERO);
        asks_again_soon(&mut World::with_window(algorithm, (100, "1h"), stores, time), 100);
    }
}

#[test]
fn at_home_a_bucket_that_was_idle_is_there_at_once() {
    for algorithm in ALGORITHMS {
        println!("{algorithm}");
        burst_at_home(&mut world(algorithm, 100, 5), 100);
    }
}

#[test]
fn at_home_a_bucket_of_which_little_was_asked_is_there_at_once() {
    for algorithm in ALGORITHMS {
        for cost in [3, 6] {
            println!("{algorithm}, {cost} permits ten times a second");
            burst_at_home_of(&mut world(algorithm, 100, 5), 100, cost);
        }
    }
}

#[test]
fn a_region_that_is_alone_admits_the_whole_limit() {
    for algorithm in ALGORITHMS {
        let mut world = world(algorithm, 100, 1);
        assert_eq!(world.ask(0, 150), 100, "{algorithm}");
        world.run(tidegate::core::time::Span::from_secs(5));
        assert_eq!(world.ask(0, 150), 100, "{algorithm}");
    }
}
