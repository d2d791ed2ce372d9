//! In health nothing is an alarm: many users, every mode, and each counter that somebody would be woken for
//! stays at 0.

use std::time::Duration;

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::world::{Plan, Store, World, window};

const USERS: usize = 200;
const SECONDS: u64 = 8;

fn rules(modes: &[&str]) -> String {
    modes
        .iter()
        .map(|mode| {
            format!(
                "[[rules]]\nname = \"{mode}\"\nper = [\"who\"]\nalgorithm = \"fixed_window\"\nlimit = 10\nwindow = \"1s\"\n\
                 [rules.global]\nmode = \"{mode}\"\n"
            )
        })
        .collect()
}

/// What is counted under a metric, by its labels.
fn counts(daemon: &Daemon, name: &str) -> Vec<(String, f64)> {
    let text = daemon.metrics();
    let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    let counts: Vec<_> = lines.map(|(labels, value)| (labels.to_owned(), value.parse().unwrap())).collect();
    assert!(!counts.is_empty(), "there is no {name}");
    counts
}

#[test]
fn two_hundred_users_under_gossip_and_split_raise_no_alarm() {
    raise_no_alarm(&["gossip", "split"]);
}

#[test]
fn two_hundred_users_under_escrow_raise_no_alarm() {
    raise_no_alarm(&["escrow"]);
}

fn raise_no_alarm(modes: &[&str]) {
    let rtt = Duration::from_millis(80);
    let plan = Plan { regions: 3, rtt, store: Store::Memory, limit: 10, global: "" };
    let world = World::with_rules(plan, &rules(modes));
    let end = window() + SECONDS;
    let admitted: usize = std::thread::scope(|scope| {
        let asking = |(place, daemon): (usize, &Daemon)| {
            // Each region asks for all users, in another order.
            let checks: Vec<_> = (0..USERS)
                .map(|n| json!({ "attributes": { "who": format!("u{}", (n * 7 + place * 61) % USERS) } }))
                .collect();
            let batch = json!({ "checks": checks });
            let mut admitted = 0;
            while window() < end {
                let reply = daemon.post("/v1/check", &batch);
                assert_eq!(reply.status, 200, "{reply:?}");
                let decisions = reply.json()["decisions"].clone();
                let allowed = |decision: &&Value| decision["allowed"] == true;
                admitted += decisions.as_array().unwrap().iter().filter(allowed).count();
                // What daemons of a debug build keep up with while others are tested beside them.
                std::thread::sleep(Duration::from_millis(200));
            }
            admitted
        };
        let threads: Vec<_> =
            world.daemons.iter().enumerate().map(|one| scope.spawn(move || asking(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    eprintln!("{admitted} admitted");
    assert!(admitted > USERS * 4, "{admitted}");
    for daemon in &world.daemons {
        for name in [
            "tidegate_frames_rejected_total",
            "tidegate_tallies_dropped_total",
            "tidegate_world_keys_dropped_total",
            "tidegate_task_ends_total",
            "tidegate_log_lines_lost_total",
            "tidegate_connections_refused_total",
            "tidegate_keys_full_total",
        ] {
            let raised: Vec<_> = counts(daemon, name).into_iter().filter(|(_, value)| *value > 0.0).collect();
            assert_eq!(raised, [], "{name}: {}", daemon.log());
        }
        // Before daemons were connected there was nobody to send to.
        let dropped = counts(daemon, "tidegate_peer_dropped_total");
        let (frames, bytes) =
            (counts(daemon, "tidegate_sync_updates_total"), counts(daemon, "tidegate_sync_bytes_total"));
        eprintln!("{dropped:?} of {frames:?} frames, {bytes:?}");
        for (labels, value) in dropped {
            assert!(value == 0.0 || labels.contains("unconnected"), "{labels} {value}");
        }
        if modes.contains(&"escrow") {
            let over = daemon.metric("tidegate_global_overshoot_permits_total{rule=\"escrow\"}");
            assert_eq!(over, Some(0.0));
        }
    }
}
