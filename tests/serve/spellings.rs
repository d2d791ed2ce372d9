//! One path, one host, one client, however they are written: at every route that takes attributes.

use serde_json::json;

use super::support::daemon::Daemon;
use super::support::http;
use super::support::rls::{descriptor, request};
use super::support::spellings::{ADMIN_HOST, ODD_HOST, SEARCH};

const RULES: &str = r#"
[[rules]]
name = "search"
match = { path = "/api/search" }
per = ["user"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "by-path"
domain = "paths"
per = ["path"]
algorithm = "fixed_window"
limit = 1000
window = "24h"

[[rules]]
name = "admin"
match = { host = "admin.example.com" }
action = "block"

[[rules]]
name = "café"
match = { path = "/caf%C3%A9*" }
action = "block"
"#;

fn authorize(daemon: &Daemon, headers: &[(&str, &str)]) -> u16 {
    http::get(daemon.http, "/v1/authorize", headers).status
}

#[test]
fn every_spelling_of_a_path_is_held_to_its_limit() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    assert_eq!(daemon.admitted(&[("user", "u"), ("path", "/api/search")], 4), 3);
    for path in SEARCH {
        assert_eq!(daemon.check(&[("user", "u"), ("path", path)])["allowed"], false, "{path}");
        assert_eq!(authorize(&daemon, &[("x-tidegate-user", "u"), ("x-original-uri", path)]), 429, "{path}");
        let asked = request(vec![descriptor(&[("user", "u"), ("path", path)])]);
        assert_eq!(client.ask(asked).unwrap().overall_code, 2, "{path}");
    }
    let explained =
        daemon.post("/v1/explain", &json!({ "attributes": { "user": "u", "path": "//api/search" } }));
    assert_eq!(explained.json()["decision"]["allowed"], false);
    assert_eq!(
        daemon.check(&[("user", "u"), ("path", "/API/search")])["allowed"],
        true,
        "case is the rule's"
    );
    let caf = ["/café", "/caf%c3%a9/menu", "/%63af%C3%A9"];
    assert!(caf.iter().all(|path| daemon.check(&[("path", path)])["allowed"] == false));
}

#[test]
fn every_spelling_of_a_path_has_one_bucket() {
    let daemon = Daemon::with_rules(RULES);
    for (turn, path) in SEARCH.iter().enumerate() {
        let asked = json!({ "domain": "paths", "attributes": { "path": path } });
        let left = daemon.post("/v1/check", &asked).json()["remaining"].as_u64().unwrap();
        assert_eq!(left, 999 - u64::try_from(turn).unwrap(), "{path}");
    }
    let bucket = daemon.get("/v1/buckets?rule=by-path&path=%2F%2Fapi%2Fsearch").json();
    assert_eq!(bucket["used"], SEARCH.len());
}

#[test]
fn every_spelling_of_a_host_meets_its_rule() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    for host in ADMIN_HOST.iter().chain(&["admin.example.com"]) {
        assert_eq!(daemon.check(&[("host", host)])["allowed"], false, "{host}");
        assert_eq!(authorize(&daemon, &[("x-forwarded-host", host)]), 403, "{host}");
        let asked = request(vec![descriptor(&[("host", host)])]);
        assert_eq!(client.ask(asked).unwrap().overall_code, 2, "{host}");
    }
    assert_eq!(authorize(&daemon, &[("x-forwarded-host", "other.example.com")]), 200);
    for host in ODD_HOST {
        let asked = json!({ "attributes": { "host": host } });
        assert_eq!(daemon.post("/v1/check", &asked).status, 400, "{host}");
        assert_eq!(authorize(&daemon, &[("x-forwarded-host", host)]), 400, "{host}");
        let asked = request(vec![descriptor(&[("host", host)])]);
        assert_eq!(client.ask(asked).unwrap().overall_code, 2, "{host}");
    }
    assert_eq!(daemon.check(&[("host", "")])["allowed"], true, "no host is another's");
}

#[test]
fn a_long_host_keeps_nobody_waiting() {
    let daemon = Daemon::with_rules(RULES);
    let long = format!("admin.example.com{}", ".".repeat(50_000));
    let spaced = format!("admin.example.com{}", ". ".repeat(25_000));
    for _ in 0..50 {
        assert_eq!(authorize(&daemon, &[("x-forwarded-host", &long)]), 403);
        assert_eq!(authorize(&daemon, &[("x-forwarded-host", &spaced)]), 400);
    }
}

#[test]
fn without_normalizing_rules_compare_what_came() {
    let daemon = Daemon::with(RULES, "[requests]\nnormalize = false\n", &[]);
    assert_eq!(daemon.admitted(&[("user", "u"), ("path", "/api/search")], 4), 3);
    for path in SEARCH {
        assert_eq!(daemon.check(&[("user", "u"), ("path", path)])["allowed"], true, "{path}");
    }
    assert_eq!(authorize(&daemon, &[("x-forwarded-host", "ADMIN.example.com")]), 200);
}

#[test]
fn one_address_may_be_banned_and_its_group_counts_as_one() {
    let rules = r#"
[[rules]]
name = "ban"
match = { ip = ["2001:db8:1:2::5", "2001:db8:9:9:8000::/65"] }
action = "block"

[[rules]]
name = "staff"
match = { ip = "2001:db8:5:5::" }
action = "allow"

[[rules]]
name = "each"
per = ["ip"]
algorithm = "fixed_window"
limit = 100
window = "24h"
"#;
    let daemon = Daemon::with_rules(rules);
    let client = daemon.rls();
    for banned in ["2001:db8:1:2::5", "2001:0DB8:1:2:0::0005", "2001:db8:9:9:8000::1"] {
        assert_eq!(daemon.check(&[("ip", banned)])["allowed"], false, "{banned}");
        assert_eq!(authorize(&daemon, &[("x-forwarded-for", banned)]), 403, "{banned}");
        let asked = request(vec![descriptor(&[("remote_address", banned)])]);
        assert_eq!(client.ask(asked).unwrap().overall_code, 2, "{banned}");
        let explained = daemon.post("/v1/explain", &json!({ "attributes": { "ip": banned } })).json();
        assert_eq!(explained["decision"]["allowed"], false, "{explained}");
    }
    // The neighbours of one who is banned, or exempt, are neither; all of a network share a bucket.
    let left = |ip| daemon.check(&[("ip", ip)])["remaining"].as_u64().unwrap();
    assert_eq!((left("2001:db8:1:2::6"), left("2001:db8:1:2::7")), (99, 98));
    assert_eq!(authorize(&daemon, &[("x-forwarded-for", "[2001:db8:1:2:ffff::8]:443")]), 200);
    assert_eq!(left("2001:db8:1:2::9"), 96);
    assert_eq!(left("2001:db8:5:5::1"), 99, "only the one address is exempt");
    assert!(daemon.check(&[("ip", "2001:db8:5:5::")])["remaining"].is_null());
    let bucket = daemon.get("/v1/buckets?rule=each&ip=2001:db8:1:2::42").json();
    assert_eq!((&bucket["identity"]["ip"], &bucket["used"]), (&json!("2001:db8:1:2::"), &json!(4)));
}
