//! Marks in the memory store: what a bucket of an `escrow` rule spends of a window is noted outside of the
//! process before anybody is answered, so that a loss of the process costs two eighths of a share at most.
//!
//! A bucket is charged, and its mark is raised before the answer leaves ([`KeySlot::cover`]): a process that
//! is killed in between has admitted nothing. Eight notes for each bucket and window at most; see
//! [`crate::core::regions::escrow::window::marks`].

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::escrowed::is_escrowed;
use super::evaluation::Evaluation;
use super::memory::MemoryStore;
use super::slot::{KeySlot, Named};
use crate::core::algorithm::{Allowance, Verdict};
use crate::core::calendar::Windows;
use crate::core::key::{Key, Shape};
use crate::core::regions::escrow::window::is_known;
use crate::core::regions::escrow::window::marks::{
    MarkNote, RememberedMarks, RuleMarks, WindowMark, are_marked, first_mark, lowered_mark, raised_mark,
};
use crate::core::regions::escrow::{EscrowSafety, Ledger, RECOVERY_MARGIN};
use crate::core::table::{Table, TablePlace, WEIGHT_KEPT};
use crate::core::time::{Span, Timestamp};
use crate::engine::port::{Charge, ChargeResult, ForeseenRule, HeldLimit};

/// So long a mark is kept when its window is over, as clocks go back.
const KEPT_FOR: Span = Span(2 * RECOVERY_MARGIN.0);
/// Notes that are written at once when they are begun anew.
const AT_ONCE: usize = 1_024;

/// What became of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// It outlives the process.
    Kept,
    /// Nothing is noted any more, and nothing that was is used: the next process burns.
    Off,
    /// Nothing can be noted, and what was noted cannot be taken away.
    Stuck,
}

/// A place outside of the process for notes of marks. Once it was [`Noted::Off`] or [`Noted::Stuck`] it stays
/// so.
pub trait MarkNotes: Send + Sync + std::fmt::Debug {
    /// Notes all of these, or says that it does not.
    fn note(&self, notes: &[MarkNote]) -> Noted;

    /// True if most of what is there counts no more.
    fn is_long(&self) -> bool;

    /// From here on notes are also written to a place of their own, where what still counts is to be written
    /// again. `false`: there is no such place.
    fn begin_anew(&self) -> bool;

    /// All that counts was noted since: what is older goes.
    fn end_anew(&self);
}

/// The first marks of rules, by the numbers of their shapes.
type MarkedRules = HashMap<u32, RuleMarks, foldhash::fast::RandomState>;

/// What the store as a whole knows of marks.
#[derive(Debug)]
pub(super) struct MarkBook {
    notes: Arc<dyn MarkNotes>,
    noted: Mutex<NotedRules>,
}

#[derive(Debug, Default)]
struct NotedRules {
    rules: Arc<MarkedRules>,
    identities: HashMap<u32, String>,
    /// Rules that this process has noted.
    own: BTreeSet<u32>,
    /// All shapes from here on are new to this process; `None`: no rule has been in force.
    next: Option<u32>,
    /// All shapes from here on are new to every process that noted anything.
    above: u32,
}

/// The marks of the buckets of one slot.
#[derive(Debug)]
pub(super) struct SlotMarks {
    notes: Arc<dyn MarkNotes>,
    rules: Arc<MarkedRules>,
    /// By key and window.
    marks: Table<WindowMark>,
    noted: Noted,
}

type MarkKey = SmallVec<[u8; 80]>;

fn key_of(named: Named<'_>, window: u64) -> MarkKey {
    let mut key = MarkKey::from_slice(named.key.bytes());
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
struct MarkedWindow<'k> {
    named: Named<'k>,
    window: u64,
    windows: Windows,
}

impl MarkedWindow<'_> {
    fn note(&self, permits: u64, until: Timestamp) -> MarkNote {
        MarkNote::Mark { key: self.named.key.bytes().to_vec(), window: self.window, permits, until }
    }
}

/// How a bucket stands to its mark.
#[derive(Debug, Clone, Copy)]
struct Spending {
    mark: u64,
    /// What earlier memories may have spent.
    burnt: u64,
    /// What they may have spent and this one did.
    spent: u64,
    /// What the region mints of a window of which it knows all.
    share: u64,
}

