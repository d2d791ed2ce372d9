//! Buckets of rules that are not in force: the stores go on from what they counted once a rule is back, so
//! the regions must know what the others used.

use std::collections::BTreeMap;

use super::bucket::GossipBucket;
use crate::regions::{WorldKey, WorldRule};
use crate::time::Timestamp;

/// Buckets that nobody follows now, by when they may be forgotten. With those that are followed they take no
/// more room than those may.
#[derive(Debug, Default)]
pub(super) struct RetiredBuckets(BTreeMap<(Timestamp, WorldKey), GossipBucket>);

impl RetiredBuckets {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn keep(&mut self, now: Timestamp, bucket: GossipBucket) {
        let expiry = bucket.expiry();
        if now < expiry {
            self.0.insert((expiry, bucket.key.clone()), bucket);
        }
    }

    /// Takes out the buckets whose rule is back.
    pub(super) fn take(&mut self, is_back: impl Fn(&WorldRule) -> bool) -> Vec<GossipBucket> {
        let (back, rest) =
            std::mem::take(&mut self.0).into_iter().partition(|(_, bucket)| is_back(&bucket.rule));
        self.0 = rest;
        let back: BTreeMap<(Timestamp, WorldKey), GossipBucket> = back;
        back.into_values().collect()
    }

    /// Makes room for one bucket more beside so many that are followed: the first that would be forgotten
    /// gives way.
    pub(super) fn make_room(&mut self, followed: usize, keys_max: usize) {
        while followed + self.0.len() >= keys_max && self.0.pop_first().is_some() {}
    }

    /// Forgets what counts no more.
    pub(super) fn forget_until(&mut self, now: Timestamp) {
        while self.0.first_key_value().is_some_and(|((expiry, _), _)| *expiry <= now) {
            self.0.pop_first();
        }
    }

    pub(super) fn clock_went_back(&mut self, now: Timestamp) {
        for (_, mut bucket) in std::mem::take(&mut self.0) {
            bucket.clock_went_back(now);
            self.0.insert((bucket.expiry(), bucket.key.clone()), bucket);
        }
    }
}
