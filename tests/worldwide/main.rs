//! Worldwide limits from outside: real daemons, each a region of its own, an ocean between them that delays,
//! loses and cuts, load on their gRPC ports, and every admission counted here, by the window that the
//! daemon's answer names.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tests fail by panic, and count in floats"
)]
#![allow(unreachable_pub, reason = "the servers are shared with other tests")]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod calendar;
mod cuts;
mod escrow;
mod figures;
mod first_day;
mod gossip;
mod health;
mod invoice;
mod lapsed;
mod load;
mod ocean;
mod own;
mod places;
#[path = "../support/redis_servers.rs"]
mod redis_servers;
mod restart;
mod sliding;
mod split;
#[path = "../support/mod.rs"]
mod support;
mod thief;
mod upgrade;
mod world;
