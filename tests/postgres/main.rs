//! PostgreSQL under the daemon: its schema, rules that live in it, and the days on which it is not well.
//!
//! Every test starts a real server and the real binary, and knows only the contract with users: SQL, routes,
//! commands.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(unreachable_pub, reason = "the servers are shared with other tests")]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod away;
mod file;
mod guard;
mod many;
mod peers;
mod people;
mod pooler;
#[path = "../support/redis_servers.rs"]
mod redis_servers;
mod rules;
mod schema;
mod seen;
#[path = "../support/mod.rs"]
mod support;
mod thief;
mod traces;
mod usage;
mod usage_quotas;
