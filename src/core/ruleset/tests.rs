//! What the rule set promises, each promise on its own, and all of them against a naive interpreter.

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::hold::{Hold, HoldStep, Holder};
use crate::identity::UserLimit;
use crate::request::{Attributes, Cost, LimitOverride};
use crate::rule::{Condition, Pattern};

/// A rule that counts everything of the default domain, 10 a minute.
pub(super) fn rule(name: &str) -> Rule {
    Rule::new(name, Algorithm::FixedWindow, 10, Span::from_secs(60))
}

fn when(mut rule: Rule, attribute: &str, patterns: &[&str]) -> Rule {
    let any_of = patterns.iter().map(|text| pattern(text)).collect();
    rule.conditions.push(Condition { attribute: attribute.to_owned(), any_of });
    rule
}

fn pattern(text: &str) -> Pattern {
    if let Ok(network) = text.parse() {
        return Pattern::Network(network);
    }
    if text.contains('*') { Pattern::Glob(text.to_owned()) } else { Pattern::Exact(text.to_owned()) }
}

fn per(mut rule: Rule, attributes: &[&str]) -> Rule {
    rule.per = attributes.iter().map(|name| (*name).to_owned()).collect();
    rule
}

fn grouped(mut rule: Rule, group: &str, priority: i32) -> Rule {
    rule.group = Some(group.to_owned());
    rule.priority = priority;
    rule
}

fn acting(mut rule: Rule, action: Action) -> Rule {
    rule.action = action;
    rule
}

fn exact(mut rule: Rule) -> Rule {
    rule.exact = true;
    rule
}

fn set(rules: Vec<Rule>) -> RuleSet {
    RuleSet::compile(rules, &mut Shapes::default()).unwrap()
}

pub(super) fn request<'a>(attributes: &[(&'a str, &'a str)]) -> Request<'a> {
    let attributes: Attributes<'a> = attributes.iter().copied().collect();
    Request::new("default", attributes, Cost::Take(1))
}

fn names(set: &RuleSet, attributes: &[(&str, &str)]) -> Vec<String> {
    set.matches(&request(attributes)).iter().map(|found| found.rule.rule.name.clone()).collect()
}

fn reason(set: &RuleSet, rule: &str, attributes: &[(&str, &str)]) -> Reason {
    let explained = set.explain(&request(attributes));
    explained.into_iter().find(|(compiled, _)| compiled.rule.name == rule).unwrap().1
}

#[test]
fn every_condition_must_hold() {
    let set = set(vec![when(when(rule("r"), "path", &["/a"]), "method", &["GET", "HEAD"])]);
    assert_eq!(names(&set, &[("path", "/a"), ("method", "HEAD")]), ["r"]);
    assert!(names(&set, &[("path", "/a"), ("method", "PUT")]).is_empty());
    assert!(names(&set, &[("path", "/a")]).is_empty());
}

#[test]
fn an_attribute_that_comes_twice_has_two_values() {
    let set = set(vec![
        when(rule("r"), "path", &["/a"]),
        exact(when(rule("exact"), "path", &["/a", "/b"])),
        exact(per(rule("exact-per"), &["path"])),
        when(rule("net"), "ip", &["10.0.0.0/8"]),
    ]);
    assert_eq!(names(&set, &[("path", "/a"), ("path", "/b")]), ["exact", "r"]);
    assert_eq!(names(&set, &[("path", "/b"), ("path", "/a")]), ["exact", "r"]);
    assert_eq!(names(&set, &[("path", "/a"), ("path", "/c")]), ["r"]);
    assert_eq!(names(&set, &[("path", "/c")]), ["exact-per"]);
    assert_eq!(names(&set, &[("ip", "1.1.1.1"), ("ip", "::ffff:10.1.1.1")]), ["net"]);
    assert_eq!(reason(&set, "exact", &[("path", "/a"), ("path", "/c")]), Reason::Surplus("path".to_owned()));
}

