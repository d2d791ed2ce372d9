//! Whole daemons on real Redis servers, from outside: buckets looked at and reset, and the store's health.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::redis_proxy::Proxy;
use crate::redis_servers::{Cluster, Server};
use crate::support::daemon::Daemon;
use crate::support::{eventually, http};
use serde_json::{Value, json};

const RULES: &str = r#"
[[rules]]
name = "per-user"
match = { path = "/a" }
per = ["user"]
algorithm = "fixed_window"
limit = 5
window = "24h"

[[rules]]
name = "logged"
match = { path = "/b" }
per = ["user"]
algorithm = "sliding_log"
limit = 5
window = "24h"

[[rules]]
name = "open"
match = { path = "/c" }
algorithm = "gcra"
limit = 5
window = "24h"
action = "allow"

[[users]]
id = "vip"
overrides = { "per-user" = { limit = 50 } }
"#;

fn on(topology: &str, nodes: &[String]) -> String {
    format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"{topology}\"\nnodes = {nodes:?}\ntimeout = \"500ms\"\n"
    )
}

fn delete(daemon: &Daemon, query: &str) -> http::Reply {
    http::request(daemon.http, "DELETE", &format!("/v1/buckets?{query}"), &[], b"")
}

fn used(daemon: &Daemon, query: &str) -> Value {
    let bucket = daemon.get(&format!("/v1/buckets?{query}")).json();
    assert_eq!(bucket["degraded"], false, "{bucket}");
    bucket["used"].clone()
}

fn buckets_can_be_looked_at_and_reset(daemon: &Daemon) {
    for (rule, path) in [("per-user", "/a"), ("logged", "/b")] {
        let (ann, bob) = ([("user", "ann"), ("path", path)], [("user", "bob"), ("path", path)]);
        assert_eq!((daemon.admitted(&ann, 7), daemon.admitted(&bob, 2)), (5, 2));
        let of = |user: &str| format!("rule={rule}&user={user}");
        let bucket = daemon.get(&format!("/v1/buckets?{}", of("ann"))).json();
        assert_eq!(bucket["identity"], json!({ "user": "ann" }), "{bucket}");
        assert_eq!((&bucket["used"], &bucket["remaining"]), (&json!(5), &json!(0)), "{bucket}");

        let reply = delete(daemon, &of("ann"));
        let expected = json!({ "rule": rule, "identity": { "user": "ann" }, "existed": true });
        assert_eq!((reply.status, reply.json()), (200, expected));
        assert_eq!((used(daemon, &of("ann")), used(daemon, &of("bob"))), (json!(0), json!(2)));
        assert_eq!(daemon.admitted(&ann, 7), 5, "it counts from zero again");
        assert_eq!(delete(daemon, &of("nobody")).json()["existed"], false);
    }
    assert_eq!(daemon.admitted(&[("user", "vip"), ("path", "/a")], 7), 7);
    // Permits that are on their way to be drawn ahead are neither used nor free for a moment.
    eventually("what was drawn ahead is told as free", || {
        let vip = daemon.get("/v1/buckets?rule=per-user&user=vip").json();
        assert_eq!(vip["limit"], json!(50), "{vip}");
        (vip["remaining"] == json!(43) && vip["used"] == json!(7)).then_some(())
    });
    for (query, status) in
        [("rule=nothing&user=ann", 404), ("user=ann", 400), ("rule=per-user", 400), ("rule=open", 400)]
    {
        assert_eq!((delete(daemon, query).status, query), (status, query));
    }
    let wrong = http::request(daemon.http, "PUT", "/v1/buckets?rule=per-user&user=ann", &[], b"");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, HEAD, DELETE")));
}

#[test]
fn buckets_in_memory_can_be_looked_at_and_reset() {
    buckets_can_be_looked_at_and_reset(&Daemon::with_rules(RULES));
}

