//! Rules by own limit: a user's, a key's or a request's own limit in place of the rule's.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::super::algorithm::Limit;
use super::super::wire::{OwnLimit, RuleName};
use super::WorldRule;

/// Rules with own limits, of one rule, from which on those that no bucket has are forgotten.
const VARIANTS_SWEPT: usize = 256;

/// Rules with own limits in place of theirs, made once for all buckets that have the same.
#[derive(Debug)]
pub(super) struct Variants<R>(HashMap<RuleName, BTreeMap<OwnLimit, Arc<R>>>);

impl<R> Default for Variants<R> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<R> Variants<R> {
    /// The rule with this own limit in place of its limit.
    pub(super) fn of(
        &mut self,
        (name, limit): (&RuleName, &Limit),
        rule: &Arc<R>,
        own: Option<OwnLimit>,
        make: impl FnOnce(Limit) -> R,
    ) -> Arc<R> {
        let Some(own) = own.filter(|own| *own != OwnLimit::of(limit)) else { return Arc::clone(rule) };
        let variant = || Arc::new(make(own.in_place_of(*limit)));
        let Some(known) = self.0.get_mut(name) else {
            let variant = variant();
            self.0.insert(name.clone(), BTreeMap::from([(own, Arc::clone(&variant))]));
            return variant;
        };
        if known.len() >= VARIANTS_SWEPT && known.len().is_power_of_two() && !known.contains_key(&own) {
            known.retain(|_, variant| Arc::strong_count(variant) > 1);
        }
        Arc::clone(known.entry(own).or_insert_with(variant))
    }
}

impl Variants<WorldRule> {
    /// The same of a rule as the world knows it.
    pub(super) fn with(&mut self, rule: &Arc<WorldRule>, own: Option<OwnLimit>) -> Arc<WorldRule> {
        let make = |limit| WorldRule { limit, ..WorldRule::clone(rule) };
        self.of((&rule.name, &rule.limit), rule, own, make)
    }
}
