//! The cases of the reference service that need no clock, by their numbers in `docs/tasks`.

use serde_json::json;

use super::*;

fn entry(text: &str, permits: u32) -> ServiceEntry {
    let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
    let value = match value {
        None => EntryValue::Any,
        Some(value) if value.contains('*') => EntryValue::Glob(value.to_owned()),
        Some(value) => EntryValue::Exact(value.to_owned()),
    };
    let rate = LimitRate { permits, window: Span::from_secs(60) };
    let limit = EntryLimit { rate: Some(rate), name: String::new(), replaces: Vec::new() };
    let limit = (permits > 0).then_some(limit);
    ServiceEntry { key: key.to_owned(), value, limit, ..ServiceEntry::default() }
}

fn with(below: Vec<ServiceEntry>, above: ServiceEntry) -> ServiceEntry {
    ServiceEntry { entries: below, ..above }
}

fn shared(entry: ServiceEntry) -> ServiceEntry {
    ServiceEntry { shared: true, ..entry }
}

fn rules(entries: Vec<ServiceEntry>) -> ServiceRules {
    ServiceRules::new(vec![("d".to_owned(), entries)])
}

/// The limit that a descriptor finds, and by what it is counted; 0 for none.
fn found(rules: &ServiceRules, descriptor: &str) -> (u32, String) {
    let entries: Vec<(&str, &str)> = descriptor.split(", ").map(|one| one.split_once('=').unwrap()).collect();
    let mut counted = CountedEntries::new();
    match rules.find("d", &entries, &mut counted) {
        LimitFound::Limit(limit) => {
            let counted: Vec<String> = counted.iter().map(|(key, value)| format!("{key}={value}")).collect();
            (limit.rate.unwrap().permits, counted.join(", "))
        }
        _ => (0, String::new()),
    }
}

#[test]
fn a_descriptor_finds_the_limit_that_the_reference_service_finds() {
    let both = || rules(vec![entry("k", 20), entry("k=v", 30)]);
    let exempt = || rules(vec![entry("k", 20), entry("k=v", 0)]);
    let nested = || rules(vec![with(vec![entry("b", 5), entry("b=x", 10)], entry("a=1", 0))]);
    let stars = || rules(vec![entry("k=a*c", 5)]);
    for (case, rules, descriptor, limit) in [
        (3, both(), "k=v", 30),
        (4, both(), "k=w", 20),
        (6, exempt(), "k=v", 0),
        (6, exempt(), "k=w", 20),
        (7, nested(), "a=1", 0),
        (8, nested(), "a=1, b=y", 5),
        (9, nested(), "a=1, b=x, c=y", 0),
        (10, rules(vec![with(vec![entry("s=t", 25)], entry("k5=v5", 15))]), "k5=v5", 15),
        (10, rules(vec![with(vec![entry("s=t", 25)], entry("k5=v5", 15))]), "k5=v5, s=t", 25),
        (11, nested(), "a=1, b=x", 10),
        (12, nested(), "b=x, a=1", 0),
        (14, rules(vec![entry("k=foo*", 5)]), "k=foobar", 5),
        (15, rules(vec![entry("k=foo*", 5)]), "k=foo", 5),
        (16, stars(), "k=abbc", 5),
        (16, stars(), "k=ac", 5),
        (16, stars(), "k=abd", 0),
        (17, rules(vec![entry("k=a*a", 5)]), "k=a", 0),
        (18, rules(vec![entry("k=foo*", 5), entry("k=foobar", 9)]), "k=foobar", 9),
        (19, rules(vec![entry("k", 2), entry("k=foo*", 5)]), "k=foobar", 5),
        (20, rules(vec![entry("k=f*", 5), entry("k=fo*", 7)]), "k=foo", 5),
        (24, rules(vec![entry("a_b=c", 5)]), "a=b_c", 0),
        (31, rules(vec![entry("k", 5)]), "k=", 5),
    ] {
        assert_eq!(found(&rules, descriptor).0, limit, "case {case}: {descriptor}");
    }
}

#[test]
fn values_are_counted_apart_unless_a_pattern_shares_its_threshold() {
    let apart = rules(vec![entry("k=foo*", 5)]);
    assert_eq!(found(&apart, "k=foo1").1, "k=foo1", "case 21");
    let together = rules(vec![shared(entry("k=foo*", 5))]);
    assert_eq!(found(&together, "k=foo1").1, "k=foo*", "case 22");
    let nested = rules(vec![with(vec![shared(entry("k=in/*", 3))], shared(entry("k=top/*", 0)))]);
    assert_eq!(found(&nested, "k=top/1, k=in/a").1, "k=top/*, k=in/*", "case 23");
    assert_eq!(found(&nested, "k=top/2, k=in/b"), (3, "k=top/*, k=in/*".to_owned()), "case 23");
}

#[test]
fn rules_have_names_of_their_own_and_count_all_that_is_asked() {
    let set = rules(vec![
        entry("a_b", 1),
        with(vec![entry("k", 3)], entry("k=x", 2)),
        entry("a=b", 4),
        ServiceEntry { key: "a_b".to_owned(), ..entry("a_b=*", 6) },
    ]);
    let ours = set.counting_rules(|domain| format!("p{domain}"), |_| None);
    let names: Vec<&str> = ours.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["d.a_b", "d.a_b (2)", "d.a_b_*", "d.k_x", "d.k_x.k", "d: limits of callers"]);
    assert!(ours.iter().all(|rule| rule.domain == "pd" && rule.debt == Debt::Window));
    assert_eq!(ours[4].per, ["k"], "a key at two levels is one attribute with two values");
    let world = set.counting_rules(str::to_owned, |_| Some(Global::new(crate::rule::Mode::Gossip)));
    assert!(world.iter().all(|rule| rule.debt == Debt::Forgive && rule.global.is_some()));
    let mut shapes = crate::ruleset::Shapes::default();
    assert!(crate::ruleset::RuleSet::compile(ours, &mut shapes).is_ok());
}

