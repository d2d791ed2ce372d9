//! A set made of another by exchanging a few rules: the same as compiling all of them, at the cost of those
//! few.
//!
//! Rules that did not change are shared or copied as they are. Each domain keeps its index and finds rules
//! that came later in a second, small one, until those are many enough to be worth an index of all again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::domain::Domain;
use super::domains::Domains;
use super::splice::{Splice, precedence};
use super::{Compiled, Conflict, RuleSet, Shapes, unruled};
use crate::rule::Rule;

/// The rules that go from a domain and those that come, each in order of precedence.
#[derive(Debug, Default)]
struct Exchange<'a> {
    gone: Vec<&'a Arc<Compiled>>,
    put: Vec<&'a Arc<Compiled>>,
}

impl RuleSet {
    /// The set that has `put` besides the rules of this one, but none of this one's with a name in `names`.
    /// Users and keys are not carried over.
    ///
    /// # Errors
    /// As [`Self::compile`]. This set stays as it is.
    pub fn changed(
        &self,
        names: &[String],
        put: Vec<Rule>,
        shapes: &mut Shapes,
    ) -> Result<Self, Vec<Conflict>> {
        let mut by_name = self.by_name.clone();
        let mut numbers = self.numbers.clone();
        // A name that is given twice is found once.
        let mut gone: Vec<Arc<Compiled>> = names.iter().filter_map(|name| by_name.remove(name)).collect();
        let mut conflicts = Vec::new();
        let mut added = Vec::with_capacity(put.len());
        for rule in put {
            let Some(shape) = shapes.of(&rule) else {
                conflicts.push(Conflict::ShapesSpent);
                break;
            };
            let number = self.by_name(&rule.name).map_or_else(|| numbers.take(), |before| before.number);
            let compiled = Arc::new(Compiled::new(rule, number, shape));
            match by_name.insert(&compiled) {
                Ok(()) => added.push(compiled),
                Err(name) => conflicts.push(Conflict::DuplicateName(name)),
            }
        }
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        for compiled in gone.iter().filter(|compiled| by_name.get(&compiled.rule.name).is_none()) {
            numbers.give_back(compiled.number);
        }
        gone.sort_by(|a, b| precedence(&a.rule).cmp(&precedence(&b.rule)));
        added.sort_by(|a, b| precedence(&a.rule).cmp(&precedence(&b.rule)));
        let set = Self {
            rules: exchanged(&self.rules, &gone, &added, |_| true),
            worldwide: exchanged(&self.worldwide, &gone, &added, |rule| rule.global.is_some()),
            by_name,
            numbers,
            unruled: self.unruled.clone().or_else(|| unruled(shapes)),
            domains: self.domains_after(&gone, &added),
            ..Self::default()
        };
        shapes.end_of_change(&set.rules);
        Ok(set)
    }

    fn domains_after(&self, gone: &[Arc<Compiled>], added: &[Arc<Compiled>]) -> Domains {
        let mut touched: BTreeMap<&str, Exchange<'_>> = BTreeMap::new();
        for compiled in gone {
            touched.entry(&compiled.rule.domain).or_default().gone.push(compiled);
        }
        for compiled in added {
            touched.entry(&compiled.rule.domain).or_default().put.push(compiled);
        }
        let mut domains = self.domains.clone();
        for (name, Exchange { gone, put }) in touched {
            let domain = match domains.get(name) {
                Some(before) => before.changed(&gone, &put),
                None => Domain::new(put),
            };
            domains.put(name, domain);
        }
        domains
    }
}

