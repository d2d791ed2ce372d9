//! Rules that come to one region later than to others, or go and come back.
//!
//! A report of a rule that a daemon does not hold is passed over and acknowledged: else it would come again
//! for as long as the rule is missing. So once membership says that the daemon holds the rule, it is told
//! anew what it passed over. Until then it keeps to its region's share of the rule, as a daemon does that has
//! just begun.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::replica::Replica;
use crate::regions::compared::{Digest, Digests};
use crate::regions::variants::Variants;
use crate::regions::{NodeName, WorldRule};
use crate::rule::Mode;
use crate::time::Timestamp;
use crate::wire::RuleName;

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
        // Reports of a rule that counted another way until now went into buckets that are gone.
        let changed: Vec<RuleName> = before.keys().filter(|name| came(name)).cloned().collect();
        changed.iter().for_each(|rule| self.late_rules.miss(now, rule));
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

    /// Takes in the digests of another daemon's rules, as membership tells them of the process that began at
    /// `incarnation`. Of rules that it lacked until now, or held otherwise, it is told all that it should
    /// know. A process that has said nothing yet holds nothing: whatever it was told by then it passed over.
    pub fn handle_rules_of(
        &mut self,
        now: Timestamp,
        (peer, incarnation): (&NodeName, u64),
        digests: &Digests,
    ) {
        self.begin(now);
        let region = self.regions.find(&peer.region);
        let place = region.and_then(|region| self.speakers.get(region)?.get(&peer.node)).copied();
        let Some((place, link)) = place.and_then(|place| Some((place, self.links.get_mut(place)?))) else {
            return;
        };
        let known = link.rules.take().filter(|(of, _)| *of == incarnation);
        let before = known.map(|(_, known)| known).unwrap_or_default();
        link.rules = Some((incarnation, digests.clone()));
        if before == *digests {
            return;
        }
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
