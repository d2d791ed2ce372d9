//! The metrics of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use metrics::{Counter, Gauge, Histogram};

use crate::engine::clock::Stopwatch;
use crate::store::redis::client::breaker::Phase;
use crate::store::redis::client::condition::Cause;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::servers::node::Node;
use crate::telemetry::Metrics;

/// One call in this many is timed.
const SAMPLE: u32 = 8;

/// Handles of the store's metrics; see [`crate::telemetry::metrics::METRICS`].
pub(in crate::store::redis) struct StoreMetrics {
    call_seconds: Histogram,
    errors: Vec<(&'static str, Counter)>,
    breakers: [(Phase, Gauge); 3],
    coalesced: Counter,
    undo_lost: Counter,
    allowance_lost: Counter,
    reply_lost: Counter,
    untold: Counter,
    forgotten: Counter,
    leases: [Counter; 4],
    troubles: Vec<(Cause, Gauge)>,
    daemons: Gauge,
    metrics: Arc<Metrics>,
    turn: AtomicU32,
}

/// A call that is timed.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct Timer(Stopwatch);

/// The fate of leased permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Leased {
    /// Charged ahead in Redis.
    Drawn,
    /// Admitted from memory.
    Used,
    /// Given back to Redis.
    Returned,
    /// Neither: their window ended, or giving them back failed.
    Lost,
}

impl std::fmt::Debug for StoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreMetrics")
    }
}

impl StoreMetrics {
    pub(in crate::store::redis) fn new(metrics: &Arc<Metrics>) -> Self {
        let error = |kind| metrics.counter("store_errors_total", "kind", kind);
        let breaker = |state| metrics.gauge("breaker_state", "state", state);
        let lease = |event| metrics.counter("lease_permits_total", "event", event);
        Self {
            call_seconds: metrics.store_call_seconds.clone(),
            errors: Failure::KINDS.iter().map(|kind| (*kind, error(kind))).collect(),
            breakers: [
                (Phase::Closed, breaker("closed")),
                (Phase::HalfOpen, breaker("half_open")),
                (Phase::Open, breaker("open")),
            ],
            coalesced: metrics.coalesced_checks.clone(),
            undo_lost: error("undo_lost"),
            allowance_lost: error("allowance_lost"),
            reply_lost: error("reply_lost"),
            untold: error("holders_untold"),
            forgotten: error("forgotten"),
            troubles: Cause::ALL
                .iter()
                .map(|cause| (*cause, metrics.gauge("store_trouble", "kind", cause.word())))
                .collect(),
            daemons: metrics.store_daemons.clone(),
            metrics: Arc::clone(metrics),
            leases: ["drawn", "used", "returned", "lost"].map(lease),
            turn: AtomicU32::new(0),
        }
    }

    /// Holders that came while Redis was away and were too many to be told to it.
    pub(in crate::store::redis) fn untold(&self, holders: usize) {
        self.untold.increment(u64::try_from(holders).unwrap_or(u64::MAX));
    }

    /// Begins to time a call, now and then.
    pub(in crate::store::redis) fn sample(&self) -> Option<Timer> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        turn.is_multiple_of(SAMPLE).then(|| Timer(Stopwatch::start()))
    }

    /// Records a call that was timed.
    pub(in crate::store::redis) fn record(&self, timer: Timer) {
        self.call_seconds.record(timer.0.elapsed().as_secs_f64());
    }

    pub(in crate::store::redis) fn failed(&self, failure: &Failure) {
        if let Some((_, counter)) = self.errors.iter().find(|(kind, _)| *kind == failure.kind()) {
            counter.increment(1);
        }
        if failure.is_uncertain() {
            self.reply_lost.increment(1);
        }
    }

    /// Counts an allowance that was lost because too many others were not written yet.
    pub(in crate::store::redis) fn allowance_lost(&self) {
        self.allowance_lost.increment(1);
    }

    pub(in crate::store::redis) fn undo_lost(&self) {
        self.undo_lost.increment(1);
    }

    /// A bucket had been lost by Redis, which is told of it.
    pub(in crate::store::redis) fn forgotten(&self) {
        self.forgotten.increment(1);
    }

    pub(in crate::store::redis) fn coalesced(&self, parts: usize) {
        self.coalesced.increment(u64::try_from(parts).unwrap_or(0));
    }

    pub(in crate::store::redis) fn leased(&self, event: Leased, permits: u64) {
        let [drawn, used, returned, lost] = &self.leases;
        let counter = match event {
            Leased::Drawn => drawn,
            Leased::Used => used,
            Leased::Returned => returned,
            Leased::Lost => lost,
        };
        counter.increment(permits);
    }

    /// Publishes how many servers suffer from what, and how full each is.
    pub(in crate::store::redis) fn servers(&self, nodes: &[Arc<Node>]) {
        let troubles: Vec<_> = nodes.iter().flat_map(|node| node.troubles()).collect();
        for (cause, gauge) in &self.troubles {
            let count = troubles.iter().filter(|trouble| trouble.cause == *cause).count();
            gauge.set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
        }
        for node in nodes {
            let Some(memory) = node.notes.memory() else { continue };
            self.metrics.store_server(&node.address, [memory.used, memory.max, memory.keys], memory.evicted);
        }
    }

    /// Publishes how many daemons count together.
    pub(in crate::store::redis) fn daemons(&self, count: u32) {
        self.daemons.set(f64::from(count));
    }

    /// Publishes how many nodes' breakers stand where.
    pub(in crate::store::redis) fn breakers(&self, phases: impl Iterator<Item = Phase>) {
        let mut counts = [0_u32; 3];
        for phase in phases {
            for ((own, _), count) in self.breakers.iter().zip(&mut counts) {
                *count += u32::from(*own == phase);
            }
        }
        for ((_, gauge), count) in self.breakers.iter().zip(counts) {
            gauge.set(f64::from(count));
        }
    }
}
