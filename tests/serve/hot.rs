//! Who asks most, and why somebody is limited: over HTTP and on the command line.

use serde_json::{Value, json};

use super::support::command;
use super::support::daemon::Daemon;
use super::support::unjudged::not_judged;

const RULES: &str = r#"
[[rules]]
name = "search"
match = { path = "/search*" }
per = ["user"]
algorithm = "fixed_window"
limit = 3
window = "24h"
message = "Three a day."

[[rules]]
name = "by-key"
match = { api_key = "*" }
per = ["api_key"]
algorithm = "fixed_window"
limit = 1
window = "24h"

[[rules]]
name = "no-robots"
match = { user = "robot" }
action = "block"
"#;

/// Asks so often.
fn ask(daemon: &Daemon, attributes: &[(&str, &str)], times: usize) {
    for _ in 0..times {
        daemon.check(attributes);
    }
}

fn names(answer: &Value, list: &str) -> Vec<(String, u64, u64, u64)> {
    let rows = answer[list].as_array().unwrap_or_else(|| panic!("no {list} in {answer}")).iter();
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap();
    rows.map(|row| {
        let user = row["identity"]["user"].as_str().or(row["rule"].as_str()).unwrap().to_owned();
        (user, number(row, "requests"), number(row, "denied"), number(row, "cost"))
    })
    .collect()
}

fn row(name: &str, requests: u64, denied: u64, cost: u64) -> (String, u64, u64, u64) {
    (name.to_owned(), requests, denied, cost)
}

/// The seconds since counts halved.
fn since_halving() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_secs() % 30
}

/// What is told between two instants at which counts halve; `None` on a machine too slow for that.
fn unhalved<T>(told: impl FnOnce() -> T) -> Option<T> {
    let passed = since_halving();
    if passed > 10 {
        std::thread::sleep(std::time::Duration::from_secs(31 - passed));
    }
    let (started, told) = (std::time::Instant::now(), told());
    (started.elapsed().as_secs() < 18).then_some(told)
}

#[test]
fn the_heaviest_are_listed_by_denials_requests_and_cost() {
    let daemon = Daemon::with_rules(RULES);
    let told = unhalved(|| {
        ask(&daemon, &[("user", "ann"), ("path", "/search")], 8);
        ask(&daemon, &[("user", "bob"), ("path", "/search?q=1")], 2);
        daemon.check_cost(&[("user", "cleo"), ("path", "/search")], 3);
        ask(&daemon, &[("user", "robot"), ("path", "/")], 4);
        // Who only looks uses nothing up, and neither does who explains.
        daemon.check_cost(&[("user", "dora"), ("path", "/search")], 0);
        daemon.post("/v1/explain", &json!({ "attributes": { "user": "ann", "path": "/search" } }));
        let get = |query: &str| daemon.get(&format!("/v1/hot{query}")).json();
        (get(""), get("?by=requests"), get("?by=cost&limit=1"), get("?by=requests&rule=by-key"))
    });
    let Some((by_denied, by_requests, by_cost, of_rule)) = told else {
        return not_judged("counts halved before they were looked at");
    };
    assert_eq!(names(&by_denied, "buckets"), [row("ann", 8, 5, 3)], "{by_denied}");
    assert_eq!(names(&by_denied, "rules"), [row("search", 11, 5, 8), row("no-robots", 4, 4, 0)]);
    assert_eq!(by_denied["all"], json!({ "requests": 15, "denied": 9, "cost": 8 }));
    let [ann] = &by_denied["buckets"].as_array().unwrap()[..] else { panic!("{by_denied}") };
    assert_eq!(ann["share"], 0.5556, "{ann}");
    assert_eq!((&ann["identity"], &ann["domain"]), (&json!({ "user": "ann" }), &json!("default")));
    assert!(ann["denied_since"].as_str() <= ann["denied_last"].as_str(), "{ann}");
    assert_eq!(
        names(&by_requests, "buckets"),
        [row("ann", 8, 5, 3), row("bob", 2, 0, 2), row("cleo", 1, 0, 3)]
    );
    assert_eq!(names(&by_cost, "buckets").len(), 1);
    assert_eq!(by_cost["buckets"][0]["cost"], 3);
    assert_eq!(of_rule["buckets"], json!([]));
    assert!(by_cost["span_ms"].as_u64().is_some_and(|span| span > 0), "{by_cost}");
}

