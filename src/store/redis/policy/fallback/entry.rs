//! One bucket as far as this daemon knows it, and what it owes Redis.

use super::told::ToldAllowance;
use crate::core::algorithm::{Algorithm, Allowance, Limit, State, Verdict};
use crate::core::hold::{Hold, HoldStep, Holder};
use crate::core::key::Key;
use crate::core::request::{Cost, ReportedCost};
use crate::core::reservation::{
    COMMIT_MAX, Commit, ReservationFate, ReservationId, ReservedCharge, ReservedCost,
};
use crate::core::reservation_notes::{CommitResult, CommitTerms, ReservationNotes};
use crate::core::reservation_terms::OnLapse;
use crate::core::table::WEIGHT_KEPT;
use crate::core::time::{Span, Timestamp};
use crate::engine::port::{Charge, ChargeResult};
use crate::store::evaluation::CROWDED_RETRY;
use crate::store::redis::batch::call::Bucket;
use crate::store::redis::client::slots::ClusterSlot;
use crate::store::redis::servers::plan::Unanswered;
use crate::store::slot::refunds_whole;

/// Holders of one bucket that are told to Redis when it is back. More are not counted there, and counted as
/// untold.
const HOLDERS_MAX: usize = 1_000;

/// A bucket as far as this daemon knows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    /// The region's, as Redis last told.
    pub(super) known: Option<State>,
    /// Instant of that, by the server's clock.
    pub(super) known_at: Timestamp,
    /// True if Redis could not be told something of it since, or has lost what it was told.
    pub(super) unsure: bool,
    /// Allowance of the other regions that Redis was told, for a worldwide bucket.
    pub(super) told: Option<Box<ToldAllowance>>,
    /// This daemon's own while Redis is away.
    pub(super) own: Option<Box<Own>>,
}

/// The counts that this daemon makes by itself.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) state: State,
    pub(super) share: Limit,
    /// Admitted and not yet charged in Redis.
    pub(super) owed: u64,
    /// The most that the bucket owes beyond its limit; `None` unless something was reported.
    pub(super) debt_max: Option<u32>,
    /// Notes on what is reserved of it. Redis is told of it when it is back, so that a commit finds it there.
    pub(super) notes: Option<Box<ReservationNotes>>,
    /// True if its key waits among the debtors.
    pub(super) listed: bool,
    pub(super) bucket: Bucket,
    pub(super) slot: ClusterSlot,
}

/// The debts of one bucket to Redis.
#[derive(Debug, Clone)]
pub(in crate::store::redis) struct Owed {
    /// The bucket's key in this process.
    pub(in crate::store::redis) key: Key,
    /// Cluster slot of the bucket's key in Redis.
    pub(in crate::store::redis) slot: ClusterSlot,
    /// The bucket as calls to Redis name it.
    pub(in crate::store::redis) bucket: Bucket,
    /// Permits that were admitted without Redis and still matter.
    pub(in crate::store::redis) permits: u64,
    /// Holders of a `concurrency` bucket, at most [`HOLDERS_MAX`].
    pub(in crate::store::redis) holders: Vec<(Holder, u64)>,
    /// Number of holders beyond those in `holders`, which are counted and not told.
    pub(in crate::store::redis) untold: usize,
    /// Reservations, at most [`HOLDERS_MAX`]: who reserves once more takes nothing more, so it does not
    /// matter whether Redis has heard of it before.
    pub(in crate::store::redis) reserved: Vec<(ReservationId, ReservedCharge)>,
    /// The most that the bucket owes beyond its limit; `None` unless something was reported.
    pub(in crate::store::redis) debt_max: Option<u32>,
}

/// A daemon's share of a limit: at least one permit, so that no limit becomes a ban. With more daemons than
/// permits all of them together may so admit one each.
pub(super) fn share(limit: Limit, daemons: u32) -> Limit {
    let part = |permits: u32| if permits == 0 { 0 } else { (permits / daemons).max(1) };
    Limit { permits: part(limit.permits), burst: part(limit.burst), queue: limit.queue / daemons, ..limit }
}

