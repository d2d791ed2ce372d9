//! Events on their way out: a bounded queue that decisions never wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::Counter;
use tokio::sync::Notify;

use super::Engine;
use crate::core::event::{EventKind, EventRecord};
use crate::telemetry::Metrics;

/// Events that wait in memory. One that comes then is dropped and counted.
const QUEUE_MAX: usize = 4_096;

/// Events that wait.
#[derive(Debug)]
pub struct EventQueue {
    waiting: Mutex<VecDeque<EventRecord>>,
    arrived: Notify,
    /// Counters of events told, in the order of [`EventKind::ALL`].
    told: Vec<Counter>,
    full: Counter,
}

impl EventQueue {
    /// None yet.
    pub(super) fn new(metrics: &Metrics) -> Arc<Self> {
        let told = EventKind::ALL.map(|kind| metrics.counter("events_total", "kind", kind.as_str()));
        Arc::new(Self {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            told: told.into(),
            full: metrics.counter("events_dropped_total", "reason", "queue_full"),
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<EventRecord>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event, in the order of the calls.
    pub fn tell(&self, event: EventRecord) {
        let place = EventKind::ALL.iter().position(|kind| *kind == event.kind);
        if let Some(counter) = place.and_then(|place| self.told.get(place)) {
            counter.increment(1);
        }
        let mut waiting = self.lock();
        if waiting.len() >= QUEUE_MAX {
            self.full.increment(1);
            return;
        }
        waiting.push_back(event);
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Hands over all that wait, oldest first.
    pub fn take(&self) -> Vec<EventRecord> {
        std::mem::take(&mut *self.lock()).into()
    }

    /// Waits for an event. One that came since the last wait ends it at once.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

impl Engine {
    /// Returns where this daemon's events wait.
    #[must_use]
    pub const fn events(&self) -> &Arc<EventQueue> {
        &self.events
    }

    /// Returns how the store is.
    #[must_use]
    pub fn store_health(&self) -> super::status::StoreHealth {
        self.store.health()
    }
}
