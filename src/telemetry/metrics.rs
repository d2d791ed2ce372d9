//! The metrics of one daemon. [`METRICS`] lists them all; documentation and tests read that list.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Most rules that get labels of their own; the rest share `rule="other"`.
const RULE_LABELS_MAX: usize = 1_000;
/// Most regions that get labels of their own.
const REGION_LABELS_MAX: usize = 256;

/// What kind of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution, in seconds.
    Histogram,
}

/// Name (without `tidegate_`), kind, label names and meaning of every metric.
pub const METRICS: &[(&str, MetricKind, &[&str], &str)] = &[
    (
        "decisions_total",
        MetricKind::Counter,
        &["rule", "outcome"],
        "Decisions by deciding rule and outcome: allowed, denied, shadow_denied",
    ),
    (
        "decision_seconds",
        MetricKind::Histogram,
        &[],
        "Time to decide inside the daemon, one decision in 16 measured",
    ),
    (
        "degraded_decisions_total",
        MetricKind::Counter,
        &["policy"],
        "Charges answered by a failure policy instead of the store: local, open, closed",
    ),
    (
        "store_call_seconds",
        MetricKind::Histogram,
        &[],
        "Time of a call to Redis with its redirects, one call in 8 measured",
    ),
    (
        "store_errors_total",
        MetricKind::Counter,
        &["kind"],
        "Calls to Redis without an answer: timeout, connection, breaker_open, topology, not_serving, full, forbidden, \
         unexpected; reply_lost: of those, what may have been charged all the same; undo_lost: reservations not given back; \
         holders_untold: of a concurrency limit, too many to be told to Redis when it was back",
    ),
    ("breaker_state", MetricKind::Gauge, &["state"], "Redis servers by breaker: closed, half_open, open"),
    (
        "lease_permits_total",
        MetricKind::Counter,
        &["event"],
        "Permits drawn ahead for hot keys: drawn, used, returned, lost",
    ),
    ("coalesced_checks_total", MetricKind::Counter, &[], "Checks that went to Redis in another one's call"),
    ("peer_connected", MetricKind::Gauge, &["region"], "Links to daemons of the region that are up"),
    ("peer_lag_seconds", MetricKind::Gauge, &["region"], "Age of the newest frame heard from the region"),
    ("peer_rtt_seconds", MetricKind::Gauge, &["region"], "Round trip to the region's nearest daemon"),
    (
        "peer_clock_offset_seconds",
        MetricKind::Gauge,
        &["region"],
        "By how much a clock of the region is ahead of this daemon's, the farthest of them, as well as half a round trip tells; \
         negative: behind",
    ),
    (
        "late_reports_total",
        MetricKind::Counter,
        &[],
        "Reports of other regions that came after the instant at which every region should have used them",
    ),
    (
        "sync_bytes_total",
        MetricKind::Counter,
        &["region", "direction"],
        "Bytes between daemons by other region: sent, received",
    ),
    ("sync_updates_total", MetricKind::Counter, &[], "Frames with counts handled, in both directions"),
    (
        "frames_rejected_total",
        MetricKind::Counter,
        &["reason"],
        "Frames and connections from other daemons that were refused",
    ),
    (
        "peer_dropped_total",
        MetricKind::Counter,
        &["queue"],
        "Frames dropped because a queue was full: the next one carries their sum",
    ),
    (
        "tallies_dropped_total",
        MetricKind::Counter,
        &[],
        "Counts of worldwide limits that found no room before they were sent",
    ),
    (
        "holds_total",
        MetricKind::Counter,
        &["event"],
        "Places of concurrency rules that requests acquired, renewed or released, by rule; gone: renewed or released too late; \
         unnamed: of more rules than a lease names, held until their hold ends",
    ),
    (
        "rights_waits_total",
        MetricKind::Counter,
        &["outcome"],
        "Requests that waited for rights of another region: admitted, refused, or full where too many waited",
    ),
    (
        "rights_moved_total",
        MetricKind::Counter,
        &["from", "to"],
        "Permits of escrow rules that this region gave to another",
    ),
    (
        "rights_free",
        MetricKind::Gauge,
        &["rule"],
        "Rights of an escrow rule that this region could spend at once, in the buckets whose rights move",
    ),
    (
        "rights_under_way",
        MetricKind::Gauge,
        &["rule"],
        "Rights of an escrow rule given to other regions and not known to have arrived",
    ),
    (
        "rights_burning",
        MetricKind::Gauge,
        &["rule"],
        "Buckets of an escrow rule of which rights are burnt, since the store does not know what was spent of them",
    ),
    (
        "global_overshoot_permits_total",
        MetricKind::Counter,
        &["rule"],
        "Permits admitted above a worldwide limit, from the final counts of closed windows; above zero in escrow is an alarm",
    ),
    (
        "global_error_bound",
        MetricKind::Gauge,
        &["rule"],
        "Permits by which the worldwide total of a rule may exceed what is believed",
    ),
    ("rules_revision", MetricKind::Gauge, &[], "Revision of the rule set in force"),
    ("rules", MetricKind::Gauge, &[], "Rules in force"),
    (
        "rule_reload_failures_total",
        MetricKind::Counter,
        &[],
        "Rule sets that were refused; the one before stayed in force",
    ),
    (
        "peer_rules_refused_total",
        MetricKind::Counter,
        &["reason"],
        "Newer rule sets of peers that were not taken: digest, too_long, not_sent, unreadable, other_revision, old, wrong",
    ),
    ("rules_source_up", MetricKind::Gauge, &[], "1 while the file or database of the rules can be read"),
    (
        "rules_refused",
        MetricKind::Gauge,
        &[],
        "1 while the newest rules of the source are refused and those before stay in force",
    ),
    ("keys", MetricKind::Gauge, &[], "Buckets held in memory"),
    (
        "keys_evicted",
        MetricKind::Gauge,
        &[],
        "Buckets forgotten before their time to make room, since the start",
    ),
    (
        "keys_full",
        MetricKind::Gauge,
        &[],
        "Charges that found no room: every bucket in reach was at its limit, since the start",
    ),
    (
        "requests_rejected_total",
        MetricKind::Counter,
        &["door"],
        "Malformed requests refused at a door: http, rls",
    ),
    (
        "admin_refused_total",
        MetricKind::Counter,
        &["reason"],
        "Requests to admin routes that were refused: token, role, remote, guessing",
    ),
    ("connections", MetricKind::Gauge, &["door"], "Open connections by door"),
    (
        "connections_refused_total",
        MetricKind::Counter,
        &["door"],
        "Connections closed at once because the door was full",
    ),
    (
        "identity_cache_total",
        MetricKind::Counter,
        &["result"],
        "Users and API keys needed by decisions: hit (known at once), miss",
    ),
    (
        "identity_lookups_total",
        MetricKind::Counter,
        &["result"],
        "Users and API keys looked up: redis, database (found there, or found not to exist), failed, dropped (no room)",
    ),
    (
        "identity_timeouts_total",
        MetricKind::Counter,
        &[],
        "Decisions that waited for a user or API key in vain and used the default",
    ),
    ("identity_changes_total", MetricKind::Counter, &[], "Changes of users and API keys heard of"),
    ("identity_cache_entries", MetricKind::Gauge, &[], "Users and API keys held in memory"),
    ("identity_cache_bytes", MetricKind::Gauge, &[], "Memory that they take"),
    ("identity_lookups_open", MetricKind::Gauge, &[], "Lookups under way"),
    (
        "identity_refused_total",
        MetricKind::Counter,
        &["reason"],
        "Decisions that refused somebody: user_blocked, key_revoked, key_expired, key_inactive",
    ),
    ("identity_tokens_total", MetricKind::Counter, &["result"], "JSON web tokens shown: valid, invalid"),
    ("audit_queue", MetricKind::Gauge, &[], "Records of decisions that wait in memory"),
    (
        "audit_dropped_total",
        MetricKind::Counter,
        &["reason"],
        "Records lost: queue_full, spool_full, spool_failed (with no database to take them), refused; damaged counts batches",
    ),
    (
        "audit_unsummed",
        MetricKind::Gauge,
        &[],
        "Sums by minute, hour and day that wait in memory to be written",
    ),
    ("audit_rows_total", MetricKind::Counter, &[], "Records delivered to the database"),
    (
        "audit_batches_total",
        MetricKind::Counter,
        &["outcome"],
        "Batches by outcome: delivered, repeated, failed",
    ),
    ("audit_spooled_bytes", MetricKind::Gauge, &[], "Bytes in the spool, not delivered yet"),
    ("audit_archived_rows_total", MetricKind::Counter, &[], "Records moved from the database to the archive"),
    ("build_info", MetricKind::Gauge, &["version"], "Always 1"),
];

