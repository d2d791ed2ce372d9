//! Calls that no decision waits for: what is given back, drawn ahead, charged later, or told of the world.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use smallvec::SmallVec;

use crate::core::hold::{Hold, HoldStep};
use crate::core::key::Key;
use crate::core::request::{Cost, ReportedCost};
use crate::core::time::Timestamp;
use crate::engine::clock::Deadline;
use crate::engine::port::{Charge, Outcome};
use crate::store::redis::batch::call::{Action, Item, Part};
use crate::store::redis::batch::names::Name;
use crate::store::redis::batch::replay::Answered;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::policy::decide::{BACKGROUND_PATIENCE, Core};
use crate::store::redis::policy::fallback::{Confirmed, Owed, reserved_again};
use crate::store::redis::policy::lease::{Advice, Drawn, Leftover};
use crate::store::redis::policy::registry::BEAT;
use crate::store::redis::policy::unwritten::{AllowanceWrite, Entered};
use crate::store::redis::servers::metrics::Leased;
use crate::store::redis::servers::plan::bucket_of;

/// Calls in the background at once: what is given back, charged later, or told of the world. More: the oldest
/// matter is kept where it can be, and is counted as lost where it cannot.
pub(in crate::store::redis) const BACKGROUND_MAX: usize = 1_024;
/// Time between two looks for leases that have ended.
const RETURN_EVERY: Duration = Duration::from_millis(50);

impl Core {
    /// Has a part carried out in the background, and says whether it will be tried. It is in line when this
    /// returns: what is asked after it sees what it did.
    pub(in crate::store::redis) fn in_background<F>(self: &Arc<Self>, part: Part, after: F) -> bool
    where
        F: FnOnce(&Arc<Self>, Result<Answered, Failure>) + Send + 'static,
    {
        let Ok(permit) = Arc::clone(&self.background).try_acquire_owned() else { return false };
        let deadline = Deadline::after(self.timeout * BACKGROUND_PATIENCE);
        let begun = self.dispatcher.begin(Arc::new(part), deadline);
        let core = Arc::clone(self);
        self.runtime.spawn(async move {
            let answer = match begun {
                Ok(begun) => begun.answer().await,
                Err(failure) => Err(failure),
            };
            after(&core, answer);
            drop(permit);
        });
        true
    }

    /// Decides from memory, if one charge is all and permits were drawn for it or its denial is remembered.
    pub(in crate::store::redis) fn decide_from_lease(
        self: &Arc<Self>,
        charge: &Charge<'_>,
    ) -> Option<Outcome> {
        let now = self.started.elapsed();
        let (advice, draw) = self.leases.check(charge, now);
        if let Some(permits) = draw {
            self.draw(charge, permits, now);
        }
        let Advice::Answer(counted) = advice else { return None };
        let admitted = counted.verdict.admitted;
        if admitted {
            self.metrics.leased(Leased::Used, charge.cost.taken());
        }
        Some(Outcome { admitted, counted: SmallVec::from_iter([counted]) })
    }

    /// Draws permits ahead, in the background: half of what is free at most, shared by the region's daemons.
    pub(in crate::store::redis) fn draw(self: &Arc<Self>, charge: &Charge<'_>, permits: u64, sent: Duration) {
        let share = u8::try_from(self.daemons.count().saturating_mul(2)).unwrap_or(u8::MAX);
        let (slot, bucket) = bucket_of(charge);
        let item = Item { lease: Some(share), ..Item::put(Cost::Take(permits)) };
        let buckets = SmallVec::from_iter([bucket.clone()]);
        let part = Part { slot, action: Action::Charge, buckets, charges: SmallVec::from_iter([item]) };
        let key = charge.key.clone();
        let own_key = key.clone();
        let after = move |core: &Arc<Self>, answer: Result<Answered, Failure>| {
            let drawn = answer.ok().and_then(|answered| {
                let charged = answered.charges.into_iter().next()?;
                core.metrics.leased(Leased::Drawn, charged.leased);
                let (permits, state, server) = (charged.leased, charged.state?, answered.now);
                Some(Drawn { permits, state, server, taken: charged.taken, sent, bucket, slot })
            });
            if let Some(leftover) = core.leases.drawn(&key, drawn) {
                core.give_back(leftover);
            }
        };
        if !self.in_background(part, after) {
            self.leases.drawn(&own_key, None);
        }
    }

