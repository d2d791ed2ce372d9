//! The marks of the buckets of one slot of the memory store.

use std::sync::Arc;

use smallvec::SmallVec;

use super::mark_notes::{MarkNotes, MarkedRules, Noted};
use crate::core::calendar::Windows;
use crate::core::key::Key;
use crate::core::regions::escrow::window::marks::{
    MarkNote, RuleMarks, UnknownWindows, WindowMark, are_marked, raised_mark,
};
use crate::core::regions::escrow::{EscrowSafety, RECOVERY_MARGIN};
use crate::core::table::{Table, TablePlace, WEIGHT_KEPT};
use crate::core::time::{Span, Timestamp};

/// So long a mark is kept when its window is over, as clocks go back.
const KEPT_FOR: Span = Span(2 * RECOVERY_MARGIN.0);

/// The marks of the buckets of one slot.
#[derive(Debug)]
pub(super) struct SlotMarks {
    notes: Arc<dyn MarkNotes>,
    pub(super) rules: Arc<MarkedRules>,
    /// Windows of which notes of earlier processes say nothing.
    unknown: Arc<UnknownWindows>,
    /// By key and window.
    marks: Table<WindowMark>,
    pub(super) noted: Noted,
    /// Marks of windows that were over by then may be forgotten.
    pub(super) swept: Timestamp,
}

type MarkKey = SmallVec<[u8; 80]>;

fn key_of(key: &Key, window: u64) -> MarkKey {
    let mut key = MarkKey::from_slice(key.bytes());
    key.extend_from_slice(&window.to_le_bytes());
    key
}

/// Splits the key of a mark into that of its bucket and the window.
pub(super) fn bucket_of(key: &[u8]) -> Option<(&[u8], u64)> {
    let (bucket, window) = key.split_last_chunk()?;
    Some((bucket, u64::from_le_bytes(*window)))
}

/// A bucket in one of its windows.
#[derive(Debug, Clone, Copy)]
pub(super) struct MarkedWindow<'k> {
    pub(super) hash: u64,
    pub(super) key: &'k Key,
    pub(super) window: u64,
    pub(super) windows: Windows,
}

impl MarkedWindow<'_> {
    fn note(&self, permits: u64, until: Timestamp) -> MarkNote {
        MarkNote::Mark { key: self.key.bytes().to_vec(), window: self.window, permits, until }
    }
}

/// How a bucket stands to its mark.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spending {
    pub(super) mark: u64,
    /// What earlier memories may have spent.
    pub(super) burnt: u64,
    /// What they may have spent and this one did.
    pub(super) spent: u64,
    /// What the region mints of a window of which it knows all.
    pub(super) share: u64,
}

impl SlotMarks {
    pub(super) fn new(notes: Arc<dyn MarkNotes>, unknown: Arc<UnknownWindows>, keys_max: usize) -> Self {
        let (rules, marks) = (Arc::default(), Table::new(keys_max));
        Self { notes, rules, unknown, marks, noted: Noted::Kept, swept: Timestamp(0) }
    }

    pub(super) fn rule(&self, of: &MarkedWindow<'_>) -> Option<&RuleMarks> {
        if self.rules.is_empty() || !are_marked(of.windows) {
            return None;
        }
        self.rules.get(&of.key.shape().of_rule().0)
    }

    fn find(&self, of: &MarkedWindow<'_>) -> Option<TablePlace> {
        if self.marks.is_empty() {
            return None;
        }
        self.marks.find(of.hash, &key_of(of.key, of.window))
    }

    pub(super) fn noted_of(&self, of: &MarkedWindow<'_>) -> Option<WindowMark> {
        self.marks.get(self.find(of)?).copied()
    }

    /// Returns what earlier memories may have spent in a window of which this one does not know all. `None`:
    /// anything.
    pub(super) fn burnt(&self, of: &MarkedWindow<'_>, safety: &EscrowSafety) -> Option<u64> {
        if self.unknown.contain(of.window, of.windows) {
            return None;
        }
        let first = self.rule(of)?.spent(of.window, of.windows, safety)?;
        Some(self.noted_of(of).map_or(first, |mark| mark.burnt))
    }

