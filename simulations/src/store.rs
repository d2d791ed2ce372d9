//! The smallest store that a region can have: counts by aligned window, held to what the protocol says.

use std::collections::BTreeMap;

use tidegate::core::algorithm::{Limit, View};
use tidegate::core::time::Timestamp;
use tidegate::core::worldwide::{Effect, Touched, WorldKey};

/// What one region counts.
#[derive(Debug, Default)]
pub(crate) struct Store {
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
    /// Decides one request of one permit.
    pub(crate) fn decide(&mut self, key: &WorldKey, limit: &Limit, now: Timestamp) -> bool {
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

    pub(crate) fn apply(&mut self, effect: Effect) {
        if let Effect::View { key, view, .. } = effect {
            self.buckets.entry(key).or_default().view = Some(view);
        }
    }

    pub(crate) fn shown(&self, key: &WorldKey) -> String {
        self.buckets.get(key).map_or(String::new(), |b| {
            format!("{}/{}", b.used, b.view.filter(|v| v.window == b.window).map_or(0, |v| v.budget))
        })
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
