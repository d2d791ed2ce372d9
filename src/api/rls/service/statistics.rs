//! What the reference service counts, by the names that its dashboards ask for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Histogram};

use super::InForce;
use super::answer::outcome;
use super::call::{Planned, Slot};
use crate::api::rls::wire::{Descriptor, RequestMessage};
use crate::core::decision::RuleOutcome;
use crate::core::envoy::{DescriptorLimit, Hits, near_limit};
use crate::engine::decide::Decisions;
use crate::telemetry::{Metrics, SERVICE_SECONDS};

/// Most names that are counted apart. Values of requests may be names, and clients choose them: what comes
/// beyond counts by the name of its limit.
const NAMES_MAX: usize = 10_000;
/// Most domains without rules that are counted.
const UNKNOWN_MAX: usize = 1_000;
/// What each limit is counted by, in Prometheus and in `/stats`.
const KINDS: [(&str, &str); 5] = [
    ("ratelimit_service_rate_limit_total_hits", "total_hits"),
    ("ratelimit_service_rate_limit_over_limit", "over_limit"),
    ("ratelimit_service_rate_limit_near_limit", "near_limit"),
    ("ratelimit_service_rate_limit_within_limit", "within_limit"),
    ("ratelimit_service_rate_limit_shadow_mode", "shadow_mode"),
];

/// The counts of one name.
pub(super) struct Series {
    counts: [AtomicU64; KINDS.len()],
    counters: [Counter; KINDS.len()],
    /// From which count on its limit is near.
    near: u64,
}

/// All counts.
pub(super) struct Statistics {
    metrics: Arc<Metrics>,
    names: Mutex<BTreeMap<String, Arc<Series>>>,
    /// Calls by domains that have no rules.
    unknown: Mutex<BTreeMap<String, u64>>,
    seconds: Histogram,
    requests: Counter,
    /// Sets of rules that were put in force.
    pub(super) loaded: Counter,
    /// Sets that were refused.
    pub(super) refused: Counter,
    /// Calls that were refused.
    pub(super) service_error: Counter,
    /// Calls that passed because nothing is denied.
    pub(super) global_shadow: Counter,
}

impl Series {
    fn add(&self, hits: Hits) {
        let Hits { total, over, near, within, shadow } = hits;
        for (place, hits) in [total, over, near, within, shadow].into_iter().enumerate() {
            if hits > 0 {
                if let Some(count) = self.counts.get(place) {
                    count.fetch_add(hits, Ordering::Relaxed);
                }
                if let Some(counter) = self.counters.get(place) {
                    counter.increment(hits);
                }
            }
        }
    }
}

