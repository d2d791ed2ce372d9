//! `POST /v1/check`, `/v1/explain`, `/v1/authorize` and what can be read besides.

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::http;

const RULES: &str = r#"
[[rules]]
name = "per-user"
per = ["user"]
algorithm = "fixed_window"
limit = 3
window = "24h"
message = "Three a day."

[[rules]]
name = "expensive"
match = { path = "/export*" }
per = ["user"]
algorithm = "token_bucket"
limit = 1
window = "24h"
status = 503

[[rules]]
name = "by-address"
domain = "edge"
per = ["ip"]
algorithm = "gcra"
limit = 2
window = "24h"
burst = 2
"#;

const ANN: &[(&str, &str)] = &[("user", "ann"), ("path", "/")];
const BOB: &[(&str, &str)] = &[("user", "bob"), ("path", "/")];

#[test]
fn a_decision_says_everything_the_contract_names() {
    let daemon = Daemon::with(RULES, "region = \"eu-west\"\n", &[]);
    let allowed = daemon.check(ANN);
    assert_eq!(allowed["allowed"], true);
    assert_eq!(allowed["domain"], "default");
    assert_eq!(allowed["cost"], 1);
    assert_eq!(allowed["region"], "eu-west");
    assert_eq!(allowed["degraded"], false);
    assert_eq!((&allowed["rule"], &allowed["limit"]), (&json!("per-user"), &json!(3)));
    assert_eq!(allowed["remaining"], 2);
    daemon.admitted(ANN, 2);
    let denied = daemon.check(ANN);
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["remaining"], 0);
    assert_eq!(denied["status"], 429);
    assert_eq!(denied["message"], "Three a day.");
    let reset = denied["reset_ms"].as_u64().unwrap();
    assert!(reset > 0 && reset <= 86_400_000, "{denied}");
    assert_eq!(denied["retry_after_ms"], denied["reset_ms"], "a fixed window frees everything at its end");
    assert_eq!(denied["rules"][0]["rule"], "per-user");
    assert_eq!(denied["rules"][0]["window_ms"], 86_400_000);
}

#[test]
fn one_users_limit_does_not_touch_another_and_no_rule_means_no_limit() {
    let daemon = Daemon::with_rules(RULES);
    assert_eq!((daemon.admitted(ANN, 5), daemon.admitted(BOB, 5)), (3, 3));
    let free = daemon.check(&[("tenant", "t")]);
    assert_eq!(free["allowed"], true);
    assert!(free.get("rule").is_none() && free.get("limit").is_none(), "{free}");
    assert_eq!(free["rules"], json!([]));
}

#[test]
fn where_one_rule_denies_no_other_is_charged() {
    let daemon = Daemon::with_rules(RULES);
    let export = [("user", "ann"), ("path", "/export/all")];
    assert_eq!(daemon.check(&export)["allowed"], true);
    for _ in 0..5 {
        let denied = daemon.check(&export);
        assert_eq!((&denied["rule"], &denied["status"]), (&json!("expensive"), &json!(503)));
    }
    assert_eq!(daemon.admitted(ANN, 5), 2, "only the one admitted export was charged to the user");
}

#[test]
fn costs_peek_take_all_or_nothing_and_give_back() {
    let daemon = Daemon::with_rules(RULES);
    assert_eq!(daemon.check_cost(ANN, 0)["remaining"], 3);
    assert_eq!(daemon.check_cost(ANN, 2)["remaining"], 1);
    assert_eq!(daemon.check_cost(ANN, 2)["allowed"], false, "one is left, two are not");
    assert_eq!(daemon.check_cost(ANN, 0)["remaining"], 1, "a denied request consumes nothing");
    assert_eq!(daemon.check_cost(ANN, -1)["remaining"], 2);
    assert_eq!(daemon.check_cost(ANN, -100)["remaining"], 3, "usage stops at zero");
    let never = daemon.check_cost(ANN, 4);
    assert_eq!(never["allowed"], false);
    assert_eq!(never["retry_after_ms"], Value::Null, "more than the limit can never pass");
}

