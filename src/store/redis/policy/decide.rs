//! One decision from its charges to its outcome.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::core::algorithm::{Algorithm, Allowance, Counting};
use crate::core::key::Key;
use crate::core::request::Cost;
use crate::core::ruleset::Compiled;
use crate::core::time::Timestamp;
use crate::engine::clock::{Deadline, Stopwatch};
use crate::engine::port::{BucketInfo, Charge, ChargeResult, HeldLimit, Intent, Outcome};
use crate::store::redis::batch::call::{Action, Item, Part, pack_view};
use crate::store::redis::batch::names;
use crate::store::redis::batch::replay::{Answered, Charged};
use crate::store::redis::client::breaker::Phase;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::slots::ClusterSlot;
use crate::store::redis::policy::daemons::Daemons;
use crate::store::redis::policy::fallback::{BucketBefore, Elapsed, Fallback, Forgotten, ToldAllowance};
use crate::store::redis::policy::first_start::Marking;
use crate::store::redis::policy::lease::{DrawnAhead, Leases};
use crate::store::redis::policy::registry::Registry;
use crate::store::redis::policy::unwritten::{AllowanceWrite, Unwritten};
use crate::store::redis::servers::dispatcher::Dispatcher;
use crate::store::redis::servers::metrics::StoreMetrics;
use crate::store::redis::servers::plan::{self, Planned};

/// For a call in the background, in decisions' timeouts.
pub(in crate::store::redis) const BACKGROUND_PATIENCE: u32 = 10;

/// How often it is looked whether the books of a draw are kept.
const DRAW_BOOKED: Duration = Duration::from_millis(1);
/// Most times that a denied decision is asked once more, because permits that were drawn went back.
const PUT_BACK_MAX: u32 = 8;

/// When a decision is sent, since this daemon began, and until when it may be asked.
#[derive(Debug, Clone, Copy)]
struct AskedAt {
    sent: Duration,
    deadline: Deadline,
}

/// The state that decisions and background calls share.
#[derive(Debug)]
pub(in crate::store::redis) struct Core {
    pub(in crate::store::redis) dispatcher: Arc<Dispatcher>,
    pub(in crate::store::redis) fallback: Fallback,
    pub(in crate::store::redis) leases: Leases,
    pub(in crate::store::redis) daemons: Arc<Daemons>,
    pub(in crate::store::redis) registry: Registry,
    /// Ends the notes of this daemon before the rest of it.
    pub(in crate::store::redis) stop_noting: CancellationToken,
    pub(in crate::store::redis) started: Stopwatch,
    pub(in crate::store::redis) metrics: Arc<StoreMetrics>,
    pub(in crate::store::redis) timeout: Duration,
    pub(in crate::store::redis) background: Arc<Semaphore>,
    pub(in crate::store::redis) unwritten: Unwritten,
    pub(in crate::store::redis) marking: Marking,
    /// Counts decisions of split keys, so that they take their sub-keys in turn.
    pub(in crate::store::redis) turns: AtomicU32,
    /// Views and debits come from callers outside any runtime.
    pub(in crate::store::redis) runtime: Handle,
    pub(in crate::store::redis) stop: CancellationToken,
}

