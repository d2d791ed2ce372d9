//! Worlds in virtual time for the loop of editing: the seeds that once failed, and a hundred others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

fn plays(arguments: &[&str]) {
    let played = Command::new(env!("CARGO_BIN_EXE_sim")).args(arguments).output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&played.stdout), String::from_utf8_lossy(&played.stderr));
    assert!(played.status.success() && said.contains("no violation"), "sim {arguments:?}:\n{said}{wrong}");
}

#[test]
fn no_seed_that_once_failed_fails_again() {
    plays(&["check"]);
}

#[test]
fn a_hundred_worlds_keep_every_promise() {
    plays(&["vopr", "--seeds", "100"]);
}