    /// The most that may be minted where marks cannot be raised: up to the last one.
    pub(super) fn most(&self, of: &MarkedWindow<'_>) -> Option<u64> {
        if self.noted != Noted::Stuck {
            return None;
        }
        let first = self.rule(of)?.kept(of.window, of.windows);
        self.noted_of(of).map(|mark| mark.permits).or(first)
    }

    /// Keeps a mark, if there is room for it.
    pub(super) fn keep(
        &mut self,
        of: &MarkedWindow<'_>,
        mark: WindowMark,
        until: Timestamp,
        now: Timestamp,
    ) -> Option<TablePlace> {
        // One that is over makes room.
        self.swept = self.swept.max(now);
        let key = key_of(of.key, of.window);
        let place = match self.marks.find(of.hash, &key) {
            Some(place) => place,
            None => self.marks.insert(of.hash, &key, mark, now, |_| false).ok()?.place,
        };
        *self.marks.get_mut(place)? = mark;
        self.marks.rate(place, until + KEPT_FOR, WEIGHT_KEPT);
        Some(place)
    }

    /// Raises a mark above what is spent. `false`: it cannot be noted, or there is no room to remember it.
    pub(super) fn raise(&mut self, of: &MarkedWindow<'_>, spending: Spending, now: Timestamp) -> bool {
        let Spending { mark, burnt, spent, share } = spending;
        let until = of.windows.end(of.window);
        // Before it is noted: what is noted and forgotten would be noted without end.
        let Some(place) = self.keep(of, WindowMark { permits: mark, burnt }, until, now) else {
            return false;
        };
        let permits = raised_mark(spent, share);
        self.noted = self.notes.note(&[of.note(permits, until)]);
        if let (Noted::Kept, Some(known)) = (self.noted, self.marks.get_mut(place)) {
            known.permits = permits;
        }
        self.noted != Noted::Stuck
    }

    /// Lowers a mark that is noted: it is kept to before it is noted.
    pub(super) fn lower(&mut self, of: &MarkedWindow<'_>, permits: u64) {
        let place = self.find(of).filter(|_| self.noted == Noted::Kept);
        let Some(known) = place.and_then(|place| self.marks.get_mut(place)) else { return };
        known.permits = permits;
        self.noted = self.notes.note(&[of.note(permits, of.windows.end(of.window))]);
    }

    /// All that still counts.
    pub(super) fn notes(&self, now: Timestamp) -> Vec<MarkNote> {
        let seconds = |expiry: u32| Timestamp(u64::from(expiry).saturating_mul(1_000_000));
        let entries = self.marks.entries().filter_map(|(key, mark, expiry)| {
            let (bucket, window) = bucket_of(key)?;
            let (permits, until) = (mark.permits, seconds(expiry));
            (until > now).then(|| MarkNote::Mark { key: bucket.to_vec(), window, permits, until })
        });
        entries.collect()
    }

    /// The marks of buckets, for the next process.
    pub(super) const fn table(&self) -> &Table<WindowMark> {
        &self.marks
    }

    pub(super) fn bytes(&self) -> usize {
        self.marks.bytes()
    }

    pub(super) fn sweep(&mut self, now: Timestamp, entries: usize) {
        self.swept = self.swept.max(now);
        self.marks.sweep(now, entries);
    }

    /// Goes on with what an earlier process knew exactly of a bucket that it left. `false`: there is no room.
    pub(super) fn take_back(&mut self, hash: u64, key: &[u8], mark: WindowMark, expiry: u32) -> bool {
        let expiry = Timestamp(u64::from(expiry).saturating_mul(1_000_000));
        let place = match self.marks.find(hash, key) {
            Some(place) => place,
            None => match self.marks.insert(hash, key, mark, Timestamp(0), |_| false) {
                Ok(inserted) => inserted.place,
                Err(_) => return false,
            },
        };
        if let Some(known) = self.marks.get_mut(place) {
            *known = mark;
        }
        self.marks.rate(place, expiry, WEIGHT_KEPT);
        true
    }
}
