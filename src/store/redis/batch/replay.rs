//! Verdicts from a reply: what the script did is done once more, with the very machines that the store in
//! memory uses, on the values as they were before. So both stores put the same history into the same words,
//! and Redis need not.
//!
//! Only whether a part was admitted is the script's word. Logs and holders, which stay in Redis, and leases
//! are told by the script.

use std::slice::Iter;

use smallvec::SmallVec;

use crate::core::algorithm::{Algorithm, Allowance, CountedCharge, Counting, Limit, State, Verdict};
use crate::core::penalty::{PenaltyRecord, PenaltyTerms};
use crate::core::regions::escrow::places::counted_for;
use crate::core::request::{Cost, ReportedCost};
use crate::core::reservation::{Commit, ReservationFate, ReservationId};
use crate::core::time::{Span, Timestamp};
use crate::engine::port::ChargeResult;
use crate::store::evaluation::CROWDED_RETRY;
use crate::store::penalties::{PenaltyRole, close};
use crate::store::redis::batch::call::{
    Action, Before, Bucket, DecideCall, HeldCapacity, Item, Part, PartFate, Reply, Told,
};
use crate::store::redis::batch::undo::UndoneCharge;
use crate::store::redis::client::failure::Failure;
use crate::store::rights::GATHERING;

/// What became of one charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Charged {
    /// As the engine wants it.
    pub(in crate::store::redis) counted: ChargeResult,
    /// Permits leased.
    pub(in crate::store::redis) leased: u64,
    /// The bucket after the part; of a log or of holders only what is used, as one admission. `None` where
    /// the script tells nothing.
    pub(in crate::store::redis) state: Option<State>,
    /// True if there was a bucket before.
    pub(in crate::store::redis) existed: bool,
    /// True if there was an allowance.
    pub(in crate::store::redis) has_allowance: bool,
    /// The newest instant that the bucket had seen; `None` where there was none, or it stays in Redis.
    pub(in crate::store::redis) newest: Option<Timestamp>,
    /// True if nothing was in use before.
    pub(in crate::store::redis) was_empty: bool,
    /// Names what was charged, should it go back.
    pub(in crate::store::redis) taken: UndoneCharge,
}

/// What became of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Answered {
    /// The server's time.
    pub(in crate::store::redis) now: Timestamp,
    /// True if everything enforced fitted.
    pub(in crate::store::redis) admitted: bool,
    /// One for each charge.
    pub(in crate::store::redis) charges: SmallVec<[Charged; 2]>,
    /// Nothing was decided: it did not fit, and something that was reserved has lapsed.
    pub(in crate::store::redis) lapsed: bool,
}

/// What a part asked for, and whether it was admitted.
#[derive(Debug, Clone, Copy)]
struct Fate {
    action: Action,
    admitted: bool,
}

/// A bucket while its parts are replayed.
struct Live<'a> {
    algorithm: Algorithm,
    limit: Limit,
    state: State,
    /// What is enforced.
    view: Option<Allowance>,
    /// True if that is what was told of the other regions.
    told: bool,
    /// By how much what was told may err.
    error_bound: u64,
    /// Permits of the rule's limit, whatever is left here of what is lent.
    whole: u32,
    /// Rest of the recovery window, in which nothing is admitted.
    recovery: Span,
    /// See [`Bucket::gathered`].
    gathered: u64,
    existed: bool,
    has_allowance: bool,
    newest: Option<Timestamp>,
    /// See [`Bucket::worldwide`].
    gossiped: bool,
    /// See [`Bucket::refunds_whole`].
    refunds_whole: bool,
    /// See [`Before::unreturnable`].
    unreturnable: u64,
    /// The newest instant that it had seen, and what undone charges of a level had given back.
    seen: Timestamp,
    undone: u32,
    /// True if the script tells of its reservations.
    noted: bool,
    /// What the part under way already takes of it.
    pending: u64,
    /// What happens to clients that are denied too often, and what this one did.
    penalty: Option<(&'a PenaltyTerms, PenaltyRecord)>,
    /// True if there was no room to note that.
    unnoted: bool,
}

