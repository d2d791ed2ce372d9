//! The end of a decision: an outcome is put into words, counted, and told to the protocol between regions.

use std::slice;
use std::sync::Arc;

use super::{Decisions, Plan, TakenCost, is_held};
use crate::core::algorithm::Allowance;
use crate::core::decision::{Decision, RuleOutcome};
use crate::core::hold::HoldStep;
use crate::core::key::Key;
use crate::core::rates::RequestSums;
use crate::core::regions::gossip::uncertainty::{OtherStores, ROUND_TRIP};
use crate::core::request::{Cost, Request};
use crate::core::reservation::ReservationFate;
use crate::core::rule::{Action, Charging, Debt, OnFailure};
use crate::core::ruleset::Match;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::OwnLimit;
use crate::engine::Engine;
use crate::engine::audit::CostFate;
use crate::engine::hold::Leasing;
use crate::engine::identity::NameRef;
use crate::engine::port::{ChargeResult, Intent, Outcome};
use crate::engine::refusal::refusal;
use crate::engine::turns::HeldTurn;
use crate::engine::unmatched;
use crate::engine::world::{Tally, window_of};

/// A call whose outcome is known.
#[derive(Clone, Copy)]
struct Concluded<'p, 'a, 'r> {
    plan: &'p Plan<'a, 'r>,
    /// The caller decides; else it only asks what would be decided.
    decides: bool,
    /// The store was asked to charge.
    charges: bool,
    /// The store charged all that was asked for.
    charged: bool,
    elsewhere: OtherStores,
    now: Timestamp,
}

impl Engine {
    /// Puts an outcome into words, counts it, and tells the protocol between regions what happened.
    pub(super) fn conclude(
        &self,
        plan: &Plan<'_, '_>,
        outcome: &Outcome,
        intent: Intent,
        now: Timestamp,
    ) -> Decisions {
        let charges = plan.intent == Intent::Charge;
        let charged = charges && outcome.admitted && !plan.only_reports;
        let (decides, elsewhere) = (intent == Intent::Charge, self.elsewhere(now));
        let call = Concluded { plan, decides, charges, charged, elsewhere, now };
        if decides {
            let mut note = |name: NameRef<'_>| self.sightings.note(name, now);
            plan.persons.iter().for_each(|person| person.tell_known(&mut note));
        }
        let mut counted = outcome.counted.iter();
        let mut decisions = Decisions::new();
        for (place, request) in plan.requests.iter().enumerate() {
            decisions.push(match plan.refused.iter().find(|(refused, _)| *refused == place) {
                Some((_, refused)) => {
                    let decision = refusal(refused);
                    if decides {
                        self.refused[refused.why as usize].increment(1);
                        self.hot.count_refused();
                        self.audit_decision(&call, (place, request), (&decision, CostFate::Asked), |_| 0);
                    }
                    decision
                }
                None => self.conclude_one(&call, (place, request), &mut counted),
            });
        }
        decisions
    }