impl Core {
    /// Decides charges as one, by `deadline`.
    pub(in crate::store::redis) async fn decide(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        intent: Intent,
        now: Timestamp,
        deadline: Deadline,
    ) -> Outcome {
        if charges.is_empty() {
            return Outcome { admitted: true, counted: SmallVec::new() };
        }
        let planned = self.planned(charges, intent);
        if self.fallback.owes() {
            self.pay_first(&planned, charges, now);
        }
        // A refund gives back no more than was used, so what was drawn ahead and not used is put back before.
        for charge in charges.iter().filter(|charge| matches!(charge.cost, Cost::Refund(_))) {
            let at = AskedAt { sent: self.started.elapsed(), deadline };
            self.put_back(charge.key, at).await;
        }
        let drawn = self.drawn_for_looks(charges);
        let mut at = AskedAt { sent: self.started.elapsed(), deadline };
        let mut outcome = self.ask_and_judge(charges, &planned, intent, now, at).await;
        // What this daemon drew ahead is charged in Redis: it must refuse nobody here. Others may draw again
        // while this is asked once more.
        for _ in 0..PUT_BACK_MAX {
            if outcome.admitted || !self.put_back_drawn(charges, &outcome, at).await {
                break;
            }
            at.sent = self.started.elapsed();
            outcome = self.ask_and_judge(charges, &planned, intent, now, at).await;
        }
        if let ([charge], [counted], Intent::Charge) = (charges, outcome.counted.as_slice(), intent)
            && !counted.degraded
        {
            self.leases.denied(charge, counted, at.sent);
        }
        for (charge, counted) in charges.iter().zip(&outcome.counted) {
            if matches!(charge.cost, Cost::Refund(_) | Cost::Commit(_)) && !counted.degraded {
                self.leases.gave_back(charge.key, self.started.elapsed());
            }
        }
        for (place, unused) in drawn {
            if let Some(counted) = outcome.counted.get_mut(place).filter(|counted| !counted.degraded) {
                free_drawn(counted, unused);
            }
        }
        outcome
    }

    /// Permits that this daemon drew ahead and did not use, by the place of a charge that only looks. They
    /// are counted before Redis is asked: what is drawn later is in no answer to it.
    fn drawn_for_looks(&self, charges: &[Charge<'_>]) -> SmallVec<[(usize, u64); 1]> {
        let looks = charges.iter().enumerate().filter(|(_, charge)| charge.cost == Cost::Peek);
        looks.map(|(place, charge)| (place, self.leases.unused(charge.key, self.started.elapsed()))).collect()
    }

    async fn ask_and_judge(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        planned: &[Planned],
        intent: Intent,
        now: Timestamp,
        at: AskedAt,
    ) -> Outcome {
        let mut answers = self.ask_all(planned, at.deadline).await;
        for (planned, answer) in planned.iter().zip(&mut answers) {
            self.ask_restored(charges, planned, answer, intent, at).await;
        }
        self.outcome_of_parts(charges, planned, answers, intent, now)
    }

    /// Gives back what was drawn ahead for the keys that deny a decision asked then. Returns whether it may
    /// be asked once more. What is charged whatever the answer is asked once.
    async fn put_back_drawn(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        outcome: &Outcome,
        at: AskedAt,
    ) -> bool {
        let once = |charge: &Charge<'_>| {
            charge.cost.is_report() || matches!(charge.cost, Cost::Commit(_) | Cost::Refund(_))
        };
        if charges.iter().any(once) || outcome.counted.iter().any(|counted| counted.degraded) {
            return false;
        }
        let (mut any, mut counts_denials) = (false, false);
        for (charge, counted) in charges.iter().zip(&outcome.counted) {
            if counted.verdict.admitted || !charge.enforced {
                continue;
            }
            let went_back = self.put_back(charge.key, at).await;
            // One that denies for itself would count the same denial once more.
            counts_denials |= !went_back && charge.rule.rule.penalty.is_some();
            any |= went_back;
        }
        any && !counts_denials && !at.deadline.left().is_zero()
    }

    /// Gives back what was drawn ahead for a key that was asked for then. Returns whether permits of it are
    /// free since.
    async fn put_back(self: &Arc<Self>, key: &Key, at: AskedAt) -> bool {
        loop {
            match self.leases.behind_denial(key, at.sent, self.started.elapsed()) {
                // A draw that was sent before is answered before, and its books are kept a moment later.
                DrawnAhead::Moving if !at.deadline.left().is_zero() => tokio::time::sleep(DRAW_BOOKED).await,
                DrawnAhead::Held(leftover) => {
                    let is_free = leftover.back > 0;
                    self.give_back(*leftover);
                    return is_free;
                }
                DrawnAhead::WentBack => return true,
                DrawnAhead::Moving | DrawnAhead::Nothing => return false,
            }
        }
    }

