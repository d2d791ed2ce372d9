//! Requests that may be read in several ways: a path by the origin, and several who ask at once.

use super::tests::{request, rule};
use super::*;
use crate::identity::UserLimit;
use crate::rule::{Condition, Pattern};

fn when(mut rule: Rule, attribute: &str, text: &str) -> Rule {
    let pattern =
        if text.contains('*') { Pattern::Glob(text.to_owned()) } else { Pattern::Exact(text.to_owned()) };
    rule.conditions.push(Condition { attribute: attribute.to_owned(), any_of: vec![pattern] });
    rule
}

fn acting(mut rule: Rule, action: Action) -> Rule {
    rule.action = action;
    rule
}

fn per(mut rule: Rule, attribute: &str) -> Rule {
    rule.per = vec![attribute.to_owned()];
    rule
}

fn set(rules: Vec<Rule>) -> RuleSet {
    RuleSet::compile(rules, &mut Shapes::default()).unwrap()
}

/// A request for the first of these paths, which an origin may read as one of the others.
fn of_paths<'a>(paths: &[&'a str]) -> Request<'a> {
    let mut request = request(&[("path", paths[0]), ("ip", "10.0.0.1")]);
    request.forms.paths = paths[1..].to_vec();
    request
}

fn decided(set: &RuleSet, request: &Request<'_>) -> Vec<String> {
    set.matches(request).iter().map(|found| found.rule.rule.name.clone()).collect()
}

#[test]
fn a_path_is_held_to_the_rules_of_each_reading() {
    let set = set(vec![
        when(rule("login"), "path", "/login*"),
        when(rule("x"), "path", "/x"),
        per(rule("address"), "ip"),
    ]);
    let of = |paths: &[&str]| decided(&set, &of_paths(paths));
    assert_eq!(of(&["/x"]), ["address", "x"]);
    assert_eq!(of(&["/x", "/login/..;/x"]), ["address", "x", "login"], "each rule once");
}

#[test]
fn an_allow_exempts_from_the_rules_of_its_own_reading_alone() {
    let set = set(vec![
        acting(when(rule("public"), "path", "/public/*"), Action::Allow),
        when(rule("login"), "path", "/login*"),
        per(rule("address"), "ip"),
    ]);
    let of = |paths: &[&str]| decided(&set, &of_paths(paths));
    assert_eq!(of(&["/public/x"]), ["public"]);
    assert_eq!(of(&["/public/x", "/login/..;/public/x"]), ["public", "address", "login"]);
    assert_eq!(of(&["/public/x", "/public//x"]), ["public"], "all readings agree");
    let blocked = RuleSet::compile(
        vec![
            acting(when(rule("public"), "path", "/public/*"), Action::Allow),
            acting(when(rule("admin"), "path", "/admin*"), Action::Block),
        ],
        &mut Shapes::default(),
    );
    assert_eq!(
        decided(&blocked.unwrap(), &of_paths(&["/public/x", "/admin/..;/public/x"])),
        ["public", "admin"]
    );
}

#[test]
fn each_reading_names_its_own_bucket() {
    let set = set(vec![per(rule("path"), "path")]);
    let keys = |paths: &[&str]| -> Vec<_> {
        set.matches(&of_paths(paths)).into_iter().filter_map(|found| found.key).collect()
    };
    let both = keys(&["/x", "/N%2Fb/../x"]);
    assert_eq!(both.len(), 2);
    assert_eq!(both[0], keys(&["/x"])[0]);
    assert_eq!(both[1], keys(&["/N%2Fb/../x"])[0]);
}

#[test]
fn a_rule_takes_part_where_it_does_in_any_reading() {
    let set = set(vec![when(rule("login"), "path", "/login*"), when(rule("x"), "path", "/x")]);
    let explained = set.explain(&of_paths(&["/x", "/login/..;/x"]));
    let reasons: Vec<&Reason> = explained.iter().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, [&Reason::Decides, &Reason::Decides]);
}

#[test]
fn everybody_who_asks_is_counted_with_a_limit_of_their_own() {
    let set = set(vec![per(rule("key"), "api_key"), per(rule("user"), "user"), per(rule("address"), "ip")]);
    let request = request(&[("api_key", "one"), ("ip", "10.0.0.1")]);
    let own = [UserLimit { rule: "key".to_owned(), permits: 3, burst: 3 }];
    let other = Who { user: Some("ann"), limits: [&own, &[]], ..Who::default() };
    let mut matches = set.matches(&request);
    set.match_credential(&request, ("two", &other), 0, &mut matches);
    let found: Vec<_> =
        matches.iter().map(|found| (found.rule.rule.name.as_str(), found.limit.permits)).collect();
    assert_eq!(found, [("address", 10), ("key", 10), ("key", 3), ("user", 10)]);
    set.match_credential(&request, ("one", &Who::default()), 0, &mut matches);
    assert_eq!(matches.len(), 4, "the same one again is nobody else");
}