#[test]
fn wrong_questions_are_refused_by_name() {
    let daemon = Daemon::with_rules(RULES);
    for (route, status, field) in [
        ("/v1/hot?by=fame", 400, "by"),
        ("/v1/hot?limit=0", 400, "limit"),
        ("/v1/hot?limit=1001", 400, "limit"),
        ("/v1/hot?colour=red", 400, "colour"),
        ("/v1/why", 400, "user"),
        ("/v1/why?user=ann&cost=-1", 400, "cost"),
        ("/v1/why?user=", 400, "user"),
        ("/v1/why?rule=by-key&user=", 400, "user"),
    ] {
        let refused = daemon.get(route);
        assert_eq!(refused.status, status, "{route}: {refused:?}");
        assert_eq!(refused.json()["error"]["field"], field, "{route}");
    }
    assert_eq!(daemon.get("/v1/hot?rule=nobody").status, 404);
    assert_eq!(daemon.get("/v1/why?rule=nobody").status, 404);
}

#[test]
fn a_secret_of_others_is_shown_by_its_fingerprint_only() {
    let daemon = Daemon::with_rules(RULES);
    ask(&daemon, &[("api_key", "hunter2")], 3);
    let hot = daemon.get("/v1/hot");
    let found = hot.json()["buckets"][0]["identity"]["api_key"].as_str().unwrap().to_owned();
    // As `sha256sum` prints it, and as the audit log has it.
    assert_eq!(found, "f52fbd32b2b3b86ff88ef6c490628285");
    let why = daemon.get(&format!("/v1/why?api_key={found}"));
    assert_eq!(why.json()["buckets"][0]["rule"], "by-key", "found by its fingerprint: {why:?}");
    let whys = daemon.get("/v1/why?api_key=hunter2");
    assert_eq!(whys.json()["limited"], true);
    for text in [hot.body, why.body, whys.body] {
        assert!(!text.contains("hunter2"));
    }
    let top = daemon.run(&["top", "--once"]);
    assert!(!top.both().contains("hunter2") && top.out.contains(&found), "{top:?}");
}

#[test]
fn why_names_the_rule_what_is_used_since_when_and_until_when_and_charges_nothing() {
    let daemon = Daemon::with_rules(RULES);
    ask(&daemon, &[("user", "u_42"), ("path", "/search")], 5);
    // At once, and by the name alone: whoever asks need not know what was asked for.
    let why = daemon.get("/v1/why?user=u_42").json();
    assert_eq!(why["limited"], true, "{why}");
    assert_eq!(why["decision"]["allowed"], true, "without a path no rule counts it: {why}");
    let [bucket] = &why["buckets"].as_array().unwrap()[..] else { panic!("{why}") };
    let expected = json!({ "rule": "search", "identity": { "user": "u_42" }, "used": 3, "limit": 3, "remaining": 0,
                           "matches": false, "denies": true, "shadow": false });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(bucket[name], *value, "{name} of {bucket}");
    }
    assert!(bucket["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0), "{bucket}");
    assert!(bucket["lately"]["denied_since"].is_string() && bucket["lately"]["denied_last"].is_string());
    // With what the gateway sends the rule itself says so.
    for _ in 0..3 {
        let why = daemon.get("/v1/why?user=u_42&path=/search").json();
        assert_eq!((&why["limited"], &why["decision"]["rule"]), (&json!(true), &json!("search")), "{why}");
        assert_eq!(why["buckets"][0]["matches"], true);
        assert_eq!(why["buckets"].as_array().unwrap().len(), 1, "told once: {why}");
    }
    let other = daemon.get("/v1/why?user=u_43&path=/search").json();
    assert_eq!((&other["limited"], &other["buckets"][0]["remaining"]), (&json!(false), &json!(3)), "{other}");
    assert_eq!(daemon.check(&[("user", "u_43"), ("path", "/search")])["remaining"], 2, "nothing was charged");
    let robot = daemon.get("/v1/why?user=robot").json();
    assert_eq!(robot["decision"]["rule"], "no-robots", "{robot}");
}

#[test]
fn why_finds_the_bucket_of_a_rule_that_counts_all() {
    let rules = "[[rules]]\nname = \"all\"\nmatch = { path = \"/search\" }\nalgorithm = \"fixed_window\"\n\
                 limit = 2\nwindow = \"24h\"\n";
    let daemon = Daemon::with_rules(rules);
    ask(&daemon, &[("user", "u_42"), ("path", "/search")], 5);
    let why = daemon.get("/v1/why?rule=all").json();
    assert_eq!((&why["limited"], &why["decision"]["allowed"]), (&json!(true), &json!(true)), "{why}");
    let [bucket] = &why["buckets"].as_array().unwrap()[..] else { panic!("{why}") };
    let expected =
        json!({ "rule": "all", "identity": {}, "used": 2, "remaining": 0, "matches": false, "denies": true });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(bucket[name], *value, "{name} of {bucket}");
    }
    assert!(bucket["lately"]["denied_since"].is_string(), "{bucket}");
    // Where the request is counted there it is told once.
    let why = daemon.get("/v1/why?rule=all&path=/search").json();
    assert_eq!(why["buckets"].as_array().map(Vec::len), Some(1), "{why}");
    assert_eq!(why["buckets"][0]["matches"], true, "{why}");
}

