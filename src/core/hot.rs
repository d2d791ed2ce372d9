//! The buckets that were asked for most, lately: bounded counts of the heaviest, after the space-saving
//! algorithm.
//!
//! A table is a row of sets of eight places, and a key's hash names its set. A key that is in none of the
//! eight takes the place of the lightest and inherits its weight: the newcomer may have asked that often
//! before, and no more often. Its own counts begin at zero, so they are never too high. All counts halve
//! every [`HALF_LIFE`], and so speak of the last minute or so.
//!
//! Keys that share a set and 32 further bits of a keyed hash are counted as one.

use crate::algorithm::Counting;
use crate::calendar::Windows;
use crate::key::{Key, Shape};
use crate::rates::RequestSums;
use crate::time::{Span, Timestamp};

/// Time for which counts stand before they halve; the instants are the same in all tables.
pub const HALF_LIFE: Span = Span::from_secs(30);
/// Places of one set.
const PLACES: usize = 8;
/// Longest key whose bytes are kept. A longer one is counted, and its row names the rule alone.
pub const KEY_BYTES_MAX: usize = 512;
/// Rules of one table whose sums are kept apart once their buckets have no place. More: their decisions are
/// in the sum of all alone.
pub const RULES_MAX: usize = 1_024;
/// A denial within this time of the last one belongs to the same run.
const RUN_GAP: Span = Span::from_secs(60);
/// Halvings after which nothing is left of any count.
const HALVINGS_MAX: u64 = 63;

/// The effect of one decision on one bucket.
#[derive(Debug, Clone, Copy)]
pub struct HotCharge {
    /// True if the bucket said no.
    pub denied: bool,
    /// Permits that the bucket charged for the decision.
    pub taken: u64,
    /// Windows of the limit, which bound a run of denials.
    pub windows: Windows,
    /// The way in which the bucket counts: by window, by level or by places.
    pub counting: Counting,
}

/// The counts of late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HotSums {
    /// Requests decided, those that were denied included.
    pub requests: u64,
    /// Requests among them that were denied.
    pub denied: u64,
    /// Permits that the buckets charged for them.
    pub cost: u64,
}

impl HotSums {
    /// Adds others.
    pub const fn add(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.denied = self.denied.saturating_add(other.denied);
        self.cost = self.cost.saturating_add(other.cost);
    }

    const fn halve(&mut self, times: u32) {
        self.requests >>= times;
        self.denied >>= times;
        self.cost >>= times;
    }

    #[inline]
    fn count(&mut self, charge: &HotCharge) {
        self.requests = self.requests.wrapping_add(1);
        self.denied = self.denied.wrapping_add(charge.denied.into());
        // The numbers of one decision fit 33 bits: nothing wraps within a half-life.
        self.cost = self.cost.wrapping_add(charge.taken);
    }

    const fn is_none(self) -> bool {
        self.requests == 0 && self.denied == 0 && self.cost == 0
    }
}

/// Denials of one bucket that followed each other within its window, or within [`RUN_GAP`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenialRun {
    /// First denial of the run, by this daemon's clock.
    pub first: Timestamp,
    /// Newest denial of the run, by this daemon's clock.
    pub last: Timestamp,
}

/// One bucket and what was counted of it.
#[derive(Debug, Clone)]
pub struct HotBucket {
    /// The bucket. One that is longer than [`KEY_BYTES_MAX`] is its shape alone.
    pub key: Key,
    /// True if the key was too long to be kept.
    pub is_long: bool,
    /// Sums since the bucket got its place.
    pub sums: HotSums,
    /// Requests before that, lately: at most so many.
    pub missed_max: u64,
    /// Instant at which the bucket got its place; its counts began then.
    pub since: Timestamp,
    /// Newest run of denials; `None` before the first.
    pub run: Option<DenialRun>,
}

impl HotBucket {
    fn new(key: &Key, missed_max: u32, since: Timestamp) -> Self {
        let is_long = key.bytes().len() > KEY_BYTES_MAX;
        let key = if is_long { Key::from_identity(key.shape(), &[]) } else { key.copied() };
        Self { key, is_long, sums: HotSums::default(), missed_max: missed_max.into(), since, run: None }
    }