impl SlotMarks {
    fn new(notes: Arc<dyn MarkNotes>, keys_max: usize) -> Self {
        let (rules, marks) = (Arc::default(), Table::new(keys_max));
        Self { notes, rules, marks, noted: Noted::Kept }
    }

    fn rule(&self, of: &MarkedWindow<'_>) -> Option<&RuleMarks> {
        if self.rules.is_empty() || !are_marked(of.windows) {
            return None;
        }
        self.rules.get(&of.named.key.shape().of_rule().0)
    }

    fn find(&self, of: &MarkedWindow<'_>) -> Option<TablePlace> {
        if self.marks.is_empty() {
            return None;
        }
        self.marks.find(of.named.hash, &key_of(of.named, of.window))
    }

    fn noted_of(&self, of: &MarkedWindow<'_>) -> Option<WindowMark> {
        self.marks.get(self.find(of)?).copied()
    }

    /// Returns what earlier memories may have spent in a window of which this one does not know all. `None`:
    /// anything.
    fn burnt(&self, of: &MarkedWindow<'_>, safety: &EscrowSafety) -> Option<u64> {
        let first = self.rule(of)?.spent(of.window, of.windows, safety)?;
        Some(self.noted_of(of).map_or(first, |mark| mark.burnt))
    }

    /// The most that may be minted where marks cannot be raised: up to the last one.
    fn most(&self, of: &MarkedWindow<'_>) -> Option<u64> {
        if self.noted != Noted::Stuck {
            return None;
        }
        let first = self.rule(of)?.kept(of.window, of.windows);
        self.noted_of(of).map(|mark| mark.permits).or(first)
    }

    /// Keeps a mark, if there is room for it.
    fn keep(
        &mut self,
        of: &MarkedWindow<'_>,
        mark: WindowMark,
        until: Timestamp,
        now: Timestamp,
    ) -> Option<TablePlace> {
        let key = key_of(of.named, of.window);
        let place = match self.marks.find(of.named.hash, &key) {
            Some(place) => place,
            None => self.marks.insert(of.named.hash, &key, mark, now, |_| false).ok()?.place,
        };
        *self.marks.get_mut(place)? = mark;
        self.marks.rate(place, until + KEPT_FOR, WEIGHT_KEPT);
        Some(place)
    }