#[test]
fn the_command_line_says_why_and_who_asks_most() {
    let daemon = Daemon::with_rules(RULES);
    ask(&daemon, &[("user", "u_42"), ("path", "/search")], 9);
    let why = daemon.run(&["why", "user=u_42", "path=/search"]);
    assert_eq!(why.code, 0, "{why:?}");
    for text in [
        "Limited now: search denies with status 429; free in",
        "Three a day.",
        "search for user=u_42: used up",
        "used 3 here, limit 3 per 1 d, 0 left",
        "denied since",
        "Nothing was charged.",
    ] {
        assert!(why.out.contains(text), "{text} is not in {}", why.out);
    }
    let json: Value = serde_json::from_str(&daemon.run(&["why", "user=u_42", "--json"]).out).unwrap();
    assert_eq!(json["buckets"][0]["rule"], "search");
    assert_eq!(daemon.run(&["why"]).code, 2);
    // Standard output is no terminal here: one table, with the flag or without.
    for arguments in [&["top", "--once"][..], &["top"], &["top", "--by", "denied"]] {
        let top = daemon.run(arguments);
        assert_eq!(top.code, 0, "{top:?}");
        assert!(top.out.contains("user=u_42") && top.out.contains("requests/s"), "{top:?}");
        assert!(!top.out.contains('\u{1b}'), "{top:?}");
    }
    let hot: Value = serde_json::from_str(&daemon.run(&["top", "--json"]).out).unwrap();
    assert_eq!(hot["buckets"][0]["identity"], json!({ "user": "u_42" }));
    let nobody = daemon.run(&["top", "--once", "--rule", "nobody"]);
    assert!(nobody.code == 1 && nobody.err.contains("there is no rule"), "{nobody:?}");
    let nowhere = command::run(daemon.folder(), &["top", "--once", "--server", "http://127.0.0.1:1"]);
    assert_eq!(nowhere.code, 3, "{nowhere:?}");
}

#[test]
fn what_finds_no_room_is_a_metric_that_is_there_from_the_start() {
    let daemon = Daemon::with_rules(RULES);
    for what in ["bucket", "rule"] {
        assert_eq!(daemon.metric(&format!("tidegate_hot_crowded_total{{what=\"{what}\"}}")), Some(0.0));
    }
}

#[test]
fn why_says_of_a_key_by_its_name_what_the_key_would_be_answered() {
    let daemon = Daemon::with_rules(RULES);
    assert_eq!(daemon.run(&["users", "set", "bob"]).code, 0);
    let made = daemon.run(&["keys", "create", "--user", "bob", "--json"]);
    let made: Value = serde_json::from_str(&made.out).unwrap_or_else(|_| panic!("{made:?}"));
    let (secret, id) = (made["secret"].as_str().unwrap(), made["key"]["id"].as_str().unwrap());
    for whole_or_name in [id, secret, id] {
        let why = daemon.get(&format!("/v1/why?api_key={whole_or_name}")).json();
        assert_eq!((&why["limited"], &why["decision"]["rule"]), (&json!(false), &json!("by-key")), "{why}");
        let bucket = &why["buckets"][0];
        assert_eq!(
            (&bucket["matches"], &bucket["used"]),
            (&json!(true), &json!(0)),
            "nothing is charged: {why}"
        );
    }
    assert_eq!([(); 2].map(|()| daemon.check(&[("api_key", secret)])["allowed"].clone()), [true, false]);
    let why = daemon.get(&format!("/v1/why?api_key={id}")).json();
    assert_eq!((&why["limited"], &why["decision"]["rule"]), (&json!(true), &json!("by-key")), "{why}");
    assert_eq!(why["buckets"].as_array().unwrap().len(), 1, "told once: {why}");
    assert_eq!(daemon.run(&["keys", "revoke", id]).code, 0);
    let why = daemon.get(&format!("/v1/why?api_key={id}")).json();
    assert_eq!((&why["limited"], &why["decision"]["rule"]), (&json!(true), &json!("key_revoked")), "{why}");
    let told = daemon.run(&["why", &format!("api_key={id}")]);
    assert!(told.out.contains("key_revoked") && !told.both().contains("No rule counts"), "{told:?}");
    let nobody = daemon.get("/v1/why?api_key=tgk_aaaaaaaaaaaa").json();
    assert_eq!(nobody["decision"]["rule"], Value::Null, "there is no such key: {nobody}");
}