#[test]
fn buckets_of_a_cluster_can_be_looked_at_and_reset_from_every_daemon() {
    let cluster = Cluster::start();
    let config = on("cluster", &cluster.urls());
    let (one, other) = (Daemon::with(RULES, &config, &[]), Daemon::with(RULES, &config, &[]));
    buckets_can_be_looked_at_and_reset(&one);
    let query = "rule=per-user&user=ann";
    assert_eq!(used(&other, query), json!(5), "both count in the same bucket");
    assert_eq!(delete(&other, query).json()["existed"], true);
    assert_eq!(used(&one, query), json!(0));

    let health = eventually("every member is known by its role", || {
        let health = one.get("/v1/regions").json()["store"].clone();
        let servers = health["servers"].as_array().unwrap();
        let count = |role: &str| servers.iter().filter(|server| server["role"] == role).count();
        ((count("primary"), count("replica"), count("seed")) == (3, 3, 0)).then_some(health)
    });
    assert_eq!((&health["backend"], &health["topology"]), (&json!("redis"), &json!("cluster")));
}

#[test]
fn the_health_of_the_store_can_be_seen_and_the_daemon_stays_ready() {
    let mut server = Server::start(&[]);
    let daemon = Daemon::with(RULES, &on("single", &[server.url()]), &[]);
    let store = || daemon.get("/v1/regions").json()["store"].clone();
    let ann = [("user", "ann"), ("path", "/a")];
    assert_eq!(daemon.admitted(&ann, 2), 2);
    let well = eventually("a round trip is known", || {
        let store = store();
        store["servers"][0]["rtt_ms"].is_f64().then_some(store)
    });
    assert_eq!((&well["state"], &well["servers"][0]["breaker"]), (&json!("ok"), &json!("closed")), "{well}");
    assert_eq!(daemon.get("/readyz").json()["store"], "ok");
    let told = daemon.run(&["regions"]);
    assert!(told.code == 0 && told.out.contains("Store: redis single, ok"), "{told:?}");

    server.kill();
    // Nobody asks for anything: the daemon notices by itself.
    let down = eventually("the store is told to be down", || {
        let store = store();
        (store["state"] == "down").then_some(store)
    });
    assert_eq!(down["servers"][0]["breaker"], "open", "{down}");
    assert!(down["servers"][0]["error"].is_string(), "{down}");
    let ready = daemon.get("/readyz");
    assert_eq!((ready.status, &ready.json()["store"]), (200, &json!("down")), "policies answer");
    let told = daemon.run(&["regions"]);
    assert!(told.out.contains("down") && told.out.contains("ago"), "{told:?}");
    // What is shown now is the daemon's own, and nothing can be reset.
    assert_eq!(daemon.get("/v1/buckets?rule=per-user&user=ann").json()["degraded"], true);
    let usage = daemon.get("/v1/usage?user=ann").json();
    assert_eq!(usage["quotas"][0]["degraded"], true, "{usage}");
    let told = daemon.run(&["usage", "--user", "ann"]);
    assert!(told.out.contains("The store did not answer"), "{told:?}");
    let refused = delete(&daemon, "rule=per-user&user=ann");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("store_unavailable")));

    let _server = server.restart();
    eventually("the store is well again", || (store()["state"] == "ok").then_some(()));
    assert_eq!(daemon.get("/readyz").json()["store"], "ok");
}

