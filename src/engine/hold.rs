//! Requests in flight: the lease of one who acquired places of `concurrency` rules, and what is done with it
//! later.
//!
//! Acquiring is a decision like any other ([`Engine::decide`]), so it is all or nothing together with every
//! other rule. Renewing and giving back are steps of their own on each bucket that the lease names: each does
//! what it can.

use std::sync::Arc;

use metrics::Counter;
use ring::rand::{SecureRandom, SystemRandom};
use smallvec::SmallVec;

use super::Engine;
use super::audit::Question;
use super::caller_id::digest_of;
use super::estimate::kind_of;
use super::identity::secret::NoRandomness;
use super::port::{Charge, ChargeResult, HeldLimit, Intent};
use crate::core::algorithm::{Algorithm, Limit};
use crate::core::decision::{Leased, RuleOutcome};
use crate::core::hold::{
    HELD_RULES_MAX, HOLDER_BYTES, HeldPlaces, Hold, HoldStep, Holder, Lease, ReservedFor,
};
use crate::core::key::{BucketValues, Key};
use crate::core::price::Price;
use crate::core::request::{Cost, Request};
use crate::core::reservation::ReservationFate;
use crate::core::ruleset::{Compiled, Match};
use crate::core::time::{Span, Timestamp};
use crate::telemetry::Metrics;

/// A holder whose name nobody can guess.
///
/// # Errors
/// When there is no randomness.
pub fn new_holder() -> Result<Holder, NoRandomness> {
    let mut name = [0; HOLDER_BYTES];
    SystemRandom::new().fill(&mut name).map_err(|_| NoRandomness)?;
    Ok(Holder(name))
}

/// The holder that a caller names by its own id: the same for the same id of the same request, and told apart
/// from any other. It is as hard to guess as the id is.
#[must_use]
pub fn holder_of(id: &str, request: &Request<'_>) -> Holder {
    let digest = digest_of(id, request);
    Holder(digest.as_ref().first_chunk().copied().unwrap_or_default())
}

/// The outcome of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stepped {
    /// True if all of it was still held.
    pub held: bool,
    /// Time until the first of its places is free again without renewing once more.
    pub hold: Span,
    /// True if the store could not be asked for some of it.
    pub degraded: bool,
}

/// Counts steps by what they did.
#[derive(Debug)]
pub(super) struct Holds([Counter; 5]);

impl Holds {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let events = ["acquired", "renewed", "released", "gone", "unnamed"];
        Self(events.map(|event| metrics.counter("holds_total", "event", event)))
    }

    pub(super) fn count(&self, step: HoldStep, rules: usize) {
        let [acquired, renewed, released, ..] = &self.0;
        let counter = match step {
            HoldStep::Acquire => acquired,
            HoldStep::Renew => renewed,
            HoldStep::Release => released,
        };
        counter.increment(u64::try_from(rules).unwrap_or(0));
    }

    fn count_gone(&self, rules: usize) {
        let [.., gone, _] = &self.0;
        gone.increment(u64::try_from(rules).unwrap_or(0));
    }
}

/// A lease while its decision is put into words, and how many rules it had no room to name.
pub(super) struct Leasing(Option<Leased>, u64);

impl Leasing {
    /// Begins for a request of this cost; `charged`: its call was charged at `now`.
    pub(super) fn of(cost: Cost, charged: bool, now: Timestamp) -> Self {
        let leased = match cost {
            Cost::Hold(hold) if charged && cost.taken() > 0 => {
                let lease = Lease { holder: hold.holder, held: SmallVec::new() };
                Some(Leased { lease, hold: Span(u64::MAX), made: now, held_before: None })
            }
            Cost::Reserve(reserve) if charged => {
                let lease = Lease { holder: Holder(reserve.id.0), held: SmallVec::new() };
                Some(Leased { lease, hold: reserve.ttl, made: now, held_before: None })
            }
            _ => None,
        };
        Self(leased, 0)
    }