/// Handles of what looks people up.
#[derive(Clone)]
#[expect(missing_docs, reason = "each is described in METRICS")]
pub struct IdentityMetrics {
    pub hits: Counter,
    pub misses: Counter,
    pub from_shelf: Counter,
    pub from_database: Counter,
    pub failed: Counter,
    pub dropped: Counter,
    pub timed_out: Counter,
    pub changes: Counter,
    pub entries: Gauge,
    pub bytes: Gauge,
    pub flights: Gauge,
}

/// Handles of one rule, kept beside it.
#[derive(Clone)]
pub struct RuleMetrics {
    /// Decisions in which the rule let the request pass.
    pub allowed: Counter,
    /// Decisions that the rule denied.
    pub denied: Counter,
    /// Decisions that the rule would have denied, were it not in shadow.
    pub shadow_denied: Counter,
}

/// The registry of one daemon and the handles that its parts keep.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    rules: Mutex<HashMap<String, RuleMetrics>>,
    regions: Mutex<HashMap<String, SharedString>>,
    /// See `decision_seconds` in [`METRICS`].
    pub decision_seconds: Histogram,
    /// See `store_call_seconds` in [`METRICS`].
    pub store_call_seconds: Histogram,
    /// See `coalesced_checks_total` in [`METRICS`].
    pub coalesced_checks: Counter,
    /// See `sync_updates_total` in [`METRICS`].
    pub sync_updates: Counter,
    /// See `late_reports_total` in [`METRICS`].
    pub late_reports: Counter,
    /// See `tallies_dropped_total` in [`METRICS`].
    pub tallies_dropped: Counter,
    /// See `rules_revision` in [`METRICS`].
    pub rules_revision: Gauge,
    /// See `rules` in [`METRICS`].
    pub rules_count: Gauge,
    /// See `rules_source_up` in [`METRICS`].
    pub rules_source_up: Gauge,
    /// See `rules_refused` in [`METRICS`].
    pub rules_refused: Gauge,
    /// See `rule_reload_failures_total` in [`METRICS`].
    pub rule_reload_failures: Counter,
    /// See `audit_queue` in [`METRICS`].
    pub audit_queue: Gauge,
    /// See `audit_spooled_bytes` in [`METRICS`].
    pub audit_spooled_bytes: Gauge,
    /// See `audit_unsummed` in [`METRICS`].
    pub audit_unsummed: Gauge,
    /// See `audit_rows_total` in [`METRICS`].
    pub audit_rows: Counter,
    /// See `audit_archived_rows_total` in [`METRICS`].
    pub audit_archived_rows: Counter,
    /// See `keys` in [`METRICS`].
    pub keys: Gauge,
    /// See `keys_evicted` in [`METRICS`].
    pub keys_evicted: Gauge,
    /// See `keys_full` in [`METRICS`].
    pub keys_full: Gauge,
}

