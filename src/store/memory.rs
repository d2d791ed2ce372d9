//! The memory store: every bucket of this daemon, in slots that are locked one decision at a time.
//!
//! A decision takes the locks of the slots it touches in ascending order, asks all its buckets, and then
//! charges all or none. Nothing waits here but for another decision's few hundred nanoseconds, so
//! [`Store::try_decide`] always answers.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::{SmallVec, smallvec};

use super::decision::Decision;
use super::mark_notes::MarkBook;
use super::slot::{HeldAllowance, KeySlot, Named};
use super::spread::Spread;
use crate::core::algorithm::{Allowance, Limit, RegionUse};
use crate::core::key::Key;
use crate::core::regions::escrow::{EscrowSafety, StepRequest, StepResult};
use crate::core::ruleset::Compiled;
use crate::core::time::Timestamp;
use crate::engine::port::{
    Answer, BucketInfo, Charge, ChargeResult, ForeseenRule, HeldLimit, Intent, Later, Outcome, Store,
    StoreLen,
};

/// Buckets in memory, bounded.
///
/// When full, a new key takes the place of the least used bucket of a sample. A bucket at its limit is never
/// forgotten before it expires; where a sample holds only such, the new key's charge is answered by its
/// rule's `on_failure`.
#[derive(Debug)]
pub struct MemoryStore {
    slots: Box<[Mutex<KeySlot>]>,
    spread: Spread,
    keys_max: usize,
    pub(super) marks: OnceLock<MarkBook>,
}

