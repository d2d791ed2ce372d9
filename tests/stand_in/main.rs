//! A daemon that stands in for Envoy's rate limit service, from outside: its answers case by case, its
//! environment, its rules by file and by xDS. The numbers of cases are those of the page in `docs/tasks`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(unreachable_pub, reason = "the servers are shared with other tests")]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod asked;
mod cases;
mod deployments;
mod gateway;
mod ports;
#[path = "../support/redis_servers.rs"]
mod redis_servers;
mod rows;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod traces;
mod verdicts;
mod xds;
