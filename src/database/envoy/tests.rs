//! Descriptors of the reference service against the rules that come of its file.

use super::*;
use crate::core::request::{Attributes, Cost, Request};
use crate::core::ruleset::RuleSet;
use crate::database::imported::{self, to_toml};

const FILE: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: tenant
    value: gold
    rate_limit: { unit: minute, requests_per_unit: 100 }
  - key: tenant
    value: house
    rate_limit: { unlimited: true }
  - key: tenant
    value: legacy
  - key: tenant
    value: beta-*
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 7 }
  - key: tenant
    value: a*b
    rate_limit: { unit: minute, requests_per_unit: 9 }
  - key: path
    descriptors:
      - key: remote_address
        rate_limit: { unit: second, requests_per_unit: 3 }
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        value: 203.0.113.9
        rate_limit: { unit: second, requests_per_unit: 1 }
";

fn files(files: &[(&str, &str)]) -> Result<Imported, Vec<Unread>> {
    let owned: Vec<_> = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    import(&owned)
}

fn imported(text: &str) -> Imported {
    files(&[("f.yaml", text)]).unwrap()
}

fn set(text: &str) -> RuleSet {
    imported::tests::set(imported(text).rules)
}

/// The limits that hold for a descriptor, with the names of their rules.
fn holds(set: &RuleSet, descriptor: &[(&str, &str)]) -> Vec<(u32, String)> {
    let attributes: Attributes<'_> = descriptor.iter().copied().collect();
    let request = Request::new("shop", attributes, Cost::Take(1));
    let matches = set.matches(&request);
    let counting = matches.iter().filter(|found| found.key.is_some());
    counting.map(|found| (found.limit.permits, found.rule.rule.name.clone())).collect()
}

#[test]
fn a_descriptor_is_held_to_the_limit_at_the_end_of_its_walk() {
    let set = set(FILE);
    let one = |limit: u32, name: &str| vec![(limit, name.to_owned())];
    assert_eq!(holds(&set, &[("tenant", "any")]), one(10, "shop.tenant"));
    assert_eq!(holds(&set, &[("tenant", "gold")]), one(100, "shop.tenant_gold"));
    assert_eq!(holds(&set, &[("tenant", "beta-7")]), one(7, "shop.tenant_beta-*"));
    assert_eq!(holds(&set, &[("tenant", "a-test-b")]), one(9, "shop.tenant_a*b"));
    // Unlimited, and an entry that has no limit and stands before one that has.
    assert_eq!(holds(&set, &[("tenant", "house")]), []);
    assert_eq!(holds(&set, &[("tenant", "legacy")]), []);
    // Exactly these keys, or none.
    assert_eq!(holds(&set, &[("tenant", "any"), ("path", "/x")]), []);
    assert_eq!(holds(&set, &[("path", "/x")]), []);
    assert_eq!(holds(&set, &[("path", "/x"), ("ip", "203.0.113.9")]), one(3, "shop.path.remote_address"));
    let login = one(1, "shop.path_/login.remote_address_203.0.113.9");
    assert_eq!(holds(&set, &[("path", "/login"), ("ip", "203.0.113.9")]), login);
    // The walk goes down at /login and finds nothing for this address.
    assert_eq!(holds(&set, &[("path", "/login"), ("ip", "203.0.113.1")]), []);
}

#[test]
fn an_entry_without_a_value_counts_each_value_and_shadow_mode_only_logs() {
    let rules = imported(FILE).rules;
    let named = |name: &str| rules.iter().find(|rule| rule.name == name).unwrap();
    assert_eq!(named("shop.tenant").per, ["tenant"]);
    assert!(named("shop.tenant_gold").per.is_empty());
    assert_eq!(named("shop.path.remote_address").per, ["path", "ip"]);
    let beta = named("shop.tenant_beta-*");
    assert_eq!(
        (beta.per.as_slice(), beta.action, beta.window.as_deref()),
        (&["tenant".to_owned()][..], Some("log_only"), Some("1h"))
    );
    assert_eq!(named("shop.tenant_house").action, Some("allow"));
    assert!(imported(FILE).inexact.is_empty());
}

#[test]
fn what_cannot_be_expressed_is_listed() {
    let text = "
domain: d
limit_of_limits: 3
descriptors:
  - key: a
    metadata: { tier: gold }
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: b
    rate_limit: { unit: fortnight, requests_per_unit: 1 }
  - key: c
    rate_limit: { unit: day, requests_per_unit: -1 }
  - key: d
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 1, name: one, replaces: [{ name: other }] }
  - key: e
    descriptors:
      - key: e
        rate_limit: { unit: day, requests_per_unit: 1 }
  - value: nothing
  - key: f
    value: 1.50
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: s
    share_threshold: true
    rate_limit: { unlimited: true, unit: day }
  - key: g
    descriptors: [{ key: h, rate_limit: { unit: day, requests_per_unit: 1 } }]
  - key: h
    descriptors: [{ key: g, rate_limit: { unit: day, requests_per_unit: 2 } }]
