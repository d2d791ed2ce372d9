//! One slot of the memory store: the buckets and views of a part of the keys, and what one charge means to
//! them. Whoever holds the slot's lock is alone with it; deciding over several slots is [`super::memory`]'s.

use std::sync::Arc;

use super::escrowed::{is_escrowed, paying};
use super::evaluation::Evaluation;
use super::memory_part::MemoryPart;
use super::newcomers::Newcomers;
use super::slot_marks::SlotMarks;
use crate::core::algorithm::{Algorithm, Allowance, Counting, Limit, RegionUse, State, Verdict};
use crate::core::hold::{Hold, HoldStep};
use crate::core::key::Key;
use crate::core::penalty::PenaltyRecord;
use crate::core::regions::escrow::{EscrowSafety, Ledger};
use crate::core::request::Cost;
use crate::core::reservation::ReservationFate;
use crate::core::reservation_notes::ReservationNotes;
use crate::core::rule::Mode;
use crate::core::ruleset::Compiled;
use crate::core::table::{Full, Table, TablePlace, WEIGHT_KEPT};
use crate::core::time::{Span, Timestamp};
use crate::engine::port::{BucketInfo, Charge, ChargeResult, HeldLimit};

/// Entries of each table that one sweep looks at.
const SWEEP_ENTRIES: usize = 256;
/// How much a view weighs: all alike, so that the one that ends soonest goes first.
const VIEW_WEIGHT: u8 = 0;

/// What the world leaves of one bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldAllowance {
    pub(super) view: Allowance,
    pub(super) error_bound: u64,
}

/// A part of the keys.
#[derive(Debug)]
pub(super) struct KeySlot {
    pub(super) buckets: Table<State>,
    /// Apart from the buckets, since few have one and one may come before the bucket does.
    views: Table<HeldAllowance>,
    /// Rights that may have moved; see [`super::rights`].
    pub(super) rights: Table<Ledger>,
    /// How much of a window may be spent; see [`super::cover`]. `None`: nothing outlives this process.
    pub(super) marks: Option<Box<SlotMarks>>,
    /// What is reserved; see [`super::reservations`].
    pub(super) reserved: Table<ReservationNotes>,
    /// What clients did that may bring a penalty; see [`super::penalties`].
    pub(super) penalties: Table<PenaltyRecord>,
    /// When this memory began, which names it.
    pub(super) begun: Timestamp,
    /// Nothing from before this instant is known; zero: nothing happened that is not.
    pub(super) known: Timestamp,
    /// What earlier processes of this daemon left: memories that know of some rules.
    pub(super) earlier: Option<Arc<[MemoryPart]>>,
    /// Nothing of `escrow` rules is charged or given any more: it was taken down for the next process.
    pub(super) is_sealed: bool,
    /// The newest instant at which something was forgotten: nothing may count before it that is exact.
    pub(super) newest: Timestamp,
    /// Rules of `escrow` that only simulations switch off.
    pub(super) safety: EscrowSafety,
    /// Those for whose buckets there is no room.
    pub(super) newcomers: Newcomers,
    evicted: u64,
    full: u64,
}

/// A key with its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) hash: u64,
    pub(super) key: &'a Key,
}

impl Named<'_> {
    /// True if both name the same bucket.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.hash == other.hash && self.key == other.key
    }
}

/// How much a bucket would be missed: the used part of its limit, and above all else if nothing more is
/// admitted.
pub(super) fn weight(limit: &Limit, remaining: u64) -> u8 {
    if remaining == 0 {
        return WEIGHT_KEPT;
    }
    let whole = u64::from(limit.permits.max(limit.burst)).max(1);
    let free = remaining.min(whole);
    u8::try_from((whole - free) * u64::from(WEIGHT_KEPT - 1) / whole).unwrap_or(WEIGHT_KEPT - 1)
}

/// True of a rule whose buckets keep more the more is charged: entries of a log, holders of places.
fn keeps_more(rule: &Compiled) -> bool {
    matches!(rule.rule.algorithm, Algorithm::SlidingLog | Algorithm::Concurrency)
}

