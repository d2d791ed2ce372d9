//! Requests in flight: `concurrency` rules, from outside and on both stores.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and measures real time"
)]

mod daemon;
#[path = "../support/redis_servers.rs"]
mod redis_servers;
#[path = "../support/redis_store.rs"]
mod redis_store;
mod store;
#[path = "../support/mod.rs"]
mod support;
