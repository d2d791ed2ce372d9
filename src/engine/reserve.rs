//! Permits reserved before a cost is known, and committed when it is.
//!
//! Reserving is a decision like any other ([`Engine::decide`]). A commit is a step of its own on each bucket
//! that the reservation names, and charges whatever is left.

use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::Counter;
use ring::rand::{SecureRandom, SystemRandom};
use smallvec::SmallVec;

use super::Engine;
use super::audit::CommittedCost;
use super::caller_id::digest_of;
use super::estimate::Estimator;
use super::identity::secret::NoRandomness;
use super::loaded::Loaded;
use super::port::{Charge, ChargeResult, HeldLimit, Intent, Outcome};
use super::world::{Tally, window_of};
use crate::core::algorithm::{Algorithm, Limit};
use crate::core::decision::{Decision, Leased};
use crate::core::estimate::{CostKind, Teacher};
use crate::core::hold::{HELD_RULES_MAX, ReservedFor};
use crate::core::key::Key;
use crate::core::open_reservations::{OpenBucket, OpenReservations};
use crate::core::price::Price;
use crate::core::regions::gossip::uncertainty::RegionsKnown;
use crate::core::request::{Cost, Request};
use crate::core::reservation::{
    COMMIT_MAX, Commit, RESERVATION_BYTES, Reservation, ReservationFate, ReservationId,
};
use crate::core::rule::{Debt, Mode, Rule};
use crate::core::ruleset::Compiled;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::OwnLimit;
use crate::telemetry::Metrics;

/// The message to a caller if a bucket holds as many reservations as it may.
const CROWDED: &str =
    "a bucket of this request holds as many reservations as it may (10,000): commit or cancel some";

/// A reservation's id that nobody can guess.
///
/// # Errors
/// When there is no randomness.
pub fn new_reservation() -> Result<ReservationId, NoRandomness> {
    let mut id = [0; RESERVATION_BYTES];
    SystemRandom::new().fill(&mut id).map_err(|_| NoRandomness)?;
    Ok(ReservationId(id))
}

/// The reservation that a caller names by its own id: the same for the same id of the same request. It is as
/// hard to guess as the id is.
#[must_use]
pub fn reservation_of(id: &str, request: &Request<'_>) -> ReservationId {
    let digest = digest_of(id, request);
    digest.as_ref().first_chunk().copied().map_or(ReservationId::NONE, ReservationId)
}

/// The name of a report that a caller names by its own id: the other half of the digest, so that no id of a
/// reservation gives the same name.
#[must_use]
pub fn report_of(id: &str, request: &Request<'_>) -> ReservationId {
    let digest = digest_of(id, request);
    digest.as_ref().last_chunk().copied().map_or(ReservationId::NONE, ReservationId)
}

/// The outcome of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// True if it settled anything anywhere: not the second time, and not where no rule counts it any more.
    pub committed: bool,
    /// True if some of it was not reserved any more, so that there it was charged in full.
    pub lapsed: bool,
    /// True if the store could not be asked for some of it.
    pub degraded: bool,
}

/// Reasons why a commit is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommitRefused {
    /// Another region's store has noted it.
    #[error("this reservation was made in another region: commit it there")]
    Foreign,
    /// Nobody remembers whether it was committed.
    #[error("this reservation has lapsed more than ten minutes ago: send what it used as a report")]
    TooLate,
}

/// The kinds of reservations, and their outcomes, counted.
#[derive(Debug)]
pub(super) struct Reservations {
    counters: [Counter; 6],
    pub(super) estimator: Estimator,
    open: Mutex<OpenReservations>,
}

impl Reservations {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let events = ["reserved", "crowded", "released", "lapsed", "repeated", "unfollowed"];
        let counters = events.map(|event| metrics.counter("reservations_total", "event", event));
        Self { counters, estimator: Estimator::new(metrics), open: Mutex::default() }
    }

    /// Those of worldwide rules that this daemon made.
    pub(super) fn open(&self) -> MutexGuard<'_, OpenReservations> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers one until it has lapsed.
    pub(super) fn follow(&self, id: ReservationId, due: Timestamp, bucket: OpenBucket) {
        let [.., unfollowed] = &self.counters;
        if !self.open().note(id, due, bucket) {
            unfollowed.increment(1);
        }
    }

    fn add(&self, fate: ReservationFate) {
        let [reserved, crowded, released, lapsed, repeated, _] = &self.counters;
        match fate {
            ReservationFate::Held => reserved.increment(1),
            ReservationFate::Crowded => crowded.increment(1),
            ReservationFate::Released => released.increment(1),
            ReservationFate::Lapsed => lapsed.increment(1),
            ReservationFate::HeldBefore { .. } | ReservationFate::Repeated => repeated.increment(1),
        }
    }

    /// Counts what a decision reserved, and says why where a bucket had no room for its note.
    pub(super) fn count(&self, decision: &mut Decision, counted: &[ChargeResult]) {
        let fates = || counted.iter().filter_map(|counted| counted.reservation);
        if !decision.allowed && fates().any(|fate| fate == ReservationFate::Crowded) {
            decision.message = Some(CROWDED.into());
        }
        fates()
            .filter(|fate| decision.allowed || *fate == ReservationFate::Crowded)
            .for_each(|fate| self.add(fate));
    }
}