#[test]
fn buckets_of_several_values_are_told_apart_by_all_of_them() {
    let set = set(vec![per(rule("r"), &["k", "ip"])]);
    let key = |attributes: &[(&str, &str)]| {
        let mut asked = request(attributes);
        asked.forms.ipv6_prefix = 64;
        set.matches(&asked)[0].key.clone().unwrap()
    };
    let ip = ("ip", "2001:db8::1");
    let keys = [
        key(&[("k", "a"), ip]),
        key(&[("k", "a"), ("k", "b"), ip]),
        key(&[("k", "a"), ("k", "c"), ip]),
        key(&[("k", "a"), ip, ("ip", "2001:db8:1::1")]),
    ];
    for (place, one) in keys.iter().enumerate() {
        assert!(keys.iter().skip(place + 1).all(|other| other != one), "{keys:?}");
    }
    assert_eq!(key(&[("k", "a"), ip, ("ip", "2001:db8:1::2")]), keys[3], "one client commands its prefix");
}

#[test]
fn a_rule_meets_one_address_of_a_group_and_counts_the_group() {
    let set = set(vec![
        acting(when(rule("ban"), "ip", &["2001:db8:1:2::5"]), Action::Block),
        acting(when(rule("narrow"), "ip", &["2001:db8:9:9:8000::/65"]), Action::Block),
        per(rule("each"), &["ip"]),
    ]);
    let asked = |address| {
        let mut asked = request(&[("ip", address)]);
        asked.forms.ipv6_prefix = 64;
        let found = set.matches(&asked);
        let bucket = found.iter().find_map(|found| found.key.clone()).unwrap();
        let names: Vec<_> = found.iter().map(|found| found.rule.rule.name.clone()).collect();
        (names, bucket)
    };
    let (banned, bucket) = asked("2001:db8:1:2::5");
    assert_eq!(banned, ["ban", "each"]);
    assert_eq!(asked("2001:db8:1:2::6"), (vec!["each".to_owned()], bucket.clone()));
    assert_eq!(crate::key::identity_values(bucket.identity()), Some(vec!["2001:db8:1:2::"]));
    assert_eq!(asked("2001:db8:9:9:8000::1").0, ["each", "narrow"]);
    assert_eq!(asked("2001:db8:9:9::1").0, ["each"]);
}

#[test]
fn globs_look_at_the_text_that_a_value_stands_for() {
    let set = set(vec![
        when(rule("prefix"), "path", &["/api/*"]),
        when(rule("suffix"), "path", &["*.php"]),
        when(rule("text"), "path", &["/api/~short"]),
    ]);
    let mut asked = request(&[("path", "/api/~short")]);
    asked.forms.whole.push(("/api/~short", "/api/long.php"));
    let found = set.matches(&asked);
    let names: Vec<_> = found.iter().map(|found| found.rule.rule.name.as_str()).collect();
    assert_eq!(names, ["prefix", "suffix", "text"]);
}

#[test]
fn a_rule_may_spell_a_path_and_a_host_as_requests_do_not() {
    let set = set(vec![
        when(rule("path"), "path", &["/caf%C3%A9/*"]),
        when(rule("host"), "host", &["Shop.Example"]),
        when(rule("other"), "user", &["%41"]),
    ]);
    assert_eq!(
        names(&set, &[("path", "/café/x"), ("host", "shop.example"), ("user", "A")]),
        ["host", "path"]
    );
}

