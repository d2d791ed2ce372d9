//! Documents as people write them, right and wrong.

use proptest::prelude::*;

use super::*;
use crate::core::algorithm::Algorithm;
use crate::core::answer::AnswerOptions;
use crate::core::penalty::PenaltyTerms;
use crate::core::price::{AttributePrice, Price, PriceTable};
use crate::core::reservation_terms::{EstimateTerms, OnLapse, ReservationTerms};
use crate::core::rule::{Action, Charging, Debt, Global, Mode, OnFailure, OnPartition, Pattern};
use crate::core::time::Span;

/// The rule of the manual, without what this version refuses.
const MANUAL: &str = r#"
[[rules]]
name = "search-free"
domain = "default"
match = { tier = "free", path = "/api/search*", method = ["GET", "HEAD"], ip = ["10.0.0.0/8", "::1"] }
per = ["user"]
algorithm = "token_bucket"
limit = 100
window = "1m"
burst = 120
group = "user"
priority = 100
action = "throttle"
max_delay = "500ms"
status = 429
message = "Search limit reached. Upgrade for more."
on_failure = "local"
exact = false
enabled = true
[rules.global]
mode = "gossip"
shares = { eu-west = 40, us-east = 30, ap-south = 30 }
on_partition = "share"

[[tiers]]
name = "pro"
[[users]]
id = "u_42"
tier = "pro"
overrides = { "search-free" = { limit = 500 } }
"#;

fn regions() -> Vec<String> {
    ["eu-west", "us-east", "ap-south"].map(str::to_owned).to_vec()
}