    fn deny(&mut self, charge: &HotCharge, now: Timestamp) {
        let same = |run: &DenialRun| {
            now.since(run.last) <= RUN_GAP
                || match charge.counting {
                    Counting::Window => charge.windows.index(now) == charge.windows.index(run.last),
                    Counting::Level | Counting::Concurrency => now.since(run.last) <= charge.windows.length(),
                }
        };
        let first = self.run.filter(same).map_or(now, |run| run.first);
        self.run = Some(DenialRun { first, last: now });
    }

    /// Bytes that it takes beside itself.
    fn heap_bytes(&self) -> usize {
        self.key.heap_bytes()
    }
}

/// Eight places, of which the used ones come first.
#[derive(Debug, Clone, Copy, Default)]
struct PlaceSet {
    /// 32 bits of each key's hash; zero: free.
    tags: [u32; PLACES],
    /// A lower bound of each key's requests, lately. The lightest makes room.
    weights: [u32; PLACES],
    /// Places of the keys in the table that has the rest.
    at: [u16; PLACES],
}

#[derive(Debug, Clone, Copy, Default)]
struct RuleSums {
    shape: Shape,
    sums: HotSums,
}

/// Counts of the heaviest buckets of one part of all keys.
///
/// In this order, behind its lock: what every decision writes shares the lock's cache line.
#[derive(Debug)]
#[repr(C)]
pub struct HotTable {
    /// Begin of the newest half-life, in microseconds.
    half: u64,
    /// Sums of requests since the start; they never halve.
    requests: RequestSums,
    /// Sets of places, chosen by a key's hash; their number is a power of two.
    sets: Box<[PlaceSet]>,
    /// Counted buckets; their number grows as places are used, up to all of them.
    buckets: Vec<HotBucket>,
    /// Counts without a place, or of buckets that lost theirs: by shape; grows as rules are used.
    gone: Vec<RuleSums>,
    /// The same of rules that found no room there.
    unlisted: HotSums,
    replaced_total: u64,
    unlisted_total: u64,
}

impl HotTable {
    /// A table of this many buckets, rounded up to a power of two; at least eight, at most 65,536.
    #[must_use]
    pub fn new(buckets_max: usize) -> Self {
        let sets = (buckets_max.clamp(PLACES, 1 << 16) / PLACES).next_power_of_two();
        Self {
            half: 0,
            requests: RequestSums::default(),
            sets: vec![PlaceSet::default(); sets].into(),
            buckets: Vec::new(),
            gone: Vec::new(),
            unlisted: HotSums::default(),
            replaced_total: 0,
            unlisted_total: 0,
        }
    }

    /// Counts what a decision did to the bucket `key`. Reads the lower 48 bits of `hash`, the key's.
    #[inline]
    pub fn count(&mut self, hash: u64, key: &Key, charge: &HotCharge, now: Timestamp) {
        self.age(now);
        let (set, tag) = self.place(hash);
        let Some(set) = self.sets.get_mut(set) else { return };
        // A costly request weighs more, so that few of them keep a place beside many cheap ones.
        let weight = 1 + (charge.taken | 1).ilog2();
        let at = match set.tags.iter().position(|own| *own == tag) {
            Some(place) => {
                set.weights[place] = set.weights[place].saturating_add(weight);
                usize::from(set.at[place])
            }
            None => {
                let new = NewPlace { tag, weight, key, now };
                let Some(TakenPlace { at, gone }) = new.take(set, &mut self.buckets) else { return };
                if let Some(gone) = gone {
                    // One that nobody asked for lately made room for nothing.
                    self.replaced_total += u64::from(!gone.sums.is_none());
                    self.keep(gone.shape, gone.sums);
                }
                at
            }
        };
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        bucket.sums.count(charge);
        if charge.denied {
            bucket.deny(charge, now);
        }
    }

    /// Counts a decision of a rule that has no buckets.
    pub fn count_without_bucket(&mut self, rule: Shape, denied: bool, now: Timestamp) {
        self.age(now);
        self.keep(rule, HotSums { requests: 1, denied: denied.into(), cost: 0 });
    }

    /// Adds to the sums of requests what a decision added to them.
    #[inline]
    pub const fn count_requests(&mut self, more: RequestSums) {
        self.requests.add(more);
    }

    /// Sums of requests since the start.
    #[must_use]
    pub const fn requests(&self) -> RequestSums {
        self.requests
    }