#[test]
fn a_limit_of_its_own_counts_a_request_that_no_rule_counts() {
    let set = set(vec![when(rule("r"), "path", &["/a"])]);
    let found = |domain, path, descriptor| {
        let mut asked = request(&[("path", path)]);
        asked.domain = domain;
        asked.limit = Some(LimitOverride { permits: 3, window: Span::from_secs(60) });
        asked.forms.descriptor = descriptor;
        let found = set.matches(&asked);
        found.iter().map(|found| (found.rule.rule.name.clone(), found.key.clone())).collect::<Vec<_>>()
    };
    assert_eq!(found("default", "/a", Some("path=/a"))[0].0, "r");
    assert!(found("default", "/b", None).is_empty());
    let one = found("default", "/b", Some("path=/b"));
    assert_eq!((one.len(), one[0].0.as_str()), (1, "descriptor"));
    assert_ne!(found("other", "/b", Some("path=/b")), one);
    assert_ne!(found("default", "/c", Some("path=/c")), one);
}

#[test]
fn another_domain_has_other_rules() {
    let mut other = rule("other");
    other.domain = "edge".to_owned();
    let set = set(vec![rule("r"), other]);
    assert_eq!(names(&set, &[]), ["r"]);
    let unknown = Request { domain: "nowhere", ..request(&[]) };
    assert!(set.matches(&unknown).is_empty());
    assert!(set.get("default", "other").is_none());
    assert_eq!(set.get("edge", "other").unwrap().rule.name, "other");
}

#[test]
fn a_star_asks_only_for_presence() {
    let set = set(vec![when(rule("r"), "user", &["*"])]);
    assert_eq!(names(&set, &[("user", "anyone")]), ["r"]);
    assert_eq!(reason(&set, "r", &[]), Reason::Lacks("user".to_owned()));
}

#[test]
fn a_rule_whose_per_is_missing_does_not_apply() {
    let set = set(vec![per(rule("r"), &["user", "ip"])]);
    assert!(names(&set, &[("user", "u")]).is_empty());
    assert_eq!(reason(&set, "r", &[("user", "u")]), Reason::Lacks("ip".to_owned()));
    assert_eq!(names(&set, &[("user", "u"), ("ip", "not an address")]), ["r"]);
}

#[test]
fn in_a_group_the_first_by_priority_decides_and_ties_go_by_name() {
    let rules = vec![
        grouped(rule("b"), "g", 5),
        grouped(rule("a"), "g", 5),
        when(grouped(rule("vip"), "g", 1), "tier", &["pro"]),
        rule("alone"),
    ];
    let set = set(rules);
    assert_eq!(names(&set, &[]), ["a", "alone"]);
    assert_eq!(names(&set, &[("tier", "pro")]), ["vip", "alone"]);
    assert_eq!(reason(&set, "b", &[]), Reason::Outranked("a".to_owned()));
}

#[test]
fn an_allow_in_a_group_only_decides_its_group() {
    let set = set(vec![
        when(acting(grouped(rule("staff"), "g", 1), Action::Allow), "user", &["root"]),
        grouped(rule("everyone"), "g", 2),
        rule("total"),
    ]);
    assert_eq!(names(&set, &[("user", "root")]), ["staff", "total"]);
    assert_eq!(names(&set, &[("user", "u")]), ["everyone", "total"]);
}

#[test]
fn an_allow_without_a_group_exempts_from_counting_but_not_from_block() {
    let set = set(vec![
        when(acting(rule("health"), Action::Allow), "path", &["/healthz"]),
        when(acting(rule("evil"), Action::Block), "ip", &["10.0.0.0/8"]),
        rule("total"),
    ]);
    assert_eq!(names(&set, &[("path", "/healthz")]), ["health"]);
    assert_eq!(names(&set, &[("path", "/healthz"), ("ip", "10.1.1.1")]), ["evil", "health"]);
    assert_eq!(names(&set, &[("path", "/")]), ["total"]);
    assert_eq!(reason(&set, "total", &[("path", "/healthz")]), Reason::Exempted("health".to_owned()));
    assert!(set.matches(&request(&[("path", "/healthz")]))[0].key.is_none());
}

