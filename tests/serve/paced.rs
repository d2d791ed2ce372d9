//! `delay = "hold"`: who is held back, and what ends it.

use std::time::Instant;

use serde_json::json;

use super::support::daemon::{Daemon, Launch};
use super::support::{eventually, http, paced, rls};

/// The second request waits for its turn for a minute, less what the test took.
fn slow() -> String {
    paced::RULE.replace("limit = 5", "limit = 1").replace("\"1s\"", "\"50s\"").replace("4s", "1m")
}

const ASKED: &[(&str, &str)] = &[("path", "/paced")];

#[test]
fn checks_forward_auth_and_calls_are_held_back() {
    let daemon = Daemon::with_rules(paced::RULE);
    paced::are_paced(|| daemon.post("/v1/check", &json!({ "attributes": { "path": "/paced" } })));
    paced::are_paced(|| http::get(daemon.http, "/v1/authorize", &[("x-forwarded-uri", "/paced")]));
}

#[test]
fn who_only_asks_is_not_held_back_and_a_batch_is_told_its_delays() {
    let daemon = Daemon::with_rules(&slow());
    let delays = |body| {
        let reply = daemon.post("/v1/check", &body).json();
        let all = reply["decisions"].as_array().unwrap();
        all.iter().map(|one| one["delay_ms"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let one = json!({ "attributes": { "path": "/paced" } });
    let begun = Instant::now();
    let told = delays(json!({ "checks": [one, one] }));
    assert!(told[0] == 0 && told[1] > 0, "{told:?}");
    daemon.check_cost(ASKED, 0);
    let report = daemon.post("/v1/report", &json!({ "attributes": { "path": "/paced" }, "cost": 1 }));
    assert_eq!(report.status, 200);
    assert!(
        daemon.metric("tidegate_throttle_holds_total{outcome=\"held\"}") == Some(0.0),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn what_is_held_back_when_a_daemon_ends_is_answered_with_what_is_left() {
    let launch = Launch { drain: Some("1s"), ..Launch::default() };
    let mut daemon = Daemon::launch(launch, &slow(), "", &[]);
    assert_eq!(daemon.check(ASKED)["delay_ms"], 0);
    let (http, client) = (daemon.http, daemon.rls());
    std::thread::scope(|scope| {
        let check = scope.spawn(|| http::get(http, "/v1/authorize", &[("x-forwarded-uri", "/paced")]));
        eventually("it is held back", || {
            let bucket = daemon.get("/v1/buckets?rule=paced").json();
            (bucket["used"].as_u64()? >= 2).then_some(())
        });
        daemon.process.signal("TERM");
        let reply = check.join().unwrap();
        assert_eq!(reply.status, 200);
        let left: u64 = reply.header("x-ratelimit-delay-ms").unwrap().parse().unwrap();
        assert!(left > 0 && left < 50_000, "{left}");
    });
    assert_eq!(daemon.process.wait(std::time::Duration::from_secs(30)).code(), Some(0), "{}", daemon.log());
    drop(client);
}

#[test]
fn a_call_of_envoys_service_is_held_back_as_a_whole() {
    let daemon = Daemon::with_rules(&(paced::RULE.replace("limit = 5", "limit = 2") + BLOCK));
    let client = daemon.rls();
    let paced = || rls::descriptor(ASKED);
    let first = client.ask(rls::request(vec![paced()])).unwrap();
    assert_eq!(first.overall_code, 1);
    let begun = Instant::now();
    let held = client.ask(rls::request(vec![rls::descriptor(&[("path", "/other")]), paced()])).unwrap();
    assert_eq!((held.overall_code, held.response_headers_to_add.len()), (1, 0));
    let held = begun.elapsed();
    let denied = client.ask(rls::request(vec![rls::descriptor(&[("path", "/closed")]), paced()])).unwrap();
    assert_eq!(denied.overall_code, 2);
    // Timers count whole milliseconds, and the first request was some time before.
    assert!(held.as_millis() > 100, "{held:?}");
}

const BLOCK: &str = "[[rules]]\nname = \"closed\"\nmatch = { path = \"/closed\" }\naction = \"block\"\n";