    /// Takes what was counted for one request off `counted`.
    fn conclude_one<'a, 'r>(
        &self,
        call: &Concluded<'_, 'a, 'r>,
        (place, request): (usize, &'a Request<'r>),
        counted: &mut slice::Iter<'_, ChargeResult>,
    ) -> Decision {
        let Concluded { plan, decides, charges, charged, elsewhere, now } = *call;
        let (matches, costs) = plan.of(place);
        let mut rules = Vec::with_capacity(matches.len());
        let own = counted.as_slice();
        let mut leased = Leasing::of(request.cost, charged, now);
        let mut told = RequestSums::default();
        for (found, &cost) in matches.iter().zip(costs) {
            let shadow = plan.shadow(found);
            let mut hot = None;
            // An answer is long: it is written where it stays, and looked at there.
            rules.push(match &found.key {
                None => plan.uncounted(found, shadow),
                Some(key) => {
                    let Some(counted) = counted.next() else { continue };
                    let taken = TakenCost { cost, charged };
                    hot = Some((taken, counted));
                    if decides {
                        if plan.speaks(found) {
                            self.tally(found, key, taken, counted, now);
                            self.follow_reserved((found, key), taken, counted, now);
                        }
                        if charges {
                            self.note_uncharged(found, cost, counted);
                            self.note_owed(found, key, counted, now);
                        }
                        leased.note((found, request), key, cost, counted);
                    }
                    plan.counted(found, shadow, (counted, cost), (elsewhere, now))
                }
            });
            let Some(ruled) = rules.last_mut() else { continue };
            if let (false, Some((taken, counted))) = (ruled.allowed, hot) {
                let asked = (taken.cost, counted);
                let cause = self.cause_of((plan.loaded, found), ruled, asked, (elsewhere, now));
                ruled.cause = Some(cause);
                if plan.is_sent(found) && self.may_be_sent(found, asked, cause, (elsewhere, now)) {
                    ruled.retry = Some(ruled.retry.unwrap_or(ROUND_TRIP).min(ROUND_TRIP));
                }
            }
            if let (true, Some((_, counted))) = (charges, hot) {
                self.note_crossings(plan.loaded, found, (cost, counted), ruled, now);
            }
            if decides {
                self.count(plan, found, ruled, now);
                self.count_hot(found, ruled, hot, &mut told, now);
            }
        }
        if matches.is_empty() && decides {
            let loaded = plan.loaded;
            unmatched::count(&loaded.unmatched, &self.unknown_domains, &loaded.set, request.domain);
            self.hot.count_unmatched();
        }
        // Results that were not taken off are of the requests after this one.
        let own = own.get(..own.len().saturating_sub(counted.len())).unwrap_or_default();
        let mut decision = plan.decision(rules, matches);
        if decides && self.audit.is_some() {
            let decided = decision.tightest.and_then(|index| decision.rules.get(index));
            leased.asked_by(plan.question(place, request), decided);
        }
        if decides && decision.hold() > Span::ZERO {
            let own = plan.waiting.iter().filter(|(of, _)| *of == place);
            for (_, taken) in own {
                let turn = HeldTurn::of(taken.key(), (matches, costs), &decision.rules);
                if let Some(turn) = turn.filter(|_| charged) {
                    taken.take_turn(turn);
                }
                decision.guards.hold(Arc::clone(taken) as _);
            }
        }
        decision.lease = leased.made(&self.holds);
        if request.cost.is_reserved() {
            self.reservations.count(&mut decision, own);
        } else if let Some(leased) = &decision.lease {
            self.holds.count(HoldStep::Acquire, leased.lease.held.len());
        }
        if decides && self.audit.is_some() {
            let fate = cost_fate(request, (matches, costs), own);
            let used = |index| used_of(matches, own, index);
            self.audit_decision(call, (place, request), (&decision, fate), used);
        }
        decision
    }

    /// Writes a decision down, where decisions are; `used` says what is in use under the rule of an index.
    fn audit_decision<'a, 'r>(
        &self,
        call: &Concluded<'_, 'a, 'r>,
        (place, request): (usize, &'a Request<'r>),
        told: (&Decision, CostFate),
        used: impl Fn(usize) -> u64,
    ) {
        if let Some(audit) = &self.audit {
            audit.tell(call.plan.question(place, request), told, call.now, || self.clock.now(), used);
        }
    }

    fn count(&self, plan: &Plan<'_, '_>, found: &Match<'_>, ruled: &RuleOutcome, now: Timestamp) {
        let Some(side) = plan.loaded.side(found.rule) else { return };
        if ruled.action == Action::Block && !ruled.shadow {
            self.note_block(side, found, now);
        }
        match (ruled.allowed, ruled.shadow) {
            (true, _) => side.metrics.allowed.increment(1),
            (false, false) if ruled.use_instead().is_some() => {
                self.metrics.diverted(&side.metrics, &side.name).increment(1);
            }
            (false, false) => {
                side.metrics.denied.increment(1);
                if let Some(cause) = ruled.cause {
                    self.metrics.denial(&side.metrics, &side.name, cause).increment(1);
                }
            }
            (false, true) => side.metrics.shadow_denied.increment(1),
        }
        if ruled.degraded {
            self.degraded[match self.store.policy(found.rule) {
                OnFailure::Local => 0,
                OnFailure::Open => 1,
                OnFailure::Closed => 2,
            }]
            .increment(1);
        }
    }

    /// Counts what of a report was not charged.
    fn note_uncharged(&self, found: &Match<'_>, cost: Cost, counted: &ChargeResult) {
        let Cost::Report(report) = cost else { return };
        if is_repeated(counted) {
            return;
        }
        let left = report.permits.saturating_sub(counted.reported);
        if left > 0 {
            let [debt_max, forgiven, store] = &self.uncharged;
            let counter = match found.rule.rule.debt {
                _ if counted.degraded => store,
                Debt::Carry { .. } => debt_max,
                Debt::Forgive | Debt::Window => forgiven,
            };
            counter.increment(left);
        }
    }

