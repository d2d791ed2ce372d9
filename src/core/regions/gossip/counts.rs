//! The permits that a region admitted of one bucket, as counts that only grow: merged by max, so that loss,
//! duplication and reordering do nothing.
//!
//! One entry for each count that a daemon of the region began. The region's total is the sum of all entries,
//! those of daemons that died included.

use smallvec::SmallVec;

use crate::wire::{Amount, COUNTS_MAX, Counter};

/// Most counts kept of one daemon; the oldest beyond it is settled: it stays in the total and can no longer
/// change.
const COUNTS_PER_NODE_MAX: usize = 4;

/// One daemon's count, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) counter: Counter,
    pub(super) amount: Amount,
}

impl Count {
    /// Permits admitted and not given back.
    pub(super) const fn net(&self) -> u64 {
        self.amount.admitted.saturating_sub(self.amount.returned)
    }
}

/// The counts of one region for one bucket and window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Counts sorted by counter, so that merging two of them is one pass.
    entries: SmallVec<[Count; 1]>,
    /// Sum of the counts that were settled.
    settled: u64,
}

/// The outcome of merging one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merged {
    /// It was new.
    Changed,
    /// It was known already, or is older than what is kept.
    Known,
    /// There is no room for another daemon's count.
    Full,
}

impl Counts {
    /// Permits admitted and not given back.
    ///
    /// Permits may be given back to another daemon than the one that admitted them.
    pub(super) fn net(&self) -> u64 {
        let sum = |of: fn(&Count) -> u64| self.entries.iter().map(of).fold(0, u64::saturating_add);
        let (admitted, returned) = (sum(|count| count.amount.admitted), sum(|count| count.amount.returned));
        self.settled.saturating_add(admitted).saturating_sub(returned)
    }

    /// The counts, as they are told to others.
    pub(super) fn entries(&self) -> &[Count] {
        &self.entries
    }

    /// The counts of one daemon alone.
    pub(super) fn of_node(&self, node: &str) -> SmallVec<[Count; 1]> {
        self.entries.iter().filter(|count| &*count.counter.node == node).cloned().collect()
    }

    /// Adds to one count.
    pub(super) fn add(&mut self, counter: &Counter, more: Amount) {
        match self.entries.iter_mut().find(|count| count.counter == *counter) {
            Some(Count { amount, .. }) => {
                amount.admitted = amount.admitted.saturating_add(more.admitted);
                amount.returned = amount.returned.saturating_add(more.returned);
            }
            None => {
                self.merge(&Count { counter: counter.clone(), amount: more });
            }
        }
    }

    /// Takes in what is said of one count: of two values the larger stands.
    pub(super) fn merge(&mut self, heard: &Count) -> Merged {
        match self.entries.binary_search_by(|count| count.counter.cmp(&heard.counter)) {
            Ok(index) => {
                let Some(Count { amount, .. }) = self.entries.get_mut(index) else { return Merged::Known };
                if heard.amount.admitted <= amount.admitted && heard.amount.returned <= amount.returned {
                    return Merged::Known;
                }
                amount.admitted = amount.admitted.max(heard.amount.admitted);
                amount.returned = amount.returned.max(heard.amount.returned);
                Merged::Changed
            }
            Err(index) => self.insert(index, heard),
        }
    }

    /// True if a count is told smaller than it is known to be.
    pub(super) fn runs_backwards(&self, heard: &Count) -> bool {
        let known = self.entries.iter().find(|count| count.counter == heard.counter);
        known.is_some_and(|known| {
            heard.amount.admitted < known.amount.admitted || heard.amount.returned < known.amount.returned
        })
    }

    /// True if a count has fallen since `told`: more was given back to one daemon than it admitted meanwhile.
    /// What another daemon admitted does not make up for that, as that one knows of its own already.
    pub(super) fn falls_below(&self, told: &Self) -> bool {
        self.entries.iter().filter(|count| count.amount.returned > 0).any(|count| {
            let before = told.entries.iter().find(|known| known.counter == count.counter);
            count.amount.falls_below(before.map_or_else(Amount::default, |known| known.amount))
        })
    }

