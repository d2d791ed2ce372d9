//! One decision over several buckets of the memory store: ask them all, make room for all, then charge all or
//! none, but reports always. The slots it touches are locked before it begins and stay so until it has ended.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::evaluation::Evaluation;
use super::slot::{KeySlot, Named};
use crate::core::algorithm::Verdict;
use crate::core::request::Cost;
use crate::core::reservation::ReservationFate;
use crate::core::table::TablePlace;
use crate::core::time::Timestamp;
use crate::engine::port::{Charge, ChargeResult, Intent, Outcome};

/// A slot by its index, locked.
pub(super) type LockedSlot<'s> = (usize, MutexGuard<'s, KeySlot>);

/// A decision under way.
pub(super) struct Decision<'a, 's> {
    slots: &'a mut [LockedSlot<'s>],
    plans: SmallVec<[Plan<'a>; 4]>,
    now: Timestamp,
}

/// One charge on its way through the decision.
struct Plan<'a> {
    charge: &'a Charge<'a>,
    named: Named<'a>,
    /// Index of its bucket's slot in [`Decision::slots`].
    slot: usize,
    looked: Evaluation,
    /// Its bucket was made for this decision.
    made: bool,
    /// Answer to it, if its bucket finds no room.
    without_room: Option<Verdict>,
}

impl Plan<'_> {
    /// True if it takes from what is free. The amount that a commit charges is known only when it is charged.
    fn takes(&self) -> bool {
        let commits = matches!(self.charge.cost, Cost::Commit(_));
        self.charge.cost.taken() > 0 && self.looked.fits() && !commits
    }

    /// True if the decision charges it: a report always, anything else where it fits and all is admitted.
    fn is_charged(&self, admitted: bool) -> bool {
        self.charge.cost.is_report() || (admitted && self.looked.fits())
    }

    /// True if it lets the whole decision pass.
    fn passes(&self) -> bool {
        let has_room = self.without_room.is_none_or(|verdict| verdict.admitted);
        !self.charge.enforced || (self.looked.fits() && has_room)
    }
}

