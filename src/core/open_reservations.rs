//! Reservations of worldwide rules that nobody has settled yet, by the instant at which they have lapsed.
//!
//! A bucket gives back what has lapsed where something does not fit in the same store. Requests that come to
//! other regions alone never do that. So the daemon that made a reservation looks after it once it has
//! lapsed, and the other regions hear what went back.

use std::collections::BTreeSet;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::key::Key;
use super::reservation::ReservationId;
use super::time::Timestamp;

/// Most buckets that are remembered. Of those beyond, what has lapsed goes back where something does not fit
/// in the same store.
pub const OPEN_MAX: usize = 100_000;

/// A bucket of which permits are reserved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenBucket {
    /// Name of the bucket.
    pub key: Key,
    /// The limit, where it was not the rule's own but the caller's.
    pub own_limit: Option<u32>,
}

/// The open reservations that one daemon made.
#[derive(Debug, Default)]
pub struct OpenReservations {
    due: BTreeSet<(Timestamp, ReservationId)>,
    buckets: HashMap<ReservationId, SmallVec<[(Timestamp, OpenBucket); 1]>, RandomState>,
    len: usize,
}

impl OpenReservations {
    /// Remembers that permits of a bucket have lapsed at `due`. `false`: there was no room.
    pub fn note(&mut self, id: ReservationId, due: Timestamp, bucket: OpenBucket) -> bool {
        if self.len >= OPEN_MAX {
            return false;
        }
        self.buckets.entry(id).or_default().push((due, bucket));
        self.due.insert((due, id));
        self.len += 1;
        true
    }

    /// Forgets a reservation: it was settled.
    pub fn settle(&mut self, id: ReservationId) {
        for (due, _) in self.buckets.remove(&id).into_iter().flatten() {
            self.due.remove(&(due, id));
            self.len -= 1;
        }
    }

    /// Takes out the buckets of reservations that have lapsed by `now`, of `most` of them at once.
    pub fn take_due(&mut self, now: Timestamp, most: usize) -> Vec<OpenBucket> {
        let mut taken = Vec::new();
        for _ in 0..most {
            let Some((_, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) else { break };
            let Some(buckets) = self.buckets.get_mut(&id) else { break };
            buckets.retain(|(due, bucket)| {
                let is_over = *due <= now;
                if is_over {
                    self.due.remove(&(*due, id));
                    self.len -= 1;
                    taken.push(bucket.clone());
                }
                !is_over
            });
            if buckets.is_empty() {
                self.buckets.remove(&id);
            }
        }
        taken.sort_unstable();
        taken.dedup();
        taken
    }

    /// Takes out all buckets.
    pub fn take_all(&mut self) -> Vec<OpenBucket> {
        self.take_due(Timestamp(u64::MAX), usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Shape;

    fn id(number: u8) -> ReservationId {
        ReservationId([number; 16])
    }

    fn bucket(name: &str) -> OpenBucket {
        OpenBucket { key: Key::new(Shape(1), [name]), own_limit: None }
    }

    #[test]
    fn each_bucket_is_taken_once_when_it_is_due_and_never_once_it_is_settled() {
        let mut open = OpenReservations::default();
        for (number, due, name) in [(1, 10, "a"), (1, 30, "b"), (2, 10, "a"), (3, 20, "c"), (4, 20, "d")] {
            assert!(open.note(id(number), Timestamp(due), bucket(name)));
        }
        open.settle(id(3));
        assert!(open.take_due(Timestamp(9), 100).is_empty());
        assert_eq!(open.take_due(Timestamp(10), 100), [bucket("a")]);
        assert!(open.take_due(Timestamp(10), 100).is_empty());
        assert_eq!(open.take_due(Timestamp(40), 1), [bucket("d")]);
        assert!(open.note(id(5), Timestamp(99), bucket("e")));
        assert_eq!(open.take_all(), [bucket("b"), bucket("e")]);
        open.settle(id(1));
        assert_eq!((open.len, open.due.len(), open.buckets.len()), (0, 0, 0));
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let mut open = OpenReservations::default();
        for due in (0..).take(OPEN_MAX) {
            assert!(open.note(id(1), Timestamp(due), bucket("a")));
        }
        assert!(!open.note(id(2), Timestamp(0), bucket("a")));
        open.settle(id(1));
        assert!(open.note(id(2), Timestamp(0), bucket("a")));
    }
}