fn read(text: &str) -> Result<Loaded, Vec<String>> {
    from_toml("rules.toml", text, &regions())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// The problems of a rule that is right but for these lines.
fn problems_of(lines: &str) -> Vec<String> {
    read(&format!("[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\n{lines}")).unwrap_err()
}

#[test]
fn the_rule_of_the_manual_is_read() {
    let loaded = read(MANUAL).unwrap();
    let rule = &loaded.rules[0];
    assert_eq!((rule.name.as_str(), rule.limit, rule.burst), ("search-free", 100, 120));
    assert_eq!((rule.algorithm, rule.window), (Algorithm::TokenBucket, Span::from_secs(60)));
    let ip = rule.conditions.iter().find(|condition| condition.attribute == "ip").unwrap();
    let networks = ["10.0.0.0/8", "::1/128"].map(|text| Pattern::Network(text.parse().unwrap()));
    assert_eq!(ip.any_of, networks);
    let path = rule.conditions.iter().find(|condition| condition.attribute == "path").unwrap();
    assert_eq!(path.any_of, [Pattern::Glob("/api/search*".to_owned())]);
    let shares =
        [("eu-west", 40), ("us-east", 30), ("ap-south", 30)].map(|(name, weight)| (name.to_owned(), weight));
    let global = Global { shares: shares.to_vec(), ..Global::new(Mode::Gossip) };
    assert_eq!(rule.global, Some(global));
    assert_eq!(rule.on_failure, Some(OnFailure::Local));
    assert_eq!(loaded.tiers, ["pro"]);
    assert_eq!(loaded.users[0].tier.as_deref(), Some("pro"));
    assert_eq!(loaded.users[0].overrides[0].permits, 500);
}

#[test]
fn defaults_are_those_of_the_manual() {
    let loaded = read("[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"").unwrap();
    let rule = &loaded.rules[0];
    assert_eq!(
        (rule.domain.as_str(), rule.priority, rule.action, rule.status),
        ("default", 100, Action::Reject, 429)
    );
    assert_eq!((rule.burst, rule.exact, rule.enabled, rule.group.as_ref()), (5, false, true, None));
    assert!(rule.per.is_empty() && rule.conditions.is_empty() && rule.global.is_none());
    let block = read("[[rules]]\nname = \"b\"\naction = \"block\"").unwrap();
    assert_eq!(block.rules[0].status, 403);
}

#[test]
fn an_empty_document_is_an_empty_set() {
    assert!(read("").unwrap().rules.is_empty());
    assert!(from_json(&serde_json::json!({}), &[]).unwrap().rules.is_empty());
}

#[test]
fn a_text_that_is_no_toml_says_where() {
    let problems = read("[[rules]]\nname = \"r\nlimit = 1\n").unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("rules.toml:2:10: invalid basic string"), "{problems:?}");
}

#[test]
fn every_problem_is_told_at_once_in_the_order_of_the_text() {
    let text = r#"
[[rules]]
name = "a"
algoritm = "gcra"
algorithm = "slidng_window"
limit = 4294967296
window = "5ms"
match = { path = [], ip = "10.*" }

[[rules]]
name = "a"
per = ["user", "user"]
burst = 0
status = 200
"#;
    let expected = [
        "rules.toml:4:1: unknown key \"algoritm\"; did you mean \"algorithm\"?",
        "rules.toml:5:13: algorithm must be one of fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, gcra, concurrency, not \"slidng_window\"; did you mean \"sliding_window\"?",
        "rules.toml:6:9: limit must be from 0 to 4294967295, not 4294967296",
        "rules.toml:7:10: window must be from 10ms to 366d, not 5ms",
        "rules.toml:8:18: an empty list matches nothing: list at least one value",
        "rules.toml:8:27: ip must be an address, a network such as \"10.0.0.0/8\", or \"*\", not \"10.*\": globs do not apply to addresses",
        "rules.toml:10:1: limit is missing: a rule that counts needs one",
        "rules.toml:10:1: window is missing: a rule that counts needs one, such as \"1m\"",
        "rules.toml:11:8: rule name \"a\" is used twice (first on line 3)",
        "rules.toml:12:16: per names \"user\" twice",
        "rules.toml:13:9: burst must be from 1 to 4294967295, not 0",
        "rules.toml:14:10: status must be from 400 to 599, not 200",
    ];
    assert_eq!(read(text).unwrap_err(), expected);
}

#[test]
fn wrong_types_say_what_was_expected() {
    assert_eq!(problems_of("exact = \"yes\""), ["rules.toml:5:9: exact must be true or false, not a text"]);
    assert_eq!(problems_of("per = \"user\""), ["rules.toml:5:7: per must be a list of texts, not a text"]);
    assert_eq!(
        problems_of("priority = 1.5"),
        [
            "rules.toml:5:12: priority must be a whole number from -2147483648 to 2147483647, not a number with a point or an exponent"
        ]
    );
    assert_eq!(
        problems_of("match = { path = 7 }"),
        ["rules.toml:5:18: a value to match must be a text in quotes or a list of them, not a number"]
    );
    assert_eq!(problems_of("match = \"x\""), ["rules.toml:5:9: expected a table, found a text"]);
    assert_eq!(
        problems_of("message = 2020-01-01"),
        ["rules.toml:5:11: message must be a text in quotes, not a date or time"]
    );
    assert_eq!(problems_of("group = \"\""), ["rules.toml:5:9: group must have 1 to 1024 bytes, not 0"]);
    assert_eq!(read("rules = [3]").unwrap_err(), ["rules.toml:1:10: expected a table, found a number"]);
    assert_eq!(
        read("[[rules]]\nlimit = 1\nwindow = 60").unwrap_err(),
        [
            "rules.toml:1:1: name is missing: a rule needs one",
            "rules.toml:3:10: window must be a duration in quotes such as \"100ms\", not a number",
        ]
    );
}

#[test]
fn bad_durations_and_networks_are_named() {
    assert_eq!(
        problems_of("max_delay = \"1 minute\""),
        [
            "rules.toml:5:13: max_delay must be a number and a unit (ms, s, m, h, d, w), such as \"100ms\" or \"1h\", not \"1 minute\""
        ]
    );
    assert_eq!(
        problems_of("match.ip = \"10.0.0.0/33\""),
        [
            "rules.toml:5:12: ip must be an address, a network such as \"10.0.0.0/8\", or \"*\", not \"10.0.0.0/33\""
        ]
    );
}

#[test]
fn keys_are_split_where_parts_can_hold_the_limit_together() {
    let text = |more: &str| format!("[[rules]]\nname = \"r\"\nlimit = 50\nwindow = \"1s\"\n{more}");
    assert_eq!(read(&text("split_keys = 8")).unwrap().rules[0].split_keys, 8);
    assert_eq!(read(&text("")).unwrap().rules[0].split_keys, 1);
    let problem = |more: &str| read(&text(more)).unwrap_err().join("; ");
    assert!(problem("split_keys = 65").contains("split_keys must be"));
    assert!(problem("split_keys = 51").contains("at most the limit"));
    assert!(problem("algorithm = \"leaky_bucket\"\nsplit_keys = 2").contains("leaky_bucket"));
    assert!(problem("split_keys = 2\n[rules.global]\nmode = \"gossip\"").contains("[rules.global]"));
    assert!(problem("action = \"block\"\nsplit_keys = 2").contains("rules that count"));
}

#[test]
fn only_an_escrowed_rule_waits_for_rights() {
    let waiting = read(
        "[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\nglobal = { mode = \"escrow\", wait = \"200ms\" }",
    );
    let wait = waiting.unwrap().rules[0].global.as_ref().map(|global| global.wait);
    assert_eq!(wait, Some(Span::from_millis(200)));
    let gossip = problems_of("global = { mode = \"gossip\", wait = \"200ms\" }");
    assert!(gossip[0].contains("wait belongs to mode = \"escrow\""), "{gossip:?}");
    assert_eq!(problems_of("global = { mode = \"escrow\", wait = \"1h\" }").len(), 1);
}

#[test]
fn an_escrowed_rule_is_closed_while_its_store_is_away() {
    let escrow = "[rules.global]\nmode = \"escrow\"";
    let rule = |lines: &str| read(&format!("[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\n{lines}"));
    assert_eq!(rule(escrow).err(), None);
    assert!(rule(&format!("on_failure = \"closed\"\n{escrow}")).is_ok());
    for word in ["open", "local"] {
        let problems = problems_of(&format!("on_failure = \"{word}\"\n{escrow}"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("can only be closed"), "{problems:?}");
    }
}

#[test]
fn a_throttle_needs_a_pace_and_a_longest_delay() {
    assert_eq!(
        problems_of("action = \"throttle\""),
        [
            "rules.toml:1:1: max_delay is missing: throttle needs the longest delay that a request may get, such as \"500ms\"",
            "rules.toml:5:10: action = \"throttle\" needs algorithm token_bucket, leaky_bucket or gcra: only these keep a pace",
        ]
    );
    let loaded = read(
        "[[rules]]\nname = \"t\"\nlimit = 5\nwindow = \"1s\"\naction = \"throttle\"\nalgorithm = \"gcra\"\nmax_delay = \"2s\"",
    );
    assert_eq!(loaded.unwrap().rules[0].max_delay, Span::from_secs(2));
}

#[test]
fn a_log_has_a_smaller_bound() {
    let text = "[[rules]]\nname = \"l\"\nlimit = 1000001\nwindow = \"1s\"\nalgorithm = \"sliding_log\"";
    assert_eq!(
        read(text).unwrap_err(),
        [
            "rules.toml:3:9: limit of a sliding_log must be at most 1000000, not 1000001: the log remembers every admission; sliding_window takes any limit"
        ]
    );
}

/// The problems of a `concurrency` rule that is right but for these lines.
fn problems_of_holding(lines: &str) -> Vec<String> {
    let rule = "[[rules]]\nname = \"r\"\nalgorithm = \"concurrency\"\nlimit = 5\nhold = \"30s\"\n";
    read(&format!("{rule}{lines}")).map_or_else(|problems| problems, |_| Vec::new())
}

#[test]
fn a_rule_whose_places_are_held_has_a_hold_and_no_window() {
    let text = "[[rules]]\nname = \"r\"\nalgorithm = \"concurrency\"\nlimit = 5\nhold = \"30s\"";
    let rule = &read(text).unwrap().rules[0];
    assert_eq!((rule.limit, rule.window, rule.burst), (5, Span::from_secs(30), 5));
    let shown = serde_json::to_value(RuleDoc::from(rule)).unwrap();
    assert_eq!((&shown["hold"], &shown["window"]), (&"30s".into(), &serde_json::Value::Null));
    let mut again = from_json(&serde_json::json!({ "rules": [shown] }), &[]).unwrap();
    assert_eq!(&again.rules.remove(0), rule);

    for (lines, expected) in [
        ("window = \"1s\"", "rules.toml:6:1: window does not go with concurrency"),
        ("burst = 9", "rules.toml:6:1: burst does not go with concurrency"),
        ("split_keys = 2", "rules.toml:6:14: split_keys does not go with concurrency"),
        ("global.mode = \"gossip\"", "rules.toml:6:"),
        ("action = \"throttle\"\nmax_delay = \"1s\"", "rules.toml:6:10: action = \"throttle\" needs"),
    ] {
        let problems = problems_of_holding(lines);
        assert!(problems.len() == 1 && problems[0].starts_with(expected), "{lines}: {problems:?}");
    }
    assert!(
        problems_of_holding("global.mode = \"gossip\"")[0].contains("write \"escrow\" (exact) or \"split\"")
    );
    assert_eq!(problems_of_holding("global.mode = \"escrow\""), [""; 0]);
    let hold = |hold: &str| read(&text.replace("hold = \"30s\"", hold)).unwrap_err();
    assert!(hold("")[0].contains("hold is missing"), "{:?}", hold(""));
    assert_eq!(hold("hold = \"99ms\""), ["rules.toml:5:8: hold must be from 100ms to 1d, not 99ms"]);
    assert_eq!(hold("hold = \"25h\""), ["rules.toml:5:8: hold must be from 100ms to 1d, not 25h"]);
    assert!(problems_of("hold = \"1s\"")[0].contains("hold belongs to algorithm = \"concurrency\""));
    let many = read(&text.replace("limit = 5", "limit = 100001")).unwrap_err();
    assert!(many[0].ends_with(
        "limit of a concurrency rule must be at most 100000, not 100001: every holder is remembered"
    ));
}

#[test]
fn shares_name_known_regions_and_give_something() {
    assert_eq!(
        problems_of("global.shares = { eu-wets = 1 }"),
        ["rules.toml:5:19: region \"eu-wets\" is not one of peers.regions; did you mean \"eu-west\"?"]
    );
    assert_eq!(
        problems_of("global.shares = { eu-west = 0 }"),
        ["rules.toml:5:17: shares must give at least one region a weight above 0"]
    );
    assert_eq!(
        problems_of("global.shares = {}"),
        ["rules.toml:5:17: shares must give at least one region a weight above 0"]
    );
}

#[test]
fn users_name_rules_and_tiers_that_exist() {
    let text = "[[rules]]\nname = \"search\"\nlimit = 5\nwindow = \"1s\"\n[[tiers]]\nname = \"pro\"\n[[users]]\nid = \"u\"\ntier = \"por\"\noverrides = { \"serch\" = { limit = 1 }, \"search\" = {} }";
    assert_eq!(
        read(text).unwrap_err(),
        [
            "rules.toml:9:8: tier \"por\" is not listed under [[tiers]]; did you mean \"pro\"?",
            "rules.toml:10:15: there is no rule \"serch\" to override; did you mean \"search\"?",
            "rules.toml:10:51: limit is missing: an override needs one",
        ]
    );
}

#[test]
fn json_problems_name_the_field() {
    let json = serde_json::json!({"rules": [{"name": "r", "limit": -1, "window": "1s", "match": {"ip": ["x"]}, "colour": 1}]});
    let problems: Vec<String> = from_json(&json, &[]).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "rules[0].match.ip[0]: ip must be an address, a network such as \"10.0.0.0/8\", or \"*\", not \"x\"",
            "rules[0].limit: limit must be from 0 to 4294967295, not -1",
            "rules[0].colour: unknown key \"colour\"",
        ]
    );
    let problems = rule_from_json(&serde_json::json!([]), &[]).unwrap_err();
    assert_eq!(problems[0].to_string(), "expected a table, found a list");
}

