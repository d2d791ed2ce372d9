//! What a thief of one node's certificate and key does with a database of his own: he changes no rules where
//! databases answer, and where one is away what he gives ends with the outage or with his certificate.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::peers::{Liar, peers};
use super::rules::{Place, insert, limit, rule, send, wait_for};
use super::support::command::run;
use super::support::daemon::Daemon;
use super::support::{eventually, free_udp};

/// A generation and a revision that no honest database reaches.
const BEYOND: (u64, u64) = (1_000_000_000, 1_000_000);

fn authority() -> TempDir {
    let ca = TempDir::new().unwrap();
    assert_eq!(run(ca.path(), &["cert", "ca", "--out", "ca"]).code, 0);
    ca
}

/// A daemon of region eu beside its database. `more` goes into `[rules]`.
fn victim(ca: &TempDir, place: &Place, own: SocketAddr, more: &str) -> Daemon {
    let revoked = ca.path().join("revoked.pem");
    fs::write(&revoked, "").unwrap();
    let postgres = place.config().replace("[postgres]", &format!("{more}[postgres]"));
    let config = format!(
        "region = \"eu\"\nnode = \"n1\"\n[listen]\npeer = \"{own}\"\n{postgres}{}revoked = {revoked:?}\n",
        peers(ca, "eu", free_udp()),
    );
    Daemon::with("", &config, &[])
}

fn rules(daemon: &Daemon) -> Value {
    daemon.get("/readyz").json()["rules"].clone()
}

/// Lifts every limit, and lets everybody in.
fn gift() -> [Value; 2] {
    [rule("r", 1_000_000), json!({ "name": "free", "action": "allow" })]
}

#[test]
fn a_thief_changes_no_rules_beside_a_database_that_answers() {
    let ca = authority();
    let place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let eu = free_udp();
    let daemon = victim(&ca, &place, eu, "");
    let thief = Liar::join(&ca, "us", "us9", eu, None);
    thief.offer_set(BEYOND.0, BEYOND.1, &gift());
    eventually("it is told who says so", || {
        rules(&daemon)["problem"].as_str()?.contains("us/us9 says that it has newer rules").then_some(())
    });
    let state = rules(&daemon);
    assert_eq!((&state["from"], &state["reachable"]), (&json!("database"), &json!(true)), "{state}");
    assert_eq!((limit(&daemon, "r"), limit(&daemon, "free")), (Some(3), None));

    // An operator's change is made of what the database holds, and counts on from there.
    fs::write(
        daemon.folder().join("more.toml"),
        "[[rules]]\nname = \"own\"\nper = [\"user\"]\nlimit = 2\nwindow = \"1h\"\n",
    )
    .unwrap();
    let applied = daemon.run(&["rules", "apply", "more.toml"]);
    assert!(applied.code == 0 && !applied.both().contains("free"), "{applied:?}");
    let head = "SELECT generation < 100 AND revision = 2 FROM rules_head";
    assert_eq!(place.sql(head), "t");
    assert_eq!(place.sql("SELECT string_agg(name, ',' ORDER BY name) FROM rules"), "own,r");
    wait_for(&daemon, "own", Some(2));
    assert_eq!(limit(&daemon, "free"), None);
    assert!(!fs::read_to_string(daemon.folder().join("rules.saved.json")).unwrap().contains("free"));
}

#[test]
fn what_a_thief_gives_while_the_database_is_away_ends_with_that_or_with_his_certificate() {
    let ca = authority();
    let mut place = Place::new();
    place.sql(&insert(&rule("r", 3)));
    let (eu, strict) = (free_udp(), free_udp());
    let mut daemon = victim(&ca, &place, eu, "");
    let off = victim(&ca, &place, strict, "from_peers = \"off\"\n");
    eventually("its own rules are saved", || fs::read(daemon.folder().join("rules.saved.json")).ok());
    place.server.kill();
    let thief = Liar::join(&ca, "us", "us9", eu, None);
    let other = Liar::join(&ca, "us", "us8", strict, None);
    for liar in [&thief, &other] {
        liar.offer_set(BEYOND.0, BEYOND.1, &gift());
    }
    wait_for(&daemon, "free", None);
    eventually("it is taken for want of better, and told", || {
        let state = rules(&daemon);
        (state["from"] == "peer us/us9"
            && state["problem"].as_str()?.contains("those that us/us9 gave, until PostgreSQL answers"))
        .then_some(())
    });
    assert_eq!(limit(&off, "r"), Some(3), "rules of others are never taken with from_peers = \"off\"");
    let put = send(&daemon, "PUT", "/v1/rules/own", &[], &rule("own", 1));
    assert_eq!(put.status, 503, "{put:?}");

    // The database answers: its set counts, with whatever number.
    place.server.run();
    wait_for(&daemon, "r", Some(3));
    assert_eq!((limit(&daemon, "free"), rules(&daemon)["from"].clone()), (None, json!("database")));
    let given = daemon.folder().join("rules.saved.peer.json");
    eventually("nothing of it is kept", || (!given.exists()).then_some(()));

    // Away again; now the certificate is revoked while the rules are in force.
    place.server.kill();
    eventually("it is taken again", || (rules(&daemon)["from"] == "peer us/us9").then_some(()));
    eventually("and kept", || given.exists().then_some(()));
    // Also by a daemon that begins meanwhile.
    daemon.kill();
    daemon.start_again();
    eventually("it is taken from the disk", || (rules(&daemon)["from"] == "peer us/us9").then_some(()));
    let revoked = run(ca.path(), &["cert", "revoke", "--ca", "ca", "us-us9/node.pem"]);
    assert_eq!(revoked.code, 0, "{revoked:?}");
    fs::copy(ca.path().join("ca/revoked.pem"), ca.path().join("revoked.pem")).unwrap();
    wait_for(&daemon, "r", Some(3));
    assert_eq!((limit(&daemon, "free"), rules(&daemon)["from"].clone()), (None, json!("saved")));
    eventually("nothing of it is kept", || (!given.exists()).then_some(()));
    drop(thief);
    daemon.kill();
    daemon.start_again();
    assert_eq!((limit(&daemon, "r"), limit(&daemon, "free")), (Some(3), None));
}