    /// Returns what a bucket holds; `None` if it is unused. Permits that this daemon has drawn ahead and not
    /// used are free. Returns what this daemon knows by itself if Redis does not answer.
    pub(in crate::store::redis) async fn bucket(
        &self,
        rule: &Compiled,
        key: &Key,
        held: HeldLimit,
        now: Timestamp,
    ) -> Option<BucketInfo> {
        let charge = Charge {
            rule,
            key,
            limit: held.limit,
            share: held.share,
            whole: &held.limit,
            first: None,
            cost: Cost::Peek,
            enforced: true,
        };
        let deadline = Deadline::after(self.timeout);
        let planned = plan::split(std::slice::from_ref(&charge), Intent::Ask, None);
        let planned = planned.first()?;
        let unused = self.leases.unused(key, self.started.elapsed());
        let look = Part { action: Action::Look, ..Part::clone(&planned.part) };
        let Ok(answered) = self.dispatcher.ask(Arc::new(look), deadline).await else {
            let charges = [charge];
            let missing = plan::unanswered(planned, &charges);
            let counted = self.fallback.decide(&missing, Intent::Ask, now, true).counted;
            return counted.first().map(info_of);
        };
        let charged = answered.charges.first()?;
        let stays = matches!(rule.rule.algorithm, Algorithm::SlidingLog | Algorithm::Concurrency);
        let used = stays && charged.counted.used > 0;
        let known = charged.counted.view.is_some() || charged.counted.penalty.is_some();
        (charged.existed || used || known).then(|| {
            let mut counted = charged.counted;
            free_drawn(&mut counted, unused);
            info_of(&counted)
        })
    }

    /// Forgets a bucket; see [`crate::engine::port::Store::reset`].
    pub(in crate::store::redis) async fn reset(&self, rule: &Compiled, key: &Key) -> Option<bool> {
        let charge = Charge {
            rule,
            key,
            limit: rule.limit,
            share: None,
            whole: &rule.limit,
            first: None,
            cost: Cost::Peek,
            enforced: true,
        };
        let (slot, bucket) = plan::bucket_of(&charge);
        let mut command = redis::cmd("DEL");
        // Either key may stand beside the other while daemons have two versions of the rule.
        for key in [names::beside(&bucket.key, bucket.shape), bucket.key] {
            let notes = names::notes(&key);
            command.arg(names::penalty(&key)).arg(key).arg(&notes);
        }
        self.fallback.forget(key);
        // Permits that were drawn are forgotten with the bucket that they were charged to.
        self.leases.forget(key, self.started.elapsed());
        let deadline = Deadline::after(self.timeout * BACKGROUND_PATIENCE);
        match self.dispatcher.plain(&command, slot, deadline).await {
            Ok(Value::Int(gone)) => Some(gone > 0),
            _ => None,
        }
    }