/// A bucket of which permits are reserved, as its rule is in force now.
pub(super) struct ReservedBucket<'a> {
    rule: &'a Compiled,
    key: Key,
    held: HeldLimit,
    whole: Limit,
}

impl<'a> ReservedBucket<'a> {
    /// `own_limit`: the caller's, where it is not the rule's own.
    pub(super) fn new(
        loaded: &Loaded,
        rule: &'a Compiled,
        key: Key,
        own_limit: Option<u32>,
        now: Timestamp,
    ) -> Self {
        let own = |permits| Limit { permits, burst: permits, ..rule.limit };
        Self::with_limit(loaded, rule, key, own_limit.map_or(rule.limit, own), now)
    }

    /// The same, held to this limit in all regions together.
    pub(super) fn with_limit(
        loaded: &Loaded,
        rule: &'a Compiled,
        key: Key,
        whole: Limit,
        now: Timestamp,
    ) -> Self {
        Self { rule, key, held: loaded.held_to(rule, whole, now), whole }
    }

    /// Commits `actual` permits of it for this reservation.
    pub(super) fn commit(
        &self,
        loaded: &Loaded,
        regions: RegionsKnown,
        (id, actual): (ReservationId, u64),
    ) -> Charge<'_> {
        let debt_max = self.rule.rule.debt_max(self.held.limit.permits, self.whole.permits);
        let cost = Cost::Commit(Commit { id, actual, debt_max });
        Charge { enforced: false, ..self.charge(loaded, regions, cost) }
    }

    /// Gives so many permits of it back that nobody reserved.
    pub(super) fn refund(&self, loaded: &Loaded, regions: RegionsKnown, permits: u64) -> Charge<'_> {
        self.charge(loaded, regions, Cost::Refund(permits))
    }

    fn charge(&self, loaded: &Loaded, regions: RegionsKnown, cost: Cost) -> Charge<'_> {
        let (rule, HeldLimit { limit, share }) = (self.rule, self.held);
        Charge {
            rule,
            key: &self.key,
            limit,
            share,
            whole: &self.whole,
            first: rule.rule.global.as_ref().and_then(|_| loaded.first_of(rule, &limit, regions)),
            cost,
            enforced: true,
        }
    }
}

/// One rule of a reservation.
struct ReservedRule<'a> {
    bucket: ReservedBucket<'a>,
    price: Price,
    kind: CostKind,
    reserved: Option<&'a ReservedFor>,
}

/// A reservation as its caller is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeReservation {
    /// The reservation.
    pub reservation: Reservation,
    /// Time until it lapses in the first of its buckets.
    pub ttl: Span,
    /// The amount that it holds, where that was reserved before under the same id.
    pub held_before: Option<u64>,
}

impl Engine {
    /// Takes out of a call's decisions the reservation that they have just made; `None` if they reserved
    /// nothing. Rules beyond [`HELD_RULES_MAX`] are not named, and lapse.
    #[must_use]
    pub fn reservation(&self, decisions: &mut [Decision]) -> Option<MadeReservation> {
        let mut leased = decisions.iter_mut().filter_map(|decision| decision.lease.take());
        let first = leased.next()?;
        let Leased { lease, mut hold, made, held_before } = *first;
        let (id, mut rules) = (lease.holder.0, lease.held);
        for more in leased {
            let room = HELD_RULES_MAX.saturating_sub(rules.len());
            rules.extend(more.lease.held.into_iter().take(room));
            hold = hold.min(more.hold);
        }
        let reservation = Reservation {
            id: ReservationId(id),
            region: self.name().region.clone(),
            lapses_ms: (made + hold).0 / 1_000,
            rules,
        };
        Some(MadeReservation { reservation, ttl: hold, held_before })
    }