impl<'a, 's> Decision<'a, 's> {
    /// Asks every bucket. `named` tells each charge's slot; `slots` holds all of those, in ascending order.
    pub(super) fn look(
        charges: &'a [Charge<'a>],
        named: &[(usize, Named<'a>)],
        slots: &'a mut [LockedSlot<'s>],
        now: Timestamp,
    ) -> Self {
        let mut decision = Self { slots, plans: SmallVec::new(), now };
        for (charge, (index, named)) in charges.iter().zip(named) {
            let found = decision.slots.binary_search_by_key(index, |(index, _)| *index);
            let Some((slot, (_, locked))) = found.ok().and_then(|at| Some((at, decision.slots.get_mut(at)?)))
            else {
                continue;
            };
            // Permits that this decision already takes from the same bucket count against it.
            let held = |plan: &Plan<'_>| {
                let before = matches!(plan.looked.fate, Some(ReservationFate::HeldBefore { .. }));
                before && plan.charge.cost.is_reserved()
            };
            let same = |plan: &&Plan<'_>| plan.named.is(named) && plan.takes() && !held(plan);
            let before = decision.plans.iter().filter(same).map(|plan| plan.charge.cost.taken());
            let before = before.fold(0, u64::saturating_add);
            let looked = locked.judge(charge, *named, before, now);
            let (made, without_room) = (false, None);
            decision.plans.push(Plan { charge, named: *named, slot, looked, made, without_room });
        }
        decision
    }

    /// Charges all or nothing, but reports always, and answers.
    pub(super) fn settle(mut self, intent: Intent) -> Outcome {
        let mut admitted = self.passes();
        let charges = intent == Intent::Charge;
        if charges {
            self.make_room(admitted);
            if admitted && !self.passes() {
                admitted = false;
                self.unmake();
            }
        }
        let now = self.now;
        let counted = self.plans.iter().map(|plan| {
            let Some((_, slot)) = self.slots.get_mut(plan.slot) else { return plan.looked.counted() };
            let mut counted = match charges && (admitted || plan.charge.cost.is_report()) {
                true => charge(slot, plan),
                false => {
                    let paid = if charges { slot.pay(plan.charge, &plan.looked) } else { 0 };
                    ChargeResult { paid, ..answer(slot, plan, admitted) }
                }
            };
            slot.punish(plan.charge, &plan.looked, plan.named, (intent, now), &mut counted);
            counted
        });
        let mut outcome = Outcome { admitted, counted: counted.collect() };
        // What could not be noted is charged, and denied all the same.
        let denied = |(plan, counted): (&Plan<'_>, &ChargeResult)| {
            let takes = plan.charge.enforced && !matches!(plan.charge.cost, Cost::Commit(_));
            takes && counted.degraded && !counted.verdict.admitted
        };
        outcome.admitted &= !self.plans.iter().zip(&outcome.counted).any(denied);
        outcome
    }

    fn passes(&self) -> bool {
        self.plans.iter().all(Plan::passes)
    }

    /// Makes the buckets that are not yet there and will be charged. None of this decision's own is forgotten
    /// for it.
    fn make_room(&mut self, admitted: bool) {
        let mut pinned: SmallVec<[(usize, TablePlace); 4]> =
            self.plans.iter().filter_map(|plan| Some((plan.slot, plan.looked.place?))).collect();
        let takes = |plan: &&mut Plan<'_>| plan.charge.cost.taken() > 0 && plan.is_charged(admitted);
        for plan in self.plans.iter_mut().filter(takes) {
            let Some((_, slot)) = self.slots.get_mut(plan.slot) else { continue };
            plan.looked.place = plan.looked.place.or_else(|| slot.find(plan.named));
            let keep = |place| pinned.contains(&(plan.slot, place));
            if !slot.may_grow(plan.charge, plan.looked.place, self.now, keep) {
                plan.without_room = Some(slot.newcomers.charge(
                    plan.charge,
                    plan.looked.verdict,
                    &plan.looked.limit,
                    plan.looked.now,
                ));
                continue;
            }
            if plan.looked.place.is_some() {
                continue;
            }
            plan.looked.place = slot.make(plan.charge, plan.named, self.now, keep);
            match plan.looked.place {
                Some(place) => {
                    plan.made = true;
                    pinned.push((plan.slot, place));
                }
                None => {
                    plan.without_room = Some(slot.newcomers.charge(
                        plan.charge,
                        plan.looked.verdict,
                        &plan.looked.limit,
                        plan.looked.now,
                    ))
                }
            }
        }
    }

    /// Forgets the buckets that were made, but those that a report is charged to.
    fn unmake(&mut self) {
        let reported: SmallVec<[Named<'_>; 4]> =
            self.plans.iter().filter(|plan| plan.charge.cost.is_report()).map(|plan| plan.named).collect();
        for plan in &mut self.plans {
            let Some((_, slot)) = self.slots.get_mut(plan.slot) else { continue };
            let kept = reported.iter().any(|named| named.is(&plan.named));
            if let (true, false, Some(place)) = (plan.made, kept, plan.looked.place) {
                slot.unmake(place);
            }
        }
        // Places of buckets that are gone name nothing.
        for plan in &mut self.plans {
            let Some((_, slot)) = self.slots.get_mut(plan.slot) else { continue };
            plan.looked.place = slot.find(plan.named);
        }
    }
}

fn charge(slot: &mut KeySlot, plan: &Plan<'_>) -> ChargeResult {
    if !plan.is_charged(true) {
        return slot.uncharged(plan.charge, &plan.looked, plan.named);
    }
    if let Some(verdict) = plan.without_room {
        return plan.looked.without_room(verdict);
    }
    // A charge before this one may have made the bucket that a refund gives back to.
    let place = plan.looked.place.or_else(|| slot.find(plan.named));
    slot.charged(plan.charge, &plan.looked, place, plan.named)
}

/// The answer where nothing is charged: as it would be if only asked, else as it is now that nothing was
/// taken.
fn answer(slot: &mut KeySlot, plan: &Plan<'_>, admitted: bool) -> ChargeResult {
    if let Some(verdict) = plan.without_room {
        return plan.looked.without_room(verdict);
    }
    // A report before it may have made the bucket.
    let mut looked = plan.looked;
    looked.place = looked.place.or_else(|| slot.find(plan.named));
    let mut counted = slot.uncharged(plan.charge, &looked, plan.named);
    if !admitted && plan.takes() && !plan.charge.cost.is_report() {
        counted.verdict = slot.look_untaken(plan.charge, &looked, plan.named);
    }
    counted
}
