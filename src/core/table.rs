//! A bounded table of what is kept by key: its entries, when each may be forgotten, and which one goes first
//! when there is no room. It does not know what it keeps; buckets and views of them are two tables of the
//! same kind.
//!
//! An entry costs 40 bytes beside its key (with a [`super::algorithm::State`] in it) and 4 to 7 bytes of
//! index. Entries lie in small chunks that never move and keys in pages, so growing copies nothing but the
//! index, and one table is meant to hold thousands of keys, not millions: whoever needs more keeps many
//! tables and picks one by the key's hash.

use hashbrown::HashTable;

use self::keys::{KeyAt, KeyBytes};
use super::time::Timestamp;

mod keys;

/// Entries that one table can hold: what its 16-bit places can name.
pub const TABLE_KEYS_MAX: usize = 65_000;
/// Entries that are laid out together.
const CHUNK: usize = 32;
/// Entries looked at behind the moving hand for each new key. More than one, so that it outruns any flood.
const RECLAIM_STEP: usize = 4;
/// Entries among which the least valuable one is sought when the table is full.
const SAMPLE: usize = 32;
/// Bytes that the keys of one table have on average at most. Fewer keys find room if they are longer: a
/// client that chooses long values takes no more memory than one that chooses short ones.
const KEY_BYTES_MEAN_MAX: usize = 256;
/// Bytes of keys that any table has room for: the longest key.
const KEY_BYTES_LEAST: usize = 65_535;
/// Bytes that the values of one table hold on the heap on average at most, and what any table has room for. A
/// bucket that keeps more by itself is held all the same: its limit bounds it.
const HEAP_BYTES_MEAN_MAX: usize = 256;
const HEAP_BYTES_LEAST: usize = 1 << 20;
/// The weight of an entry that is not forgotten before it expires.
pub const WEIGHT_KEPT: u8 = u8::MAX;
/// A coarse expiry that never comes.
const NEVER: u32 = u32::MAX;

/// Names an entry until it is removed or another one is inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablePlace(u16);

/// There is no room: the table is full and every entry in the sample must be kept, or the key exceeds 65,535
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no entry in reach may be forgotten")]
pub struct Full;

/// The place to which a new entry went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// Place of the entry, valid until the entry is forgotten.
    pub place: TablePlace,
    /// True if another one was forgotten for it before its time.
    pub evicted: bool,
}

/// Entries by key.
#[derive(Debug)]
pub struct Table<T> {
    index: HashTable<u16>,
    chunks: Vec<Box<[TableEntry<T>; CHUNK]>>,
    keys: KeyBytes,
    /// Entries laid out so far, vacant ones counted.
    made: usize,
    /// The first of the vacant ones, which are linked through their `expiry`.
    vacant: Option<u16>,
    hand: usize,
    keys_max: usize,
    /// Returns the bytes that a value holds on the heap.
    heap_of: fn(&T) -> usize,
    /// Bytes that all values hold on the heap together, by `heap_of`.
    heap: usize,
}

#[derive(Debug)]
struct TableEntry<T> {
    value: Option<T>,
    key: KeyAt,
    /// Whole seconds, rounded up; of a vacant entry, the next vacant one.
    expiry: u32,
    /// The bits of the key's hash that the index needs, so that growing it touches no key.
    hash: [u8; 3],
    /// Cost of forgetting the entry: the lowest goes first.
    weight: u8,
}

impl<T> TableEntry<T> {
    fn unused() -> Self {
        Self { value: None, key: KeyAt::default(), expiry: NEVER, hash: [0; 3], weight: 0 }
    }

    fn expired(&self, now_s: u64) -> bool {
        self.value.is_some() && self.expiry != NEVER && u64::from(self.expiry) <= now_s
    }
}

/// The 24 bits of a hash that the index reads: the lowest 17, which pick the bucket, and the topmost 7, which
/// tell keys in one bucket apart.
fn short(hash: u64) -> [u8; 3] {
    let [low, middle, upper, .., top] = hash.to_le_bytes();
    [low, middle, (upper & 1) | (top & 0xfe)]
}

fn spread([low, middle, both]: [u8; 3]) -> u64 {
    u64::from_le_bytes([low, middle, both & 1, 0, 0, 0, 0, both & 0xfe])
}

/// The second at which an entry may be forgotten.
fn whole_seconds(expiry: Timestamp) -> u32 {
    u32::try_from(expiry.0.div_ceil(1_000_000)).unwrap_or(NEVER)
}

