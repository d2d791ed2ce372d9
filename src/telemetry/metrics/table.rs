//! The table of all metrics. Documentation and tests read it.

/// The kind of a metric's number.
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
        "Decisions by deciding rule and outcome: allowed, denied, shadow_denied, diverted (told to use something else)",
    ),
    (
        "denials_total",
        MetricKind::Counter,
        &["rule", "cause"],
        "Denials by rule and cause: used_up, elsewhere (this region's part is used, other regions may have room), not_agreed (the regions have not agreed yet), \
         burnt (the store forgot what was spent), cut_off (a region is), degraded (the failure policy denied), penalty, blocked, \
         too_large (can never pass)",
    ),
    (
        "penalties_total",
        MetricKind::Counter,
        &["rule"],
        "Penalties that began: clients that a rule with a penalty denied too often; of rules that have one",
    ),
    (
        "warnings_total",
        MetricKind::Counter,
        &["rule"],
        "Buckets that were found used beyond the rule's warn_at, once in each window; of rules that have one",
    ),
    (
        "warnings_forgotten_total",
        MetricKind::Counter,
        &[],
        "Warnings that made room for others before their window ended, so that they may be told again",
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
        "Permits of reports and commits that were not charged: debt_max: they exceed what a bucket may owe; forgiven: of rules with debt = \
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
         holders_untold: too many holders to be told when Redis was back; allowance_lost: parts of worldwide limits not written; \
         forgotten: buckets of worldwide limits that Redis had lost and was told of again",
    ),
    ("breaker_state", MetricKind::Gauge, &["state"], "Redis servers by breaker: closed, half_open, open"),
    (
        "store_trouble",
        MetricKind::Gauge,
        &["kind"],
        "Redis servers that suffer now from: full, crowded, evicting, forbidden, not_serving, unexpected, late, away, unsuitable",
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
         connected; slow_handshake: connections whose handshake took too long",
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
        "Answers that delay = \"hold\" held back: held to the end, released early by the daemon's end, full: told at once, \
         or left: turns that went back since their clients left",
    ),
    (
        "reservations_total",
        MetricKind::Counter,
        &["event"],
        "Reservations by rule: reserved; released: committed in time; lapsed: committed too late and charged in full; \
         repeated: the same again; crowded: denied, no room for more; estimated: by the daemon; unlearned: a kind of cost forgotten; unfollowed: of worldwide rules, beyond 100,000 open ones of a daemon",
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
        "Permits admitted above a worldwide limit: under gossip also in a window that is open, once that has lasted for a \
         second; above zero in escrow is an alarm",
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
         agreement, burning, rules, clock, join, refused, certificate, twice, configuration",
    ),
    (
        "certificate_expires_timestamp_seconds",
        MetricKind::Gauge,
        &["certificate"],
        "When certificates end, in seconds since the epoch: node and authority between daemons, http and grpc of listeners, redis towards Redis",
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
        "config_reload_failures_total",
        MetricKind::Counter,
        &[],
        "Changed configurations that were refused; what was in force stayed",
    ),
    (
        "peer_rules_refused_total",
        MetricKind::Counter,
        &["reason"],
        "Newer rule sets of peers that were not taken: digest, too_long, not_sent, unreadable, other_revision, old, database, wrong",
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
        "Warnings of rules in force that are valid and hardly meant so, of one rule perhaps several: out of reach, an option without effect, no rules at all",
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
        &["listener"],
        "Malformed requests refused at a listener: http, rls, resp",
    ),
    (
        "tls_handshakes_failed_total",
        MetricKind::Counter,
        &["listener"],
        "Connections whose TLS handshake failed, by listener: no TLS at all, or no certificate that it accepts",
    ),
    (
        "admin_refused_total",
        MetricKind::Counter,
        &["reason"],
        "Requests to admin routes that were refused: token, role, remote, guessing",
    ),
    ("connections", MetricKind::Gauge, &["listener"], "Open connections by listener"),
    (
        "connections_refused_total",
        MetricKind::Counter,
        &["listener"],
        "Connections refused by a full listener: at once, or after they waited a second for a place",
    ),
    (
        "connections_evicted_total",
        MetricKind::Counter,
        &["listener"],
        "Connections closed to make room for new ones: idle, or not asking for decisions",
    ),
    (
        "connections_unread_total",
        MetricKind::Counter,
        &["listener"],
        "Connections closed because their clients read no answers",
    ),
    (
        "cells",
        MetricKind::Gauge,
        &[],
        "Keys of the Redis protocol kept in memory, whose limits callers bring",
    ),
    (
        "cells_evicted_total",
        MetricKind::Counter,
        &["store"],
        "Keys of the Redis protocol that made room for others while they still counted: memory",
    ),
    (
        "resp_commands_total",
        MetricKind::Counter,
        &["command"],
        "Commands of the Redis protocol: throttle, increx, decision, other, error",
    ),
    (
        "quota_streams",
        MetricKind::Gauge,
        &[],
        "Open streams of gateways that spend quotas by themselves (RLQS)",
    ),
    ("quota_buckets", MetricKind::Gauge, &[], "Buckets of which permits are assigned to gateways"),
    (
        "quota_actions_total",
        MetricKind::Counter,
        &["kind"],
        "What gateways were told of a bucket: tokens, deny, allow, abandon",
    ),
    (
        "quota_permits_total",
        MetricKind::Counter,
        &["event"],
        "Permits for gateways: taken from the rules' buckets, carried into a window because they may be spent in it too",
    ),
    (
        "quota_refused_total",
        MetricKind::Counter,
        &["reason"],
        "Reports that got no permits: rule (it cannot be assigned), full (as many buckets as may be), store (it does not answer)",
    ),
    (
        "quota_streams_lost_total",
        MetricKind::Counter,
        &["reason"],
        "Streams of quotas that ended: ended (by the gateway, or with its connection), receipt (not known in time), refused (a message that is none)",
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
    (
        "identity_sightings_lost_total",
        MetricKind::Counter,
        &[],
        "Users and API keys whose last request is not remembered, since too many wait for the database",
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
        "Denials beyond audit.denied_rows_max: in the sums, without a row of their own",
    ),
    (
        "audit_merged_total",
        MetricKind::Counter,
        &[],
        "Users, paths and keys of decisions that are counted under *: their rule has audit.users_max, paths_max or keys_max of them today, or too many waited at once",
    ),
    ("audit_archived_rows_total", MetricKind::Counter, &[], "Records moved from the database to the archive"),
    (
        "events_total",
        MetricKind::Counter,
        &["kind"],
        "Events told: warning, penalty, block, partition_begun, partition_ended, breaker_open, breaker_closed, certificate",
    ),
    (
        "events_dropped_total",
        MetricKind::Counter,
        &["reason"],
        "Events that the receiver will not hear of: queue_full, spool_full, spool_failed, expired (not taken within events.keep), damaged",
    ),
    (
        "events_batches_total",
        MetricKind::Counter,
        &["outcome"],
        "Batches of events sent to events.url: delivered, failed (they are sent again)",
    ),
    ("events_spooled_bytes", MetricKind::Gauge, &[], "Bytes of events that wait in the spool"),
    (
        "trace_spans_total",
        MetricKind::Counter,
        &["outcome"],
        "Spans by what became of them: delivered, refused (by the collector), undelivered (given up after three attempts), queue_full",
    ),
    (
        "trace_exports_total",
        MetricKind::Counter,
        &["outcome"],
        "Batches of spans posted to traces.endpoint: delivered, failed",
    ),
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