fn exchanged(
    old: &[Arc<Compiled>],
    gone: &[Arc<Compiled>],
    put: &[Arc<Compiled>],
    belongs: impl Fn(&Rule) -> bool,
) -> Vec<Arc<Compiled>> {
    let belongs = |compiled: &&Arc<Compiled>| belongs(&compiled.rule);
    let gone: Vec<&Rule> = gone.iter().filter(belongs).map(|compiled| &compiled.rule).collect();
    let put: Vec<&Arc<Compiled>> = put.iter().filter(belongs).collect();
    let rules: Vec<&Rule> = put.iter().map(|compiled| &compiled.rule).collect();
    Splice::new(old, |compiled| compiled, &gone, &rules).list(old, put.into_iter().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;
    use crate::ruleset::Reason;
    use crate::ruleset::tests::{ATTRIBUTES, any_rules, any_value, request, rule};
    use proptest::prelude::*;

    /// One change: rules that go, by number of name, and rules that come, each in place of the one of its
    /// name.
    type Change = (Vec<usize>, Vec<Rule>);

    fn any_change(names: usize) -> impl Strategy<Value = Change> {
        let gone = proptest::collection::vec(0..names, 0..4);
        let put = any_rules(0..8);
        let (place, domain) = (0..names, proptest::collection::vec(0..3_usize, 8));
        (gone, put, place, domain).prop_map(move |(gone, mut put, place, domains)| {
            for (n, (rule, domain)) in put.iter_mut().zip(domains).enumerate() {
                rule.name = format!("r{}", (place + n * 7) % names);
                if domain == 0 {
                    "edge".clone_into(&mut rule.domain);
                }
                rule.limit += u32::try_from(place).unwrap();
            }
            (gone, put)
        })
    }

    /// Returns what can be told of a set from outside, for these requests.
    fn shown(set: &RuleSet, requests: &[Vec<(&'static str, &'static str)>]) -> Vec<String> {
        let mut shown: Vec<String> =
            set.rules().iter().map(|own| format!("{:?} {:?} {:?}", own.rule, own.shape, own.limit)).collect();
        shown.extend(set.worldwide().iter().map(|own| own.rule.name.clone()));
        for (attributes, domain) in requests.iter().flat_map(|own| [(own, "default"), (own, "edge")]) {
            let asked = Request { domain, ..request(attributes) };
            let matches = set.matches(&asked);
            shown.extend(
                matches.iter().map(|own| format!("{} {:?} {:?}", own.rule.rule.name, own.key, own.limit)),
            );
            let explained: Vec<(&str, Reason)> =
                set.explain(&asked).into_iter().map(|(own, why)| (own.rule.name.as_str(), why)).collect();
            shown.push(format!("{explained:?}"));
            for own in set.rules() {
                shown.push(format!(
                    "{:?}",
                    set.bucket(&own.rule.name, &asked).map(|own| (own.key, own.limit))
                ));
            }
        }
        shown
    }

    fn numbered(set: &RuleSet) -> bool {
        let mut numbers: Vec<u32> = set.rules().iter().map(|own| own.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len() == set.rules().len()
            && numbers.last().is_none_or(|last| usize::try_from(*last).unwrap() < set.numbers())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_set_that_was_changed_is_the_set_compiled_from_its_rules(
            first in any_rules(0..40),
            changes in proptest::collection::vec((any_change(50), any::<proptest::sample::Index>(), 0..3_i32), 1..32),
            requests in proptest::collection::vec(
                proptest::collection::vec((proptest::sample::select(ATTRIBUTES.to_vec()), any_value()), 0..5), 4),
        ) {
            let mut shapes = Shapes::default();
            let mut set = RuleSet::compile(first, &mut shapes).unwrap();
            for ((gone, mut put), moved, priority) in changes {
                // One that is there moves, or only its limit changes.
                if !set.rules().is_empty() {
                    let own = moved.get(set.rules()).rule.clone();
                    if put.iter().all(|rule| rule.name != own.name) {
                        put.push(Rule { priority, limit: own.limit + 1, ..own });
                    }
                }
                let names: Vec<String> = gone.iter().map(|n| format!("r{n}"))
                    .chain(put.iter().map(|rule| rule.name.clone())).collect();
                let mut rules: Vec<Rule> = set.rules().iter().map(|own| own.rule.clone())
                    .filter(|rule| !names.contains(&rule.name)).collect();
                rules.extend(put.iter().cloned());
                let mut distinct: Vec<&str> = put.iter().map(|rule| rule.name.as_str()).collect();
                distinct.sort_unstable();
                distinct.dedup();
                let twice = distinct.len() < put.len();
                match set.changed(&names, put, &mut shapes) {
                    Ok(changed) => {
                        prop_assert!(!twice);
                        set = changed;
                    }
                    Err(conflicts) => {
                        prop_assert!(twice);
                        prop_assert_eq!(conflicts, RuleSet::compile(rules, &mut shapes).unwrap_err());
                        continue;
                    }
                }
                let anew = RuleSet::compile(rules, &mut shapes).unwrap();
                prop_assert_eq!(shown(&set, &requests), shown(&anew, &requests));
                prop_assert!(numbered(&set));
            }
        }
    }

    fn when_path(n: usize, limit: u32) -> Rule {
        let mut rule = rule(&format!("r{n}"));
        let any_of = vec![crate::rule::Pattern::Exact(format!("/{n}"))];
        rule.conditions = vec![crate::rule::Condition { attribute: "path".to_owned(), any_of }];
        Rule { limit, ..rule }
    }

    #[test]
    fn a_changed_limit_shares_the_index_and_other_domains() {
        let mut edge = rule("edge");
        "edge".clone_into(&mut edge.domain);
        let rules = (0..100).map(|n| when_path(n, 10)).chain([edge]).collect();
        let mut shapes = Shapes::default();
        let set = RuleSet::compile(rules, &mut shapes).unwrap();
        let changed = set.changed(&["r7".to_owned()], vec![when_path(7, 11)], &mut shapes).unwrap();
        assert!(changed.domains.get("default").unwrap().shares_index(set.domains.get("default").unwrap()));
        assert!(Arc::ptr_eq(changed.domains.get("edge").unwrap(), set.domains.get("edge").unwrap()));
        assert_eq!(changed.by_name("r7").unwrap().number, set.by_name("r7").unwrap().number);
        let asked = request(&[("path", "/7")]);
        assert_eq!(changed.matches(&asked)[0].limit.permits, 11);
        assert_eq!(set.matches(&asked)[0].limit.permits, 10, "a set never changes");
    }

    #[test]
    fn after_very_many_changes_no_more_is_kept_than_a_set_compiled_at_once_has() {
        let mut shapes = Shapes::default();
        let mut set = RuleSet::compile((0..100).map(|n| when_path(n, 10)).collect(), &mut shapes).unwrap();
        for n in 100..1_100 {
            let mut rule = when_path(n, 10);
            (rule.per, rule.group) = (vec![format!("a{n}")], Some(format!("g{n}")));
            set =
                set.changed(&[format!("r{}", n - 100), rule.name.clone()], vec![rule], &mut shapes).unwrap();
            assert_eq!(set.rules().len(), 100);
            assert!(set.numbers() <= 101, "{}", set.numbers());
            let kept = set.domains.get("default").unwrap().kept();
            assert!(kept <= 500, "{kept}");
        }
    }

    #[test]
    fn a_name_that_is_there_cannot_come_again_beside_it() {
        let mut shapes = Shapes::default();
        let set = RuleSet::compile(vec![rule("a"), rule("b")], &mut shapes).unwrap();
        let conflicts = set.changed(&["a".to_owned()], vec![rule("b")], &mut shapes).unwrap_err();
        assert_eq!(conflicts, [Conflict::DuplicateName("b".to_owned())]);
    }
}