    /// Keeps what was counted of no bucket, or of one that made room.
    fn keep(&mut self, rule: Shape, sums: HotSums) {
        if sums.is_none() {
            return;
        }
        let index = rule.place(RULES_MAX);
        if index >= self.gone.len() {
            self.gone.resize(index + 1, RuleSums::default());
        }
        let Some(known) = self.gone.get_mut(index) else { return };
        if known.shape != rule && !known.sums.is_none() {
            self.unlisted.add(sums);
            self.unlisted_total += sums.requests;
            return;
        }
        known.shape = rule;
        known.sums.add(sums);
    }

    #[inline]
    fn place(&self, hash: u64) -> (usize, u32) {
        let [a, b, c, d, e, f, ..] = hash.to_le_bytes();
        let set = usize::from(u16::from_le_bytes([e, f])) & (self.sets.len() - 1);
        (set, u32::from_le_bytes([a, b, c, d]).max(1))
    }

    /// Halves all counts as often as is due.
    #[inline]
    fn age(&mut self, now: Timestamp) {
        if now.micros().wrapping_sub(self.half) >= HALF_LIFE.micros() {
            self.halve(now);
        }
    }

    /// A clock that is set back halves nothing. Nor does a decision that ran at the same time as the first of
    /// a half-life, with an older time.
    #[cold]
    fn halve(&mut self, now: Timestamp) {
        let (half, own) = (now.micros() / HALF_LIFE.micros(), self.half / HALF_LIFE.micros());
        if half + 1 == own {
            return;
        }
        self.half = half * HALF_LIFE.micros();
        let times = u32::try_from(half.saturating_sub(own).min(HALVINGS_MAX)).unwrap_or(0);
        for weight in self.sets.iter_mut().flat_map(|set| &mut set.weights) {
            *weight = weight.checked_shr(times).unwrap_or(0);
        }
        for bucket in &mut self.buckets {
            bucket.sums.halve(times);
            bucket.missed_max >>= times;
        }
        for rule in &mut self.gone {
            rule.sums.halve(times);
        }
        self.unlisted.halve(times);
    }

    /// Every bucket that has a place, also where nothing is left of its counts.
    pub fn buckets(&mut self, now: Timestamp) -> impl Iterator<Item = &HotBucket> {
        self.age(now);
        self.buckets.iter()
    }

    /// The bucket with this key, if it has a place.
    pub fn find(&mut self, hash: u64, key: &Key, now: Timestamp) -> Option<&HotBucket> {
        self.age(now);
        let (set, tag) = self.place(hash);
        let set = self.sets.get(set)?;
        let place = set.tags.iter().position(|own| *own == tag)?;
        self.buckets.get(usize::from(set.at[place])).filter(|bucket| bucket.is_long || bucket.key == *key)
    }

    /// Sums by rule, a rule perhaps several times; and of all rules that have none of their own.
    pub fn sums(&mut self, now: Timestamp, mut each: impl FnMut(Shape, HotSums)) -> HotSums {
        self.age(now);
        self.gone.iter().filter(|rule| !rule.sums.is_none()).for_each(|rule| each(rule.shape, rule.sums));
        self.buckets.iter().for_each(|bucket| each(bucket.key.shape().of_rule(), bucket.sums));
        self.unlisted
    }

    /// Buckets that made room for others, since the start.
    #[must_use]
    pub const fn replaced_total(&self) -> u64 {
        self.replaced_total
    }

    /// Decisions that are in the sum of no rule, since the start.
    #[must_use]
    pub const fn unlisted_total(&self) -> u64 {
        self.unlisted_total
    }

    /// Bytes allocated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let keys: usize = self.buckets.iter().map(HotBucket::heap_bytes).sum();
        size_of_val(&*self.sets)
            + self.buckets.capacity() * size_of::<HotBucket>()
            + self.gone.capacity() * size_of::<RuleSums>()
            + keys
    }
}

/// A key that has no place yet.
struct NewPlace<'a> {
    tag: u32,
    weight: u32,
    key: &'a Key,
    now: Timestamp,
}

/// The place that a key has now.
struct TakenPlace {
    at: usize,
    /// The counts of the key that was there before, if any.
    gone: Option<RuleSums>,
}

