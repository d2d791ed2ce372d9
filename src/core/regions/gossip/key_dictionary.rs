//! The meaning of another daemon's key ids, and which of the own key ids it knows: so that a bucket is named
//! once and not in every report.
//!
//! Nothing here needs a message of its own. A key id counts as known once a frame that named it was
//! acknowledged, and a frame with a key id that is not understood is not acknowledged: it is lost, and what
//! was lost is named when it is told again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::bucket_table::BucketId;
use super::counts::Count;
use crate::regions::membership::RegionId;
use crate::wire::{Amount, Counter, Report};

/// Most key ids that are taken to be known to one daemon, and most counters that those of each generation
/// heard from it name. Full: begun anew.
pub(super) const KEY_IDS_MAX: usize = 65_536;

/// The own key ids that another daemon knows.
#[derive(Debug, Default)]
pub(super) struct AcknowledgedKeyIds(HashSet<u64>);

impl AcknowledgedKeyIds {
    pub(super) fn knows(&self, key_id: u64) -> bool {
        self.0.contains(&key_id)
    }

    /// A frame with this key id was acknowledged.
    pub(super) fn understood(&mut self, key_id: u64) {
        if self.0.len() >= KEY_IDS_MAX && !self.0.contains(&key_id) {
            self.0.clear();
        }
        self.0.insert(key_id);
    }

    /// A frame with this key id was lost, perhaps for want of its name.
    pub(super) fn doubt(&mut self, key_id: u64) {
        self.0.remove(&key_id);
    }

    pub(super) fn forget(&mut self) {
        self.0 = HashSet::new();
    }
}

/// The meaning of a heard key id.
#[derive(Debug, Clone)]
pub(super) struct KeyIdMeaning {
    /// `None`: nothing that is followed here.
    pub(super) key: Option<BucketId>,
    /// Region that the key id speaks for; `None`: the daemon itself.
    pub(super) speaker: Option<RegionId>,
    counters: SmallVec<[Counter; 1]>,
}

impl KeyIdMeaning {
    pub(super) fn new(
        key: Option<BucketId>,
        speaker: Option<RegionId>,
        counters: &[Counter],
        node: Option<&Arc<str>>,
    ) -> Self {
        // Nearly always the daemon that says it: its name is kept once.
        let counters = counters.iter().map(|counter| {
            let node = node.filter(|node| **node == counter.node).unwrap_or(&counter.node);
            Counter { node: Arc::clone(node), since: counter.since }
        });
        Self { key, speaker, counters: counters.collect() }
    }

    /// The counts of a report; `None` if it is not one of this key id.
    pub(super) fn counts(&self, report: &Report) -> Option<SmallVec<[Count; 1]>> {
        if !report.amounts.is_empty() && report.amounts.len() != self.counters.len() {
            return None;
        }
        let both = self.counters.iter().zip(&report.amounts);
        let told = both.filter(|(_, amount)| **amount != Amount::default());
        Some(told.map(|(counter, &amount)| Count { counter: counter.clone(), amount }).collect())
    }
}

/// The meaning of another daemon's key ids: of late ones, in two generations, so that old ones go without
/// being counted.
#[derive(Debug, Default)]
pub(super) struct PeerKeyIds {
    recent: HashMap<u64, KeyIdMeaning>,
    older: HashMap<u64, KeyIdMeaning>,
    /// Counters of all that was put into `recent`: key ids alone would bound no memory, since each may name
    /// many.
    counters: usize,
}

impl PeerKeyIds {
    pub(super) fn name(&mut self, key_id: u64, meaning: KeyIdMeaning) {
        if self.counters >= KEY_IDS_MAX {
            self.older = std::mem::take(&mut self.recent);
            self.counters = 0;
        }
        self.counters += meaning.counters.len().max(1);
        self.recent.insert(key_id, meaning);
    }

    pub(super) fn meaning(&mut self, key_id: u64) -> Option<&KeyIdMeaning> {
        if !self.recent.contains_key(&key_id) {
            let meaning = self.older.remove(&key_id)?;
            self.name(key_id, meaning);
        }
        self.recent.get(&key_id)
    }

    /// Key ids that stood for nothing may stand for something now.
    pub(super) fn retry_unfollowed(&mut self) {
        for generation in [&mut self.recent, &mut self.older] {
            generation.retain(|_, meaning| meaning.key.is_some());
        }
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn key_ids_that_are_used_outlive_any_number_of_others() {
        let mut heard = PeerKeyIds::default();
        let meaning = KeyIdMeaning::new(None, None, &[], None);
        heard.name(0, meaning.clone());
        for key_id in 1..3 * KEY_IDS_MAX as u64 {
            heard.name(key_id, meaning.clone());
            assert!(key_id % 1_000 != 0 || heard.meaning(0).is_some());
            assert!(heard.recent.len() + heard.older.len() <= 2 * KEY_IDS_MAX);
        }
        assert!(heard.meaning(1).is_none());
    }

    #[test]
    fn a_peer_that_names_many_counters_is_remembered_for_fewer_key_ids() {
        let counter = |n: usize| Counter { node: format!("n{n}").into(), since: Timestamp(1) };
        let counters: Vec<Counter> = (0..64).map(counter).collect();
        let meaning = KeyIdMeaning::new(None, None, &counters, None);
        let mut heard = PeerKeyIds::default();
        for key_id in 0..KEY_IDS_MAX as u64 {
            heard.name(key_id, meaning.clone());
            assert!((heard.recent.len() + heard.older.len()) * counters.len() <= 2 * KEY_IDS_MAX);
        }
    }

    #[test]
    fn what_a_peer_is_taken_to_know_is_bounded() {
        let mut named = AcknowledgedKeyIds::default();
        for key_id in 0..=KEY_IDS_MAX as u64 {
            named.understood(key_id);
        }
        assert!(named.knows(KEY_IDS_MAX as u64) && !named.knows(0));
    }
}