    /// Takes in everything that `other` knows. Returns whether anything was new.
    pub(super) fn merge_all(&mut self, counts: &[Count]) -> bool {
        counts.iter().fold(false, |changed, count| changed | (self.merge(count) == Merged::Changed))
    }

    fn insert(&mut self, index: usize, heard: &Count) -> Merged {
        let of_node = |count: &Count| count.counter.node == heard.counter.node;
        if self.entries.iter().filter(|count| of_node(count)).count() >= COUNTS_PER_NODE_MAX {
            let Some(oldest) = self.entries.iter().position(of_node) else {
                return Merged::Known;
            };
            if oldest == index {
                // Older than the oldest kept: it was settled before.
                return Merged::Known;
            }
            let settled = self.entries.remove(oldest);
            self.settled = self.settled.saturating_add(settled.net());
            self.entries.insert(index - 1, heard.clone());
        } else if self.entries.len() >= COUNTS_MAX {
            return Merged::Full;
        } else {
            self.entries.insert(index, heard.clone());
        }
        Merged::Changed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;

    fn count(node: &str, since: u64, admitted: u64, returned: u64) -> Count {
        let counter = Counter { node: node.into(), since: Timestamp(since) };
        Count { counter, amount: Amount { admitted, returned } }
    }

    fn some_counts() -> impl Strategy<Value = Vec<Count>> {
        let one = (0..3_u8, 0..3_u64, 0..50_u64, 0..10_u64).prop_map(|(node, since, admitted, returned)| {
            count(&format!("n{node}"), since, admitted, returned)
        });
        proptest::collection::vec(one, 0..12)
    }

    fn of(counts: &[Count]) -> Counts {
        let mut merged = Counts::default();
        merged.merge_all(counts);
        merged
    }

    proptest! {
        #[test]
        fn merging_is_commutative(a in some_counts(), b in some_counts()) {
            let (mut ab, mut ba) = (of(&a), of(&b));
            ab.merge_all(&b);
            ba.merge_all(&a);
            prop_assert_eq!(ab, ba);
        }

        #[test]
        fn merging_is_associative(a in some_counts(), b in some_counts(), c in some_counts()) {
            let mut bc = of(&b);
            bc.merge_all(of(&c).entries());
            let (mut left, mut right) = (of(&a), of(&a));
            left.merge_all(&b);
            left.merge_all(&c);
            right.merge_all(bc.entries());
            prop_assert_eq!(left, right);
        }

        #[test]
        fn merging_twice_is_merging_once(a in some_counts()) {
            let mut twice = of(&a);
            prop_assert!(!twice.merge_all(&a));
            prop_assert_eq!(twice, of(&a));
        }
    }

    #[test]
    fn a_restarted_daemon_counts_beside_its_former_self() {
        let counts = of(&[count("a", 1, 40, 0), count("a", 2, 5, 0), count("a", 1, 39, 0)]);
        assert_eq!(counts.net(), 45);
    }

    #[test]
    fn what_was_given_back_is_not_in_the_total() {
        let counts = of(&[count("a", 1, 40, 15), count("b", 1, 1, 3)]);
        assert_eq!(counts.net(), 23, "also where another daemon gave it back than the one that admitted it");
    }

    #[test]
    fn a_settled_count_stays_in_the_total_and_is_not_counted_again() {
        let mut counts = of(&(1..=6).map(|since| count("a", since, 10, 0)).collect::<Vec<_>>());
        assert_eq!((counts.entries().len(), counts.net()), (4, 60));
        assert_eq!(counts.merge(&count("a", 1, 10, 0)), Merged::Known);
        assert_eq!(counts.net(), 60);
    }

    #[test]
    fn there_is_room_for_so_many_daemons_only() {
        let mut counts = Counts::default();
        for n in 0..COUNTS_MAX {
            assert_eq!(counts.merge(&count(&format!("n{n}"), 1, 1, 0)), Merged::Changed);
        }
        assert_eq!(counts.merge(&count("one more", 1, 1, 0)), Merged::Full);
    }
}
