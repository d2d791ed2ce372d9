//! Files as people write them, and the rules that come of them.

use super::*;
use crate::core::request::{Attributes, Cost, Request};
use crate::core::ruleset::RuleSet;
use crate::database::imported::tests::set;

const FILE: &str = r#"
---
- namespace: shop
  max_value: 1000000
  seconds: 60
  conditions:
  variables:
- id: reads
  namespace: shop
  max_value: 10
  seconds: 90
  conditions:
    - "descriptors[0]['req.method'] == 'GET'"
    - "descriptors[0]['req.path'] != '/status'"
    - "descriptors[0]['req.path'] != '/ready'"
  variables:
    - descriptors[0].user_id
- namespace: shop
  name: batches
  max_value: 7
  seconds: 86400
  conditions:
    - >-
      descriptors[0].req_path.startsWith("/batch/") &&
      (descriptors[0].plan in ['gold', "silver"] || descriptors[0]['plan'] == 'trial')
    - "!has(descriptors[0].internal)"
  variables: ["descriptors[0]['remote_address']"]
- namespace: toys
  max_value: 2
  seconds: 30
  conditions: ["get_toy == 'yes'"]
  variables: [req.user]
- { namespace: toys, max_value: 5, seconds: 1, conditions: [kind == wooden car], variables: [] }
"#;

fn imported(text: &str) -> Imported {
    import(&[("limits.yaml".to_owned(), text.to_owned())]).unwrap()
}

/// The names of the rules that count a descriptor.
fn holds(set: &RuleSet, domain: &str, descriptor: &[(&str, &str)]) -> String {
    let attributes: Attributes<'_> = descriptor.iter().copied().collect();
    let request = Request::new(domain, attributes, Cost::Take(1));
    let matches = set.matches(&request);
    let counting = matches.iter().filter(|found| found.key.is_some());
    let mut names: Vec<_> = counting.map(|found| found.rule.rule.name.clone()).collect();
    names.sort_unstable();
    names.join(" ")
}

#[test]
fn a_descriptor_is_held_to_every_limit_whose_conditions_it_meets() {
    let imported = imported(FILE);
    assert_eq!(imported.inexact, [""; 0]);
    let set = set(imported.rules.clone());
    let shop = |descriptor: &[(&str, &str)]| holds(&set, "shop", descriptor);
    let (get, user) = (("req.method", "GET"), ("user_id", "u"));
    assert_eq!(shop(&[get, user, ("req.path", "/x")]), "reads shop");
    for excluded in ["/status", "/ready"] {
        assert_eq!(shop(&[get, user, ("req.path", excluded)]), "shop", "{excluded} is excluded");
    }
    assert_eq!(shop(&[get, user]), "shop", "a key that is not there is unlike no value");
    assert_eq!(shop(&[get, ("req.path", "/x")]), "shop", "the variable is not there");
    assert_eq!(shop(&[("req.method", "PUT"), user, ("req.path", "/x")]), "shop");
    let batch = |plan| [("req_path", "/batch/1"), ("plan", plan), ("ip", "192.0.2.1")];
    for plan in ["gold", "silver", "trial"] {
        assert_eq!(shop(&batch(plan)), "batches shop");
    }
    assert_eq!(shop(&batch("free")), "shop");
    assert_eq!(
        shop(&[&batch("gold")[..], &[("internal", "1")]].concat()),
        "shop",
        "a key that must be absent"
    );
    assert_eq!(shop(&[("req_path", "/x"), ("plan", "gold"), ("ip", "192.0.2.1")]), "shop");
    let toys = |descriptor: &[(&str, &str)]| holds(&set, "toys", descriptor);
    assert_eq!(toys(&[("get_toy", "yes"), ("req.user", "u")]), "toys.get_toy_yes.req.user");
    assert_eq!(toys(&[("get_toy", "yes")]), "");
    assert_eq!(toys(&[("kind", "wooden car")]), "toys.kind_wooden car");
}

#[test]
fn windows_variables_and_names_become_those_of_rules() {
    let imported = imported(FILE);
    let named = |name: &str| imported.rules.iter().find(|rule| rule.name == name).unwrap();
    let reads = named("reads");
    assert_eq!(
        (reads.algorithm, reads.limit, reads.window.as_deref(), reads.domain.as_deref()),
        (Some("fixed_window"), Some(10), Some("90s"), Some("shop"))
    );
    assert_eq!((reads.per.as_slice(), reads.exact), (&["user_id".to_owned()][..], false));
    let allowed = named("reads.not-limited");
    assert_eq!((allowed.action, allowed.priority), (Some("allow"), Some(100)));
    assert_eq!((&allowed.group, reads.priority), (&reads.group, Some(101)));
    assert_eq!(allowed.conditions["req.path"], ["/status", "/ready"]);
    assert_eq!(named("shop").group, None);
    assert_eq!(
        (named("batches").per.as_slice(), named("batches").window.as_deref()),
        (&["ip".to_owned()][..], Some("1d"))
    );
    for sentence in [
        "limits.yaml: windows begin with the clock here",
        "limits.yaml: a rule counts every descriptor",
        "limits.yaml: keys without descriptors[0] are read as Limitador did before its version 2",
        "limits.yaml: limits[2]: \"remote_address\" is read as an address here",
    ] {
        let found = imported.notes.iter().filter(|note| note.starts_with(sentence)).count();
        assert_eq!(found, 1, "{sentence}: {:?}", imported.notes);
    }
}

