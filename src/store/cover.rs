//! Marks in the memory store: what a bucket of an `escrow` rule spends of a window is noted outside of the
//! process before anybody is answered, so that a loss of the process costs two eighths of a share at most.
//!
//! A bucket is charged, and its mark is raised before the answer leaves ([`KeySlot::cover`]): a process that
//! is killed in between has admitted nothing. Eight notes for each bucket and window at most; see
//! [`crate::core::regions::escrow::window::marks`].

use super::escrowed::is_escrowed;
use super::evaluation::Evaluation;
use super::mark_notes::Noted;
use super::slot::{KeySlot, Named};
use super::slot_marks::{MarkedWindow, Spending};
use crate::core::algorithm::{Allowance, Verdict};
use crate::core::calendar::Windows;
use crate::core::regions::escrow::Ledger;
use crate::core::regions::escrow::window::marks::lowered_mark;
use crate::core::table::TablePlace;
use crate::core::time::Timestamp;
use crate::engine::port::{Charge, ChargeResult, HeldLimit};

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
        let of = MarkedWindow { hash: named.hash, key: named.key, window, windows };
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
        let of = MarkedWindow { hash: named.hash, key: named.key, window, windows };
        let marks = self.marks.as_ref().filter(|marks| marks.noted != Noted::Off)?;
        let first = marks.rule(&of)?.kept(window, windows)?;
        if !self.safety.spends_only_below_the_mark {
            return None;
        }
        let at = self.rights.find(named.hash, named.key.bytes());
        let ledger = at.and_then(|at| self.rights.get(at)).and_then(Ledger::as_window);
        let own = ledger.filter(|ledger| ledger.window == window).map_or(used, |ledger| ledger.spent(used));
        let burnt = match self.knows(named.key, window, windows) {
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
