//! Reservations whose caller names no amount: the daemon takes what the last commits say.

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::reservations::commit;

const RULES: &str = r#"
[[rules]]
name = "tokens"
per = ["user"]
algorithm = "fixed_window"
limit = 100_000
window = "24h"
estimate = { by = "model", first = 500 }

[[rules]]
name = "team"
match = { team = "*" }
per = ["team"]
algorithm = "token_bucket"
limit = 600
window = "24h"
price = { default = 3 }
estimate = { percentile = 50 }
"#;

fn reserve(daemon: &Daemon, attributes: &Value) -> Value {
    let reply = daemon.post("/v1/reserve", &json!({ "attributes": attributes }));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

#[test]
fn what_is_reserved_follows_the_last_commits_of_the_same_value() {
    let daemon = Daemon::with_rules(RULES);
    let of = |model: &str| json!({ "user": "ann", "model": model });
    for turn in 1..=10 {
        let made = reserve(&daemon, &of("small"));
        assert_eq!(made["cost"], 500, "too little is known: {made}");
        assert_eq!(commit(&daemon, &made, turn * 10)["committed"], true);
        // What was cancelled says nothing of costs.
        let made = reserve(&daemon, &of("small"));
        let cancelled = daemon.post("/v1/cancel", &json!({ "reservation": made["reservation"] }));
        assert_eq!(cancelled.json()["committed"], true);
    }
    let made = reserve(&daemon, &of("small"));
    assert_eq!((&made["allowed"], &made["cost"]), (&json!(true), &json!(90)), "the 90th percentile of ten");
    let bucket = daemon.get("/v1/buckets?rule=tokens&user=ann").json();
    assert_eq!(bucket["used"], 550 + 90, "as much is held: {bucket}");
    assert_eq!(reserve(&daemon, &of("large"))["cost"], 500, "another value has an estimate of its own");
    assert_eq!(reserve(&daemon, &json!({ "user": "ann" }))["cost"], 500, "and so has none");
    assert_eq!(commit(&daemon, &made, 90)["committed"], true);
    assert_eq!(commit(&daemon, &made, 7_000)["committed"], false);
    assert_eq!(reserve(&daemon, &of("small"))["cost"], 90, "what was settled before teaches nothing");
    assert!(daemon.metric("tidegate_reservations_total{event=\"estimated\"}") >= Some(24.0));
    assert_eq!(daemon.metric("tidegate_reservations_total{event=\"unlearned\"}"), Some(0.0));
}

#[test]
fn the_largest_estimate_is_taken_as_far_as_every_rule_can_hold_it() {
    let daemon = Daemon::with_rules(RULES);
    let both = json!({ "user": "ann", "team": "t" });
    // 500 by the one and a tenth of 600 by the other, which holds no more than 200 units at three permits
    // each.
    let made = reserve(&daemon, &both);
    assert_eq!((&made["allowed"], &made["cost"]), (&json!(true), &json!(200)), "{made}");
    assert_eq!(commit(&daemon, &made, 1)["committed"], true);
    let left = daemon.check_cost(&[("user", "ann"), ("team", "t")], 0);
    assert!(left["remaining"].as_u64() >= Some(596), "{left}");
    assert_eq!(reserve(&daemon, &json!({ "color": "blue" }))["cost"], 1, "no rule counts it");
}

#[test]
fn the_command_says_what_was_reserved() {
    let daemon = Daemon::with_rules(RULES);
    let made = daemon.run(&["reserve", "user=ann"]);
    assert!(made.code == 0 && made.out.contains("Reserved 500 for 1 min"), "{} {}", made.out, made.err);
}