/// True of a rule of which a refund gives back all that it asks for or is refused: where this region counts
/// less, another one charged it, and only there it can be given back. What was charged to rights that another
/// region lent counts here. Of a level under `gossip` each region counts what all used.
pub(in crate::store) fn refunds_whole(rule: &Compiled) -> bool {
    rule.rule.global.as_ref().is_some_and(|global| match global.mode {
        Mode::Gossip => rule.counting() == Counting::Window,
        Mode::Split | Mode::Escrow => true,
    })
}

/// True of a rule whose regions tell each other what they count.
fn is_gossiped(rule: &Compiled) -> bool {
    rule.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Gossip)
}

/// Permits that a look asks of the bucket beside what comes before it.
fn asked(cost: &Cost, held: bool) -> u64 {
    match cost {
        Cost::Reserve(_) if held => 0,
        Cost::Commit(_) => 0,
        cost => cost.taken(),
    }
}

impl KeySlot {
    /// A slot for at most `keys_max` buckets and as many views.
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            buckets: Table::weighing(keys_max, State::heap_bytes),
            views: Table::new(keys_max),
            rights: Table::new(keys_max),
            marks: None,
            reserved: Table::weighing(keys_max, ReservationNotes::heap_bytes),
            penalties: Table::new(keys_max),
            begun: Timestamp(0),
            known: Timestamp(0),
            earlier: None,
            is_sealed: false,
            newest: Timestamp(0),
            safety: EscrowSafety::ALL,
            newcomers: Newcomers::default(),
            evicted: 0,
            full: 0,
        }
    }

    /// Returns what is kept there.
    pub(super) fn state(&self, place: Option<TablePlace>) -> Option<&State> {
        self.buckets.get(place?)
    }

    fn held(&self, rule: &Compiled, named: Named<'_>) -> Option<&HeldAllowance> {
        if rule.rule.global.is_none() || self.views.is_empty() {
            return None;
        }
        self.views.get(self.views.find(named.hash, named.key.bytes())?)
    }

    /// Returns what the bucket would answer, if charges before this one in the same decision take `before`
    /// permits of it.
    pub(super) fn look(
        &self,
        charge: &Charge<'_>,
        named: Named<'_>,
        before: u64,
        now: Timestamp,
    ) -> Evaluation {
        let held = self.held(charge.rule, named);
        let (known, error_bound) = (held.map(|held| held.view), held.map_or(0, |held| held.error_bound));
        let algorithm = charge.rule.rule.algorithm;
        let mut view = Allowance::in_force(known.as_ref(), charge.first, algorithm, &charge.limit, now);
        let told = Allowance::is_told(view.as_ref(), known.as_ref());
        let (mut at, mut limit) = (now, charge.limit);
        let terms = is_escrowed(charge.rule)
            .then(|| self.terms(charge.rule, (&charge.held(), charge.whole), named, now));
        if let Some(terms) = &terms {
            (view, at, limit) = (terms.view, terms.now, terms.limit);
        }
        let place = self.buckets.find(named.hash, named.key.bytes());
        let notes = if charge.cost.is_reserved() { self.notes_at(named) } else { None };
        let state = self.counted((charge.rule, &charge.limit), named, at, self.state(place));
        let held_before = match charge.cost {
            Cost::Reserve(reserve) => self.reserved_by(notes, reserve.id),
            Cost::Hold(hold) if hold.step == HoldStep::Acquire => state.places_of(hold.holder, at),
            _ => None,
        };
        let held = held_before.is_some() && charge.cost.is_reserved();
        let cost = before.saturating_add(asked(&charge.cost, held));
        let mut verdict = match &charge.cost {
            Cost::Hold(hold) => state.check_hold(&limit, at, &Hold { places: cost, ..*hold }),
            _ => state.check(&limit, view.as_ref(), at, cost),
        };
        // Rights are ahead of a clock that was set back.
        verdict.wait_for_clock(at.since(now));
        // Who is known to hold may go on whatever else is in doubt.
        let known = matches!(charge.cost, Cost::Hold(Hold { step: HoldStep::Renew | HoldStep::Release, .. }));
        if let Some(terms) = terms.as_ref().filter(|_| !known) {
            terms.hold(&mut verdict, cost.max(1));
        }
        match charge.cost {
            Cost::Reserve(_) if held => (verdict.admitted, verdict.retry) = (true, None),
            Cost::Take(_) | Cost::Hold(_) | Cost::Report(_) | Cost::Reserve(_) => {}
            Cost::Peek => verdict.admitted = verdict.remaining > 0,
            // The next process gives it back.
            Cost::Refund(_) if self.is_sealed && is_escrowed(charge.rule) => {}
            Cost::Refund(permits) => {
                let counted = || state.returnable(&limit, view.as_ref(), at);
                let theirs = || self.unreturnable(charge.rule, &charge.limit, named, at);
                verdict.admitted =
                    !refunds_whole(charge.rule) || counted().saturating_sub(theirs()) >= permits;
                verdict.retry = None;
            }
            Cost::Commit(_) => (verdict.admitted, verdict.retry) = (true, None),
        }
        let recovery = terms.as_ref().and_then(|terms| terms.recovery);
        let most = terms.map_or((0, Span::ZERO), |terms| terms.most);
        Evaluation {
            place,
            verdict,
            view,
            told,
            error_bound,
            now: at,
            limit,
            recovery,
            most,
            lapsed: 0,
            notes,
            fate: held_before.map(|permits| ReservationFate::HeldBefore { permits }),
        }
    }

    /// Returns what a charge that fits would still find, now that its decision has been denied and takes
    /// nothing.
    pub(super) fn look_untaken(&self, charge: &Charge<'_>, looked: &Evaluation, named: Named<'_>) -> Verdict {
        let peek = self
            .counted((charge.rule, &charge.limit), named, looked.now, self.state(looked.place))
            .check(&looked.limit, looked.view.as_ref(), looked.now, 0);
        Verdict { admitted: true, retry: None, ..peek }
    }

    /// Makes the bucket that `charge` will take from. `None`: there is no room for it.
    pub(super) fn make(
        &mut self,
        charge: &Charge<'_>,
        named: Named<'_>,
        now: Timestamp,
        pinned: impl Fn(TablePlace) -> bool,
    ) -> Option<TablePlace> {
        let state = self.fresh((charge.rule, &charge.limit), named.key, now);
        self.insert(state, named, now, pinned)
    }

    pub(super) fn insert(
        &mut self,
        state: State,
        named: Named<'_>,
        now: Timestamp,
        pinned: impl Fn(TablePlace) -> bool,
    ) -> Option<TablePlace> {
        self.newest = self.newest.max(now);
        match self.buckets.insert(named.hash, named.key.bytes(), state, now, pinned) {
            Ok(inserted) => {
                self.evicted += u64::from(inserted.evicted);
                Some(inserted.place)
            }
            Err(Full) => {
                self.full += 1;
                None
            }
        }
    }

    /// True if a charge may have its bucket keep more: the entries of logs and the holders of places are
    /// bounded for all buckets together.
    pub(super) fn may_grow(
        &mut self,
        charge: &Charge<'_>,
        place: Option<TablePlace>,
        now: Timestamp,
        pinned: impl Fn(TablePlace) -> bool,
    ) -> bool {
        // Who holds places already takes no more by renewing.
        let renews =
            matches!(charge.cost, Cost::Hold(Hold { step: HoldStep::Renew | HoldStep::Release, .. }));
        if !keeps_more(charge.rule) || renews {
            return true;
        }
        match self.buckets.make_heap(place, now, pinned) {
            Ok(evicted) => {
                self.evicted += evicted;
                self.newest = if evicted > 0 { self.newest.max(now) } else { self.newest };
                true
            }
            Err(Full) => {
                self.full += 1;
                false
            }
        }
    }

    /// Returns where a bucket is, if it is there.
    pub(super) fn find(&self, named: Named<'_>) -> Option<TablePlace> {
        self.buckets.find(named.hash, named.key.bytes())
    }

    /// Forgets a bucket that was made for a decision that takes nothing after all.
    pub(super) fn unmake(&mut self, place: TablePlace) {
        self.buckets.remove(place);
    }

    /// Charges what [`Self::look`] found to fit, and answers. Without a `place` a charge finds no room; a
    /// peek or a refund needs none.
    pub(super) fn charged(
        &mut self,
        charge: &Charge<'_>,
        looked: &Evaluation,
        place: Option<TablePlace>,
        named: Named<'_>,
    ) -> ChargeResult {
        let grows = place.filter(|_| keeps_more(charge.rule));
        let before = grows.map_or(0, |place| self.buckets.heap_at(place));
        let mut counted = self.charge_at(charge, looked, place, named);
        if let Some(place) = grows {
            self.buckets.recount(place, before);
        }
        if self.marks.is_some() {
            self.cover_charge(charge, looked, (place, named), &mut counted);
        }
        counted
    }

    fn charge_at(
        &mut self,
        charge: &Charge<'_>,
        looked: &Evaluation,
        place: Option<TablePlace>,
        named: Named<'_>,
    ) -> ChargeResult {
        let (limit, now) = (&looked.limit, looked.now);
        let mut counted = looked.counted();
        let escrowed = is_escrowed(charge.rule);
        if let (true, Some(Allowance::Window(view))) = (escrowed, looked.view) {
            self.turn(&charge.held(), named, view.window, place);
        }
        let raised = self.raised((charge.rule, limit), named, now, self.state(place));
        if let Cost::Commit(commit) = charge.cost {
            return self.committed((charge, &commit), looked, place, named, raised);
        }
        if let (Cost::Reserve(_), Some(_)) = (charge.cost, looked.fate) {
            return self.uncharged(charge, looked, named);
        }
        let Some((place, state)) = place.and_then(|place| Some((place, self.buckets.get_mut(place)?))) else {
            return match charge.cost.taken() {
                0 => counted,
                _ => looked.without_room(self.newcomers.charge(
                    charge,
                    looked.verdict,
                    &looked.limit,
                    looked.now,
                )),
            };
        };
        if let Some(raised) = raised {
            *state = raised;
        }
        if charge.cost != Cost::Peek || is_gossiped(charge.rule) {
            counted.paid = state.settle(limit, looked.view.as_ref(), now);
            counted.owed = -i64::from(state.debt());
        }
        match charge.cost {
            Cost::Take(permits) => state.take(limit, now, permits),
            Cost::Reserve(reserve) => {
                counted.reservation = Some(self.reserve((&reserve, limit), place, named, now));
            }
            Cost::Commit(_) => {}
            Cost::Report(report) => {
                // Of what is lent nothing may be left here, and it comes back.
                if state.can_pay(charge.limit.permits, &report) {
                    counted.reported = state.report_beyond(limit, looked.view.as_ref(), now, &report);
                }
                counted.verdict = looked.after_report(&state.check(limit, looked.view.as_ref(), now, 0));
            }
            Cost::Hold(hold) => {
                counted.returned = state.step(limit, now, &hold);
                if hold.step == HoldStep::Release {
                    let after = state.check(limit, looked.view.as_ref(), now, 0);
                    counted.verdict = Verdict { admitted: true, retry: None, ..after };
                }
            }
            Cost::Peek => {
                (counted.used, counted.owed) = (state.used(limit, now), 0);
                if !looked.fits() {
                    self.keep_denied(charge, limit, place);
                }
                return counted;
            }
            Cost::Refund(permits) => {
                counted.returned = state.refund(limit, now, permits);
                let after = state.check(limit, looked.view.as_ref(), now, 0);
                counted.verdict = Verdict { admitted: true, retry: None, ..after };
            }
        }
        self.rate_bucket(charge, limit, now, place, &mut counted);
        counted
    }

    /// Says what is used of a bucket that was charged, and how long it is kept.
    pub(super) fn rate_bucket(
        &mut self,
        charge: &Charge<'_>,
        limit: &Limit,
        now: Timestamp,
        place: TablePlace,
        counted: &mut ChargeResult,
    ) {
        let Some(state) = self.buckets.get(place) else { return };
        counted.used = state.used(limit, now);
        counted.owed += i64::from(state.debt());
        let expiry = state.expiry(&paying(charge.rule, HeldLimit { limit: *limit, share: charge.share }));
        let weight = match is_escrowed(charge.rule) && self.safety.never_forgets_for_room {
            true => WEIGHT_KEPT,
            false => weight(limit, counted.verdict.remaining),
        };
        self.buckets.rate(place, expiry, weight);
    }

    /// A charge is refused of a bucket that owes: what is owed is paid all the same, as far as the window has
    /// room, so that the other regions hear of it. Returns what the window counts more for it.
    pub(super) fn pay(&mut self, charge: &Charge<'_>, looked: &Evaluation) -> u64 {
        if !is_gossiped(charge.rule) {
            return 0;
        }
        let Some(place) = looked.place else { return 0 };
        let Some(state) = self.buckets.get_mut(place).filter(|state| state.debt() > 0) else { return 0 };
        let paid = state.settle(&looked.limit, looked.view.as_ref(), looked.now);
        // Its region pays less in a window than the whole limit.
        self.rate_changed(place, &looked.limit, looked.now);
        paid
    }

    /// Answers without charging; notes if the bucket is at its limit.
    pub(super) fn uncharged(
        &mut self,
        charge: &Charge<'_>,
        looked: &Evaluation,
        named: Named<'_>,
    ) -> ChargeResult {
        let now = looked.now;
        let mut counted = looked.counted();
        let Some(place) = looked.place else { return counted };
        if !looked.fits() {
            if counted.verdict.remaining == 0 {
                self.buckets.weigh(place, WEIGHT_KEPT);
            }
            self.keep_denied(charge, &looked.limit, place);
        }
        let state = self.counted((charge.rule, &charge.limit), named, now, self.state(Some(place)));
        counted.used = state.used(&looked.limit, now);
        counted
    }

    /// Keeps a bucket that denies for as long as it has told: since it was charged the limit may have become
    /// a lower one, at whose pace it takes longer until nothing is left of a level or a debt.
    fn keep_denied(&mut self, charge: &Charge<'_>, limit: &Limit, place: TablePlace) {
        let paces = |state: &&State| charge.rule.counting() == Counting::Level || state.debt() > 0;
        if let Some(state) = self.buckets.get(place).filter(paces) {
            let expiry = state.expiry(&paying(charge.rule, HeldLimit { limit: *limit, share: charge.share }));
            self.buckets.keep_until(place, expiry);
        }
    }

    /// Charges what another region admitted, where the algorithm takes debts.
    pub(super) fn debit(
        &mut self,
        (rule, limit): (&Compiled, &Limit),
        named: Named<'_>,
        permits: u64,
        now: Timestamp,
    ) {
        let algorithm = rule.rule.algorithm;
        if algorithm.counting() != Counting::Level || permits == 0 {
            return;
        }
        let found = self.buckets.find(named.hash, named.key.bytes());
        let Some(place) = found.or_else(|| self.insert(State::new(algorithm), named, now, |_| false)) else {
            return;
        };
        let Some(state) = self.buckets.get_mut(place) else { return };
        state.debit(limit, now, permits);
        self.rate_changed(place, limit, now);
    }

    /// Counts at least so much as used, as [`State::restore`] says.
    pub(super) fn restore(
        &mut self,
        (rule, limit): (&Compiled, &Limit),
        named: Named<'_>,
        known: &RegionUse,
        now: Timestamp,
    ) {
        let found = self.buckets.find(named.hash, named.key.bytes());
        let fresh = || State::new(rule.rule.algorithm);
        let Some(place) = found.or_else(|| self.insert(fresh(), named, now, |_| false)) else { return };
        let before = self.buckets.heap_at(place);
        let Some(state) = self.buckets.get_mut(place) else { return };
        state.restore(limit, now, known);
        self.buckets.recount(place, before);
        self.rate_changed(place, limit, now);
    }

    /// Says how long a bucket is kept that no decision has changed.
    fn rate_changed(&mut self, place: TablePlace, limit: &Limit, now: Timestamp) {
        let Some(state) = self.buckets.get(place) else { return };
        let (expiry, remaining) = (state.expiry(limit), state.check(limit, None, now, 0).remaining);
        self.buckets.rate(place, expiry, weight(limit, remaining));
    }

    /// Holds what the world leaves of a bucket, whether or not the bucket is there yet.
    pub(super) fn set_allowance(
        &mut self,
        rule: &Compiled,
        named: Named<'_>,
        held: HeldAllowance,
        now: Timestamp,
    ) {
        let key = named.key.bytes();
        let place = match self.views.find(named.hash, key) {
            Some(place) => place,
            None => match self.views.insert(named.hash, key, held, now, |_| false) {
                Ok(inserted) => inserted.place,
                Err(_) => return,
            },
        };
        if let Some(known) = self.views.get_mut(place) {
            *known = held;
        }
        let window = (rule.counting() != Counting::Level).then_some(rule.rule.window);
        self.views.rate(place, now + Allowance::kept_for(window), VIEW_WEIGHT);
    }

    /// Returns what a bucket holds; `None` if neither it nor a view of it is there.
    pub(super) fn info(
        &mut self,
        rule: &Compiled,
        held_to: &HeldLimit,
        named: Named<'_>,
        now: Timestamp,
    ) -> Option<BucketInfo> {
        let whole = &held_to.limit;
        let place = self.find(named);
        self.bring_back(rule, (whole, held_to.share), place, now);
        let held = self.held(rule, named).copied();
        let state = self.state(place);
        let terms = rule.rule.penalty.as_ref();
        let penalty = terms.and_then(|terms| self.penalty(terms, named, now));
        if held.is_none() && state.is_none() && penalty.is_none() && !is_escrowed(rule) {
            return None;
        }
        let (mut view, mut now, mut limit) = (held.map(|held| held.view), now, *whole);
        let terms = is_escrowed(rule).then(|| self.terms(rule, (held_to, whole), named, now));
        if let Some(terms) = &terms {
            (view, now, limit) = (terms.view, terms.now, terms.limit);
        }
        let state = self.counted((rule, whole), named, now, state);
        let mut verdict = state.check(&limit, view.as_ref(), now, 0);
        if let Some(terms) = &terms {
            terms.hold(&mut verdict, 1);
        }
        if let Some(penalty) = &penalty {
            penalty.close_look(&mut verdict);
        }
        Some(BucketInfo {
            used: state.used(&limit, now),
            verdict,
            view,
            error_bound: held.map_or(0, |held| held.error_bound),
            degraded: false,
            penalty,
        })
    }

    /// Forgets a bucket. `false`: it was not there.
    pub(super) fn reset(&mut self, named: Named<'_>) -> bool {
        self.forget_notes(named);
        let punished = self.forget_penalty(named);
        let found = self.buckets.find(named.hash, named.key.bytes());
        found.is_some_and(|place| self.buckets.remove(place).is_some()) || punished
    }

    /// Forgets a bounded part of what has expired.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.newest = self.newest.max(now);
        self.buckets.sweep(now, SWEEP_ENTRIES);
        self.views.sweep(now, SWEEP_ENTRIES);
        self.rights.sweep(now, SWEEP_ENTRIES);
        if let Some(marks) = &mut self.marks {
            marks.sweep(now, SWEEP_ENTRIES);
        }
        self.reserved.sweep(now, SWEEP_ENTRIES);
        self.penalties.sweep(now, SWEEP_ENTRIES);
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Bytes of the entries of logs and of the holders of places.
    pub(super) const fn heap(&self) -> usize {
        self.buckets.heap() + self.reserved.heap()
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes()
            + self.views.bytes()
            + self.rights.bytes()
            + self.marks.as_ref().map_or(0, |marks| marks.bytes())
            + self.reserved.bytes()
            + self.penalties.bytes()
    }

    /// Counts a record that was forgotten before its time to make room for another one.
    pub(super) fn note_evicted(&mut self, evicted: bool) {
        self.evicted += u64::from(evicted);
    }

    /// Counts a record that found no room.
    pub(super) fn note_full(&mut self) {
        self.full += 1;
    }

    /// Buckets forgotten before their time, and charges that found no room.
    pub(super) fn losses(&self) -> (u64, u64) {
        (self.evicted, self.full)
    }
}
