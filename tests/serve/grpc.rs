//! `envoy.service.ratelimit.v3` in full, gRPC health and reflection.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Code;

use super::support::daemon::Daemon;
use super::support::rls::{descriptor, request, with_hits, with_limit};

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;
const UNIT_UNKNOWN: i32 = 0;
const UNIT_MINUTE: i32 = 2;
const UNIT_DAY: i32 = 4;

const RULES: &str = r#"
[[rules]]
name = "per-user"
match = { path = "/api/*" }
per = ["user"]
algorithm = "fixed_window"
limit = 5
window = "24h"

[[rules]]
name = "per-address"
domain = "edge"
per = ["ip"]
algorithm = "sliding_window"
limit = 2
window = "1m"
"#;

fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name), ("path", "/api/x")])
}

#[test]
fn statuses_follow_the_descriptors_and_name_the_limit() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let unlimited = descriptor(&[("color", "blue")]);
    let answer = client.ask(request(vec![unlimited, user("ann"), user("bob")])).unwrap();
    assert_eq!((answer.overall_code, answer.statuses.len()), (OK, 3));
    assert_eq!(answer.statuses[0].current_limit, None);
    for status in &answer.statuses[1..] {
        let limit = status.current_limit.as_ref().unwrap();
        assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit), ("per-user", 5, UNIT_DAY));
        assert_eq!((status.code, status.limit_remaining), (OK, 4));
        let reset = status.duration_until_reset.as_ref().unwrap();
        assert!((0..=86_400).contains(&reset.seconds), "{reset:?}");
    }
}

#[test]
fn an_unknown_domain_or_no_matching_rule_is_ok_without_a_limit() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let elsewhere = RateLimitRequest { domain: "nowhere".to_owned(), ..request(vec![user("ann")]) };
    for asked in [elsewhere, request(vec![descriptor(&[("user", "ann"), ("path", "/other")])])] {
        let answer = client.ask(asked).unwrap();
        assert_eq!((answer.overall_code, answer.statuses.len()), (OK, 1));
        assert_eq!(answer.statuses[0].current_limit, None);
    }
}

#[test]
fn past_the_limit_it_is_over_limit_and_zero_hits_mean_one() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let codes: Vec<_> =
        (0..7).map(|_| client.ask(request(vec![user("ann")])).unwrap().overall_code).collect();
    assert_eq!(codes, [OK, OK, OK, OK, OK, OVER_LIMIT, OVER_LIMIT]);
}

#[test]
fn hits_of_the_request_count_and_are_overridden_by_the_descriptors_own() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let three = RateLimitRequest { hits_addend: 3, ..request(vec![user("ann"), with_hits(user("bob"), 2)]) };
    let answer = client.ask(three).unwrap();
    let left: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(left, [2, 3]);
}

#[test]
fn a_descriptor_of_no_hits_only_looks() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    for _ in 0..8 {
        let answer = client.ask(request(vec![with_hits(user("ann"), 0)])).unwrap();
        assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (OK, 5));
    }
}

#[test]
fn negative_hits_give_back_and_stop_at_zero_use() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    client.ask(request(vec![with_hits(user("ann"), 4)])).unwrap();
    let back = |hits| RateLimitDescriptor { is_negative_hits: true, ..with_hits(user("ann"), hits) };
    let left = |hits| client.ask(request(vec![back(hits)])).unwrap().statuses[0].limit_remaining;
    assert_eq!((left(1), left(100)), (2, 5));
}

#[test]
fn a_descriptors_limit_replaces_the_rules_for_that_call() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let asked = || request(vec![with_limit(user("ann"), 2, UNIT_MINUTE)]);
    let answer = client.ask(asked()).unwrap();
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (2, UNIT_MINUTE));
    let own = client.ask(request(vec![user("bob")])).unwrap();
    assert_eq!(own.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 5);
}

#[test]
fn what_makes_no_sense_is_an_invalid_argument() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let no_domain = RateLimitRequest { domain: String::new(), ..request(vec![user("ann")]) };
    assert_eq!(client.refusal(no_domain), Code::InvalidArgument);
    assert_eq!(client.refusal(request(vec![])), Code::InvalidArgument);
    let left = client.ask(request(vec![with_hits(user("ann"), 0)])).unwrap().statuses[0].limit_remaining;
    assert_eq!(left, 5, "what was refused was not charged");
}