#[test]
fn an_exact_rule_wants_no_further_attributes() {
    let set =
        set(vec![exact(per(when(rule("r"), "path", &["/a"]), &["user"])), when(rule("s"), "ip", &["*"])]);
    assert_eq!(names(&set, &[("path", "/a"), ("user", "u")]), ["r"]);
    assert!(names(&set, &[("path", "/a"), ("user", "u"), ("colour", "red")]).is_empty());
    assert_eq!(
        reason(&set, "r", &[("path", "/a"), ("user", "u"), ("ip", "::1")]),
        Reason::Surplus("ip".to_owned())
    );
}

#[test]
fn the_name_of_a_request_takes_no_exact_rule_out_of_force() {
    let by_user = || exact(per(rule("r"), &["user"]));
    let named = [("user", "u"), ("request_id", "7")];
    assert_eq!(names(&set(vec![by_user()]), &named), ["r"]);
    let with_another = set(vec![by_user(), exact(per(rule("s"), &["request_id", "user"]))]);
    assert_eq!(names(&with_another, &named), ["r", "s"], "another rule may count by it");
    assert_eq!(names(&with_another, &[("user", "u")]), ["r"]);
    let twice = [("user", "u"), ("request_id", "7"), ("request_id", "8")];
    assert_eq!(names(&with_another, &twice), ["r"]);
    assert_eq!(reason(&with_another, "s", &twice), Reason::Surplus("request_id".to_owned()));
    assert_eq!(reason(&with_another, "r", &[("user", "u"), ("ip", "::1")]), Reason::Surplus("ip".to_owned()));
}

#[test]
fn a_disabled_rule_is_kept_and_never_matches() {
    let mut off = rule("off");
    off.enabled = false;
    let set = set(vec![off]);
    assert!(names(&set, &[]).is_empty());
    assert_eq!(set.rules().len(), 1);
    assert_eq!(reason(&set, "off", &[]), Reason::Disabled);
}

#[test]
fn networks_hold_every_spelling_of_their_addresses() {
    let set =
        set(vec![when(rule("four"), "ip", &["10.0.0.0/8"]), when(rule("six"), "ip", &["2001:db8::/32"])]);
    assert_eq!(names(&set, &[("ip", "10.2.3.4")]), ["four"]);
    assert_eq!(names(&set, &[("ip", "::ffff:10.2.3.4")]), ["four"]);
    assert_eq!(names(&set, &[("ip", "2001:0DB8:0:0::7")]), ["six"]);
    assert!(names(&set, &[("ip", "10.2.3.4.5")]).is_empty());
    let differs = Reason::Differs { attribute: "ip".to_owned(), value: "11.0.0.1".to_owned() };
    assert_eq!(reason(&set, "four", &[("ip", "11.0.0.1")]), differs);
}

#[test]
fn spellings_of_one_address_share_a_bucket() {
    let set = set(vec![per(rule("r"), &["user", "ip"])]);
    let key = |ip| set.matches(&request(&[("user", "u"), ("ip", ip)]))[0].key.clone().unwrap();
    assert_eq!(key("2001:DB8::0:1"), key("2001:db8:0:0:0:0:0:1"));
    assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
    assert_eq!(crate::key::identity_values(key("::ffff:10.0.0.1").identity()), Some(vec!["u", "10.0.0.1"]));
    assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
}

#[test]
fn a_key_holds_the_values_in_the_order_of_per() {
    let set = set(vec![per(rule("r"), &["user", "path"])]);
    let found = set.matches(&request(&[("path", "/p"), ("user", "u")]));
    assert_eq!(found[0].key, Some(Key::new(found[0].rule.shape, ["u", "/p"])));
}

#[test]
fn a_requests_own_limit_replaces_the_rules_and_an_equal_window_keeps_the_bucket() {
    let set = set(vec![rule("r")]);
    let with = |permits, window| {
        let limit = Some(LimitOverride { permits, window });
        let request = Request { limit, ..request(&[]) };
        let found = set.matches(&request);
        (found[0].limit, found[0].key.as_ref().unwrap().shape())
    };
    let own = set.rules()[0].shape;
    let (limit, shape) = with(3, Span::from_secs(60));
    assert_eq!((limit.permits, limit.burst, limit.window, shape), (3, 3, Span::from_secs(60), own));
    let (limit, shape) = with(7, Span::from_secs(1));
    assert_eq!((limit.permits, limit.window), (7, Span::from_secs(1)));
    assert_ne!(shape, own);
}

