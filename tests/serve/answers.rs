//! What answers carry besides the decision: numbers that agree, headers, problem documents, units and prices.

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::http::{self, Reply};
use super::support::rls;

const BURST: &str = r#"
[[rules]]
name = "burst"
per = ["user"]
algorithm = "token_bucket"
limit = 2
burst = 7
window = "24h"
"#;

#[test]
fn no_answer_has_more_left_than_its_limit() {
    let daemon = Daemon::with_rules(BURST);
    let client = daemon.rls();
    let number = |reply: &Reply, name: &str| reply.header(name).unwrap().parse::<u64>().unwrap();
    for turn in 0..9_u64 {
        let left = 6_u64.saturating_sub(turn);
        for reply in [
            daemon.post("/v1/check", &json!({ "attributes": { "user": "http" } })),
            http::get(daemon.http, "/v1/authorize", &[("x-tidegate-user", "forward")]),
        ] {
            let told = (number(&reply, "x-ratelimit-limit"), number(&reply, "x-ratelimit-remaining"));
            assert_eq!(told, (7, left), "request {turn}: {reply:?}");
        }
        let answer = client.ask(rls::request(vec![rls::descriptor(&[("user", "grpc")])])).unwrap();
        let status = &answer.statuses[0];
        let limit = status.current_limit.as_ref().unwrap().requests_per_unit;
        assert_eq!((limit, u64::from(status.limit_remaining)), (7, left), "request {turn}");
    }
}

/// A client that obeys `t` asks as soon as there is more, and no sooner than `Retry-After` says. Under a rate
/// more is there after one permit's time, long before all is.
#[test]
fn t_is_the_time_until_more_is_free_and_never_later_than_retry_after() {
    const HOUR: u64 = 3_600;
    let levels = ["token_bucket", "leaky_bucket", "gcra"];
    let windows = ["fixed_window", "sliding_window", "sliding_log"];
    let rules: String = [levels, windows]
        .as_flattened()
        .iter()
        .map(|name| {
            format!(
                "[[rules]]\nname = \"{name}\"\ndomain = \"{name}\"\nper = [\"user\"]\n\
                 algorithm = \"{name}\"\nlimit = 3\nwindow = \"1h\"\n"
            )
        })
        .collect();
    let daemon = Daemon::with_rules(&rules);
    for name in [levels, windows].as_flattened() {
        let check = json!({ "domain": name, "attributes": { "user": "ann" } });
        for left in [2, 1, 0, 0] {
            let reply = daemon.post("/v1/check", &check);
            let told = reply.header("ratelimit").unwrap();
            let (item, t) = told.split_once(";t=").unwrap();
            let t: u64 = t.parse().unwrap();
            assert_eq!(item, format!("\"{name}\";r={left}"));
            let until = if levels.contains(name) { HOUR / 3 } else { HOUR };
            assert!(t <= until && (until == HOUR || t + 60 >= until), "{told}");
            if reply.json()["allowed"] == false {
                let retry: u64 = reply.header("retry-after").unwrap().parse().unwrap();
                assert!(t <= retry && retry <= until, "{told}, Retry-After: {retry}");
            }
        }
    }
}

const OWN: &str = r#"
[[rules]]
name = "own"
per = ["user"]
algorithm = "fixed_window"
limit = 1
window = "24h"
message = "One a day."
partition_key = true
headers = { X-Reason = "1 a day" }
headers_admitted = { X-Plan = "free" }

[[rules]]
name = "closed"
match = { path = "/closed" }
action = "block"
problem = true
headers = { X-Reason = "closed" }
"#;

fn authorize(daemon: &Daemon, headers: &[(&str, &str)]) -> Reply {
    http::get(daemon.http, "/v1/authorize", headers)
}

#[test]
fn a_rules_own_headers_are_those_of_its_outcome() {
    let daemon = Daemon::with_rules(OWN);
    let check = || daemon.post("/v1/check", &json!({ "attributes": { "user": "http" } }));
    let forward = || authorize(&daemon, &[("x-tidegate-user", "forward")]);
    let own = |reply: &Reply| {
        [reply.header("x-plan").map(str::to_owned), reply.header("x-reason").map(str::to_owned)]
    };
    for reply in [check(), forward()] {
        assert_eq!(own(&reply), [Some("free".to_owned()), None]);
    }
    for reply in [check(), forward()] {
        assert_eq!(own(&reply), [None, Some("1 a day".to_owned())]);
    }
    let blocked = authorize(&daemon, &[("x-forwarded-uri", "/closed")]);
    assert_eq!((blocked.status, own(&blocked)), (403, [None, Some("closed".to_owned())]));
}

