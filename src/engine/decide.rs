//! From a request to an answer: match, charge, and [`conclude`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::Engine;
use super::audit::Question;
use super::bound;
use super::clock::Stopwatch;
use super::footprint::Footprint;
use super::identity::{IdentityRefused, Person, Persons, rewritten};
use super::loaded::Loaded;
use super::pace::{WaitingPlace, WaitingRoom};
use super::partition::partition_key;
pub use super::port::Decisions;
use super::port::{Answer, Charge, ChargeResult, Intent, Outcome};
use crate::core::algorithm::{Algorithm, Counting, Verdict};
use crate::core::decision::{AnswerGuards, Decision, RuleOutcome, Worldwide};
use crate::core::denial_cause::DenialCause;
use crate::core::identity::Who;
use crate::core::key::Key;
use crate::core::regions::gossip::uncertainty::{self, BucketAnswer, OtherStores, ROUND_TRIP, RegionsKnown};
use crate::core::request::{Cost, ReportedCost, Request};
use crate::core::reservation::{Commit, ReservedCost, TTL_MAX};
use crate::core::rule::{Action, Charging, Debt, Mode};
use crate::core::ruleset::{Match, Matches};
use crate::core::time::{Span, Timestamp};

mod cause;
mod conclude;
mod waiting;

pub(super) use conclude::taken_of;
use waiting::Tries;

/// Time after which to ask again where the regions have not agreed yet on what each may spend.
const AGREED_SOON: Span = Span::from_secs(1);

type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

/// The cost that a request asked for, and whether its call was charged.
#[derive(Clone, Copy)]
pub(super) struct TakenCost {
    pub(super) cost: Cost,
    pub(super) charged: bool,
}

impl Engine {
    /// Decides requests as one: all of them are charged, or none.
    ///
    /// Never fails and never waits for another region, the database or a disk. With a store in memory the
    /// answer is [`Answer::Now`].
    pub fn decide<'a, 'r: 'a>(&'a self, requests: &'a [Request<'r>]) -> Answer<'a, Decisions> {
        self.decide_with(requests, Intent::Charge, None)
    }

    /// Returns what [`Self::decide`] would answer, without charging.
    pub fn ask<'a, 'r: 'a>(&'a self, requests: &'a [Request<'r>]) -> Answer<'a, Decisions> {
        self.decide_with(requests, Intent::Ask, None)
    }

    /// Returns what [`Self::ask`] would answer these people, who were looked up already.
    pub(super) async fn ask_of(&self, loaded: &Loaded, asked: (&[Request<'_>], &Persons)) -> Decisions {
        self.decide_in_store(loaded, asked, Intent::Ask, None, Tries::Over).await
    }

    /// Leaves word in `footprint` of what is touched, if the answer has to be waited for. Nothing of that is
    /// begun before somebody waits.
    pub(super) fn decide_with<'a, 'r: 'a>(
        &'a self,
        requests: &'a [Request<'r>],
        intent: Intent,
        footprint: Option<&mut Footprint>,
    ) -> Answer<'a, Decisions> {
        if !self.store.answers_at_once() {
            return self.decide_or_wait(requests, intent, footprint);
        }
        let timer = self.sample();
        let now = self.clock.now();
        let loaded = self.loaded.load();
        let mut soon = SmallVec::new();
        let persons = self.persons(&loaded.set, requests, &mut soon);
        if soon.is_empty() {
            let rewritten = rewritten(requests, &persons);
            let asked = Questions { requests: rewritten.as_deref().unwrap_or(requests), persons: &persons };
            let mut plan = Plan::new(&loaded, asked, intent);
            plan.fill(self.tier_default(), now);
            self.take_places(&mut plan);
            let charges = plan.charges(self.regions_known());
            if let Some(outcome) = &self.store.try_decide(&charges, plan.intent, now)
                && !self.hopes(&plan, &charges, outcome, now)
            {
                let decisions = self.conclude(&plan, outcome, intent, now);
                self.note_time(timer);
                return Answer::Now(decisions);
            }
            if let Some(footprint) = footprint {
                *footprint = Footprint::of(&charges, self.store.in_one_step(&charges));
            }
        } else if let Some(footprint) = footprint {
            *footprint = Footprint::unknown();
        }
        let loaded = self.loaded.load_full();
        Answer::Later(Box::pin(async move {
            let persons = if soon.is_empty() { persons } else { self.find(&loaded.set, requests).await };
            self.decide_in_store(&loaded, (requests, &persons), intent, timer, Tries::Over).await
        }))
    }

    /// True where what is missing may come, so that it is asked for once more.
    fn hopes(&self, plan: &Plan<'_, '_>, charges: &[Charge<'_>], outcome: &Outcome, now: Timestamp) -> bool {
        plan.intent == Intent::Charge && plan.may_wait() && self.hope(charges, outcome, now).is_some()
    }

    fn take_places(&self, plan: &mut Plan<'_, '_>) {
        if plan.intent == Intent::Charge && plan.matches.iter().any(holds_delay) {
            plan.take_places(self.pacing.room());
        }
    }

    fn note_time(&self, timer: Option<Stopwatch>) {
        if let Some(timer) = timer {
            self.metrics.decision_seconds.record(timer.elapsed().as_secs_f64());
        }
    }
}