fn entry_at<T>(chunks: &[Box<[TableEntry<T>; CHUNK]>], place: u16) -> Option<&TableEntry<T>> {
    let place = usize::from(place);
    chunks.get(place / CHUNK)?.get(place % CHUNK)
}

impl<T> Table<T> {
    /// An empty table for at most `keys_max` keys; beyond [`TABLE_KEYS_MAX`] that is the bound.
    #[must_use]
    pub fn new(keys_max: usize) -> Self {
        Self {
            index: HashTable::new(),
            chunks: Vec::new(),
            keys: KeyBytes::default(),
            made: 0,
            vacant: None,
            hand: 0,
            keys_max: keys_max.min(TABLE_KEYS_MAX),
            heap_of: |_| 0,
            heap: 0,
        }
    }

    /// The same for values that hold so much on the heap, which is bounded as well.
    #[must_use]
    pub fn weighing(keys_max: usize, heap_of: fn(&T) -> usize) -> Self {
        Self { heap_of, ..Self::new(keys_max) }
    }

    /// Bytes that its values hold on the heap.
    #[must_use]
    pub const fn heap(&self) -> usize {
        self.heap
    }

    /// Bytes that one value holds on the heap.
    #[must_use]
    pub fn heap_at(&self, place: TablePlace) -> usize {
        self.get(place).map_or(0, self.heap_of)
    }

    /// Notes that a value that held `before` bytes on the heap has changed.
    pub fn recount(&mut self, place: TablePlace, before: usize) {
        self.heap = self.heap.saturating_add(self.heap_at(place)).saturating_sub(before);
    }

    /// Makes room on the heap for the value at `place`, or for a new one, to grow: the least valuable of a
    /// sample of those that hold something there are forgotten, but none that is `pinned`, until all others
    /// hold no more than they may. Returns how many went before their time; [`Full`] if all of those in reach
    /// must be kept.
    pub fn make_heap(
        &mut self,
        place: Option<TablePlace>,
        now: Timestamp,
        pinned: impl Fn(TablePlace) -> bool,
    ) -> Result<u64, Full> {
        let most = self.keys_max.saturating_mul(HEAP_BYTES_MEAN_MAX).max(HEAP_BYTES_LEAST);
        let mut evicted = 0;
        if self.heap <= most {
            return Ok(evicted);
        }
        let (own, heap_of) = (place.map_or(0, |place| self.heap_at(place)), self.heap_of);
        while self.heap.saturating_sub(own) > most {
            let early =
                self.evict(now, &|other| Some(other) == place || pinned(other), &|value| heap_of(value) > 0)?;
            evicted += u64::from(early);
        }
        Ok(evicted)
    }

