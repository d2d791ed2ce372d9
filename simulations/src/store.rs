//! The smallest store that a region can have: counts by aligned window, held to what the protocol says.

use std::collections::BTreeMap;

use tidegate::core::algorithm::{Algorithm, Limit, State, View};
use tidegate::core::time::Timestamp;
use tidegate::core::worldwide::{Effect, Touched, WorldKey};

/// What one region counts.
#[derive(Debug)]
pub(crate) struct Store {
    algorithm: Algorithm,
    levels: BTreeMap<WorldKey, (State, Option<View>)>,
    buckets: BTreeMap<WorldKey, Bucket>,
    tallies: BTreeMap<(WorldKey, u64), [u64; 2]>,
}

#[derive(Debug, Default)]
struct Bucket {
    window: u64,
    used: u64,
    view: Option<View>,
}

impl Store {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        Self { algorithm, levels: BTreeMap::new(), buckets: BTreeMap::new(), tallies: BTreeMap::new() }
    }

    fn level(&mut self, key: &WorldKey) -> &mut (State, Option<View>) {
        self.levels.entry(key.clone()).or_insert_with(|| (State::new(self.algorithm), None))
    }

    /// The same for an algorithm without windows, with the machine of the daemon.
    fn decide_level(&mut self, key: &WorldKey, limit: &Limit, now: Timestamp) -> bool {
        let (state, view) = self.level(key);
        let admitted = state.check(limit, view.as_ref(), now, 1).admitted;
        if admitted {
            state.take(limit, now, 1);
        }
        let tally = self.tallies.entry((key.clone(), 0)).or_default();
        tally[0] += 1;
        tally[1] += u64::from(admitted);
        admitted
    }

    /// Decides one request of one permit.
    pub(crate) fn decide(&mut self, key: &WorldKey, limit: &Limit, now: Timestamp) -> bool {
        if self.algorithm != Algorithm::FixedWindow {
            return self.decide_level(key, limit, now);
        }
        let window = now.window_index(limit.window);
        let bucket = self.buckets.entry(key.clone()).or_default();
        if window > bucket.window {
            (bucket.window, bucket.used) = (window, 0);
        }
        let budget = match bucket.view {
            Some(view) if view.window == bucket.window => view.budget,
            Some(view) if view.window + 1 == bucket.window => view.next_budget,
            _ => limit.permits,
        };
        let admitted = bucket.used < u64::from(budget.min(limit.permits));
        bucket.used += u64::from(admitted);
        let tally = self.tallies.entry((key.clone(), bucket.window)).or_default();
        tally[0] += 1;
        tally[1] += u64::from(admitted);
        admitted
    }

    pub(crate) fn apply(&mut self, effect: Effect, limit: &Limit, now: Timestamp) {
        let windowed = self.algorithm == Algorithm::FixedWindow;
        match effect {
            Effect::View { key, view, .. } if windowed => {
                self.buckets.entry(key).or_default().view = Some(view)
            }
            Effect::View { key, view, .. } => self.level(&key).1 = Some(view),
            Effect::Debit { key, permits } => self.level(&key).0.debit(limit, now, permits),
        }
    }

    /// What happened since the last call.
    pub(crate) fn drain(&mut self) -> Vec<Touched> {
        let touched = |((key, window), [offered, admitted]): ((WorldKey, u64), [u64; 2])| Touched {
            key,
            window,
            offered,
            admitted,
            returned: 0,
            refused: 0,
        };
        std::mem::take(&mut self.tallies).into_iter().map(touched).collect()
    }
}