/// True if places of it are held rather than permits charged.
fn is_held(found: &Match<'_>) -> bool {
    found.rule.rule.algorithm == Algorithm::Concurrency
}

/// True if the daemon holds back what the rule delays.
fn holds_delay(found: &Match<'_>) -> bool {
    found.rule.rule.answer.as_ref().is_some_and(|answer| answer.holds_delay)
}

/// Returns what a request's cost is to one rule. Places are held by somebody, so of a report to them nothing
/// is left but a look.
fn cost_of(found: &Match<'_>, request: &Request<'_>) -> Cost {
    let cost = match &found.rule.rule.price {
        Some(prices) => prices.priced(request.cost.charged(), request),
        None => request.cost,
    };
    match cost {
        Cost::Report(_) if is_held(found) => Cost::Peek,
        cost if is_held(found) && cost.taken() > 0 => cost,
        cost => match cost.charged() {
            Cost::Report(ReportedCost { permits, .. }) => reported(found, permits),
            Cost::Take(permits) if found.rule.rule.charge == Charging::Always => reported(found, permits),
            Cost::Reserve(reserve) => Cost::Reserve(ReservedCost {
                ttl: reserve.ttl.min(TTL_MAX).min(found.limit.window),
                on_lapse: found.rule.rule.reservations.on_lapse,
                ..reserve
            }),
            cost => cost,
        },
    }
}

/// A report that has a name is to the store the commit of a reservation that was never made: charged in full,
/// and remembered.
fn once(cost: Cost, request: &Request<'_>) -> Cost {
    match (cost, request.report) {
        (Cost::Report(ReportedCost { permits, debt_max }), Some(id)) => {
            Cost::Commit(Commit { id, actual: permits, debt_max })
        }
        (cost, _) => cost,
    }
}

fn reported(found: &Match<'_>, permits: u64) -> Cost {
    let debt_max = found.rule.rule.debt_max(found.limit.permits, found.whole.permits);
    Cost::Report(ReportedCost { permits, debt_max })
}

/// Questions, and what is known of those who ask them.
#[derive(Clone, Copy)]
struct Questions<'a, 'r> {
    requests: &'a [Request<'r>],
    /// One for each, or none at all.
    persons: &'a Persons,
}

/// One call, matched against one rule set.
struct Plan<'a, 'r> {
    loaded: &'a Loaded,
    requests: &'a [Request<'r>],
    persons: &'a Persons,
    /// Matches of every request, in the order of the requests.
    matches: Matches<'a>,
    /// The cost of each match's request to its rule.
    costs: SmallVec<[Cost; 2]>,
    /// Index at which the matches of each request end among them.
    ends: SmallVec<[usize; 4]>,
    /// Clients who may not ask at all, by the place of their question.
    refused: SmallVec<[(usize, IdentityRefused); 1]>,
    intent: Intent,
    /// Somebody is blocked: what has happened is charged all the same, and nothing else.
    only_reports: bool,
    /// Places for answers that are held back, by the place of their request.
    waiting: SmallVec<[(usize, Arc<WaitingPlace>); 1]>,
}

impl<'a, 'r> Plan<'a, 'r> {
    /// A plan without matches, for [`Self::fill`]. A caller takes two steps, so that matches are written
    /// where it keeps the plan.
    fn new(loaded: &'a Loaded, asked: Questions<'a, 'r>, intent: Intent) -> Self {
        Self {
            loaded,
            requests: asked.requests,
            persons: asked.persons,
            matches: Matches::new(),
            costs: SmallVec::new(),
            ends: SmallVec::new(),
            refused: SmallVec::new(),
            intent,
            only_reports: false,
            waiting: SmallVec::new(),
        }
    }