    /// Takes down what was acquired of one rule, if anything was.
    pub(super) fn note(
        &mut self,
        (found, request): (&Match<'_>, &Request<'_>),
        key: &Key,
        cost: Cost,
        counted: &ChargeResult,
    ) {
        let rule = &found.rule.rule;
        let Some(leased) = &mut self.0 else { return };
        let (counts, hold) = match cost {
            // A commit charges every rule, whether or not it could note the reservation; but none that named
            // something else to use, and of which nothing was reserved.
            Cost::Reserve(reserve) => (counted.verdict.admitted || !rule.names_another(), reserve.ttl),
            _ => (rule.algorithm == Algorithm::Concurrency && counted.verdict.admitted, found.limit.window),
        };
        if !counts {
            return;
        }
        let price = rule.price.as_ref().map(|prices| prices.of(request));
        if let Some(ReservationFate::HeldBefore { permits }) = counted.reservation {
            let (asked, price) = (request.cost.taken(), price.unwrap_or(Price::ONE));
            let amount = if price.of(asked) == permits { asked } else { price.units(permits) };
            leased.held_before = Some(leased.held_before.map_or(amount, |known| known.min(amount)));
        }
        if leased.lease.held.len() >= HELD_RULES_MAX {
            // Not named, and so held until its hold ends.
            self.1 += 1;
        } else {
            leased.lease.held.push(HeldPlaces {
                rule: Arc::clone(&found.rule.named),
                own_limit: found.own_limit,
                price,
                kind: kind_of(rule, request),
                values: BucketValues::of(key, rule.per.len()),
                reserved: None,
            });
        }
        leased.hold = leased.hold.min(hold);
    }

    /// Takes down who reserved, so that a commit can be remembered too: under the rule that decided, or
    /// where that is not named the first one.
    pub(super) fn asked_by(&mut self, question: Question<'_, '_>, decided: Option<&RuleOutcome>) {
        let (Cost::Reserve(reserve), Some(leased)) = (question.request.cost, &mut self.0) else { return };
        // Where the deciding rule named something else to use, the decision's record took no permits.
        let permits = match decided.and_then(RuleOutcome::use_instead) {
            Some(_) => 0,
            None => leased.held_before.unwrap_or(reserve.permits),
        };
        let held = &mut leased.lease.held;
        let name = decided.map(|ruled| &*ruled.rule);
        let decided = held.iter().position(|held| name == Some(held.rule.name.as_str())).unwrap_or(0);
        if let Some(held) = held.get_mut(decided) {
            let (user, key) = question.client();
            held.reserved = Some(Box::new(ReservedFor { permits, user, key }));
        }
    }

    pub(super) fn made(self, holds: &Holds) -> Option<Box<Leased>> {
        if self.1 > 0 {
            let [.., unnamed] = &holds.0;
            unnamed.increment(self.1);
        }
        self.0.filter(|leased| !leased.lease.held.is_empty()).map(Box::new)
    }
}

impl Engine {
    /// Renews or releases what a lease names. Places that are no longer held, or whose rule is gone, stay as
    /// they are; doing so twice does no harm.
    pub async fn step(&self, lease: &Lease, step: HoldStep) -> Stepped {
        let (loaded, now) = (self.loaded.load_full(), self.clock.now());
        let mut named: Vec<(&Compiled, Key, HeldLimit, Limit)> = Vec::new();
        for held in &lease.held {
            let Some(compiled) =
                loaded.set.get(&held.rule.domain, &held.rule.name).filter(|rule| counts(rule, held))
            else {
                continue;
            };
            let own = |permits| Limit { permits, burst: permits, ..compiled.limit };
            let whole = held.own_limit.map_or(compiled.limit, own);
            let key = held.values.key(compiled.shape);
            named.push((compiled, key, loaded.held_to(compiled, whole, now), whole));
        }
        let cost = Cost::Hold(Hold { step, holder: lease.holder, places: 0 });
        let mut charges: SmallVec<[Charge<'_>; 2]> = SmallVec::new();
        for (rule, key, held, whole) in &named {
            let HeldLimit { limit, share } = *held;
            charges.push(Charge { rule, key, limit, share, whole, first: None, cost, enforced: false });
        }
        let outcome = match self.store.try_decide(&charges, Intent::Charge, now) {
            Some(outcome) => outcome,
            None => self.store.decide(&charges, Intent::Charge, now).await,
        };
        let did = |counted: &&ChargeResult| match step {
            HoldStep::Release => counted.returned > 0,
            HoldStep::Acquire | HoldStep::Renew => counted.verdict.admitted,
        };
        let done = outcome.counted.iter().filter(did).count();
        self.holds.count(step, done);
        self.holds.count_gone(lease.held.len() - done.min(lease.held.len()));
        Stepped {
            held: done == lease.held.len(),
            hold: charges.iter().map(|charge| charge.limit.window).min().unwrap_or_default(),
            degraded: outcome.counted.iter().any(|counted| counted.degraded),
        }
    }
}

/// True if the rule still counts what was held of it, in the same buckets.
fn counts(compiled: &Compiled, held: &HeldPlaces) -> bool {
    let rule = &compiled.rule;
    rule.action.counts() && rule.algorithm == Algorithm::Concurrency && rule.per.len() == held.values.len()
}