#[test]
fn conditions_that_rules_cannot_say_are_left_out_with_their_reason() {
    let one = |condition: &str| {
        let quoted = condition.replace('"', "\\\"");
        imported(&format!(
            "- {{ namespace: n, max_value: 1, seconds: 1, conditions: [\"{quoted}\"], variables: [] }}"
        ))
    };
    for (condition, why) in [
        ("descriptors[0].a == 'x' || descriptors[0].b == 'y'", "joins conditions on several keys"),
        ("descriptors[0].a != 'x' || descriptors[0].a != 'y'", "joins conditions on several keys"),
        ("!(descriptors[0].a == 'x' && descriptors[0].b == 'y')", "joins conditions on several keys"),
        ("descriptors[0].a.matches('^x')", "is a regular expression"),
        ("descriptors[0].a == 5", "is never met: a is a text, and 5 a number"),
        ("descriptors[0].a == 'x*'", "which has a *"),
        ("descriptors[0].a == ''", "which is an empty text"),
        ("descriptors[0].a.startsWith('')", "which is an empty text"),
        ("!descriptors[0].a == 'x'", "is no comparison of descriptors' keys"),
        ("descriptors[0].a > 'x'", "is no comparison of descriptors' keys"),
        ("descriptors[0].a.b == 'x'", "is no comparison of descriptors' keys"),
        ("descriptors[0].a == descriptors[0].b", "is no comparison of descriptors' keys"),
        ("size(descriptors) == 1", "is no comparison of descriptors' keys"),
        ("limit.name == 'x'", "tests the limit itself"),
        ("((((((((((((((((descriptors[0].a == 'x'))))))))))))))))", "is nested too deeply"),
        ("descriptors[0].a == 'x' && descriptors[1].b == 'y'", "names several descriptors"),
        ("descriptors[0].a.startsWith('x') && descriptors[0].a.endsWith('y')", "two conditions hold for it"),
        ("descriptors[0].path != '/a?b=1'", "paths without their queries"),
        ("descriptors[0].remote_address.startsWith('10.')", "rules here compare addresses"),
    ] {
        let imported = one(condition);
        assert_eq!(imported.rules, [], "{condition}");
        let [said] = imported.inexact.as_slice() else { panic!("{condition}: {:?}", imported.inexact) };
        assert!(said.starts_with("limits.yaml: limits[0]") && said.contains(why), "{condition}: {said}");
        assert!(said.ends_with("the limit is left out"), "{said}");
    }
    for (condition, values) in [
        ("'x' == descriptors[0].a", "x"),
        ("descriptors[0][\"a\"].endsWith('.png')", "*.png"),
        ("descriptors[0].a.contains('x') && true", "*x*"),
        ("'a' in descriptors[0]", "*"),
        ("!(!(descriptors[0].a == 'it\\\\'s'))", "it's"),
        ("has(descriptors[0].a) && descriptors[0].a == 'x'", "x"),
    ] {
        let imported = one(condition);
        assert_eq!(imported.inexact, [""; 0], "{condition}");
        assert_eq!(imported.rules[0].conditions["a"], [values], "{condition}");
    }
}

#[test]
fn limits_that_are_wrong_or_mean_more_are_said_with_their_place() {
    let text = "
- { namespace: n, max_value: -1, seconds: 60 }
- { namespace: n, max_value: 1, seconds: 0 }
- { max_value: 1, seconds: 60 }
- { namespace: n, max_value: 1, seconds: 60, variables: [\"string(descriptors[0].a)\"] }
- { namespace: n, max_value: 1, seconds: 60, conditions: [], variables: [\"descriptors[1].a\"], quota: 5 }
- { namespace: n, max_value: 2, seconds: 60, conditions: [], variables: [\"descriptors[1].a\"] }
- { namespace: n, max_value: 3, seconds: 60, conditions: 4 }
- five
";
    let imported = imported(text);
    let said = imported.inexact.join("\n");
    for sentence in [
        "limits.yaml: limits[0].max_value: must be a whole number up to 4294967295: the limit is left out",
        "limits[1].seconds: must be a whole number from 1 to 31622400",
        "limits[2].namespace: must be a text",
        "limits[3].variables[0]: string(descriptors[0].a) is no key of a descriptor",
        "limits[4].quota: there is nothing like it here",
        "limits[4]: holds for every descriptor that has these keys here, not for descriptors[1] alone",
        "limits[5]: has the namespace, seconds, conditions and variables of limits.yaml: limits[4]",
        "limits[6].conditions: must be a list of texts",
        "limits[7]: must be a table",
    ] {
        assert!(said.contains(sentence), "{sentence}: {said}");
    }
    assert_eq!(imported.rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), ["n.a"]);
    set(imported.rules);
}

#[test]
fn the_operators_resource_is_read_and_other_texts_are_refused() {
    let text = "
apiVersion: limitador.kuadrant.io/v1alpha1
kind: Limitador
spec:
  limits:
  - { namespace: a/b, max_value: 3, seconds: 10, name: one, conditions: [\"descriptors[0]['limit.one__1'] == '1'\"],
      variables: [\"descriptors[0]['auth.identity.username']\"] }
  - { namespace: a/b, max_value: 9, seconds: 60, name: one, conditions: [\"descriptors[0]['limit.one__1'] == '1'\"],
      variables: [\"descriptors[0]['auth.identity.username']\"] }
";
    let imported = imported(text);
    assert_eq!(imported.inexact, [""; 0]);
    let set = set(imported.rules.clone());
    let descriptor = [("limit.one__1", "1"), ("auth.identity.username", "u")];
    assert_eq!(holds(&set, "a/b", &descriptor), "one one-2");
    for (text, why) in
        [("domain: a", "f: is no file of Limitador: a list of limits is expected"), ("a: [", "f: is no YAML")]
    {
        let problems = import(&[("f".to_owned(), text.to_owned())]).unwrap_err();
        assert!(problems[0].to_string().starts_with(why), "{text}: {problems:?}");
    }
}