    /// Raises a mark above what is spent. `false`: it cannot be noted, or there is no room to remember it.
    fn raise(&mut self, of: &MarkedWindow<'_>, spending: Spending, now: Timestamp) -> bool {
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
    fn lower(&mut self, of: &MarkedWindow<'_>, permits: u64) {
        let place = self.find(of).filter(|_| self.noted == Noted::Kept);
        let Some(known) = place.and_then(|place| self.marks.get_mut(place)) else { return };
        known.permits = permits;
        self.noted = self.notes.note(&[of.note(permits, of.windows.end(of.window))]);
    }

    /// All that still counts.
    fn notes(&self, now: Timestamp) -> Vec<MarkNote> {
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

impl KeySlot {
    /// Returns what this region mints in a window of which `known` says whether this memory knows all: its
    /// share, less what an earlier one may have spent; nothing, if that may be anything.
    pub(super) fn minted_by_marks(
        &self,
        own: u64,
        known: bool,
        named: Named<'_>,
        (window, windows): (u64, Windows),
    ) -> u64 {
        let Some(marks) = &self.marks else { return if known { own } else { 0 } };
        let of = MarkedWindow { named, window, windows };
        let burnt = if known { Some(0) } else { marks.burnt(&of, &self.safety) };
        let Some(burnt) = burnt else { return 0 };
        marks.most(&of).map_or(own, |most| own.min(most)).saturating_sub(burnt)
    }

    /// Returns how a bucket stands to its mark where so much of it is used. `None`: it has none.
    fn spending<'k>(
        &self,
        held: &HeldLimit,
        named: Named<'k>,
        (window, used): (u64, u64),
    ) -> Option<(MarkedWindow<'k>, Spending)> {
        let windows = held.limit.windows();
        let of = MarkedWindow { named, window, windows };
        let marks = self.marks.as_ref().filter(|marks| marks.noted != Noted::Off)?;
        let first = marks.rule(&of)?.kept(window, windows)?;
        if !self.safety.spends_only_below_the_mark {
            return None;
        }
        let at = self.rights.find(named.hash, named.key.bytes());
        let ledger = at.and_then(|at| self.rights.get(at)).and_then(Ledger::as_window);
        let own = ledger.filter(|ledger| ledger.window == window).map_or(used, |ledger| ledger.spent(used));
        let burnt = match is_known(window, windows, self.known(named.key)) {
            true => 0,
            false => marks.burnt(&of, &self.safety).unwrap_or(0),
        };
        let before = if self.safety.marks_go_on_above_what_was_lost { burnt } else { 0 };
        let mark = marks.noted_of(&of).map_or(first, |mark| mark.permits);
        let share = u64::from(held.own());
        Some((of, Spending { mark, burnt, spent: before.saturating_add(own), share }))
    }

    /// Sees to it that so much may be used of a bucket in a window: raises its mark where it must. `false`:
    /// it may not.
    pub(super) fn cover(
        &mut self,
        held: &HeldLimit,
        named: Named<'_>,
        (window, used): (u64, u64),
        now: Timestamp,
    ) -> bool {
        let Some((of, spending)) = self.spending(held, named, (window, used)) else { return true };
        if spending.spent <= spending.mark {
            return true;
        }
        self.newest = self.newest.max(now);
        self.marks.as_mut().is_none_or(|marks| marks.raise(&of, spending, now))
    }

    /// Rights came from other regions: a mark far above what is spent would burn them with the process.
    pub(super) fn uncover(&mut self, held: &HeldLimit, named: Named<'_>, counted: (u64, u64)) {
        let Some((of, spending)) = self.spending(held, named, counted) else { return };
        if let (Some(lower), Some(marks)) =
            (lowered_mark(spending.mark, spending.spent, spending.share), &mut self.marks)
        {
            marks.lower(&of, lower);
        }
    }

    /// The same for a bucket that was charged, before anybody is told. What cannot be noted is denied, and
    /// stays charged.
    pub(super) fn cover_charge(
        &mut self,
        charge: &Charge<'_>,
        looked: &Evaluation,
        (place, named): (Option<TablePlace>, Named<'_>),
        counted: &mut ChargeResult,
    ) {
        let (Some(place), Some(Allowance::Window(view)), true) =
            (place, looked.view, is_escrowed(charge.rule))
        else {
            return;
        };
        let used = self.state(Some(place)).map_or(0, |state| {
            state.used_of(&looked.limit, looked.view.as_ref(), view.window, u64::from(view.budget))
        });
        if self.cover(&charge.held(), named, (view.window, used), looked.now) {
            return;
        }
        let retry = Some(charge.limit.window);
        counted.verdict = Verdict { admitted: false, remaining: 0, retry, ..counted.verdict };
        counted.degraded = true;
    }
}

impl MemoryStore {
    /// Keeps marks of what is spent, with what an earlier process noted. Before anything is asked, and before
    /// any rule is in force; what is `known` must have been noted again by then, as it is used once.
    pub fn keep_marks(&self, notes: &Arc<dyn MarkNotes>, known: &RememberedMarks) {
        self.each_slot(|slot| {
            let marks = SlotMarks::new(Arc::clone(notes), slot.buckets.keys_max());
            slot.marks = Some(Box::new(marks));
        });
        let mut rules: MarkedRules =
            known.rules().map(|(shape, _, firsts)| (shape.0, firsts.clone())).collect();
        for (bytes, window, permits, until) in known.marks() {
            let Some(key) = Key::from_bytes(bytes) else { continue };
            let kept = self.with(&key, |slot, named| {
                // Its own windows are not needed to name it.
                let of = MarkedWindow { named, window, windows: Windows::new(Span::ZERO, None) };
                let mark = WindowMark { permits, burnt: permits };
                slot.marks.as_mut().and_then(|marks| marks.keep(&of, mark, until, Timestamp(0)))
            });
            if kept.flatten().is_none() {
                // One that is not remembered may have spent anything.
                rules.remove(&key.shape().of_rule().0);
            }
        }
        let identities = known.rules().map(|(shape, identity, _)| (shape.0, identity.to_owned())).collect();
        let noted = NotedRules { identities, above: known.shapes().1, ..NotedRules::default() };
        let book = MarkBook { notes: Arc::clone(notes), noted: Mutex::new(noted) };
        self.put_marked(&mut book.noted.lock().unwrap_or_else(PoisonError::into_inner), rules);
        // One that is set stays.
        let _ = self.marks.set(book);
    }

    fn put_marked(&self, noted: &mut NotedRules, rules: MarkedRules) {
        noted.rules = Arc::new(rules);
        let rules = &noted.rules;
        self.each_slot(|slot| {
            if let Some(marks) = &mut slot.marks {
                marks.rules = Arc::clone(rules);
            }
        });
    }

    /// Notes the first marks of rules before they are in force, and forgets those of rules that keep to none.
    pub(super) fn note_rules(&self, foreseen: &[ForeseenRule], next: u32, now: Timestamp) {
        let Some(book) = self.marks.get() else { return };
        let mut noted = book.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = self.begun_at();
        let (mut rules, mut changed) = (noted.rules.as_ref().clone(), Vec::new());
        for rule in foreseen {
            let shape = rule.shape.0;
            let firsts = rules.get(&shape).cloned();
            let keeps = firsts.as_ref().is_some_and(|firsts| *firsts != RuleMarks::default());
            let firsts = match rule.share {
                None if keeps => RuleMarks::default(),
                None => continue,
                Some(_) if keeps && noted.own.contains(&shape) => continue,
                Some(share) => {
                    // Until now it may have counted without marks.
                    let is_new = noted.next.is_none_or(|next| shape >= next);
                    let since = if is_new || keeps { begun } else { now };
                    let mut firsts = firsts.unwrap_or_default();
                    firsts.begin(since, first_mark(share));
                    firsts
                }
            };
            rules.insert(shape, firsts);
            changed.push((rule.shape, rule.identity.clone(), rule.share.is_some()));
        }
        noted.next = Some(noted.next.unwrap_or(0).max(next));
        noted.above = noted.above.max(next);
        let notes: Vec<MarkNote> = changed
            .iter()
            .filter_map(|(shape, identity, _)| {
                let (identity, firsts) = (identity.clone(), rules.get(&shape.0)?.clone());
                Some(MarkNote::Rule { identity, shape: *shape, next, firsts })
            })
            .collect();
        if notes.is_empty() || book.notes.note(&notes) != Noted::Kept {
            return;
        }
        for (shape, identity, keeps) in changed {
            noted.identities.insert(shape.0, identity);
            match keeps {
                true => noted.own.insert(shape.0),
                false => noted.own.remove(&shape.0),
            };
        }
        self.put_marked(&mut noted, rules);
    }

    /// Nothing was spent before this memory began: marks hold for windows in progress, too.
    pub(super) fn begin_first_marks(&self) {
        let Some(book) = self.marks.get() else { return };
        let mut noted = book.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules = noted.rules.as_ref().clone();
        rules.values_mut().for_each(RuleMarks::begin_first);
        if book.notes.note(&rule_notes(&noted, &rules)) == Noted::Kept {
            self.put_marked(&mut noted, rules);
        }
    }

    /// Writes the notes anew once most of them count no more. Blocks.
    pub fn carry_marks_on(&self, now: Timestamp) {
        let Some(book) = self.marks.get() else { return };
        if !book.notes.is_long() || !book.notes.begin_anew() {
            return;
        }
        {
            let noted = book.noted.lock().unwrap_or_else(PoisonError::into_inner);
            book.notes.note(&rule_notes(&noted, &noted.rules));
        }
        // Under the slot's lock, as of two notes the later one counts.
        self.each_slot(|slot| {
            let notes = slot.marks.as_ref().map_or_else(Vec::new, |marks| marks.notes(now));
            for notes in notes.chunks(AT_ONCE) {
                book.notes.note(notes);
            }
        });
        book.notes.end_anew();
    }
}

fn rule_notes(noted: &NotedRules, rules: &MarkedRules) -> Vec<MarkNote> {
    let note = |(shape, firsts): (&u32, &RuleMarks)| MarkNote::Rule {
        identity: noted.identities.get(shape).cloned().unwrap_or_default(),
        shape: Shape(*shape),
        next: noted.above,
        firsts: firsts.clone(),
    };
    rules.iter().filter(|(_, firsts)| **firsts != RuleMarks::default()).map(note).collect()
}

#[cfg(test)]
mod tests;
