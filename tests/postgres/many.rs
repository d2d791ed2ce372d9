//! Very many rules: carried, changed one by one and by file, kept on disk and handed to a peer. With ten
//! times as many, and with times, in `cargo bench --bench rules -- many`.

use serde_json::json;
use tempfile::TempDir;

use super::peers::peers;
use super::rules::{Place, limit, rule, send, wait_for};
use super::support::command::run;
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};

const MANY: usize = 10_000;

#[test]
fn ten_thousand_rules_are_changed_applied_kept_on_disk_and_handed_to_a_peer() {
    let ca = TempDir::new().unwrap();
    assert_eq!(run(ca.path(), &["cert", "ca", "--out", "ca"]).code, 0);
    let mut place = Place::new();
    place.sql(&format!(
        "INSERT INTO rules (document) SELECT jsonb_build_object('name', 'r' || n, 'match', \
             jsonb_build_object('path', '/api/' || n || '/*'), 'per', '[\"user\"]'::jsonb, 'limit', 5, 'window', '24h') \
         FROM generate_series(1, {MANY}) AS n"
    ));
    let (eu, us) = (free_udp(), free_udp());
    let saved = ca.path().join("saved.json");
    let postgres = place.config().replace("[postgres]", &format!("saved = {saved:?}\n[postgres]"));
    let config = format!(
        "region = \"eu\"\nnode = \"n1\"\n[listen]\npeer = \"{eu}\"\n{postgres}{}",
        peers(&ca, "eu", us)
    );
    let mut daemon = Daemon::with("", &config, &[]);
    assert_eq!(daemon.metric("tidegate_rules"), Some(10_000.0));
    assert_eq!(daemon.admitted(&[("user", "u"), ("path", "/api/7777/x")], 7), 5);

    // One by the API, one by SQL, some by a file.
    let put = send(&daemon, "PUT", "/v1/rules/r5", &[], &rule("r5", 9));
    assert_eq!((put.status, limit(&daemon, "r5")), (200, Some(9)), "{put:?}");
    place.sql("UPDATE rules SET document = document || '{\"limit\": 6}' WHERE name = 'r6'");
    wait_for(&daemon, "r6", Some(6));
    std::fs::write(
        daemon.folder().join("new.toml"),
        "[[rules]]\nname = \"r7\"\nlimit = 7\nwindow = \"1s\"\n[[rules]]\nname = \"r10001\"\nlimit = 8\nwindow = \"1s\"\n",
    )
    .unwrap();
    let applied = daemon.run(&["rules", "apply", "new.toml"]);
    assert!(applied.code == 0 && applied.out.contains("2 changed. Revision 4"), "{applied:?}");
    assert_eq!(
        ["r5", "r6", "r7", "r10001"].map(|name| limit(&daemon, name)),
        [Some(9), Some(6), Some(7), Some(8)]
    );
    // What was decided before still counts.
    assert_eq!(daemon.admitted(&[("user", "u"), ("path", "/api/7777/x")], 2), 0);

    // From disk, without the database; and from there to a daemon that has nothing.
    eventually("the newest set is on disk", || {
        std::fs::read_to_string(&saved).ok()?.contains("\"r10001\"").then_some(())
    });
    place.server.kill();
    drop(daemon);
    daemon = Daemon::with("", &config, &[]);
    assert_eq!(daemon.get("/readyz").json()["rules"]["from"], "saved");
    let other = postgres.replace("saved.json", "other.json");
    let other =
        format!("region = \"us\"\nnode = \"n1\"\n[listen]\npeer = \"{us}\"\n{other}{}", peers(&ca, "us", eu));
    let other = Daemon::with("", &other, &[]);
    assert_eq!(other.get("/readyz").json()["rules"]["from"], json!("peer eu/n1"));
    assert_eq!((other.metric("tidegate_rules"), limit(&other, "r10001")), (Some(10_001.0), Some(8)));
}
