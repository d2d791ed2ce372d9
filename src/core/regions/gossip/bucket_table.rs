//! The buckets that the protocol follows: a bounded table, and when each wants to be looked at again.

use std::collections::{BTreeSet, HashMap};

use super::bucket::GossipBucket;
use crate::regions::WorldKey;
use crate::time::Timestamp;
use crate::wire::RuleName;

/// The table counts as nearly full while less than this part of it is left, or one place.
const NEARLY_FULL: usize = 20;
/// Entries that are looked at to find the one that is missed least when the table is full.
const SAMPLE: usize = 8;

/// From this part of its limit on, in thousandths, a bucket is not forgotten for a new one.
const PRIORITY_KEPT: u64 = 900;
/// A bucket that is forgotten with at least this part of its limit in use, in thousandths, leaves its rule
/// crowded: what is less need not be told to other regions either.
const USE_MISSED: u64 = 100;

/// A bucket's place in the table; never given to another bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BucketId {
    pub(super) slot: u32,
    /// Number of entries born before it; round again only after four thousand million.
    pub(super) born: u32,
}

/// All buckets followed.
#[derive(Debug)]
pub(super) struct BucketTable {
    index: HashMap<WorldKey, BucketId>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    alarms: BTreeSet<(Timestamp, BucketId)>,
    keys_max: usize,
    born: u32,
    hand: usize,
    /// Buckets forgotten while they were in use, or never followed, for want of room.
    pub(super) dropped: u64,
    /// The rule of a bucket that is now in use without being followed, by the last [`Self::insert`].
    pub(super) missed: Option<RuleName>,
}

#[derive(Debug)]
struct Slot {
    id: BucketId,
    alarm: Option<Timestamp>,
    bucket: GossipBucket,
}

impl BucketTable {
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            index: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            alarms: BTreeSet::new(),
            keys_max: keys_max.max(1),
            born: 0,
            hand: 0,
            dropped: 0,
            missed: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn find(&self, key: &WorldKey) -> Option<BucketId> {
        self.index.get(key).copied()
    }

    pub(super) fn get(&self, id: BucketId) -> Option<&GossipBucket> {
        self.slot(id).map(|slot| &slot.bucket)
    }

    pub(super) fn get_mut(&mut self, id: BucketId) -> Option<&mut GossipBucket> {
        let slot = self.slots.get_mut(usize::try_from(id.slot).ok()?)?.as_mut()?;
        (slot.id == id).then_some(&mut slot.bucket)
    }

    fn slot(&self, id: BucketId) -> Option<&Slot> {
        let slot = self.slots.get(usize::try_from(id.slot).ok()?)?.as_ref()?;
        (slot.id == id).then_some(slot)
    }

    /// Follows a bucket that is not followed yet. `None`: there is no room, and every bucket looked at
    /// matters more.
    pub(super) fn insert(&mut self, now: Timestamp, bucket: GossipBucket) -> Option<BucketId> {
        let nearly_full = self.index.len() >= self.keys_max - (self.keys_max / NEARLY_FULL).max(1);
        let least = if nearly_full { self.least(now) } else { None };
        // Just before there is no room the regions keep to their shares, so that none admits the whole limit
        // meanwhile.
        self.missed = least.and_then(|(_, least)| {
            let bucket = self.get(least).filter(|bucket| bucket.in_use(now) >= USE_MISSED)?;
            Some(bucket.key.rule.clone())
        });
        if self.index.len() >= self.keys_max {
            let Some((retention_priority, least)) =
                least.filter(|&(retention_priority, _)| retention_priority < PRIORITY_KEPT)
            else {
                self.dropped = self.dropped.saturating_add(1);
                self.missed = Some(bucket.key.rule);
                return None;
            };
            self.dropped = self.dropped.saturating_add(u64::from(retention_priority > 0));
            self.remove(least);
        }
        self.born = self.born.wrapping_add(1);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(None);
                slot
            }
        };
        let id = BucketId { slot, born: self.born };
        self.index.insert(bucket.key.clone(), id);
        *self.slots.get_mut(usize::try_from(slot).ok()?)? = Some(Slot { id, alarm: None, bucket });
        Some(id)
    }

    /// The least urgent of the next few entries behind the moving hand, with how much it would be missed.
    fn least(&mut self, now: Timestamp) -> Option<(u64, BucketId)> {
        let mut least: Option<(u64, BucketId)> = None;
        for _ in 0..SAMPLE.min(self.slots.len()) {
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(Some(slot)) = self.slots.get(self.hand) else { continue };
            let retention_priority = slot.bucket.retention_priority(now);
            if least.is_none_or(|(known, _)| retention_priority < known) {
                least = Some((retention_priority, slot.id));
            }
        }
        least
    }

    pub(super) fn remove(&mut self, id: BucketId) {
        drop(self.take(id));
    }

    /// Takes a bucket out of the table.
    pub(super) fn take(&mut self, id: BucketId) -> Option<GossipBucket> {
        let place = self.slots.get_mut(usize::try_from(id.slot).ok()?)?;
        let slot = place.take_if(|slot| slot.id == id)?;
        if let Some(at) = slot.alarm {
            self.alarms.remove(&(at, id));
        }
        self.index.remove(&slot.bucket.key);
        self.free.push(id.slot);
        Some(slot.bucket)
    }

    /// Looks at the bucket again at `at`; earlier calls are forgotten.
    pub(super) fn wake_at(&mut self, id: BucketId, at: Timestamp) {
        let Some(Some(slot)) = usize::try_from(id.slot).ok().and_then(|slot| self.slots.get_mut(slot)) else {
            return;
        };
        if slot.id != id || slot.alarm == Some(at) {
            return;
        }
        if let Some(old) = slot.alarm.replace(at) {
            self.alarms.remove(&(old, id));
        }
        self.alarms.insert((at, id));
    }

    /// The next bucket that wanted to be looked at by `now`.
    pub(super) fn due(&mut self, now: Timestamp) -> Option<BucketId> {
        let &(at, id) = self.alarms.first()?;
        if at > now {
            return None;
        }
        self.alarms.remove(&(at, id));
        if let Some(Some(slot)) = usize::try_from(id.slot).ok().and_then(|slot| self.slots.get_mut(slot)) {
            slot.alarm = None;
        }
        Some(id)
    }

    pub(super) fn next_alarm(&self) -> Option<Timestamp> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// All buckets, in an order that does not depend on chance.
    pub(super) fn ids(&self) -> Vec<BucketId> {
        self.slots.iter().flatten().map(|slot| slot.id).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &GossipBucket> {
        self.slots.iter().flatten().map(|slot| &slot.bucket)
    }
}