#[test]
fn an_option_without_effect_is_refused() {
    for algorithm in ["fixed_window", "sliding_window", "sliding_log"] {
        let told = problems_of(&format!("algorithm = \"{algorithm}\"\nburst = 9"));
        assert!(told[0].starts_with("rules.toml:6:9: burst has no effect on windows"), "{told:?}");
        let same = format!(
            "[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\nalgorithm = \"{algorithm}\"\nburst = 5"
        );
        assert_eq!(read(&same).unwrap().rules[0].burst, 5, "a burst of the limit says what is so");
    }
    let told = problems_of("max_delay = \"1s\"");
    assert!(told[0].contains("max_delay belongs to action = \"throttle\""), "{told:?}");
    for mode in ["split", "escrow"] {
        let told = problems_of(&format!("[rules.global]\nmode = \"{mode}\"\non_partition = \"deny\""));
        assert!(told[0].contains("on_partition belongs to mode = \"gossip\""), "{told:?}");
    }
    let own =
        "algorithm = \"fixed_window\"\n[[users]]\nid = \"u\"\noverrides = { r = { limit = 9, burst = 12 } }";
    let told = problems_of(own);
    assert!(told[0].contains("burst has no effect on rule \"r\", which counts in windows"), "{told:?}");
}

/// The schema by which others make rules, against the reader that takes them.
#[test]
fn the_interface_describes_the_fields_of_a_rule_that_are_read_and_no_others() {
    let document: serde_json::Value =
        serde_json::from_str(include_str!("../../../docs/openapi.json")).unwrap();
    let schemas = &document["components"]["schemas"];
    let (schema, global) = (&schemas["Rule"]["properties"], &schemas["RuleGlobal"]["properties"]);
    let unknown = |rule: serde_json::Value| {
        let problems = rule_from_json(&rule, &[]).err().unwrap_or_default();
        let told = problems.iter().map(ToString::to_string);
        told.filter(|text| text.contains("unknown") || text.contains("not supported")).collect::<Vec<_>>()
    };
    for field in schema.as_object().unwrap().keys() {
        let told = unknown(serde_json::json!({ "name": "r", field.as_str(): 1 }));
        assert!(told.is_empty(), "{field} is described and not read: {told:?}");
    }
    for field in global.as_object().unwrap().keys() {
        let told = unknown(serde_json::json!({ "name": "r", "global": { field.as_str(): 1 } }));
        assert!(told.is_empty(), "global.{field} is described and not read: {told:?}");
    }
    assert!(!unknown(serde_json::json!({ "name": "r", "limt": 1 })).is_empty(), "a field that nobody knows");
    let rules = [
        Rule {
            group: Some("g".to_owned()),
            message: Some("m".to_owned()),
            on_failure: Some(OnFailure::Closed),
            action: Action::Throttle,
            max_delay: Span::from_secs(1),
            global: Some(Global {
                shares: vec![("a".to_owned(), 1)],
                minimums: vec![("a".to_owned(), 1)],
                wait: Span::from_secs(1),
                ..Global::new(Mode::Gossip)
            }),
            split_keys: 2,
            warn_at: Some(80),
            penalty: Some(terms()),
            ..Rule::new("r", Algorithm::TokenBucket, 5, Span::from_secs(1))
        },
        Rule::new("c", Algorithm::Concurrency, 5, Span::from_secs(1)),
    ];
    for rule in &rules {
        let shown = serde_json::to_value(RuleDoc::from(rule)).unwrap();
        for (name, value) in shown.as_object().unwrap() {
            assert!(schema[name].is_object(), "{name} is shown and not described");
            for inner in
                value.as_object().into_iter().filter(|_| name == "global").flatten().map(|(key, _)| key)
            {
                let described = &global[inner];
                assert!(described.is_object(), "global.{inner} is shown and not described");
            }
        }
    }
}

