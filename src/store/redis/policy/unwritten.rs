//! Allowances on their way to Redis: of each bucket the newest, written one after the other, and again where
//! a write failed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::core::key::Key;
use crate::store::redis::client::slots::ClusterSlot;

/// Most buckets whose allowances are not in Redis yet. More are not written: an older allowance stays in
/// force there until its bucket's next one.
const UNWRITTEN_MAX: usize = 10_000;

/// An allowance that Redis is to be told of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct AllowanceWrite {
    /// The bucket's key in this process.
    pub(in crate::store::redis) bucket: Key,
    pub(in crate::store::redis) slot: ClusterSlot,
    pub(in crate::store::redis) value: Vec<u8>,
    /// Instant at which Redis forgets it, by the time since this daemon began.
    pub(in crate::store::redis) until: Duration,
}

/// The fate of an allowance that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Entered {
    /// It is to be written now.
    Write,
    /// It is written after the one that is on its way.
    Follows,
    /// Too many are not written yet.
    Full,
}

/// The progress of writing a bucket's allowance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The newest allowance is on its way.
    OnItsWay,
    /// An older one is.
    OlderOnItsWay,
    /// The last write failed, or nothing was free to begin it.
    Waits,
}

/// Allowances that Redis has not confirmed, by their keys there.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Unwritten {
    entries: Mutex<HashMap<Vec<u8>, (AllowanceWrite, Progress)>>,
}

impl Unwritten {
    fn entries(&self) -> MutexGuard<'_, HashMap<Vec<u8>, (AllowanceWrite, Progress)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the newest allowance of a bucket in.
    pub(in crate::store::redis) fn enter(&self, key: &[u8], write: AllowanceWrite) -> Entered {
        let mut entries = self.entries();
        if entries.len() >= UNWRITTEN_MAX && !entries.contains_key(key) {
            return Entered::Full;
        }
        match entries.entry(key.to_vec()) {
            Entry::Vacant(place) => {
                place.insert((write, Progress::OnItsWay));
                Entered::Write
            }
            Entry::Occupied(mut place) => {
                let (known, progress) = place.get_mut();
                *known = write;
                if *progress == Progress::Waits {
                    *progress = Progress::OnItsWay;
                    return Entered::Write;
                }
                *progress = Progress::OlderOnItsWay;
                Entered::Follows
            }
        }
    }

    /// The newest allowance of a bucket, which goes on its way now; `None` if none is left to write.
    pub(in crate::store::redis) fn take(&self, key: &[u8]) -> Option<AllowanceWrite> {
        let mut entries = self.entries();
        let (write, progress) = entries.get_mut(key)?;
        *progress = Progress::OnItsWay;
        Some(write.clone())
    }

    /// Notes how a write ended. True if a newer allowance came meanwhile and is to be written now.
    pub(in crate::store::redis) fn ended(&self, key: &[u8], written: bool) -> bool {
        let mut entries = self.entries();
        let Some((_, progress)) = entries.get_mut(key) else { return false };
        match (written, *progress) {
            (true, Progress::OlderOnItsWay) => return true,
            (true, _) => drop(entries.remove(key)),
            (false, _) => *progress = Progress::Waits,
        }
        false
    }

    /// Keys of at most `most` allowances that wait and whose servers have room: they go on their way again.
    /// Allowances that Redis would have forgotten by now are dropped.
    pub(in crate::store::redis) fn again(
        &self,
        now: Duration,
        most: usize,
        has_room: impl Fn(ClusterSlot) -> bool,
    ) -> Vec<Vec<u8>> {
        let mut entries = self.entries();
        entries.retain(|_, (write, progress)| *progress != Progress::Waits || now < write.until);
        let waiting = entries
            .iter_mut()
            .filter(|(_, (write, progress))| *progress == Progress::Waits && has_room(write.slot));
        let begun = waiting.take(most).map(|(key, (_, progress))| {
            *progress = Progress::OnItsWay;
            key.clone()
        });
        begun.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::key::Shape;
    use crate::store::redis::client::slots::slot_of_tag;

    const SOON: Duration = Duration::from_secs(1);
    const LATE: Duration = Duration::from_secs(60);

    fn write(value: u8) -> AllowanceWrite {
        let bucket = Key::new(Shape(1), []);
        AllowanceWrite { bucket, slot: slot_of_tag(b"bucket"), value: vec![value], until: LATE }
    }

    #[test]
    fn the_newest_is_written_after_the_one_on_its_way() {
        let unwritten = Unwritten::default();
        assert_eq!(unwritten.enter(b"a", write(1)), Entered::Write);
        assert_eq!(unwritten.take(b"a"), Some(write(1)));
        assert_eq!(unwritten.enter(b"a", write(2)), Entered::Follows);
        assert_eq!(unwritten.enter(b"a", write(3)), Entered::Follows);
        assert!(unwritten.ended(b"a", true), "a newer one came");
        assert_eq!(unwritten.take(b"a"), Some(write(3)));
        assert!(!unwritten.ended(b"a", true));
        assert_eq!(unwritten.take(b"a"), None, "nothing is left");
    }

    #[test]
    fn what_failed_is_written_again_with_the_newest() {
        let unwritten = Unwritten::default();
        assert_eq!(unwritten.enter(b"a", write(1)), Entered::Write);
        assert_eq!(unwritten.enter(b"a", write(2)), Entered::Follows);
        assert!(!unwritten.ended(b"a", false), "not at once: the server is in trouble");
        assert!(unwritten.again(SOON, 9, |_| false).is_empty(), "its server has no room");
        assert_eq!(unwritten.again(SOON, 9, |_| true), [b"a"]);
        assert!(unwritten.again(SOON, 9, |_| true).is_empty(), "it is on its way");
        assert_eq!(unwritten.take(b"a"), Some(write(2)));
        assert!(!unwritten.ended(b"a", false));
        assert_eq!(unwritten.enter(b"a", write(3)), Entered::Write, "a newer one does not wait");
    }

    #[test]
    fn what_redis_would_have_forgotten_is_dropped() {
        let unwritten = Unwritten::default();
        unwritten.enter(b"a", write(1));
        unwritten.ended(b"a", false);
        assert!(unwritten.again(LATE, 9, |_| true).is_empty());
        assert_eq!(unwritten.take(b"a"), None);
    }

    #[test]
    fn there_are_only_so_many() {
        let unwritten = Unwritten::default();
        for key in 0..UNWRITTEN_MAX {
            assert_eq!(unwritten.enter(&key.to_le_bytes(), write(1)), Entered::Write);
        }
        assert_eq!(unwritten.enter(b"one more", write(1)), Entered::Full);
        assert_eq!(unwritten.enter(&0_usize.to_le_bytes(), write(2)), Entered::Follows);
    }
}