    /// Matches every request, and works out what it costs each match.
    fn fill(&mut self, tier_default: Option<&'a str>, now: Timestamp) {
        let loaded = self.loaded;
        for (place, request) in self.requests.iter().enumerate() {
            let person = self.persons.get(place);
            match person.and_then(|person| person.refused(now)).filter(|_| !loaded.shadow) {
                Some(why) => self.refused.push((place, why)),
                None => {
                    let nobody = Who { tier: tier_default, ..Who::default() };
                    let who = |person: Option<&'a Person>| person.map_or(nobody, |own| own.who(tier_default));
                    let from = self.matches.len();
                    loaded.set.match_into(request, &who(person), &mut self.matches);
                    for (other, credential) in request.forms.credentials.iter().enumerate() {
                        let who = who(person.and_then(|person| person.other(other)));
                        loaded.set.match_credential(request, (credential, &who), from, &mut self.matches);
                    }
                }
            }
            self.ends.push(self.matches.len());
        }
        // A refund gives back whoever asks.
        let takes = |request: &Request<'_>| !matches!(request.cost, Cost::Refund(_));
        let mut blocked = self.refused.iter().any(|(place, _)| self.requests.get(*place).is_some_and(takes));
        let (mut waits, mut from) = (false, 0);
        for (request, &end) in self.requests.iter().zip(&self.ends) {
            for found in self.matches.get_mut(from..end).unwrap_or_default() {
                let rule = &found.rule.rule;
                let enforced = !loaded.shadow && rule.action != Action::LogOnly && !rule.names_another();
                if rule.global.is_some() {
                    let held = loaded.held_to(found.rule, found.limit, now);
                    (found.limit, found.share) = (held.limit, held.share);
                    if found.key.is_some() && loaded.waits(found.rule) {
                        found.key = None;
                        waits |= enforced;
                    }
                }
                blocked |= enforced && rule.action == Action::Block && takes(request);
                self.costs.push(cost_of(found, request));
            }
            from = end;
        }
        if blocked || (waits && self.requests.iter().any(takes)) {
            self.only_reports = self.reports();
            self.intent = if self.only_reports { self.intent } else { Intent::Ask };
        }
        if self.only_reports {
            self.costs.iter_mut().filter(|cost| !cost.is_report()).for_each(|cost| *cost = Cost::Peek);
        }
    }

    /// Takes a place for every answer that may have to be held back. A bucket without a place queues nobody:
    /// what is not in time is denied, and not charged.
    fn take_places(&mut self, waiting: &Arc<WaitingRoom>) {
        let mut from = 0;
        for (place, (request, &end)) in self.requests.iter().zip(&self.ends).enumerate() {
            for (found, cost) in self.matches.iter_mut().zip(&self.costs).take(end).skip(from) {
                let rule = &found.rule.rule;
                let takes = matches!(cost, Cost::Take(_) | Cost::Hold(_)) && cost.taken() > 0;
                let holds = holds_delay(found) && takes;
                let Some(key) = found.key.as_ref().filter(|_| holds) else { continue };
                if self.loaded.shadow || rule.action != Action::Throttle {
                    continue;
                }
                match waiting.place(key).filter(|_| request.may_wait) {
                    Some(taken) => self.waiting.push((place, Arc::new(taken))),
                    None => found.limit = found.limit.without_queue(rule.algorithm),
                }
            }
            from = end;
        }
    }

    /// True if rights on their way may be waited for.
    fn may_wait(&self) -> bool {
        self.requests.iter().all(|request| request.may_wait)
    }

    /// The matches of the request at this place, and its cost to each of them.
    fn of(&self, place: usize) -> (&[Match<'a>], &[Cost]) {
        let from = place.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let own = from..self.ends.get(place).copied().unwrap_or(from);
        (self.matches.get(own.clone()).unwrap_or_default(), self.costs.get(own).unwrap_or_default())
    }

    /// True where something is charged whatever the others say.
    fn reports(&self) -> bool {
        self.matches.iter().zip(&self.costs).any(|(found, cost)| found.key.is_some() && cost.is_report())
    }

    /// The request of this place, with whose key it shows.
    fn question(&self, place: usize, request: &'a Request<'r>) -> Question<'a, 'r> {
        Question { request, owner: self.persons.get(place).and_then(|person| person.owner()) }
    }

    fn shadow(&self, found: &Match<'_>) -> bool {
        self.loaded.shadow || found.rule.rule.action == Action::LogOnly
    }

    /// Returns what is charged, while these `regions` are known.
    fn charges(&self, regions: RegionsKnown) -> Charges<'_> {
        let mut charges = Charges::new();
        for (place, request) in self.requests.iter().enumerate() {
            let (matches, costs) = self.of(place);
            for (found, &cost) in matches.iter().zip(costs) {
                if let Some(key) = &found.key {
                    charges.push(Charge {
                        rule: found.rule,
                        key,
                        limit: found.limit,
                        share: found.share,
                        whole: &found.whole,
                        first: match found.rule.rule.global {
                            None => None,
                            Some(_) => self.loaded.first_of(found.rule, &found.limit, regions),
                        },
                        cost: once(cost, request),
                        // One that names something to use instead denies nobody: what it says no to is not
                        // charged to it, and to the others as if it were not there.
                        enforced: !self.shadow(found) && !found.rule.rule.names_another(),
                    });
                }
            }
        }
        charges
    }