#[test]
fn equal_texts_have_equal_hashes_in_every_build() {
    assert_eq!(hash(b""), 0xd1fb_a762_150c_532c);
    assert_ne!(read(MANUAL).unwrap().hash, read("").unwrap().hash);
}

fn text_of_header(limit: u32) -> String {
    format!("a \"{limit}\"; b")
}

fn terms() -> std::sync::Arc<PenaltyTerms> {
    let (window, cool_down) = (Span::from_secs(60), Span::from_millis(10));
    std::sync::Arc::new(PenaltyTerms { threshold: 3, window, cool_down, multipliers: vec![1, 5] })
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let limit = (any::<u32>(), 1..u32::MAX, 10_u64..31_622_400_000);
    let algorithm =
        proptest::sample::select(vec![Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::Gcra]);
    let action =
        proptest::sample::select(vec![Action::Reject, Action::LogOnly, Action::Allow, Action::Block]);
    let values = proptest::collection::vec("[a-z*/]{1,6}", 1..3);
    // What `ip` is matched with must be networks.
    let attribute = "[a-z.\"]{1,4}".prop_filter("a plain attribute", |name| name != "ip");
    let matched = proptest::collection::btree_map(attribute, values, 0..3);
    (".{1,9}", limit, algorithm, action, matched, any::<(bool, bool, i32)>(), proptest::option::of(".{1,20}"))
        .prop_map(|(name, (limit, burst, millis), algorithm, action, matched, (exact, _, priority), text)| {
            let counts = action.counts();
            let buckets = algorithm != Algorithm::FixedWindow;
            let pattern = |value: &String| {
                if value.contains('*') { Pattern::Glob(value.clone()) } else { Pattern::Exact(value.clone()) }
            };
            let condition = |(attribute, values): (String, Vec<String>)| crate::core::rule::Condition {
                attribute,
                any_of: values.iter().map(pattern).collect(),
            };
            let global = Global {
                shares: vec![("eu-west".to_owned(), limit.max(1))],
                on_partition: if exact { OnPartition::Deny } else { OnPartition::Share },
                wait: if exact { Span::ZERO } else { Span::from_millis(millis.min(5_000)) },
                ..Global::new(if exact { Mode::Gossip } else { Mode::Escrow })
            };
            Rule {
                warn_at: counts.then_some(80),
                // Read and shown in `penalty.rs`.
                penalty: None,
                name,
                domain: "edge".to_owned(),
                conditions: matched.into_iter().map(condition).collect(),
                per: vec!["user".to_owned()],
                algorithm: if counts { algorithm } else { Algorithm::SlidingWindow },
                limit: if counts { limit } else { 0 },
                window: if counts { Span::from_millis(millis) } else { Span::from_secs(1) },
                calendar: None,
                burst: if !counts {
                    0
                } else if buckets && limit > 0 {
                    burst
                } else {
                    limit
                },
                group: text.clone(),
                priority,
                action,
                max_delay: Span::ZERO,
                status: 404,
                message: text,
                on_failure: exact.then_some(OnFailure::Open),
                exact,
                enabled: !exact,
                split_keys: if counts
                    && !limit.is_multiple_of(2)
                    && limit.min(burst) > 2
                    && algorithm != Algorithm::LeakyBucket
                    && action != Action::Throttle
                {
                    3
                } else {
                    1
                },
                global: (counts && limit.is_multiple_of(2)).then_some(global),
                charge: if counts && exact && action != Action::Throttle {
                    Charging::Always
                } else {
                    Charging::Admitted
                },
                debt: match limit % 3 {
                    0 if counts => Debt::Forgive,
                    1 if counts => Debt::Carry { max: Some(limit % 1_000_000) },
                    _ => Debt::Carry { max: None },
                },
                reservations: ReservationTerms {
                    on_lapse: if counts && limit % 7 == 3 { OnLapse::Charge } else { OnLapse::Release },
                    estimate: match limit % 11 {
                        3 if counts => {
                            EstimateTerms { percentile: 99, by: Some("model".to_owned()), first: Some(burst) }
                        }
                        _ => EstimateTerms::default(),
                    },
                },
                answer: exact.then(|| {
                    let header = |name: &str| vec![(name.to_owned(), text_of_header(limit))];
                    std::sync::Arc::new(AnswerOptions {
                        headers: header("x-reason"),
                        headers_admitted: header("x-plan"),
                        problem: limit.is_multiple_of(2),
                        partition_key: counts,
                        tells_cause: limit.is_multiple_of(3),
                        unit: counts.then(|| "tokens".to_owned()),
                        told_as: counts.then(|| ["", "n"][usize::from(limit % 2 == 0)].to_owned()),
                        ..AnswerOptions::default()
                    })
                }),
                price: (counts && limit.is_multiple_of(5)).then(|| {
                    let price = |millis: u32| {
                        Price::parse(&format!("{}.{:03}", millis / 1_000 % 999_999, millis % 999 + 1))
                            .unwrap()
                    };
                    let of = |value: &str| AttributePrice {
                        attribute: "model".to_owned(),
                        value: value.to_owned(),
                        price: price(burst),
                    };
                    std::sync::Arc::new(PriceTable {
                        default: price(limit),
                        by_attribute: vec![of("a=b"), of("c")],
                    })
                }),
            }
        })
}

