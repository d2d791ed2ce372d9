//! The metrics of one daemon: its registry and the handles of its parts. [`METRICS`] lists them all.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::core::denial_cause::DenialCause;

mod identity;
mod table;

pub use identity::IdentityMetrics;
pub use table::{METRICS, MetricKind};

/// Most rules that get labels of their own; the rest share `rule="other"`.
const RULE_LABELS_MAX: usize = 1_000;
/// Most regions that get labels of their own.
const REGION_LABELS_MAX: usize = 256;
/// Most Redis servers that get labels of their own.
const SERVER_LABELS_MAX: usize = 256;

/// Handles of one rule, kept beside it.
#[derive(Clone)]
pub struct RuleMetrics {
    /// Decisions in which the rule let the request pass.
    pub allowed: Counter,
    /// Decisions in which the rule denied the request.
    pub denied: Counter,
    /// Decisions that the rule would have denied, were it not in shadow.
    pub shadow_denied: Counter,
    /// Decisions in which the rule named something to use instead; made when it is first needed.
    diverted: Arc<OnceLock<Counter>>,
    /// Denials of the rule by cause, each counter made when it is first needed.
    denials: Arc<[OnceLock<Counter>; DenialCause::ALL.len()]>,
}

/// The registry of one daemon and the handles that its parts keep.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    rules: Mutex<HashMap<String, RuleMetrics>>,
    regions: Mutex<HashMap<String, SharedString>>,
    servers: Mutex<HashSet<String>>,
    /// `decision_seconds`: time to decide inside the daemon; one decision in 16 is measured.
    pub decision_seconds: Histogram,
    /// `store_call_seconds`: time of a call to Redis with its redirects; one call in 8 is measured.
    pub store_call_seconds: Histogram,
    /// `warnings_forgotten_total`: warnings that made room for others before their window ended.
    pub warnings_forgotten: Counter,
    /// `coalesced_checks_total`: checks that went to Redis in another one's call.
    pub coalesced_checks: Counter,
    /// `store_daemons`: daemons that share the Redis, this one included.
    pub store_daemons: Gauge,
    /// `sync_updates_total`: frames with counts handled, in both directions.
    pub sync_updates: Counter,
    /// `late_reports_total`: reports that came after the instant at which every region should have used them.
    pub late_reports: Counter,
    /// `world_keys`: buckets of worldwide limits that are followed.
    pub world_keys: Gauge,
    /// `world_keys_dropped_total`: buckets of worldwide limits in use that found no room to be followed.
    pub world_keys_dropped: Counter,
    /// `tallies_dropped_total`: counts of worldwide limits that found no room before they were sent.
    pub tallies_dropped: Counter,
    /// `rules_revision`: revision of the rule set in force.
    pub rules_revision: Gauge,
    /// `rules`: number of rules in the set in force.
    pub rules_count: Gauge,
    /// `rules_source_up`: 1 while the file or database of the rules can be read.
    pub rules_source_up: Gauge,
    /// `rules_refused`: 1 while the newest rules are refused and those before stay in force.
    pub rules_refused: Gauge,
    /// `rules_unsaved`: 1 while the rules in force are not saved on this machine.
    pub rules_unsaved: Gauge,
    /// `rule_warnings`: warnings of rules in force that are valid and hardly meant so.
    pub rule_warnings: Gauge,
    /// `rule_reload_failures_total`: rule sets that were refused.
    pub rule_reload_failures: Counter,
    /// `config_reload_failures_total`: changed configurations that were refused.
    pub config_reload_failures: Counter,
    /// `audit_queue`: records of decisions that wait in memory.
    pub audit_queue: Gauge,
    /// `audit_spooled_bytes`: bytes in the spool, not delivered yet.
    pub audit_spooled_bytes: Gauge,
    /// `audit_held`: records that wait in memory because the spool cannot be written.
    pub audit_held: Gauge,
    /// `identity_sightings_lost_total`: users and keys whose last request is not remembered.
    pub sightings_lost: Counter,
    /// `audit_unlisted_total`: denials beyond `audit.denied_rows_max`, which have no row of their own.
    pub audit_unlisted: Counter,
    /// `audit_merged_total`: users, paths and keys of decisions that are counted under `*`.
    pub audit_merged: Counter,
    /// `audit_unsummed`: sums by minute, hour and day that wait in memory to be written.
    pub audit_unsummed: Gauge,
    /// `audit_rows_total`: records delivered to the database.
    pub audit_rows: Counter,
    /// `audit_archived_rows_total`: records moved from the database to the archive.
    pub audit_archived_rows: Counter,
    /// `keys`: buckets held in memory; with Redis those that the daemon keeps in mind.
    pub keys: Gauge,
    /// `keys_evicted_total`: buckets forgotten before their time to make room.
    pub keys_evicted: Counter,
    /// `keys_full_total`: charges that found no room, in memory or while Redis is away.
    pub keys_full: Counter,
    /// See `log_lines_lost_total` in [`METRICS`]: those not written, and those without room.
    log_lines_lost: [Counter; 2],
}

