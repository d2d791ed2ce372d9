//! Costs that are known only afterwards: charged in full by every server, whatever is left.

use serde_json::{Value, json};

use super::regions::{Authority, REGIONS, connected};
use super::support::daemon::Daemon;
use super::support::reports::sent_again_it_is_charged_once;
use super::support::rls::{descriptor, request, with_hits};
use super::support::{eventually, free_udp, http};

const ALGORITHMS: [&str; 6] =
    ["fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "gcra"];

/// One rule for each algorithm, met by its name, of 1,000 permits a day.
fn tokens(more: &str) -> String {
    let rule = |algorithm: &str| {
        format!(
            "[[rules]]\nname = \"{algorithm}\"\nmatch = {{ how = \"{algorithm}\" }}\nper = [\"user\"]\n\
             algorithm = \"{algorithm}\"\nlimit = 1000\nwindow = \"24h\"\n{more}\n"
        )
    };
    ALGORITHMS.map(rule).concat()
}

pub(super) fn report(daemon: &Daemon, attributes: &[(&str, &str)], cost: i64) -> Value {
    let attributes: Value = attributes.iter().map(|(name, value)| (*name, json!(value))).collect();
    let reply = daemon.post("/v1/report", &json!({ "attributes": attributes, "cost": cost }));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Three responses of 400 pass, whatever is said of the third; the fourth request is denied.
fn the_fourth_is_denied(daemon: &Daemon, how: &str, user: &str) {
    let who = [("user", user), ("how", how)];
    for turn in 1..=3 {
        let asked = daemon.check_cost(&who, 0);
        assert_eq!(asked["allowed"], true, "request {turn} of {how}: {asked}");
        let told = report(daemon, &who, 400);
        assert_eq!(told["allowed"], turn < 3, "{told}");
    }
    let fourth = daemon.check_cost(&who, 0);
    assert_eq!((&fourth["allowed"], &fourth["remaining"]), (&json!(false), &json!(0)), "{how}: {fourth}");
    assert!(fourth["retry_after_ms"].as_u64().unwrap() > 0, "{fourth}");
}

#[test]
fn the_fourth_request_after_three_responses_of_400_is_denied_in_every_algorithm() {
    let daemon = Daemon::with_rules(&tokens(""));
    for how in ALGORITHMS {
        for user in 0..10 {
            the_fourth_is_denied(&daemon, how, &format!("u{user}"));
        }
        let bucket = daemon.get(&format!("/v1/buckets?rule={how}&user=u3")).json();
        assert!(matches!(bucket["used"].as_u64(), Some(1_199..=1_200)), "{bucket}");
    }
}

#[test]
fn a_report_that_has_a_name_is_charged_once() {
    let daemon = Daemon::with_rules(&tokens(""));
    for how in ALGORITHMS {
        sent_again_it_is_charged_once([&daemon, &daemon], how);
    }
    // An id names a report and a reservation, each for itself.
    let who = json!({ "user": "both", "how": "fixed_window" });
    let reserved = daemon.post("/v1/reserve", &json!({ "attributes": who, "amount": 300, "id": "r" })).json();
    let told = daemon.post("/v1/report", &json!({ "attributes": who, "cost": 200, "id": "r" })).json();
    assert_eq!((&reserved["allowed"], &told["remaining"]), (&json!(true), &json!(500)), "{told}");
    let uncharged = daemon.metric("tidegate_reports_uncharged_permits_total{reason=\"store\"}");
    assert_eq!(uncharged, Some(0.0), "a report that was charged before is not left out");
    for id in ["", &"x".repeat(1_025)] {
        let report = json!({ "attributes": { "user": "ann" }, "cost": 1, "id": id });
        let refused = daemon.post("/v1/report", &report);
        assert_eq!(refused.status, 400, "{refused:?}");
        assert_eq!(refused.json()["error"]["field"], "id", "{refused:?}");
    }
}

#[test]
fn an_id_is_its_callers_own_in_a_bucket_that_all_share() {
    let rules = "[[rules]]\nname = \"all\"\nmatch = { how = \"all\" }\nper = []\nalgorithm = \"fixed_window\"\nlimit = 1000\n\
                 window = \"24h\"\n[[rules]]\nname = \"places\"\nmatch = { how = \"places\" }\nper = []\n\
                 algorithm = \"concurrency\"\nlimit = 10\nhold = \"1m\"\n";
    let daemon = Daemon::with_rules(rules);
    let used = |rule: &str| daemon.get(&format!("/v1/buckets?rule={rule}")).json()["used"].clone();
    let mut made = Vec::new();
    // Each sends everything anew, as a request that its gateway names anew.
    for sent in 0..2 {
        for user in ["a", "b", "c"] {
            let who = |how: &str| json!({ "user": user, "how": how, "request_id": format!("{user} {sent}") });
            let report = json!({ "attributes": who("all"), "cost": 10, "id": "msg-1" });
            daemon.post("/v1/report", &report);
            let reserve = json!({ "attributes": who("all"), "amount": 50, "id": "req-1" });
            made.push(daemon.post("/v1/reserve", &reserve).json()["reservation"].clone());
            daemon.post("/v1/acquire", &json!({ "attributes": who("places"), "cost": 2, "id": "req-1" }));
        }
    }
    assert_eq!((used("all"), used("places")), (json!(3 * (10 + 50)), json!(3 * 2)));
    for reservation in made {
        daemon.post("/v1/commit", &json!({ "reservation": reservation, "actual": 50 }));
    }
    assert_eq!(used("all"), json!(3 * (10 + 50)));
}

#[test]
fn every_rule_and_descriptor_is_charged_whatever_the_others_say() {
    let rules = "[[rules]]\nname = \"small\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 10\nwindow = \"24h\"\n\
                 [[rules]]\nname = \"large\"\nper = [\"user\"]\nalgorithm = \"token_bucket\"\nlimit = 5000\nwindow = \"24h\"\n\
                 [[rules]]\nname = \"shadow\"\nper = [\"user\"]\nalgorithm = \"gcra\"\nlimit = 10\nwindow = \"24h\"\n\
                 action = \"log_only\"\ndebt_max = 2000\n\
                 [[rules]]\nname = \"stop\"\nmatch = { path = \"/closed\" }\naction = \"block\"\n";
    let daemon = Daemon::with_rules(rules);
    let used = |rule: &str, user: &str| {
        daemon.get(&format!("/v1/buckets?rule={rule}&user={user}")).json()["used"].as_u64().unwrap()
    };
    let told = report(&daemon, &[("user", "ann")], 700);
    assert_eq!((&told["allowed"], &told["rule"]), (&json!(false), &json!("small")), "{told}");
    // One whole limit is the most that is owed unless the rule says otherwise.
    assert_eq!((used("small", "ann"), used("large", "ann"), used("shadow", "ann")), (20, 700, 700));
    let uncharged = |reason: &str| {
        daemon.metric(&format!("tidegate_reports_uncharged_permits_total{{reason=\"{reason}\"}}")).unwrap()
    };
    assert_eq!((uncharged("debt_max"), uncharged("forgiven"), uncharged("store")), (680.0, 0.0, 0.0));
    // A rule that blocks changes nothing of what has happened.
    report(&daemon, &[("user", "bob"), ("path", "/closed")], 30);
    assert_eq!((used("small", "bob"), used("large", "bob")), (20, 30));
    // A question of the same cost is charged to nobody.
    assert_eq!(daemon.check_cost(&[("user", "cat")], 700)["allowed"], false);
    assert_eq!((used("small", "cat"), used("large", "cat")), (0, 0));
    // A batch of nothing is refused, and so is what is no report.
    for (body, field) in [
        (json!({ "attributes": {} }), "cost"),
        (json!({ "attributes": {}, "cost": -1 }), "cost"),
        (json!({ "checks": [] }), "checks"),
        (json!({ "cost": 1 }), "attributes"),
    ] {
        let reply = daemon.post("/v1/report", &body);
        assert_eq!((reply.status, &reply.json()["error"]["field"]), (400, &json!(field)), "{body}");
    }
    let none = report(&daemon, &[("user", "dan")], 0);
    assert_eq!(none["allowed"], true, "0 only asks: {none}");
    let ran = daemon.run(&["check", "user=dan", "--report", "--cost", "12"]);
    assert!(ran.code == 4 && ran.out.contains("small"), "{ran:?}");
    assert_eq!((used("small", "dan"), used("large", "dan")), (12, 12));
    for _ in 0..2 {
        daemon.run(&["check", "user=fay", "--report", "--cost", "5", "--id", "call-7"]);
    }
    assert_eq!(used("large", "fay"), 5, "what is said twice under one id is charged once");
    let alone = daemon.run(&["check", "user=fay", "--id", "call-7"]);
    assert!(alone.code == 2 && alone.err.contains("--report"), "{alone:?}");
    for permits in [1_000_000_000, i64::from(u32::MAX), i64::MAX] {
        report(&daemon, &[("user", "eve")], permits);
    }
    assert_eq!((used("small", "eve"), used("large", "eve")), (20, 10_000));
}

#[test]
fn a_rule_that_always_charges_does_so_at_every_server() {
    let always = tokens("charge = \"always\"");
    let daemon = Daemon::with_rules(&always);
    let envoy = daemon.rls();
    for how in ALGORITHMS {
        let of = |user: &str| descriptor(&[("user", user), ("how", how)]);
        for user in 0..10 {
            // As Envoy asks at the beginning and at the end of each stream.
            let user = format!("grpc{user}");
            for turn in 1..=3 {
                let asked = envoy.ask(request(vec![with_hits(of(&user), 0)])).unwrap();
                assert_eq!(asked.overall_code, 1, "request {turn} of {how}");
                envoy.ask(request(vec![with_hits(of(&user), 400)])).unwrap();
            }
            let fourth = envoy.ask(request(vec![with_hits(of(&user), 0)])).unwrap();
            assert_eq!(fourth.overall_code, 2, "{how}");
        }
        // Two descriptors of one call are charged both, though one of them does not fit.
        envoy.ask(request(vec![with_hits(of("left"), 1_100), with_hits(of("right"), 300)])).unwrap();
        let used = |user: &str| {
            daemon.get(&format!("/v1/buckets?rule={how}&user={user}")).json()["used"].as_u64().unwrap()
        };
        let (left, right) = (used("left"), used("right"));
        assert!((1_099..=1_100).contains(&left) && (299..=300).contains(&right), "{how}: {left} {right}");
        // The check of HTTP, and forward-auth.
        let who = [("user", "http"), ("how", how)];
        assert_eq!(daemon.check_cost(&who, 999)["allowed"], true);
        assert_eq!(daemon.check_cost(&who, 400)["allowed"], false, "{how}");
        assert_eq!(daemon.check_cost(&who, 0)["allowed"], false, "{how}");
        assert!(used("http") >= 1_398, "{how}");
    }
    let by_address = "[[rules]]\nname = \"ip\"\nper = [\"ip\"]\nalgorithm = \"fixed_window\"\nlimit = 10\n\
                      window = \"24h\"\ncharge = \"always\"\n";
    let daemon = Daemon::with_rules(by_address);
    let auth = |cost: u32| {
        let headers = [("x-forwarded-for", "10.1.2.3"), ("x-forwarded-uri", "/a")];
        http::request(daemon.http, "GET", &format!("/v1/authorize?cost={cost}"), &headers, b"").status
    };
    assert_eq!((auth(7), auth(7), auth(0)), (200, 429, 429));
}

#[test]
fn what_is_owed_is_carried_or_forgiven_and_the_daemon_says_truly_when() {
    let rule = |name: &str, more: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ how = \"{name}\" }}\nalgorithm = \"fixed_window\"\nlimit = 10\n\
             window = \"24h\"\n{more}\n"
        )
    };
    let rules = rule("carry", "debt_max = 25") + &rule("forgive", "debt = \"forgive\"");
    let daemon = Daemon::with_rules(&rules);
    let (carry, forgive) = ([("how", "carry")], [("how", "forgive")]);
    let day = 86_400_000;
    report(&daemon, &carry, 35);
    report(&daemon, &forgive, 35);
    let (carried, forgiven) = (daemon.check(&carry), daemon.check(&forgive));
    // Today, two days that the debt fills, and a third half used.
    let end = forgiven["retry_after_ms"].as_u64().unwrap();
    assert!(end <= day, "{forgiven}");
    let retry = carried["retry_after_ms"].as_u64().unwrap();
    assert!((2 * day..=3 * day).contains(&retry) && retry.abs_diff(end + 2 * day) < 60_000, "{carried}");
    assert_eq!((&carried["remaining"], &forgiven["remaining"]), (&json!(0), &json!(0)));
    let metric = daemon.metric("tidegate_reports_uncharged_permits_total{reason=\"forgiven\"}");
    assert_eq!(metric, Some(25.0));
    // The rule can be read as it was written.
    let shown = daemon.get("/v1/rules").json().to_string();
    assert!(shown.contains("\"debt_max\":25") && shown.contains("\"debt\":\"forgive\""), "{shown}");
}

