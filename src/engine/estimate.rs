//! The amount of a reservation whose caller names none: what the rules that apply have learned from the last
//! commits. Each daemon learns from those that it took itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::Counter;

use super::Engine;
use super::identity::rewritten;
use crate::core::algorithm::Algorithm;
use crate::core::estimate::{CostKind, Estimates, Teacher};
use crate::core::identity::Who;
use crate::core::price::Price;
use crate::core::request::Request;
use crate::core::rule::Rule;
use crate::telemetry::Metrics;

/// The costs that were learned, shared by all calls.
#[derive(Debug)]
pub(super) struct Estimator {
    learned: Mutex<Estimates>,
    estimated: Counter,
    unlearned: Counter,
}

impl Estimator {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counter = |event| metrics.counter("reservations_total", "event", event);
        Self { learned: Mutex::default(), estimated: counter("estimated"), unlearned: counter("unlearned") }
    }

    fn lock(&self) -> MutexGuard<'_, Estimates> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes down what a reservation of this kind used.
    pub(super) fn learn(&self, kind: CostKind, teacher: Teacher, actual: u64) {
        if self.lock().learn(kind, teacher, actual) {
            self.unlearned.increment(1);
        }
    }
}

/// The value by which a rule tells this request's costs from others, if it does.
pub(super) fn kind_of(rule: &Rule, request: &Request<'_>) -> Option<String> {
    let by = rule.reservations.estimate.by.as_ref()?;
    request.attribute(by).map(str::to_owned)
}

/// The amounts that one request could reserve.
struct Reservable {
    /// The largest estimate of the rules that count it, and at most what they can hold. At least 1.
    estimate: u64,
    /// The most that the smallest of them can ever hold; at least 1.
    most: u64,
}

impl Engine {
    /// Returns what this request should reserve, where its caller does not say.
    pub async fn estimate(&self, request: &Request<'_>) -> u64 {
        self.reservations.estimator.estimated.increment(1);
        self.reservable(request).await.estimate
    }

    /// The most that the rules which count this request can ever hold of it.
    pub async fn reservable_most(&self, request: &Request<'_>) -> u64 {
        self.reservable(request).await.most
    }

    async fn reservable(&self, request: &Request<'_>) -> Reservable {
        let loaded = self.loaded.load_full();
        let asked = std::slice::from_ref(request);
        let persons = self.find(&loaded.set, asked).await;
        let rewritten = rewritten(asked, &persons);
        let request = rewritten.as_deref().and_then(<[_]>::first).unwrap_or(request);
        let nobody = Who { tier: self.tier_default(), ..Who::default() };
        let who = persons.first().map_or(nobody, |person| person.who(self.tier_default()));
        let (mut estimate, mut most) = (1, u64::MAX);
        let now = self.clock.now();
        for found in loaded.set.matches_of(request, &who) {
            let rule = &found.rule.rule;
            if found.key.is_none() || rule.algorithm == Algorithm::Concurrency {
                continue;
            }
            let limit = loaded.held_to(found.rule, found.limit, now).limit;
            let kind = CostKind::of(&rule.domain, &rule.name, kind_of(rule, request).as_deref());
            let own = self.reservations.estimator.lock().of(kind, &rule.reservations.estimate, limit.permits);
            estimate = estimate.max(own);
            let price = rule.price.as_ref().map_or(Price::ONE, |prices| prices.of(request));
            most = most.min(price.units(limit.capacity(rule.algorithm)));
        }
        Reservable { estimate: estimate.min(most).max(1), most: most.max(1) }
    }
}
