//! Rules that live in PostgreSQL: changed by SQL, by the API and by the command line, while daemons decide by
//! them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::command::TIDEGATE;
use super::support::daemon::Daemon;
use super::support::http::{self, Reply};
use super::support::postgres::Postgres;
use super::support::{eventually, free_udp};

/// A server with a database, and how to write to it.
pub(super) struct Place {
    pub(super) server: Postgres,
    pub(super) database: String,
}

impl Place {
    pub(super) fn new() -> Self {
        let server = Postgres::start();
        let database = server.migrated(TIDEGATE);
        Self { server, database }
    }

    pub(super) fn sql(&self, text: &str) -> String {
        self.server.sql(&self.database, text)
    }

    pub(super) fn config(&self) -> String {
        format!(
            "[rules]\nsource = \"postgres\"\n[postgres]\nurl = {:?}\ntimeout = \"2s\"\n",
            self.server.url(&self.database)
        )
    }

    pub(super) fn daemon(&self) -> Daemon {
        Daemon::with("", &self.config(), &[])
    }
}

pub(super) fn rule(name: &str, limit: u32) -> Value {
    json!({ "name": name, "per": ["user"], "algorithm": "fixed_window", "limit": limit, "window": "24h" })
}

pub(super) fn insert(rule: &Value) -> String {
    format!("INSERT INTO rules (document) VALUES ('{rule}')")
}

pub(super) fn send(
    daemon: &Daemon,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    http::request(daemon.http, method, path, headers, body.as_bytes())
}

pub(super) fn limit(daemon: &Daemon, name: &str) -> Option<u64> {
    daemon.get(&format!("/v1/rules/{name}")).json()["rule"]["limit"].as_u64()
}

pub(super) fn wait_for(daemon: &Daemon, name: &str, wanted: Option<u64>) {
    eventually(&format!("rule {name} has limit {wanted:?}"), || {
        (limit(daemon, name) == wanted).then_some(())
    });
}