fn worldwide(mode: &str, algorithm: &str) -> String {
    format!(
        "[[rules]]\nname = \"{mode}\"\nper = [\"user\"]\nalgorithm = \"{algorithm}\"\nlimit = 1000\nwindow = \"24h\"\n\
         [rules.global]\nmode = \"{mode}\"\nshares = {{ eu-west = 2, us-east = 1, ap-south = 1 }}\n"
    )
}

/// Reports of one region, by the responses that it lets pass, until it denies.
fn until_denied(daemon: &Daemon, user: &str) -> u64 {
    let who = [("user", user)];
    for passed in 0..50 {
        if daemon.check_cost(&who, 0)["allowed"] == false {
            return passed;
        }
        report(daemon, &who, 400);
    }
    panic!("50 responses of 400 pass on 1000");
}

#[test]
fn regions_charge_what_is_reported_and_leave_the_others_no_more_than_theirs() {
    // Under escrow a window that began before its daemon mints nothing, so it is played in the stores' tests.
    for (mode, algorithm) in [("gossip", "fixed_window"), ("split", "sliding_window")] {
        let authority = Authority::new();
        let peers: Vec<_> = REGIONS.iter().map(|_| free_udp()).collect();
        let daemons: Vec<_> = REGIONS
            .iter()
            .zip(&peers)
            .map(|(region, peer)| {
                let config = authority.config(region, &format!("{region}-1"), *peer, &peers[..1]);
                Daemon::with(&worldwide(mode, algorithm), &config, &[])
            })
            .collect();
        for daemon in &daemons {
            eventually("every daemon sees the two others", || (connected(daemon) == 2).then_some(()));
            // Under split nobody holds anything before all have said that this is the first start.
            eventually("every region admits", || {
                (daemon.check_cost(&[("user", "first")], 0)["allowed"] == true).then_some(())
            });
        }
        for user in 0..5 {
            let user = format!("u{user}");
            // Each region denies after the response that exceeds what it may use: no more than three pass
            // here.
            let passed = until_denied(&daemons[0], &user);
            assert!((1..=3).contains(&passed), "{mode} {algorithm}: {passed}");
        }
        let used = daemons[0].get(&format!("/v1/buckets?rule={mode}&user=u0")).json();
        assert!(used["used"].as_u64().unwrap() >= 399, "{mode} {algorithm}: {used}");
        // The others keep what is theirs, and no more.
        let admits = |daemon: &Daemon| {
            let passed = (0..40).filter(|_| daemon.check_cost(&[("user", "u0")], 50)["allowed"] == true);
            50 * passed.count()
        };
        let others = admits(&daemons[1]) + admits(&daemons[2]);
        let most = if mode == "split" { 500 } else { 600 };
        assert!(others <= most, "{mode} {algorithm}: {others}");
    }
}
