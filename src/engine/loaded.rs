//! A rule set in force, with what the engine keeps beside each rule.

use std::collections::HashMap;
use std::sync::Arc;

use super::split::{self, Share};
use crate::core::algorithm::Limit;
use crate::core::key::{Key, Shape};
use crate::core::rule::Mode;
use crate::core::ruleset::{Compiled, RuleSet};
use crate::core::wire::RuleName;
use crate::core::worldwide::split::Split;
use crate::core::worldwide::{WorldKey, WorldRule};
use crate::telemetry::{Metrics, RuleMetrics};

/// A rule set in force. Immutable; a reload swaps the whole.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub set: RuleSet,
    /// Grows by one with every set that takes force.
    pub revision: u64,
    /// Whether every rule only logs.
    pub shadow: bool,
    sides: Vec<Side>,
    worldwide: HashMap<Shape, usize>,
}

/// What the engine keeps beside one rule.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: Arc<str>,
    pub(super) message: Option<Arc<str>>,
    pub(super) metrics: RuleMetrics,
    /// What this region is held to, for a `split` or `escrow` rule.
    share: Option<Share>,
}

impl Loaded {
    /// Puts a compiled set beside its metrics.
    #[must_use]
    pub fn new(set: RuleSet, revision: u64, shadow: bool, metrics: &Metrics) -> Self {
        let side = |compiled: &Arc<Compiled>| Side {
            name: compiled.rule.name.as_str().into(),
            message: compiled.rule.message.as_deref().map(Into::into),
            metrics: metrics.rule(&compiled.rule.name),
            share: None,
        };
        let sides = set.rules().iter().map(side).collect();
        let worldwide = set
            .rules()
            .iter()
            .enumerate()
            .filter(|(_, compiled)| {
                let rule = &compiled.rule;
                rule.global.as_ref().is_some_and(|global| global.mode != Mode::Split)
                    && rule.enabled
                    && rule.action.counts()
            })
            .map(|(index, compiled)| (compiled.shape, index))
            .collect();
        Self { set, revision, shadow, sides, worldwide }
    }

    /// Holds `split` and `escrow` rules to this region's shares.
    pub(super) fn sharing(mut self, split: &Split, region: &str, lends: bool) -> Self {
        let region: Arc<str> = region.into();
        for (compiled, side) in self.set.rules().iter().zip(&mut self.sides) {
            side.share = split::share_of(split, compiled, &region, lends);
        }
        self
    }

    /// The shares of all `split` and `escrow` rules.
    pub(super) fn shares(&self) -> impl Iterator<Item = &Share> {
        self.sides.iter().filter_map(|side| side.share.as_ref())
    }

    /// What this region is held to where a rule or a user is given `limit`.
    pub(super) fn held_to(&self, rule: &Compiled, limit: Limit) -> Limit {
        self.side(rule).and_then(|side| side.share.as_ref()).map_or(limit, |share| share.of(limit))
    }

    pub(super) fn side(&self, rule: &Compiled) -> Option<&Side> {
        self.sides.get(usize::try_from(rule.index).ok()?)
    }

    /// The worldwide rule whose buckets have this shape.
    pub(super) fn worldwide(&self, shape: Shape) -> Option<&Arc<Compiled>> {
        self.set.rules().get(*self.worldwide.get(&shape)?)
    }

    /// All worldwide rules, as the protocol wants them.
    #[must_use]
    pub fn world_rules(&self) -> Vec<WorldRule> {
        let mut indices: Vec<_> = self.worldwide.values().copied().collect();
        indices.sort_unstable();
        let rule = |index: usize| {
            let compiled = self.set.rules().get(index)?;
            Some(WorldRule {
                name: name_of(compiled),
                algorithm: compiled.rule.algorithm,
                limit: compiled.limit,
                global: compiled.rule.global.clone()?,
            })
        };
        indices.into_iter().filter_map(rule).collect()
    }

    /// The name that other daemons know a bucket by; `None` if its rule is not worldwide.
    pub(super) fn world_key(&self, key: &Key) -> Option<WorldKey> {
        let compiled = self.worldwide(key.shape())?;
        Some(WorldKey { rule: name_of(compiled), identity: key.identity().to_vec() })
    }

    /// The bucket that other daemons know by this name; `None` if its rule is not worldwide here.
    pub(super) fn local_key(&self, key: &WorldKey) -> Option<(&Arc<Compiled>, Key)> {
        let compiled = self.set.get(&key.rule.domain, &key.rule.name)?;
        self.worldwide(compiled.shape)?;
        Some((compiled, Key::from_identity(compiled.shape, &key.identity)))
    }
}

fn name_of(compiled: &Compiled) -> RuleName {
    RuleName { domain: compiled.rule.domain.clone(), name: compiled.rule.name.clone() }
}
