//! The metrics of looking up users and API keys.

use metrics::{Counter, Gauge, Recorder};

use super::{METADATA, Metrics, key};

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
    pub look_ups: Gauge,
}

impl std::fmt::Debug for IdentityMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IdentityMetrics")
    }
}

impl Metrics {
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
            look_ups: gauge("identity_lookups_open"),
        }
    }
}
