//! A daemon that stands in for Envoy's rate limit service, from outside: its answers case by case, its
//! environment, its rules by file and by xDS. The numbers of cases are those of the page in `docs/tasks`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panic")]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod asked;
mod cases;
mod ports;
#[path = "../support/mod.rs"]
mod support;
mod xds;