impl std::fmt::Debug for RuleMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RuleMetrics")
    }
}

impl std::fmt::Debug for IdentityMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdentityMetrics")
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

const DECISION_BUCKETS_SECONDS: [f64; 12] =
    [1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 1e-5, 5e-5, 2.5e-4, 1e-3, 5e-3, 2e-2, 1e-1];
const METADATA: Metadata<'static> = Metadata::new("tidegate", Level::INFO, None);

fn key(name: &'static str, labels: Vec<Label>) -> Key {
    Key::from_parts(format!("tidegate_{name}"), labels)
}

impl Metrics {
    /// A registry with every metric of [`METRICS`] described.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let mut builder = PrometheusBuilder::new();
        for name in ["tidegate_decision_seconds", "tidegate_store_call_seconds"] {
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
            coalesced_checks: counter("coalesced_checks_total"),
            sync_updates: counter("sync_updates_total"),
            late_reports: counter("late_reports_total"),
            tallies_dropped: counter("tallies_dropped_total"),
            rules_revision: gauge("rules_revision"),
            rules_count: gauge("rules"),
            rules_source_up: gauge("rules_source_up"),
            rules_refused: gauge("rules_refused"),
            rule_reload_failures: counter("rule_reload_failures_total"),
            audit_queue: gauge("audit_queue"),
            audit_spooled_bytes: gauge("audit_spooled_bytes"),
            audit_unsummed: gauge("audit_unsummed"),
            audit_rows: counter("audit_rows_total"),
            audit_archived_rows: counter("audit_archived_rows_total"),
            keys: gauge("keys"),
            keys_evicted: gauge("keys_evicted"),
            keys_full: gauge("keys_full"),
            handle: recorder.handle(),
            recorder,
            rules: Mutex::default(),
            regions: Mutex::default(),
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
        let outcome = |outcome: &'static str| {
            let labels = vec![Label::new("rule", name.to_owned()), Label::new("outcome", outcome)];
            self.recorder.register_counter(&key("decisions_total", labels), &METADATA)
        };
        let made = RuleMetrics {
            allowed: outcome("allowed"),
            denied: outcome("denied"),
            shadow_denied: outcome("shadow_denied"),
        };
        rules.insert(name.to_owned(), made.clone());
        made
    }

    /// A counter with one label of a fixed, small set of values.
    pub fn counter(&self, name: &'static str, label: &'static str, value: &'static str) -> Counter {
        self.recorder.register_counter(&key(name, vec![Label::new(label, value)]), &METADATA)
    }

    /// The handles of what looks people up.
    #[must_use]
    pub fn identity(&self) -> IdentityMetrics {
        let plain = |name| self.recorder.register_counter(&key(name, Vec::new()), &METADATA);
        let gauge = |name| self.recorder.register_gauge(&key(name, Vec::new()), &METADATA);
        let looked = |result| self.counter("identity_lookups_total", "result", result);
        IdentityMetrics {
            hits: self.counter("identity_cache_total", "result", "hit"),
            misses: self.counter("identity_cache_total", "result", "miss"),
            from_shelf: looked("redis"),
            from_database: looked("database"),
            failed: looked("failed"),
            dropped: looked("dropped"),
            timed_out: plain("identity_timeouts_total"),
            changes: plain("identity_changes_total"),
            entries: gauge("identity_cache_entries"),
            bytes: gauge("identity_cache_bytes"),
            flights: gauge("identity_lookups_open"),
        }
    }

    /// A gauge with one label of a fixed, small set of values.
    pub fn gauge(&self, name: &'static str, label: &'static str, value: &'static str) -> Gauge {
        self.recorder.register_gauge(&key(name, vec![Label::new(label, value)]), &METADATA)
    }

    /// A gauge of one region, and of one rule.
    pub fn region_gauge(&self, name: &'static str, region: &str) -> Gauge {
        self.recorder.register_gauge(&key(name, vec![Label::new("region", self.region(region))]), &METADATA)
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

    /// Permits above a global rule's limit.
    pub fn overshoot(&self, rule: &str) -> Counter {
        let known = self.rules.lock().unwrap_or_else(PoisonError::into_inner).contains_key(rule);
        let rule = if known { rule.to_owned() } else { "other".to_owned() };
        let labels = vec![Label::new("rule", rule)];
        self.recorder.register_counter(&key("global_overshoot_permits_total", labels), &METADATA)
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
        self.handle.render()
    }

    /// Drains histograms into their buckets. Called about once a second, or they grow.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}
