//! The rows, played one after the other, and what else a case needs.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::asked::{StandIn, rules, told};
use super::rows::{ROWS, Row};
use super::support::eventually;

fn domain(case: u16) -> String {
    format!("c{case}")
}

pub(crate) fn play(daemon: &StandIn, rows: &[Row]) {
    let mut wrong = Vec::new();
    for (case, _, calls) in rows {
        for (place, (call, expected)) in calls.iter().enumerate() {
            let told = daemon.call(&domain(*case), call);
            if told != *expected {
                wrong.push(format!("case {case}, call {place} {call}: {told}, expected {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub(crate) fn folder(rows: &[Row]) -> Vec<(String, Value)> {
    rows.iter().map(|(case, lines, _)| (domain(*case), rules(lines))).collect()
}

#[test]
fn every_row_is_answered_as_the_reference_service_answers() {
    let daemon = StandIn::with(&folder(ROWS), &[]);
    play(&daemon, ROWS);
    assert_eq!(daemon.call("", "[k=v]"), "Unknown: rate limit domain must not be empty", "case 106");
    assert_eq!(daemon.call("other", "[k=v]"), "OK | OK - 0", "case 13");
    assert_eq!(daemon.call("other", "[k=v limit=3/hour]"), "OK | OK - 0", "case 27");
    assert!(
        daemon.debug("/stats").contains("ratelimit.service.rate_limit.other.domain_not_found: 2"),
        "case 13"
    );
}

#[test]
fn windows_lie_on_the_epoch_and_end_in_whole_seconds() {
    let lines = &["k 5/hour", "w 5/week", "m 5/month", "y 5/year"];
    let daemon = StandIn::with(&[("d".to_owned(), rules(lines))], &[]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let answer = daemon.answer("d", "[k=v] [w=v] [m=v] [y=v]").unwrap();
    const DAY: u64 = 86_400;
    for (case, unit, length, status) in [
        (46, 3, 3_600, &answer.statuses[0]),
        (44, 7, 7 * DAY, &answer.statuses[1]),
        (45, 5, 30 * DAY, &answer.statuses[2]),
        (45, 6, 365 * DAY, &answer.statuses[3]),
    ] {
        assert_eq!(status.current_limit.as_ref().unwrap().unit, unit, "case {case}");
        let reset = status.duration_until_reset.as_ref().unwrap();
        let (left, nanos) = (u64::try_from(reset.seconds).unwrap(), reset.nanos);
        assert_eq!(nanos, 0, "case {case}");
        // Asked a moment after the clock was read.
        let expected = length - now % length;
        let near = (expected.saturating_sub(20)..=expected).contains(&left) || expected < 20;
        assert!(near, "case {case}: {left} of {expected}");
    }
}

#[test]
fn global_switches_hold_for_all_limits() {
    const SHADOW: &[Row] = &[
        (59, &["k 1/day"], &[("[k=v]", "OK | OK 1 0"), ("[k=v]", "OK | OVER 1 0")]),
        (
            69,
            &["k 1/day quota", "j 5/day quota"],
            &[
                ("[k=v] [j=v]", "OK | OK 1 0 | OK 5 4"),
                ("[k=v] [j=v]", "OK | OVER 1 0 | OK 5 3"),
                ("[k=v h=0] [j=v h=6]", "OK | OVER 1 0 | OVER 5 0"),
            ],
        ),
    ];
    let daemon = StandIn::with(&folder(SHADOW), &[("SHADOW_MODE", "true")]);
    play(&daemon, SHADOW);
    // Of the quotas only the last call would have been denied: one is over, then all are.
    eventually("cases 59, 69: what would have been denied is counted", || {
        let text = daemon.get("/metrics").body;
        text.contains("\nratelimit_service_global_shadow_mode 2\n").then_some(())
    });
    const QUOTA: &[Row] = &[
        (
            66,
            &["k 1/day"],
            &[("[k=v] [none=x]", "OK | OK 1 0 | OK - 0"), ("[k=v] [none=x]", "OK | OVER 1 0 | OK - 0")],
        ),
        (
            67,
            &["k 1/day", "u unlimited"],
            &[
                ("[k=v] [u=x]", "OK | OK 1 0 | OK - 4294967295"),
                ("[k=v] [u=x]", "OVER | OVER 1 0 | OK - 4294967295"),
            ],
        ),
    ];
    let daemon = StandIn::with(&folder(QUOTA), &[("QUOTA_MODE", "true")]);
    play(&daemon, QUOTA);
}

#[test]
fn headers_are_those_of_the_descriptor_with_the_least_left() {
    let lines = &["k 5/hour", "j 3/hour", "a 1/hour", "b 1/hour", "q 1/hour quota", "u unlimited"];
    let rules = [("d".to_owned(), rules(lines))];
    let daemon =
        StandIn::with(&rules, &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_LIMIT_HEADER", "X-A")]);
    let headers = |call: &str| {
        let answer = daemon.answer("d", call).unwrap();
        answer.response_headers_to_add.into_iter().map(|one| (one.key, one.value)).collect::<Vec<_>>()
    };
    let first = headers("[k=v]");
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["X-A", "RateLimit-Remaining", "RateLimit-Reset"], "cases 80, 86");
    assert_eq!((&*first[0].1, &*first[1].1), ("5", "4"), "case 80");
    assert!((1..=3_600).contains(&first[2].1.parse::<u32>().unwrap()), "case 80");
    assert_eq!(headers("[k=v] [j=v]")[0].1, "3", "case 81: the least");
    assert_eq!(headers("[a=x] [b=x]")[1].1, "0");
    // Both over: a has counted more, and b is the last.
    let over = headers("[k=z] [a=x] [b=x]");
    assert_eq!((&*over[0].1, &*over[1].1), ("1", "0"), "case 82");
    let _ = headers("[q=x]");
    assert_eq!(headers("[k=y] [q=x]")[0].1, "1", "case 83");
    assert_eq!((headers("[none=x]").len(), headers("[u=x]").len()), (0, 0), "case 84");
    let daemon = StandIn::with(&rules, &[]);
    assert!(daemon.answer("d", "[k=v]").unwrap().response_headers_to_add.is_empty(), "case 85");
}

#[test]
fn dynamic_metadata_says_what_was_asked_and_which_limits_let_it_pass() {
    let lines = &[
        "k 1/day metadata={\"a\":1,\"s\":{\"x\":1}}",
        "j 9/day metadata={\"a\":2,\"s\":{\"y\":2}}",
        "n 9/day",
    ];
    let rules = [("d".to_owned(), rules(lines))];
    let daemon = StandIn::with(&rules, &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let metadata = |call: &str| daemon.answer("d", call).unwrap().dynamic_metadata.map(|own| as_json(&own));
    let told = metadata("[n=v h=2] add=3").unwrap();
    let expected = json!({ "domain": "d", "descriptors": [{ "entries": ["n=v"], "hitsAddend": 2.0 }], "hitsAddend": 3.0 });
    assert_eq!(told, expected, "case 88");
    assert_eq!(
        metadata("[n=v limit=7/hour]").unwrap()["descriptors"][0]["limit"],
        json!("requests_per_unit:7 unit:HOUR"),
        "case 88"
    );
    let merged = metadata("[k=v] [j=v]").unwrap()["metadata"].clone();
    assert_eq!(merged, json!({ "a": 1.0, "s": { "x": 1.0, "y": 2.0 } }), "cases 89, 90");
    let denied = metadata("[k=v] [j=v]").unwrap()["metadata"].clone();
    assert_eq!(denied, json!({ "a": 2.0, "s": { "y": 2.0 } }), "case 91");
    let daemon = StandIn::with(&rules, &[]);
    assert!(daemon.answer("d", "[k=v]").unwrap().dynamic_metadata.is_none());
}

#[test]
fn what_applies_first_is_what_the_reference_applies_first() {
    let lines = &[
        "a 1/day name=x",
        "b 5/day replaces=x metadata={\"b\":1}",
        "u unlimited",
        "s 1/day shadow metadata={\"s\":1}",
        "q 1/day quota metadata={\"q\":1}",
        "k 2/day metadata={\"k\":1}",
    ];
    let switches = ["SHADOW_MODE", "LIMIT_RESPONSE_HEADERS_ENABLED", "RESPONSE_DYNAMIC_METADATA"];
    let daemon = StandIn::with(&[("d".to_owned(), rules(lines))], &switches.map(|name| (name, "true")));
    let ask = || daemon.answer("d", "[a=1] [b=1] [u=1] [s=1] [q=1] [k=1]").unwrap();
    for expected in [
        "OK | OK - 0 | OK 5 4 | OK - 4294967295 | OK 1 0 | OK 1 0 | OK 2 1",
        "OK | OK - 0 | OK 5 3 | OK - 4294967295 | OK 1 0 | OVER 1 0 | OK 2 0",
    ] {
        assert_eq!(told(&ask()), expected, "case 79");
    }
    let last = ask();
    let expected = "OK | OK - 0 | OK 5 2 | OK - 4294967295 | OK 1 0 | OVER 1 0 | OVER 2 0";
    assert_eq!(
        told(&last),
        expected,
        "case 79: what is replaced or unlimited counts nowhere, and all is shadow"
    );
    assert_eq!(
        last.response_headers_to_add[0].value, "2",
        "case 79: headers are of the ordinary limit that is over"
    );
    let metadata = as_json(&last.dynamic_metadata.unwrap())["metadata"].clone();
    assert_eq!(
        metadata,
        json!({ "b": 1.0, "s": 1.0 }),
        "case 79: of limits that passed, a shadow rule's among them"
    );
    assert_eq!(daemon.call("d", "[a=1 h=0]"), "OK | OK 1 1 x", "case 79: what is replaced is not counted");
}

/// A table of protobuf as JSON.
pub(crate) fn as_json(fields: &envoy_types::pb::google::protobuf::Struct) -> Value {
    fn value(own: &envoy_types::pb::google::protobuf::Value) -> Value {
        use envoy_types::pb::google::protobuf::value::Kind;
        match own.kind.as_ref().unwrap() {
            Kind::NullValue(_) => Value::Null,
            Kind::NumberValue(number) => json!(number),
            Kind::StringValue(text) => json!(text),
            Kind::BoolValue(flag) => json!(flag),
            Kind::StructValue(table) => as_json(table),
            Kind::ListValue(list) => list.values.iter().map(value).collect(),
        }
    }
    fields.fields.iter().map(|(key, own)| (key.clone(), value(own))).collect::<serde_json::Map<_, _>>().into()
}