impl Statistics {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        let counter = |name| metrics.counter_of_service(name, &[]);
        let method = "ShouldRateLimit";
        // Of what was never counted a dashboard asks too.
        let _ = metrics
            .counter_of_service("ratelimit_service_should_rate_limit_error", &[("err_type", "redis_error")]);
        Self {
            metrics: Arc::clone(metrics),
            names: Mutex::default(),
            unknown: Mutex::default(),
            seconds: metrics.histogram_of_service(SERVICE_SECONDS, &[("grpc_method", method)]),
            requests: metrics
                .counter_of_service("ratelimit_service_total_requests", &[("grpc_method", method)]),
            loaded: counter("ratelimit_service_config_load_success"),
            refused: counter("ratelimit_service_config_load_error"),
            service_error: metrics.counter_of_service(
                "ratelimit_service_should_rate_limit_error",
                &[("err_type", "service_error")],
            ),
            global_shadow: counter("ratelimit_service_global_shadow_mode"),
        }
    }

    /// Counts a call.
    pub(super) fn answered(&self, after: Duration) {
        self.requests.increment(1);
        self.seconds.record(after.as_secs_f64());
    }

    /// Counts a call of a domain that has no rules.
    pub(super) fn count_unknown(&self, domain: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = unknown.get_mut(domain) {
            *count += 1;
        } else if unknown.len() < UNKNOWN_MAX {
            unknown.insert(domain.to_owned(), 1);
        }
    }

    /// The counts of a limit.
    pub(super) fn of_limit(&self, limit: &DescriptorLimit, ratio: f64) -> Arc<Series> {
        let near = limit.rate.map_or(0, |rate| near_limit(rate.permits, ratio));
        self.of_name(&limit.domain, &limit.statistics, near, true).unwrap_or_else(|| self.unnamed(near))
    }

    fn unnamed(&self, near: u64) -> Arc<Series> {
        Arc::new(Series { counts: Default::default(), counters: self.counters("other", ""), near })
    }

    fn of_name(&self, domain: &str, name: &str, near: u64, makes: bool) -> Option<Arc<Series>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name).filter(|known| known.near == near) {
            return Some(Arc::clone(known));
        }
        if names.len() >= NAMES_MAX && (!makes || !names.contains_key(name)) {
            return None;
        }
        let counters = self.counters(domain, name.get(domain.len()..).unwrap_or_default());
        let counts: [AtomicU64; KINDS.len()] = Default::default();
        if let Some(before) = names.get(name) {
            for (count, before) in counts.iter().zip(&before.counts) {
                count.store(before.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        let made = Arc::new(Series { counts, counters, near });
        names.insert(name.to_owned(), Arc::clone(&made));
        Some(made)
    }

    /// Counters with the labels of a name; levels from the third on have none.
    fn counters(&self, domain: &str, levels: &str) -> [Counter; KINDS.len()] {
        let mut levels = levels.trim_start_matches('.').split('.').filter(|level| !level.is_empty());
        let (first, second) = (levels.next(), levels.next());
        KINDS.map(|(name, _)| {
            let mut labels = vec![("domain", domain)];
            labels.extend(first.map(|level| ("key1", level)));
            labels.extend(second.map(|level| ("key2", level)));
            self.metrics.counter_of_service(name, &labels)
        })
    }

    /// Counts the hits of a call.
    pub(super) fn count(
        &self,
        in_force: &InForce,
        asked: &RequestMessage<'_>,
        planned: &Planned<'_>,
        decisions: &Decisions,
        ratio: f64,
    ) {
        let mut decided = decisions.iter();
        for (slot, descriptor) in planned.slots.iter().zip(&asked.descriptors) {
            let Slot::Counted(limit) = slot else { continue };
            let Some(ruled) = outcome(decided.next()) else { continue };
            let series = match limit {
                Some(limit) => self.of_request(in_force, limit, descriptor),
                None => self.of_caller(asked.domain, descriptor, ruled, ratio),
            };
            let Some(series) = series else { continue };
            let shadow = limit.is_some_and(|limit| limit.shadow);
            series.add(hits_of(ruled, hits(asked, descriptor), series.near, shadow));
        }
    }

    fn of_request(
        &self,
        in_force: &InForce,
        limit: &DescriptorLimit,
        descriptor: &Descriptor<'_>,
    ) -> Option<Arc<Series>> {
        let own = in_force.series.get(limit.place)?;
        if !limit.shows_values() {
            return Some(Arc::clone(own));
        }
        let name = limit.statistics_of(&descriptor.entries);
        Some(self.of_name(&limit.domain, &name, own.near, false).unwrap_or_else(|| Arc::clone(own)))
    }

    fn of_caller(
        &self,
        domain: &str,
        descriptor: &Descriptor<'_>,
        ruled: &RuleOutcome,
        ratio: f64,
    ) -> Option<Arc<Series>> {
        let mut name = domain.to_owned();
        for (key, value) in &descriptor.entries {
            let _ = write!(name, ".{key}_{value}");
        }
        self.of_name(domain, &name, near_limit(ruled.limit, ratio), false)
    }

    /// Every count, a line each.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (domain, count) in &*self.unknown.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(text, "ratelimit.service.rate_limit.{domain}.domain_not_found: {count}");
        }
        for (name, series) in &*self.names.lock().unwrap_or_else(PoisonError::into_inner) {
            for ((_, kind), count) in KINDS.iter().zip(&series.counts) {
                let count = count.load(Ordering::Relaxed);
                let _ = writeln!(text, "ratelimit.service.rate_limit.{name}.{kind}: {count}");
            }
        }
        text
    }
}

/// The hits that a descriptor asks for.
fn hits(asked: &RequestMessage<'_>, descriptor: &Descriptor<'_>) -> u64 {
    match descriptor.is_negative_hits {
        true => 0,
        false => descriptor.hits_addend.unwrap_or_else(|| u64::from(asked.hits_addend.max(1))),
    }
}

fn hits_of(ruled: &RuleOutcome, hits: u64, near: u64, shadow: bool) -> Hits {
    let limit = u64::from(ruled.limit);
    let after = match ruled.beyond {
        Some(beyond) if beyond > 0 => limit + beyond,
        // What exceeds a part of a limit is not known.
        None if !ruled.allowed => limit + hits.max(1),
        _ => limit.saturating_sub(ruled.remaining),
    };
    Hits::counted(limit, near, after, hits, shadow)
}
