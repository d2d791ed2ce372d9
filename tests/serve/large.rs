//! Calls and heads of any size are decided: a gateway lets the request of a call pass that is refused.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message as _;

use super::support::daemon::Daemon;
use super::support::rls;

const OVER_LIMIT: i32 = 2;

const RULES: &str = r#"
[[rules]]
name = "closed"
match = { path = "/closed*" }
action = "block"

[[rules]]
name = "per-user"
per = ["user"]
algorithm = "fixed_window"
limit = 5
window = "24h"
"#;

#[test]
fn a_call_that_is_too_long_is_over_its_limit_and_charges_nothing() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let query = "q".repeat(55_000);
    let long = |user: &str, count: usize| {
        let path = format!("/open?{query}");
        let mut descriptors = vec![rls::descriptor(&[("user", user)])];
        descriptors.extend((0..count).map(|_| rls::descriptor(&[("path", &path)])));
        rls::request(descriptors)
    };
    let within = client.ask(long("ann", 10)).unwrap();
    assert_eq!(within.overall_code, 1);
    for count in [20, 40, 250] {
        let answer = client.ask(long("ann", count)).unwrap();
        assert_eq!(answer.overall_code, OVER_LIMIT, "{count} descriptors");
        assert_eq!(answer.statuses[0].code, 1, "the first one could be judged");
        assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().name, "per-user");
    }
    let user = serde_json::json!({ "attributes": { "user": "ann" }, "cost": 0 });
    assert_eq!(
        daemon.post("/v1/check", &user).json()["remaining"],
        4,
        "charged once, by the call that was read"
    );
    assert_eq!(client.ask(long("ann", 1)).unwrap().overall_code, 1, "the connection goes on");
}

#[test]
fn a_message_of_one_descriptor_that_is_too_long_is_over_its_limit() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    for length in [2 << 20, 9 << 20] {
        let value = "v".repeat(length);
        let message = rls::request(vec![rls::descriptor(&[("path", &value)])]).encode_to_vec();
        let answer = client.ask_bytes(message).unwrap();
        assert_eq!(RateLimitResponse::decode(answer).unwrap().overall_code, OVER_LIMIT, "{length} bytes");
    }
    // Kuadrant's calls are read alike.
    let value = "v".repeat(2 << 20);
    let asked = rls::request(vec![rls::descriptor(&[("user", &value)])]);
    for call in ["CheckRateLimit", "Reserve"] {
        let answer: RateLimitResponse = client.kuadrant(call, &asked).unwrap();
        assert_eq!(answer.overall_code, OVER_LIMIT, "{call}");
    }
}

#[test]
fn a_head_of_any_length_is_read() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let closed = || rls::request(vec![rls::descriptor(&[("path", "/closed")])]);
    for length in [1_000, 17_000, 60_000, 200_000, 2_000_000] {
        let answer = client.ask_with(closed(), "tracestate", &"t".repeat(length)).unwrap();
        assert_eq!(answer.overall_code, OVER_LIMIT, "{length} bytes");
        assert_eq!(client.ask(closed()).unwrap().overall_code, OVER_LIMIT, "the connection goes on");
    }
}
