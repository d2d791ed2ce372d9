//! Reservations in the memory store: the notes of a bucket, beside it. They are looked at where a
//! reservation is made or committed, and where something does not fit; nothing else pays for them.

use super::evaluation::Evaluation;
use super::slot::{KeySlot, Named};
use crate::core::algorithm::{Limit, State, Verdict};
use crate::core::request::Cost;
use crate::core::reservation::{Commit, ReservationFate, ReservationId, ReservedCharge, ReservedCost};
use crate::core::reservation_notes::{CommitTerms, ReservationNotes};
use crate::core::table::{TablePlace, WEIGHT_KEPT};
use crate::core::time::{Span, Timestamp};
use crate::engine::port::{Charge, ChargeResult};

/// The weight of notes that only remember commits.
const COMMITTED_WEIGHT: u8 = 0;

impl KeySlot {
    pub(super) fn notes_at(&self, named: Named<'_>) -> Option<TablePlace> {
        if self.reserved.is_empty() { None } else { self.reserved.find(named.hash, named.key.bytes()) }
    }

    /// Returns the permits that this reservation holds, of the bucket whose notes these are.
    pub(super) fn reserved_by(&self, notes: Option<TablePlace>, id: ReservationId) -> Option<u64> {
        notes.and_then(|at| self.reserved.get(at))?.permits_of(id)
    }

    /// Returns what the bucket would answer now, as [`Self::look`] says, once what has lapsed is given back
    /// and a reservation has found room.
    pub(super) fn evaluate(
        &mut self,
        charge: &Charge<'_>,
        named: Named<'_>,
        before: u64,
        now: Timestamp,
    ) -> Evaluation {
        let mut looked = self.look(charge, named, before, now);
        if self.bring_back(charge.rule, (&charge.limit, charge.share), looked.place, now) {
            looked = self.look(charge, named, before, now);
        }
        if self.reserved.is_empty() && !charge.cost.is_reserved() {
            return looked;
        }
        if let Some(lapsed) = self.lapse(charge, &looked, named, looked.now) {
            looked = self.look(charge, named, before, now);
            looked.lapsed = lapsed;
        }
        let reserves = matches!(charge.cost, Cost::Reserve(_)) && looked.fate.is_none();
        if reserves && looked.fits() && !self.may_reserve(looked.notes, named, looked.now) {
            looked.crowd();
        }
        looked
    }

    /// Gives back all that is reserved of a bucket, whether or not it has lapsed. A commit that comes later
    /// is charged in full.
    pub(super) fn release_reserved(
        &mut self,
        charge: &Charge<'_>,
        named: Named<'_>,
        now: Timestamp,
    ) -> ChargeResult {
        let mut looked = self.evaluate(charge, named, 0, now);
        while let Some(returned) = self.lapse(charge, &looked, named, Timestamp(u64::MAX)) {
            let lapsed = looked.lapsed.saturating_add(returned);
            looked = Evaluation { lapsed, ..self.look(charge, named, 0, now) };
        }
        self.uncharged(charge, &looked, named)
    }

    /// Gives back what lapses until `due`, where a charge does not fit or speaks of reservations. Returns the
    /// permits given back, if anything did: then the charge is to be looked at again, since its own
    /// reservation may be among that.
    fn lapse(
        &mut self,
        charge: &Charge<'_>,
        looked: &Evaluation,
        named: Named<'_>,
        due: Timestamp,
    ) -> Option<u64> {
        if looked.fits() && !charge.cost.is_reserved() {
            return None;
        }
        let now = looked.now;
        let at = if charge.cost.is_reserved() { looked.notes } else { self.notes_at(named) }?;
        let before = self.reserved.heap_at(at);
        self.reserved.get(at).filter(|notes| notes.is_due(due))?;
        let place = self.buckets.find(named.hash, named.key.bytes());
        let mut none = State::new(charge.rule.rule.algorithm);
        let log = place.map_or(0, |place| self.buckets.heap_at(place));
        let raised = self.raised((charge.rule, looked.limit()), named, now, self.state(place));
        let notes = self.reserved.get_mut(at)?;
        let state = match place.and_then(|place| self.buckets.get_mut(place)) {
            Some(state) => state,
            None => &mut none,
        };
        // Permits that are given back come out of the bucket as it counts now, as with a commit.
        if let Some(raised) = raised {
            *state = raised;
        }
        let returned = notes.lapse(state, looked.limit(), now, due);
        if let Some(place) = place {
            self.buckets.recount(place, log);
        }
        self.rate_notes(at, before);
        Some(returned)
    }