    pub(in crate::engine) fn tally(
        &self,
        found: &Match<'_>,
        key: &Key,
        taken: TakenCost,
        counted: &ChargeResult,
        now: Timestamp,
    ) {
        let TakenCost { cost, charged } = taken;
        let taken = taken_of(taken, counted);
        // A request's own limit with another window counts in buckets of its own, which no other region
        // knows.
        if key.shape() != found.rule.shape {
            return;
        }
        let looked = cost.charged() == Cost::Peek || is_repeated(counted);
        let asks = found.rule.rule.charge == Charging::Always && !is_held(found);
        if looked && counted.lapsed + counted.paid == 0 && (counted.verdict.admitted || !asks) {
            return;
        }
        if counted.penalty.is_some() && taken == 0 && counted.lapsed + counted.paid == 0 {
            // No other region's permits would let it pass.
            return;
        }
        let (admitted, returned) = counted.moved(taken, if charged { counted.returned } else { 0 });
        let window = window_of(found.rule.rule.algorithm, found.limit.windows(), now);
        let (offered, refused) = match cost {
            _ if looked => (1, missing(found, counted)),
            Cost::Report(_) if !counted.verdict.admitted => (cost.taken(), missing(found, counted)),
            _ if counted.verdict.admitted => (cost.taken(), 0),
            _ => (cost.taken(), cost.taken()),
        };
        let (limit, is_own) = (Some(OwnLimit::of(&found.whole)), found.whole != found.rule.limit);
        let largest = offered;
        let store = counted.store_seen();
        let tally = Tally { window, offered, admitted, returned, refused, largest, limit, is_own, store };
        if !self.tallies.add(key, tally) {
            self.metrics.tallies_dropped.increment(1);
        }
    }
}

/// True of what was charged before, and is not again.
fn is_repeated(counted: &ChargeResult) -> bool {
    counted.reservation == Some(ReservationFate::Repeated)
}

/// Returns what became of a request's cost; `counted` is the request's own.
fn cost_fate(
    request: &Request<'_>,
    (matches, costs): (&[Match<'_>], &[Cost]),
    counted: &[ChargeResult],
) -> CostFate {
    let asked = matches.iter().zip(costs).filter(|(found, _)| found.key.is_some());
    let taking = asked.zip(counted).filter(|((_, cost), _)| cost.taken() > 0);
    let mut fates = taking.map(|(_, counted)| counted.reservation).peekable();
    let was_before =
        |fate| matches!(fate, Some(ReservationFate::Repeated | ReservationFate::HeldBefore { .. }));
    if fates.peek().is_some() && fates.all(was_before) {
        return CostFate::Repeated;
    }
    // What a report says is used, also where a bucket owes so much that it counts no more of it.
    let is_charged = |counted: &ChargeResult| request.cost.is_report() || counted.reported > 0;
    match counted.iter().any(|counted| is_charged(counted) && !is_repeated(counted)) {
        true => CostFate::Charged,
        false => CostFate::Asked,
    }
}

/// Permits that a charge took.
#[inline]
pub(in crate::engine) fn taken_of(taken: TakenCost, counted: &ChargeResult) -> u64 {
    match taken.cost {
        Cost::Report(_) => counted.reported,
        // Permits that are held already were told when they were taken.
        Cost::Reserve(_) if counted.reservation != Some(ReservationFate::Held) => 0,
        cost if taken.charged && counted.verdict.admitted => cost.taken(),
        _ => 0,
    }
}

/// Permits that have to come from other regions before one is free here: what is owed, and that one. A
/// gateway that asks with a cost of nothing is what says that more is wanted, if costs are charged
/// afterwards.
fn missing(found: &Match<'_>, counted: &ChargeResult) -> u64 {
    let held = match counted.view {
        Some(Allowance::Window(view)) => u64::from(view.budget),
        Some(Allowance::Level(_) | Allowance::Kept { .. }) | None => {
            found.limit.capacity(found.rule.rule.algorithm)
        }
    };
    counted.used.saturating_add(1).saturating_sub(held).max(1)
}

/// Permits in use after a request under the rule of this index; `counted` is the request's own.
fn used_of(matches: &[Match<'_>], counted: &[ChargeResult], index: usize) -> u64 {
    let counts = |found: &&Match<'_>| found.key.is_some();
    let uncounted = matches.get(index).is_none_or(|found| found.key.is_none());
    let before = matches.iter().take(index).filter(counts).count();
    counted.get(before).filter(|_| !uncounted).map_or(0, |counted| counted.used)
}