/// Replays a call. One answer for each part.
pub(in crate::store::redis) fn replay(call: &DecideCall, reply: &Reply) -> Vec<Result<Answered, Failure>> {
    let both = call.buckets.iter().zip(&reply.before);
    let mut buckets: Vec<Live<'_>> =
        both.map(|(bucket, before)| Live::of(bucket, before, reply.now)).collect();
    let mut told = reply.told.iter();
    let parts = call.parts.iter().zip(&reply.fates);
    let replayed = parts
        .map(|((part, places), fate)| replay_part(&mut buckets, part, places, *fate, &mut told, reply.now));
    replayed.collect()
}

/// Replays one part, whose buckets lie in `places`.
fn replay_part(
    buckets: &mut [Live<'_>],
    part: &Part,
    places: &[usize],
    fate: PartFate,
    told: &mut Iter<'_, Told>,
    now: Timestamp,
) -> Result<Answered, Failure> {
    if fate == PartFate::Crowded {
        return Err(Failure::Crowded);
    }
    if fate == PartFate::Lapsed {
        return Ok(Answered { now, admitted: false, charges: SmallVec::new(), lapsed: true });
    }
    let admitted = fate == PartFate::Admitted;
    let place_of = |item: &Item| places.get(item.bucket).copied().unwrap_or(usize::MAX);
    let mut charges: SmallVec<[Charged; 2]> = SmallVec::new();
    let mut words: SmallVec<[Option<&Told>; 2]> = SmallVec::new();
    for item in &part.charges {
        let Some(live) = buckets.get_mut(place_of(item)) else { continue };
        if part.action.is_blind() {
            words.push(None);
            charges.push(live.blank());
        } else {
            let tells = live.stays() || live.noted || item.lease.is_some();
            let word = if tells { told.next() } else { None };
            words.push(word);
            charges.push(live.look(item, word, now));
        }
    }
    for item in &part.charges {
        if let Some(live) = buckets.get_mut(place_of(item)) {
            live.pending = 0;
        }
    }
    let fate = Fate { action: part.action, admitted };
    for ((item, charged), word) in part.charges.iter().zip(&mut charges).zip(words) {
        let Some(live) = buckets.get_mut(place_of(item)) else { continue };
        if let Action::Restore(known) = part.action {
            live.state.restore(&live.limit, now, &known);
        }
        let fitted = charged.counted.verdict.admitted;
        live.settle(fate, item, charged, word, now);
        live.punish(fate, item, charged, fitted, now);
    }
    Ok(Answered { now, admitted, charges, lapsed: false })
}

impl<'a> Live<'a> {
    /// A bucket as a reply shows it.
    fn of(bucket: &'a Bucket, before: &Before, now: Timestamp) -> Self {
        let state = State::unpack(bucket.algorithm, &before.packed);
        let existed = state.is_some();
        let newest = state.as_ref().and_then(State::newest);
        let state = state.unwrap_or_else(|| State::new(bucket.algorithm));
        let counts_on = || state.brought_back(&bucket.limit, now);
        let state = if bucket.escrowed { None } else { counts_on() }.unwrap_or(state);
        let HeldCapacity { permits, recovery } =
            before.capacity.unwrap_or(HeldCapacity { permits: bucket.limit.permits, recovery: Span::ZERO });
        let (limit, gathered) = (Limit { permits, ..bucket.limit }, bucket.gathered);
        let (known, error_bound) = before.view.map_or((None, 0), |(view, bound)| (Some(view), bound));
        let view = Allowance::in_force(known.as_ref(), bucket.first, bucket.algorithm, &limit, now);
        Self {
            algorithm: bucket.algorithm,
            limit,
            state,
            view,
            told: Allowance::is_told(view.as_ref(), known.as_ref()),
            error_bound,
            whole: bucket.limit.permits,
            recovery,
            gathered,
            existed,
            has_allowance: before.view.is_some(),
            gossiped: bucket.worldwide,
            refunds_whole: bucket.refunds_whole,
            unreturnable: before.unreturnable,
            newest,
            seen: before.seen,
            undone: before.undone,
            noted: bucket.noted,
            pending: 0,
            penalty: bucket.penalty.as_deref().map(|terms| (terms, before.penalty.unwrap_or_default())),
            unnoted: before.penalty.is_none(),
        }
    }
}

impl Live<'_> {
    /// True if the script alone knows what the bucket holds.
    const fn stays(&self) -> bool {
        matches!(self.state, State::SlidingLog(_) | State::Concurrency(_))
    }

    /// Returns what is used as one admission at the instant of the newest: it frees no permit sooner than the
    /// real one. It stands in for the log, or for the holders, where Redis is away.
    fn as_if_at_once(&self, told: &Told, now: Timestamp) -> State {
        let mut state = State::new(self.algorithm);
        let newest = now.0.saturating_add(told.reset).saturating_sub(self.limit.window.0);
        if told.used > 0 {
            state.take(&self.limit, Timestamp(newest), told.used);
        }
        state
    }

    fn check(&self, now: Timestamp, cost: u64) -> Verdict {
        let mut verdict = self.state.check(&self.limit, self.view.as_ref(), now, cost);
        if !verdict.admitted && verdict.retry.is_none() && cost.max(1) <= self.gathered {
            // What other regions have of a sliding window is free once no region has used anything of it.
            let slides = self.algorithm == Algorithm::SlidingWindow;
            let free = counted_for(self.algorithm, self.limit.window);
            verdict.retry = Some(if slides { free } else { GATHERING });
        }
        if self.recovery > Span::ZERO {
            verdict = Verdict { admitted: false, remaining: 0, retry: Some(self.recovery), ..verdict };
        }
        verdict
    }

    fn blank(&self) -> Charged {
        let verdict =
            Verdict { admitted: true, remaining: 0, reset: Span::ZERO, retry: None, delay: Span::ZERO };
        let view = self.view.filter(|_| self.told);
        let error_bound = self.error_bound;
        let counted = ChargeResult {
            verdict,
            view,
            error_bound,
            used: 0,
            returned: 0,
            reported: 0,
            uncharged: 0,
            paid: 0,
            owed: 0,
            lapsed: 0,
            reservation: None,
            penalty: None,
            degraded: false,
        };
        let Self { existed, has_allowance, newest, .. } = *self;
        let taken = UndoneCharge { charge: CountedCharge { at: self.seen, used: 0 }, undone: self.undone };
        let (leased, state, was_empty) = (0, None, !existed);
        Charged { counted, leased, state, existed, has_allowance, newest, was_empty, taken }
    }

    /// Returns what the bucket would answer, before it is known what is charged. What the part already takes
    /// of it counts.
    fn look(&mut self, item: &Item, word: Option<&Told>, now: Timestamp) -> Charged {
        let mut charged = self.blank();
        let mut fate = None;
        if let Some(noted) = word.and_then(|told| told.noted.as_ref()) {
            (charged.counted.lapsed, charged.counted.reservation) = (noted.lapsed, noted.fate);
            fate = noted.fate;
            // As what has lapsed left it.
            if let Some(state) = State::unpack(self.algorithm, &noted.packed) {
                self.state = state;
            }
        }
        if self.stays() {
            return charged;
        }
        let held = matches!(fate, Some(ReservationFate::HeldBefore { .. }));
        let taken = self.pending.saturating_add(item.cost.taken());
        let cost = if held || matches!(item.cost, Cost::Commit(_)) { self.pending } else { taken };
        let mut verdict = self.amended(self.check(now, cost), item, fate, held, now);
        let role = PenaltyRole::of(&item.cost, fate);
        let penalty = self.penalty.as_ref().and_then(|(terms, record)| record.in_force(terms, now));
        if let Some(penalty) = penalty.filter(|_| item.lease.is_none()) {
            match role {
                PenaltyRole::Asks => penalty.close(&mut verdict),
                PenaltyRole::Looks => penalty.close_look(&mut verdict),
                PenaltyRole::Passes => {}
            }
        }
        let waits = item.lease.is_none() && !held && !matches!(item.cost, Cost::Hold(_) | Cost::Commit(_));
        if verdict.admitted && waits {
            self.pending = self.pending.saturating_add(item.cost.taken());
        }
        charged.counted.verdict = verdict;
        charged
    }

    /// The same verdict, with what the kind of the cost and the fate of a reservation change of it.
    fn amended(
        &self,
        mut verdict: Verdict,
        item: &Item,
        fate: Option<ReservationFate>,
        held: bool,
        now: Timestamp,
    ) -> Verdict {
        match item.cost {
            _ if item.lease.is_some() => (verdict.admitted, verdict.retry) = (true, None),
            Cost::Reserve(_) if held => (verdict.admitted, verdict.retry) = (true, None),
            Cost::Reserve(_) if fate == Some(ReservationFate::Crowded) => {
                let retry = Some(CROWDED_RETRY);
                verdict = Verdict { admitted: false, delay: Span::ZERO, retry, ..verdict };
            }
            Cost::Take(_) | Cost::Hold(_) | Cost::Report(_) | Cost::Reserve(_) => {}
            Cost::Peek => verdict.admitted = verdict.remaining > 0,
            Cost::Refund(permits) => {
                let counted = self.state.returnable(&self.limit, self.view.as_ref(), now);
                verdict.admitted =
                    !self.refunds_whole || counted.saturating_sub(self.unreturnable) >= permits;
                verdict.retry = None;
            }
            Cost::Commit(_) => (verdict.admitted, verdict.retry) = (true, None),
        }
        verdict
    }

    fn settle(
        &mut self,
        fate: Fate,
        item: &Item,
        charged: &mut Charged,
        told: Option<&Told>,
        now: Timestamp,
    ) {
        charged.leased = if item.lease.is_some() { told.map_or(0, |told| told.moved) } else { 0 };
        if self.stays() {
            charged.taken.charge.at = self.seen.max(now);
            if let Some(told) = told {
                self.settle_told(fate, item, charged, told, now);
            }
            return;
        }
        let Fate { action, admitted } = fate;
        let counted = &mut charged.counted;
        let fits = counted.verdict.admitted;
        let view = self.view;
        // What is owed is paid whatever is decided.
        if action == Action::Charge && self.gossiped {
            counted.paid = self.state.settle(&self.limit, view.as_ref(), now);
        }
        let charges = action == Action::Put
            || (action == Action::Charge && (item.cost.is_report() || (admitted && fits)));
        // A peek changes nothing, nor does what is reserved already.
        let changes = match item.cost {
            Cost::Peek => false,
            Cost::Reserve(_) => action == Action::Put || counted.reservation == Some(ReservationFate::Held),
            _ => true,
        };
        if (charges && changes) || charged.leased > 0 {
            counted.paid += self.state.settle(&self.limit, view.as_ref(), now);
        }
        let owed = i64::from(self.state.debt());
        if charged.leased > 0 {
            self.state.take(&self.limit, now, charged.leased);
        } else if item.lease.is_none() && charges {
            self.charge_item(item, counted, told, changes, now);
        } else if !admitted && fits && matches!(item.cost, Cost::Take(_) | Cost::Reserve(_)) {
            counted.verdict = Verdict { admitted: true, retry: None, ..self.check(now, 0) };
        }
        counted.owed = i64::from(self.state.debt()) - owed;
        counted.used = self.state.used(&self.limit, now);
        let at = self.state.instant(now);
        charged.taken.charge = CountedCharge { at, used: self.state.level_at(&self.limit, at) };
        charged.state = Some(self.state.clone());
    }

    /// Settles what stays in Redis, as the script tells it.
    fn settle_told(&self, fate: Fate, item: &Item, charged: &mut Charged, told: &Told, now: Timestamp) {
        let Fate { action, admitted } = fate;
        let counted = &mut charged.counted;
        counted.verdict = told.verdict();
        counted.used = told.used;
        let reserved = told.noted.as_ref().map_or(0, |noted| noted.reserved);
        let moves = match item.cost {
            Cost::Refund(_) | Cost::Hold(_) => true,
            Cost::Commit(commit) => commit.actual <= reserved,
            _ => false,
        };
        counted.returned = if moves { told.moved } else { 0 };
        counted.reported = if item.cost.is_report() && !moves { told.moved } else { 0 };
        let settles = action == Action::Charge && counted.reservation != Some(ReservationFate::Repeated);
        counted.uncharged = match item.cost {
            Cost::Commit(commit) if settles => {
                commit.actual.saturating_sub(reserved).saturating_sub(counted.reported)
            }
            _ => 0,
        };
        let taken = if admitted && told.fits { item.cost.taken() } else { 0 };
        charged.was_empty = told.used <= taken;
        charged.state = Some(self.as_if_at_once(told, now));
    }

    /// Charges the bucket; `changes`: the cost is one that changes it.
    fn charge_item(
        &mut self,
        item: &Item,
        counted: &mut ChargeResult,
        told: Option<&Told>,
        changes: bool,
        now: Timestamp,
    ) {
        match item.cost {
            Cost::Report(report) => {
                let fits = counted.verdict.admitted;
                counted.reported = self.report(&report, now);
                let after = self.check(now, 0);
                let retry = after.retry.filter(|_| !fits);
                counted.verdict = Verdict { admitted: fits, retry, delay: Span::ZERO, ..after };
            }
            Cost::Take(permits) => self.state.take(&self.limit, now, permits),
            Cost::Reserve(reserve) if changes => {
                self.state.take(&self.limit, now, reserve.permits);
            }
            Cost::Commit(commit) => {
                if let Some(told) = told {
                    self.commit(&commit, counted, told, now);
                }
            }
            Cost::Peek | Cost::Hold(_) | Cost::Reserve(_) => {}
            Cost::Refund(permits) => {
                counted.returned = self.give_back(item, permits, now);
                counted.verdict = Verdict { admitted: true, retry: None, ..self.check(now, 0) };
            }
        }
    }
}