proptest! {
    #[test]
    fn a_printed_rule_reads_back_the_same(rule in any_rule()) {
        let json = serde_json::to_value(RuleDoc::from(&rule)).unwrap();
        prop_assert_eq!(rule_from_json(&json, &regions()), Ok(rule.clone()));
        let toml = toml::to_string(&std::collections::BTreeMap::from([("rules", [RuleDoc::from(&rule)])])).unwrap();
        prop_assert_eq!(read(&toml).map(|loaded| loaded.rules), Ok(vec![rule]));
    }

    #[test]
    fn random_text_never_panics(text in ".{0,200}") {
        let _ = read(&text);
    }

    #[test]
    fn a_damaged_document_never_panics(at in 0..MANUAL.len(), len in 0..9_usize, put in "[\\[\\]{}=\"\\n0-9a-z.,-]{0,4}") {
        let mut bytes = MANUAL.as_bytes().to_vec();
        bytes.splice(at..(at + len).min(MANUAL.len()), put.bytes());
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = read(&text);
        }
    }

    #[test]
    fn random_bytes_of_json_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(json) = serde_json::from_slice(&bytes) {
            let _ = from_json(&json, &regions());
        }
    }
}

#[test]
fn only_a_short_throttle_is_held_back() {
    let throttled = "name = \"r\"\nalgorithm = \"gcra\"\naction = \"throttle\"\nlimit = 5\nwindow = \"1s\"\n";
    for (rule, why) in [
        ("max_delay = \"2m\"\ndelay = \"hold\"", "needs a max_delay of at most \"1m\""),
        ("max_delay = \"1m\"\ndelay = \"wait\"", "delay must be"),
        ("action = \"reject\"\ndelay = \"hold\"", "delay belongs to action = \"throttle\""),
    ] {
        let throttled = throttled.replace(
            "action = \"throttle\"\n",
            if rule.contains("action") { "" } else { "action = \"throttle\"\n" },
        );
        let problems = read(&format!("[[rules]]\n{throttled}{rule}\n")).unwrap_err();
        assert!(problems[0].to_string().contains(why), "{problems:?}");
    }
    let rules = read(&format!("[[rules]]\n{throttled}max_delay = \"1m\"\ndelay = \"hold\"\n")).unwrap().rules;
    assert!(rules[0].answer.as_ref().unwrap().holds_delay);
    let json = serde_json::to_value(RuleDoc::from(&rules[0])).unwrap();
    assert_eq!(rule_from_json(&json, &regions()).as_ref(), Ok(&rules[0]));
}