#[test]
fn a_denial_is_a_problem_document_where_the_client_or_the_rule_asks_for_one() {
    let daemon = Daemon::with_rules(OWN);
    let user = ("x-tidegate-user", "u");
    assert_eq!(authorize(&daemon, &[user, ("accept", "application/problem+json")]).body, "");
    let plain = authorize(&daemon, &[user, ("accept", "*/*")]);
    assert_eq!((plain.status, plain.body.as_str()), (429, "One a day."));
    let denied = authorize(&daemon, &[user, ("accept", "text/html, application/problem+json")]);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429, "detail": "One a day.", "violated-policies": ["own"],
    });
    assert_eq!(denied.json(), expected);
    let blocked = authorize(&daemon, &[("x-forwarded-uri", "/closed")]);
    assert_eq!(blocked.json(), json!({ "type": "about:blank", "title": "Forbidden", "status": 403 }));
}

#[test]
fn a_denial_has_the_body_that_its_rule_wrote_with_its_media_type() {
    let own = "message = '{\"error\": \"slow down\"}'\nmessage_type = \"application/json\"";
    let rules = OWN.replace("message = \"One a day.\"", own);
    assert_ne!(rules, OWN);
    let daemon = Daemon::with_rules(&rules);
    let user = ("x-tidegate-user", "u");
    assert_eq!(authorize(&daemon, &[user]).status, 200);
    for accepted in ["*/*", "application/problem+json"] {
        let denied = authorize(&daemon, &[user, ("accept", accepted)]);
        assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/json")));
        assert_eq!(denied.json(), json!({ "error": "slow down" }));
    }
}

#[test]
fn a_gateway_that_reads_no_body_has_the_text_of_a_denial_in_a_header() {
    let daemon = Daemon::with_rules(OWN);
    let prefers = ("prefer", "respond-async, body=header");
    let ask = |user: &str, more: &[(&str, &str)]| {
        let headers = [&[("x-tidegate-user", user)][..], more].concat();
        let reply = authorize(&daemon, &headers);
        (reply.status, reply.header("x-tidegate-body").map(str::to_owned))
    };
    assert_eq!(ask("u", &[prefers]), (200, None));
    assert_eq!(ask("u", &[prefers]), (429, Some("One a day.".to_owned())));
    assert_eq!(ask("u", &[]), (429, None), "nobody else has it");
    assert_eq!(ask("u", &[("prefer", "body=header-x")]), (429, None));
    let blocked = authorize(&daemon, &[("x-forwarded-uri", "/closed"), prefers]);
    assert_eq!(blocked.header("x-tidegate-body"), Some(blocked.body.as_str()), "a problem document");
    // No header has several lines.
    let daemon = Daemon::with_rules(&OWN.replace("One a day.", "One\\na day."));
    let asked = [("x-tidegate-user", "u"), prefers];
    authorize(&daemon, &asked);
    let denied = authorize(&daemon, &asked);
    assert_eq!((denied.body.as_str(), denied.header("x-tidegate-body")), ("One\na day.", None));
}

#[test]
fn a_partition_key_tells_buckets_apart_and_not_whose_they_are() {
    let daemon = Daemon::with_rules(OWN);
    let key = |user: &str, header: &str| {
        let reply = authorize(&daemon, &[("x-tidegate-user", user)]);
        let value = reply.header(header).unwrap().to_owned();
        assert!(!value.contains(user), "{value}");
        value.split_once(";pk=").unwrap().1.to_owned()
    };
    let ann = key("ann-secret", "ratelimit");
    assert_eq!(ann, key("ann-secret", "ratelimit-policy"));
    assert_ne!(ann, key("bob-secret", "ratelimit"));
    assert!(ann.starts_with(':') && ann.ends_with(':') && ann.len() == 18, "{ann}");
}

const PRICED: &str = r#"
[[rules]]
name = "tokens"
per = ["user"]
algorithm = "fixed_window"
limit = 100
window = "24h"
unit = "tokens"
price = { "model=large" = 3, "model=small" = 0.25, default = 1 }
"#;

