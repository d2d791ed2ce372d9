//! Cells in memory: counters whose limits callers bring. Bounded; the key that would be free soonest makes
//! room for a new one.

use std::hash::BuildHasher as _;
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use metrics::{Counter, Gauge};

use crate::core::cell::{CellChange, Nanos, Operation, Reply, Stored, nanos};
use crate::engine::clock::Clock;
use crate::engine::port::{Answer, CellStore, CellsAway};
use crate::telemetry::Metrics;

/// Parts that are locked by themselves.
const SHARDS: usize = 64;
/// Bits of a hash that say which part: a table goes by those at both ends.
const SHARD_BITS_FROM: u32 = 40;
/// Keys that are looked at to find one that makes room.
const LOOKED_AT: usize = 16;
/// A full part is searched for expired keys at most once in so many nanoseconds.
const SWEEP_EVERY: Nanos = 1_000_000_000;

/// Cells of this process.
pub struct MemoryCells {
    shards: Box<[Mutex<Shard>]>,
    /// Seeded by chance: whoever chooses keys cannot choose their places.
    hasher: RandomState,
    keys_max: usize,
    clock: Clock,
    keys: Gauge,
    evicted: Counter,
}

#[derive(Default)]
struct Shard {
    cells: HashTable<Cell>,
    swept: Nanos,
}

struct Cell {
    key: Box<[u8]>,
    stored: Stored,
}

impl std::fmt::Debug for MemoryCells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryCells").field("keys_max", &self.keys_max).finish_non_exhaustive()
    }
}

impl MemoryCells {
    /// Room for so many keys.
    #[must_use]
    pub fn new(keys_max: usize, metrics: &Metrics) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (keys, evicted) =
            (metrics.plain_gauge("cells"), metrics.counter("cells_evicted_total", "store", "memory"));
        let keys_max = keys_max.div_ceil(SHARDS).max(1);
        Self { shards, hasher: RandomState::default(), keys_max, clock: Clock::System, keys, evicted }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Carries an operation out at this instant.
    pub fn apply_at(&self, key: &[u8], operation: &Operation, now: Nanos) -> Reply {
        let hash = self.hash(key);
        let place = usize::try_from(hash >> SHARD_BITS_FROM).unwrap_or_default() % SHARDS;
        let Some(shard) = self.shards.get(place) else { return Reply::Seen(None) };
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(mut found) = shard.cells.find_entry(hash, |cell| *cell.key == *key) {
            let stored = &mut found.get_mut().stored;
            let (reply, change) = operation.apply(Some(*stored), now);
            match change {
                CellChange::Keep => {}
                CellChange::Put(put) => *stored = put,
                CellChange::Remove => {
                    found.remove();
                    self.keys.decrement(1);
                }
            }
            return reply;
        }
        let (reply, change) = operation.apply(None, now);
        if let CellChange::Put(stored) = change {
            if shard.cells.len() >= self.keys_max {
                self.make_room(&mut shard, now);
            }
            let cell = Cell { key: key.into(), stored };
            shard.cells.insert_unique(hash, cell, |cell| self.hash(&cell.key));
            self.keys.increment(1);
        }
        reply
    }

    fn make_room(&self, shard: &mut Shard, now: Nanos) {
        if now.saturating_sub(shard.swept) >= SWEEP_EVERY {
            shard.swept = now;
            let before = shard.cells.len();
            shard.cells.retain(|cell| cell.stored.holds(now));
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            self.keys.decrement((before - shard.cells.len()) as f64);
        }
        if shard.cells.len() < self.keys_max {
            return;
        }
        let free_at = |cell: &&Cell| cell.stored.expires.unwrap_or(Nanos::MAX);
        let soonest = shard.cells.iter().take(LOOKED_AT).min_by_key(free_at).map(|cell| cell.key.clone());
        let Some(key) = soonest else { return };
        if let Ok(found) = shard.cells.find_entry(self.hash(&key), |cell| *cell.key == *key) {
            let (gone, _) = found.remove();
            self.keys.decrement(1);
            if gone.stored.holds(now) {
                self.evicted.increment(1);
            }
        }
    }
}

impl CellStore for MemoryCells {
    fn apply<'a>(&'a self, key: &'a [u8], operation: &'a Operation) -> Answer<'a, Result<Reply, CellsAway>> {
        Answer::Now(Ok(self.apply_at(key, operation, nanos(self.clock.now()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::cell::{Increx, Terms};

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn keys_are_bounded_and_those_that_are_free_soonest_go() {
        let cells = MemoryCells::new(SHARDS * 4, &Metrics::new());
        let throttle = Operation::Throttle(Terms::new(0, 1, 3_600, 1).unwrap());
        for number in 0..10_000_u32 {
            cells.apply_at(&number.to_le_bytes(), &throttle, 0);
        }
        let kept: usize = cells.shards.iter().map(|shard| shard.lock().unwrap().cells.len()).sum();
        assert!(kept <= SHARDS * 4, "{kept}");
        // Once they have expired a new key takes the place of all of them in its part.
        let one = Operation::Increx(Increx::default());
        cells.apply_at(b"one", &one, 4_000 * SECOND);
        let kept_then: usize = cells.shards.iter().map(|shard| shard.lock().unwrap().cells.len()).sum();
        assert!(kept_then < kept, "{kept_then}");
    }

    #[test]
    fn a_key_is_counted_deleted_and_counted_anew() {
        let cells = MemoryCells::new(100, &Metrics::new());
        let throttle = Operation::Throttle(Terms::new(0, 1, 60, 1).unwrap());
        let limited = |now| match cells.apply_at(b"k", &throttle, now) {
            Reply::Throttled(told) => told.limited,
            other => panic!("{other:?}"),
        };
        assert_eq!((limited(0), limited(0)), (false, true));
        assert!(matches!(cells.apply_at(b"k", &Operation::Delete, 0), Reply::Seen(Some(_))));
        assert!(!limited(0));
    }
}
