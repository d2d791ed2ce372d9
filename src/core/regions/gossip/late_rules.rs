//! Rules that come to one region later than to others, or go and come back.
//!
//! A report of a rule that a daemon does not hold is passed over and acknowledged: else it would come again
//! for as long as the rule is missing. So once membership says that the daemon holds the rule, it is told
//! anew what it passed over. Until then it keeps to its region's share of the rule, as a daemon does that has
//! just begun.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::replica::Replica;
use crate::regions::compared::{Digest, Digests};
use crate::regions::variants::Variants;
use crate::regions::{NodeName, WorldRule};
use crate::rule::Mode;
use crate::time::{Span, Timestamp};
use crate::wire::RuleName;

/// For so long a rule that came late keeps to the region's share: the others have told what they know by
/// then.
const LATE_FOR: Span = Span::from_secs(3);
/// Most rules that are remembered because reports of them were passed over. More come without a share to
/// keep to.
const MISSED_MAX: usize = 1_024;

/// Rules of which other daemons told before this one held them.
#[derive(Debug, Default)]
pub(super) struct LateRules {
    /// Rules of which reports were passed over.
    missed: BTreeSet<RuleName>,
    /// Rules that came after that, and until when they keep to the region's share.
    late: BTreeMap<RuleName, Timestamp>,
}

impl LateRules {
    /// A report of a rule was passed over: the rule is not held here, or counts in other windows.
    pub(super) fn miss(&mut self, rule: &RuleName) {
        if self.missed.len() < MISSED_MAX && !self.missed.contains(rule) {
            self.missed.insert(rule.clone());
        }
    }

    /// Other rules are in force, of which these have come with them.
    fn come(
        &mut self,
        now: Timestamp,
        is_in_force: impl Fn(&RuleName) -> bool,
        came: impl Fn(&RuleName) -> bool,
    ) {
        self.late.retain(|rule, _| is_in_force(rule));
        let late: Vec<RuleName> = self.missed.iter().filter(|rule| came(rule)).cloned().collect();
        for rule in late {
            self.missed.remove(&rule);
            self.late.insert(rule, now + LATE_FOR);
        }
    }

    /// The rules that keep to the region's share.
    pub(super) fn held(&self) -> impl Iterator<Item = &RuleName> {
        self.late.keys()
    }

    /// Frees the rules of which the others had the time to tell. Returns whether there are any.
    pub(super) fn end(&mut self, now: Timestamp) -> bool {
        let held = self.late.len();
        self.late.retain(|_, until| now < *until);
        self.late.len() != held
    }

    pub(super) fn next_end(&self) -> Option<Timestamp> {
        self.late.values().min().copied()
    }

    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        self.late.values_mut().for_each(|until| *until = (*until).min(now + LATE_FOR));
    }
}

impl Replica {
    /// The worldwide rules now in force. Buckets of a rule that is gone, or that counts in another way, are
    /// followed no more; what was used of them is kept for as long as it counts, and counts again once the
    /// rule is back.
    pub fn handle_rules(&mut self, now: Timestamp, revision: u64, rules: Vec<WorldRule>) {
        self.begin(now);
        self.unsettle(now);
        self.revision = revision;
        let gossiped = rules.into_iter().filter(|rule| rule.global.mode == Mode::Gossip);
        let gossiped = gossiped.map(|rule| (rule.name.clone(), Arc::new(rule))).collect();
        let before = std::mem::replace(&mut self.rules, gossiped);
        self.variants = Variants::default();
        self.crowded.retain(|rule, _| self.rules.contains_key(rule));
        let rules = &self.rules;
        let came = |name: &RuleName| {
            let (before, rule) = (before.get(name), rules.get(name));
            rule.is_some_and(|rule| before.is_none_or(|before| !counts_alike(before, rule)))
        };
        self.late_rules.come(now, |rule| rules.contains_key(rule), came);
        self.crowd_changed = true;
        self.links.iter_mut().for_each(|link| link.key_ids.retry_unfollowed());
        let mut gone = Vec::new();
        for id in self.keys.ids() {
            let Some(bucket) = self.keys.get_mut(id) else { continue };
            match self.rules.get(&bucket.rule.name) {
                Some(rule) if counts_alike(rule, &bucket.rule) => {
                    bucket.follow(self.variants.with(rule, bucket.own_limit()));
                    self.recompute(now, id);
                    // Use that was too little to tell may be much of a smaller limit.
                    self.changed(now, id);
                }
                _ => gone.extend(self.keys.take(id)),
            }
        }
        self.take_back(now);
        for bucket in gone {
            self.retired.make_room(self.keys.len(), self.config.keys_max);
            self.retired.keep(now, bucket);
        }
    }

    /// Follows the buckets again whose rules are back.
    fn take_back(&mut self, now: Timestamp) {
        let rules = &self.rules;
        let is_back = |rule: &WorldRule| rules.get(&rule.name).is_some_and(|found| counts_alike(found, rule));
        for mut bucket in self.retired.take(is_back) {
            let Some(rule) = self.rules.get(&bucket.rule.name) else { continue };
            bucket.come_back(self.variants.with(rule, bucket.own_limit()));
            if let Some(id) = self.insert(now, bucket) {
                self.recompute(now, id);
                self.changed(now, id);
            }
        }
    }

    /// Takes in the digests of another daemon's rules, as membership tells them. Of rules that it lacked
    /// until now, or held otherwise, it is told all that it should know.
    pub fn handle_rules_of(&mut self, now: Timestamp, peer: &NodeName, digests: &Digests) {
        self.begin(now);
        let region = self.regions.find(&peer.region);
        let place = region.and_then(|region| self.speakers.get(region)?.get(&peer.node)).copied();
        let Some((place, link)) = place.and_then(|place| Some((place, self.links.get_mut(place)?))) else {
            return;
        };
        if link.rules.as_ref() == Some(digests) {
            return;
        }
        // The first that it says of its rules comes with its process, and that is told everything.
        let Some(before) = link.rules.replace(digests.clone()) else { return };
        let anew = |rule: &&RuleName| digests.names_anew(&before, &Digest::of_rule(&rule.domain, &rule.name));
        let came: BTreeSet<RuleName> = self.rules.keys().filter(anew).cloned().collect();
        if !came.is_empty() {
            self.tell_everything_to(place, |rule| came.contains(rule));
        }
    }
}

/// True if what was counted by one of two rules counts by the other too.
fn counts_alike(one: &WorldRule, other: &WorldRule) -> bool {
    (one.algorithm, one.limit.windows()) == (other.algorithm, other.limit.windows())
}