impl std::fmt::Debug for RuleMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RuleMetrics")
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

const DECISION_BUCKETS_SECONDS: [f64; 12] =
    [1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 1e-5, 5e-5, 2.5e-4, 1e-3, 5e-3, 2e-2, 1e-1];
/// The histogram of a daemon that stands in for Envoy's rate limit service.
pub const SERVICE_SECONDS: &str = "ratelimit_service_response_time_seconds";
const METADATA: Metadata<'static> = Metadata::new("tidegate", Level::INFO, None);

fn key(name: &'static str, labels: Vec<Label>) -> Key {
    Key::from_parts(format!("tidegate_{name}"), labels)
}

impl Metrics {
    /// A registry with every metric of [`METRICS`] described.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let mut builder = PrometheusBuilder::new();
        for name in ["tidegate_decision_seconds", "tidegate_store_call_seconds", SERVICE_SECONDS] {
            builder =
                match builder.set_buckets_for_metric(Matcher::Full(name.into()), &DECISION_BUCKETS_SECONDS) {
                    Ok(builder) => builder,
                    // Refused only for an empty list of buckets.
                    Err(_) => PrometheusBuilder::new(),
                };
        }
        let recorder = builder.build_recorder();
        for (name, kind, _, help) in METRICS {
            let name = metrics::KeyName::from(format!("tidegate_{name}"));
            match kind {
                MetricKind::Counter => recorder.describe_counter(name, None, (*help).into()),
                MetricKind::Gauge => recorder.describe_gauge(name, None, (*help).into()),
                MetricKind::Histogram => {
                    recorder.describe_histogram(name, Some(Unit::Seconds), (*help).into())
                }
            }
        }
        let counter = |name| recorder.register_counter(&key(name, Vec::new()), &METADATA);
        let gauge = |name| recorder.register_gauge(&key(name, Vec::new()), &METADATA);
        recorder
            .register_gauge(
                &key("build_info", vec![Label::new("version", env!("CARGO_PKG_VERSION"))]),
                &METADATA,
            )
            .set(1.0);
        Arc::new(Self {
            decision_seconds: recorder.register_histogram(&key("decision_seconds", Vec::new()), &METADATA),
            store_call_seconds: recorder
                .register_histogram(&key("store_call_seconds", Vec::new()), &METADATA),
            warnings_forgotten: counter("warnings_forgotten_total"),
            coalesced_checks: counter("coalesced_checks_total"),
            store_daemons: gauge("store_daemons"),
            sync_updates: counter("sync_updates_total"),
            late_reports: counter("late_reports_total"),
            world_keys: gauge("world_keys"),
            world_keys_dropped: counter("world_keys_dropped_total"),
            tallies_dropped: counter("tallies_dropped_total"),
            rules_revision: gauge("rules_revision"),
            rules_count: gauge("rules"),
            rules_source_up: gauge("rules_source_up"),
            rules_refused: gauge("rules_refused"),
            rules_unsaved: gauge("rules_unsaved"),
            rule_warnings: gauge("rule_warnings"),
            rule_reload_failures: counter("rule_reload_failures_total"),
            config_reload_failures: counter("config_reload_failures_total"),
            audit_queue: gauge("audit_queue"),
            audit_spooled_bytes: gauge("audit_spooled_bytes"),
            audit_held: gauge("audit_held"),
            sightings_lost: counter("identity_sightings_lost_total"),
            audit_unlisted: counter("audit_unlisted_total"),
            audit_merged: counter("audit_merged_total"),
            audit_unsummed: gauge("audit_unsummed"),
            audit_rows: counter("audit_rows_total"),
            audit_archived_rows: counter("audit_archived_rows_total"),
            keys: gauge("keys"),
            keys_evicted: counter("keys_evicted_total"),
            keys_full: counter("keys_full_total"),
            log_lines_lost: ["unwritten", "queue_full"].map(|reason| {
                let labels = vec![Label::new("reason", reason)];
                recorder.register_counter(&key("log_lines_lost_total", labels), &METADATA)
            }),
            handle: recorder.handle(),
            recorder,
            rules: Mutex::default(),
            regions: Mutex::default(),
            servers: Mutex::default(),
        })
    }

    /// The handles of a rule; beyond [`RULE_LABELS_MAX`] names, those of `other`.
    #[must_use]
    pub fn rule(&self, name: &str) -> RuleMetrics {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let name = if rules.contains_key(name) || rules.len() < RULE_LABELS_MAX { name } else { "other" };
        if let Some(known) = rules.get(name) {
            return known.clone();
        }
        let outcome = |outcome| self.decisions_of(name, outcome);
        let made = RuleMetrics {
            allowed: outcome("allowed"),
            denied: outcome("denied"),
            shadow_denied: outcome("shadow_denied"),
            diverted: Arc::default(),
            denials: Arc::default(),
        };
        // The cause that every rule may have is there before its first denial.
        let used_up = &made.denials[DenialCause::UsedUp.index()];
        used_up.get_or_init(|| self.denials_of(name, DenialCause::UsedUp));
        rules.insert(name.to_owned(), made.clone());
        made
    }

    fn decisions_of(&self, rule: &str, outcome: &'static str) -> Counter {
        let labels = vec![Label::new("rule", rule.to_owned()), Label::new("outcome", outcome)];
        self.recorder.register_counter(&key("decisions_total", labels), &METADATA)
    }

    /// The counter of decisions in which a rule named something to use instead: `handles` are those that
    /// [`Self::rule`] gave the rule.
    pub(crate) fn diverted<'h>(&self, handles: &'h RuleMetrics, name: &str) -> &'h Counter {
        handles.diverted.get_or_init(|| {
            let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            let name = if rules.contains_key(name) { name } else { "other" };
            self.decisions_of(name, "diverted")
        })
    }

    /// The counter of a rule's denials of one cause: `handles` are those that [`Self::rule`] gave the rule.
    pub(crate) fn denial<'h>(&self, handles: &'h RuleMetrics, name: &str, cause: DenialCause) -> &'h Counter {
        handles.denials[cause.index()].get_or_init(|| {
            let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            let name = if rules.contains_key(name) { name } else { "other" };
            self.denials_of(name, cause)
        })
    }

    fn denials_of(&self, rule: &str, cause: DenialCause) -> Counter {
        let labels = vec![Label::new("rule", rule.to_owned()), Label::new("cause", cause.as_str())];
        self.recorder.register_counter(&key("denials_total", labels), &METADATA)
    }

    /// A counter by domain and reason. The caller bounds the number of domains.
    pub(crate) fn of_domain(&self, name: &'static str, domain: &str, reason: &'static str) -> Counter {
        let labels = vec![Label::new("domain", domain.to_owned()), Label::new("reason", reason)];
        self.recorder.register_counter(&key(name, labels), &METADATA)
    }

    /// A counter under the whole name that another service gave it. The caller bounds its labels.
    pub fn counter_of_service(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        let labels =
            labels.iter().map(|(label, value)| Label::new(*label, (*value).to_owned())).collect::<Vec<_>>();
        self.recorder.register_counter(&Key::from_parts(name, labels), &METADATA)
    }

    /// A histogram alike, of seconds.
    pub fn histogram_of_service(
        &self,
        name: &'static str,
        labels: &[(&'static str, &'static str)],
    ) -> Histogram {
        let labels = labels.iter().map(|(label, value)| Label::new(*label, *value)).collect::<Vec<_>>();
        self.recorder.register_histogram(&Key::from_parts(name, labels), &METADATA)
    }

    /// A counter with one label of a fixed, small set of values.
    pub fn counter(&self, name: &'static str, label: &'static str, value: &'static str) -> Counter {
        self.recorder.register_counter(&key(name, vec![Label::new(label, value)]), &METADATA)
    }

    /// A gauge with one label of a fixed, small set of values.
    pub fn gauge(&self, name: &'static str, label: &'static str, value: &'static str) -> Gauge {
        self.recorder.register_gauge(&key(name, vec![Label::new(label, value)]), &METADATA)
    }

    /// A gauge without labels.
    pub fn plain_gauge(&self, name: &'static str) -> Gauge {
        self.recorder.register_gauge(&key(name, Vec::new()), &METADATA)
    }

    /// A gauge of one region, and of one rule.
    pub fn region_gauge(&self, name: &'static str, region: &str) -> Gauge {
        self.recorder.register_gauge(&key(name, vec![Label::new("region", self.region(region))]), &METADATA)
    }

    /// Sets how full a server of the store is: bytes used, their bound, and keys; and how many keys it has
    /// evicted.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    pub fn store_server(&self, server: &str, sizes: [u64; 3], evicted: u64) {
        let label = || vec![Label::new("server", self.server(server))];
        let names = ["store_memory_used_bytes", "store_memory_max_bytes", "store_keys"];
        for (name, size) in names.into_iter().zip(sizes) {
            self.recorder.register_gauge(&key(name, label()), &METADATA).set(size as f64);
        }
        self.recorder
            .register_counter(&key("store_evicted_keys_total", label()), &METADATA)
            .absolute(evicted);
    }

    /// Servers come and go with a cluster's failovers, so only so many get labels of their own.
    fn server(&self, server: &str) -> SharedString {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if servers.contains(server) || servers.len() < SERVER_LABELS_MAX {
            servers.insert(server.to_owned());
            return SharedString::from(server.to_owned());
        }
        SharedString::const_str("other")
    }

    /// Bytes between this daemon and a region.
    pub fn sync_bytes(&self, region: &str, direction: &'static str) -> Counter {
        let labels = vec![Label::new("region", self.region(region)), Label::new("direction", direction)];
        self.recorder.register_counter(&key("sync_bytes_total", labels), &METADATA)
    }

    /// One of the gauges of a global rule.
    pub fn rule_gauge(&self, name: &'static str, rule: &str) -> Gauge {
        let known = self.rules.lock().unwrap_or_else(PoisonError::into_inner).contains_key(rule);
        let rule = if known { rule.to_owned() } else { "other".to_owned() };
        self.recorder.register_gauge(&key(name, vec![Label::new("rule", rule)]), &METADATA)
    }

    /// Permits that went from one region to another.
    pub fn rights_moved(&self, from: &str, to: &str) -> Counter {
        let labels = vec![Label::new("from", self.region(from)), Label::new("to", self.region(to))];
        self.recorder.register_counter(&key("rights_moved_total", labels), &METADATA)
    }

    /// A counter of one rule.
    pub fn rule_counter(&self, name: &'static str, rule: &str) -> Counter {
        let known = self.rules.lock().unwrap_or_else(PoisonError::into_inner).contains_key(rule);
        let rule = if known { rule.to_owned() } else { "other".to_owned() };
        self.recorder.register_counter(&key(name, vec![Label::new("rule", rule)]), &METADATA)
    }

    /// Permits above a global rule's limit.
    pub fn overshoot(&self, rule: &str) -> Counter {
        self.rule_counter("global_overshoot_permits_total", rule)
    }

    /// Regions come from certificates of the cluster's own authority, but even those are only so many.
    fn region(&self, region: &str) -> SharedString {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = regions.get(region) {
            return known.clone();
        }
        if regions.len() >= REGION_LABELS_MAX {
            return SharedString::const_str("other");
        }
        let label = SharedString::from(region.to_owned());
        regions.insert(region.to_owned(), label.clone());
        label
    }

    /// Everything in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        // The log is the process's, which may hold several daemons.
        let (unwritten, no_room) = super::log::lost();
        self.log_lines_lost[0].absolute(unwritten);
        self.log_lines_lost[1].absolute(no_room);
        self.handle.render()
    }

    /// Drains histograms into their buckets. Called about once a second, or they grow.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}
