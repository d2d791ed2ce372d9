//! The permits that a region admitted of one bucket, as counts that only grow: merged by max, so that loss,
//! duplication and reordering do nothing.
//!
//! One entry for each count that a daemon of the region began. The region's total is the sum of all entries,
//! those of daemons that died included.
//!
//! The oldest counts of a daemon that begins often are settled: one entry under a name of its own says what
//! all of them come to that began no later than it says. It is told as the others are, so a process that has
//! just begun hears of all former ones. Regions may settle at other instants. Each sum is of counts that
//! began, so of two sums the larger is nearer, and no count is ever in the total twice.
//!
//! Daemons that are replaced under new names fill the places as well. Where none is free, the region that
//! counts settles its oldest counts whatever their names, as far as their daemons are gone: a sum no longer
//! follows a count in it that grows. The other regions only follow: they do not know who is gone there. A
//! daemon that was taken for gone finds its count in a sum, and counts once more under a newer one: what it
//! counted is then in the total twice rather than not at all. Where the oldest are there, nothing is settled
//! and a count finds no room; its region then keeps to its share.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::time::Timestamp;
use crate::wire::{Amount, COUNTS_MAX, Counter, NAME_BYTES_MAX};

/// Most counts kept of one daemon; the oldest beyond it is settled: it stays in the total and can no longer
/// change.
const COUNTS_PER_NODE_MAX: usize = 8;
/// Follows a daemon's name in the entry of its settled counts; without a name, of those of all daemons.
const SETTLED: &str = " settled";
/// Most counts that are settled at once for want of places. More than need be, as each settling is told.
const SETTLED_AT_ONCE: usize = 16;

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

    /// Of two values the larger stands.
    fn grow(&mut self, heard: Amount) -> Merged {
        let amount = &mut self.amount;
        if heard.admitted <= amount.admitted && heard.returned <= amount.returned {
            return Merged::Known;
        }
        amount.admitted = amount.admitted.max(heard.admitted);
        amount.returned = amount.returned.max(heard.returned);
        Merged::Changed
    }
}

/// The counts of one region for one bucket and window.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Counts sorted by counter, so that merging two of them is one pass.
    entries: SmallVec<[Count; 1]>,
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

/// The outcome of taking in several counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TakenIn {
    /// Something was new.
    pub(super) changed: bool,
    /// There was no room for one of them.
    pub(super) full: bool,
}

impl Counts {
    /// Permits admitted and not given back.
    ///
    /// Permits may be given back to another daemon than the one that admitted them.
    pub(super) fn net(&self) -> u64 {
        let sum = |of: fn(&Count) -> u64| self.entries.iter().map(of).fold(0, u64::saturating_add);
        let (admitted, returned) = (sum(|count| count.amount.admitted), sum(|count| count.amount.returned));
        admitted.saturating_sub(returned)
    }

    /// The counts, as they are told to others.
    pub(super) fn entries(&self) -> &[Count] {
        &self.entries
    }

    /// The counts of one daemon alone.
    pub(super) fn of_node(&self, node: &str) -> SmallVec<[Count; 1]> {
        self.entries.iter().filter(|count| &*count.counter.node == node).cloned().collect()
    }

    /// Adds to one count. `false`: there is no room for it, or it is among those that are settled, and
    /// nothing was added. `lives` tells which daemons of the region are there.
    pub(super) fn add(&mut self, counter: &Counter, more: Amount, lives: impl Fn(&str) -> bool) -> bool {
        if let Some(Count { amount, .. }) = self.entries.iter_mut().find(|count| count.counter == *counter) {
            amount.admitted = amount.admitted.saturating_add(more.admitted);
            amount.returned = amount.returned.saturating_add(more.returned);
            return true;
        }
        let count = Count { counter: counter.clone(), amount: more };
        self.merge_making_room(&count, lives) == Merged::Changed
    }

