//! Mistakes that a gateway or an operator makes are said where they look: by the command, the log, `/readyz`
//! and a metric.

use serde_json::json;

use crate::support::daemon::Daemon;
use crate::support::{command, eventually, http};

const RULES: &str = r#"
[[rules]]
name = "per-user"
per = ["user"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "edge"
domain = "edge"
limit = 9
window = "1m"
"#;

#[test]
fn a_domain_without_rules_is_said_by_the_command_the_log_and_a_metric() {
    let daemon = Daemon::with_rules(RULES);
    let unmatched = |domain: &str, reason: &str| {
        let line = format!("tidegate_unmatched_requests_total{{domain=\"{domain}\",reason=\"{reason}\"}}");
        daemon.metric(&line)
    };
    assert_eq!(unmatched("default", "rule"), Some(0.0), "there from the start");
    assert_eq!(unmatched("other", "domain"), Some(0.0), "there from the start");
    let asked = daemon.run(&["check", "--domain", "defalt", "user=ann"]);
    assert_eq!(asked.code, 0, "{asked:?}");
    assert!(
        asked.out.contains("No rule has domain \"defalt\"; rules are in: default, edge"),
        "{}",
        asked.out
    );
    let known = daemon.run(&["check", "path=/"]);
    assert!(!known.out.contains("No rule has domain"), "{}", known.out);
    assert_eq!(unmatched("defalt", "domain"), Some(1.0));
    assert_eq!(unmatched("default", "rule"), Some(1.0));
    assert_eq!(daemon.check(&[("user", "ann")])["allowed"], true);
    assert_eq!(unmatched("default", "rule"), Some(1.0), "a rule counted this one");
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("no rule has the domain")).unwrap_or(&log);
    assert!(
        line.contains("WARN") && line.contains("defalt") && line.contains("rules are in: default, edge"),
        "{line}"
    );
}

#[test]
fn domains_that_gateways_make_up_are_counted_in_bounded_memory() {
    let daemon = Daemon::with_rules(RULES);
    for number in 0..100 {
        let reply = daemon
            .post("/v1/check", &json!({ "domain": format!("d{number}"), "attributes": { "user": "ann" } }));
        assert_eq!(reply.status, 200);
    }
    let text = daemon.metrics();
    let own = text.lines().filter(|line| line.contains("unmatched_requests_total{domain=\"d")).count();
    assert_eq!(own, 65, "64 unknown ones, and `default`");
    assert_eq!(
        daemon.metric("tidegate_unmatched_requests_total{domain=\"other\",reason=\"domain\"}"),
        Some(36.0)
    );
    assert_eq!(daemon.log().matches("no rule has the domain").count(), 64);
}

#[test]
fn rules_that_can_hardly_be_meant_so_are_valid_and_warned_of() {
    let hidden = r#"
[[rules]]
name = "a-wide"
group = "g"
match = { path = "/api/*" }
limit = 9
window = "1m"

[[rules]]
name = "b-hidden"
group = "g"
match = { path = "/api/search" }
limit = 5
window = "1m"
"#;
    let daemon = Daemon::with_rules(hidden);
    let sentence = "no request reaches it: \"a-wide\" comes first in group \"g\"";
    let validated = command::run(daemon.folder(), &["rules", "validate", "rules.toml"]);
    assert_eq!(validated.code, 0, "{validated:?}");
    assert!(validated.out.contains("warning: rules.toml: rule \"b-hidden\""), "{}", validated.out);
    assert!(validated.out.contains(sentence), "{}", validated.out);
    let warned = |daemon: &Daemon| daemon.get("/readyz").json()["warnings"].clone();
    eventually("the daemon has looked at its rules", || {
        warned(&daemon)[0].as_str().is_some_and(|text| text.contains(sentence)).then_some(())
    });
    let counted = |count| (daemon.metric("tidegate_rule_warnings") == Some(count)).then_some(());
    eventually("the warning is counted", || counted(1.0));
    eventually("the log says it", || daemon.log().contains(sentence).then_some(()));

    daemon.set_rules("");
    let nothing = "there are no rules, so every request passes";
    eventually("a set that fell to nothing is told", || (warned(&daemon) == json!([nothing])).then_some(()));
    eventually("the log says that, too", || daemon.log().contains(nothing).then_some(()));

    daemon.reload(RULES, "per-user", 3);
    eventually("nothing is odd any more", || (warned(&daemon) == json!([])).then_some(()));
    eventually("no warning is counted", || counted(0.0));
}

#[test]
fn a_signal_is_answered_in_the_log_when_nothing_changed() {
    let daemon = Daemon::with_rules(RULES);
    daemon.process.signal("HUP");
    eventually("the daemon says that it read the file", || {
        daemon.log().contains("holds the rules in force, nothing changes").then_some(())
    });
}