    /// Entries held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True if it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The most entries it holds.
    #[must_use]
    pub const fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Bytes allocated for everything but the keys and what values hold on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.index.allocation_size()
            + self.chunks.capacity() * size_of::<Box<[TableEntry<T>; CHUNK]>>()
            + self.chunks.len() * size_of::<[TableEntry<T>; CHUNK]>()
            + self.keys.overhead()
    }

    /// Returns where `key` is kept. `hash` must be the same for the same key throughout the table's life; its
    /// lowest 17 and topmost 7 bits are read.
    #[must_use]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<TablePlace> {
        let same =
            |place: &u16| entry_at(&self.chunks, *place).is_some_and(|entry| self.keys.get(entry.key) == key);
        self.index.find(spread(short(hash)), same).copied().map(TablePlace)
    }

    /// Everything that is kept: its key, itself, and the second in which it may be forgotten.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &T, u32)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter()).take(self.made);
        entries.filter_map(|entry| Some((self.keys.get(entry.key), entry.value.as_ref()?, entry.expiry)))
    }

    /// Returns what is kept there.
    #[must_use]
    pub fn get(&self, place: TablePlace) -> Option<&T> {
        entry_at(&self.chunks, place.0)?.value.as_ref()
    }

    /// Returns what is kept there, to be changed.
    pub fn get_mut(&mut self, place: TablePlace) -> Option<&mut T> {
        self.entry_mut(place.0)?.value.as_mut()
    }

    /// Says when the entry may be forgotten and how much it weighs until then: where there is no room the
    /// lowest weight goes first, and [`WEIGHT_KEPT`] never does.
    pub fn rate(&mut self, place: TablePlace, expiry: Timestamp, weight: u8) {
        if let Some(entry) = self.entry_mut(place.0) {
            entry.expiry = whole_seconds(expiry);
            entry.weight = weight;
        }
    }

    /// Keeps the entry until `expiry` at least.
    pub fn keep_until(&mut self, place: TablePlace, expiry: Timestamp) {
        if let Some(entry) = self.entry_mut(place.0) {
            entry.expiry = entry.expiry.max(whole_seconds(expiry));
        }
    }

    /// Changes the weight alone.
    pub fn weigh(&mut self, place: TablePlace, weight: u8) {
        if let Some(entry) = self.entry_mut(place.0) {
            entry.weight = weight;
        }
    }

    /// Keeps `value` under a key that is not yet kept. It stays until [`Self::rate`] has said when it may go.
    ///
    /// Looks for expired entries on the way. A full table forgets the least valuable of a sample, but none
    /// that is `pinned`; [`Full`] if all of those must be kept.
    pub fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: T,
        now: Timestamp,
        pinned: impl Fn(TablePlace) -> bool,
    ) -> Result<Inserted, Full> {
        self.sweep_but(now, RECLAIM_STEP, &pinned);
        let mut evicted = false;
        while self.lacks_room_for(key) {
            evicted |= self.evict(now, &pinned, &|_| true)?;
        }
        if self.keys.worth_packing() {
            self.pack();
        }
        let key = self.keys.put(key).ok_or(Full)?;
        let place = self.vacate().ok_or(Full)?;
        self.heap = self.heap.saturating_add((self.heap_of)(&value));
        let hash = short(hash);
        let entry = self.entry_mut(place).ok_or(Full)?;
        *entry = TableEntry { value: Some(value), key, expiry: NEVER, hash, weight: WEIGHT_KEPT };
        let Self { index, chunks, .. } = self;
        index.insert_unique(spread(hash), place, |place| {
            spread(entry_at(chunks, *place).map_or([0; 3], |entry| entry.hash))
        });
        Ok(Inserted { place: TablePlace(place), evicted })
    }

    /// Forgets an entry and hands back what was kept.
    pub fn remove(&mut self, place: TablePlace) -> Option<T> {
        let vacant = self.vacant.map_or(NEVER, u32::from);
        let entry = self.entry_mut(place.0)?;
        let value = entry.value.take()?;
        let hash = spread(entry.hash);
        let key = std::mem::take(&mut entry.key);
        entry.expiry = vacant;
        self.keys.forget(key);
        self.heap = self.heap.saturating_sub((self.heap_of)(&value));
        self.vacant = Some(place.0);
        if let Ok(found) = self.index.find_entry(hash, |other| *other == place.0) {
            found.remove();
        }
        Some(value)
    }

    /// Looks at the next `entries_max` entries and forgets those that have expired. Returns how many. A part
    /// that is empty as a whole gives its memory back.
    pub fn sweep(&mut self, now: Timestamp, entries_max: usize) -> usize {
        let forgotten = self.sweep_but(now, entries_max.min(self.made), &|_| false);
        if self.is_empty() && self.made > 0 {
            *self = Self::weighing(self.keys_max, self.heap_of);
        }
        forgotten
    }

    fn sweep_but(
        &mut self,
        now: Timestamp,
        entries_max: usize,
        pinned: &impl Fn(TablePlace) -> bool,
    ) -> usize {
        let now_s = now.0 / 1_000_000;
        let mut forgotten = 0;
        for _ in 0..entries_max {
            let Some(place) = self.next() else { break };
            let expired = entry_at(&self.chunks, place).is_some_and(|entry| entry.expired(now_s));
            if expired && !pinned(TablePlace(place)) && self.remove(TablePlace(place)).is_some() {
                forgotten += 1;
            }
        }
        forgotten
    }

    fn lacks_room_for(&self, key: &[u8]) -> bool {
        let bytes_max = self.keys_max.saturating_mul(KEY_BYTES_MEAN_MAX).max(KEY_BYTES_LEAST);
        self.len() >= self.keys_max
            || (self.keys.live().saturating_add(key.len()) > bytes_max && !self.is_empty())
    }

    /// Makes room for one by forgetting one that `may` go. `true`: what was forgotten had not expired.
    fn evict(
        &mut self,
        now: Timestamp,
        pinned: &impl Fn(TablePlace) -> bool,
        may: &impl Fn(&T) -> bool,
    ) -> Result<bool, Full> {
        let now_s = now.0 / 1_000_000;
        let mut least: Option<(u8, u32, u16)> = None;
        for _ in 0..SAMPLE.min(self.made) {
            let Some(place) = self.next() else { break };
            let Some(entry) = entry_at(&self.chunks, place) else { continue };
            if entry.value.is_none() || pinned(TablePlace(place)) {
                continue;
            }
            if entry.expired(now_s) {
                self.remove(TablePlace(place));
                return Ok(false);
            }
            let worth = (entry.weight, entry.expiry, place);
            let goes = entry.weight < WEIGHT_KEPT && entry.value.as_ref().is_some_and(may);
            if goes && least.is_none_or(|least| worth < least) {
                least = Some(worth);
            }
        }
        let (.., place) = least.ok_or(Full)?;
        self.remove(TablePlace(place)).ok_or(Full)?;
        Ok(true)
    }

    /// The place under the hand, which then moves on.
    fn next(&mut self) -> Option<u16> {
        if self.hand >= self.made {
            self.hand = 0;
        }
        let place = (self.hand < self.made).then_some(self.hand)?;
        self.hand += 1;
        u16::try_from(place).ok()
    }

    /// Closes the gaps that forgotten keys left.
    fn pack(&mut self) {
        let mut packed = KeyBytes::default();
        for entry in self.chunks.iter_mut().flat_map(|chunk| chunk.iter_mut()) {
            if entry.value.is_some()
                && let Some(at) = packed.put(self.keys.get(entry.key))
            {
                entry.key = at;
            }
        }
        self.keys = packed;
    }

    /// A place to fill: one that was left, or a new one.
    fn vacate(&mut self) -> Option<u16> {
        if let Some(place) = self.vacant {
            let next = entry_at(&self.chunks, place)?.expiry;
            self.vacant = u16::try_from(next).ok();
            return Some(place);
        }
        let place = u16::try_from(self.made).ok()?;
        if self.made == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new(std::array::from_fn(|_| TableEntry::unused())));
        }
        self.made += 1;
        Some(place)
    }

    fn entry_mut(&mut self, place: u16) -> Option<&mut TableEntry<T>> {
        let place = usize::from(place);
        self.chunks.get_mut(place / CHUNK)?.get_mut(place % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::BuildHasher;

    use proptest::prelude::*;

    use super::super::algorithm::State;
    use super::*;

    fn hash(key: &[u8]) -> u64 {
        foldhash::quality::FixedState::default().hash_one(key)
    }

    fn free(_: TablePlace) -> bool {
        false
    }

    const SECOND: u64 = 1_000_000;

    /// Keeps `number` under itself until `expiry_s`.
    fn keep(
        table: &mut Table<u64>,
        number: u64,
        now_s: u64,
        expiry_s: u64,
        weight: u8,
    ) -> Result<bool, Full> {
        let key = number.to_le_bytes();
        let inserted = table.insert(hash(&key), &key, number, Timestamp(now_s * SECOND), free)?;
        table.rate(inserted.place, Timestamp(expiry_s * SECOND), weight);
        Ok(inserted.evicted)
    }

    fn kept(table: &Table<u64>, number: u64) -> bool {
        let key = number.to_le_bytes();
        table.find(hash(&key), &key).is_some_and(|place| table.get(place) == Some(&number))
    }

    #[test]
    fn an_entry_with_a_state_takes_40_bytes() {
        assert!(size_of::<TableEntry<State>>() <= 40, "{} bytes", size_of::<TableEntry<State>>());
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in proptest::collection::vec((0..300_u64, 0..3_u8), 1..600)) {
            let mut table = Table::new(1_000);
            let mut map = HashMap::new();
            for (number, act) in steps {
                let key = number.to_le_bytes();
                match (table.find(hash(&key), &key), act) {
                    (Some(place), 0) => prop_assert_eq!(table.remove(place), map.remove(&number)),
                    (None, 1 | 2) => {
                        prop_assert_eq!(keep(&mut table, number, 0, u64::MAX / SECOND, 0), Ok(false));
                        map.insert(number, number);
                    }
                    (found, _) => prop_assert_eq!(found.is_some(), map.contains_key(&number)),
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for number in 0..300 {
                prop_assert_eq!(kept(&table, number), map.contains_key(&number));
            }
        }
    }

    #[test]
    fn long_keys_take_the_room_of_several() {
        let mut table = Table::new(1_000);
        for number in 0..3_000_u64 {
            let key = [number.to_le_bytes(); 128].concat();
            let inserted = table.insert(hash(&key), &key, number, Timestamp(0), free).unwrap();
            table.rate(inserted.place, Timestamp(9 * SECOND), 0);
        }
        assert_eq!(table.len(), 250, "256 bytes a key on average");
        let mut tiny = Table::new(1);
        let key = [7; 60_000];
        assert!(tiny.insert(hash(&key), &key, 1_u64, Timestamp(0), free).is_ok(), "one always finds room");
        assert_eq!(tiny.insert(1, b"a", 1, Timestamp(0), free), Err(Full), "what must be kept is kept");
    }

    #[test]
    fn a_flood_never_forgets_what_must_be_kept_and_never_exceeds_the_bound() {
        let mut table = Table::new(1_000);
        for number in 0..100 {
            keep(&mut table, number, 0, 1_000, WEIGHT_KEPT).unwrap();
        }
        for number in 100..20_000 {
            let _ = keep(&mut table, number, 1, 1_000, 10);
            assert!(table.len() <= 1_000);
        }
        assert!((0..100).all(|number| kept(&table, number)));
        assert!(kept(&table, 19_999));
    }

    #[test]
    fn where_everything_must_be_kept_there_is_no_room() {
        let mut table = Table::new(64);
        for number in 0..64 {
            keep(&mut table, number, 0, 10, WEIGHT_KEPT).unwrap();
        }
        assert_eq!(keep(&mut table, 64, 9, 10, 0), Err(Full));
        assert_eq!(keep(&mut table, 64, 10, 20, 0), Ok(false));
    }

    #[test]
    fn the_least_used_goes_first() {
        let mut table = Table::new(20);
        for number in 0..20 {
            keep(&mut table, number, 0, 10, u8::try_from(number).unwrap() + 100).unwrap();
        }
        assert_eq!(keep(&mut table, 20, 0, 10, 200), Ok(true));
        assert!(!kept(&table, 0) && (1..=20).all(|number| kept(&table, number)));
    }

    #[test]
    fn a_pinned_entry_stays() {
        let mut table = Table::new(2);
        keep(&mut table, 0, 0, 10, 1).unwrap();
        keep(&mut table, 1, 0, 10, 2).unwrap();
        let key = 0_u64.to_le_bytes();
        let pinned = table.find(hash(&key), &key).unwrap();
        let key = 2_u64.to_le_bytes();
        table.insert(hash(&key), &key, 2, Timestamp(0), |place| place == pinned).unwrap();
        assert!(kept(&table, 0) && !kept(&table, 1) && kept(&table, 2));
    }

    #[test]
    fn new_keys_push_out_expired_ones_so_that_a_short_lived_crowd_stays_small() {
        let mut table = Table::new(60_000);
        for number in 0..200_000 {
            // A thousand keys a second, each alive for one.
            keep(&mut table, number, number / 1_000, number / 1_000 + 1, 0).unwrap();
        }
        assert!(table.len() < 5_000, "{} entries", table.len());
    }

    #[test]
    fn a_sweep_reclaims_what_has_expired_and_an_empty_table_gives_its_memory_back() {
        let mut table = Table::new(10_000);
        for number in 0..5_000 {
            keep(&mut table, number, 0, 10, 0).unwrap();
        }
        assert_eq!(table.sweep(Timestamp(10 * SECOND - 1), 5_000), 0);
        assert_eq!(table.sweep(Timestamp(10 * SECOND), 1_000), 1_000);
        assert_eq!(table.len(), 4_000);
        assert_eq!(table.sweep(Timestamp(10 * SECOND), 9_000), 4_000);
        assert_eq!(table.bytes(), 0);
    }

    #[test]
    fn at_any_fill_an_entry_stays_below_56_bytes_beside_its_key_also_after_churn() {
        let mut table: Table<State> = Table::new(60_000);
        for number in 0..60_000_u64 {
            let key = number.to_le_bytes();
            let state = State::new(super::super::algorithm::Algorithm::Gcra);
            table.insert(hash(&key), &key, state, Timestamp(0), free).unwrap();
            let entries = table.len();
            assert!(entries < 1_000 || table.bytes() <= 56 * entries, "{} bytes of {entries}", table.bytes());
        }
        for number in 60_000..200_000_u64 {
            let key = (number - 60_000).to_le_bytes();
            if let Some(place) = table.find(hash(&key), &key) {
                table.remove(place);
            }
            let key = number.to_le_bytes();
            let state = State::new(super::super::algorithm::Algorithm::Gcra);
            table.insert(hash(&key), &key, state, Timestamp(0), free).unwrap();
        }
        assert!(table.bytes() <= 56 * table.len(), "{} bytes of {}", table.bytes(), table.len());
        for number in 140_000..200_000_u64 {
            let key = number.to_le_bytes();
            assert!(table.find(hash(&key), &key).is_some());
        }
    }
}