#[test]
fn a_price_multiplies_the_cost_at_every_server() {
    let daemon = Daemon::with_rules(PRICED);
    let ask = |model: &str, cost: i64| daemon.check_cost(&[("user", "u"), ("model", model)], cost);
    let told = |answer: &Value| {
        let rule = &answer["rules"][0];
        (answer["allowed"] == true, rule["cost"].as_i64().unwrap(), answer["remaining"].as_u64().unwrap())
    };
    assert_eq!(told(&ask("large", 10)), (true, 30, 70));
    assert_eq!(told(&ask("small", 10)), (true, 3, 67));
    assert_eq!(told(&ask("other", 7)), (true, 7, 60));
    assert_eq!(told(&ask("large", 21)), (false, 63, 60), "it would fit at the price of another");
    assert_eq!(told(&ask("large", -10)), (true, -30, 90), "what is given back is worth what it took");
    assert_eq!(told(&ask("large", i64::MAX)), (false, i64::MAX, 90), "nothing overflows");
    let report = json!({ "attributes": { "user": "u", "model": "large" }, "cost": 10 });
    assert_eq!(told(&daemon.post("/v1/report", &report).json()), (true, 30, 60));
    let client = daemon.rls();
    let large = || rls::with_hits(rls::descriptor(&[("user", "u"), ("model", "large")]), 20);
    let codes = [(); 2].map(|()| client.ask(rls::request(vec![large()])).unwrap().overall_code);
    assert_eq!(codes, [1, 2]);
}

#[test]
fn explain_and_the_command_line_show_unit_and_price() {
    let daemon = Daemon::with_rules(PRICED);
    let asked = json!({ "attributes": { "user": "u", "model": "large" }, "cost": 2 });
    let explained = daemon.post("/v1/explain", &asked).json();
    let rule = &explained["decision"]["rules"][0];
    assert_eq!((&rule["cost"], &rule["unit"]), (&6.into(), &"tokens".into()), "{explained}");
    let policy = daemon.post("/v1/check", &asked);
    assert_eq!(policy.header("ratelimit-policy"), Some("\"tokens\";q=100;qu=\"tokens\";w=86400"));
    let shown = daemon.run(&["rules", "list"]).out;
    assert!(shown.contains("100 tokens / 1d"), "{shown}");
    let shown = daemon.run(&["check", "user=u", "model=large"]).out;
    assert!(shown.contains("91 tokens left of 100") && shown.contains("allowed, cost 3"), "{shown}");
}

/// The rules that the manual shows, with limits that a test can reach.
fn levels() -> String {
    let manual = include_str!("../../docs/reference/rules.md");
    let (_, rest) = manual.split_once("**Organisation, team, user.**").unwrap();
    let (_, rest) = rest.split_once("```toml\n").unwrap();
    let (rules, _) = rest.split_once("```").unwrap();
    let limits =
        [("limit = 10_000", "limit = 4"), ("limit = 2_000", "limit = 3"), ("limit = 500", "limit = 2")];
    limits.into_iter().fold(rules.replace("1m", "24h"), |rules, (shown, small)| {
        assert_eq!(rules.matches(shown).count(), 1, "{rules}");
        rules.replace(shown, small)
    })
}

#[test]
fn limits_of_an_organisation_its_teams_and_their_people_are_held_in_one_decision() {
    let daemon = Daemon::with_rules(&levels());
    let ask = |org: &str, team: &str, user: &str| {
        let answer = daemon.check(&[("org", org), ("team", team), ("user", user)]);
        (answer["allowed"] == true, answer["rule"].as_str().unwrap_or_default().to_owned())
    };
    let denied_by = |rule: &str| (false, rule.to_owned());
    assert!(ask("acme", "search", "ann").0 && ask("acme", "search", "ann").0);
    assert_eq!(ask("acme", "search", "ann"), denied_by("person"));
    assert!(ask("acme", "search", "bob").0);
    assert_eq!(
        ask("acme", "search", "bob"),
        denied_by("team"),
        "nothing was charged to the team by a denial"
    );
    assert!(ask("acme", "sales", "ann").0, "her permits in another team are others");
    assert_eq!(ask("acme", "sales", "cid"), denied_by("organisation"));
    assert!(ask("other", "search", "ann").0, "a team of the same name elsewhere is another");
    let alone = daemon.check(&[("org", "acme")]);
    assert_eq!((&alone["allowed"], &alone["rule"]), (&json!(false), &json!("organisation")), "{alone}");
}
