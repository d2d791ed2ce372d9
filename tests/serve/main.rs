//! The daemon from outside: what its servers answer, how it reloads, drains, and meets other daemons.
//!
//! Every test starts the real binary and knows only the contract with users: flags, files, routes, exit
//! codes.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod admin;
mod answers;
mod bad_input;
mod calendar;
mod causes;
mod certificates;
mod checks;
mod cli;
mod clients;
mod clocks;
mod commands;
mod configuration;
mod connections;
mod credentials;
mod demo;
mod drain;
mod elsewhere;
mod estimates;
mod events;
mod grpc;
mod hot;
mod identity;
mod kuadrant;
mod large;
mod left;
mod lifecycle;
mod members;
mod mistakes;
mod names;
mod odd_costs;
mod on_deny;
mod paced;
mod penalties;
mod quota_rows;
mod rates;
mod recipes;
mod redis_rs;
#[path = "../support/redis_servers.rs"]
mod redis_servers;
mod reference;
mod region_changes;
mod regions;
mod reports;
mod reservations;
mod resp;
mod resp_rows;
mod rust_client;
mod spellings;
mod split;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod traces;
mod wire;