/// A reservation as it is made again in Redis: it ends when it would have ended here.
pub(in crate::store::redis) fn reserved_again(
    id: ReservationId,
    charge: &ReservedCharge,
    now: Timestamp,
) -> ReservedCost {
    let left = charge.due.since(now);
    let ttl = match charge.on_lapse {
        OnLapse::Release => left,
        OnLapse::Charge => Span(left.0.saturating_sub(COMMIT_MAX.0)),
    };
    ReservedCost { id, permits: charge.permits, ttl, on_lapse: charge.on_lapse }
}

/// What became of one charge; see [`ChargeResult`].
struct Carried {
    verdict: Verdict,
    returned: u64,
    reported: u64,
    uncharged: u64,
    reservation: Option<ReservationFate>,
}

impl Carried {
    /// A charge of which no more is to be told.
    const fn of(verdict: Verdict) -> Self {
        Self { verdict, returned: 0, reported: 0, uncharged: 0, reservation: None }
    }
}

impl Own {
    /// Gives back what has lapsed. Returns the permits given back.
    fn lapse(&mut self, now: Timestamp) -> u64 {
        let notes = self.notes.as_mut().filter(|notes| notes.is_due(now));
        notes.map_or(0, |notes| notes.lapse(&mut self.state, &self.share, now, now))
    }

    /// Takes what fits of this daemon's share, and notes it.
    fn reserve(
        &mut self,
        reserve: &ReservedCost,
        view: Option<&Allowance>,
        now: Timestamp,
    ) -> (Verdict, Option<ReservationFate>) {
        let notes = self.notes.get_or_insert_default();
        if let Some(permits) = notes.permits_of(reserve.id) {
            let verdict = self.state.check(&self.share, view, now, 0);
            let fate = ReservationFate::HeldBefore { permits };
            return (Verdict { admitted: true, retry: None, ..verdict }, Some(fate));
        }
        let verdict = self.state.check(&self.share, view, now, reserve.permits);
        if verdict.admitted && notes.is_full() {
            let retry = Some(CROWDED_RETRY);
            let verdict = Verdict { admitted: false, retry, delay: Span::ZERO, ..verdict };
            return (verdict, Some(ReservationFate::Crowded));
        }
        if !verdict.admitted {
            return (verdict, None);
        }
        self.state.take(&self.share, now, reserve.permits);
        let charge = ReservedCharge {
            permits: reserve.permits,
            at: self.state.instant(now),
            used: self.state.level_at(&self.share, now),
            number: notes.noted(),
            due: now + reserve.noted_for(),
            on_lapse: reserve.on_lapse,
        };
        notes.note(reserve.id, charge, &self.share);
        (verdict, Some(ReservationFate::Held))
    }

    /// Charges what was used, and owes it to Redis. Notes in Redis are not known here, so there it is charged
    /// in full.
    fn commit(&mut self, commit: &Commit, view: Option<&Allowance>, now: Timestamp) -> CommitResult {
        let notes = self.notes.get_or_insert_default();
        let reserved = notes.permits_of(commit.id).unwrap_or_default();
        let terms = CommitTerms { limit: &self.share, whole: self.share.permits, view, now };
        let done = notes.commit(&mut self.state, &terms, commit);
        if done.fate != ReservationFate::Repeated && commit.actual > 0 {
            let used = commit.actual.min(reserved).saturating_add(done.reported);
            self.owed = self.owed.saturating_add(used);
            self.debt_max = self.debt_max.max(Some(commit.debt_max));
        }
        done
    }

