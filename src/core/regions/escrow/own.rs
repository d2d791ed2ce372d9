//! By which limit a bucket counts: its rule's, or a user's own.
//!
//! A store decides by the limit that its daemon knows, and mints by it. What a region that is not asked mints
//! and gives it mints by the smallest that anybody lately decided by. While a limit changes no more is
//! admitted than by the larger of the two.

use std::sync::Arc;

use super::super::super::algorithm::Limit;
use super::super::super::time::Timestamp;
use super::super::super::wire::OwnLimit;
use super::super::super::wire::rights::CountedLimit;
use super::super::WorldRule;
use super::bucket::EscrowBucket;
use super::own_limit::{DECIDED, EscrowOwnLimit};
use super::{Escrow, FollowedRule, Share};

impl EscrowBucket {
    /// The limit that it counts by, where that is not the rule's.
    pub(super) fn own_limit(&self) -> Option<OwnLimit> {
        self.owned.as_ref()?.limit
    }

    /// What others are told of its limit: by which it is decided here, or else what others said.
    pub(super) fn held_limit(&self, now: Timestamp) -> CountedLimit {
        let Some(owned) = &self.owned else { return CountedLimit::default() };
        let decided = owned.decided(now);
        CountedLimit { own: decided.unwrap_or(owned.limit), said_by_others: decided.is_none() }
    }

    /// What each region decides by lately; `None` in it is the rule's.
    fn limits(&self, now: Timestamp) -> impl Iterator<Item = Option<OwnLimit>> {
        let decided = self.owned.as_ref().and_then(|owned| owned.decided(now));
        let said = self.partners().filter(move |(_, partner)| {
            !partner.limit.said_by_others && partner.heard.is_some_and(|heard| now.since(heard) < DECIDED)
        });
        let said = said.map(|(_, partner)| partner.limit.own);
        decided.into_iter().chain(said)
    }

    /// The largest number of permits that any region may hold for its limit.
    pub(super) fn largest_limit(&self, now: Timestamp, rule: &Limit) -> u32 {
        let held = self.rule.rule.limit.permits;
        let Some(owned) = &self.owned else { return held };
        let before = if now.since(owned.before.1) < DECIDED { owned.before.0 } else { 0 };
        let said = self.limits(now).map(|own| own.unwrap_or(OwnLimit::of(rule)).permits).max();
        held.max(before).max(said.unwrap_or(0))
    }

    /// Counts by another rule, or another limit.
    pub(super) fn count_by(&mut self, now: Timestamp, own: Option<OwnLimit>, rule: Arc<FollowedRule>) {
        let before = std::mem::replace(&mut self.rule, rule);
        let Some(owned) = &mut self.owned else { return };
        let lately = if now.since(owned.before.1) < DECIDED { owned.before.0 } else { 0 };
        owned.before = (lately.max(before.rule.limit.permits), now);
        owned.limit = own;
        let size = |rule: &Arc<FollowedRule>| OwnLimit::of(&rule.rule.limit);
        if owned.rule_before.as_ref().is_none_or(|known| size(known) < size(&before)) {
            owned.rule_before = Some(before);
        }
    }

    /// The share of a region, with the most that it may have had before.
    pub(super) fn share_of(&self, region: &str) -> Share {
        let mut share = self.rule.share(region);
        let before = self.owned.as_ref().and_then(|owned| owned.rule_before.as_ref());
        if let Some(before) = before.map(|rule| rule.share(region)) {
            share.minted_most = share.minted_most.max(before.minted_most);
            share.refill_most = share.refill_most.max(before.refill_most);
        }
        share
    }
}

impl Escrow {
    /// The rule with this own limit in place of its limit.
    pub(super) fn variant(&mut self, rule: &Arc<FollowedRule>, own: Option<OwnLimit>) -> Arc<FollowedRule> {
        let make =
            |limit| FollowedRule::new(&WorldRule { limit, ..rule.rule.clone() }, &self.config.all_regions());
        self.variants.of((&rule.rule.name, &rule.rule.limit), rule, own, make)
    }

    /// The own region decides by this limit.
    pub(super) fn decide_by(&mut self, now: Timestamp, id: usize, own: Option<OwnLimit>) {
        let Some(bucket) = self.bucket(id).filter(|bucket| own.is_some() || bucket.owned.is_some()) else {
            return;
        };
        let Some(rule) = self.rules.get(&bucket.key.rule).cloned() else { return };
        if let Some(bucket) = self.bucket_mut(id) {
            // Until now it was the rule's.
            let owned = bucket.owned.get_or_insert_with(|| EscrowOwnLimit::new(None));
            owned.decide_by(now, own, OwnLimit::of(&rule.rule.limit));
        }
        self.settle_limit(now, id, &rule);
    }

    /// Another daemon of the own region said by which limit it counts.
    pub(super) fn hear_sibling_limit(&mut self, now: Timestamp, id: usize, limit: CountedLimit) {
        if !limit.said_by_others {
            self.decide_by(now, id, limit.own);
        }
    }

    /// Another region said by which limit it counts.
    pub(super) fn hear_limit(&mut self, now: Timestamp, id: usize, limit: CountedLimit) {
        let news = limit.own.is_some() && !limit.said_by_others;
        let Some(bucket) = self.bucket(id).filter(|bucket| news || bucket.owned.is_some()) else { return };
        let Some(rule) = self.rules.get(&bucket.key.rule).cloned() else { return };
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.owned.get_or_insert_with(|| EscrowOwnLimit::new(None));
        }
        self.settle_limit(now, id, &rule);
    }

    /// Puts the smallest limit that any region lately decided by in force; if none did, all stays as it is. A
    /// limit of one's own that is no other than the rule's is one's own all the same: the rule's may change
    /// without it.
    pub(super) fn settle_limit(&mut self, now: Timestamp, id: usize, rule: &Arc<FollowedRule>) {
        let Some(bucket) = self.bucket(id) else { return };
        let rules = OwnLimit::of(&rule.rule.limit);
        let least = bucket.limits(now).min_by_key(|own| (own.unwrap_or(rules), own.is_none()));
        let Some(own) = least else { return };
        if own != bucket.own_limit() {
            let variant = self.variant(rule, own);
            if let Some(bucket) = self.bucket_mut(id) {
                bucket.count_by(now, own, variant);
            }
        }
    }
}