impl NewPlace<'_> {
    /// Takes a free place, or that of the lightest. `None`: the table cannot name so many.
    fn take(self, set: &mut PlaceSet, buckets: &mut Vec<HotBucket>) -> Option<TakenPlace> {
        // The used places come first.
        if set.tags[PLACES - 1] == 0 {
            let free = set.tags.iter().position(|own| *own == 0)?;
            let at = buckets.len();
            set.at[free] = u16::try_from(at).ok()?;
            set.tags[free] = self.tag;
            set.weights[free] = self.weight;
            buckets.push(HotBucket::new(self.key, 0, self.now));
            return Some(TakenPlace { at, gone: None });
        }
        let (mut place, mut lightest) = (0, set.weights[0]);
        for (other, weight) in set.weights.iter().enumerate().skip(1) {
            if *weight < lightest {
                (place, lightest) = (other, *weight);
            }
        }
        set.tags[place] = self.tag;
        set.weights[place] = lightest.saturating_add(self.weight);
        let at = usize::from(set.at[place]);
        let bucket = buckets.get_mut(at)?;
        let gone = RuleSums { shape: bucket.key.shape().of_rule(), sums: bucket.sums };
        *bucket = HotBucket::new(self.key, lightest, self.now);
        Some(TakenPlace { at, gone: Some(gone) })
    }
}

