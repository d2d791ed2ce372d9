//! Buckets for keys that find no room: some keys of one rule are held to one limit together, so that what is
//! admitted stays bounded however many they are.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::entry::Entry;
use crate::core::key::Shape;
use crate::core::time::Timestamp;

/// Into how many groups the keys of one rule that find no room fall.
const GROUPS: u64 = 64;
/// Stand-ins at most: those of a thousand rules. A key without one is denied.
const STAND_INS_MAX: usize = 65_536;

/// Names a stand-in: the rule whose buckets it stands in for, and which group of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StandIn {
    shape: Shape,
    group: u64,
}

impl StandIn {
    pub(super) const fn of(shape: Shape, hash: u64) -> Self {
        Self { shape, group: (hash >> 20) % GROUPS }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct StandIns(HashMap<StandIn, (Entry, Timestamp), RandomState>);

impl StandIns {
    /// The bucket of one; a fresh one if there is room for it.
    pub(super) fn get(&mut self, name: StandIn, now: Timestamp) -> Option<Entry> {
        if let Some((entry, _)) = self.0.get(&name) {
            return Some(entry.clone());
        }
        if self.0.len() >= STAND_INS_MAX {
            self.sweep(now);
        }
        (self.0.len() < STAND_INS_MAX).then(Entry::default)
    }

    /// What one has admitted, which a key of its group may have used.
    pub(super) fn used(&self, name: StandIn, now: Timestamp) -> u64 {
        let own = self.0.get(&name).and_then(|(entry, _)| entry.own.as_ref());
        own.map_or(0, |own| own.state.used(&own.share, now))
    }

    /// Puts a changed bucket back, to be forgotten when it no longer matters. Redis is not told of it: for
    /// whom is not known.
    pub(super) fn put(&mut self, name: StandIn, mut entry: Entry) {
        let Some(own) = entry.own.as_mut() else { return };
        own.owed = 0;
        let expiry = own.state.expiry(&own.share);
        self.0.insert(name, (entry, expiry));
    }

    /// Forgets what no longer matters.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.0.retain(|_, (_, expiry)| *expiry > now);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