    /// Does what a charge asks for, as far as it fits.
    fn carry_out(&mut self, charge: &Charge<'_>, view: Option<&Allowance>, now: Timestamp) -> Carried {
        let share = self.share;
        match charge.cost {
            Cost::Reserve(reserve) => {
                let (verdict, reservation) = self.reserve(&reserve, view, now);
                Carried { reservation, ..Carried::of(verdict) }
            }
            Cost::Commit(commit) => {
                let done = self.commit(&commit, view, now);
                let after = self.state.check(&share, view, now, 0);
                let retry = after.retry.filter(|_| !done.fits);
                Carried {
                    verdict: Verdict { admitted: done.fits, retry, delay: Span::ZERO, ..after },
                    returned: done.returned,
                    reported: done.reported,
                    uncharged: done.uncharged,
                    reservation: Some(done.fate),
                }
            }
            Cost::Refund(permits)
                if refunds_whole(charge.rule) && self.state.returnable(&share, view, now) < permits =>
            {
                let after = self.state.check(&share, view, now, 0);
                Carried::of(Verdict { admitted: false, retry: None, ..after })
            }
            Cost::Refund(permits) => {
                let returned = self.state.refund(&share, now, permits);
                self.owed = self.owed.saturating_sub(returned);
                let after = self.state.check(&share, view, now, 0);
                Carried { returned, ..Carried::of(Verdict { admitted: true, retry: None, ..after }) }
            }
            Cost::Report(report) => self.report(&report, view, now),
            Cost::Hold(hold) => self.hold(&hold, now),
            cost => {
                let verdict = self.state.check(&share, view, now, cost.taken());
                if verdict.admitted && cost.taken() > 0 {
                    self.state.take(&share, now, cost.taken());
                    self.owed = self.owed.saturating_add(cost.taken());
                }
                Carried::of(verdict)
            }
        }
    }

    fn report(&mut self, report: &ReportedCost, view: Option<&Allowance>, now: Timestamp) -> Carried {
        let share = self.share;
        let admitted = self.state.check(&share, view, now, report.permits).admitted;
        let reported = self.state.report(&share, view, now, report);
        self.owed = self.owed.saturating_add(reported);
        self.debt_max = self.debt_max.max(Some(report.debt_max));
        let after = self.state.check(&share, view, now, 0);
        let retry = after.retry.filter(|_| !admitted);
        Carried { reported, ..Carried::of(Verdict { admitted, retry, delay: Span::ZERO, ..after }) }
    }

    fn hold(&mut self, hold: &Hold, now: Timestamp) -> Carried {
        let share = self.share;
        let mut carried = Carried::of(self.state.check_hold(&share, now, hold));
        if carried.verdict.admitted {
            let moved = self.state.step(&share, now, hold);
            carried.returned = moved;
            self.owed = match hold.step {
                HoldStep::Acquire => self.owed.saturating_add(moved),
                HoldStep::Renew => self.owed,
                HoldStep::Release => self.owed.saturating_sub(moved),
            };
        }
        carried
    }

    /// True if Redis is to be told anything of it.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0 || self.notes.as_ref().is_some_and(|notes| notes.has_held())
    }

    /// Notes once more what Redis could not be told of.
    pub(super) fn reserve_again(&mut self, reserved: &[(ReservationId, ReservedCharge)]) {
        if reserved.is_empty() {
            return;
        }
        let notes = self.notes.get_or_insert_default();
        for (id, charge) in reserved {
            if notes.permits_of(*id).is_none() {
                notes.note(*id, *charge, &self.share);
            }
        }
    }

    /// Returns what is owed to Redis of it, which then owes nothing; `None` where nothing that matters is
    /// owed.
    pub(super) fn settle(&mut self, key: &Key, now: Timestamp) -> Option<Owed> {
        // Permits that have drained or left their window meanwhile no longer matter to Redis either.
        let mut permits = std::mem::take(&mut self.owed).min(self.state.used(&self.share, now));
        let notes = self.notes.take().into_iter().flat_map(|notes| notes.into_held());
        let reserved: Vec<_> = notes.filter(|(_, charge)| charge.due > now).take(HOLDERS_MAX).collect();
        if permits == 0 && reserved.is_empty() {
            return None;
        }
        let mut holders = self.state.holders(now);
        let untold = holders.len().saturating_sub(HOLDERS_MAX);
        holders.truncate(HOLDERS_MAX);
        if self.bucket.algorithm == Algorithm::Concurrency {
            permits = holders.iter().map(|(_, places)| places).sum();
        }
        (permits > 0 || !reserved.is_empty()).then(|| Owed {
            key: key.clone(),
            slot: self.slot,
            bucket: self.bucket.clone(),
            permits,
            holders,
            untold,
            debt_max: self.debt_max,
            reserved,
        })
    }
}

