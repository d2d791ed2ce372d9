//! Sets of rules that are valid, and hardly meant so.

use crate::core::algorithm::Algorithm;
use crate::core::rule::{Condition, Pattern, Rule};
use crate::core::ruleset::{RuleSet, Shapes};
use crate::core::time::Span;
use crate::database::document;

fn warnings(text: &str) -> Vec<String> {
    let read = document::from_toml("rules.toml", text, &["a".to_owned(), "b".to_owned()]).unwrap();
    let set = RuleSet::compile_with_people(read.rules.clone(), read.people(), &mut Shapes::default());
    set.unwrap().warnings().iter().map(ToString::to_string).collect()
}

fn rule(name: &str, rest: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nlimit = 1\nwindow = \"1s\"\n{rest}\n")
}

#[test]
fn a_set_without_rules_lets_everything_pass() {
    assert_eq!(warnings(""), ["there are no rules, so every request passes"]);
}

#[test]
fn a_rule_behind_a_wider_one_of_its_group_is_named() {
    let wide = [
        "",
        "match = { path = \"/api/*\" }",
        "match = { path = [\"/api/*\", \"/x\"], method = \"GET\" }",
        "match = { ip = \"10.0.0.0/8\" }",
        "match = { user = \"*\" }",
    ];
    let narrow = [
        "match = { path = \"/y\" }",
        "match = { path = \"/api/a*b\" }",
        "match = { path = [\"/x\", \"/api/\"], method = \"GET\" }",
        "match = { ip = [\"10.1.2.3\", \"10.9.0.0/16\"] }",
        "per = [\"user\", \"path\"]",
    ];
    for (wide, narrow) in wide.iter().zip(narrow) {
        let first = rule("a-first", &format!("group = \"g\"\n{wide}"));
        let second = rule("b-second", &format!("group = \"g\"\n{narrow}"));
        let told = warnings(&(first.clone() + &second));
        assert_eq!(told.len(), 1, "{wide} {narrow}: {told:?}");
        let expected = "rule \"b-second\": no request reaches it: \"a-first\" comes first in group \"g\"";
        assert!(told[0].starts_with(expected), "{told:?}");
        // The other way round each can decide.
        assert_eq!(warnings(&(first.replace("a-first", "z-last") + &second)).len(), 0, "{wide} {narrow}");
        let elsewhere = second.replace("group = \"g\"", "group = \"h\"");
        assert_eq!(warnings(&(first.clone() + &elsewhere)).len(), 0, "another group");
        let off = first.replace("group", "enabled = false\ngroup");
        assert_eq!(warnings(&(off + &second)).len(), 0, "one that is switched off hides nothing");
    }
}

#[test]
fn rules_that_only_overlap_are_both_reached() {
    let pairs = [
        ("match = { path = \"/api/*\" }", "match = { path = \"/ap*\" }"),
        ("match = { path = \"/a\" }", "match = { method = \"GET\" }"),
        ("match = { path = [\"/a\", \"/b\"] }", "match = { path = [\"/a\", \"/c\"] }"),
        ("per = [\"user\"]", ""),
        ("exact = true", "match = { path = \"/a\" }"),
        ("match = { ip = \"10.1.0.0/16\" }", "match = { ip = \"10.0.0.0/8\" }"),
    ];
    for (first, second) in pairs {
        let text =
            rule("a", &format!("group = \"g\"\n{first}")) + &rule("b", &format!("group = \"g\"\n{second}"));
        assert_eq!(warnings(&text), [""; 0], "{first} / {second}");
    }
}

#[test]
fn whatever_is_exempt_is_never_counted() {
    let counted = rule("counted", "match = { path = \"/health/live\" }");
    let exempt = "[[rules]]\nname = \"exempt\"\naction = \"allow\"\nmatch = { path = \"/health*\" }\n";
    let told = warnings(&(counted.clone() + exempt));
    let expected =
        "rule \"counted\": no request reaches it: \"exempt\" allows whatever this rule matches, uncounted";
    assert_eq!(told, [expected]);
    let block = counted.replace("limit = 1\nwindow = \"1s\"", "action = \"block\"");
    assert_eq!(warnings(&(block + exempt)), [""; 0], "a block wins over an allow");
}

#[test]
fn nothing_is_odd_about_an_escrow_rule_of_any_algorithm() {
    let escrow = |algorithm: &str| rule("seats", &format!("{algorithm}\n[rules.global]\nmode = \"escrow\""));
    for algorithm in ["", "algorithm = \"sliding_log\"", "algorithm = \"fixed_window\""] {
        assert_eq!(warnings(&escrow(algorithm)), [""; 0]);
    }
}