";
    let imported = imported(text);
    let told = imported.inexact.join("\n");
    for part in [
        "descriptors[1].rate_limit.unit: must be second",
        "descriptors[2].rate_limit.requests_per_unit",
        "descriptors[3].rate_limit.replaces",
        "descriptors[0].metadata: there is nothing like it",
        "descriptors[3].quota_mode: there is nothing like it",
        "the same key twice (e, e)",
        "descriptors[5]: has no key",
        "descriptors[6].value: is a number that is not whole",
        "limit_of_limits",
        "descriptors[7].share_threshold: needs a value with a *",
        "descriptors[7].rate_limit.unit: stands beside unlimited",
        "differ only in their order",
    ] {
        assert!(told.contains(part), "{part}\n{told}");
    }
    let names: Vec<_> = imported.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["d.a", "d.d", "d.g.h", "d.h.g", "d.s"]);
}

#[test]
fn keys_that_are_attributes_of_ours_are_listed_where_they_would_mean_something_else() {
    let entry = |key: &str, value: &str| {
        format!("  - {{ key: {key}, {value}rate_limit: {{ unit: minute, requests_per_unit: 3 }} }}\n")
    };
    let one = |key: &str, value: &str| {
        imported(&format!("domain: d\ndescriptors:\n{}", entry(key, &format!("value: \"{value}\", "))))
    };
    for (key, value, why) in [
        ("path", "/api?x=1", "without their queries"),
        ("path", "//api/../x", "in one form, which is \"/x\""),
        ("path", "/api?x=*", "without their queries"),
        ("host", "shop.example:443", "as \"shop.example\""),
        ("remote_address", "10.0.0.0/8", "is a network here, and a text there that no address is"),
        ("remote_address", "10.*", "not the beginnings of their texts"),
        ("remote_address", "localhost", "is no address"),
    ] {
        let imported = one(key, value);
        assert!(imported.inexact.len() == 1 && imported.inexact[0].contains(why), "{:?}", imported.inexact);
        assert_eq!(imported.rules.len(), 0, "{key}={value} is left out");
    }
    for (key, value) in [("path", "/api/*"), ("host", "Shop.Example"), ("remote_address", "10.0.0.1")] {
        let imported = one(key, value);
        assert_eq!((imported.inexact.len(), imported.rules.len(), imported.notes.len()), (0, 1, 1), "{key}");
    }
    let all = ["path", "host", "remote_address", "api_key", "user", "tier", "authorization", "tenant"];
    let entries: String = all.iter().map(|key| entry(key, "")).collect();
    let noted = imported(&format!("domain: d\ndescriptors:\n{entries}"));
    assert_eq!((noted.inexact.len(), noted.notes.len()), (0, 7), "{:?}", noted.notes);
    assert!(noted.notes[0].starts_with("f.yaml: descriptors[0].key: \"path\" is read in its normal form"));
}

#[test]
fn words_that_yaml_once_took_for_truth_values_stay_texts() {
    let text = "
domain: no
descriptors:
  - key: on
    value: yes
    shadow_mode: yes
    rate_limit: { unit: day, requests_per_unit: 1 }
";
    let imported = imported(text);
    assert_eq!(imported.inexact, [""; 0]);
    let [rule] = imported.rules.as_slice() else { panic!("{:?}", imported.rules) };
    assert_eq!((rule.name.as_str(), rule.action), ("no.on_yes", Some("log_only")));
}

#[test]
fn what_is_no_such_file_is_refused() {
    let refused = |text: &str| files(&[("f.yaml", text)]).unwrap_err()[0].to_string();
    assert!(refused("[1, 2]").contains("a domain and descriptors"));
    assert!(refused("descriptors: []").contains("domain is missing"));
    assert!(refused("domain: [").contains("is no YAML"));
}

#[test]
fn files_of_one_domain_are_one_tree() {
    let any = "domain: shop\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]";
    let one =
        "domain: shop\ndescriptors: [{ key: a, value: x, rate_limit: { unit: day, requests_per_unit: 9 } }]";
    let other = "domain: e\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 4 } }]";
    let imported = files(&[("1.yaml", any), ("2.yaml", one), ("3.yaml", other)]).unwrap();
    assert_eq!(imported.inexact, [""; 0]);
    let set = imported::tests::set(imported.rules);
    assert_eq!(holds(&set, &[("a", "x")]), [(9, "shop.a_x".to_owned())], "the value stands before the key");
    assert_eq!(holds(&set, &[("a", "y")]), [(1, "shop.a".to_owned())]);
    let twice = files(&[("1.yaml", any), ("2.yaml", any)]).unwrap();
    assert_eq!(
        twice.inexact,
        ["2.yaml: the descriptor a of domain shop stands in 1.yaml too: the first counts"]
    );
    assert_eq!(twice.rules.len(), 1);
}

#[test]
fn rules_of_several_files_have_names_that_differ() {
    let rule =
        imported("domain: d\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 1 } }]")
            .rules;
    let toml = to_toml([rule.clone(), rule].concat()).unwrap();
    assert!(toml.contains("\"d.a\"") && toml.contains("\"d.a-2\""), "{toml}");
}