    fn name(&self, found: &Match<'_>) -> Arc<str> {
        self.loaded
            .side(found.rule)
            .map_or_else(|| found.rule.rule.name.as_str().into(), |side| side.name.clone())
    }

    /// `allow` and `block` count nothing, nor does a rule whose weights the regions have not agreed on: it
    /// denies.
    fn uncounted(&self, found: &Match<'_>, shadow: bool) -> RuleOutcome {
        let action = found.rule.rule.action;
        if action.counts() {
            return self.waiting(found, shadow);
        }
        RuleOutcome {
            rule: self.name(found),
            action,
            allowed: action != Action::Block,
            shadow,
            limit: 0,
            window: Span::ZERO,
            remaining: 0,
            reset: Span::ZERO,
            more: Span::ZERO,
            retry: None,
            cause: (action == Action::Block).then_some(DenialCause::Blocked),
            delay: Span::ZERO,
            degraded: false,
            global: None,
            answer: found.rule.rule.answer.clone(),
            partition: None,
            priced: None,
            penalty: None,
            warning: false,
            beyond: None,
        }
    }

    /// The other regions may spend all of the limit, for all that is known.
    fn waiting(&self, found: &Match<'_>, shadow: bool) -> RuleOutcome {
        let rule = &found.rule.rule;
        let global = rule.global.as_ref().map(|global| Worldwide {
            mode: global.mode,
            believed_used: None,
            used_here: None,
            error_bound: found.whole.capacity(rule.algorithm),
        });
        RuleOutcome {
            rule: self.name(found),
            action: rule.action,
            allowed: false,
            shadow,
            // As once they have agreed, and as `GET /v1/why` shows its bucket.
            limit: bound::shown_limit(rule, &found.whole, &found.limit),
            window: if is_held(found) { Span::ZERO } else { found.limit.window },
            remaining: 0,
            reset: AGREED_SOON,
            more: AGREED_SOON,
            retry: Some(AGREED_SOON),
            cause: Some(DenialCause::NotAgreed),
            delay: Span::ZERO,
            degraded: false,
            global,
            answer: rule.answer.clone(),
            partition: None,
            priced: None,
            penalty: None,
            warning: false,
            beyond: None,
        }
    }

    /// True if other regions want to know what is decided here of the rule.
    fn speaks(&self, found: &Match<'_>) -> bool {
        found.rule.rule.global.as_ref().is_some_and(|global| match global.mode {
            Mode::Gossip => true,
            Mode::Split => false,
            // A request's own limit with another window counts where no other region knows of it.
            Mode::Escrow => {
                let told = |key: &Key| key.shape() == found.rule.shape;
                found.key.as_ref().is_some_and(told)
            }
        })
    }

