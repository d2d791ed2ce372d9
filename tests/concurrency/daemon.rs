//! Whole daemons, asked over HTTP.

use serde_json::{Value, json};

use super::redis_servers::{Cluster, Server};
use super::support::daemon::Daemon;
use super::support::eventually;

fn one(hold: &str) -> String {
    format!(
        "[[rules]]\nname = \"in-flight\"\nper = [\"user\"]\nalgorithm = \"concurrency\"\nlimit = 10\nhold = \"{hold}\"\n"
    )
}

fn rules(hold: &str) -> String {
    format!("{}[[users]]\nid = \"big\"\noverrides = {{ in-flight = {{ limit = 12 }} }}\n", one(hold))
}

fn on(topology: &str, nodes: &[String]) -> String {
    format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"{topology}\"\nnodes = {nodes:?}\ntimeout = \"500ms\"\n"
    )
}

fn acquire_as(daemon: &Daemon, user: &str, more: &Value) -> Value {
    let mut body = json!({ "attributes": { "user": user } });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let reply = daemon.post("/v1/acquire", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn acquire(daemon: &Daemon) -> Value {
    acquire_as(daemon, "ann", &json!({}))
}

/// Acquires until it is refused; the leases.
fn fill(daemon: &Daemon, user: &str) -> Vec<String> {
    let lease = |_| {
        let answer = acquire_as(daemon, user, &json!({}));
        (answer["allowed"] == true).then(|| answer["lease"].as_str().unwrap().to_owned())
    };
    (0..20).map_while(lease).collect()
}

fn give(daemon: &Daemon, route: &str, lease: &str) -> Value {
    let reply = daemon.post(&format!("/v1/{route}"), &json!({ "lease": lease }));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn released(daemon: &Daemon, lease: &str) -> bool {
    give(daemon, "release", lease)["released"] == true
}

/// What everybody may expect of ten places, whatever store counts them.
fn ten_places_are_held_and_given_back(daemon: &Daemon, other: &Daemon) {
    let leases = fill(daemon, "ann");
    assert_eq!(leases.len(), 10);
    let refused = acquire(other);
    assert_eq!((&refused["allowed"], &refused["status"]), (&json!(false), &json!(429)), "{refused}");
    assert!(refused["lease"].is_null() && refused["retry_after_ms"].as_u64() > Some(20_000), "{refused}");
    assert_eq!(refused["rules"][0]["window_ms"], 0, "{refused}");
    assert_eq!(fill(other, "bob").len(), 10, "another bucket");

    assert!(released(other, &leases[3]), "any daemon takes a lease back");
    assert!(!released(daemon, &leases[3]), "once");
    let again = acquire(daemon);
    assert_eq!((&again["allowed"], &again["remaining"]), (&json!(true), &json!(0)), "{again}");
    assert_eq!(again["expires_ms"], 30_000);
    assert_eq!(acquire(daemon)["allowed"], false, "what was released twice was free once");

    let renewed = give(other, "renew", &leases[0]);
    assert_eq!((&renewed["renewed"], &renewed["expires_ms"]), (&json!(true), &json!(30_000)), "{renewed}");
    assert_eq!(give(daemon, "renew", &leases[3]), json!({ "renewed": false, "degraded": false }));

    let bucket = daemon.get("/v1/buckets?rule=in-flight&user=ann").json();
    assert_eq!((&bucket["used"], &bucket["remaining"]), (&json!(10), &json!(0)), "{bucket}");
    assert_eq!(bucket["window_ms"], 0, "a hold is no window: {bucket}");
    for lease in &leases {
        released(daemon, lease);
    }
    let bucket = other.get("/v1/buckets?rule=in-flight&user=ann").json();
    assert_eq!((&bucket["used"], &bucket["remaining"]), (&json!(1), &json!(9)), "{bucket}");
    let reset =
        super::support::http::request(daemon.http, "DELETE", "/v1/buckets?rule=in-flight&user=ann", &[], b"");
    assert_eq!((reset.status, &reset.json()["existed"]), (200, &json!(true)));
    assert_eq!(fill(other, "ann").len(), 10, "nobody holds");
}

/// Retries with one id, several places, and what was never asked for.
fn one_request_holds_once(daemon: &Daemon) {
    let named = json!({ "id": "3c9f0a", "cost": 4 });
    let (first, second) = (acquire_as(daemon, "cid", &named), acquire_as(daemon, "cid", &named));
    assert_eq!((&first["remaining"], &first["cost"]), (&json!(6), &json!(4)), "{first}");
    assert_eq!((&second["allowed"], &second["lease"]), (&json!(true), &first["lease"]), "{second}");
    assert_eq!(second["remaining"], 6, "{second}");
    assert_eq!(acquire_as(daemon, "cid", &json!({ "cost": 7 }))["allowed"], false);
    assert_eq!(acquire_as(daemon, "cid", &json!({ "cost": 11 }))["retry_after_ms"], Value::Null);
    let asked = acquire_as(daemon, "cid", &json!({ "cost": 0 }));
    assert!(asked["allowed"] == true && asked["lease"].is_null() && asked["remaining"] == 6, "{asked}");
    assert!(released(daemon, first["lease"].as_str().unwrap()));
    assert_eq!(fill(daemon, "cid").len(), 10);
    let own = fill(daemon, "big");
    assert_eq!(own.len(), 12, "a user's own limit");
    assert_eq!(give(daemon, "renew", &own[0])["renewed"], true, "which renewals are held to as well");
}

#[test]
fn ten_places_in_memory() {
    let daemon = Daemon::with_rules(&rules("30s"));
    ten_places_are_held_and_given_back(&daemon, &daemon);
    one_request_holds_once(&daemon);
    assert!(daemon.metric("tidegate_holds_total{event=\"acquired\"}") >= Some(30.0));
    assert!(daemon.metric("tidegate_holds_total{event=\"gone\"}") >= Some(2.0));
}

#[test]
fn ten_places_of_a_cluster_are_shared_by_two_daemons() {
    let cluster = Cluster::start();
    let config = on("cluster", &cluster.urls());
    let (one, mut other) =
        (Daemon::with(&rules("30s"), &config, &[]), Daemon::with(&rules("30s"), &config, &[]));
    ten_places_are_held_and_given_back(&one, &other);
    one_request_holds_once(&other);
    let leases = fill(&other, "dan");
    other.kill();
    assert_eq!(acquire_as(&one, "dan", &json!({}))["allowed"], false, "what a dead daemon gave is held");
    assert!(released(&one, &leases[9]), "and can be given back");
    assert_eq!(acquire_as(&one, "dan", &json!({}))["allowed"], true);
}

#[test]
fn whoever_is_never_heard_of_again_keeps_its_place_for_one_hold() {
    let server = Server::start(&[]);
    for config in [String::new(), on("single", &[server.url()])] {
        let daemon = Daemon::with(&rules("3s"), &config, &[]);
        let leases = fill(&daemon, "ann");
        assert_eq!(leases.len(), 10);
        let told = acquire(&daemon)["retry_after_ms"].as_u64().unwrap();
        assert!(told > 0 && told <= 3_000, "{told}");
        eventually("the first is free", || (acquire(&daemon)["allowed"] == true).then_some(()));
        assert!(!released(&daemon, &leases[0]), "it was too late");
    }
}

#[test]
fn a_daemon_that_dies_forgets_what_was_held_in_its_memory() {
    let mut daemon = Daemon::with_rules(&rules("24h"));
    let leases = fill(&daemon, "ann");
    daemon.kill();
    daemon.start_again();
    assert!(!released(&daemon, &leases[0]));
    assert_eq!(fill(&daemon, "ann").len(), 10);
}

#[test]
fn where_a_rate_rule_denies_no_place_is_held_and_no_check_asks_for_places() {
    let both = format!(
        "{}[[rules]]\nname = \"rate\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 3\nwindow = \"24h\"\n",
        rules("30s")
    );
    let daemon = Daemon::with_rules(&both);
    assert_eq!(fill(&daemon, "ann").len(), 3);
    let used = |rule: &str, user: &str| {
        daemon.get(&format!("/v1/buckets?rule={rule}&user={user}")).json()["used"].as_u64().unwrap()
    };
    assert_eq!((used("in-flight", "ann"), used("rate", "ann")), (3, 3));
    let checked = daemon.check(&[("user", "bob")]);
    let asked: Vec<_> =
        checked["rules"].as_array().unwrap().iter().map(|rule| rule["rule"].as_str().unwrap()).collect();
    assert_eq!((asked, used("in-flight", "bob")), (vec!["rate"], 0), "{checked}");
    let why = daemon.post("/v1/explain", &json!({ "attributes": { "user": "bob" } })).json();
    let rule = why["considered"].as_array().unwrap().iter().find(|rule| rule["rule"] == "in-flight").unwrap();
    assert!(
        rule["outcome"] == "holds_only" && rule["why"].as_str().unwrap().contains("/v1/acquire"),
        "{rule}"
    );
    let full = acquire_as(&daemon, "cid", &json!({ "cost": 3 }));
    assert!(released(&daemon, full["lease"].as_str().unwrap()));
    assert_eq!(used("rate", "cid"), 3, "what was charged over time is not given back");
}

#[test]
fn what_is_no_acquisition_and_what_is_no_lease_is_refused_by_name() {
    let daemon = Daemon::with_rules(&rules("30s"));
    let refused = |route: &str, body: Value| {
        let reply = daemon.post(route, &body);
        assert_eq!(reply.status, 400, "{reply:?}");
        reply.json()["error"]["field"].as_str().unwrap_or_default().to_owned()
    };
    let ann = json!({ "user": "ann" });
    assert_eq!(refused("/v1/acquire", json!({ "attributes": ann, "cost": -1 })), "cost");
    assert_eq!(refused("/v1/acquire", json!({ "attributes": ann, "id": "" })), "id");
    assert_eq!(refused("/v1/acquire", json!({ "checks": [{ "attributes": ann }] })), "checks");
    assert_eq!(refused("/v1/check", json!({ "attributes": ann, "id": "x" })), "id");
    for lease in ["", "nothing", "AAAA", "AAAAAAAAAAAAAAAAAAAAAA"] {
        assert_eq!(refused("/v1/release", json!({ "lease": lease })), "lease", "{lease}");
        assert_eq!(refused("/v1/renew", json!({ "lease": lease })), "lease", "{lease}");
    }
    assert_eq!(refused("/v1/release", json!({})), "");
}

#[test]
fn a_lowered_limit_and_another_hold_reach_who_holds_already() {
    let daemon = Daemon::with_rules(&rules("30s"));
    let leases = fill(&daemon, "ann");
    daemon.reload(&rules("20s").replace("limit = 10", "limit = 4"), "in-flight", 4);
    assert_eq!(give(&daemon, "renew", &leases[0])["renewed"], false, "ten are above four");
    leases[4..].iter().for_each(|lease| assert!(released(&daemon, lease)));
    assert_eq!(give(&daemon, "renew", &leases[0])["expires_ms"], 20_000);
    let full = acquire(&daemon);
    assert!(full["allowed"] == false && full["retry_after_ms"].as_u64() <= Some(20_000), "{full}");
}

#[test]
fn a_rule_that_only_logs_denies_nothing_and_holds_what_fits() {
    let daemon = Daemon::with_rules(&rules("30s").replace("limit = 10", "limit = 1\naction = \"log_only\""));
    let (first, second) = (acquire(&daemon), acquire(&daemon));
    assert_eq!((&first["allowed"], &second["allowed"]), (&json!(true), &json!(true)));
    assert!(first["lease"].is_string() && second["lease"].is_null(), "{second}");
    assert_eq!(
        (&second["rules"][0]["allowed"], &second["rules"][0]["shadow"]),
        (&json!(false), &json!(true))
    );
}

#[test]
fn the_command_line_acquires_renews_and_releases() {
    let daemon = Daemon::with_rules(&rules("30s").replace("limit = 10", "limit = 1"));
    let acquired = daemon.run(&["acquire", "user=ann"]);
    assert!(acquired.code == 0 && acquired.out.contains("Held for 30"), "{acquired:?}");
    let lease = acquired.out.trim_end().lines().last().unwrap().to_owned();
    assert_eq!(daemon.run(&["acquire", "user=ann"]).code, 4);
    let why = daemon.run(&["why", "user=ann"]);
    assert!(why.out.contains("limit 1, ") && !why.out.contains(" per "), "{why:?}");
    let renewed = daemon.run(&["renew", &lease]);
    assert!(renewed.code == 0 && renewed.out.contains("another 30"), "{renewed:?}");
    let released = daemon.run(&["release", &lease]);
    assert!(released.code == 0 && released.out.contains("Given back"), "{released:?}");
    assert_eq!((daemon.run(&["release", &lease]).code, daemon.run(&["renew", &lease]).code), (0, 4));
    // One in 64 leases begins as an option does, and is the daemon's to judge all the same.
    for step in ["renew", "release"] {
        let refused = daemon.run(&[step, "-hZq_no-lease-of-ours"]);
        assert!(refused.code == 1 && refused.err.contains("this is no lease"), "{refused:?}");
    }
    let listed = daemon.run(&["rules", "list"]);
    assert!(listed.out.contains("1 at once, held 30s"), "{listed:?}");
}

#[test]
fn an_escrow_rule_gives_no_places_while_redis_may_have_forgotten_who_holds() {
    let server = Server::start(&[]);
    let shared =
        format!("{}[rules.global]\nmode = \"escrow\"\nshares = {{ eu-west = 7, us-east = 3 }}\n", one("3s"));
    let config = format!(
        "region = \"us-east\"\n[peers]\nregions = [\"eu-west\", \"us-east\"]\n{}",
        on("single", &[server.url()])
    );
    let daemon = Daemon::with(&shared, &config, &[]);
    let leases =
        eventually("one hold is over", || Some(fill(&daemon, "ann")).filter(|leases| !leases.is_empty()));
    assert_eq!(leases.len(), 3);
    // It keeps nothing on disk.
    let _server = server.restart();
    let closed = eventually("it answers again", || {
        let answer = acquire(&daemon);
        (answer["degraded"] == false).then_some(answer)
    });
    assert_eq!((&closed["allowed"], &closed["remaining"]), (&json!(false), &json!(0)), "{closed}");
    let wait = closed["retry_after_ms"].as_u64().unwrap();
    assert!(wait > 0 && wait <= 5_000, "{closed}");
    eventually("one hold is over", || (acquire(&daemon)["allowed"] == true).then_some(()));
}

#[test]
fn a_region_holds_its_share_and_no_more() {
    for mode in ["split", "escrow"] {
        let shared = format!(
            "{}[rules.global]\nmode = \"{mode}\"\nshares = {{ eu-west = 7, us-east = 3 }}\n",
            one("5s")
        );
        let config = "region = \"us-east\"\n[peers]\nregions = [\"eu-west\", \"us-east\"]\n";
        let mut daemon = Daemon::with(&shared, config, &[]);
        // What an earlier memory gave may still be held, so `escrow` gives nothing for one hold.
        eventually("it knows who holds", || {
            (acquire_as(&daemon, "x", &json!({}))["allowed"] == true).then_some(())
        });
        assert_eq!(fill(&daemon, "ann").len(), 3, "{mode}");
        daemon.kill();
        daemon.start_again();
        let soon = acquire(&daemon);
        assert_eq!(soon["allowed"], mode == "split", "{mode}: {soon}");
    }
}

#[test]
fn where_redis_is_away_the_policy_answers_and_what_was_held_meanwhile_counts_afterwards() {
    let mut server = Server::start(&[]);
    let of = |name: &str, policy: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nmatch = {{ kind = \"{name}\" }}\nalgorithm = \"concurrency\"\nlimit = 4\nhold = \"60s\"\non_failure = \"{policy}\"\n"
        )
    };
    let rules = [of("local", "local"), of("open", "open"), of("closed", "closed")].concat();
    let daemon = Daemon::with(&rules, &on("single", &[server.url()]), &[]);
    let ask = |kind: &str| {
        let reply = daemon.post("/v1/acquire", &json!({ "attributes": { "kind": kind } }));
        reply.json()
    };
    assert_eq!(ask("local")["degraded"], false, "one place is held there");
    server.kill();
    eventually("it is noticed", || (ask("closed")["degraded"] == true).then_some(()));
    let answers: Vec<Value> = (0..6).map(|_| ask("local")).collect();
    let admitted: Vec<&Value> = answers.iter().filter(|answer| answer["allowed"] == true).collect();
    assert_eq!(admitted.len(), 3, "what was known to be held counts: {answers:?}");
    assert!(admitted.iter().all(|answer| answer["degraded"] == true));
    assert_eq!(
        (ask("open")["allowed"].clone(), ask("closed")["allowed"].clone()),
        (json!(true), json!(false))
    );
    let lease = admitted[0]["lease"].as_str().unwrap();
    let back = give(&daemon, "release", lease);
    assert_eq!((&back["released"], &back["degraded"]), (&json!(true), &json!(true)), "{back}");
    assert_eq!(ask("local")["allowed"], true);

    // It comes back without what it held.
    let _server = server.restart();
    eventually("it decides again", || (ask("closed")["degraded"] == false).then_some(()));
    eventually("what was held meanwhile is held there too", || {
        let bucket = daemon.get("/v1/buckets?rule=local").json();
        (bucket["degraded"] == false && bucket["used"] == 3).then_some(())
    });
    assert_eq!(
        (ask("local")["allowed"].clone(), ask("local")["allowed"].clone()),
        (json!(true), json!(false))
    );
    assert!(released(&daemon, admitted[1]["lease"].as_str().unwrap()), "by the same lease");
    assert_eq!(ask("local")["allowed"], true);
}