    /// Takes in what is said of one count: of two values the larger stands.
    pub(super) fn merge(&mut self, heard: &Count) -> Merged {
        if let Some(node) = heard.counter.node.strip_suffix(SETTLED) {
            return self.merge_settled(node, heard);
        }
        match self.entries.binary_search_by(|count| count.counter.cmp(&heard.counter)) {
            Ok(index) => {
                let Some(known) = self.entries.get_mut(index) else { return Merged::Known };
                known.grow(heard.amount)
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
    /// Permits that another daemon admitted do not make up for that, as that one knows of its own already.
    pub(super) fn falls_below(&self, told: &Self) -> bool {
        self.entries.iter().filter(|count| count.amount.returned > 0).any(|count| {
            let before = told.entries.iter().find(|known| known.counter == count.counter);
            count.amount.falls_below(before.map_or_else(Amount::default, |known| known.amount))
        })
    }

    /// Takes in counts of the own region, whose daemons that are there `lives` tells: where the places are
    /// full, the oldest counts of those that are gone are settled.
    pub(super) fn merge_own(&mut self, counts: &[Count], lives: impl Fn(&str) -> bool) -> TakenIn {
        let mut taken = TakenIn::default();
        for count in settled_first(counts) {
            let merged = self.merge_making_room(count, &lives);
            taken.changed |= merged == Merged::Changed;
            taken.full |= merged == Merged::Full;
        }
        taken
    }

    /// Returns until when counts of a daemon began that are settled, whether alone or with those of others.
    pub(super) fn settled_for(&self, node: &str) -> Option<Timestamp> {
        let holds = |of: &str| of.is_empty() || of == node;
        let settled =
            self.entries.iter().filter(|count| count.counter.node.strip_suffix(SETTLED).is_some_and(holds));
        settled.map(|count| count.counter.since).max()
    }

    fn merge_making_room(&mut self, heard: &Count, lives: impl Fn(&str) -> bool) -> Merged {
        let merged = self.merge(heard);
        if merged != Merged::Full {
            return merged;
        }
        let Err(index) = self.entries.binary_search_by(|count| count.counter.cmp(&heard.counter)) else {
            return Merged::Full;
        };
        // It may be one of the oldest itself.
        self.entries.insert(index, heard.clone());
        if self.settle_oldest(lives) {
            return Merged::Changed;
        }
        self.entries.remove(index);
        Merged::Full
    }

    /// Puts one entry in place of the oldest counts whose daemons are gone, or count anew. `false`: there are
    /// no two of them, and all stay as they are.
    fn settle_oldest(&mut self, lives: impl Fn(&str) -> bool) -> bool {
        let grows = |count: &Count| {
            let newer = |other: &Count| {
                other.counter.node == count.counter.node && other.counter.since > count.counter.since
            };
            lives(&count.counter.node) && !self.entries.iter().any(newer)
        };
        let growing = self.entries.iter().filter(|count| grows(count)).map(|count| count.counter.since).min();
        let ended = |since: &Timestamp| growing.is_none_or(|growing| *since < growing);
        let mut oldest: Vec<Timestamp> =
            self.entries.iter().map(|count| count.counter.since).filter(ended).collect();
        oldest.sort_unstable();
        oldest.truncate(SETTLED_AT_ONCE);
        let Some(&until) = oldest.last().filter(|_| oldest.len() > 1) else { return false };
        self.settle("", Counter { node: Arc::from(SETTLED), since: until }, Amount::default());
        true
    }

    fn insert(&mut self, index: usize, heard: &Count) -> Merged {
        let node = &heard.counter.node;
        if self.settled_for(node).is_some_and(|until| heard.counter.since <= until) {
            return Merged::Known;
        }
        let name = settled_name(node);
        let settled = name.as_deref().and_then(|name| self.settled_place(name));
        let kept = self.entries.iter().filter(|count| count.counter.node == *node).count();
        let more = if self.entries.len() >= COUNTS_MAX {
            // Its settled counts need a place, too.
            if settled.is_some() { 1 } else { 2 }
        } else {
            usize::from(kept >= COUNTS_PER_NODE_MAX && name.is_some())
        };
        if more == 0 {
            self.entries.insert(index, heard.clone());
            return Merged::Changed;
        }
        let Some(name) = name.filter(|_| kept >= more) else { return Merged::Full };
        let mut theirs: SmallVec<[Count; 1]> = self.of_node(node);
        let place = theirs.iter().take_while(|count| count.counter.since < heard.counter.since).count();
        theirs.insert(place, heard.clone());
        theirs.truncate(more);
        let Some(until) = theirs.last().map(|count| count.counter.since) else { return Merged::Full };
        let newest = until < heard.counter.since;
        // A count that is not there yet counts with those that are settled.
        let more = if newest { Amount::default() } else { heard.amount };
        self.settle(node, Counter { node: name, since: until }, more);
        if newest { self.merge(heard) } else { Merged::Changed }
    }

    /// Takes in what all counts of a daemon come to that began no later than it says; without a name, those
    /// of all daemons.
    fn merge_settled(&mut self, node: &str, heard: &Count) -> Merged {
        let with_all = self.settled_until(self.settled_place(SETTLED));
        if !node.is_empty() && with_all.is_some_and(|until| heard.counter.since <= until) {
            return Merged::Known;
        }
        let place = self.settled_place(&heard.counter.node);
        if self.settled_until(place).is_some_and(|until| heard.counter.since <= until) {
            let Some(known) = place.and_then(|place| self.entries.get_mut(place)) else {
                return Merged::Known;
            };
            return known.grow(heard.amount);
        }
        let is_theirs = |count: &Count| is_of(count, node) && count.counter.since <= heard.counter.since;
        if place.is_none() && self.entries.len() >= COUNTS_MAX && !self.entries.iter().any(is_theirs) {
            return Merged::Full;
        }
        let place = self.settle(node, heard.counter.clone(), Amount::default());
        if let Some(settled) = self.entries.get_mut(place) {
            settled.grow(heard.amount);
        }
        Merged::Changed
    }

    /// Puts one entry in place of all counts of a daemon that began no later than that says, with `more` in
    /// it; without a name, of all daemons. Returns its place.
    fn settle(&mut self, node: &str, counter: Counter, more: Amount) -> usize {
        let mut amount = more;
        self.entries.retain(|count| {
            let theirs = is_of(count, node) && count.counter.since <= counter.since;
            let settled = theirs || count.counter.node == counter.node;
            if settled {
                amount.admitted = amount.admitted.saturating_add(count.amount.admitted);
                amount.returned = amount.returned.saturating_add(count.amount.returned);
            }
            !settled
        });
        let place = self.entries.partition_point(|count| count.counter < counter);
        self.entries.insert(place, Count { counter, amount });
        place
    }

    fn settled_place(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|count| *count.counter.node == *name)
    }

    fn settled_until(&self, place: Option<usize>) -> Option<Timestamp> {
        place.and_then(|place| self.entries.get(place)).map(|settled| settled.counter.since)
    }
}

/// True if a count is of this daemon; of no name are all.
fn is_of(count: &Count, node: &str) -> bool {
    node.is_empty() || *count.counter.node == *node
}

/// The counts with those first that settle others, and so make room.
pub(super) fn settled_first(counts: &[Count]) -> impl Iterator<Item = &Count> {
    let settles = |count: &&Count| count.counter.node.ends_with(SETTLED);
    counts.iter().filter(settles).chain(counts.iter().filter(move |count| !settles(count)))
}

/// The name under which a daemon's settled counts are told; `None` if it would be too long.
fn settled_name(node: &str) -> Option<Arc<str>> {
    (node.len() + SETTLED.len() <= NAME_BYTES_MAX).then(|| Arc::from(format!("{node}{SETTLED}")))
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

    impl Counts {
        /// Takes in what is said of another region. Returns whether anything was new.
        fn merge_all(&mut self, counts: &[Count]) -> bool {
            settled_first(counts)
                .fold(false, |changed, count| changed | (self.merge(count) == Merged::Changed))
        }
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
        let mut counts = of(&(1..=12).map(|since| count("a", since, 10, 1)).collect::<Vec<_>>());
        assert_eq!((counts.entries().len(), counts.net()), (9, 108));
        for since in 1..=12 {
            assert_eq!(counts.merge(&count("a", since, 10, 1)), Merged::Known);
        }
        assert_eq!(counts.net(), 108);
    }

    #[test]
    fn settled_counts_are_told_and_counted_once_whatever_was_heard_before() {
        let all: Vec<Count> = (1..=20).map(|since| count("a", since, since, 0)).collect();
        let whole: u64 = (1..=20).sum();
        for known in 0..=20_usize {
            for first in 0..=known {
                let mut other = of(all.get(first..known).unwrap_or_default());
                other.merge_all(of(&all).entries());
                assert_eq!(other.net(), whole, "of {first} to {known} it knew");
                // And whoever hears of that one.
                let mut third = of(all.get(..first).unwrap_or_default());
                third.merge_all(other.entries());
                assert_eq!(third.net(), whole);
                let mut backwards = Counts::default();
                other.entries().iter().rev().for_each(|count| {
                    backwards.merge(count);
                });
                backwards.merge_all(&all);
                assert_eq!(backwards.net(), whole);
            }
        }
    }

    #[test]
    fn a_full_table_settles_what_one_daemon_counted_before() {
        let mut counts = Counts::default();
        for n in 0..COUNTS_MAX - 2 {
            assert_eq!(counts.merge(&count(&format!("n{n}"), 1, 1, 0)), Merged::Changed);
        }
        for since in 1..=20 {
            assert_eq!(counts.merge(&count("often", since, 10, 0)), Merged::Changed);
            assert!(counts.entries().len() <= COUNTS_MAX);
        }
        assert_eq!(counts.net(), 62 + 200);
    }

    #[test]
    fn there_is_room_for_so_many_daemons_only() {
        let mut counts = Counts::default();
        for n in 0..COUNTS_MAX {
            assert_eq!(counts.merge(&count(&format!("n{n}"), 1, 1, 0)), Merged::Changed);
        }
        assert_eq!(counts.merge(&count("one more", 1, 1, 0)), Merged::Full);
    }

    /// The counts of daemons that are replaced under new names: each admits ten permits.
    fn replaced(names: impl Iterator<Item = u64>) -> Vec<Count> {
        names.map(|n| count(&format!("pod-{n}"), n, 10, 1)).collect()
    }

    #[test]
    fn counts_of_daemons_that_are_gone_make_room_for_any_number_of_names() {
        let (mut counts, mut other) = (Counts::default(), Counts::default());
        for n in 1..=300_u64 {
            let counter = Counter { node: format!("pod-{n}").into(), since: Timestamp(n) };
            let lives = |node: &str| node == format!("pod-{n}") || node == format!("pod-{}", n - 1);
            assert!(counts.add(&counter, Amount { admitted: 10, returned: 1 }, lives), "{n}");
            assert!(counts.entries().len() <= COUNTS_MAX);
            assert_eq!(counts.net(), 9 * n);
            // Every daemon that hears of it follows, in whatever state.
            for heard in settled_first(counts.entries()) {
                assert_ne!(other.merge(heard), Merged::Full, "{n}");
            }
            assert_eq!(other.net(), 9 * n);
        }
        for former in replaced(1..=200) {
            counts.merge_own(&[former], |_| false);
        }
        assert_eq!(counts.net(), 9 * 300, "what is settled is not counted again");
    }

    #[test]
    fn whoever_settled_more_or_less_of_them_comes_to_the_same() {
        let all = replaced(1..=100);
        let took = |counts: &[Count]| {
            let mut taken = Counts::default();
            assert!(!taken.merge_own(counts, |_| false).full);
            taken
        };
        for (early, late) in [(70, 100), (65, 66), (100, 64), (80, 90)] {
            let (mut one, mut two) = (took(&all[..early]), took(&all[..late]));
            let more = u64::try_from(early.max(late)).unwrap();
            let (told_one, told_two) = (one.clone(), two.clone());
            one.merge_own(told_two.entries(), |_| false);
            two.merge_own(told_one.entries(), |_| false);
            assert_eq!((one.net(), two.net()), (9 * more, 9 * more), "{early} {late}");
        }
    }

    #[test]
    fn what_may_still_grow_is_not_settled() {
        let mut counts = of(&replaced(1..=64));
        let newest = Counter { node: "newest".into(), since: Timestamp(1_000) };
        let one = Amount { admitted: 1, returned: 0 };
        let before = counts.clone();
        assert!(!counts.add(&newest, one, |node| node == "pod-1"), "the oldest is there");
        assert!(!counts.merge_own(&[Count { counter: newest.clone(), amount: one }], |_| true).changed);
        assert_eq!(counts, before);
        assert!(counts.add(&newest, one, |node| node == "pod-9"));
        assert_eq!(counts.net(), before.net() + 1);
        // It goes on.
        counts.merge(&count("pod-9", 9, 50, 0));
        assert_eq!(counts.net(), before.net() + 1 + 40);
        assert_eq!(counts.settled_for("pod-9"), Some(Timestamp(8)));
    }
}