#[test]
fn an_ordinary_limit_denies_alone_and_quotas_together() {
    use VoteKind::{Absent, Ordinary, Quota};
    for (case, votes, over) in [
        (60, &[(true, Quota), (false, Quota)][..], false),
        (61, &[(true, Quota), (true, Quota)], true),
        (62, &[(true, Ordinary), (false, Quota)], true),
        (63, &[(false, Ordinary), (true, Quota)], true),
        (64, &[(false, Ordinary), (true, Quota), (false, Quota)], false),
        (65, &[(true, Quota), (false, Ordinary)], true),
        (66, &[(true, Quota), (false, Quota)], false),
        (67, &[(true, Quota), (false, Absent)], true),
        (2, &[(false, Ordinary)], false),
    ] {
        let votes = votes.iter().map(|(over, kind)| Vote { over: *over, kind: *kind });
        assert_eq!(is_over(votes), over, "case {case}");
    }
}

#[test]
fn metadata_that_is_there_first_stays_and_tables_are_merged() {
    let table = |value: Value| value.as_object().unwrap().clone();
    let mut into = table(json!({ "a": 1, "s": { "x": 1 } }));
    merge_metadata(&mut into, &table(json!({ "a": 2, "s": { "y": 2 }, "b": 3 })));
    assert_eq!(Value::Object(into), json!({ "a": 1, "s": { "x": 1, "y": 2 }, "b": 3 }), "case 90");
}

#[test]
fn hits_are_counted_near_and_over_a_limit_as_there() {
    let near = |limit| near_limit(limit, 0.8);
    let counted = |limit: u32, after, hits| Hits::counted(u64::from(limit), near(limit), after, hits, false);
    for (case, limit, after, hits, expected) in [
        (93, 15, 11, 1, (0, 0, 1)),
        (93, 15, 13, 1, (0, 1, 1)),
        (93, 15, 16, 1, (1, 0, 0)),
        (94, 20, 5, 3, (0, 0, 3)),
        (94, 20, 19, 3, (0, 3, 3)),
        (94, 20, 22, 3, (2, 1, 0)),
        (95, 20, 22, 7, (2, 4, 0)),
        (96, 10, 30, 3, (3, 0, 0)),
    ] {
        let Hits { total, over, near, within, .. } = counted(limit, after, hits);
        assert_eq!((over, near, within), expected, "case {case}: {after} of {limit}");
        assert_eq!(total, hits, "case 101");
    }
    let shadow = Hits::counted(1, near(1), 2, 1, true);
    assert_eq!((shadow.over, shadow.shadow, shadow.within), (1, 1, 0), "case 57");
}

#[test]
fn statistics_have_the_names_that_dashboards_know() {
    let limits = |entries: Vec<ServiceEntry>| rules(entries).limits().to_vec();
    let set = limits(vec![with(vec![entry("b", 5)], entry("a=1", 0)), entry("k=10.0.0.1:80|x", 5)]);
    assert_eq!(set[0].statistics_of(&[("a", "1"), ("b", "x")]), "d.a_1.b", "case 97");
    assert_eq!(set[1].statistics, "d.k_10_0_0_1_80_x", "case 98");
    let cidr = limits(vec![entry("masked_remote_address=0.0.0.0/0", 5), entry("v=1.2.3", 5)]);
    assert_eq!(cidr[0].statistics, "d.masked_remote_address_0_0_0_0/0", "case 151");
    assert_eq!(cidr[1].statistics, "d.v_1.2.3", "points of what is no address stay");
    let detailed = ServiceEntry { detailed: true, ..entry("k", 5) };
    let set = limits(vec![with(vec![detailed], entry("a=*", 0))]);
    assert_eq!(set[0].statistics_of(&[("a", "1"), ("k", "v")]), "d.a_1.k_v", "case 99");
    let level = ServiceEntry { value_to_metric: true, ..entry("k", 5) };
    let set = limits(vec![with(vec![level], entry("a=*", 0))]);
    assert_eq!(set[0].statistics_of(&[("a", "1"), ("k", "v")]), "d.a_*.k_v", "case 100");
}

#[test]
fn a_fixed_window_counts_what_exceeds_it_and_forgets_that_with_it() {
    use crate::algorithm::{Limit, State};
    use crate::request::ReportedCost;
    use crate::time::Timestamp;
    let counts = |permits, hits: &[u64]| {
        let limit = Limit { calendar: None, permits, window: Span::from_secs(60), burst: permits, queue: 0 };
        let mut state = State::new(Algorithm::FixedWindow);
        let at = |second: u64| Timestamp(second * 1_000_000);
        for hits in hits {
            let report = ReportedCost { permits: *hits, debt_max: ReportedCost::COUNTED_BEYOND };
            assert_eq!(state.report(&limit, None, at(61), &report), *hits);
        }
        (
            state.used(&limit, at(62)),
            state.used(&limit, at(120)),
            state.check(&limit, None, at(120), 0).remaining,
        )
    };
    assert_eq!(counts(5, &[3, 3]), (6, 0, 5), "case 33");
    assert_eq!(counts(5, &[6, 1]), (7, 0, 5), "case 34");
    assert_eq!(counts(0, &[1]), (1, 0, 0), "case 162: a limit of 0 counts too");
}
