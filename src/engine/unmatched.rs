//! Requests that no rule counted, by domain: a gateway that names a domain without rules is limited by
//! nothing.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use metrics::Counter;

use crate::core::ruleset::RuleSet;
use crate::telemetry::Metrics;

/// Most domains with rules that get a label of their own; the rest share `domain="other"`.
const KNOWN_MAX: usize = 1_000;
/// Most domains without rules that get a label and a line of the log of their own.
const UNKNOWN_MAX: usize = 64;
/// Most domains that one line of the log names.
const NAMED_MAX: usize = 10;
/// The label of those beyond.
const OTHER: &str = "other";
const METRIC: &str = "unmatched_requests_total";

type ByDomain = HashMap<Box<str>, Counter>;

/// Counters of the domains that have rules; made anew with every set.
#[derive(Debug)]
pub(super) struct UnmatchedCounters {
    by_domain: ByDomain,
    other: Counter,
}

impl UnmatchedCounters {
    pub(super) fn new(set: &RuleSet, metrics: &Metrics) -> Self {
        let counter = |domain: &str| metrics.of_domain(METRIC, domain, "rule");
        let by_domain = set.domains().take(KNOWN_MAX).map(|domain| (domain.into(), counter(domain)));
        Self { by_domain: by_domain.collect(), other: counter(OTHER) }
    }
}

/// Counters of domains that were asked for and have no rules.
#[derive(Debug)]
pub(super) struct Unknown {
    seen: ArcSwap<ByDomain>,
    other: Counter,
    metrics: Arc<Metrics>,
}

impl Unknown {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let other = metrics.of_domain(METRIC, OTHER, "domain");
        Self { seen: ArcSwap::default(), other, metrics: Arc::clone(metrics) }
    }

    fn count(&self, domain: &str, set: &RuleSet) {
        let seen = self.seen.load();
        if let Some(counter) = seen.get(domain) {
            return counter.increment(1);
        }
        if seen.len() >= UNKNOWN_MAX {
            return self.other.increment(1);
        }
        let counter = self.metrics.of_domain(METRIC, domain, "domain");
        counter.increment(1);
        self.seen.rcu(|seen| {
            let mut more = ByDomain::clone(seen);
            if more.len() < UNKNOWN_MAX {
                more.insert(domain.into(), counter.clone());
            }
            more
        });
        // A set without any rules is told of by itself.
        if !set.rules().is_empty() {
            let mut known: Vec<&str> = set.domains().take(NAMED_MAX).collect();
            known.sort_unstable();
            tracing::warn!(
                domain,
                "no rule has the domain that a gateway asks for, so nothing limits its requests; rules are in: {}",
                known.join(", ")
            );
        }
    }
}

/// Counts a request of `domain` that no rule of `set` counted.
pub(super) fn count(known: &UnmatchedCounters, unknown: &Unknown, set: &RuleSet, domain: &str) {
    match known.by_domain.get(domain) {
        Some(counter) => counter.increment(1),
        None if set.has_domain(domain) => known.other.increment(1),
        None => unknown.count(domain, set),
    }
}