#[test]
fn a_rule_that_counts_holders_takes_part_only_where_somebody_asks_to_hold() {
    let mut held = rule("held");
    held.algorithm = Algorithm::Concurrency;
    (held.group, held.priority) = (Some("g".into()), 1);
    let mut rate = rule("rate");
    rate.group = Some("g".into());
    let set = set(vec![held, rate]);
    let names = |request: &Request<'_>| -> Vec<String> {
        set.matches(request).iter().map(|found| found.rule.rule.name.clone()).collect()
    };
    let hold = Hold { step: HoldStep::Acquire, holder: Holder::UNKNOWN, places: 1 };
    let acquires = Request { cost: Cost::Hold(hold), ..request(&[]) };
    assert_eq!(names(&acquires), ["held"]);
    assert_eq!(names(&request(&[])), ["rate"], "nor does it outrank others");
    let why = set.explain(&request(&[]));
    assert_eq!((&why[0].1, &why[1].1), (&Reason::HoldsOnly, &Reason::Decides));
}

#[test]
fn what_is_held_stays_held_when_only_the_hold_changes() {
    let mut shapes = Shapes::default();
    let mut shape = |window| {
        let mut held = rule("held");
        (held.algorithm, held.window) = (Algorithm::Concurrency, window);
        RuleSet::compile(vec![held], &mut shapes).unwrap().rules()[0].shape
    };
    assert_eq!(shape(Span::from_secs(30)), shape(Span::from_secs(60)));
}

#[test]
fn a_throttled_rule_queues_what_drains_in_its_longest_delay() {
    let throttled = |limit, max_delay| {
        let mut rule = acting(rule("r"), Action::Throttle);
        (rule.limit, rule.max_delay) = (limit, max_delay);
        set(vec![rule]).rules()[0].limit.queue
    };
    assert_eq!(throttled(600, Span::from_secs(2)), 20);
    assert_eq!(throttled(600, Span::from_millis(1)), 1);
    assert_eq!(throttled(0, Span::from_secs(2)), 0);
    assert_eq!(throttled(u32::MAX, Span(u64::MAX)), u32::MAX);
}

#[test]
fn a_name_may_be_used_once() {
    let mut other = rule("r");
    other.domain = "edge".to_owned();
    let conflicts = RuleSet::compile(vec![rule("r"), other], &mut Shapes::default()).unwrap_err();
    assert_eq!(conflicts, [Conflict::DuplicateName("r".to_owned())]);
}

#[test]
fn a_reload_keeps_the_shape_unless_what_is_counted_changes() {
    let mut shapes = Shapes::default();
    let mut shape = |rule: Rule| RuleSet::compile(vec![rule], &mut shapes).unwrap().rules()[0].shape;
    let first = shape(rule("r"));
    let raised = Rule { limit: 20, burst: 20, priority: 1, ..rule("r") };
    assert_eq!(shape(raised), first);
    assert_ne!(shape(Rule { window: Span::from_secs(1), ..rule("r") }), first);
    assert_ne!(shape(per(rule("r"), &["user"])), first);
    assert_ne!(shape(rule("s")), first);
    assert_eq!(shape(rule("r")), first);
}

