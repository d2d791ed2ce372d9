//! Penalties from outside: a client that is denied too often is shut out, is told the truth about it, and is
//! let in again by an operator or by time.

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::eventually;
use super::support::penalties::{deny, metric, penalty, rules};

#[test]
fn a_client_that_is_denied_too_often_is_shut_out_until_its_bucket_is_reset() {
    let daemon = Daemon::with_rules(&rules("1h", "[1, 2]"));
    let who = [("user", "ann")];
    assert_eq!(metric(&daemon, "penalties_total"), 0.0, "there from the start");
    // More than the limit never passes, and nothing is used of it.
    let first = deny(&daemon, "ann");
    assert!(penalty(&first).is_null(), "{first}");
    let second = deny(&daemon, "ann");
    assert_eq!(
        (&penalty(&second)["multiplier"], &penalty(&second)["begun"]),
        (&json!(1), &json!(true)),
        "{second}"
    );
    assert_eq!(second["retry_after_ms"], Value::Null, "the cost is beyond the limit, whatever the time");

    let shut = daemon.check(&who);
    assert_eq!((&shut["allowed"], &shut["remaining"]), (&json!(false), &json!(0)), "{shut}");
    let ends = penalty(&shut)["ends_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&ends), "{shut}");
    assert_eq!(shut["retry_after_ms"], json!(ends), "when it may pass is when the penalty ends: {shut}");
    assert!(penalty(&shut)["begun"].is_null(), "{shut}");
    eventually("the penalty is counted", || (metric(&daemon, "penalties_total") == 1.0).then_some(()));
    assert_eq!(daemon.check(&[("user", "bob")])["allowed"], true, "others are not shut out");

    let explained = daemon.post("/v1/explain", &json!({ "attributes": { "user": "ann" } })).json();
    assert_eq!(penalty(&explained["decision"])["multiplier"], 1, "{explained}");
    let why = daemon.get("/v1/why?user=ann").json();
    assert_eq!(why["buckets"][0]["penalty"]["multiplier"], 1, "{why}");
    let bucket = daemon.get("/v1/buckets?rule=polite&user=ann").json();
    assert_eq!((&bucket["penalty"]["multiplier"], &bucket["remaining"]), (&json!(1), &json!(0)), "{bucket}");
    let told = daemon.run(&["why", "user=ann"]);
    assert!(told.out.contains("shut out") && told.out.contains("penalty x1"), "{told:?}");

    // Giving back is never refused.
    assert_eq!(daemon.check_cost(&who, -1)["allowed"], true);
    let reset = daemon.run(&["buckets", "reset", "polite", "user=ann"]);
    assert!(reset.out.contains("polite user=ann counts from zero"), "{reset:?}");
    assert_eq!(daemon.check(&who)["allowed"], true);
    let bucket = daemon.get("/v1/buckets?rule=polite&user=ann").json();
    assert!(bucket["penalty"].is_null(), "{bucket}");
}

#[test]
fn time_lets_it_in_again_and_the_next_penalty_is_longer() {
    let daemon = Daemon::with_rules(&rules("1s", "[1, 1000]"));
    let who = [("user", "ann")];
    deny(&daemon, "ann");
    assert_eq!(penalty(&deny(&daemon, "ann"))["multiplier"], 1);
    eventually("the penalty ends", || (daemon.check(&who)["allowed"] == true).then_some(()));
    deny(&daemon, "ann");
    let next = deny(&daemon, "ann");
    assert_eq!(penalty(&next)["multiplier"], 1_000, "{next}");
    let ends = penalty(&daemon.check(&who))["ends_ms"].as_u64().unwrap();
    assert!((900_000..=1_000_000).contains(&ends), "{ends}");
}

#[test]
fn asking_without_charging_and_reports_bring_no_penalty() {
    let daemon = Daemon::with_rules(&rules("1h", "[1]"));
    for _ in 0..5 {
        let body = json!({ "attributes": { "user": "ann" }, "cost": 1_000 });
        assert_eq!(daemon.post("/v1/explain", &body).json()["decision"]["allowed"], false);
        assert_eq!(daemon.post("/v1/report", &body).json()["allowed"], false);
        assert_eq!(daemon.check_cost(&[("user", "ann")], 0)["allowed"], false);
    }
    assert_eq!(metric(&daemon, "penalties_total"), 0.0);
}

#[test]
fn a_wrong_penalty_is_refused_at_its_place() {
    let daemon = Daemon::with_rules(&rules("1h", "[1]"));
    let file = daemon.folder().join("wrong.toml");
    for (lines, expected) in [
        ("threshold = 0", "wrong.toml:8:13: threshold must be from 1 to 1000000, not 0"),
        ("threshold = 1\nmultipliers = []", "wrong.toml:9:15: multipliers must be 1 to 16 whole numbers"),
        ("threshold = 1\ncool_down = \"300d\"", "the longest penalty must be at most 366d"),
        ("threshold = 99999999999999999999", "wrong.toml:8"),
    ] {
        let wrong = rules("1h", "[1, 2]").replace("cool_down = \"1h\"\nmultipliers = [1, 2]\n", "");
        std::fs::write(&file, wrong.replace("threshold = 2", lines)).unwrap();
        let refused = daemon.run(&["rules", "validate", &file.to_string_lossy()]);
        let told = format!("{}{}", refused.out, refused.err);
        assert!(refused.code != 0 && told.contains(expected), "{expected}: {told}");
    }
}

#[test]
fn the_first_request_beyond_the_share_warns_once_in_a_window() {
    let rules = "[[rules]]\nname = \"warned\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 10\n\
                 window = \"365d\"\nwarn_at = 80\n";
    let daemon = Daemon::with_rules(rules);
    let ask = |user| daemon.check(&[("user", user)])["rules"][0]["warning"].clone();
    assert_eq!(metric(&daemon, "warnings_total"), 0.0, "there from the start");
    for user in ["ann", "bob"] {
        let told: Vec<Value> = (0..12).map(|_| ask(user)).collect();
        let expected: Vec<Value> = (1..=12).map(|n| if n == 8 { json!(true) } else { Value::Null }).collect();
        assert_eq!(told, expected, "{user}");
    }
    assert_eq!(metric(&daemon, "warnings_total"), 2.0);
}
