//! What is remembered of decisions, against a real PostgreSQL: exactly once wherever a process dies, kept
//! through bad days, asked for, and archived.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

mod archive;
mod backups;
mod bounds;
mod bucket;
mod counted;
mod daemon;
mod delivery;
mod disk;
mod outcomes;
mod records;
#[path = "../support/mod.rs"]
mod support;
