//! `on_deny`: over its limit a rule names what to use instead, and the request passes.

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::resp::Connection;
use super::support::{free_tcp, http, rls};

const RULES: &str = r#"
[[rules]]
name = "large"
match = { model = "large" }
per = ["team"]
algorithm = "fixed_window"
limit = 10
window = "24h"
on_deny = { use = "small" }

[[rules]]
name = "all"
per = ["team"]
algorithm = "fixed_window"
limit = 30
window = "24h"
"#;

fn used(daemon: &Daemon, rule: &str, team: &str) -> u64 {
    let bucket = daemon.get(&format!("/v1/buckets?rule={rule}&team={team}")).json();
    bucket["used"].as_u64().unwrap_or_else(|| panic!("{bucket}"))
}

/// The answers of the two rules, in the order of their names.
fn by_rule(decision: &Value) -> [&Value; 2] {
    ["all", "large"].map(|name| {
        let rules = decision["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["rule"] == name).unwrap_or_else(|| panic!("{decision}"))
    })
}

#[test]
fn over_its_limit_a_rule_names_what_to_use_and_is_charged_nothing() {
    let daemon = Daemon::with_rules(RULES);
    let ask = |cost| daemon.check_cost(&[("team", "a"), ("model", "large")], cost);
    let first = ask(8);
    assert_eq!((&first["allowed"], &first["use"]), (&json!(true), &Value::Null), "{first}");

    let second = ask(8);
    let told = [&second["allowed"], &second["use"], &second["rule"], &second["status"]];
    assert_eq!(told, [&json!(true), &json!("small"), &json!("large"), &json!(200)], "{second}");
    assert_eq!((&second["retry_after_ms"], &second["cause"]), (&json!(0), &Value::Null), "{second}");
    let [all, large] = by_rule(&second);
    assert_eq!((&all["allowed"], &all["use"]), (&json!(true), &Value::Null), "{second}");
    let no = [&large["allowed"], &large["use"], &large["cause"], &large["remaining"]];
    assert_eq!(no, [&json!(false), &json!("small"), &json!("used_up"), &json!(2)], "{second}");
    assert_eq!((used(&daemon, "large", "a"), used(&daemon, "all", "a")), (8, 16));

    assert_eq!(ask(2)["use"], Value::Null, "what fits is not diverted");
    let look = ask(0);
    assert_eq!((&look["allowed"], &look["use"]), (&json!(true), &json!("small")), "{look}");
    assert_eq!(ask(12)["use"], "small");
    assert_eq!((used(&daemon, "large", "a"), used(&daemon, "all", "a")), (10, 30));

    // Now the other rule has nothing left, either, and its denial wins.
    let denied = ask(1);
    let told = [&denied["allowed"], &denied["use"], &denied["rule"], &denied["status"]];
    assert_eq!(told, [&json!(false), &Value::Null, &json!("all"), &json!(429)], "{denied}");
    let outcomes = |outcome: &str| {
        daemon.metric(&format!("tidegate_decisions_total{{rule=\"large\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!([outcomes("allowed"), outcomes("diverted"), outcomes("denied")], [2.0, 4.0, 0.0].map(Some));
}

#[test]
fn a_reservation_holds_nothing_of_a_rule_that_named_something_else() {
    let daemon = Daemon::with_rules(RULES);
    let reserve = || {
        let attributes = json!({ "team": "a", "model": "large" });
        daemon.post("/v1/reserve", &json!({ "attributes": attributes, "amount": 8 })).json()
    };
    let commit = |held: &Value| {
        let body = json!({ "reservation": held["reservation"], "actual": 5 });
        daemon.post("/v1/commit", &body).json()["committed"] == true
    };
    let (first, second) = (reserve(), reserve());
    assert_eq!((&first["use"], &second["use"]), (&Value::Null, &json!("small")), "{second}");
    assert_eq!((used(&daemon, "large", "a"), used(&daemon, "all", "a")), (8, 16));
    assert!(commit(&second), "the other rule holds it");
    assert_eq!((used(&daemon, "large", "a"), used(&daemon, "all", "a")), (8, 13));
    assert!(commit(&first));
    assert_eq!((used(&daemon, "large", "a"), used(&daemon, "all", "a")), (5, 10));

    // What is known only afterwards is charged all the same.
    let report =
        daemon.post("/v1/report", &json!({ "attributes": { "team": "a", "model": "large" }, "cost": 7 }));
    assert_eq!(report.json()["use"], "small", "{report:?}");
    assert_eq!(used(&daemon, "large", "a"), 12);
}

#[test]
fn every_server_says_what_to_use() {
    let resp = free_tcp();
    let rules = RULES.replace("limit = 10", "limit = 1");
    let daemon = Daemon::with(&rules, &format!("[listen]\nresp = \"{resp}\"\n"), &[]);
    let asked = |team: &'static str| [("team", team), ("model", "large")];

    let headers = [("x-tidegate-team", "http"), ("x-tidegate-model", "large")];
    let authorize = || http::get(daemon.http, "/v1/authorize", &headers);
    let (first, second) = (authorize(), authorize());
    assert_eq!((first.status, first.header("x-tidegate-use")), (200, None));
    assert_eq!((second.status, second.header("x-tidegate-use")), (200, Some("small")), "{second:?}");
    assert_eq!((second.header("retry-after"), second.header("x-ratelimit-remaining")), (None, Some("0")));

    let client = daemon.rls();
    let call = |hits| {
        let descriptor = rls::with_hits(rls::descriptor(&asked("envoy")), hits);
        client.ask(rls::request(vec![descriptor])).unwrap()
    };
    assert_eq!(call(1).dynamic_metadata, None);
    // A filter that reports afterwards only looks before.
    for hits in [1, 0] {
        let told = call(hits);
        assert_eq!((told.overall_code, told.statuses[0].code), (1, 1), "{told:?}");
        for headers in [&told.response_headers_to_add, &told.request_headers_to_add] {
            let named = headers.iter().map(|one| (one.key.as_str(), one.value.as_str()));
            assert_eq!(named.collect::<Vec<_>>(), [("x-tidegate-use", "small")], "{told:?}");
        }
        assert!(format!("{:?}", told.dynamic_metadata).contains("\"small\""), "{told:?}");
    }

    let mut connection = Connection::open(resp);
    let mut check = || connection.ask("TG.CHECK default 1 team redis model large");
    assert!(check().ends_with(" large]"));
    let told = check();
    assert!(told.starts_with("[1 ") && told.ends_with(" large small]"), "{told}");
    let reserved = connection.ask("TG.RESERVE default 1 10m other team redis model large");
    assert!(reserved.starts_with("[1 ") && reserved.ends_with(" small]"), "{reserved}");
    assert_eq!(reserved.split(' ').count(), told.split(' ').count() + 2, "{reserved}");
}

#[test]
fn commands_say_what_to_use_and_that_nobody_is_denied() {
    let daemon = Daemon::with_rules(&RULES.replace("limit = 10", "limit = 1"));
    daemon.check(&[("team", "a"), ("model", "large")]);
    let told = |command: &str| daemon.run(&[command, "team=a", "model=large"]);
    for command in ["check", "explain"] {
        let ran = told(command);
        assert!(ran.code == 0 && ran.out.contains("allowed, but to use small: large"), "{ran:?}");
        assert!(ran.out.contains("use something else") && !ran.out.contains("denied"), "{ran:?}");
    }
    let why = told("why");
    assert!(why.out.contains("the next request passes, and is told to use small"), "{why:?}");
    let why = daemon.get("/v1/why?team=a&model=large").json();
    let bucket = &why["buckets"][0];
    let bucket = if bucket["rule"] == "large" { bucket } else { &why["buckets"][1] };
    assert_eq!((&bucket["denies"], &bucket["use"]), (&json!(true), &json!("small")), "{why}");
}
