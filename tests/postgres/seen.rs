//! When users and API keys were last seen: told at once, kept in the database, and not written for each
//! request.

use serde_json::Value;

use super::support::command::TIDEGATE;
use super::support::daemon::Daemon;
use super::support::eventually;
use super::support::postgres::Postgres;

const RULES: &str = "[[rules]]\nname = \"all\"\nper = [\"user\"]\nlimit = 1000\nwindow = \"1h\"\n";

fn daemon(server: &Postgres, database: &str) -> Daemon {
    let url = server.url(database);
    // A generous timeout, so that a busy machine does not decide without knowing who asks.
    let config =
        format!("[postgres]\nurl = {url:?}\ntimeout = \"2s\"\n[identity]\nlookup_timeout = \"500ms\"\n");
    Daemon::with(RULES, &config, &[])
}

fn last_seen(daemon: &Daemon, path: &str, kind: &str) -> Option<String> {
    let answer = daemon.get(path).json();
    assert!(answer[kind].is_object(), "{answer}");
    answer[kind]["last_seen_at"].as_str().map(str::to_owned)
}

fn make_key(daemon: &Daemon, user: &str) -> (String, String) {
    let made = daemon.run(&["keys", "create", "--user", user, "--json"]);
    assert_eq!(made.code, 0, "{made:?}");
    let made: Value = serde_json::from_str(&made.out).unwrap();
    (made["key"]["id"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned())
}

#[test]
fn users_and_keys_tell_when_they_were_last_seen() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let mut first = daemon(&server, &database);
    for user in ["ann", "bob", "quiet"] {
        assert_eq!(first.run(&["users", "set", user]).code, 0);
    }
    let (id, secret) = make_key(&first, "bob");
    let (idle, _) = make_key(&first, "bob");
    assert_eq!(last_seen(&first, "/v1/users/ann", "user"), None);

    // A question of an operator is no request.
    first.post("/v1/explain", &serde_json::json!({ "attributes": { "user": "ann" } }));
    assert_eq!(last_seen(&first, "/v1/users/ann", "user"), None);
    for _ in 0..50 {
        first.check(&[("user", "ann")]);
    }
    first.check(&[("api_key", &secret)]);
    // A wrong secret is not that key.
    first.check(&[("api_key", &format!("{idle}_{}", "x".repeat(32)))]);
    let told = eventually("the daemon that saw her says so", || last_seen(&first, "/v1/users/ann", "user"));
    assert!(last_seen(&first, &format!("/v1/keys/{id}"), "key").is_some());
    assert!(last_seen(&first, "/v1/users/bob", "user").is_some(), "the key's user");
    assert_eq!(last_seen(&first, &format!("/v1/keys/{idle}"), "key"), None);
    assert_eq!(last_seen(&first, "/v1/users/quiet", "user"), None);

    // Another daemon knows it of the database, and so does the next process.
    let second = daemon(&server, &database);
    let elsewhere = eventually("it is written down", || last_seen(&second, "/v1/users/ann", "user"));
    assert_eq!(told[..19], elsewhere[..19], "as the first has told it");
    assert!(last_seen(&second, &format!("/v1/keys/{id}"), "key").is_some());
    let rows =
        "SELECT (SELECT string_agg(id, ' ' ORDER BY id) FROM user_seen), (SELECT count(*) FROM key_seen)";
    assert_eq!(server.sql(&database, rows), "ann bob|1", "one row of each who was seen");
    first.check(&[("user", "quiet")]);
    assert!(first.terminate().success());
    assert!(
        last_seen(&second, "/v1/users/quiet", "user").is_some(),
        "a daemon that stops writes down what it has"
    );

    let shown = second.run(&["users", "list"]);
    let line =
        |user: &str| shown.out.lines().find(|line| line.trim_start().starts_with(user)).unwrap().to_owned();
    assert!(shown.out.contains("last seen") && line("ann").contains(&told[..10]), "{shown:?}");
    let shown = second.run(&["keys", "show", &id]);
    assert!(shown.out.contains("last seen") && shown.out.contains(&told[..10]), "{shown:?}");
    let shown = second.run(&["keys", "list", "--user", "bob"]);
    assert!(shown.out.contains("last seen"), "{shown:?}");

    // What is recorded of changes is the user, not who was there when.
    assert_eq!(second.run(&["users", "set", "ann", "--limit", "all=5"]).code, 0);
    let changes = second.get("/v1/changes?target=ann").json();
    assert!(!changes.to_string().contains("last_seen_at"), "{changes}");
    // A user who is removed and made again was not seen.
    assert_eq!(second.run(&["users", "remove", "ann"]).code, 0);
    assert_eq!(second.run(&["users", "set", "ann"]).code, 0);
    assert_eq!(last_seen(&second, "/v1/users/ann", "user"), None);
}

#[test]
fn while_the_database_is_away_sightings_wait() {
    let mut server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let daemon = daemon(&server, &database);
    assert_eq!(daemon.run(&["users", "set", "ann"]).code, 0);
    // A question makes her known, and is no request.
    eventually("she is known", || {
        daemon.post("/v1/explain", &serde_json::json!({ "attributes": { "user": "ann" } }));
        (daemon.metric("tidegate_identity_cache_entries")? >= 1.0).then_some(())
    });
    server.stop();
    daemon.check(&[("user", "ann")]);
    // Longer than the daemon takes until it tries.
    std::thread::sleep(std::time::Duration::from_secs(6));
    server.run();
    let seen = || server.sql(&database, "SELECT string_agg(id, ' ') FROM user_seen");
    eventually("it is written down when the database is back", || (seen() == "ann").then_some(()));
}

#[test]
fn without_a_database_the_daemon_tells_what_it_has_seen() {
    let rules = format!("{RULES}[[users]]\nid = \"ann\"\n[[users]]\nid = \"quiet\"\n");
    let daemon = Daemon::with_rules(&rules);
    daemon.check(&[("user", "ann")]);
    assert!(last_seen(&daemon, "/v1/users/ann", "user").is_some());
    assert_eq!(last_seen(&daemon, "/v1/users/quiet", "user"), None);
    let shown = daemon.run(&["users", "list"]);
    assert!(
        shown.out.lines().any(|line| line.trim().starts_with("quiet") && line.trim().ends_with('-')),
        "{shown:?}"
    );
}