    /// The parts that charges fall into.
    pub(in crate::store::redis) fn planned(
        &self,
        charges: &[Charge<'_>],
        intent: Intent,
    ) -> SmallVec<[Planned; 1]> {
        let map = self.dispatcher.places().map();
        plan::split(charges, intent, self.dispatcher.places().joins_slots().then_some(&map))
    }

    /// True if the server of a slot takes what it is owed.
    pub(in crate::store::redis) fn is_back(&self, slot: ClusterSlot) -> bool {
        self.dispatcher.places().map().node(slot).is_some_and(|node| node.phase() == Phase::Closed)
    }

    /// The same of what it is owed for new keys.
    pub(in crate::store::redis) fn has_room(&self, slot: ClusterSlot) -> bool {
        let map = self.dispatcher.places().map();
        map.node(slot).is_some_and(|node| node.phase() == Phase::Closed && !node.is_crowded())
    }

    /// Puts what these buckets owe in line before the decision, so that Redis decides with it.
    fn pay_first(self: &Arc<Self>, planned: &[Planned], charges: &[Charge<'_>], now: Timestamp) {
        for planned in planned.iter().filter(|planned| self.is_back(planned.part.slot)) {
            for charge in planned.places.iter().filter_map(|place| charges.get(*place)) {
                if let Some(owed) = self.fallback.settle(charge.key, now) {
                    self.pay(owed, now);
                }
            }
        }
    }

    /// Asks all parts at once.
    async fn ask_all(
        self: &Arc<Self>,
        planned: &[Planned],
        deadline: Deadline,
    ) -> SmallVec<[Result<Answered, Failure>; 1]> {
        if let [only] = planned {
            return SmallVec::from_iter([self.dispatcher.ask(Arc::clone(&only.part), deadline).await]);
        }
        let asked = planned.iter().map(|planned| self.dispatcher.ask(Arc::clone(&planned.part), deadline));
        futures_util::future::join_all(asked).await.into()
    }

    /// Tells Redis what is known here of the buckets if an answer shows that it has lost what it was told,
    /// and asks it once more. A bucket that it cannot be told of is not decided by it.
    async fn ask_restored(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        planned: &Planned,
        answer: &mut Result<Answered, Failure>,
        intent: Intent,
        at: AskedAt,
    ) {
        let Ok(answered) = answer else { return };
        let lost = self.lost(charges, planned, answered, at.sent);
        if lost.is_empty() {
            return;
        }
        // A report, or a commit, is charged whatever the answer: once is enough.
        let again = !planned
            .part
            .charges
            .iter()
            .any(|item| item.cost.is_report() || matches!(item.cost, Cost::Commit(_) | Cost::Refund(_)));
        if let Some(undo) = plan::undo(&planned.part, answered)
            .filter(|_| again && answered.admitted && intent == Intent::Charge)
        {
            self.undo(undo);
        }
        let mut restored = true;
        for (charge, forgotten) in lost {
            restored &= self.restore_known(charge, &forgotten, at.deadline).await;
        }
        if again {
            *answer = match restored {
                true => self.dispatcher.ask(Arc::clone(&planned.part), at.deadline).await,
                false => Err(Failure::Timeout),
            };
        }
    }

    /// The buckets of a part of which Redis has lost something.
    fn lost<'a>(
        &self,
        charges: &'a [Charge<'a>],
        planned: &Planned,
        answered: &Answered,
        sent: Duration,
    ) -> SmallVec<[(&'a Charge<'a>, Forgotten); 1]> {
        let times = Elapsed { sent, now: self.started.elapsed() };
        let items = planned.part.charges.iter().zip(&answered.charges);
        let lost = planned.places.iter().zip(items).filter_map(|(place, (item, charged))| {
            let charge = charges.get(*place)?;
            planned.part.buckets.get(item.bucket).filter(|bucket| bucket.worldwide)?;
            let Charged { has_allowance, newest, was_empty, .. } = *charged;
            let before = BucketBefore { has_allowance, newest, was_empty, now: answered.now };
            Some((charge, self.fallback.forgotten(charge.key, &charge.limit, before, times)?))
        });
        lost.collect()
    }

    /// Tells Redis what is known here of a bucket. Returns whether it was told.
    async fn restore_known(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        forgotten: &Forgotten,
        deadline: Deadline,
    ) -> bool {
        self.metrics.forgotten();
        let (slot, bucket) = plan::bucket_of(charge);
        let mut told = true;
        if let Some(ToldAllowance { allowance, error_bound, .. }) = &forgotten.told {
            let window = (charge.rule.counting() != Counting::Level).then_some(charge.limit.window);
            let until = self.started.elapsed() + Allowance::kept_for(window).to_std();
            let value = pack_view(allowance, *error_bound);
            let write = AllowanceWrite { bucket: charge.key.clone(), slot, value, until };
            told = self.put_allowance(&names::view(&bucket.key), &write, deadline).await;
        }
        let Some(known) = forgotten.used else { return told };
        let item = Item::put(Cost::Take(0));
        let buckets = SmallVec::from_iter([bucket]);
        let action = Action::Restore(known);
        let part = Part { slot, action, buckets, charges: SmallVec::from_iter([item]) };
        told && self.dispatcher.ask(Arc::new(part), deadline).await.is_ok()
    }