#[test]
fn headers_units_and_prices_are_checked() {
    let counted = "name = \"r\"\nlimit = 5\nwindow = \"1s\"\n";
    let blocked = "name = \"r\"\naction = \"block\"\n";
    let concurrent = "name = \"r\"\nalgorithm = \"concurrency\"\nlimit = 5\nhold = \"30s\"\n";
    let many = (0..17).map(|n| format!("x-{n} = \"a\"")).collect::<Vec<_>>().join(", ");
    for (rule, line, why) in [
        (counted, "headers = { Content-Length = \"5\" }", "content-length is no header of a rule's own"),
        (
            counted,
            "headers = { X-RateLimit-Limit = \"5\" }",
            "x-ratelimit-limit is no header of a rule's own",
        ),
        (counted, "headers_admitted = { \"x a\" = \"5\" }", "a header's name must have"),
        (counted, "headers = { x = \"a\\r\\nb\" }", "a header's value must be printable ASCII"),
        (counted, "headers = { x = 5 }", "a header's value must be a text"),
        (counted, "headers = { x-a = \"1\", X-A = \"2\" }", "names \"x-a\" twice"),
        (counted, &format!("headers = {{ {many} }}"), "headers must name at most 16 headers, not 17"),
        (counted, "unit = \"LLM tokens\"", "unit must have small letters"),
        (blocked, "unit = \"tokens\"", "unit belongs to rules that count"),
        (blocked, "partition_key = true", "partition_key belongs to rules that count"),
        (concurrent, "price = { default = 2 }", "price does not go with concurrency"),
        (counted, "price = { }", "price must have 1 to 256 entries, not 0"),
        (counted, "price = { gpt = 2 }", "a price is for \"default\", or an attribute and its value"),
        (counted, "price = { default = 0 }", "a price must be a number from 0.000001 to 1000000"),
        (counted, "price = { \"model=\" = 1 }", "a price's attribute and value must have"),
        (counted, "price = { \"model=x\" = 1e-9 }", "at most six decimals"),
    ] {
        let problems = read(&format!("[[rules]]\n{rule}{line}\n")).unwrap_err();
        assert!(problems[0].to_string().contains(why), "{line}: {problems:?}");
    }
    let line = "headers = { X-Reason = \"quota\" }\nunit = \"tokens\"\nprice = { \"model=a=b\" = 0.25, default = 2 }";
    let rule = &read(&format!("[[rules]]\n{counted}{line}\n")).unwrap().rules[0];
    let options = rule.answer.as_ref().unwrap();
    assert_eq!(options.headers, [("x-reason".to_owned(), "quota".to_owned())]);
    let prices = rule.price.as_ref().unwrap();
    assert_eq!((prices.default.to_string(), prices.by_attribute[0].value.as_str()), ("2".to_owned(), "a=b"));
}