#[test]
fn a_batch_is_answered_in_order_up_to_a_thousand() {
    let daemon = Daemon::with_rules(RULES);
    let checks = |count: usize| {
        let check = |n: usize| json!({ "attributes": { "user": format!("u_{}", n % 300) } });
        json!({ "checks": (0..count).map(check).collect::<Vec<_>>() })
    };
    let reply = daemon.post("/v1/check", &checks(1_000));
    assert_eq!(reply.status, 200);
    let reply = reply.json();
    let decisions = reply["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 1_000);
    for (n, decision) in decisions.iter().enumerate() {
        assert_eq!(
            decision["allowed"],
            n < 900,
            "user u_{} was asked about for the {}. time",
            n % 300,
            n / 300 + 1
        );
    }
    let refused = daemon.post("/v1/check", &checks(1_001));
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"]["message"].is_string(), "{refused:?}");
    assert_eq!(daemon.post("/v1/check", &json!({ "checks": [] })).status, 400);
}

#[test]
fn explain_says_why_and_charges_nothing() {
    let daemon = Daemon::with_rules(RULES);
    for _ in 0..5 {
        let reply = daemon.post("/v1/explain", &json!({ "attributes": { "user": "ann", "path": "/" } }));
        assert_eq!(reply.status, 200);
        assert!(reply.body.contains("per-user") && reply.body.contains("expensive"), "{reply:?}");
    }
    assert_eq!(daemon.check(ANN)["remaining"], 2);
}

#[test]
fn answers_carry_the_headers_that_clients_know() {
    let daemon = Daemon::with_rules(RULES);
    let ask = || daemon.post("/v1/check", &json!({ "attributes": { "user": "ann" } }));
    let first = ask();
    assert_eq!(first.header("x-ratelimit-limit"), Some("3"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("2"));
    assert_eq!(first.header("x-ratelimit-cost"), Some("1"));
    assert_eq!(first.header("retry-after"), None, "only for what was denied");
    let reset: u64 = first.header("x-ratelimit-reset").unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(reset >= now && reset <= now + 86_401, "Unix seconds: {reset} at {now}");
    assert!(first.header("ratelimit-policy").unwrap().contains("per-user"), "{first:?}");
    assert!(first.header("ratelimit").unwrap().contains("r=2"), "{first:?}");
    ask();
    ask();
    let denied = ask();
    assert_eq!(denied.status, 200, "a check is answered, not refused");
    let retry: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&retry), "{retry}");
}

#[test]
fn forward_auth_answers_with_the_rules_status() {
    let rules = r#"
[[rules]]
name = "writes"
match = { path = "/api/*", method = ["POST", "PUT"] }
per = ["ip"]
algorithm = "fixed_window"
limit = 2
window = "24h"
message = "Enough writes."
"#;
    let daemon = Daemon::with_rules(rules);
    let ask = |method, uri, address| {
        let headers = [
            ("x-forwarded-for", address),
            ("x-forwarded-method", method),
            ("x-forwarded-uri", uri),
            ("x-forwarded-host", "h"),
        ];
        http::get(daemon.http, "/v1/authorize", &headers)
    };
    for remaining in ["1", "0"] {
        let passed = ask("POST", "/api/things?page=1", "203.0.113.9");
        assert_eq!((passed.status, passed.header("x-ratelimit-remaining")), (200, Some(remaining)));
    }
    let denied = ask("PUT", "/api/things", "203.0.113.9");
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some());
    assert!(denied.body.contains("Enough writes."), "{denied:?}");
    assert_eq!(ask("GET", "/api/things", "203.0.113.9").status, 200, "reads are not limited");
    assert_eq!(ask("POST", "/api/things", "203.0.113.10").status, 200, "another address has its own bucket");
    let original =
        [("x-original-uri", "/api/x"), ("x-original-method", "POST"), ("x-forwarded-for", "203.0.113.9")];
    assert_eq!(http::request(daemon.http, "POST", "/v1/authorize", &original, b"").status, 429);
}