#[test]
fn a_descriptor_that_cannot_be_judged_is_denied_and_the_others_are_judged() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    client.ask(request(vec![with_hits(user("ann"), 5)])).unwrap();
    let wide = descriptor(&[("user", "bob"); 65]);
    for odd in [with_limit(user("bob"), 5, UNIT_UNKNOWN), with_limit(user("bob"), 5, 99), wide] {
        let answer = client.ask(request(vec![user("ann"), odd, user("cid")])).unwrap();
        let codes: Vec<_> = answer.statuses.iter().map(|status| status.code).collect();
        assert_eq!((answer.overall_code, codes), (OVER_LIMIT, vec![OVER_LIMIT, OVER_LIMIT, OK]));
    }
    let many = client.ask(request(vec![user("dan"); 257])).unwrap();
    assert_eq!(many.overall_code, OVER_LIMIT);
    for name in ["bob", "cid", "dan"] {
        let left = client.ask(request(vec![with_hits(user(name), 0)])).unwrap().statuses[0].limit_remaining;
        assert_eq!(left, 5, "{name} was not charged");
    }
}

#[test]
fn values_of_any_length_and_any_bytes_are_counted() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let long = "x".repeat(1_100);
    for name in ["", &long, &format!("{long}y")] {
        let codes: Vec<_> =
            (0..6).map(|_| client.ask(request(vec![user(name)])).unwrap().overall_code).collect();
        assert_eq!(codes, [OK, OK, OK, OK, OK, OVER_LIMIT], "{}", name.len());
    }
    let mut bytes = prost::Message::encode_to_vec(&request(vec![user("u#"), user("ann")]));
    for byte in bytes.iter_mut().filter(|byte| **byte == b'#') {
        *byte = 0xff;
    }
    let codes: Vec<_> = (0..6)
        .map(|_| {
            let answer = client.ask_bytes(bytes.clone()).unwrap();
            let answer: RateLimitResponse = prost::Message::decode(answer).unwrap();
            answer.overall_code
        })
        .collect();
    assert_eq!(codes, [OK, OK, OK, OK, OK, OVER_LIMIT]);
    let left = client.ask(request(vec![with_hits(user("u%FF"), 0)])).unwrap().statuses[0].limit_remaining;
    assert_eq!(left, 0, "bytes that are not UTF-8 are spelled as in a path");
}

#[test]
fn what_is_given_back_is_given_back_whatever_else_is_denied() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    client.ask(request(vec![with_hits(user("ann"), 5), with_hits(user("bob"), 5)])).unwrap();
    let back = RateLimitDescriptor { is_negative_hits: true, ..with_hits(user("ann"), 2) };
    let odd = with_limit(user("bob"), 5, UNIT_UNKNOWN);
    for (turn, denied) in [user("bob"), odd].into_iter().enumerate() {
        let answer = client.ask(request(vec![denied, back.clone()])).unwrap();
        let codes: Vec<_> = answer.statuses.iter().map(|status| status.code).collect();
        assert_eq!((answer.overall_code, codes), (OVER_LIMIT, vec![OVER_LIMIT, OK]));
        assert_eq!(answer.statuses[1].limit_remaining, 2 * u32::try_from(turn + 1).unwrap());
    }
}

#[test]
fn a_descriptors_limit_holds_where_no_rule_is_for_it() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let ask = |domain: &str, entries: &[(&str, &str)], permits| {
        let own = with_limit(descriptor(entries), permits, UNIT_DAY);
        let asked = RateLimitRequest { domain: domain.to_owned(), ..request(vec![own]) };
        client.ask(asked).unwrap()
    };
    let codes = |domain: &str, entries: &[(&str, &str)]| -> Vec<_> {
        (0..3).map(|_| ask(domain, entries, 2).overall_code).collect()
    };
    let (plan, path) = (("plan", "free"), ("path", "/x"));
    for domain in ["default", "nowhere"] {
        assert_eq!(codes(domain, &[plan, path]), [OK, OK, OVER_LIMIT], "{domain}");
        assert_eq!(codes(domain, &[plan, ("path", "//x?q")]), [OVER_LIMIT; 3], "{domain}: the same path");
        assert_eq!(codes(domain, &[plan]), [OK, OK, OVER_LIMIT], "{domain}: another descriptor");
    }
    let answer = ask("default", &[plan, path], 3);
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit), (3, UNIT_DAY));
    assert_eq!(answer.overall_code, OK, "a raised limit helps at once");
}