#[test]
fn a_user_brings_a_tier_and_limits_of_its_own() {
    let rules = vec![when(exact(per(rule("pro"), &["user"])), "tier", &["pro"])];
    let own = UserLimit { rule: "pro".to_owned(), permits: 500, burst: 500 };
    let user =
        User { id: "u_42".to_owned(), tier: Some("pro".to_owned()), overrides: vec![own], blocked: None };
    let set = RuleSet::compile_with_users(rules, vec![user], &mut Shapes::default()).unwrap();
    let request_42 = request(&[("user", "u_42")]);
    let found = set.matches(&request_42);
    assert_eq!((found[0].limit.permits, found[0].key.as_ref().unwrap().shape()), (500, set.rules()[0].shape));
    assert_eq!(set.matches(&request(&[("user", "u"), ("tier", "pro")]))[0].limit.permits, 10);
    assert!(names(&set, &[("user", "u_42"), ("tier", "free")]).is_empty());
    assert!(names(&set, &[("user", "u_43")]).is_empty());
}

#[test]
fn conflicts_between_users_and_rules_are_told_together() {
    let own = UserLimit { rule: "gone".to_owned(), permits: 1, burst: 1 };
    let user = |overrides| User { id: "u".to_owned(), tier: None, overrides, blocked: None };
    let users = vec![user(vec![own]), user(vec![])];
    let conflicts = RuleSet::compile_with_users(vec![], users, &mut Shapes::default()).unwrap_err();
    assert_eq!(conflicts.len(), 2);
}

/// The definition, one rule after another.
fn naive(rules: &[Rule], request: &Request<'_>) -> Vec<String> {
    let mut ordered: Vec<&Rule> = rules.iter().filter(|rule| rule.domain == request.domain).collect();
    ordered.sort_by_key(|rule| (rule.priority, rule.name.clone()));
    let mut deciding: Vec<&Rule> = Vec::new();
    for rule in ordered.into_iter().filter(|rule| rule.enabled && naive_matches(rule, request)) {
        if rule.group.is_none() || deciding.iter().all(|other| other.group != rule.group) {
            deciding.push(rule);
        }
    }
    let exempting = deciding.iter().position(|rule| rule.group.is_none() && rule.action == Action::Allow);
    let left = (0..).zip(&deciding).filter(|(place, rule)| {
        exempting.is_none_or(|allow| allow == *place || rule.action == Action::Block)
    });
    left.map(|(_, rule)| rule.name.clone()).collect()
}

fn naive_matches(rule: &Rule, request: &Request<'_>) -> bool {
    let named = |name: &str| {
        rule.per.iter().any(|own| own == name) || rule.conditions.iter().any(|c| c.attribute == name)
    };
    let values = |name: &str| {
        let own = |(own, _): &&(&str, &str)| *own == name;
        request.attributes.iter().filter(own).map(|(_, value)| *value).collect::<Vec<_>>()
    };
    let meets =
        |condition: &Condition, value| condition.any_of.iter().any(|pattern| naive_pattern(pattern, value));
    let listed = |name: &str| {
        let lists = |condition: &&Condition| condition.attribute == name && condition.any_of.len() > 1;
        rule.conditions.iter().filter(lists).any(|c| values(name).into_iter().all(|value| meets(c, value)))
    };
    rule.conditions
        .iter()
        .all(|condition| values(&condition.attribute).into_iter().any(|value| meets(condition, value)))
        && rule.per.iter().all(|name| request.attribute(name).is_some())
        && (!rule.exact
            || request
                .attributes
                .iter()
                .all(|(name, _)| named(name) && (values(name).len() == 1 || listed(name))))
}

fn naive_pattern(pattern: &Pattern, value: &str) -> bool {
    match pattern {
        Pattern::Exact(text) => text == value,
        Pattern::Glob(text) => naive_glob(text.as_bytes(), value.as_bytes()),
        Pattern::Network(network) => {
            value.parse::<std::net::IpAddr>().is_ok_and(|address| network.contains(&address))
        }
    }
}

fn naive_glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| naive_glob(rest, &text[skip..])),
        Some((letter, rest)) => text.first() == Some(letter) && naive_glob(rest, &text[1..]),
    }
}

pub(super) const ATTRIBUTES: [&str; 4] = ["user", "path", "method", "ip"];

