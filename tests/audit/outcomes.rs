//! What was delayed and what was blocked are told apart from what passed at once and what a limit denied.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::{config, wait_for_rows};
use super::records::Server;
use super::support::daemon::Daemon;
use super::support::eventually;

/// `slow` never denies here and delays all but the first; `closed` blocks; `mallory` may not ask at all.
const RULES: &str = r#"
[[rules]]
name = "slow"
match = { path = "/slow" }
per = ["api_key"]
algorithm = "gcra"
limit = 1
burst = 1
window = "1s"
action = "throttle"
max_delay = "60s"
group = "slow"
priority = 1
[[rules]]
name = "roomy"
match = { path = "/slow" }
per = ["user"]
limit = 3
window = "1h"
group = "roomy"
[[rules]]
name = "search"
match = { path = "/search" }
per = ["user"]
algorithm = "fixed_window"
limit = 1
window = "1h"
[[rules]]
name = "closed"
match = { path = "/closed" }
action = "block"
[[users]]
id = "mallory"
blocked = true
"#;

fn start(server: &Server, folder: &TempDir) -> Daemon {
    Daemon::with(RULES, &config(server, folder.path(), "allowed_sample = 1"), &[])
}

/// The rules of the decisions with these outcomes, newest first.
fn rules_of(daemon: &Daemon, outcomes: &str) -> Vec<String> {
    let page = daemon.get(&format!("/v1/audit?outcome={outcomes}")).json();
    let decisions = page["decisions"].as_array().unwrap();
    let wanted: Vec<&str> = outcomes.split(',').collect();
    assert!(decisions.iter().all(|one| wanted.contains(&one["outcome"].as_str().unwrap())), "{page}");
    decisions.iter().map(|one| one["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_was_delayed_and_what_was_blocked_is_found_as_such() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, &folder);
    for _ in 0..3 {
        let slow = daemon.check(&[("user", "ann"), ("path", "/slow"), ("api_key", "sk_1")]);
        assert_eq!(slow["allowed"], true, "{slow}");
    }
    for _ in 0..2 {
        daemon.check(&[("user", "ann"), ("path", "/search")]);
    }
    assert_eq!(daemon.check(&[("user", "ann"), ("path", "/closed")])["cause"], "blocked");
    assert_eq!(daemon.check(&[("user", "mallory"), ("path", "/search")])["rule"], "user_blocked");
    wait_for_rows(&server, 7);

    // The rule that delays is the one that decided, though another has less left.
    assert_eq!(rules_of(&daemon, "throttled"), ["slow", "slow"]);
    assert_eq!(rules_of(&daemon, "denied"), ["search"]);
    assert_eq!(rules_of(&daemon, "blocked"), ["user_blocked", "closed"]);
    assert_eq!(rules_of(&daemon, "denied,blocked"), ["user_blocked", "closed", "search"]);
    assert_eq!(rules_of(&daemon, "allowed").len(), 2);
    let why = daemon.get("/v1/why?user=mallory").json();
    assert!(why.to_string().contains("user_blocked"), "a block is still told by why: {why}");

    let shown = daemon.run(&["audit", "--outcome", "throttled"]);
    assert!(shown.code == 0 && shown.out.contains("slow") && !shown.out.contains("search"), "{shown:?}");
    let shown = daemon.run(&["audit", "--outcome", "denied,blocked"]);
    assert!(shown.code == 0 && shown.out.contains("closed") && shown.out.contains("search"), "{shown:?}");
    let refused = daemon.get("/v1/audit?outcome=denied,perhaps");
    assert_eq!((refused.status, &refused.json()["error"]["field"]), (400, &json!("outcome")));

    eventually("everything is in the sums", || {
        let all = "SELECT coalesce(sum(denied + allowed), 0) FROM usage_total WHERE step = 'day'";
        (server.number(all) == 7).then_some(())
    });
    let counts = |query: &str| {
        let usage: Value = daemon.get(&format!("/v1/usage?{query}")).json();
        ["allowed", "throttled", "denied", "blocked"].map(|count| usage["rows"][0][count].as_u64().unwrap())
    };
    // Delayed requests are among those that passed, blocked ones among those that were denied.
    assert_eq!(counts("by=day"), [4, 2, 3, 2], "of all");
    assert_eq!(counts("by=minute&user=ann"), [4, 2, 2, 1], "of a user");
    assert_eq!(counts("by=hour&rule=slow"), [2, 2, 0, 0], "of a rule");
    assert_eq!(counts("by=day&group=key"), [3, 2, 0, 0], "of a key");
    assert_eq!(counts("by=day&group=path&path=/closed"), [0, 0, 1, 1], "of a path");
    for by in ["hour", "day", "month"] {
        assert_eq!(counts(&format!("by={by}&rule=closed&group=user&from=0d")), [0, 0, 1, 1], "{by}");
        assert_eq!(counts(&format!("by={by}&rule=search&group=user&from=0d")), [1, 0, 1, 0], "{by}");
    }
    let shown = daemon.run(&["usage", "--by", "day"]);
    assert!(shown.code == 0 && shown.out.contains("throttled") && shown.out.contains("blocked"), "{shown:?}");
    let shown = daemon.run(&["usage", "--rule", "search"]);
    assert!(shown.code == 0 && !shown.out.contains("blocked"), "nothing was blocked: {shown:?}");
}

#[test]
fn what_was_told_to_use_something_else_passed_and_was_charged_nothing() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let rules = "[[rules]]\nname = \"large\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 5\nwindow = \"1h\"\n\
                 on_deny = { use = \"small\" }\n";
    let daemon = Daemon::with(rules, &config(&server, folder.path(), "allowed_sample = 1"), &[]);
    for _ in 0..3 {
        let decision = daemon.check_cost(&[("user", "ann")], 4);
        assert_eq!(decision["allowed"], true, "{decision}");
    }
    wait_for_rows(&server, 3);
    assert_eq!(rules_of(&daemon, "diverted"), ["large", "large"]);
    assert_eq!(rules_of(&daemon, "denied"), [""; 0]);
    let shown = daemon.run(&["audit", "--outcome", "diverted"]);
    assert!(shown.code == 0 && shown.out.contains("diverted"), "{shown:?}");
    eventually("everything is in the sums", || {
        let all = "SELECT coalesce(sum(allowed), 0) FROM usage_total WHERE step = 'day'";
        (server.number(all) == 3).then_some(())
    });
    let usage: Value = daemon.get("/v1/usage?by=day&user=ann").json();
    let row = ["allowed", "denied", "cost"].map(|sum| usage["rows"][0][sum].as_i64().unwrap());
    assert_eq!(row, [3, 0, 4], "{usage}");
}

#[test]
fn sums_that_are_made_of_rows_tell_them_apart_as_well() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let mut daemon = start(&server, &folder);
    for _ in 0..2 {
        daemon.check(&[("user", "ann"), ("path", "/slow"), ("api_key", "sk_1")]);
    }
    daemon.check(&[("user", "ann"), ("path", "/closed")]);
    wait_for_rows(&server, 3);
    daemon.kill();
    // As if the daemon had died before it added them up.
    server.sql("TRUNCATE usage_minute, usage_hour, usage_day, usage_total, usage_key");
    server.sql("UPDATE audit_batches SET summed = false");
    daemon.start_again();
    let sums =
        "SELECT sum(allowed), sum(throttled), sum(denied), sum(blocked) FROM usage_day WHERE user_id = 'ann'";
    eventually("the rows are added up", || (server.sql(sums) == "2|1|1|1").then_some(()));
}
