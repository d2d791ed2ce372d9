//! The domains of a rule set, by name.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::Compiled;
use super::domain::Domain;

/// Domains by name. Copying them copies no name and no index.
#[derive(Debug, Clone, Default)]
pub(super) struct Domains {
    by_name: HashMap<Arc<str>, Arc<Domain>, FixedState>,
    /// The one that there is, where there is one: to compare its name costs less than to hash one.
    only: Option<(Arc<str>, Arc<Domain>)>,
}

impl Domains {
    /// Sorts the rules into their domains and indexes them.
    pub(super) fn of(rules: &[Arc<Compiled>]) -> Self {
        let mut by_domain: HashMap<&str, Vec<&Arc<Compiled>>, FixedState> = HashMap::default();
        for compiled in rules {
            by_domain.entry(&compiled.rule.domain).or_default().push(compiled);
        }
        let mut domains = Self::default();
        for (name, rules) in by_domain {
            domains.put(name, Domain::new(rules));
        }
        domains
    }

    #[inline]
    pub(super) fn get(&self, name: &str) -> Option<&Arc<Domain>> {
        match &self.only {
            Some((own, domain)) => (**own == *name).then_some(domain),
            None => self.by_name.get(name),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    /// Puts a domain in the place of the one of this name; one without rules is none.
    pub(super) fn put(&mut self, name: &str, domain: Domain) {
        if domain.selectors.is_empty() {
            self.by_name.remove(name);
        } else {
            self.by_name.insert(name.into(), Arc::new(domain));
        }
        let mut all = self.by_name.iter();
        self.only = match (all.next(), all.next()) {
            (Some((name, domain)), None) => Some((Arc::clone(name), Arc::clone(domain))),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::rule;
    use super::super::{RuleSet, Shapes};

    #[test]
    fn a_domain_is_found_whether_it_is_alone_or_not_and_gone_with_its_last_rule() {
        let in_domain = |name: &str, domain: &str| {
            let mut rule = rule(name);
            domain.clone_into(&mut rule.domain);
            rule
        };
        let mut shapes = Shapes::default();
        let one = RuleSet::compile(vec![in_domain("a", "edge")], &mut shapes).unwrap();
        let has = |set: &RuleSet| ["edge", "core", "edg"].map(|domain| set.has_domain(domain));
        assert_eq!(has(&one), [true, false, false]);
        let two = one.changed(&[], vec![in_domain("b", "core")], &mut shapes).unwrap();
        assert_eq!(has(&two), [true, true, false]);
        let other = two.changed(&["a".to_owned()], Vec::new(), &mut shapes).unwrap();
        assert_eq!(has(&other), [false, true, false]);
        let none = other.changed(&["b".to_owned()], Vec::new(), &mut shapes).unwrap();
        assert_eq!(has(&none), [false, false, false]);
        assert_eq!(has(&RuleSet::default()), [false, false, false]);
    }
}
