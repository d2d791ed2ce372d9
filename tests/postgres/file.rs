//! The same commands on a rules file: rewritten in one step, with its comments kept.

use serde_json::{Value, json};

use super::rules::{limit, rule, send};
use super::support::daemon::Daemon;
use super::support::{eventually, http};

const RULES: &str = "# House rules.\n\n[[rules]]\nname = \"a\"   # the first\nlimit = 1    # low\nwindow = \"24h\"\n\n[[tiers]]\nname = \"pro\"\n";

#[test]
fn a_file_is_changed_with_its_comments_kept_and_its_history_told() {
    let daemon = Daemon::with_rules(RULES);
    let text = || std::fs::read_to_string(daemon.folder().join("rules.toml")).unwrap();
    let put = send(&daemon, "PUT", "/v1/rules/b", &[("if-match", "\"1\"")], &rule("b", 5));
    assert_eq!((put.status, &put.json()["revision"]), (200, &json!(2)), "{put:?}");
    assert_eq!(limit(&daemon, "b"), Some(5));
    assert!(text().contains("name = \"a\"   # the first") && text().contains("name = \"b\""), "{}", text());
    let stale = send(&daemon, "PUT", "/v1/rules/b", &[("if-match", "\"1\"")], &rule("b", 6));
    assert_eq!(stale.status, 412, "{stale:?}");

    // Somebody edits the file: that counts too.
    daemon.reload(&text().replace("limit = 1 ", "limit = 3 "), "a", 3);
    let history = |n: usize| daemon.get("/v1/rules/history").json()["history"][n].clone();
    eventually("the edit is in the history", || (history(0)["action"] == "file").then_some(()));
    assert_eq!((&history(0)["revision"], &history(1)["action"]), (&json!(3), &json!("put")));
    assert_eq!(history(0)["changes"][0]["after"]["limit"], 3);

    assert_eq!(daemon.run(&["rules", "delete", "b"]).code, 0);
    let back = daemon.run(&["rules", "rollback", "1"]);
    assert!(back.code == 0 && !back.out.contains("same change"), "no other daemon is known: {back:?}");
    assert_eq!(text(), RULES);
    assert_eq!(history(0)["reason"], "back to revision 1");
    assert_eq!(limit(&daemon, "a"), Some(1));

    let wrong = send(&daemon, "PUT", "/v1/rules/b", &[], &json!({ "limit": 1 }));
    assert!(wrong.status == 400 && wrong.body.contains("window is missing"), "{wrong:?}");
    daemon.set_rules("[[rules]]\nname = 1");
    let broken = send(&daemon, "PUT", "/v1/rules/b", &[], &rule("b", 5));
    assert!(broken.status == 409 && broken.body.contains("put it right first"), "{broken:?}");
    assert_eq!(limit(&daemon, "a"), Some(1));
}

/// RFC 9110, 13.1.1 and 13.1.2: lists, strong comparison for changes, and `*`.
#[test]
fn a_change_is_made_for_one_of_a_list_of_revisions_and_for_no_weak_one() {
    let daemon = Daemon::with_rules(RULES);
    let put = |name: &str, value: &str, limit: u32| {
        let put = send(&daemon, "PUT", "/v1/rules/b", &[(name, value)], &rule("b", limit));
        assert!([200, 400].contains(&put.status) || put.body.contains("revision_mismatch"), "{put:?}");
        (put.status, self::limit(&daemon, "b"))
    };
    assert_eq!(put("if-match", "*", 5), (412, None), "there is none to change");
    assert_eq!(put("if-none-match", "*", 5), (200, Some(5)));
    assert_eq!(put("if-none-match", "*", 6), (412, Some(5)));
    // The rules are at revision 2.
    assert_eq!(put("if-match", "\"0\", \"2\"", 6), (200, Some(6)));
    assert_eq!(put("if-match", "\"0\", \"2\"", 7), (412, Some(6)));
    assert_eq!(put("if-match", "W/\"3\"", 7), (412, Some(6)));
    assert_eq!(put("if-match", "W/\"3\", \"3\"", 7), (200, Some(7)));
    assert_eq!(put("if-match", "*", 8), (200, Some(8)));
    assert_eq!(put("if-match", "\"x\"", 9), (400, Some(8)));
    // Revision 5: whoever reads may compare weakly.
    for path in ["/v1/rules", "/v1/rules/b"] {
        for (tags, status) in [("\"5\"", 304), ("\"1\", W/\"5\"", 304), ("*", 304), ("\"1\"", 200)] {
            let read = http::get(daemon.http, path, &[("if-none-match", tags)]);
            assert_eq!((read.status, read.header("etag")), (status, Some("\"5\"")), "{path} {tags}");
            assert_eq!(read.body.is_empty(), status == 304, "{path} {tags}");
        }
    }
    for (tags, status) in [("\"4\", \"1\"", 412), ("W/\"5\"", 412), ("\"4\", \"5\"", 200)] {
        let delete = send(&daemon, "DELETE", "/v1/rules/b", &[("if-match", tags)], &Value::Null);
        assert_eq!(delete.status, status, "{tags}: {delete:?}");
    }
    assert_eq!(limit(&daemon, "b"), None);
}

#[test]
fn quotas_are_written_into_the_rule() {
    let rules = "[[rules]]\nname = \"w\"\nlimit = 100\nwindow = \"1s\"\n[rules.global]\nmode = \"split\"   # fixed\nshares = { eu = 1, us = 1 }\n";
    let daemon = Daemon::with(rules, "region = \"eu\"\n[peers]\nregions = [\"eu\", \"us\"]\n", &[]);
    let set = daemon.run(&["quota", "set", "w", "eu=3", "us=1"]);
    assert_eq!(set.code, 0, "{set:?}");
    assert!(set.out.contains("the other daemons need the same change"), "{}", set.out);
    let json = daemon.run(&["quota", "set", "w", "eu=3", "us=1", "--json"]);
    assert!(json.code == 0 && !json.out.contains("need the same change"), "{json:?}");
    assert_eq!(daemon.get("/v1/quotas/w").json()["permits"], json!({ "eu": 75, "us": 25 }));
    let text = std::fs::read_to_string(daemon.folder().join("rules.toml")).unwrap();
    assert!(text.contains("# fixed") && text.contains("eu = 3"), "{text}");
    let told = daemon.run(&["rules", "history"]).out;
    assert!(told.contains("global.shares.eu: 1 → 3"), "{told}");
    let back = daemon.run(&["rules", "rollback", "1", "--reason", "too much"]);
    assert!(back.out.contains("the other daemons need the same change"), "{back:?}");
    let told = daemon.run(&["rules", "history"]).out;
    assert!(told.contains("too much (back to revision 1)"), "{told}");
    let unknown = daemon.run(&["quota", "set", "w", "ap=3"]);
    assert!(unknown.code == 1 && unknown.err.contains("peers.regions"), "{unknown:?}");
}

#[test]
fn a_daemon_without_a_file_says_where_rules_could_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    drop(folder);
    let daemon = Daemon::with_rules("");
    // The file is there and empty: it gets its first rule.
    assert_eq!(send(&daemon, "PUT", "/v1/rules/r", &[], &rule("r", 1)).status, 200);
    assert_eq!(limit(&daemon, "r"), Some(1));
}