impl Live<'_> {
    /// Counts a denial as the script has, and puts the penalty in force into the answer. `fitted` is what was
    /// said before anything was charged.
    fn punish(&mut self, fate: Fate, item: &Item, charged: &mut Charged, fitted: bool, now: Timestamp) {
        let stays = self.stays();
        let Some((terms, record)) = &mut self.penalty else { return };
        // Of what stays in Redis the script alone says whether it fits.
        let fits = if stays { charged.counted.verdict.admitted } else { fitted };
        if item.lease.is_some() || fate.action.is_blind() || fits {
            return;
        }
        let role = PenaltyRole::of(&item.cost, charged.counted.reservation);
        let counts = fate.action == Action::Charge && role == PenaltyRole::Asks && !self.unnoted;
        let penalty = if counts { record.violate(terms, now) } else { record.in_force(terms, now) };
        close(&mut charged.counted, penalty, role);
    }

    /// Charges what was used, unless the rule's limit admits nothing that could pay.
    fn report(&mut self, report: &ReportedCost, now: Timestamp) -> u64 {
        if !self.state.can_pay(self.whole, report) {
            return 0;
        }
        self.state.report_beyond(&self.limit, self.view.as_ref(), now, report)
    }

    /// Gives back, and where a charge is named, what of that one still counts.
    fn give_back(&mut self, item: &Item, permits: u64, now: Timestamp) -> u64 {
        let Some(undoes) = &item.undoes else { return self.state.refund(&self.limit, now, permits) };
        let charge = undoes.after(self.undone, permits);
        let back = self.state.give_back(&self.limit, now, charge, permits);
        if self.algorithm.counting() == Counting::Level {
            let started = u32::try_from(back.started).unwrap_or(u32::MAX);
            self.undone = self.undone.wrapping_add(started);
        }
        back.whole
    }

    /// Does what the script says that a commit did.
    fn commit(&mut self, commit: &Commit, counted: &mut ChargeResult, told: &Told, now: Timestamp) {
        let reserved = told.noted.as_ref().map_or(0, |noted| noted.reserved);
        let mut fits = true;
        if counted.reservation == Some(ReservationFate::Repeated) {
            // Nothing was charged.
            fits = commit.id == ReservationId::NONE
                || self.state.owes_nothing(&self.limit, self.view.as_ref(), now);
        } else if commit.actual > reserved {
            let report = ReportedCost { permits: commit.actual - reserved, debt_max: commit.debt_max };
            fits = self.check(now, report.permits).admitted;
            counted.reported = self.report(&report, now);
            counted.uncharged = report.permits.saturating_sub(counted.reported);
        } else {
            counted.returned = told.moved;
            let part = told.noted.as_ref().map_or(0, |noted| noted.part);
            self.state.take_back(&self.limit, now, told.moved, part);
        }
        let after = self.check(now, 0);
        let retry = after.retry.filter(|_| !fits);
        counted.verdict = Verdict { admitted: fits, retry, delay: Span::ZERO, ..after };
    }
}

impl Told {
    fn verdict(&self) -> Verdict {
        Verdict {
            admitted: self.fits,
            remaining: self.remaining,
            reset: Span(self.reset),
            retry: self.retry.map(Span),
            delay: Span::ZERO,
        }
    }
}
