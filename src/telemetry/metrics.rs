//! The metrics of one daemon. [`METRICS`] lists them all; documentation and tests read that list.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

mod identity;

pub use identity::IdentityMetrics;

/// Most rules that get labels of their own; the rest share `rule="other"`.
const RULE_LABELS_MAX: usize = 1_000;
/// Most regions that get labels of their own.
const REGION_LABELS_MAX: usize = 256;
/// Most Redis servers that get labels of their own.
const SERVER_LABELS_MAX: usize = 256;

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
        "unmatched_requests_total",
        MetricKind::Counter,
        &["domain", "reason"],
        "Requests that no rule counted or decided: of a domain that has no rules (domain), or matched by none of its rules (rule)",
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
        "reports_uncharged_permits_total",
        MetricKind::Counter,
        &["reason"],
        "Permits of reports that were not charged: debt_max: they exceed what a bucket may owe; forgiven: of rules with debt = \
         \"forgive\"; store: the store could not be asked, or had no room",
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
        "Calls to Redis without an answer: timeout, connection, breaker_open, topology, not_serving, full, crowded, forbidden, \
         unexpected; reply_lost: of those, what may have been charged all the same; undo_lost: reservations not given back; \
         holders_untold: of a concurrency limit, too many to be told to Redis when it was back",
    ),
    ("breaker_state", MetricKind::Gauge, &["state"], "Redis servers by breaker: closed, half_open, open"),
    (
        "store_trouble",
        MetricKind::Gauge,
        &["kind"],
        "Redis servers that suffer now from: full, crowded, forbidden, not_serving, unexpected, late, away, unsuitable",
    ),
    ("store_daemons", MetricKind::Gauge, &[], "Daemons that share the Redis, this one included"),
    ("store_memory_used_bytes", MetricKind::Gauge, &["server"], "Memory that a Redis server uses"),
    ("store_memory_max_bytes", MetricKind::Gauge, &["server"], "Its maxmemory; 0 for none"),
    ("store_keys", MetricKind::Gauge, &["server"], "Keys in a Redis server's database"),
    (
        "store_evicted_keys_total",
        MetricKind::Counter,
        &["server"],
        "Keys that a Redis server evicted since it started; above zero limits were forgotten",
    ),
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
        "reports_passed_over_total",
        MetricKind::Counter,
        &["reason"],
        "What came from other daemons and was passed over as it should be: window, rights_window (over, or not begun, by a \
         little), rights_early (what a third region gave the sender is not known here yet: they come again), duplicate, unnamed (goes by a number that is not known here; it comes again with its name)",
    ),
    (
        "peer_dropped_total",
        MetricKind::Counter,
        &["queue"],
        "Frames dropped because a queue was full: the next one carries their sum; unconnected: while their daemon was not \
         connected",
    ),
    ("world_keys", MetricKind::Gauge, &[], "Buckets of worldwide limits that are followed"),
    (
        "world_keys_dropped_total",
        MetricKind::Counter,
        &[],
        "Buckets of worldwide limits in use that found no room to be followed: the region keeps to its share of them",
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
        "throttle_holds_total",
        MetricKind::Counter,
        &["outcome"],
        "Answers that delay = \"hold\" held back: held to the end, released early by the daemon's end, or full: told at once",
    ),
    (
        "reservations_total",
        MetricKind::Counter,
        &["event"],
        "Reservations by rule: reserved; released: committed in time; lapsed: committed too late and charged in full; \
         repeated: the same again; crowded: denied, no room for more; estimated: by the daemon; unlearned: a kind of cost forgotten",
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
    (
        "notices",
        MetricKind::Gauge,
        &["about"],
        "What is wrong with the cluster now, as the log, /readyz and `tidegate regions` tell: cut_off, unseen, regions, \
         agreement, rules, clock, join, refused, certificate",
    ),
    (
        "certificate_expires_timestamp_seconds",
        MetricKind::Gauge,
        &["certificate"],
        "When certificates end, in seconds since the epoch: node and authority between daemons, http and grpc of listeners",
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
    (
        "rules_unsaved",
        MetricKind::Gauge,
        &[],
        "1 while the rules in force are not saved on this machine, to start from without the database",
    ),
    (
        "rule_warnings",
        MetricKind::Gauge,
        &[],
        "Rules in force that are valid and hardly meant so: out of reach, an option without effect, no rules at all",
    ),
    (
        "keys",
        MetricKind::Gauge,
        &[],
        "Buckets held in memory; with Redis those that this daemon keeps in mind for when Redis is away",
    ),
    ("keys_evicted_total", MetricKind::Counter, &[], "Buckets forgotten before their time to make room"),
    (
        "hot_crowded_total",
        MetricKind::Counter,
        &["what"],
        "What found no room where the heaviest are counted: bucket: counted buckets that made room for others; rule: decisions in no rule's sum",
    ),
    (
        "keys_full_total",
        MetricKind::Counter,
        &[],
        "Charges that found no room: in memory every bucket in reach was at its limit; with Redis away \
         this daemon counted store.max_keys keys by itself",
    ),
    (
        "requests_rejected_total",
        MetricKind::Counter,
        &["door"],
        "Malformed requests refused at a door: http, rls",
    ),
    (
        "tls_handshakes_failed_total",
        MetricKind::Counter,
        &["door"],
        "Connections whose TLS handshake failed, by door: no TLS at all, or no certificate that the listener accepts",
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
        "Connections closed at once because the door was full and no other one was idle",
    ),
    (
        "connections_evicted_total",
        MetricKind::Counter,
        &["door"],
        "Idle connections closed to make room for new ones",
    ),
    (
        "connections_unread_total",
        MetricKind::Counter,
        &["door"],
        "Connections closed because their clients read no answers",
    ),
    ("grpc_other_calls", MetricKind::Gauge, &[], "Open calls of gRPC health and reflection"),
    ("tasks", MetricKind::Gauge, &[], "Tasks of the process: some for each listener, peer and connection"),
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
        "Records lost: queue_full, spool_full, spool_failed (with no database to take them), refused, and of files of the spool \
         damaged, unreadable, removed (1 a file where nobody knows how many it held)",
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
    ("audit_held", MetricKind::Gauge, &[], "Records that wait in memory because the spool cannot be written"),
    (
        "audit_unlisted_total",
        MetricKind::Counter,
        &[],
        "Denials beyond audit.denied_rows_max: in the sums of their rules, without a row of their own",
    ),
    (
        "audit_merged_total",
        MetricKind::Counter,
        &[],
        "Records whose user or path has no sum of its own, because its rule has audit.users_max or audit.paths_max of them today",
    ),
    ("audit_archived_rows_total", MetricKind::Counter, &[], "Records moved from the database to the archive"),
    (
        "task_ends_total",
        MetricKind::Counter,
        &["task"],
        "Background tasks that ended although nobody stopped them, and were started again; above zero is an alarm",
    ),
    (
        "log_lines_lost_total",
        MetricKind::Counter,
        &["reason"],
        "Lines of the log that nobody will read: unwritten (standard error took them not), queue_full (it took them too slowly)",
    ),
    ("build_info", MetricKind::Gauge, &["version"], "Always 1"),
];

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
    servers: Mutex<HashSet<String>>,
    /// See `decision_seconds` in [`METRICS`].
    pub decision_seconds: Histogram,
    /// See `store_call_seconds` in [`METRICS`].
    pub store_call_seconds: Histogram,
    /// See `coalesced_checks_total` in [`METRICS`].
    pub coalesced_checks: Counter,
    /// See `store_daemons` in [`METRICS`].
    pub store_daemons: Gauge,
    /// See `sync_updates_total` in [`METRICS`].
    pub sync_updates: Counter,
    /// See `late_reports_total` in [`METRICS`].
    pub late_reports: Counter,
    /// See `world_keys` in [`METRICS`].
    pub world_keys: Gauge,
    /// See `world_keys_dropped_total` in [`METRICS`].
    pub world_keys_dropped: Counter,
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
    /// See `rules_unsaved` in [`METRICS`].
    pub rules_unsaved: Gauge,
    /// See `rule_warnings` in [`METRICS`].
    pub rule_warnings: Gauge,
    /// See `rule_reload_failures_total` in [`METRICS`].
    pub rule_reload_failures: Counter,
    /// See `audit_queue` in [`METRICS`].
    pub audit_queue: Gauge,
    /// See `audit_spooled_bytes` in [`METRICS`].
    pub audit_spooled_bytes: Gauge,
    /// See `audit_held` in [`METRICS`].
    pub audit_held: Gauge,
    /// See `audit_unlisted_total` in [`METRICS`].
    pub audit_unlisted: Counter,
    /// See `audit_merged_total` in [`METRICS`].
    pub audit_merged: Counter,
    /// See `audit_unsummed` in [`METRICS`].
    pub audit_unsummed: Gauge,
    /// See `audit_rows_total` in [`METRICS`].
    pub audit_rows: Counter,
    /// See `audit_archived_rows_total` in [`METRICS`].
    pub audit_archived_rows: Counter,
    /// See `keys` in [`METRICS`].
    pub keys: Gauge,
    /// See `keys_evicted_total` in [`METRICS`].
    pub keys_evicted: Counter,
    /// See `keys_full_total` in [`METRICS`].
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
            audit_queue: gauge("audit_queue"),
            audit_spooled_bytes: gauge("audit_spooled_bytes"),
            audit_held: gauge("audit_held"),
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

    /// A counter by domain and reason. Whoever calls this bounds the number of domains.
    pub(crate) fn of_domain(&self, name: &'static str, domain: &str, reason: &'static str) -> Counter {
        let labels = vec![Label::new("domain", domain.to_owned()), Label::new("reason", reason)];
        self.recorder.register_counter(&key(name, labels), &METADATA)
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

    /// How full a server of the store is: bytes used, their bound, and keys; and how many keys it has
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
