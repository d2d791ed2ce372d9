//! The region's Redis: counting in it, its bad days, and what it takes to be let in. Every test starts real
//! servers.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and measures real time"
)]

mod access;
mod batch;
mod capacity;
mod cells;
mod chaos;
mod daemon;
mod differential;
mod first_share;
mod full;
mod lost_store;
mod memories;
mod metrics;
mod penalties;
mod people;
mod refunds;
mod remembered;
mod reservations;
mod rights;
mod ring;
mod sentinel;
mod shared;
mod split;
mod store;
mod totals;
mod undo;
mod worldwide;

#[path = "../support/redis_load.rs"]
mod redis_load;
#[path = "../support/redis_proxy.rs"]
mod redis_proxy;
#[path = "../support/redis_servers.rs"]
mod redis_servers;
#[path = "../support/redis_store.rs"]
mod redis_store;
#[path = "../support/regions.rs"]
mod regions;
#[path = "../support/mod.rs"]
mod support;
