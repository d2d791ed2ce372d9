//! Short stories on real daemons that are broken on purpose: clients see every promise kept.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

/// Tells a story, which leaves what it saw in `target/chaos`.
fn is_told(story: &str) {
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/chaos").join(story);
    let told =
        Command::new(env!("CARGO_BIN_EXE_sim")).args(["chaos", story, "--out"]).arg(out).output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "sim chaos {story}:\n{said}{wrong}");
}

#[test]
fn a_region_is_cut_off() {
    is_told("short-cut");
}

#[test]
fn a_daemon_is_killed_and_begins_again() {
    is_told("short-kill");
}

#[test]
fn daemons_are_restarted_in_order() {
    is_told("short-roll");
}

#[test]
fn a_log_is_held_in_every_interval() {
    is_told("short-log");
}

#[test]
fn two_hundred_users_and_nothing_broken() {
    is_told("short-users");
}