    /// Charges what a reservation has used, and releases the rest. Doing so twice charges once.
    ///
    /// # Errors
    /// When it is not this region's, or so old that nobody knows whether it was committed.
    pub async fn commit(&self, reservation: &Reservation, actual: u64) -> Result<Committed, CommitRefused> {
        if reservation.region != self.name().region {
            return Err(CommitRefused::Foreign);
        }
        let (loaded, now) = (self.loaded.load_full(), self.clock.now());
        if now.0 / 1_000 > reservation.lapses_ms.saturating_add(COMMIT_MAX.millis_up()) {
            return Err(CommitRefused::TooLate);
        }
        let mut named: SmallVec<[ReservedRule<'_>; 1]> = SmallVec::new();
        for held in &reservation.rules {
            let found = loaded.set.get(&held.rule.domain, &held.rule.name);
            // A rule that counts by other attributes now has a bucket for this one only where all share it.
            let counts = |rule: &Compiled| {
                let per = rule.rule.per.len();
                rule.rule.action.counts()
                    && rule.rule.algorithm != Algorithm::Concurrency
                    && (per == 0 || per == held.values.len())
            };
            let Some(rule) = found.filter(|rule| counts(rule)) else { continue };
            let key = match rule.rule.per.is_empty() {
                true => Key::new(rule.shape, std::iter::empty()),
                false => held.values.key(rule.shape),
            };
            let bucket = ReservedBucket::new(&loaded, rule, key, held.own_limit, now);
            let price = held.price.unwrap_or(Price::ONE);
            let kind = CostKind::of(&held.rule.domain, &held.rule.name, held.kind.as_deref());
            let reserved = held.reserved.as_deref();
            named.push(ReservedRule { bucket, price, kind, reserved });
        }
        let regions = self.regions_known();
        let commit = |one: &ReservedRule<'_>| (reservation.id, one.price.of(actual));
        let charges: SmallVec<[Charge<'_>; 1]> =
            named.iter().map(|one| one.bucket.commit(&loaded, regions, commit(one))).collect();
        let outcome = self.settle_reserved(&charges, now).await;
        let teacher = Teacher::of(named.iter().map(|one| one.bucket.key.identity()));
        for (one, counted) in named.iter().zip(&outcome.counted) {
            self.tell_commit(&one.bucket, counted, now);
            if let Some(fate) = counted.reservation {
                self.reservations.add(fate);
                if matches!(fate, ReservationFate::Released | ReservationFate::Lapsed) {
                    self.note_uncommitted(&one.bucket.rule.rule, counted);
                    self.reservations.estimator.learn(one.kind, teacher, actual);
                    self.remember_commit((one, counted), &named, actual, now);
                }
            }
        }
        let is = |fate| outcome.counted.iter().any(|counted| counted.reservation == Some(fate));
        let degraded = outcome.counted.iter().any(|counted| counted.degraded);
        if !degraded && named.iter().any(|one| one.bucket.rule.rule.global.is_some()) {
            self.reservations.open().settle(reservation.id);
        }
        let lapsed = is(ReservationFate::Lapsed);
        Ok(Committed { committed: is(ReservationFate::Released) || lapsed, lapsed, degraded })
    }

    /// Counts what of a commit was not charged.
    fn note_uncommitted(&self, rule: &Rule, counted: &ChargeResult) {
        if counted.uncharged > 0 {
            let [debt_max, forgiven, store] = &self.uncharged;
            let counter = match rule.debt {
                _ if counted.degraded => store,
                Debt::Carry { .. } => debt_max,
                Debt::Forgive | Debt::Window => forgiven,
            };
            counter.increment(counted.uncharged);
        }
    }

    /// Leaves a record of what a reservation used, under the rule that says who made it.
    fn remember_commit(
        &self,
        (committed, counted): (&ReservedRule<'_>, &ChargeResult),
        all: &[ReservedRule<'_>],
        actual: u64,
        now: Timestamp,
    ) {
        if let (Some(audit), Some(reserved)) = (&self.audit, committed.reserved) {
            let (rule, limit) = (&*committed.bucket.rule.named, committed.bucket.held.limit.permits);
            let cost = CommittedCost { rule, reserved, actual, used: counted.used, limit };
            audit.tell_commit(&cost, all.iter().map(|one| one.bucket.rule.rule.name.as_str()), now);
        }
    }

    /// Has the store charge commits.
    pub(super) async fn settle_reserved(&self, charges: &[Charge<'_>], now: Timestamp) -> Outcome {
        match self.store.try_decide(charges, Intent::Charge, now) {
            Some(outcome) => outcome,
            None => self.store.decide(charges, Intent::Charge, now).await,
        }
    }

    /// Tells the protocol between regions what a commit did.
    pub(super) fn tell_commit(&self, named: &ReservedBucket<'_>, counted: &ChargeResult, now: Timestamp) {
        let rule = &named.rule.rule;
        let speaks = rule.global.as_ref().is_some_and(|global| match global.mode {
            Mode::Gossip | Mode::Escrow => true,
            Mode::Split => false,
        });
        let (charged, returned) = counted.moved(counted.reported, counted.returned);
        if !speaks || (charged == 0 && returned == 0) {
            return;
        }
        let beyond = counted.used.saturating_sub(named.held.limit.capacity(rule.algorithm));
        let tally = Tally {
            window: window_of(rule.algorithm, named.held.limit.windows(), now),
            offered: counted.reported,
            admitted: charged,
            returned,
            refused: if counted.verdict.admitted { 0 } else { beyond.max(1) },
            largest: counted.reported,
            limit: Some(OwnLimit::of(&named.whole)),
            is_own: named.whole != named.rule.limit,
            store: counted.store_seen(),
        };
        if !self.tallies.add(&named.key, tally) {
            self.metrics.tallies_dropped.increment(1);
        }
    }
}