fn any_pattern() -> impl Strategy<Value = Pattern> {
    let network =
        proptest::sample::select(vec!["10.0.0.0/8", "10.1.0.0/16", "10.1.1.1/32", "2001:db8::/32", "::/0"]);
    prop_oneof![
        "[ab]{1,2}".prop_map(Pattern::Exact),
        "[ab*]{0,2}\\*[ab*]{0,2}".prop_map(Pattern::Glob),
        network.prop_map(|text: &str| Pattern::Network(text.parse().unwrap())),
    ]
}

fn any_conditions() -> impl Strategy<Value = Vec<Condition>> {
    let chosen = proptest::sample::subsequence(ATTRIBUTES.to_vec(), 0..=3);
    (chosen, proptest::collection::vec(proptest::collection::vec(any_pattern(), 1..4), 3)).prop_map(
        |(attributes, lists)| {
            let condition = |(attribute, any_of): (&str, Vec<Pattern>)| Condition {
                attribute: attribute.to_owned(),
                any_of,
            };
            attributes.into_iter().zip(lists).map(condition).collect()
        },
    )
}

pub(super) fn any_rules(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Rule>> {
    let action = proptest::sample::select(vec![
        Action::Reject,
        Action::Reject,
        Action::Reject,
        Action::LogOnly,
        Action::Allow,
        Action::Block,
    ]);
    let group = proptest::option::of(proptest::sample::select(vec!["g", "h"]));
    let attributes = proptest::sample::subsequence(ATTRIBUTES.to_vec(), 0..=2);
    let one = (any_conditions(), attributes, group, 0..3_i32, action, any::<(bool, bool, bool)>());
    proptest::collection::vec(one, len).prop_map(|parts| {
        let mut rules = Vec::new();
        for (conditions, attributes, group, priority, action, (a, b, c)) in parts {
            let mut rule = per(rule(&format!("r{}", rules.len())), &attributes);
            rule.group = group.map(str::to_owned);
            (rule.conditions, rule.priority, rule.action) = (conditions, priority, action);
            (rule.exact, rule.enabled) = (a && b, a || b || c);
            rules.push(rule);
        }
        rules
    })
}

pub(super) fn any_value() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "a",
        "b",
        "ab",
        "ba",
        "aab",
        "abab",
        "10.1.1.1",
        "10.1.2.1",
        "10.9.9.9",
        "2001:db8::1",
        "::1",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_index_finds_what_a_naive_reading_finds(
        rules in any_rules(0..40),
        requests in proptest::collection::vec(
            proptest::collection::vec((proptest::sample::select(ATTRIBUTES.to_vec()), any_value()), 0..5), 8),
    ) {
        let set = set(rules.clone());
        for attributes in &requests {
            let request = request(attributes);
            let found: Vec<String> = set.matches(&request).iter().map(|found| found.rule.rule.name.clone()).collect();
            prop_assert_eq!(&found, &naive(&rules, &request));
            let explained: Vec<String> = set.explain(&request).into_iter()
                .filter(|(_, reason)| *reason == Reason::Decides)
                .map(|(compiled, _)| compiled.rule.name.clone()).collect();
            prop_assert_eq!(&explained, &found);
            prop_assert_eq!(set.explain(&request).len(), rules.len());
        }
    }
}

#[test]
fn a_hundred_users_times_a_hundred_paths_are_indexed_by_both() {
    let rules = (0..10_000).map(|n| {
        let (user, path) = (format!("u{}", n / 100), format!("/{}/*", n % 100));
        when(when(rule(&format!("r{n}")), "user", &[&user]), "path", &[&path])
    });
    let set = set(rules.collect());
    let domain = set.domains.get("default").unwrap();
    let request = request(&[("user", "u7"), ("path", "/42/x")]);
    assert!(domain.candidates_len(&request) <= 6);
    assert_eq!(set.matches(&request)[0].rule.rule.name, "r742");
}
