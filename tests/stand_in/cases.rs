//! The cases of the reference service, a row each: its rules, calls one after the other, and their answers.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::asked::{StandIn, rules};

/// Number, rules, and calls with their answers.
pub(crate) type Row = (u16, &'static [&'static str], &'static [(&'static str, &'static str)]);

/// Sections A to C, with the variables that the service has by default. Windows are days, so that no call
/// falls into the next one.
pub(crate) const ROWS: &[Row] = &[
    (1, &["k=v 5/day"], &[("[k=v]", "OK | OK 5 4")]),
    (2, &["k=v 5/day"], &[("[k=w]", "OK | OK - 0")]),
    (3, &["k 20/day", "k=v 30/day"], &[("[k=v]", "OK | OK 30 29")]),
    (4, &["k 20/day", "k=v 30/day"], &[("[k=w]", "OK | OK 20 19")]),
    (5, &["k 20/day"], &[("[k=w]", "OK | OK 20 19"), ("[k=x]", "OK | OK 20 19")]),
    (6, &["k 1/day", "k=v"], &[("[k=v]", "OK | OK - 0"), ("[k=v]", "OK | OK - 0"), ("[k=v]", "OK | OK - 0")]),
    (7, &["a=1", "  b 5/day"], &[("[a=1]", "OK | OK - 0")]),
    (8, &["a=1", "  b 5/day"], &[("[a=1, b=x]", "OK | OK 5 4")]),
    (9, &["a=1", "  b 5/day"], &[("[a=1, b=x, c=y]", "OK | OK - 0")]),
    (
        10,
        &["k5=v5 15/day", "  s=t 25/day"],
        &[("[k5=v5]", "OK | OK 15 14"), ("[k5=v5, s=t]", "OK | OK 25 24")],
    ),
    (11, &["a=1", "  b 5/day", "  b=x 10/day"], &[("[a=1, b=x]", "OK | OK 10 9")]),
    (12, &["a=1", "  b 5/day"], &[("[b=x, a=1]", "OK | OK - 0")]),
    (14, &["k=foo* 5/day"], &[("[k=foobar]", "OK | OK 5 4")]),
    (15, &["k=foo* 5/day"], &[("[k=foo]", "OK | OK 5 4")]),
    (
        16,
        &["k=a*c 5/day"],
        &[("[k=abbc]", "OK | OK 5 4"), ("[k=ac]", "OK | OK 5 4"), ("[k=abd]", "OK | OK - 0")],
    ),
    (17, &["k=a*a 5/day"], &[("[k=a]", "OK | OK - 0")]),
    (18, &["k=foo* 5/day", "k=foobar 9/day"], &[("[k=foobar]", "OK | OK 9 8")]),
    (19, &["k 2/day", "k=foo* 5/day"], &[("[k=foobar]", "OK | OK 5 4")]),
    (20, &["k=f* 5/day", "k=fo* 7/day"], &[("[k=foo]", "OK | OK 5 4")]),
    (21, &["k=foo* 5/day"], &[("[k=foo1]", "OK | OK 5 4"), ("[k=foo2]", "OK | OK 5 4")]),
    (
        22,
        &["k=foo* 5/day shared"],
        &[
            ("[k=foo1]", "OK | OK 5 4"),
            ("[k=foo1]", "OK | OK 5 3"),
            ("[k=foo1]", "OK | OK 5 2"),
            ("[k=foo2]", "OK | OK 5 1"),
            ("[k=foo2]", "OK | OK 5 0"),
            ("[k=foo2]", "OVER | OVER 5 0"),
        ],
    ),
    (
        23,
        &["k=top/* shared", "  k=in/* 3/day shared"],
        &[("[k=top/1, k=in/a]", "OK | OK 3 2"), ("[k=top/2, k=in/b]", "OK | OK 3 1")],
    ),
    (25, &["k=v 5/day name=own"], &[("[k=v limit=3/hour]", "OK | OK 3 2")]),
    (26, &["j 5/day"], &[("[k=v limit=3/hour]", "OK | OK 3 2")]),
    (
        28,
        &["k=v 5/day"],
        &[(
            "[k=v limit=3/unknown]",
            "InvalidArgument: descriptors[0].limit.unit: a limit needs a unit: SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
        )],
    ),
    (29, &["k=v 5/day"], &[("[k=v] [k=v]", "OK | OK 5 4 | OK 5 3")]),
    (
        30,
        &["k=v 5/day", "j=w 1/day"],
        &[("[k=v] [j=w]", "OK | OK 5 4 | OK 1 0"), ("[k=v] [j=w]", "OVER | OK 5 3 | OVER 1 0")],
    ),
    (31, &["k 5/day"], &[("[k=]", "OK | OK 5 4")]),
    (32, &["k 2/day"], &[("[k=v]", "OK | OK 2 1"), ("[k=v]", "OK | OK 2 0"), ("[k=v]", "OVER | OVER 2 0")]),
    (
        33,
        &["k 5/day"],
        &[
            ("[k=v] add=3", "OK | OK 5 2"),
            ("[k=v] add=3", "OVER | OVER 5 0"),
            // It stands at 6: one given back leaves 5, of which a check of nothing passes.
            ("[k=v h=1 negative]", "OK | OK 5 0"),
            ("[k=v h=1 negative]", "OK | OK 5 1"),
        ],
    ),
    (34, &["k 5/day"], &[("[k=v] add=6", "OVER | OVER 5 0"), ("[k=v] add=1", "OVER | OVER 5 0")]),
    (35, &["k 5/day"], &[("[k=v] add=0", "OK | OK 5 4")]),
    (36, &["k 5/day"], &[("[k=v h=0]", "OK | OK 5 5"), ("[k=v h=0]", "OK | OK 5 5")]),
    (37, &["k 5/day"], &[("[k=v h=5]", "OK | OK 5 0"), ("[k=v h=0]", "OK | OK 5 0")]),
    (38, &["k 5/day"], &[("[k=v h=6]", "OVER | OVER 5 0"), ("[k=v h=0]", "OVER | OVER 5 0")]),
    (39, &["k 5/day"], &[("[k=v h=2] add=4", "OK | OK 5 3")]),
    (40, &["k 9/day", "j 9/day"], &[("[k=v h=0] [j=w] add=4", "OK | OK 9 9 | OK 9 5")]),
    (41, &["k 0/day"], &[("[k=w h=0]", "OK | OK 0 0"), ("[k=v]", "OVER | OVER 0 0")]),
    (42, &["k 4294967295/second"], &[("[k=v]", "OK | OK 4294967295 4294967294")]),
    (43, &["k unlimited"], &[("[k=v]", "OK | OK - 4294967295"), ("[k=v]", "OK | OK - 4294967295")]),
    (47, &["k 5/Day", "j 5/DAY"], &[("[k=v] [j=v]", "OK | OK 5 4 | OK 5 4")]),
    (
        56,
        &["k 5/day"],
        &[
            ("[k=v h=4]", "OK | OK 5 1"),
            ("[k=v h=3 negative]", "OK | OK 5 4"),
            ("[k=v h=9 negative]", "OK | OK 5 5"),
        ],
    ),
    (57, &["k 1/day shadow"], &[("[k=v]", "OK | OK 1 0"), ("[k=v]", "OK | OK 1 0")]),
    (
        58,
        &["k 1/day shadow", "j 1/day"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 1 0"), ("[k=v] [j=v]", "OVER | OK 1 0 | OVER 1 0")],
    ),
    (
        60,
        &["k 1/day quota", "j 5/day quota"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 5 4"), ("[k=v] [j=v]", "OK | OVER 1 0 | OK 5 3")],
    ),
    (
        61,
        &["k 1/day quota", "j 1/day quota"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 1 0"), ("[k=v] [j=v]", "OVER | OVER 1 0 | OVER 1 0")],
    ),
    (
        62,
        &["k 1/day", "j 5/day quota"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 5 4"), ("[k=v] [j=v]", "OVER | OVER 1 0 | OK 5 3")],
    ),
    (
        63,
        &["k 5/day", "j 1/day quota"],
        &[("[k=v] [j=v]", "OK | OK 5 4 | OK 1 0"), ("[k=v] [j=v]", "OVER | OK 5 3 | OVER 1 0")],
    ),
    (
        64,
        &["k 5/day", "j 1/day quota", "i 5/day quota"],
        &[
            ("[k=v] [j=v] [i=v]", "OK | OK 5 4 | OK 1 0 | OK 5 4"),
            ("[k=v] [j=v] [i=v]", "OK | OK 5 3 | OVER 1 0 | OK 5 3"),
        ],
    ),
    (
        65,
        &["k 1/day quota"],
        &[("[k=v] [none=x]", "OK | OK 1 0 | OK - 0"), ("[k=v] [none=x]", "OVER | OVER 1 0 | OK - 0")],
    ),
    (68, &["k 1/day quota shadow"], &[("[k=v]", "OK | OK 1 0"), ("[k=v]", "OK | OK 1 0")]),
    (
        70,
        &["k 2/day quota", "j 1/day quota"],
        &[
            ("[k=v] [j=v]", "OK | OK 2 1 | OK 1 0"),
            ("[k=v] [j=v]", "OK | OK 2 0 | OVER 1 0"),
            ("[k=v] [j=v]", "OVER | OVER 2 0 | OVER 1 0"),
            // Counters of 3 and 3: two given back leave 1 and 1.
            ("[k=v h=2 negative] [j=v h=2 negative]", "OK | OK 2 1 | OK 1 0"),
        ],
    ),
    (
        71,
        &["k 2/day quota"],
        &[
            ("[k=v h=0]", "OK | OK 2 2"),
            ("[k=v h=1]", "OK | OK 2 1"),
            ("[k=v h=0]", "OK | OK 2 1"),
            ("[k=v h=1]", "OK | OK 2 0"),
            ("[k=v h=0]", "OK | OK 2 0"),
            ("[k=v h=1]", "OVER | OVER 2 0"),
            ("[k=v h=0]", "OVER | OVER 2 0"),
        ],
    ),
    (
        73,
        &["a 5/day name=x", "b 9/day replaces=x"],
        &[("[a=1] [b=1]", "OK | OK - 0 | OK 9 8"), ("[a=1]", "OK | OK 5 4 x")],
    ),
    (74, &["a 5/day name=x", "b 9/day replaces=x"], &[("[a=1]", "OK | OK 5 4 x")]),
    (
        75,
        &["a 1/day name=x", "b unlimited replaces=x"],
        &[("[a=1] [b=1]", "OK | OK - 0 | OK - 4294967295"), ("[a=1] [b=1]", "OK | OK - 0 | OK - 4294967295")],
    ),
    (
        76,
        &["a 5/day name=x", "b 5/day name=x", "c 5/day replaces=x"],
        &[("[a=1] [b=1] [c=1]", "OK | OK - 0 | OK - 0 | OK 5 4")],
    ),
    (
        77,
        &["a 5/day name=x replaces=y", "b 5/day name=y replaces=x"],
        &[("[a=1] [b=1]", "OK | OK - 0 | OK - 0"), ("[a=1]", "OK | OK 5 4 x")],
    ),
    (78, &["a 5/day name=x", "b 5/day replaces=x"], &[("[a=1 limit=7/day] [b=1]", "OK | OK 7 6 | OK 5 4")]),
    (87, &["k 5/day name=n", "j 5/day"], &[("[k=v] [j=v]", "OK | OK 5 4 n | OK 5 4")]),
    (106, &["k 5/day"], &[]),
    (107, &["k 5/day"], &[("", "Unknown: rate limit descriptor list must not be empty")]),
    (
        131,
        &["route=route", "  rule-0-match--1=rule-0-match--1 3/hour"],
        &[("[route=route, rule-0-match--1=rule-0-match--1]", "OK | OK 3 2")],
    ),
    (
        139,
        &["masked_remote_address=10.0.0.0/8", "  remote_address 5/day", "remote_address=10.0.0.0/8 7/day"],
        &[
            ("[masked_remote_address=10.0.0.0/8, remote_address=10.1.2.3]", "OK | OK 5 4"),
            ("[remote_address=10.0.0.0/8]", "OK | OK 7 6"),
            ("[remote_address=10.1.2.3]", "OK | OK - 0"),
        ],
    ),
    (
        153,
        &[
            "backend_name=ns/name",
            "  model_name_override=m",
            "    rule-0-x-user|ann-match-0=rule-0-x-user|ann-match-0 1/day quota",
        ],
        &[(
            "[backend_name=ns/name, model_name_override=m, rule-0-x-user|ann-match-0=rule-0-x-user|ann-match-0]",
            "OK | OK 1 0",
        )],
    ),
    (
        159,
        &["k 20/day quota"],
        &[
            ("[k=v]", "OK | OK 20 19"),
            ("[k=v h=20]", "OVER | OVER 20 0"),
            ("[k=v]", "OVER | OVER 20 0"),
            // Of 22 that were counted, 22 are given back.
            ("[k=v h=21 negative]", "OK | OK 20 19"),
        ],
    ),
    (
        161,
        &["k 10/day"],
        &[
            ("[k=v h=0]", "OK | OK 10 10"),
            ("[k=v h=12]", "OVER | OVER 10 0"),
            ("[k=v h=0]", "OVER | OVER 10 0"),
        ],
    ),
    (
        162,
        &["k 0/day"],
        &[("[k=v h=0]", "OK | OK 0 0"), ("[k=v h=5]", "OVER | OVER 0 0"), ("[k=v h=0]", "OVER | OVER 0 0")],
    ),
];

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
    const SHADOW: &[Row] = &[(59, &["k 1/day"], &[("[k=v]", "OK | OK 1 0"), ("[k=v]", "OK | OVER 1 0")])];
    let daemon = StandIn::with(&folder(SHADOW), &[("SHADOW_MODE", "true")]);
    play(&daemon, SHADOW);
    let metrics = daemon.get("/metrics").body;
    assert!(metrics.contains("\nratelimit_service_global_shadow_mode 1\n"), "case 69: {metrics}");
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

fn as_json(fields: &envoy_types::pb::google::protobuf::Struct) -> Value {
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