#[test]
fn a_key_that_comes_twice_has_two_values() {
    let rules = RULES.to_owned()
        + "[[rules]]\nname = \"pair\"\ndomain = \"twice\"\nper = [\"k\"]\nlimit = 1\nwindow = \"24h\"\n\
           [[rules]]\nname = \"one\"\ndomain = \"exact\"\nmatch = { k = \"a\" }\nexact = true\nlimit = 0\nwindow = \"24h\"\n\
           [[rules]]\nname = \"both\"\ndomain = \"exact\"\nmatch = { k = [\"a\", \"b\"] }\npriority = 1\nexact = true\nlimit = 0\nwindow = \"24h\"\n\
           [[rules]]\nname = \"any\"\ndomain = \"loose\"\nmatch = { k = \"b\" }\nlimit = 0\nwindow = \"24h\"\n";
    let daemon = Daemon::with_rules(&rules);
    let client = daemon.rls();
    let ask = |domain: &str, values: &[&str]| {
        let entries: Vec<_> = values.iter().map(|value| ("k", *value)).collect();
        let asked = RateLimitRequest { domain: domain.to_owned(), ..request(vec![descriptor(&entries)]) };
        client.ask(asked).unwrap().overall_code
    };
    for values in [&["a", "b"][..], &["a", "c"], &["a"], &["b", "a"], &["a", "b", "c"], &["a,b"]] {
        assert_eq!((ask("twice", values), ask("twice", values)), (OK, OVER_LIMIT), "{values:?}");
    }
    for (values, code) in [
        (&["a"][..], OVER_LIMIT),
        (&["a", "b"], OVER_LIMIT),
        (&["a", "c"], OK),
        (&["c", "b"], OK),
        (&["c"], OK),
    ] {
        assert_eq!(ask("exact", values), code, "{values:?}");
    }
    assert_eq!((ask("loose", &["a", "b"]), ask("loose", &["a", "c"])), (OVER_LIMIT, OK));
}

#[test]
fn where_one_descriptor_is_denied_none_is_charged() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    client.ask(request(vec![with_hits(user("ann"), 5)])).unwrap();
    let answer = client.ask(request(vec![user("bob"), user("ann"), user("cid")])).unwrap();
    assert_eq!(answer.overall_code, OVER_LIMIT);
    let codes: Vec<_> = answer.statuses.iter().map(|status| status.code).collect();
    assert_eq!(codes, [OK, OVER_LIMIT, OK]);
    for name in ["bob", "cid"] {
        let left = client.ask(request(vec![with_hits(user(name), 0)])).unwrap().statuses[0].limit_remaining;
        assert_eq!(left, 5, "{name} was not charged");
    }
}

#[test]
fn a_remote_address_is_read_as_ip() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let from = |address: &str| RateLimitRequest {
        domain: "edge".to_owned(),
        ..request(vec![descriptor(&[("remote_address", address)])])
    };
    let codes: Vec<_> = (0..3).map(|_| client.ask(from("203.0.113.7")).unwrap().overall_code).collect();
    assert_eq!(codes, [OK, OK, OVER_LIMIT]);
    assert_eq!(client.ask(from("203.0.113.8")).unwrap().overall_code, OK);
}

#[test]
fn http_and_grpc_count_in_the_same_buckets() {
    let daemon = Daemon::with_rules(RULES);
    let attributes = [("user", "ann"), ("path", "/api/y")];
    assert_eq!(daemon.admitted(&attributes, 3), 3);
    let answer = daemon.rls().ask(request(vec![user("ann")])).unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 1);
}

#[test]
fn health_and_reflection_answer() {
    let daemon = Daemon::with_rules(RULES);
    let client = daemon.rls();
    let serving = tonic_health::pb::health_check_response::ServingStatus::Serving as i32;
    assert_eq!(client.health("").unwrap(), serving);
    assert_eq!(client.health("envoy.service.ratelimit.v3.RateLimitService").unwrap(), serving);
    assert_eq!(client.health("nothing.of.the.kind").unwrap_err().code(), Code::NotFound);
    let services = client.reflected().unwrap();
    assert!(
        services.iter().any(|name| name == "envoy.service.ratelimit.v3.RateLimitService"),
        "{services:?}"
    );
    for name in ["RateLimitService", "RateLimitRequest", "RateLimitResponse.DescriptorStatus"] {
        let files = client.described(&format!("envoy.service.ratelimit.v3.{name}")).unwrap();
        assert!(files > 0, "{name}");
    }
    assert!(client.described("nothing.of.the.Kind").is_err());
}
