//! Under which numbers a bucket is told: one for each region that this daemon speaks for, as long as the same
//! daemons count.

use smallvec::SmallVec;

use super::counts::Count;
use crate::regions::membership::RegionId;
use crate::wire::{Amount, Amounts, COUNTS_MAX, Counter};

/// The key ids of one bucket. Few: its own region's, and in a region of several daemons those that it passes
/// on.
#[derive(Debug, Default)]
pub(super) struct KeyIds(Vec<KeyId>);

/// The meaning of a key id.
#[derive(Debug)]
pub(super) struct KeyId {
    /// For whom; `None` for this daemon alone.
    speaker: Option<RegionId>,
    pub(super) key_id: u64,
    pub(super) counters: SmallVec<[Counter; 1]>,
}

impl KeyIds {
    /// The key id under which these counts can be told; `key ids` is the last number given out.
    pub(super) fn speak(
        &mut self,
        speaker: Option<RegionId>,
        counts: &[Count],
        key_ids: &mut u64,
    ) -> Option<&KeyId> {
        let place = match self.0.iter().position(|own_key_id| own_key_id.speaker == speaker) {
            Some(place) => place,
            None => {
                *key_ids += 1;
                let counters = counts.iter().map(|count| count.counter.clone()).collect();
                self.0.push(KeyId { speaker, key_id: *key_ids, counters });
                self.0.len() - 1
            }
        };
        let own_key_id = self.0.get_mut(place)?;
        if !counts.iter().all(|count| own_key_id.counters.contains(&count.counter)) {
            *key_ids += 1;
            own_key_id.key_id = *key_ids;
            own_key_id.add(counts);
        }
        Some(own_key_id)
    }
}

impl KeyId {
    /// Takes in who counts now. Counters before them stay, so that windows in which not all counted share a
    /// key id.
    fn add(&mut self, counts: &[Count]) {
        for Count { counter, .. } in counts {
            if !self.counters.contains(counter) {
                self.counters.push(counter.clone());
            }
        }
        if self.counters.len() > COUNTS_MAX {
            self.counters = counts.iter().map(|count| count.counter.clone()).collect();
        }
    }

    /// The counts in the order of the counters.
    pub(super) fn amounts(&self, counts: &[Count]) -> Amounts {
        if counts.is_empty() {
            return Amounts::new();
        }
        let of = |counter: &Counter| counts.iter().find(|count| count.counter == *counter);
        self.counters
            .iter()
            .map(|counter| of(counter).map_or(Amount::default(), |count| count.amount))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn count(node: &str, admitted: u64) -> Count {
        let counter = Counter { node: node.into(), since: Timestamp(1) };
        Count { counter, amount: Amount { admitted, returned: 0 } }
    }

    #[test]
    fn a_key_id_lasts_until_somebody_else_counts_too() {
        let (mut own_key_ids, mut key_ids) = (KeyIds::default(), 0);
        let mut key_id = |counts: &[Count]| {
            let own_key_id = own_key_ids.speak(Some(0), counts, &mut key_ids).unwrap();
            (
                own_key_id.key_id,
                own_key_id.amounts(counts).iter().map(|amount| amount.admitted).collect::<Vec<_>>(),
            )
        };
        assert_eq!(key_id(&[count("a", 1)]), (1, vec![1]));
        assert_eq!(key_id(&[]), (1, vec![]));
        assert_eq!(key_id(&[count("a", 3)]), (1, vec![3]));
        assert_eq!(key_id(&[count("a", 3), count("b", 1)]), (2, vec![3, 1]));
        assert_eq!(key_id(&[count("b", 5)]), (2, vec![0, 5]));
    }

    #[test]
    fn no_more_counters_are_named_than_a_report_may_hold() {
        let (mut own_key_ids, mut key_ids) = (KeyIds::default(), 0);
        for n in 0..=COUNTS_MAX {
            let own_key_id = own_key_ids.speak(None, &[count(&format!("n{n}"), 1)], &mut key_ids).unwrap();
            assert!(own_key_id.counters.len() <= COUNTS_MAX);
        }
    }
}