    /// Makes one outcome of the parts' answers; policies answer for those that have none.
    fn outcome_of_parts(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        planned: &[Planned],
        answers: SmallVec<[Result<Answered, Failure>; 1]>,
        intent: Intent,
        now: Timestamp,
    ) -> Outcome {
        let mut counted: SmallVec<[Option<ChargeResult>; 2]> = charges.iter().map(|_| None).collect();
        let mut admitted = true;
        let mut missing = Vec::new();
        let mut missing_places: SmallVec<[usize; 2]> = SmallVec::new();
        for (planned, answer) in planned.iter().zip(&answers) {
            match answer {
                Ok(answered) => {
                    admitted &= answered.admitted;
                    self.learn(charges, planned, answered, now);
                    for (place, charged) in planned.places.iter().zip(&answered.charges) {
                        if let Some(slot) = counted.get_mut(*place) {
                            *slot = Some(charged.counted);
                        }
                    }
                }
                Err(_) => {
                    self.fallback.note_trouble(now);
                    missing.extend(plan::unanswered(planned, charges));
                    missing_places.extend(planned.places.iter().copied());
                }
            }
        }
        if !missing.is_empty() {
            let policies = self.fallback.decide(&missing, intent, now, admitted);
            admitted = policies.admitted;
            for (place, answer) in missing_places.iter().zip(policies.counted) {
                if let Some(slot) = counted.get_mut(*place) {
                    *slot = Some(answer);
                }
            }
        }
        if !admitted && intent == Intent::Charge {
            for (planned, answer) in planned.iter().zip(&answers) {
                if let Ok(answered) = answer
                    && answered.admitted
                {
                    self.undo_part(planned, answered, &mut counted);
                }
            }
        }
        Outcome { admitted, counted: counted.into_iter().flatten().collect() }
    }

    /// Gives back what a part took of a decision that another denies.
    fn undo_part(
        self: &Arc<Self>,
        planned: &Planned,
        answered: &Answered,
        counted: &mut [Option<ChargeResult>],
    ) {
        for (place, item) in planned.places.iter().zip(&planned.part.charges) {
            if let Some(Some(counted)) = counted.get_mut(*place) {
                plan::untaken(counted, item.cost);
            }
        }
        if let Some(undo) = plan::undo(&planned.part, answered) {
            self.undo(undo);
        }
    }

    /// Remembers what Redis said, for when it is away, and charges what was admitted while it was.
    fn learn(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        planned: &Planned,
        answered: &Answered,
        now: Timestamp,
    ) {
        self.fallback.hear_time(answered.now, now);
        for (place, charged) in planned.places.iter().zip(&answered.charges) {
            let Some(charge) = charges.get(*place) else { continue };
            let state = charged.state.clone();
            if let Some(owed) = self.fallback.learn(charge.key, charge.limit, state, answered.now) {
                self.pay(owed, now);
            }
        }
    }
}

/// Shows as free what was drawn ahead and not used.
fn free_drawn(counted: &mut ChargeResult, unused: u64) {
    let unused = unused.min(counted.used);
    counted.used -= unused;
    counted.verdict.remaining += unused;
}

const fn info_of(counted: &ChargeResult) -> BucketInfo {
    BucketInfo {
        used: counted.used,
        verdict: counted.verdict,
        view: counted.view,
        error_bound: counted.error_bound,
        degraded: counted.degraded,
        penalty: counted.penalty,
    }
}