#[test]
fn a_daemon_whose_log_nobody_reads_follows_its_redis_and_gives_back_what_it_drew() {
    let mut server = Server::start(&[]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut daemon = Daemon::with_log(RULES, &on("single", &[server.url()]), &[], writer.into());
    let state = |wanted: &str| {
        let store = daemon.get("/v1/regions").json()["store"]["state"].clone();
        (store == wanted).then_some(())
    };
    eventually("the store is well", || state("ok"));
    server.kill();
    eventually("the store is told to be down", || state("down"));
    let mut server = server.restart();
    eventually("the store is well again", || state("ok"));
    let ann = [("user", "ann"), ("path", "/a")];
    assert_eq!((daemon.admitted(&ann, 7), &daemon.check(&ann)["degraded"]), (5, &json!(false)));
    assert!(daemon.metric("tidegate_log_lines_lost_total{reason=\"unwritten\"}") > Some(0.0));
    server.kill();
    eventually("the store is told to be down once more", || state("down"));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_policy_that_evicts_is_warned_of() {
    let server = Server::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let daemon = Daemon::with(RULES, &on("single", &[server.url()]), &[]);
    let told = daemon.get("/v1/regions").json()["store"]["servers"][0]["warning"].to_string();
    assert!(told.contains("allkeys-lru") && told.contains("noeviction"), "{told}");
    assert!(daemon.log().contains("allkeys-lru"), "{}", daemon.log());
}

/// A client that leaves while Redis answers has been charged. So that is counted as for those who stay.
#[test]
fn what_a_client_that_left_was_charged_is_told_like_everything_else() {
    let server = Server::start(&[]);
    let proxy = Proxy::start(server.port);
    let config = on("single", &[proxy.url()]).replace("500ms", "20s");
    let rules = "[[rules]]\nname = \"budget\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
                 limit = 1000\nwindow = \"24h\"\n";
    let daemon = Daemon::with(rules, &config, &[]);
    let allowed = || daemon.metric("tidegate_decisions_total{rule=\"budget\",outcome=\"allowed\"}");
    let reserved = json!({ "attributes": { "user": "committed" }, "amount": 10 });
    let reserved = daemon.post("/v1/reserve", &reserved).json()["reservation"].clone();
    let before = allowed().unwrap_or(0.0);
    proxy.reply_ms.store(1_000, Ordering::Relaxed);
    let batch = json!([{ "attributes": { "user": "batch" }, "cost": 41 }]);
    let asked = [
        ("/v1/check", json!({ "attributes": { "user": "check" }, "cost": 40 })),
        ("/v1/check", json!({ "checks": batch })),
        ("/v1/report", json!({ "attributes": { "user": "report" }, "cost": 42, "id": "r1" })),
        ("/v1/commit", json!({ "reservation": reserved, "actual": 43 })),
    ];
    for (path, body) in &asked {
        let body = body.to_string();
        let mut socket = TcpStream::connect(daemon.http).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    // All have left for longer than the daemon waits for who may have closed one half alone.
    std::thread::sleep(Duration::from_millis(600));
    proxy.reply_ms.store(0, Ordering::Relaxed);
    for (user, charged) in [("check", 40), ("batch", 41), ("report", 42), ("committed", 43)] {
        eventually("it is charged", || {
            (used(&daemon, &format!("rule=budget&user={user}")) == charged).then_some(())
        });
    }
    eventually("it is counted", || (allowed() == Some(before + 3.0)).then_some(()));
    let committed = daemon.metric("tidegate_reservations_total{event=\"released\"}");
    assert_eq!(committed, Some(1.0), "{}", daemon.metrics());
}

#[test]
fn answers_that_a_failure_policy_gave_are_among_the_rates() {
    let mut server = Server::start(&[]);
    let daemon = Daemon::with(RULES, &on("single", &[server.url()]), &[]);
    let rates = || {
        let answer = daemon.get("/v1/rates").json();
        ["requests", "degraded"].map(|name| {
            let sums = answer[name].as_array().unwrap().iter();
            sums.filter_map(Value::as_u64).sum::<u64>()
        })
    };
    daemon.check(&[("user", "ann"), ("path", "/a")]);
    eventually("the request is counted", || (rates() == [1, 0]).then_some(()));
    server.kill();
    assert_eq!(daemon.check(&[("user", "ann"), ("path", "/a")])["degraded"], true);
    eventually("the degraded answer is told apart", || (rates() == [2, 1]).then_some(()));
}