#[test]
fn a_debt_is_refused_where_it_has_no_effect() {
    let concurrent = "name = \"r\"\nalgorithm = \"concurrency\"\nlimit = 5\nhold = \"30s\"\n";
    let throttled = "name = \"r\"\nalgorithm = \"gcra\"\naction = \"throttle\"\nmax_delay = \"1s\"\n\
                     limit = 5\nwindow = \"1s\"\n";
    let blocked = "name = \"r\"\naction = \"block\"\n";
    let counted = "name = \"r\"\nlimit = 5\nwindow = \"1s\"\n";
    let fixed = "name = \"r\"\nalgorithm = \"fixed_window\"\nlimit = 5\nwindow = \"1s\"\n";
    for (rule, line, why) in [
        (concurrent, "charge = \"always\"", "charge does not go with concurrency"),
        (concurrent, "debt = \"forgive\"", "debt does not go with concurrency"),
        (throttled, "charge = \"always\"", "cannot be delayed"),
        (blocked, "debt_max = 5", "debt_max belongs to rules that count"),
        (counted, "debt = \"forgive\"\ndebt_max = 5", "debt_max does not go with debt = \"forgive\""),
        (counted, "debt = \"window\"", "debt = \"window\" belongs to algorithm = \"fixed_window\""),
        (fixed, "debt = \"window\"\nglobal = { mode = \"gossip\" }", "does not go with global or split_keys"),
        (counted, "debt_max = -1", "debt_max must be"),
        (counted, "charge = \"sometimes\"", "charge must be"),
        (counted, "on_lapse = \"keep\"", "on_lapse must be"),
        (blocked, "on_lapse = \"charge\"", "on_lapse belongs to rules that count"),
        (counted, "estimate = { percentile = 0 }", "percentile must be"),
        (counted, "estimate = { percentile = 101 }", "percentile must be"),
        (counted, "estimate = { first = 0 }", "first must be"),
        (counted, "estimate = { for = \"model\" }", "unknown key \"for\""),
        (counted, "estimate = 90", "expected a table"),
        (blocked, "estimate = { by = \"model\" }", "estimate belongs to rules that count"),
        (concurrent, "on_lapse = \"charge\"", "on_lapse does not go with concurrency"),
    ] {
        let problems = read(&format!("[[rules]]\n{rule}{line}\n")).unwrap_err();
        assert!(problems[0].to_string().contains(why), "{line}: {problems:?}");
    }
    let rules = read(&format!("[[rules]]\n{counted}charge = \"always\"\ndebt_max = 7\n")).unwrap().rules;
    assert_eq!((rules[0].charge, rules[0].debt), (Charging::Always, Debt::Carry { max: Some(7) }));
    assert_eq!((rules[0].debt_max(5, 5), rules[0].debt_max(2, 5)), (7, 3), "a part owes the same part");
    let rules = read(&format!("[[rules]]\n{fixed}charge = \"always\"\ndebt = \"window\"\n")).unwrap().rules;
    let shown = serde_json::to_value(RuleDoc::from(&rules[0])).unwrap();
    assert_eq!((rules[0].debt, &shown["debt"]), (Debt::Window, &serde_json::json!("window")));
}

#[test]
fn deep_nesting_is_refused_not_followed() {
    let text = format!("a = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(read(&text).unwrap_err().len(), 1);
}

#[test]
fn a_split_says_which_regions_share_and_its_minimums_fit_into_the_limit() {
    let text = "[[rules]]\nname = \"r\"\nlimit = 5\nwindow = \"1s\"\nglobal.mode = \"split\"";
    let nobody = from_toml("rules.toml", text, &[]).unwrap_err();
    assert!(nobody[0].to_string().contains("or list the regions in peers.regions"), "{nobody:?}");
    assert!(read(&format!("{text}\nglobal.minimums = {{ us-east = 40 }}")).is_ok());
    let over = problems_of("global = { mode = \"split\", minimums = { us-east = 60, eu-west = 41 } }");
    assert_eq!(over.len(), 1, "{over:?}");
    assert!(
        over[0].ends_with("minimums must not add up to more than 100 percent, and these are 101"),
        "{over:?}"
    );
    let moving = problems_of("global = { mode = \"gossip\", minimums = { us-east = 60 } }");
    assert!(moving[0].contains("minimums belong to mode = \"split\""), "{moving:?}");
}