impl Entry {
    /// Returns when it no longer matters, and how much it would be missed until then. Permits that this
    /// daemon admitted by itself are never forgotten before; of what Redis told, the most used is kept
    /// longest.
    pub(super) fn rating(&self, limit: &Limit, now: Timestamp) -> (Timestamp, u8) {
        let own = self.own.as_ref().map(|own| own.state.expiry(&own.share));
        let known = self.known.as_ref().map(|known| known.expiry(limit));
        let told = self.told.as_ref().map(|told| told.until);
        let expiry = own.max(known).max(told).unwrap_or(now);
        if own.is_some_and(|expiry| expiry > now) {
            return (expiry, WEIGHT_KEPT);
        }
        let whole = u64::from(limit.permits.max(limit.burst)).max(1);
        let used = self.known.as_ref().map_or(0, |known| known.used(limit, now)).min(whole);
        let most = u64::from(WEIGHT_KEPT - 1);
        (
            expiry,
            u8::try_from(u128::from(used) * u128::from(most) / u128::from(whole)).unwrap_or(WEIGHT_KEPT - 1),
        )
    }

    /// Charges this daemon's share, if it fits. `before` is what was admitted to this key in another's name.
    pub(super) fn charge(
        &mut self,
        unanswered: &Unanswered<'_>,
        daemons: u32,
        before: u64,
        now: Timestamp,
    ) -> ChargeResult {
        let charge = unanswered.charge;
        let share = share(charge.limit, daemons);
        // A region whose store is away keeps to its part of a worldwide limit all the same.
        let told = self.told.as_ref().map(|told| told.part(daemons));
        let first = charge.first.map(|first| if first == 0 { 0 } else { (first / daemons).max(1) });
        let view = Allowance::in_force(told.as_ref(), first, unanswered.bucket.algorithm, &share, now);
        let view = view.as_ref();
        let error_bound = self.told.as_ref().map_or(0, |told| told.error_bound);
        let own = self.own_mut(unanswered, daemons, before, share, now);
        own.share = share;
        let paid = if charge.cost == Cost::Peek { 0 } else { own.state.settle(&share, view, now) };
        let owed = i64::from(own.state.debt());
        let lapsed = own.lapse(now);
        let Carried { verdict, returned, reported, uncharged, reservation } =
            own.carry_out(charge, view, now);
        let used = own.state.used(&share, now);
        ChargeResult {
            verdict,
            view: view.filter(|_| Allowance::is_told(view, told.as_ref())).copied(),
            error_bound,
            used,
            returned,
            reported,
            uncharged,
            paid,
            owed: i64::from(own.state.debt()) - owed,
            lapsed,
            reservation,
            penalty: None,
            degraded: true,
        }
    }

    /// This daemon's own, which begins with its part of what is known to be used. `before` as in
    /// [`Self::charge`].
    fn own_mut(
        &mut self,
        unanswered: &Unanswered<'_>,
        daemons: u32,
        before: u64,
        share: Limit,
        now: Timestamp,
    ) -> &mut Own {
        let known = self.known.as_ref();
        self.own.get_or_insert_with(|| {
            let mut state = State::new(unanswered.bucket.algorithm);
            let used = known.map_or(0, |known| known.used(&unanswered.charge.limit, now));
            state.take(&share, now, used.div_ceil(u64::from(daemons)).saturating_add(before));
            let (bucket, slot) = (unanswered.bucket.clone(), unanswered.slot);
            Box::new(Own { state, share, owed: 0, debt_max: None, notes: None, listed: false, bucket, slot })
        })
    }
}