#[test]
fn a_value_that_no_request_has_is_named() {
    for (written, told) in [
        ("path = \"/api?x=1\"", "paths without their queries: write \"/api\""),
        ("path = [\"/a\", \"/api*#top\"]", "paths without their queries: write \"/api*\""),
        (
            "path = \"//api/../x\"",
            "only requests that spell it so meet it, since rules see paths in one form: write \"/x\"",
        ),
        ("path = \"/a;v=1/*\"", "write \"/a/*\""),
        ("path = \"^/x.*$\"", "rules know no regular expressions: `*` stands for any run"),
        ("path = \"/x.*$\"", "rules know no regular expressions"),
        ("path = \"api/x\"", "leaves the first slash out meet it: write \"/api/x\""),
        ("path = \"/users/{id}/x\"", "no parameters in paths: write \"/users/*/x\""),
        ("path = [\"/x\", \"/users/:id\"]", "no parameters in paths: write \"/users/*\""),
        ("path = \"/users/<id>\"", "no parameters in paths: write \"/users/*\""),
        ("path = \"search\"", "leaves the first slash out meet it: write \"/search\""),
        ("method = \"GET,POST\"", "a request has one method: write [\"GET\", \"POST\"]"),
        ("method = \"get | post\"", "write [\"GET\", \"POST\"]"),
        ("User = \"ann\"", "gateways send \"user\": write \"user\""),
        ("method = \"get\"", "methods come in upper case: write \"GET\""),
        ("method = [\"GET\", \"Post\"]", "write \"POST\""),
        ("host = \"Shop.Example:443\"", "without port and dot at their end: write \"shop.example\""),
        ("host = \"*.example.com.\"", "write \"*.example.com\""),
        ("host = \"shop.example:*\"", "write \"shop.example\""),
        ("host = \"https://shop.example/\"", "no host has a slash: write \"shop.example\""),
    ] {
        let warned = warnings(&rule("odd", &format!("match = {{ {written} }}")));
        assert!(warned.len() == 1 && warned[0].contains(told), "{written}: {warned:?}");
        assert!(warned[0].starts_with("rule \"odd\": "), "{warned:?}");
    }
    for usual in [
        "path = [\"/caf%C3%A9/*\", \"/a/*.js\", \"*/b\", \"/favicon.*\", \"orders.create\", \"*\"]",
        "path = [\"/v1/jobs:cancel\", \"/a{b}\", \"/:\", \"/{}\"]",
        "method = [\"GET\", \"*\"]",
        "host = [\"Shop.Example\", \"*.example.com\", \"[2001:db8::1]\", \"*\"]",
        "user = \"get\"",
    ] {
        assert_eq!(warnings(&rule("usual", &format!("match = {{ {usual} }}"))), [""; 0], "{usual}");
    }
}

#[test]
fn a_name_that_is_spelled_otherwise_than_gateways_send_it_is_named() {
    let told = warnings(&rule("odd", "per = [\"User\", \"team\"]"));
    assert!(told.len() == 1 && told[0].ends_with("gateways send \"user\": write \"user\""), "{told:?}");
    assert_eq!(warnings(&rule("usual", "per = [\"user\", \"Team\", \"api_key\"]")), [""; 0]);
}

#[test]
fn a_limit_of_ones_own_in_a_bucket_that_others_share_is_named() {
    let owners = "[[users]]\nid = \"acme\"\noverrides = { tokens = { limit = 5 } }\n\
                  [[users]]\nid = \"zoe\"\noverrides = { tokens = { limit = 6 } }\n";
    let told = warnings(&(rule("tokens", "per = [\"team\"]") + owners));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("rule \"tokens\": user \"acme\" and another: a limit"), "{told:?}");
    assert!(told[0].contains("counts by team"), "{told:?}");
    assert_eq!(warnings(&(rule("tokens", "") + owners)).len(), 1, "of all together");
    for right in [
        "per = [\"user\"]",
        "per = [\"team\", \"user\"]",
        "per = [\"api_key\"]",
        "match = { user = \"acme\" }",
    ] {
        assert_eq!(warnings(&(rule("tokens", right) + owners)), [""; 0], "{right}");
    }
}

