//! Reports and reservations that make no sense, or hardly any: each has a clear answer, nothing is lost, and
//! nobody is locked out for longer than `debt_max` says.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::http;
use super::support::reservations::{ALGORITHMS, commit, remaining, reserve, rules};

/// What a body is refused with: the field, and why.
fn refused(daemon: &Daemon, path: &str, body: &str) -> (u16, String, String) {
    let reply = http::post(daemon.http, path, body);
    let error = reply.json()["error"].clone();
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (reply.status, text("field"), text("message"))
}

#[test]
fn a_report_without_a_sensible_cost_is_refused_by_its_field_and_charges_nothing() {
    let daemon = Daemon::with_rules(&rules());
    for (cost, field) in [
        ("-1", "cost"),
        ("1.5", "cost"),
        ("\"7\"", "cost"),
        ("9223372036854775808", "cost"),
        ("18446744073709551616", "cost"),
        ("1e400", ""),
        ("NaN", ""),
    ] {
        let body = format!("{{\"attributes\":{{\"how\":\"gcra\",\"user\":\"ann\"}},\"cost\":{cost}}}");
        let (status, named, why) = refused(&daemon, "/v1/report", &body);
        assert_eq!((status, named.as_str()), (400, field), "{cost}: {why}");
        assert!(!why.is_empty(), "{cost}");
    }
    let (status, field, _) = refused(&daemon, "/v1/report", "{\"attributes\":{}}");
    assert_eq!((status, field.as_str()), (400, "cost"), "a report says what was used");
    assert_eq!(remaining(&daemon, ("gcra", "ann")), 100);
}

#[test]
fn the_largest_reports_owe_one_limit_and_the_least_only_asks() {
    let daemon = Daemon::with_rules(&rules());
    for how in ALGORITHMS {
        for (user, cost) in [("a", 1_u64 << 32), ("b", (1 << 63) - 1)] {
            let body = json!({ "attributes": { "how": how, "user": user }, "cost": cost });
            let reply = daemon.post("/v1/report", &body);
            let told = reply.json();
            assert_eq!((reply.status, &told["allowed"], &told["remaining"]), (200, &json!(false), &json!(0)));
            // A limit of a day and as much that is owed: two days and the rest of this one.
            let retry = told["retry_after_ms"].as_u64().unwrap();
            assert!(retry <= 2 * 86_400_000, "{how}: {retry} ms for {cost}");
            let bucket = daemon.get(&format!("/v1/buckets?rule={how}&user={user}")).json();
            let used = bucket["used"].as_u64().unwrap();
            assert!((199..=200).contains(&used), "{how}: {bucket}");
        }
        let body = json!({ "attributes": { "how": how, "user": "c" }, "cost": 0 });
        assert_eq!(daemon.post("/v1/report", &body).json()["remaining"], 100, "{how}");
    }
}

#[test]
fn a_commit_of_any_size_is_taken_once_and_one_that_makes_no_sense_by_its_field() {
    let daemon = Daemon::with_rules(&rules());
    for how in ALGORITHMS {
        for (user, actual, left) in [("a", 0, 100), ("b", 1 << 32, 0), ("c", 1 << 63, 0), ("d", u64::MAX, 0)]
        {
            let made = reserve(&daemon, (how, user), &json!({ "amount": 20 }));
            let (status, _, why) = refused(
                &daemon,
                "/v1/commit",
                &format!("{{\"reservation\":{},\"actual\":-1}}", made["reservation"]),
            );
            assert!(status == 400 && !why.is_empty(), "{why}");
            assert_eq!(commit(&daemon, &made, actual)["committed"], true, "{how}: {actual}");
            assert_eq!(commit(&daemon, &made, actual)["committed"], false, "{how}: {actual}");
            // A level has a part of a permit left for a while.
            assert!(remaining(&daemon, (how, user)).abs_diff(left) <= 1, "{how}: {actual}");
            let bucket = daemon.get(&format!("/v1/buckets?rule={how}&user={user}")).json();
            assert!(bucket["used"].as_u64() <= Some(200), "{how}: {actual}: {bucket}");
        }
    }
}

#[test]
fn reservations_of_nobody_and_of_another_region_are_refused_and_charge_nothing() {
    let here = Daemon::with(&rules(), "region = \"eu-west\"\n", &[]);
    let there = Daemon::with(&rules(), "region = \"us-east\"\n", &[]);
    let who = ("fixed_window", "ann");
    let made = reserve(&there, who, &json!({ "amount": 20 }));
    let foreign = made["reservation"].as_str().unwrap();
    let settle = |text: &str| {
        let body = json!({ "reservation": text, "actual": 5 }).to_string();
        refused(&here, "/v1/commit", &body)
    };
    let (status, field, why) = settle(foreign);
    assert!(status == 400 && field == "reservation" && why.contains("another region"), "{field}: {why}");
    let long = "A".repeat(20_000);
    for text in ["", "AAAA", "no base64!", "====", &long, &foreign[..foreign.len() / 2]] {
        let (status, field, why) = settle(text);
        assert!(status == 400 && field == "reservation" && !why.is_empty(), "{status} {field}: {why}");
    }
    for body in ["{}", "[]", "null", "{\"reservation\":5,\"actual\":1}", "{\"reservation\":\"AAAA\"}"] {
        assert_eq!(refused(&here, "/v1/commit", body).0, 400, "{body}");
    }
    assert_eq!(remaining(&here, who), 100);
    assert_eq!(commit(&there, &made, 5)["committed"], true, "and the reservation itself is as it was");
}

#[test]
fn an_invented_reservation_gives_nothing_back_in_memory() {
    let daemon = Daemon::with_rules(&rules());
    for how in ALGORITHMS {
        let who = (how, "mallory");
        let made = reserve(&daemon, who, &json!({ "amount": 60 }));
        let mut bytes = URL_SAFE_NO_PAD.decode(made["reservation"].as_str().unwrap()).unwrap();
        bytes[3] ^= 1;
        let invented: Value = json!({ "reservation": URL_SAFE_NO_PAD.encode(&bytes) });
        assert_eq!(daemon.post("/v1/cancel", &invented).json()["lapsed"], true, "{how}");
        assert!(remaining(&daemon, who) <= 41, "{how}");
        assert_eq!(commit(&daemon, &made, 0)["lapsed"], false, "{how}");
    }
}