#[test]
fn only_hops_that_are_ours_may_name_the_client() {
    let rules = "[[rules]]\nname = \"ip\"\nper = [\"ip\"]\nalgorithm = \"fixed_window\"\nlimit = 1\nwindow = \"24h\"\n";
    let daemon = Daemon::with(rules, "[identity]\ntrusted_proxies = 1\n", &[]);
    let ask = |hops| http::get(daemon.http, "/v1/authorize", &[("x-forwarded-for", hops)]).status;
    assert_eq!(ask("203.0.113.1"), 200);
    assert_eq!(
        ask("198.51.100.7, 203.0.113.1"),
        429,
        "what the client claims to the left counts for nothing"
    );
    assert_eq!(ask("198.51.100.7"), 200);
}

#[test]
fn rules_buckets_regions_and_metrics_can_be_read() {
    let daemon = Daemon::with_rules(RULES);
    daemon.admitted(ANN, 2);
    let rules = daemon.get("/v1/rules").json();
    assert!(rules["revision"].is_number() || rules["revision"].is_string(), "{rules}");
    let names: Vec<_> = rules["rules"].as_array().unwrap().iter().map(|rule| rule["name"].clone()).collect();
    assert_eq!(names.len(), 3);
    assert_eq!(daemon.get("/v1/rules/expensive").status, 200);
    let missing = daemon.get("/v1/rules/nothing");
    assert_eq!((missing.status, &missing.json()["error"]["code"]), (404, &json!("rule_not_found")));
    let bucket = daemon.get("/v1/buckets?rule=per-user&user=ann");
    assert_eq!(bucket.status, 200, "{bucket:?}");
    assert_eq!(daemon.get("/v1/buckets?rule=nothing&user=ann").status, 404);
    assert_eq!(daemon.get("/v1/regions").status, 200);
    let metrics = daemon.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(metrics.body.contains("tidegate_decisions_total"), "{}", metrics.body);
    assert!(!metrics.body.contains("\"ann\""), "no user becomes a label");
    assert_eq!((daemon.get("/healthz").status, daemon.get("/readyz").status), (200, 200));
}

#[test]
fn it_serves_without_any_file() {
    let daemon = Daemon::with_rules("");
    assert_eq!(daemon.check(ANN)["allowed"], true);
}

#[test]
fn log_only_and_the_shadow_switch_never_deny() {
    let rules = "[[rules]]\nname = \"watch\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 1\nwindow = \"24h\"\naction = \"log_only\"\n";
    let daemon = Daemon::with_rules(rules);
    assert_eq!(daemon.admitted(ANN, 4), 4);
    assert_eq!(daemon.check(ANN)["rules"][0]["allowed"], false, "it is reported all the same");
    let daemon = Daemon::with(RULES, "[rules]\nshadow = true\n", &[]);
    assert_eq!(daemon.admitted(ANN, 10), 10);
    assert_eq!(daemon.check(ANN)["rules"][0]["allowed"], false, "it is reported all the same");
}

#[test]
fn all_six_algorithms_admit_their_limit_at_once_and_no_more() {
    let algorithms =
        ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra"];
    let rule = |name: &&str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ kind = \"{name}\" }}\nper = [\"user\"]\nalgorithm = \"{name}\"\nlimit = 7\nwindow = \"24h\"\n"
        )
    };
    let daemon = Daemon::with_rules(&algorithms.iter().map(rule).collect::<String>());
    for kind in algorithms {
        for user in ["ann", "bob"] {
            assert_eq!(daemon.admitted(&[("kind", kind), ("user", user)], 10), 7, "{kind}");
        }
        let denied = daemon.check(&[("kind", kind), ("user", "ann")]);
        assert!(denied["retry_after_ms"].as_u64().unwrap() > 0, "{denied}");
    }
}

#[test]
fn block_denies_and_allow_exempts() {
    let rules = format!(
        "{RULES}\n[[rules]]\nname = \"blocked\"\nmatch = {{ user = \"mallory\" }}\naction = \"block\"\n\
         [[rules]]\nname = \"exempt\"\nmatch = {{ user = \"root\" }}\naction = \"allow\"\n"
    );
    let daemon = Daemon::with_rules(&rules);
    let blocked = daemon.check(&[("user", "mallory")]);
    assert_eq!((&blocked["allowed"], &blocked["status"]), (&json!(false), &json!(403)));
    assert_eq!(daemon.admitted(&[("user", "root")], 10), 10);
}