    pub(in crate::store::redis) async fn return_leases(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(RETURN_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            for leftover in self.leases.sweep(self.started.elapsed(), false) {
                self.give_back(leftover);
            }
        }
    }

    /// Notes every few seconds that this daemon is alive.
    pub(in crate::store::redis) async fn note_itself(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(BEAT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.stop_noting.cancelled() => return,
                _ = ticks.tick() => self.registry.beat(&self.dispatcher).await,
            }
        }
    }

    /// Returns the part that gives leased permits back; `None` if it is too late.
    pub(in crate::store::redis) fn leftover(&self, leftover: &Leftover) -> Option<Part> {
        if leftover.back == 0 {
            self.metrics.leased(Leased::Lost, leftover.permits);
            return None;
        }
        let cost = Cost::Refund(leftover.back);
        let item = Item { undoes: Some(leftover.taken), ..Item::put(cost) };
        Some(Part {
            slot: leftover.slot,
            action: Action::Put,
            buckets: SmallVec::from_iter([leftover.bucket.clone()]),
            charges: SmallVec::from_iter([item]),
        })
    }

    /// Counts what became of permits that were to go back.
    pub(in crate::store::redis) fn returned(&self, permits: u64, answer: Result<Answered, Failure>) {
        let charged = answer.ok().and_then(|answered| answered.charges.into_iter().next());
        let back = charged.map_or(0, |charged| charged.counted.returned.min(permits));
        self.metrics.leased(Leased::Returned, back);
        self.metrics.leased(Leased::Lost, permits - back);
    }

    pub(in crate::store::redis) fn give_back(self: &Arc<Self>, leftover: Leftover) {
        let permits = leftover.permits;
        let Some(part) = self.leftover(&leftover) else {
            return self.leases.went_back(&leftover.key, false, self.started.elapsed());
        };
        let after = move |core: &Arc<Self>, answer: Result<Answered, Failure>| {
            core.returned(permits, answer);
        };
        let in_line = self.in_background(part, after);
        if !in_line {
            self.metrics.leased(Leased::Lost, permits);
        }
        self.leases.went_back(&leftover.key, in_line, self.started.elapsed());
    }

    /// Gives back what a denied decision took. Lost, it stays charged: too strict by that much, never too
    /// lax.
    pub(in crate::store::redis) fn undo(self: &Arc<Self>, part: Part) {
        let after = |core: &Arc<Self>, answer: Result<Answered, Failure>| {
            if answer.is_err() {
                core.metrics.undo_lost();
            }
        };
        if !self.in_background(part, after) {
            self.metrics.undo_lost();
        }
    }

    /// Charges what was admitted without Redis. This daemon goes on with what it counted by itself until that
    /// is known.
    pub(in crate::store::redis) fn pay(self: &Arc<Self>, mut owed: Owed, now: Timestamp) {
        self.metrics.untold(std::mem::take(&mut owed.untold));
        let holds = owed.holders.iter().map(|(holder, places)| {
            Item::put(Cost::Hold(Hold { step: HoldStep::Acquire, holder: *holder, places: *places }))
        });
        let mut charges: SmallVec<[Item; 2]> = holds.collect();
        let server = self.fallback.server_time(now);
        let reserved = owed.reserved.iter();
        charges.extend(
            reserved.map(|(id, charge)| Item::put(Cost::Reserve(reserved_again(*id, charge, server)))),
        );
        if owed.holders.is_empty() && owed.permits > 0 {
            let report = |debt_max| Cost::Report(ReportedCost { permits: owed.permits, debt_max });
            charges.push(Item::put(owed.debt_max.map_or(Cost::Take(owed.permits), report)));
        }
        let buckets = SmallVec::from_iter([owed.bucket.clone()]);
        let part = Part { slot: owed.slot, action: Action::Put, buckets, charges };
        let part = if owed.reserved.is_empty() { part } else { part.with_notes() };
        let later = owed.clone();
        let after = move |core: &Arc<Self>, answer: Result<Answered, Failure>| match answer {
            Ok(answered) => {
                let state = answered.charges.into_iter().next().and_then(|charged| charged.state);
                // Logs and holders are told nothing here; the next decision tells them.
                let more = state.and_then(|state| {
                    core.fallback.learn(&owed.key, owed.bucket.limit, Some(state), answered.now)
                });
                if let Some(more) = more {
                    core.pay(more, now);
                }
            }
            // A reservation that is made once more takes nothing more, so that is tried again in any case.
            Err(failure) if failure.is_uncertain() => {
                owed.permits = 0;
                if !owed.reserved.is_empty() {
                    core.fallback.owe(&owed, now);
                }
            }
            Err(_) => core.fallback.owe(&owed, now),
        };
        if !self.in_background(part, after) {
            self.fallback.owe(&later, now);
        }
    }

    /// Writes what the world leaves of a bucket where all daemons of the region read it. A write that fails
    /// is tried again with the newest allowance until Redis would have forgotten it.
    pub(in crate::store::redis) fn write_allowance(
        self: &Arc<Self>,
        bucket: &Key,
        name: Name,
        value: Vec<u8>,
        ttl: Duration,
    ) {
        let (bucket, until) = (bucket.clone(), self.started.elapsed() + ttl);
        let Name { key, slot } = name;
        match self.unwritten.enter(&key, AllowanceWrite { bucket, slot, value, until }) {
            Entered::Write => self.write_newest(key),
            Entered::Follows => {}
            Entered::Full => self.metrics.allowance_lost(),
        }
    }

    /// Tries those again whose writes failed.
    pub(in crate::store::redis) fn write_again(self: &Arc<Self>) {
        let most = self.background.available_permits();
        for key in self.unwritten.again(self.started.elapsed(), most, |slot| self.has_room(slot)) {
            self.write_newest(key);
        }
    }

    /// Writes one allowance. Returns whether Redis has it.
    pub(in crate::store::redis) async fn put_allowance(
        &self,
        key: &[u8],
        write: &AllowanceWrite,
        deadline: Deadline,
    ) -> bool {
        let sent = self.started.elapsed();
        let ttl = write.until.saturating_sub(sent);
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut command = redis::cmd("SET");
        command.arg(key).arg(&write.value).arg("PX").arg(ttl).arg("GET");
        let before = self.dispatcher.plain(&command, write.slot, deadline).await;
        match &before {
            Ok(before) => {
                let confirmed = Confirmed { from: self.started.elapsed(), until: write.until };
                let was_there = *before != Value::Nil;
                self.fallback.confirm(&write.bucket, confirmed, sent, was_there);
            }
            Err(_) => self.fallback.doubt(&write.bucket),
        }
        before.is_ok()
    }

    /// Writes a bucket's allowances one after the other until the newest is there.
    fn write_newest(self: &Arc<Self>, key: Vec<u8>) {
        let Ok(permit) = Arc::clone(&self.background).try_acquire_owned() else {
            self.unwritten.ended(&key, false);
            return;
        };
        let core = Arc::clone(self);
        self.runtime.spawn(async move {
            while let Some(write) = core.unwritten.take(&key) {
                let deadline = Deadline::after(core.timeout * BACKGROUND_PATIENCE);
                let written = core.put_allowance(&key, &write, deadline).await;
                if !core.unwritten.ended(&key, written) {
                    break;
                }
            }
            drop(permit);
        });
    }
}