    /// True if one more may be reserved of this bucket: its notes and those of all buckets are bounded.
    fn may_reserve(&mut self, notes: Option<TablePlace>, named: Named<'_>, now: Timestamp) -> bool {
        let Some(at) = notes.or_else(|| self.make_notes(named, now)) else { return false };
        self.reserved.get(at).is_some_and(|notes| !notes.is_full())
            && self.reserved.make_heap(Some(at), now, |_| false).is_ok()
    }

    /// Makes room for what is noted of a bucket.
    fn make_notes(&mut self, named: Named<'_>, now: Timestamp) -> Option<TablePlace> {
        let notes = ReservationNotes::default();
        let made = self.reserved.insert(named.hash, named.key.bytes(), notes, now, |_| false).ok()?;
        self.reserved.rate(made.place, now, COMMITTED_WEIGHT);
        Some(made.place)
    }

    /// Takes what fits, and notes it.
    pub(super) fn reserve(
        &mut self,
        (reserve, limit): (&ReservedCost, &Limit),
        place: TablePlace,
        named: Named<'_>,
        now: Timestamp,
    ) -> ReservationFate {
        let found = self.notes_at(named);
        if let Some(permits) = self.reserved_by(found, reserve.id) {
            return ReservationFate::HeldBefore { permits };
        }
        // `may_reserve` made them; another bucket of the same decision may have swept them away, as empty as
        // they were.
        let made = found.or_else(|| self.make_notes(named, now));
        let Some((at, state)) = made.zip(self.buckets.get_mut(place)) else {
            return ReservationFate::Crowded;
        };
        let before = self.reserved.heap_at(at);
        state.take(limit, now, reserve.permits);
        if let Some(notes) = self.reserved.get_mut(at) {
            let charge = ReservedCharge {
                permits: reserve.permits,
                at: state.instant(now),
                used: state.level_at(limit, now),
                number: notes.noted(),
                due: now + reserve.noted_for(),
                on_lapse: reserve.on_lapse,
            };
            notes.note(reserve.id, charge, limit);
        }
        self.rate_notes(at, before);
        ReservationFate::Held
    }

    /// Settles a reservation with what was used, and answers. `raised` is the bucket as it counts now, where
    /// that differs from what is kept.
    pub(super) fn committed(
        &mut self,
        (charge, commit): (&Charge<'_>, &Commit),
        looked: &Evaluation,
        place: Option<TablePlace>,
        named: Named<'_>,
        raised: Option<State>,
    ) -> ChargeResult {
        let (limit, view, now) = (looked.limit(), looked.view(), looked.now);
        let mut counted = looked.counted();
        let at = match (self.notes_at(named), commit.id) {
            (None, id) if id != ReservationId::NONE => self.make_notes(named, now),
            (found, _) => found,
        };
        let before = at.map_or(0, |at| self.reserved.heap_at(at));
        let mut no_notes = ReservationNotes::default();
        let mut no_state = State::new(charge.rule.rule.algorithm);
        let notes = match at.and_then(|at| self.reserved.get_mut(at)) {
            Some(notes) => notes,
            None => &mut no_notes,
        };
        let state = match place.and_then(|place| self.buckets.get_mut(place)) {
            Some(state) => state,
            None => &mut no_state,
        };
        if let Some(raised) = raised {
            *state = raised;
        }
        counted.paid = state.settle(limit, view, now);
        counted.owed = -i64::from(state.debt());
        let terms = CommitTerms { limit, whole: charge.limit.permits, view, now };
        let done = notes.commit(state, &terms, commit);
        let mut after = state.check(limit, view, now, 0);
        looked.hope(&mut after);
        let retry = after.retry.filter(|_| !done.fits);
        counted.verdict = Verdict { admitted: done.fits, retry, delay: Span::ZERO, ..after };
        (counted.returned, counted.reported, counted.uncharged) =
            (done.returned, done.reported, done.uncharged);
        counted.reservation = Some(done.fate);
        if let Some(at) = at {
            self.rate_notes(at, before);
        }
        match place {
            Some(place) => self.rate_bucket(charge, limit, now, place, &mut counted),
            // There was no room for a bucket to charge.
            None if done.reported > 0 => {
                let uncharged = done.uncharged.saturating_add(done.reported);
                counted = ChargeResult { reported: 0, uncharged, owed: 0, degraded: true, ..counted };
            }
            None => {}
        }
        counted
    }

    fn rate_notes(&mut self, at: TablePlace, before: usize) {
        self.reserved.recount(at, before);
        let Some(notes) = self.reserved.get(at) else { return };
        let weight = if notes.has_held() { WEIGHT_KEPT } else { COMMITTED_WEIGHT };
        self.reserved.rate(at, notes.expiry(), weight);
    }

    /// Forgets what is reserved of a bucket that counts from zero again.
    pub(super) fn forget_notes(&mut self, named: Named<'_>) {
        if let Some(at) = self.notes_at(named) {
            self.reserved.remove(at);
        }
    }
}