    /// True if other regions send rights that are missing here, within a round trip.
    fn is_sent(&self, found: &Match<'_>) -> bool {
        let escrowed = found.rule.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow);
        escrowed && self.speaks(found) && self.loaded.has_others(found.rule)
    }

    /// True if a cost that was refused may pass later: where no other region knows the bucket, none sends
    /// what is missing.
    fn may_pass(&self, found: &Match<'_>, cost: Cost) -> bool {
        let algorithm = found.rule.rule.algorithm;
        let escrowed = found.rule.rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow);
        let gathers = escrowed && algorithm.counting() == Counting::Level;
        let sent = || self.speaks(found) && self.loaded.has_others(found.rule);
        !gathers || cost.taken() <= found.limit.capacity(algorithm) || sent()
    }

    /// True if a cost is refused by the region's part of a `gossip` limit alone, while all regions are heard:
    /// they leave it more once they know.
    fn held_to_its_part(
        &self,
        found: &Match<'_>,
        counted: &ChargeResult,
        cost: Cost,
        (elsewhere, now): (OtherStores, Timestamp),
    ) -> bool {
        let ChargeResult { used, view, error_bound, degraded, ref verdict, .. } = *counted;
        let rule = found.rule;
        let refused = rule.rule.global.is_some() && !verdict.admitted && !degraded;
        // In a cut its part is all that it has. Once that is over the others leave it more, however long they
        // were silent.
        let heard = view.is_none() || !elsewhere.cut_off;
        if !refused || !heard || counted.penalty.is_some() {
            return false;
        }
        let answered = BucketAnswer { used, remaining: verdict.remaining, view, error_bound };
        uncertainty::has_room(rule.rule.algorithm, &found.limit, &answered, cost.taken(), now)
            && self.loaded.first_of(rule, &found.limit, elsewhere.into()).is_some()
    }

    fn counted(
        &self,
        found: &Match<'_>,
        shadow: bool,
        (counted, cost): (&ChargeResult, Cost),
        (elsewhere, now): (OtherStores, Timestamp),
    ) -> RuleOutcome {
        let Verdict { admitted, remaining, reset, retry, delay } = counted.verdict;
        let rule = &found.rule.rule;
        let ChargeResult { used, view, error_bound, degraded, .. } = *counted;
        let retry = match self.held_to_its_part(found, counted, cost, (elsewhere, now)) {
            true => Some(retry.unwrap_or(ROUND_TRIP).min(ROUND_TRIP)),
            false => retry.filter(|_| self.may_pass(found, cost)),
        };
        let global = rule.global.as_ref().map(|global| {
            let answered = BucketAnswer { used, remaining, view, error_bound };
            let limits = (&found.whole, &found.limit);
            let elsewhere = (bound::of_answer(elsewhere, degraded), now);
            // Under the other modes no region tells the others what it used.
            let tells = global.mode == Mode::Gossip;
            Worldwide {
                mode: global.mode,
                believed_used: tells.then(|| uncertainty::believed(&found.limit, &answered, now)),
                used_here: (!tells).then_some(used),
                error_bound: bound::of_bucket(global.mode, rule.algorithm, limits, &answered, elsewhere),
            }
        });
        let counts_beyond = rule.debt == Debt::Window && !degraded;
        let beyond = counts_beyond.then(|| used.saturating_sub(u64::from(found.limit.permits)));
        // A look passes until more is counted than the limit.
        let admitted = match beyond {
            Some(0) if cost == Cost::Peek && counted.penalty.is_none() => true,
            beyond => admitted && beyond.unwrap_or(0) == 0,
        };
        let more = counted.verdict.until_more(rule.algorithm, &found.limit);
        // Whoever looks, since the cost is known only afterwards, is told what to use instead as soon as
        // nothing is left.
        let is_spent = admitted && cost == Cost::Peek && remaining == 0 && beyond.is_none();
        let (admitted, retry) = match is_spent && rule.names_another() {
            true => (false, Some(more)),
            false => (admitted, retry),
        };
        RuleOutcome {
            rule: self.name(found),
            action: rule.action,
            allowed: admitted,
            shadow,
            limit: bound::shown_limit(rule, &found.whole, &found.limit),
            window: if is_held(found) { Span::ZERO } else { found.limit.windows().length_at(now) },
            remaining,
            reset,
            more,
            retry,
            // Only where it is denied is there one to find; see `Engine::cause_of`.
            cause: None,
            delay,
            degraded: counted.degraded,
            global,
            answer: rule.answer.clone(),
            partition: partition_key(found),
            priced: rule.price.is_some().then(|| cost.to_signed()),
            penalty: counted.penalty,
            warning: false,
            beyond,
        }
    }

    fn decision(&self, rules: Vec<RuleOutcome>, matches: &[Match<'_>]) -> Decision {
        // The one that denies longest of several that deny says when to come back; "never" is longest.
        let (mut denying, mut denies_for) = (None, None);
        let (mut least, mut least_left) = (None, None);
        let mut names_another = None;
        for (index, ruled) in rules.iter().enumerate().filter(|(_, ruled)| !ruled.shadow) {
            let retry = ruled.retry.map_or(u64::MAX, Span::micros);
            if ruled.use_instead().is_some() {
                names_another = names_another.or(Some(index));
            } else if !ruled.allowed && denies_for.is_none_or(|longest| retry > longest) {
                (denying, denies_for) = (Some(index), Some(retry));
            }
            if ruled.action != Action::Allow && least_left.is_none_or(|left| ruled.remaining < left) {
                (least, least_left) = (Some(index), Some(ruled.remaining));
            }
        }
        let tightest = denying.or(names_another).or(least);
        let denier = denying.and_then(|index| matches.get(index));
        Decision {
            allowed: denying.is_none(),
            tightest,
            status: denier.map_or(200, |found| found.rule.rule.status),
            message: denier.and_then(|found| self.loaded.side(found.rule)?.message.clone()),
            lease: None,
            guards: AnswerGuards::default(),
            rules,
        }
    }
}
