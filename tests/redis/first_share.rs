//! What regions with a Redis each admit together at the first instant of a bucket under `gossip`: the same as
//! with stores in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::redis_servers::Server;
use crate::redis_store::{settings, store};
use crate::regions::{START, World, asks_again_soon, burst_at_home, burst_together};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Store;
use tidegate::store::redis::{RedisSettings, Topology};

/// Longer than a view takes to be written.
const PATIENCE: Duration = Duration::from_millis(4);
const ALGORITHMS: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "token_bucket"];

fn servers() -> Vec<Server> {
    (0..5).map(|_| Server::start(&[])).collect()
}

/// One region on each server, which is emptied, under so many permits a second.
fn world(servers: &[Server], algorithm: &str, limit: u32) -> World {
    with_window(servers, algorithm, (limit, "1s"))
}

fn with_window(servers: &[Server], algorithm: &str, limit: (u32, &str)) -> World {
    let clock = Arc::new(Clock::Manual(START.0.into()));
    let stores = servers.iter().map(|server| {
        server.command(&["FLUSHALL"]).unwrap();
        let settings = settings(Topology::Single, vec![server.url()]);
        Arc::new(store(RedisSettings { clock: Some(Arc::clone(&clock)), ..settings }, 1)) as Arc<dyn Store>
    });
    World::with_window(algorithm, limit, stores.collect(), (Arc::clone(&clock), PATIENCE))
}

#[test]
fn regions_that_burst_at_once_are_admitted_the_limit() {
    let servers = servers();
    for algorithm in ALGORITHMS {
        for limit in [100, 3] {
            burst_together(&mut world(&servers, algorithm, limit), limit);
        }
    }
}

#[test]
fn at_home_a_bucket_that_was_idle_is_there_at_once() {
    let servers = servers();
    for algorithm in ALGORITHMS {
        burst_at_home(&mut world(&servers, algorithm, 100), 100);
    }
}

#[test]
fn who_is_refused_by_a_first_share_is_told_to_ask_again_soon() {
    let servers = servers();
    for algorithm in ALGORITHMS {
        asks_again_soon(&mut with_window(&servers, algorithm, (100, "1h")), 100);
    }
}
