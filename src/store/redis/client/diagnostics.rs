//! The facts that are remembered of a server for its operator. Nothing here decides anything.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::core::time::Span;
use crate::store::redis::client::failure::Failure;

/// Longest text of a trouble that is kept, in characters.
const TEXT_MAX: usize = 300;

/// Notes on one server.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct NodeDiagnostics {
    /// Microseconds plus one; zero: none yet.
    rtt: AtomicU64,
    trouble: Mutex<Option<(String, Duration)>>,
    warning: Mutex<Option<String>>,
    /// Reason why the server refuses this daemon's user, if that is why there is no connection.
    refusal: Mutex<Option<String>>,
    inspected: AtomicBool,
    memory: Mutex<Option<Memory>>,
}

/// The tenths of a server's `maxmemory` that may be used before no new keys are made. The rest is for keys
/// that are there.
const FILLED_TENTHS: u64 = 8;
/// Bytes that a key takes: as little and as much as is believed, and where too few are held to tell.
const KEY_BYTES: (u64, u64, u64) = (120, 1_000, 200);
/// Keys that tell what one takes.
const TELLING_KEYS: u64 = 2_000;

impl Memory {
    /// Returns how many keys the server may hold before no new ones are made: as its memory allows, and
    /// `most`. `None`: no bound.
    pub(in crate::store::redis) fn keys_bound(&self, most: Option<u64>) -> Option<u64> {
        let (least, largest, usual) = KEY_BYTES;
        let by_memory = || {
            let each = if self.keys < TELLING_KEYS {
                usual
            } else {
                (self.used.saturating_sub(self.startup) / self.keys).clamp(least, largest)
            };
            let room = (self.max / 10 * FILLED_TENTHS).saturating_sub(self.used) / each;
            self.keys.saturating_add(room)
        };
        let by_memory = (self.max > 0).then(by_memory);
        match (by_memory, most) {
            (Some(bound), Some(most)) => Some(bound.min(most)),
            (bound, most) => bound.or(most),
        }
    }
}

/// The newest word of a server on its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::store::redis) struct Memory {
    /// Memory that the server uses, in bytes.
    pub(in crate::store::redis) used: u64,
    /// Bytes that it used before it held anything.
    pub(in crate::store::redis) startup: u64,
    /// Most memory the server may use, in bytes; zero for no bound.
    pub(in crate::store::redis) max: u64,
    /// Keys evicted since the server started.
    pub(in crate::store::redis) evicted: u64,
    /// Number of keys in this daemon's database.
    pub(in crate::store::redis) keys: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeDiagnostics {
    /// Remembers a round trip.
    pub(in crate::store::redis) fn answered(&self, after: Duration) {
        self.rtt.store(Span::from(after).micros().saturating_add(1), Ordering::Relaxed);
    }

    /// The newest round trip.
    pub(in crate::store::redis) fn rtt(&self) -> Option<Span> {
        self.rtt.load(Ordering::Relaxed).checked_sub(1).map(Span)
    }

    /// Remembers a trouble at `now`, unless it is but a redirect or what follows from a trouble that is
    /// known.
    pub(in crate::store::redis) fn failed(&self, failure: &Failure, now: Duration) {
        if failure.is_of_interest() {
            self.trouble(&failure.to_string(), now);
        }
    }

    /// The same in words.
    pub(in crate::store::redis) fn trouble(&self, text: &str, now: Duration) {
        *locked(&self.trouble) = Some((text.chars().take(TEXT_MAX).collect(), now));
    }

    /// The newest trouble, and how long before `now` it was.
    pub(in crate::store::redis) fn newest_trouble(&self, now: Duration) -> Option<(String, Span)> {
        let trouble = locked(&self.trouble).clone();
        trouble.map(|(text, at)| (text, Span::from(now.saturating_sub(at))))
    }

    /// Takes in what the server says of its memory.
    pub(in crate::store::redis) fn remember(&self, memory: Memory) {
        *locked(&self.memory) = Some(memory);
    }

    /// Returns what the server last said of its memory.
    pub(in crate::store::redis) fn memory(&self) -> Option<Memory> {
        *locked(&self.memory)
    }

    /// Replaces what the operator should change.
    pub(in crate::store::redis) fn warn(&self, warning: Option<String>) {
        *locked(&self.warning) = warning;
    }

    /// Returns what the operator should change.
    pub(in crate::store::redis) fn warning(&self) -> Option<String> {
        locked(&self.warning).clone()
    }

    /// Takes note of how an attempt to connect went. A new connection is to be inspected.
    pub(in crate::store::redis) fn connected(&self, refusal: Option<String>) {
        if refusal.is_none() {
            self.inspected.store(false, Ordering::Relaxed);
        }
        *locked(&self.refusal) = refusal;
    }

    /// Returns why the server refuses this daemon's user.
    pub(in crate::store::redis) fn refusal(&self) -> Option<String> {
        locked(&self.refusal).clone()
    }

    /// True if the caller is to inspect the server now: once for each connection.
    pub(in crate::store::redis) fn begin_inspection(&self) -> bool {
        !self.inspected.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_keys_follows_the_memory_that_is_left_and_what_a_key_takes() {
        let empty = Memory { used: 1_000_000, startup: 1_000_000, max: 4_000_000, evicted: 0, keys: 0 };
        assert_eq!(empty.keys_bound(None), Some(11_000));
        assert_eq!(empty.keys_bound(Some(500)), Some(500));
        let half = Memory { used: 2_000_000, keys: 5_000, ..empty };
        assert_eq!(half.keys_bound(None), Some(11_000));
        let full = Memory { used: 3_900_000, keys: 15_000, ..empty };
        assert_eq!(full.keys_bound(None), Some(15_000), "none beyond those that are there");
        let unbounded = Memory { max: 0, ..half };
        assert_eq!((unbounded.keys_bound(None), unbounded.keys_bound(Some(7))), (None, Some(7)));
    }
}
