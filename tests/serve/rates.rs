//! Requests by time, as `GET /v1/rates` tells them.

use serde_json::Value;

use super::support::daemon::Daemon;
use super::support::eventually;

const RULES: &str = r#"
[[rules]]
name = "search"
match = { path = "/search*" }
per = ["user"]
algorithm = "fixed_window"
limit = 10
window = "24h"

[[rules]]
name = "by-path"
match = { path = "/search*" }
per = ["path"]
algorithm = "fixed_window"
limit = 1000
window = "24h"

[[rules]]
name = "watched"
match = { path = "/watched" }
per = ["user"]
algorithm = "fixed_window"
limit = 1
window = "24h"
action = "log_only"

[[rules]]
name = "no-robots"
match = { user = "robot" }
action = "block"
"#;

const SUMS: [&str; 4] = ["requests", "denied", "degraded", "cost"];

fn list<'v>(answer: &'v Value, name: &str) -> &'v [Value] {
    answer[name].as_array().unwrap_or_else(|| panic!("no {name} in {answer}"))
}

/// The sums of all steps.
fn whole(answer: &Value) -> [u64; 4] {
    SUMS.map(|name| list(answer, name).iter().filter_map(Value::as_u64).sum())
}

/// Asks until the steps of the span have these sums.
fn told(daemon: &Daemon, span: &str, expected: [u64; 4]) -> Value {
    eventually(&format!("the {span} has {SUMS:?} {expected:?}"), || {
        let answer = daemon.get(&format!("/v1/rates?span={span}")).json();
        (whole(&answer) == expected).then_some(answer)
    })
}

#[test]
fn every_request_counts_once_with_what_it_was_charged() {
    let daemon = Daemon::with_rules(RULES);
    let ask = |user: &str, path: &str, times: usize| {
        for _ in 0..times {
            daemon.check(&[("user", user), ("path", path)]);
        }
    };
    // Two rules decide each; the last two are denied by one of them, and charged by none.
    ask("ann", "/search", 12);
    daemon.check_cost(&[("user", "bob"), ("path", "/search")], 5);
    ask("robot", "/", 4);
    // No rule matches these.
    ask("cleo", "/other", 2);
    // Who only looks asks for nothing.
    daemon.check_cost(&[("user", "dora"), ("path", "/search")], 0);
    daemon.get("/v1/why?user=ann&path=/search");
    let hour = told(&daemon, "hour", [19, 6, 0, 15]);
    assert_eq!((&hour["span"], &hour["step_ms"]), (&Value::from("hour"), &Value::from(10_000)), "{hour}");
    assert_eq!(daemon.get("/v1/rates").json()["span"], "hour");

    // What a rule only logs is not denied; who is blocked is, whatever the rules say.
    assert_eq!(daemon.run(&["users", "block", "mallory"]).code, 0);
    ask("mallory", "/search", 2);
    ask("eve", "/watched", 3);
    let denied = eventually("the others are counted, too", || {
        let [requests, denied, ..] = whole(&daemon.get("/v1/rates").json());
        (requests == 24).then_some(denied)
    });
    assert_eq!(denied, 8);
}

#[test]
fn a_step_that_the_daemon_did_not_see_is_null_and_one_without_requests_is_0() {
    let daemon = Daemon::with_rules(RULES);
    for (span, steps, step_ms) in [("hour", 360, 10_000), ("day", 1_440, 60_000)] {
        let answer = eventually(&format!("the present is seen in the {span}"), || {
            let answer = daemon.get(&format!("/v1/rates?span={span}")).json();
            answer["seen_ms"].as_array()?.last()?.as_u64().filter(|seen| *seen > 0)?;
            Some(answer)
        });
        assert_eq!(answer["step_ms"], step_ms, "{answer}");
        let seen: Vec<u64> = list(&answer, "seen_ms").iter().map(|seen| seen.as_u64().unwrap()).collect();
        assert_eq!((seen.len(), seen[0]), (steps, 0), "it runs for less than an hour: {answer}");
        assert!(seen.iter().all(|seen| *seen <= step_ms), "{answer}");
        for name in SUMS {
            let sums = list(&answer, name);
            assert_eq!(sums.len(), steps);
            for (sum, seen) in sums.iter().zip(&seen) {
                let expected = if *seen > 0 { Value::from(0) } else { Value::Null };
                assert_eq!(*sum, expected, "{name} of {answer}");
            }
        }
        assert!(answer["from"].as_str().is_some_and(|from| from.ends_with('Z')), "{answer}");
    }
}

#[test]
fn wrong_questions_are_refused_by_name() {
    let daemon = Daemon::with_rules(RULES);
    for (route, field) in [("/v1/rates?span=week", "span"), ("/v1/rates?by=rule", "by")] {
        let refused = daemon.get(route);
        assert_eq!(refused.status, 400, "{route}: {refused:?}");
        assert_eq!(refused.json()["error"]["field"], field, "{route}");
    }
}