#[test]
fn plain_sql_takes_force_at_once_and_is_decided_by() {
    let place = Place::new();
    place.sql(&insert(&rule("first", 3)));
    let daemon = place.daemon();
    assert_eq!(daemon.admitted(&[("user", "u")], 5), 3);
    let mut slowest = Duration::ZERO;
    for wanted in 10..20 {
        place.sql(&format!(
            "UPDATE rules SET document = document || '{{\"limit\": {wanted}}}' WHERE name = 'first'"
        ));
        let begin = Instant::now();
        while limit(&daemon, "first") != Some(wanted) {
            assert!(begin.elapsed() < Duration::from_secs(10));
        }
        slowest = slowest.max(begin.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert_eq!(daemon.admitted(&[("user", "u")], 20), 16);
    place.sql("DELETE FROM rules");
    wait_for(&daemon, "first", None);
    assert_eq!(daemon.metric("tidegate_rules_revision"), Some(12.0));
}

#[test]
fn changes_through_one_daemon_reach_the_other_with_their_history() {
    let place = Place::new();
    let (one, other) = (place.daemon(), place.daemon());
    let put = send(&one, "PUT", "/v1/rules/search", &[], &rule("search", 5));
    assert_eq!((put.status, &put.json()["revision"]), (200, &json!(1)), "{put:?}");
    // Whoever asked may count on it at once.
    assert_eq!(limit(&one, "search"), Some(5));
    wait_for(&other, "search", Some(5));

    let tag = other.get("/v1/rules/search").header("etag").unwrap().to_owned();
    assert_eq!(tag, "\"1\"");
    let put = send(&other, "PUT", "/v1/rules/search?reason=more", &[("if-match", &tag)], &rule("search", 6));
    assert_eq!(put.json()["changes"][0]["before"]["limit"], 5, "{put:?}");
    let stale = send(&one, "PUT", "/v1/rules/search", &[("if-match", &tag)], &rule("search", 7));
    assert_eq!(
        (stale.status, &stale.json()["error"]["code"]),
        (412, &json!("revision_mismatch")),
        "{stale:?}"
    );
    assert!(stale.body.contains("revision 2"), "{stale:?}");

    // Who edits a rule is shown what was written, and no defaults beside it.
    let written = one.get("/v1/rules/search?written=true");
    assert_eq!(written.json(), json!({ "revision": 2, "rule": rule("search", 6) }), "{written:?}");
    assert_eq!(one.get("/v1/rules/nothing?written=true").status, 404);

    // What means the same is no change.
    let same = one.get("/v1/rules").json();
    let same = send(&one, "PUT", "/v1/rules", &[], &same);
    assert_eq!((&same.json()["revision"], &same.json()["changes"]), (&json!(2), &json!([])), "{same:?}");

    let wrong =
        send(&one, "PUT", "/v1/rules/search", &[], &json!({ "limit": -1, "window": "1s", "colour": "red" }));
    assert_eq!((wrong.status, &wrong.json()["error"]["field"]), (400, &json!("search.limit")), "{wrong:?}");
    assert!(wrong.body.contains("unknown key"), "{wrong:?}");
    assert_eq!(send(&one, "DELETE", "/v1/rules/nothing", &[], &Value::Null).status, 404);

    let dry = send(&one, "DELETE", "/v1/rules/search?dry_run=true", &[], &Value::Null);
    assert_eq!((dry.status, dry.json()["changes"].as_array().map(Vec::len)), (200, Some(1)));
    assert_eq!(limit(&one, "search"), Some(6));
    assert_eq!(send(&one, "DELETE", "/v1/rules/search", &[], &Value::Null).json()["revision"], 3);
    wait_for(&other, "search", None);
    let back = send(&other, "POST", "/v1/rules/rollback", &[], &json!({ "revision": 1 }));
    assert_eq!((back.status, limit(&other, "search")), (200, Some(5)), "{back:?}");
    assert_eq!(send(&other, "POST", "/v1/rules/rollback", &[], &json!({ "revision": 99 })).status, 404);

    let history = one.get("/v1/rules/history").json()["history"].clone();
    let told: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["revision"].as_u64().unwrap(), entry["action"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [(4, "rollback"), (3, "delete"), (2, "put"), (1, "put")];
    assert_eq!(told, expected.map(|(revision, action)| (revision, action.to_owned())));
    assert_eq!((&history[2]["reason"], &history[2]["actor"]), (&json!("more"), &json!("local")));
    assert_eq!(history[2]["source"], "127.0.0.1");
}

#[test]
fn the_command_line_applies_a_file_in_one_step() {
    let place = Place::new();
    let daemon = place.daemon();
    place.sql(&insert(&rule("old", 1)));
    wait_for(&daemon, "old", Some(1));
    let file = daemon.folder().join("new.toml");
    std::fs::write(&file, "[[rules]]\nname = \"a\"\nlimit = 1\nwindow = \"1s\"\n[[rules]]\nname = \"b\"\nlimit = 2\nwindow = \"1s\"\n").unwrap();
    let diff = daemon.run(&["rules", "diff", "new.toml"]);
    assert!(diff.code == 0 && diff.out.contains("+a") && !diff.out.contains("-old"), "{diff:?}");
    assert!(daemon.run(&["rules", "diff", "new.toml", "--prune"]).out.contains("-old"));
    let applied = daemon.run(&["rules", "apply", "new.toml", "--prune", "--reason", "tidy"]);
    assert!(applied.code == 0 && applied.out.contains("3 changed. Revision 2"), "{applied:?}");
    assert_eq!((limit(&daemon, "old"), limit(&daemon, "b")), (None, Some(2)));
    assert!(daemon.run(&["rules", "apply", "new.toml"]).out.contains("No difference"));
    let history = daemon.run(&["rules", "history"]);
    assert!(history.out.contains("tidy") && history.out.contains("+a, +b, -old"), "{history:?}");
    assert_eq!(daemon.run(&["rules", "delete", "a"]).code, 0);
    assert_eq!(daemon.run(&["rules", "delete", "a"]).code, 1);
    assert_eq!(daemon.run(&["rules", "rollback", "1"]).code, 0);
    assert_eq!((limit(&daemon, "old"), limit(&daemon, "b")), (Some(1), None));
    let json: Value = serde_json::from_str(&daemon.run(&["rules", "history", "old", "--json"]).out).unwrap();
    assert_eq!(json["history"].as_array().map(Vec::len), Some(3));
    std::fs::write(&file, "[[rules]]\nname = \"a\"\nlimit = -1\n").unwrap();
    assert_eq!(daemon.run(&["rules", "apply", "new.toml"]).code, 2);
}

#[test]
fn a_rule_broken_by_hand_changes_nothing_until_it_is_mended() {
    let place = Place::new();
    place.sql(&insert(&rule("good", 2)));
    let daemon = place.daemon();
    place.sql(&insert(&json!({ "name": "bad", "limit": 1, "window": "1s", "colour": "red" })));
    eventually("the daemon says what is wrong", || {
        let ready = daemon.get("/readyz");
        let rules = ready.json()["rules"].clone();
        assert_eq!(ready.status, 200);
        (rules["refused_revision"] == 2 && rules["problem"].as_str()?.contains("colour")).then_some(())
    });
    assert_eq!(daemon.metric("tidegate_rules_refused"), Some(1.0));
    assert!(daemon.metric("tidegate_rule_reload_failures_total") >= Some(1.0));
    assert!(daemon.log().contains("bad.colour: unknown key"), "{}", daemon.log());
    assert_eq!((limit(&daemon, "good"), limit(&daemon, "bad")), (Some(2), None));
    assert_eq!(daemon.admitted(&[("user", "u")], 5), 2);
    // The same set stops a change through the API as well, with the reason.
    let put = send(&daemon, "PUT", "/v1/rules/more", &[], &rule("more", 1));
    assert!(put.status == 400 && put.body.contains("bad.colour"), "{put:?}");
    place.sql("UPDATE rules SET document = document - 'colour' WHERE name = 'bad'");
    wait_for(&daemon, "bad", Some(1));
    eventually("the daemon says that all is well", || {
        let well = daemon.metric("tidegate_rules_refused") == Some(0.0);
        (well && daemon.get("/readyz").json()["rules"].get("problem").is_none()).then_some(())
    });
}

#[test]
fn of_two_operators_at_once_one_is_told_to_look_again() {
    let place = Place::new();
    let daemon = place.daemon();
    send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 1));
    let outcomes: Vec<u16> = std::thread::scope(|scope| {
        let put = |limit| {
            let daemon = &daemon;
            scope.spawn(move || {
                send(daemon, "PUT", "/v1/rules/r", &[("if-match", "\"1\"")], &rule("r", limit)).status
            })
        };
        (10..14).map(put).collect::<Vec<_>>().into_iter().map(|put| put.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|status| **status == 200).count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|status| **status == 412).count(), 3, "{outcomes:?}");
    assert_eq!(place.sql("SELECT revision FROM rules_head"), "2");
}

#[test]
fn without_rules_a_daemon_with_a_database_is_sent_to_rules_apply() {
    let place = Place::new();
    let daemon = place.daemon();
    let listed = daemon.run(&["rules", "list"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    assert!(listed.out.contains("No rules are in force: everything passes."), "{}", listed.out);
    assert!(listed.out.contains("`tidegate rules apply rules.toml`"), "{}", listed.out);
    assert!(!listed.out.contains("rules file"), "{}", listed.out);
}

#[test]
fn quotas_in_the_database_replace_the_shares_of_a_rule() {
    let place = Place::new();
    let mut world = rule("world", 100);
    world["global"] = json!({ "mode": "split" });
    place.sql(&insert(&world));
    let config = format!("region = \"eu\"\n{}[peers]\nregions = [\"eu\", \"us\"]\n", place.config());
    let daemon = Daemon::with("", &config, &["--peer", &free_udp().to_string()]);
    assert_eq!(daemon.get("/v1/quotas/world").json()["permits"], json!({ "eu": 50, "us": 50 }));
    let set = daemon.run(&["quota", "set", "world", "eu=1", "us=9", "--min", "eu=20"]);
    assert_eq!(set.code, 0, "{set:?}");
    assert!(!set.out.contains("need the same change"), "every daemon reads them here: {}", set.out);
    let quotas = daemon.get("/v1/quotas/world").json();
    assert_eq!(
        (&quotas["shares"], &quotas["minimums"]),
        (&json!({ "eu": 1, "us": 9 }), &json!({ "eu": 20 }))
    );
    assert_eq!(quotas["permits"], json!({ "eu": 20, "us": 80 }));
    assert_eq!(place.sql("SELECT count(*) FROM region_quotas"), "2");
    let shown = daemon.run(&["quota", "show", "world"]);
    assert!(shown.out.contains("split") && shown.out.contains("80"), "{shown:?}");
    let unknown = daemon.run(&["quota", "set", "world", "ue=1"]);
    assert!(
        unknown.code == 1 && unknown.err.contains("did you mean") || unknown.err.contains("peers.regions"),
        "{unknown:?}"
    );
    assert_eq!(daemon.run(&["quota", "set", "nothing", "eu=1"]).code, 1);
    assert_eq!(daemon.run(&["quota", "set", "world", "eu"]).code, 2);
    let too_much = send(
        &daemon,
        "PUT",
        "/v1/quotas/world",
        &[],
        &json!({ "shares": { "eu": 1, "us": 1 }, "minimums": { "eu": 60, "us": 60 } }),
    );
    assert_eq!(too_much.status, 400, "{too_much:?}");
    // A rollback brings quotas back too.
    assert_eq!(daemon.run(&["rules", "rollback", "1"]).code, 0);
    assert_eq!(daemon.get("/v1/quotas/world").json()["permits"], json!({ "eu": 50, "us": 50 }));
}

#[test]
fn regions_that_a_file_names_are_checked_against_those_of_the_daemon() {
    let place = Place::new();
    let config = format!("region = \"eu\"\n{}[peers]\nregions = [\"eu\", \"us\"]\n", place.config());
    let daemon = Daemon::with("", &config, &["--peer", &free_udp().to_string()]);
    let rules = "[[rules]]\nname = \"w\"\nlimit = 10\nwindow = \"1m\"\n[rules.global]\nmode = \"split\"\nshares = { eu = 1, usa = 1 }\n";
    std::fs::write(daemon.folder().join("w.toml"), rules).unwrap();
    // By itself a file may name any region.
    let alone = super::support::command::run(daemon.folder(), &["rules", "validate", "w.toml"]);
    assert_eq!(alone.code, 0, "{alone:?}");
    for command in ["validate", "diff", "apply"] {
        let refused = daemon.run(&["rules", command, "w.toml"]);
        assert!(
            refused.code == 2 && refused.err.contains("w.toml:7:") && refused.err.contains("\"usa\""),
            "{command}: {refused:?}"
        );
    }
    assert_eq!(daemon.get("/v1/regions").json()["configured"], json!(["eu", "us"]));
    std::fs::write(daemon.folder().join("w.toml"), rules.replace("usa", "us")).unwrap();
    assert_eq!(daemon.run(&["rules", "validate", "w.toml"]).code, 0);
    assert_eq!(daemon.run(&["rules", "apply", "w.toml"]).code, 0);
}

#[test]
fn a_change_is_seen_where_the_history_does_not_tell_of_it() {
    let place = Place::new();
    place.sql(&insert(&rule("a", 1)));
    place.sql(&insert(&rule("b", 1)));
    let daemon = place.daemon();
    // As after a clean-up: what the daemon knows is not in the history any more.
    place.sql("DELETE FROM rule_revisions");
    place.sql("UPDATE rules SET document = document || '{\"limit\": 2}' WHERE name = 'a'");
    wait_for(&daemon, "a", Some(2));
    // The next change is told by the history again; renamed, removed and added at once.
    place.sql("BEGIN; UPDATE rules SET document = document || '{\"name\": \"c\"}' WHERE name = 'a'; DELETE FROM rules WHERE name = 'b'; INSERT INTO rules (document) VALUES ('{\"name\": \"d\", \"limit\": 4, \"window\": \"1s\"}'); COMMIT");
    wait_for(&daemon, "d", Some(4));
    assert_eq!(["a", "b", "c"].map(|name| limit(&daemon, name)), [None, None, Some(2)]);
    // The same number in another history: the database was replaced by one that went another way.
    place.sql("UPDATE rule_revisions SET at = at - interval '1 day'");
    place.sql("ALTER TABLE rules DISABLE TRIGGER USER; UPDATE rules SET document = document || '{\"limit\": 9}' WHERE name = 'c'; ALTER TABLE rules ENABLE TRIGGER USER");
    place.sql("UPDATE rules SET document = document || '{\"limit\": 5}' WHERE name = 'd'");
    wait_for(&daemon, "d", Some(5));
    assert_eq!(limit(&daemon, "c"), Some(9));
    // What a daemon holds after changes is what a new one reads.
    let held = |daemon: &Daemon| daemon.get("/v1/rules").json()["rules"].clone();
    assert_eq!(held(&daemon), held(&place.daemon()));
}
