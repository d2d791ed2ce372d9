//! What another daemon's labels stand for, and which of the own labels it knows: so that a bucket is named
//! once and not in every report.
//!
//! Nothing here needs a message of its own. A label counts as known once a frame that named it was
//! acknowledged, and a frame with a label that is not understood is not acknowledged: it is lost, and what
//! was lost is named when it is told again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::bucket_table::BucketId;
use super::counts::Count;
use crate::regions::membership::RegionId;
use crate::wire::{Amount, Counter, Report};

/// Most labels that are taken to be known to one daemon, and most counters that those of each generation
/// heard from it name. Full: begun anew.
pub(super) const LABELS_MAX: usize = 65_536;

/// The own labels that another daemon knows.
#[derive(Debug, Default)]
pub(super) struct AcknowledgedKeyIds(HashSet<u64>);

impl AcknowledgedKeyIds {
    pub(super) fn knows(&self, label: u64) -> bool {
        self.0.contains(&label)
    }

    /// A frame with this label was acknowledged.
    pub(super) fn understood(&mut self, label: u64) {
        if self.0.len() >= LABELS_MAX && !self.0.contains(&label) {
            self.0.clear();
        }
        self.0.insert(label);
    }

    /// A frame with this label was lost, perhaps for want of its name.
    pub(super) fn doubt(&mut self, label: u64) {
        self.0.remove(&label);
    }

    pub(super) fn forget(&mut self) {
        self.0 = HashSet::new();
    }
}

/// What a heard label stands for.
#[derive(Debug, Clone)]
pub(super) struct KeyIdMeaning {
    /// `None`: nothing that is followed here.
    pub(super) key: Option<BucketId>,
    /// `None`: the daemon itself.
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

    /// The counts of a report; `None` if it is not one of this label.
    pub(super) fn counts(&self, report: &Report) -> Option<SmallVec<[Count; 1]>> {
        if !report.amounts.is_empty() && report.amounts.len() != self.counters.len() {
            return None;
        }
        let both = self.counters.iter().zip(&report.amounts);
        let told = both.filter(|(_, amount)| **amount != Amount::default());
        Some(told.map(|(counter, &amount)| Count { counter: counter.clone(), amount }).collect())
    }
}

/// What another daemon's labels stand for: those of late, in two generations, so that old ones go without
/// being counted.
#[derive(Debug, Default)]
pub(super) struct PeerKeyIds {
    recent: HashMap<u64, KeyIdMeaning>,
    older: HashMap<u64, KeyIdMeaning>,
    /// Counters of all that was put into `recent`: labels alone would bound no memory, since each may name
    /// many.
    counters: usize,
}

impl PeerKeyIds {
    pub(super) fn name(&mut self, label: u64, meaning: KeyIdMeaning) {
        if self.counters >= LABELS_MAX {
            self.older = std::mem::take(&mut self.recent);
            self.counters = 0;
        }
        self.counters += meaning.counters.len().max(1);
        self.recent.insert(label, meaning);
    }

    pub(super) fn meaning(&mut self, label: u64) -> Option<&KeyIdMeaning> {
        if !self.recent.contains_key(&label) {
            let meaning = self.older.remove(&label)?;
            self.name(label, meaning);
        }
        self.recent.get(&label)
    }

    /// What stood for nothing may stand for something now.
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
    fn labels_that_are_used_outlive_any_number_of_others() {
        let mut heard = PeerKeyIds::default();
        let meaning = KeyIdMeaning::new(None, None, &[], None);
        heard.name(0, meaning.clone());
        for label in 1..3 * LABELS_MAX as u64 {
            heard.name(label, meaning.clone());
            assert!(label % 1_000 != 0 || heard.meaning(0).is_some());
            assert!(heard.recent.len() + heard.older.len() <= 2 * LABELS_MAX);
        }
        assert!(heard.meaning(1).is_none());
    }

    #[test]
    fn a_peer_that_names_many_counters_is_remembered_for_fewer_labels() {
        let counter = |n: usize| Counter { node: format!("n{n}").into(), since: Timestamp(1) };
        let counters: Vec<Counter> = (0..64).map(counter).collect();
        let meaning = KeyIdMeaning::new(None, None, &counters, None);
        let mut heard = PeerKeyIds::default();
        for label in 0..LABELS_MAX as u64 {
            heard.name(label, meaning.clone());
            assert!((heard.recent.len() + heard.older.len()) * counters.len() <= 2 * LABELS_MAX);
        }
    }

    #[test]
    fn what_a_peer_is_taken_to_know_is_bounded() {
        let mut named = AcknowledgedKeyIds::default();
        for label in 0..=LABELS_MAX as u64 {
            named.understood(label);
        }
        assert!(named.knows(LABELS_MAX as u64) && !named.knows(0));
    }
}
