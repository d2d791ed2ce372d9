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

#[test]
fn of_one_client_a_dozen_wait_and_the_rest_is_denied_and_not_charged() {
    let rule =
        slow().replace("burst = 1", "burst = 1\nper = [\"user\"]").replace("limit = 1", "limit = 1000");
    let daemon = Daemon::with_rules(&rule.replace("\"50s\"", "\"1000s\""));
    let ask = |user: &str| {
        let body = json!({ "attributes": { "path": "/paced", "user": user } }).to_string();
        http::post(daemon.http, "/v1/check", body).json()
    };
    let (admitted, denied) = std::thread::scope(|scope| {
        let all: Vec<_> = (0..60).map(|_| scope.spawn(|| ask("rude")["allowed"] == true)).collect();
        let polite = Instant::now();
        assert_eq!(ask("polite")["allowed"], true);
        assert!(polite.elapsed().as_secs() < 5, "another bucket waits for nobody");
        let admitted = all.into_iter().filter(|_| true).map(|one| one.join().unwrap());
        let admitted: Vec<bool> = admitted.collect();
        let count = admitted.iter().filter(|admitted| **admitted).count();
        (count, admitted.len() - count)
    });
    // One in time and twelve that wait; as each of those ends another may.
    assert!((13..45).contains(&admitted), "{admitted} admitted, {denied} denied");
    let used = daemon.get("/v1/buckets?rule=paced&user=rude").json()["used"].as_u64().unwrap();
    assert!(usize::try_from(used).unwrap() <= admitted, "{used} charged of {admitted}");
}

const BLOCK: &str = "[[rules]]\nname = \"closed\"\nmatch = { path = \"/closed\" }\naction = \"block\"\n";
