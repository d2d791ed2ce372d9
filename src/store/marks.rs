//! The marks of a store in memory as a whole: rules that keep to them, what an earlier process noted, and
//! notes that are written anew.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::mark_notes::{MarkBook, MarkNotes, MarkedRules, Noted, NotedRules};
use super::memory::MemoryStore;
use super::slot_marks::{MarkedWindow, SlotMarks};
use crate::core::calendar::Windows;
use crate::core::key::{Key, Shape};
use crate::core::regions::escrow::window::marks::{
    MarkNote, RememberedMarks, RuleMarks, WindowMark, first_mark,
};
use crate::core::time::{Span, Timestamp};
use crate::engine::port::ForeseenRule;

/// Rules that are remembered beside those of the set in force. The windows of more burn.
const OTHERS_MAX: usize = 1_000;
/// Notes that are written at once when they are begun anew.
const AT_ONCE: usize = 1_024;

/// The oldest of the rules that are not in force, where there are too many.
fn too_many(rules: &MarkedRules, in_force: &BTreeSet<u32>) -> Vec<u32> {
    let is_other =
        |shape: &u32, firsts: &RuleMarks| !in_force.contains(shape) && *firsts != RuleMarks::default();
    let others = rules.iter().filter(|(shape, firsts)| is_other(shape, firsts)).map(|(shape, _)| *shape);
    let mut others: Vec<u32> = others.collect();
    others.sort_unstable();
    others.truncate(others.len().saturating_sub(OTHERS_MAX));
    others
}

impl MemoryStore {
    /// Keeps marks of what is spent, with what an earlier process noted. Before anything is asked, and before
    /// any rule is in force; what is `known` must have been noted again by then, as it is used once.
    pub fn keep_marks(&self, notes: &Arc<dyn MarkNotes>, known: &RememberedMarks) {
        let unknown = Arc::new(known.unknown().clone());
        self.each_slot(|slot| {
            let marks = SlotMarks::new(Arc::clone(notes), Arc::clone(&unknown), slot.buckets.keys_max());
            slot.marks = Some(Box::new(marks));
        });
        let mut rules: MarkedRules =
            known.rules().map(|(shape, _, firsts)| (shape.0, firsts.clone())).collect();
        for (bytes, window, permits, until) in known.marks() {
            let Some(key) = Key::from_bytes(bytes) else { continue };
            let kept = self.with(&key, |slot, named| {
                // Its own windows are not needed to name it.
                let of = MarkedWindow {
                    hash: named.hash,
                    key: named.key,
                    window,
                    windows: Windows::new(Span::ZERO, None),
                };
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
        let book = MarkBook { notes: Arc::clone(notes), noted: Mutex::new(noted), unknown };
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
        let in_force: BTreeSet<u32> = foreseen.iter().map(|rule| rule.shape.0).collect();
        for shape in too_many(&rules, &in_force) {
            rules.insert(shape, RuleMarks::default());
            let identity = noted.identities.get(&shape).cloned().unwrap_or_default();
            changed.push((Shape(shape), identity, false));
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
        rules.retain(|shape, firsts| in_force.contains(shape) || *firsts != RuleMarks::default());
        noted.identities.retain(|shape, _| rules.contains_key(shape));
        self.put_marked(&mut noted, rules);
    }

    /// Nothing was spent before this memory began: marks hold for windows in progress, too.
    pub(super) fn begin_first_marks(&self) {
        let Some(book) = self.marks.get() else { return };
        let mut noted = book.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules = noted.rules.as_ref().clone();
        rules.values_mut().for_each(RuleMarks::begin_first);
        if book.notes.note(&noted.notes(&rules)) == Noted::Kept {
            self.put_marked(&mut noted, rules);
        }
    }

    /// Notes that the process lives, and writes the notes anew once most of them count no more. Blocks.
    pub fn carry_marks_on(&self, now: Timestamp) {
        let Some(book) = self.marks.get() else { return };
        if book.noted.lock().unwrap_or_else(PoisonError::into_inner).rules.is_empty() {
            return;
        }
        // Of windows that begin later the next process knows nothing.
        book.notes.note(&[MarkNote::Alive(now)]);
        if !book.notes.is_long() || !book.notes.begin_anew() {
            return;
        }
        {
            let noted = book.noted.lock().unwrap_or_else(PoisonError::into_inner);
            book.notes.note(&noted.notes(&noted.rules));
        }
        let mut pruned = now;
        // Under the slot's lock, as of two notes the later one counts.
        self.each_slot(|slot| {
            let notes = slot.marks.as_ref().map_or_else(Vec::new, |marks| marks.notes(now));
            pruned = slot.marks.as_ref().map_or(pruned, |marks| pruned.max(marks.swept));
            for notes in notes.chunks(AT_ONCE) {
                book.notes.note(notes);
            }
        });
        let unknown = book.unknown.notes().chain([MarkNote::Pruned(pruned), MarkNote::Alive(now)]);
        book.notes.note(&unknown.collect::<Vec<_>>());
        book.notes.end_anew();
    }
}

#[cfg(test)]
mod tests;