/// For how long counts have been gathered at `now` that began at `began`, with each past time halved as the
/// counts of that time are: a steady rate is a count divided by it.
#[must_use]
pub fn span_of(began: Timestamp, now: Timestamp) -> Span {
    let half = HALF_LIFE.micros();
    let (mut start, mut end) = (now.micros() / half * half, now.micros());
    let mut span = 0_u64;
    for halvings in 0..=HALVINGS_MAX {
        span += end.saturating_sub(start.max(began.micros())) >> halvings;
        if start <= began.micros() {
            break;
        }
        (end, start) = (start, start.saturating_sub(half));
    }
    Span(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins an hour, and a half-life.
    const START: Timestamp = Timestamp(72_000_000_000);

    fn key(name: &str) -> Key {
        Key::new(Shape(8), [name])
    }

    fn charge(denied: bool, taken: u64) -> HotCharge {
        let (windows, counting) = (Span::from_secs(3_600).into(), Counting::Window);
        HotCharge { denied, taken, windows, counting }
    }

    fn after(secs: u64) -> Timestamp {
        START + Span::from_secs(secs)
    }

    fn rules(table: &mut HotTable, now: Timestamp) -> Vec<(Shape, HotSums)> {
        let mut all = Vec::new();
        table.sums(now, |shape, sums| all.push((shape, sums)));
        all
    }

    #[test]
    fn what_every_count_touches_fits_a_cache_line_with_the_lock() {
        assert!(size_of::<u64>() + std::mem::offset_of!(HotTable, buckets) <= 64);
    }

    #[test]
    fn a_bucket_is_counted_and_halves_with_time() {
        let mut table = HotTable::new(8);
        for number in 0..10 {
            table.count(7, &key("a"), &charge(number % 2 == 0, 3), after(0));
        }
        let sums = |table: &mut HotTable, now| table.find(7, &key("a"), now).map(|own| own.sums);
        let whole = HotSums { requests: 10, denied: 5, cost: 30 };
        assert_eq!(sums(&mut table, after(29)), Some(whole));
        assert_eq!(rules(&mut table, after(29)), [(Shape(8), whole)]);
        assert_eq!(sums(&mut table, after(30)), Some(HotSums { requests: 5, denied: 2, cost: 15 }));
        // A clock that is a little behind, or far, takes nothing away.
        assert_eq!(sums(&mut table, after(29)).map(|sums| sums.requests), Some(5));
        assert_eq!(sums(&mut table, Timestamp(1)).map(|sums| sums.requests), Some(5));
        assert_eq!(sums(&mut table, after(3_600 * 24)).map(|sums| sums.requests), Some(0));
        assert_eq!(table.buckets(after(3_600 * 24)).count(), 1, "it has its place until another needs it");
        assert_eq!(table.find(8, &key("b"), after(0)).map(|own| own.since), None);
    }

    #[test]
    fn a_newcomer_takes_the_lightest_place_and_says_what_it_may_have_missed() {
        let mut table = HotTable::new(8);
        for hash in 1..=8_u64 {
            for _ in 0..hash + 1 {
                table.count(hash, &key(&hash.to_string()), &charge(false, 1), after(0));
            }
        }
        assert_eq!(table.replaced_total(), 0);
        table.count(99, &key("new"), &charge(false, 1), after(1));
        assert!(table.find(1, &key("1"), after(1)).is_none(), "the lightest is gone");
        let new = table.find(99, &key("new"), after(1)).unwrap();
        assert_eq!((new.sums.requests, new.missed_max, new.since), (1, 2, after(1)));
        assert_eq!(table.replaced_total(), 1);
        let all: u64 = rules(&mut table, after(1)).iter().map(|(_, sums)| sums.requests).sum();
        assert_eq!(all, (2..=9).sum::<u64>() + 1, "nothing is lost from the sum");
    }

    #[test]
    fn few_costly_requests_keep_a_place_beside_many_cheap_ones() {
        let mut table = HotTable::new(8);
        table.count(1_000, &key("dear"), &charge(false, 100_000), after(0));
        for hash in 1..60_u64 {
            table.count(hash, &key(&hash.to_string()), &charge(false, 1), after(0));
        }
        let dear = table.find(1_000, &key("dear"), after(0)).map(|own| own.sums.cost);
        assert_eq!(dear, Some(100_000));
    }

    #[test]
    fn a_run_of_denials_ends_with_its_window_or_a_quiet_minute() {
        let mut table = HotTable::new(8);
        let mut deny = |secs, window, counting| {
            let charge = HotCharge { windows: Span::from_secs(window).into(), counting, ..charge(true, 0) };
            table.count(5, &key("a"), &charge, after(secs));
            let run = table.find(5, &key("a"), after(secs)).and_then(|own| own.run).unwrap();
            (run.first.since(START).secs_up(), run.last.since(START).secs_up())
        };
        assert_eq!(deny(10, 3_600, Counting::Window), (10, 10));
        assert_eq!(deny(2_000, 3_600, Counting::Window), (10, 2_000), "the same hour");
        assert_eq!(deny(3_590, 3_600, Counting::Window), (10, 3_590));
        assert_eq!(deny(3_610, 3_600, Counting::Window), (10, 3_610), "the next hour, but no quiet minute");
        assert_eq!(deny(7_300, 3_600, Counting::Window), (7_300, 7_300));
        assert_eq!(deny(7_350, 1, Counting::Level), (7_300, 7_350));
        assert_eq!(deny(7_420, 1, Counting::Level), (7_420, 7_420));
        assert_eq!(deny(7_520, 100, Counting::Level), (7_420, 7_520));
    }

    #[test]
    fn a_key_that_is_too_long_is_counted_without_its_bytes() {
        let mut table = HotTable::new(8);
        let long = key(&"x".repeat(KEY_BYTES_MAX));
        table.count(5, &long, &charge(true, 1), after(0));
        let found = table.find(5, &long, after(0)).unwrap();
        assert!(found.is_long && found.key.identity().is_empty());
        assert_eq!(found.key.shape(), Shape(8));
    }

    #[test]
    fn rules_without_room_are_in_the_sum_of_all_and_counted() {
        let mut table = HotTable::new(8);
        let other = Shape(8 + 8 * u32::try_from(RULES_MAX).unwrap());
        table.count_without_bucket(Shape(8), true, after(0));
        table.count_without_bucket(other, true, after(0));
        assert_eq!(rules(&mut table, after(0)).len(), 1);
        assert_eq!(table.sums(after(0), |_, _| {}).denied, 1);
        assert_eq!(table.unlisted_total(), 1);
        // Once the first is forgotten there is room.
        table.count_without_bucket(other, true, after(3_600));
        assert_eq!(
            rules(&mut table, after(3_600)).into_iter().map(|(shape, _)| shape).collect::<Vec<_>>(),
            [other]
        );
    }

    #[test]
    fn a_steady_rate_is_a_count_divided_by_its_span() {
        let mut table = HotTable::new(8);
        let began = after(11);
        for tenth in 0..4_000_u64 {
            let now = began + Span::from_millis(100 * tenth);
            table.count(7, &key("a"), &charge(false, 1), now);
            let requests = table.find(7, &key("a"), now).map_or(0, |own| own.sums.requests);
            let expected = span_of(began, now).millis_up() / 100 + 1;
            assert!(requests.abs_diff(expected) <= 4, "{requests} {expected} after {tenth}");
        }
    }
}