#[test]
fn no_answer_has_more_left_than_its_limit() {
    let rule = |name: &str, rest: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ path = \"/{name}\" }}\nper = [\"user\"]\nlimit = 5\nwindow = \"1h\"\n{rest}\n"
        )
    };
    let rules = [
        rule("bucket", "algorithm = \"token_bucket\"\nburst = 8"),
        rule("small", "algorithm = \"token_bucket\"\nburst = 2"),
        rule("gcra", "algorithm = \"gcra\"\nburst = 8"),
        rule("leaky", "algorithm = \"leaky_bucket\"\nburst = 8"),
        rule("paced", "algorithm = \"token_bucket\"\naction = \"throttle\"\nmax_delay = \"1h\""),
        rule("window", "algorithm = \"fixed_window\""),
        rule("sliding", "algorithm = \"sliding_window\""),
        rule("log", "algorithm = \"sliding_log\""),
    ];
    let daemon = Daemon::with_rules(&rules.concat());
    let capacities =
        [("bucket", 8), ("small", 2), ("gcra", 8), ("paced", 10), ("window", 5), ("sliding", 5), ("log", 5)];
    for (name, capacity) in capacities {
        let path = format!("/{name}");
        let body = json!({ "attributes": { "path": path, "user": "ann" }, "cost": 0 });
        let reply = daemon.post("/v1/check", &body);
        let decision = reply.json();
        assert_eq!(decision["limit"], capacity, "{name}: the limit is what the bucket holds");
        assert_eq!(decision["remaining"], capacity, "{name}");
        assert_eq!(reply.header("x-ratelimit-limit"), Some(capacity.to_string().as_str()), "{name}");
        assert_eq!(reply.header("x-ratelimit-remaining"), reply.header("x-ratelimit-limit"), "{name}");
    }
    for name in capacities.map(|(name, _)| name).into_iter().chain(["leaky"]) {
        for _ in 0..12 {
            let path = format!("/{name}");
            let decision = daemon.check(&[("path", &path), ("user", "bob")]);
            assert!(decision["remaining"].as_u64() <= decision["limit"].as_u64(), "{name}: {decision}");
        }
    }
}

#[test]
fn a_reset_bucket_and_a_changed_user_are_recorded_beside_the_rules_and_shown() {
    let daemon = Daemon::with_rules(RULES);
    assert_eq!(daemon.admitted(&[("user", "ann")], 5), 3);
    let reply = http::request(daemon.http, "DELETE", "/v1/buckets?rule=per-user&user=ann", &[], b"");
    assert_eq!(reply.status, 200, "{reply:?}");
    let tier = daemon.run(&["users", "set", "ann", "--limit", "per-user=7"]);
    assert_eq!(tier.code, 0, "{tier:?}");
    let changes = daemon.get("/v1/changes").json()["changes"].clone();
    let told: Vec<_> =
        changes.as_array().unwrap().iter().map(|change| (&change["action"], &change["target"])).collect();
    assert_eq!(
        told,
        [(&json!("user.set"), &json!("ann")), (&json!("bucket.reset"), &json!("per-user user=ann"))]
    );
    let shown = daemon.run(&["changes", "--action", "bucket.reset"]);
    assert!(shown.out.contains("per-user user=ann") && !shown.out.contains("user.set"), "{}", shown.out);
    let kept = std::fs::read_to_string(daemon.folder().join("rules.toml.changes")).unwrap();
    assert_eq!(kept.lines().count(), 2, "{kept}");
    assert_eq!(daemon.get("/v1/changes?limit=0").status, 400);
}

#[test]
fn usage_lists_what_is_left_by_rules_that_can_apply_to_the_user() {
    let rules = r#"
[[rules]]
name = "free"
group = "tier"
match = { tier = "free" }
per = ["user"]
limit = 5
window = "1d"

[[rules]]
name = "pro"
group = "tier"
priority = 10
match = { tier = "pro" }
per = ["user"]
limit = 50
window = "1d"

[[rules]]
name = "else"
group = "tier"
priority = 200
per = ["user"]
limit = 1
window = "1d"

[[rules]]
name = "uploads"
match = { path = "/upload*" }
per = ["user"]
limit = 9
window = "1d"

[[rules]]
name = "edge"
domain = "edge"
per = ["user"]
limit = 3
window = "1d"

[[users]]
id = "paul"
tier = "pro"
"#;
    let read = tidegate::database::document::from_toml("rules.toml", rules, &[]).unwrap();
    let name = tidegate::core::regions::NodeName { region: "r".to_owned(), node: "n".to_owned() };
    let store = std::sync::Arc::new(tidegate::store::memory::MemoryStore::new(100));
    let clock = tidegate::engine::clock::Clock::System;
    let engine = tidegate::engine::Engine::new(name, clock, store, tidegate::telemetry::Metrics::new());
    engine.load(read.rules, read.users, false).unwrap();
    use tidegate::engine::quotas::QuotaOwner::{self, User};
    let left = |owner: QuotaOwner<'_>, domain: Option<&str>| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let quotas = runtime.block_on(engine.quotas(owner, domain, None)).unwrap();
        quotas.buckets.iter().map(|(domain, bucket)| format!("{domain}/{}", bucket.rule)).collect::<Vec<_>>()
    };
    assert_eq!(left(User("paul"), None), ["default/pro", "edge/edge", "default/uploads"]);
    assert_eq!(left(User("ann"), None), ["edge/edge", "default/uploads", "default/else"]);
    assert_eq!(left(User("paul"), Some("default")), ["default/pro", "default/uploads"]);
}

#[test]
fn mistakes_at_the_command_line_are_told_in_its_words() {
    let daemon = Daemon::with_rules(RULES);
    let number = daemon.run(&["check", "user=ann", "--cost", "abc"]);
    assert!(number.code == 2 && number.err.contains("a whole number is wanted"), "{number:?}");
    for words in
        [&["rules", "show", "per-usr"][..], &["rules", "delete", "per-usr"], &["quota", "show", "per-usr"]]
    {
        let mistyped = daemon.run(words);
        assert!(mistyped.code == 1 && mistyped.err.contains("did you mean \"per-user\"?"), "{mistyped:?}");
    }
    let server = format!("https://{}", daemon.http);
    let plain = command::run(daemon.folder(), &["rules", "list", "--server", &server]);
    assert!(plain.code == 3 && plain.err.contains("does not speak TLS"), "{plain:?}");
}
