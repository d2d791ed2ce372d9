//! The spread of one process's keys over tables that are locked one at a time.

use std::hash::BuildHasher;

use crate::core::key::Key;

/// Tables, unless that would leave each with too few keys or too many.
const TABLES: usize = 1_024;
/// Fewer keys than this are not worth a table of their own: what is bounded is the table.
const KEYS_MIN: usize = 1_024;
/// More keys than this make a table's sweep and growth felt, and soon exceed what it can name.
const KEYS_MAX: usize = 32_768;

/// The table, of several, that a key belongs to.
#[derive(Debug)]
pub(super) struct Spread {
    hasher: foldhash::quality::RandomState,
    /// Number of tables, always a power of two, so that a hash is only masked.
    tables: usize,
}

impl Spread {
    /// Over as many tables as suit this many keys.
    pub(super) fn new(keys_max: usize) -> Self {
        let wanted = (keys_max / KEYS_MIN).clamp(1, TABLES).max(keys_max / KEYS_MAX);
        let tables = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 }.max(1);
        Self { hasher: foldhash::quality::RandomState::default(), tables }
    }

    /// Returns how many keys each table may hold; together they hold `keys_max`.
    pub(super) fn capacities(&self, keys_max: usize) -> impl Iterator<Item = usize> {
        let tables = self.tables;
        (0..tables).map(move |index| keys_max / tables + usize::from(index < keys_max % tables))
    }

    /// The table of a key, and the key's hash.
    pub(super) fn place(&self, key: &Key) -> (usize, u64) {
        let hash = self.hasher.hash_one(key.bytes());
        // The tables read the lowest 17 bits and the topmost 7.
        (usize::try_from((hash >> 17) & 0xffff_ffff).unwrap_or(0) & (self.tables - 1), hash)
    }
}