fn locked(slot: &Mutex<KeySlot>) -> MutexGuard<'_, KeySlot> {
    // No slot is left half changed: a decision that panicked has at worst not charged.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// A store for at most `keys_max` buckets (at least 1), spread over slots by their keys' hashes.
    #[must_use]
    pub fn new(keys_max: usize) -> Self {
        let keys_max = keys_max.max(1);
        let spread = Spread::new(keys_max);
        let slots = spread.capacities(keys_max).map(|keys_max| Mutex::new(KeySlot::new(keys_max))).collect();
        Self { slots, spread, keys_max, marks: OnceLock::new() }
    }

    /// Remembers nothing from before `now`: `escrow` rules burn what they cannot know of.
    #[must_use]
    pub fn begun(self, now: Timestamp) -> Self {
        for slot in &self.slots {
            let mut slot = locked(slot);
            (slot.begun, slot.known) = (now, now);
        }
        self
    }

    /// The same with some rules of `escrow` switched off, to see that it is noticed.
    #[doc(hidden)]
    #[must_use]
    pub fn with_safety(self, safety: EscrowSafety) -> Self {
        for slot in &self.slots {
            locked(slot).safety = safety;
        }
        self
    }

    /// When this memory began.
    pub(super) fn begun_at(&self) -> Timestamp {
        self.slots.first().map_or(Timestamp(0), |slot| locked(slot).begun)
    }

    fn named<'a>(&self, key: &'a Key) -> (usize, Named<'a>) {
        let (slot, hash) = self.spread.place(key);
        (slot, Named { hash, key })
    }

    /// Does something with each slot, one after the other.
    pub(super) fn each_slot(&self, mut work: impl FnMut(&mut KeySlot)) {
        for slot in &self.slots {
            work(&mut locked(slot));
        }
    }

    pub(super) fn with<T>(&self, key: &Key, work: impl FnOnce(&mut KeySlot, Named<'_>) -> T) -> Option<T> {
        let (slot, named) = self.named(key);
        let mut slot = self.slots.get(slot).map(locked)?;
        Some(work(&mut slot, named))
    }

    /// Returns what a bucket holds for `rule`; `None` if neither it nor a view of it is there.
    #[must_use]
    pub fn info(&self, rule: &Compiled, key: &Key, held: HeldLimit, now: Timestamp) -> Option<BucketInfo> {
        self.with(key, |slot, named| slot.info(rule, &held, named, now)).flatten()
    }

    /// Forgets a bucket, so that it counts from zero. `false`: it was not there.
    pub fn reset(&self, key: &Key) -> bool {
        self.with(key, |slot, named| slot.reset(named)).unwrap_or(false)
    }

    /// Panics with the slot's lock held.
    #[cfg(test)]
    pub(super) fn poison(&self, key: &Key) {
        self.with(key, |_, _| panic!("while deciding"));
    }

    /// Bytes allocated for everything but the keys and the logs' entries.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let tables: usize = self.slots.iter().map(|slot| locked(slot).bytes()).sum();
        tables + self.slots.len() * size_of::<Mutex<KeySlot>>()
    }

    /// Bytes of the logs' entries and of the holders of places, in all buckets together. Bounded as the keys
    /// are.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.slots.iter().map(|slot| locked(slot).heap()).sum()
    }

    /// The common case: one charge, one lock, nothing to be undone.
    ///
    /// An outcome is long: it is made where [`Store::try_decide`] answers, and moved nowhere.
    #[inline]
    fn decide_one(&self, charge: &Charge<'_>, intent: Intent, now: Timestamp) -> Option<Outcome> {
        let (slot, named) = self.named(charge.key);
        let mut slot = self.slots.get(slot).map(locked)?;
        let looked = slot.judge(charge, named, 0, now);
        let charges = looked.fits() || charge.cost.is_report();
        let mut counted = if intent == Intent::Ask {
            slot.uncharged(charge, &looked, named)
        } else if !charges {
            let paid = slot.pay(charge, &looked);
            ChargeResult { paid, ..slot.uncharged(charge, &looked, named) }
        } else {
            let place = match looked.place {
                place if charge.cost.taken() == 0 => place,
                place if !slot.may_grow(charge, place, now, |_| false) => None,
                None => slot.make(charge, named, now, |_| false),
                place => place,
            };
            slot.charged(charge, &looked, place, named)
        };
        if charge.rule.rule.penalty.is_some() {
            slot.punish(charge, &looked, named, (intent, now), &mut counted);
        }
        let admitted = counted.verdict.admitted || !charge.enforced;
        Some(Outcome { admitted, counted: smallvec![counted] })
    }

    fn decide_many(&self, charges: &[Charge<'_>], intent: Intent, now: Timestamp) -> Outcome {
        let named: SmallVec<[(usize, Named<'_>); 4]> =
            charges.iter().map(|charge| self.named(charge.key)).collect();
        let mut wanted: SmallVec<[usize; 4]> = named.iter().map(|(slot, _)| *slot).collect();
        // In one order for everyone, so that no two decisions wait for each other.
        wanted.sort_unstable();
        wanted.dedup();
        let lock = |index: &usize| Some((*index, self.slots.get(*index).map(locked)?));
        let mut slots: SmallVec<[_; 4]> = wanted.iter().filter_map(lock).collect();
        Decision::look(charges, &named, &mut slots, now).settle(intent)
    }
}

impl Store for MemoryStore {
    fn answers_at_once(&self) -> bool {
        true
    }

    fn try_decide(&self, charges: &[Charge<'_>], intent: Intent, now: Timestamp) -> Option<Outcome> {
        match charges {
            [charge] => self.decide_one(charge, intent, now),
            _ => Some(self.decide_many(charges, intent, now)),
        }
    }

    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], intent: Intent, now: Timestamp) -> Later<'a, Outcome> {
        Box::pin(async move {
            self.try_decide(charges, intent, now)
                .unwrap_or_else(|| Outcome { admitted: false, counted: SmallVec::new() })
        })
    }

    fn bucket<'a>(
        &'a self,
        rule: &'a Compiled,
        key: &'a Key,
        held: HeldLimit,
        now: Timestamp,
    ) -> Later<'a, Option<BucketInfo>> {
        Box::pin(std::future::ready(self.info(rule, key, held, now)))
    }

    fn set_allowance(
        &self,
        rule: &Compiled,
        key: &Key,
        allowance: Allowance,
        error_bound: u64,
        now: Timestamp,
    ) {
        let held = HeldAllowance { view: allowance, error_bound };
        self.with(key, |slot, named| slot.set_allowance(rule, named, held, now));
    }

    fn reset<'a>(&'a self, _: &'a Compiled, key: &'a Key) -> Later<'a, Option<bool>> {
        Box::pin(std::future::ready(Some(Self::reset(self, key))))
    }

    fn release_reserved(&self, charge: &Charge<'_>, now: Timestamp) -> Option<ChargeResult> {
        self.with(charge.key, |slot, named| slot.release_reserved(charge, named, now))
    }

    fn debit(&self, rule: &Compiled, key: &Key, limit: Limit, permits: u64, now: Timestamp) {
        self.with(key, |slot, named| slot.debit((rule, &limit), named, permits, now));
    }

    fn restore(&self, rule: &Compiled, key: &Key, limit: Limit, known: RegionUse, now: Timestamp) {
        self.with(key, |slot, named| slot.restore((rule, &limit), named, &known, now));
    }

    fn rights<'a>(
        &'a self,
        rule: &'a Compiled,
        key: &'a Key,
        held: HeldLimit,
        ask: &'a StepRequest,
        now: Timestamp,
    ) -> Answer<'a, Option<StepResult>> {
        Answer::Now(self.with(key, |slot, named| slot.rights(rule, &held, named, ask, now)).flatten())
    }

    fn is_new(&self) -> Answer<'_, Option<bool>> {
        Answer::Now(Some(true))
    }

    fn begin_first(&self, _: u64) -> Answer<'_, bool> {
        self.begin_first_marks();
        for slot in &self.slots {
            locked(slot).know_all();
        }
        Answer::Now(true)
    }

    fn keeps_marks(&self) -> bool {
        self.marks.get().is_some()
    }

    fn foresee(&self, rules: &[ForeseenRule], next: u32, now: Timestamp) {
        self.note_rules(rules, next, now);
    }

    fn sweep(&self, now: Timestamp) {
        for slot in &self.slots {
            locked(slot).sweep(now);
        }
    }

    fn len(&self) -> StoreLen {
        let mut len = StoreLen { keys_max: self.keys_max, ..StoreLen::default() };
        for slot in &self.slots {
            let slot = locked(slot);
            let (evicted, full) = slot.losses();
            len.keys += slot.len();
            len.evicted += evicted;
            len.full += full;
        }
        len
    }
}
