//! The part of a store in memory that its daemon leaves to its next process: the buckets of `escrow` rules
//! with their rights, so that a restart in good order burns nothing.
//!
//! Nothing is charged or given after it was taken down ([`MemoryStore::keep`] seals the slots), and whoever
//! takes it in must have made sure that nobody can take it in once more. Buckets that it does not speak of
//! are not known: those of rules that were not `escrow` at the end, and those that find no room again.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::memory::MemoryStore;
use super::memory_part::MemoryPart;
use super::slot::{KeySlot, Named};
use super::slot_marks::bucket_of;
use crate::core::algorithm::State;
use crate::core::key::{Key, Shape};
use crate::core::regions::escrow::Ledger;
use crate::core::regions::escrow::window::lives::Breaks;
use crate::core::regions::escrow::window::marks::WindowMark;
use crate::core::table::{Table, WEIGHT_KEPT};
use crate::core::time::Timestamp;

/// Memories that are told apart. Rules of more burn.
const PARTS_MAX: usize = 8;

/// One entry of a table: its key, what is kept, and when it may be forgotten, in seconds.
type KeptEntry<T> = (Vec<u8>, T, u32);

/// The state that is left for the next process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptStore {
    parts: Vec<MemoryPart>,
    newest: Timestamp,
    /// When it was taken down.
    #[serde(default)]
    at: Timestamp,
    buckets: Vec<KeptEntry<State>>,
    rights: Vec<KeptEntry<Ledger>>,
    /// Of buckets in windows of which an earlier process knew only marks.
    #[serde(default)]
    marks: Vec<KeptEntry<WindowMark>>,
}

fn entries_of<T: Clone>(table: &Table<T>, wanted: &BTreeSet<u32>) -> Vec<KeptEntry<T>> {
    let of_rule = |key: &[u8]| Key::shape_of(key).is_some_and(|shape| wanted.contains(&shape.of_rule().0));
    table
        .entries()
        .filter(|(key, ..)| of_rule(key))
        .map(|(key, value, expiry)| (key.to_vec(), value.clone(), expiry))
        .collect()
}

impl MemoryStore {
    /// Takes down the buckets of rules of these shapes, and charges and gives nothing of `escrow` rules any
    /// more. `next` is above all shapes that were ever used.
    #[must_use]
    pub fn keep(&self, shapes: impl IntoIterator<Item = Shape>, next: u32, now: Timestamp) -> KeptStore {
        let wanted: BTreeSet<u32> = shapes.into_iter().map(|shape| shape.of_rule().0).collect();
        let mut kept = KeptStore { at: now, ..KeptStore::default() };
        let mut parts: Vec<MemoryPart> = Vec::new();
        self.each_slot(|slot| {
            slot.is_sealed = slot.safety.seals_what_is_left;
            kept.newest = kept.newest.max(slot.newest);
            kept.buckets.extend(entries_of(&slot.buckets, &wanted));
            kept.rights.extend(entries_of(&slot.rights, &wanted));
            if let Some(marks) = &slot.marks {
                kept.marks.extend(entries_of(marks.table(), &wanted));
            }
            if parts.is_empty() {
                parts = slot.parts(&wanted, next);
            }
        });
        // The memory that counts what came last counts what comes after, too.
        parts.truncate(PARTS_MAX);
        kept.parts = parts;
        kept
    }

    /// Goes on with what an earlier process has left, before anything is asked. Buckets that find no room are
    /// not known, nor are windows that began since: somebody else may have counted them.
    pub fn take_back(&self, kept: KeptStore) {
        let KeptStore { mut parts, newest, at, buckets, rights, marks } = kept;
        // A version that did not note when it ended lived at the newest instant that it counted.
        let at = if at > Timestamp(0) { at } else { newest };
        let begun = self.begun_at();
        let mut lost = BTreeSet::new();
        for (bytes, state, expiry) in buckets {
            let Some(key) = Key::from_bytes(&bytes) else { continue };
            let kept =
                self.with(&key, |slot, named| insert(&mut slot.buckets, named, (state, expiry), newest));
            if kept != Some(true) {
                lost.insert(key.shape().of_rule().0);
            }
        }
        for (bytes, ledger, expiry) in rights {
            let Some(key) = Key::from_bytes(&bytes) else { continue };
            let kept =
                self.with(&key, |slot, named| insert(&mut slot.rights, named, (ledger, expiry), newest));
            if kept != Some(true) {
                lost.insert(key.shape().of_rule().0);
            }
        }
        for (bytes, mark, expiry) in marks {
            let Some(key) = bucket_of(&bytes).and_then(|(bucket, _)| Key::from_bytes(bucket)) else {
                continue;
            };
            // Of a rule that lost a bucket only what was noted is known.
            if lost.contains(&key.shape().of_rule().0) {
                continue;
            }
            let kept = self.with(&key, |slot, named| {
                slot.marks.as_mut().is_none_or(|marks| marks.take_back(named.hash, &bytes, mark, expiry))
            });
            if kept != Some(true) {
                lost.insert(key.shape().of_rule().0);
            }
        }
        for part in &mut parts {
            part.shapes.retain(|shape| !lost.contains(shape));
            part.breaks.add(at, begun);
        }
        let parts: Arc<[MemoryPart]> = parts.into();
        self.each_slot(|slot| {
            slot.newest = slot.newest.max(newest);
            slot.earlier = Some(Arc::clone(&parts));
        });
    }
}

fn insert<T>(table: &mut Table<T>, named: Named<'_>, (value, expiry): (T, u32), now: Timestamp) -> bool {
    let key = named.key.bytes();
    if table.find(named.hash, key).is_some() {
        return false;
    }
    let Ok(inserted) = table.insert(named.hash, key, value, now, |_| false) else { return false };
    table.rate(inserted.place, Timestamp(u64::from(expiry).saturating_mul(1_000_000)), WEIGHT_KEPT);
    true
}

impl KeySlot {
    /// Nothing was spent before this memory began, nor before those that it goes on with.
    pub(super) fn know_all(&mut self) {
        self.known = Timestamp(0);
        let known = |part: &MemoryPart| MemoryPart { known: Timestamp(0), ..part.clone() };
        self.earlier = self.earlier.as_ref().map(|parts| parts.iter().map(known).collect());
    }

    /// The memories that know of these rules, the one first that counts rules that are new.
    fn parts(&self, wanted: &BTreeSet<u32>, next: u32) -> Vec<MemoryPart> {
        let earlier = self.earlier.iter().flat_map(|parts| parts.iter()).cloned();
        let own = MemoryPart {
            begun: self.begun,
            known: self.known,
            shapes: BTreeSet::new(),
            from: Some(0),
            breaks: Breaks::default(),
        };
        let mut left = wanted.clone();
        let mut parts: Vec<MemoryPart> = earlier.chain([own]).collect();
        for part in &mut parts {
            part.shapes = left.iter().copied().filter(|shape| part.knows(Shape(*shape))).collect();
            left.retain(|shape| !part.shapes.contains(shape));
        }
        // Rules that are new from here on are counted by the first memory that counted what was new so far.
        let mut counts_new = true;
        for part in &mut parts {
            let first = counts_new && part.from.is_some();
            counts_new &= !first;
            part.from = first.then_some(next);
        }
        parts.retain(|part| part.from.is_some() || !part.shapes.is_empty());
        parts
    }
}
