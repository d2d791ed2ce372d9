//! What decisions tell the protocol between regions, and what it tells the store.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::core::key::Key;

/// Buckets that may wait to be told; more in one tick are dropped and counted.
pub const TALLIES_MAX: usize = 262_144;
const SLOTS: usize = 64;

/// What happened to one bucket since the last drain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// The window it happened in; zero for algorithms without windows.
    pub window: u64,
    /// Permits asked for.
    pub offered: u64,
    /// Permits admitted.
    pub admitted: u64,
    /// Permits given back.
    pub returned: u64,
}

/// Collects what decisions did to worldwide limits until the protocol asks for it. Bounded; a decision never waits here
/// for longer than another decision's increment.
#[derive(Debug)]
pub struct Tallies {
    slots: Vec<Mutex<HashMap<Key, [Tally; 2], foldhash::fast::RandomState>>>,
    hasher: foldhash::fast::RandomState,
}

impl Default for Tallies {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }
}

impl Tallies {
    /// Adds to a bucket's tally. `false`: there was no room.
    pub fn add(&self, key: &Key, tally: Tally) -> bool {
        use std::hash::BuildHasher;
        let slot = usize::try_from(self.hasher.hash_one(key.bytes()) >> 40).unwrap_or(0) % SLOTS;
        let mut slot = self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some([newer, older]) = slot.get_mut(key) {
            if tally.window == newer.window {
                merge(newer, tally);
            } else if tally.window > newer.window {
                // Between two drains a bucket sees at most the turn of one window.
                *older = std::mem::replace(newer, tally);
            } else {
                older.window = tally.window;
                merge(older, tally);
            }
            return true;
        }
        if slot.len() >= TALLIES_MAX / SLOTS {
            return false;
        }
        slot.insert(key.clone(), [tally, Tally::default()]);
        true
    }

    /// Takes everything out, older windows first.
    pub fn drain(&self, mut each: impl FnMut(&Key, Tally)) {
        for slot in &self.slots {
            let taken = {
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                if slot.is_empty() {
                    continue;
                }
                std::mem::take(&mut *slot)
            };
            for (key, [newer, older]) in taken {
                if older != Tally::default() {
                    each(&key, older);
                }
                each(&key, newer);
            }
        }
    }
}

fn merge(into: &mut Tally, tally: Tally) {
    into.offered = into.offered.saturating_add(tally.offered);
    into.admitted = into.admitted.saturating_add(tally.admitted);
    into.returned = into.returned.saturating_add(tally.returned);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::key::Shape;

    #[test]
    fn nothing_is_lost_when_a_window_turns_between_two_drains() {
        let tallies = Tallies::default();
        let key = Key::new(Shape(1), ["a"]);
        let tally = |window, admitted| Tally { window, offered: admitted, admitted, returned: 0 };
        for (window, admitted) in [(5, 1), (5, 2), (6, 4), (5, 8), (6, 16)] {
            assert!(tallies.add(&key, tally(window, admitted)));
        }
        let mut seen = Vec::new();
        tallies.drain(|_, tally| seen.push((tally.window, tally.admitted)));
        assert_eq!(seen, [(5, 11), (6, 20)]);
        tallies.drain(|_, _| panic!("drained twice"));
    }
}
