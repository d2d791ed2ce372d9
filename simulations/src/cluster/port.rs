//! The engine as the task asks it that speaks with other daemons, on a simulated host: the store and the
//! tallies alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::core::regions::gossip::uncertainty::OtherStores;
use tidegate::core::regions::{Effect, Touched, WorldRule};
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::status::WorldStatus;
use tidegate::engine::world::WorldPort;

use crate::model::START;
use crate::model::shell::{RuleInForce, Store, Tallies};

/// One host's side.
pub(super) struct Port {
    store: Store,
    rule: RuleInForce,
    region: String,
    /// Number of regions that are known.
    regions: AtomicU64,
    tallies: Mutex<Tallies>,
    /// Frames handled, and frames and connections refused.
    pub(super) counts: Mutex<(u64, u64)>,
}

impl Port {
    pub(super) fn new(store: Store, rule: RuleInForce, region: String) -> Self {
        let regions = AtomicU64::default();
        Self { store, rule, region, regions, tallies: Mutex::default(), counts: Mutex::default() }
    }

    fn tallies(&self) -> MutexGuard<'_, Tallies> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request of one permit. The window that it was admitted in, if it was.
    pub(super) fn ask(&self, user: u64) -> Option<u64> {
        let (now, limit) = (self.now(), self.rule.limit());
        let first = self.rule.first_of(limit, &self.region, self.regions.load(Ordering::Relaxed));
        let decided = self.store.decide(&self.rule, (limit, first), user, 1, now);
        self.tallies().note(&self.rule, (user, None), 1, decided, now);
        decided.admitted.then(|| now.window_index(self.rule.limit().window))
    }

    fn count(&self, handled: u64, refused: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.0 += handled;
        counts.1 += refused;
    }
}

/// Returns what every simulated clock shows.
pub(super) fn virtual_now() -> Timestamp {
    START + Span(u64::try_from(turmoil::elapsed().as_micros()).unwrap_or(u64::MAX))
}

impl WorldPort for Port {
    fn drain(&self, into: &mut Vec<Touched>) {
        into.extend(self.tallies().drain());
    }

    fn apply(&self, effect: &Effect) {
        self.store.apply(&self.rule, effect, self.now());
    }

    fn revision(&self) -> u64 {
        1
    }

    fn rules(&self) -> (u64, Vec<WorldRule>) {
        (1, self.rule.world_rule().into_iter().collect())
    }

    fn now(&self) -> Timestamp {
        virtual_now()
    }

    fn elsewhere(&self, elsewhere: OtherStores) {
        self.regions.store(elsewhere.regions, Ordering::Relaxed);
    }

    fn publish(&self, _: WorldStatus) {}

    fn overshoot(&self, _: &str, _: u64) {}

    fn refused(&self, _: &'static str, times: u64) {
        self.count(0, times);
    }

    fn dropped(&self, _: &'static str, _: u64) {}

    fn traffic(&self, _: &str, _: u64, _: u64) {}

    fn updates(&self, frames: u64) {
        self.count(frames, 0);
    }
}

/// Shared with the host's tasks.
pub(super) type SharedPort = Arc<Port>;