#[test]
fn an_answer_that_is_held_longer_than_a_gateway_waits_as_shipped_is_named_with_it() {
    let advice = |longest: &str| {
        let rest = format!(
            "algorithm = \"gcra\"\naction = \"throttle\"\ndelay = \"hold\"\nmax_delay = \"{longest}\""
        );
        let read = document::from_toml("rules.toml", &rule("paced", &rest), &[]).unwrap();
        let advice = RuleSet::compile(read.rules, &mut Shapes::default()).unwrap().advice();
        advice.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert!(!advice("200ms").contains("This rule holds"), "{}", advice("200ms"));
    assert!(
        advice("500ms").ends_with("for up to 500ms; as shipped waits Caddy for 250ms"),
        "{}",
        advice("500ms")
    );
    let all = "waits Caddy for 250ms, nginx for 10s, Envoy for 10s, HAProxy for 10s";
    assert!(advice("15s").ends_with(all), "{}", advice("15s"));
}

#[test]
fn a_price_that_no_request_has_is_named() {
    let priced = |prices: &str| warnings(&rule("odd", &format!("price = {{ {prices} }}")));
    for (written, told) in [
        ("\"model=gpt-*\" = 5", "price of model = \"gpt-*\": only a request with this very text"),
        ("\"ip=10.0.0.0/8\" = 5", "price of ip = \"10.0.0.0/8\": only a request with this very text"),
        ("\"method=post\" = 5", "price of method = \"post\": no request meets it"),
        ("\"path=/users/{id}\" = 5, default = 2", "prices know no patterns"),
        ("\"path=/x?y=1\" = 5", "price of path = \"/x?y=1\": no request meets it"),
    ] {
        let warned = priced(written);
        assert!(warned.len() == 1 && warned[0].contains(told), "{written}: {warned:?}");
    }
    assert_eq!(priced("\"model=gpt-x\" = 3, \"method=POST\" = 2, \"path=/x\" = 4"), [""; 0]);
}

#[test]
fn a_longest_delay_that_a_leaky_buckets_queue_never_reaches_is_told_with_the_burst_that_does() {
    let throttled = |algorithm: &str, burst: u32, longest: &str| {
        let rest = format!(
            "algorithm = \"{algorithm}\"\naction = \"throttle\"\nburst = {burst}\nmax_delay = \"{longest}\""
        );
        warnings(&rule("paced", &rest).replace("limit = 1\n", "limit = 10\n"))
    };
    let told = throttled("leaky_bucket", 1, "2s");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("rule \"paced\": a leaky_bucket queues its burst")
            && told[0].ends_with("burst to 20")
    );
    for (algorithm, burst, longest) in
        [("leaky_bucket", 20, "2s"), ("leaky_bucket", 20, "300ms"), ("gcra", 1, "2s")]
    {
        assert_eq!(throttled(algorithm, burst, longest), [""; 0], "{algorithm} {burst} {longest}");
    }
}

#[test]
fn reservations_that_other_regions_pay_for_are_told() {
    let reserved = |algorithm: &str, mode: &str, terms: &str| {
        let rest = format!("algorithm = \"{algorithm}\"\n{terms}\n[rules.global]\nmode = \"{mode}\"");
        warnings(&rule("budget", &rest).replace("limit = 1\n", "limit = 10\n"))
    };
    for terms in ["on_lapse = \"charge\"", "estimate = { percentile = 99 }"] {
        for algorithm in ["token_bucket", "leaky_bucket", "gcra"] {
            let told = reserved(algorithm, "escrow", terms);
            assert!(told.len() == 1 && told[0].contains("gives back none of what other"), "{told:?}");
            assert_eq!(reserved(algorithm, "gossip", terms), [""; 0], "{algorithm} {terms}");
            assert_eq!(reserved(algorithm, "escrow", ""), [""; 0], "{algorithm}");
        }
        for algorithm in ["fixed_window", "sliding_window", "sliding_log"] {
            assert_eq!(reserved(algorithm, "escrow", terms), [""; 0], "{algorithm} {terms}");
        }
    }
}

#[test]
fn values_as_they_came_may_be_anything() {
    let text = rule("odd", "match = { path = \"/api?x=1\", host = \"a:80\" }");
    let read = document::from_toml("rules.toml", &text, &[]).unwrap();
    let set = RuleSet::compile(read.rules, &mut Shapes::default()).unwrap();
    assert_eq!((set.warnings().len(), set.warnings_of(false)), (2, Vec::new()));
}

#[test]
fn many_rules_of_one_group_are_looked_at_in_bounded_time() {
    let rules = (0..20_000).map(|number| {
        let mut rule = Rule::new(format!("r{number}"), Algorithm::FixedWindow, 1, Span::from_secs(1));
        rule.group = Some("g".to_owned());
        rule.conditions = vec![Condition {
            attribute: "user".to_owned(),
            any_of: vec![Pattern::Exact(format!("u{number}"))],
        }];
        rule
    });
    let set = RuleSet::compile(rules.collect(), &mut Shapes::default()).unwrap();
    assert_eq!(set.rules().len(), 20_000);
    assert_eq!(set.warnings(), []);
}
