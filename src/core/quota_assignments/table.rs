//! All buckets of which one daemon assigns, by domain and id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::BucketAssignments;
use crate::time::Timestamp;

/// There is no room for a further bucket, or for a further stream of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("as many buckets are assigned as may be")]
pub struct TableFull;

/// A bucket that is remembered.
#[derive(Debug, Default)]
struct KeptBucket {
    bucket: BucketAssignments,
    /// Where no stream has it: the instant from which nobody can spend anything of it.
    free_from: Option<Timestamp>,
}

/// Buckets by what names them. Bounded by the pairs of a stream and a bucket.
#[derive(Debug)]
pub struct QuotaTable {
    buckets: BTreeMap<Arc<[u8]>, KeptBucket>,
    /// When windows end, and of which buckets.
    ends: BTreeSet<(Timestamp, Arc<[u8]>)>,
    /// The buckets that no stream has, by when they may give way to others.
    without_stream: BTreeSet<(Timestamp, Arc<[u8]>)>,
    pairs: usize,
    pairs_max: usize,
}

impl QuotaTable {
    /// An empty table for so many pairs of a stream and a bucket, and as many buckets.
    #[must_use]
    pub fn new(pairs_max: usize) -> Self {
        Self {
            buckets: BTreeMap::new(),
            ends: BTreeSet::new(),
            without_stream: BTreeSet::new(),
            pairs: 0,
            pairs_max,
        }
    }

    /// A stream has a bucket from now on. Once for each pair.
    ///
    /// # Errors
    /// There is no room.
    pub fn join(&mut self, stream: u64, name: &Arc<[u8]>, now: Timestamp) -> Result<(), TableFull> {
        let is_new = !self.buckets.contains_key(name);
        if self.pairs >= self.pairs_max || (is_new && !self.has_room(now)) {
            return Err(TableFull);
        }
        self.pairs += 1;
        let kept = self.buckets.entry(Arc::clone(name)).or_default();
        if let Some(free_from) = kept.free_from.take() {
            self.without_stream.remove(&(free_from, Arc::clone(name)));
        }
        kept.bucket.join(stream);
        Ok(())
    }

    /// True if a bucket more finds room, where need be in the place of one that nobody can spend of.
    fn has_room(&mut self, now: Timestamp) -> bool {
        if self.buckets.len() < self.pairs_max {
            return true;
        }
        let Some((_, name)) = self.without_stream.first().filter(|(free_from, _)| *free_from <= now).cloned()
        else {
            return false;
        };
        self.remove(&name);
        true
    }

    fn remove(&mut self, name: &Arc<[u8]>) {
        let Some(kept) = self.buckets.remove(name) else { return };
        if let Some(free_from) = kept.free_from {
            self.without_stream.remove(&(free_from, Arc::clone(name)));
        }
        if let Some(ends) = kept.bucket.ends() {
            self.ends.remove(&(ends, Arc::clone(name)));
        }
    }

    /// A stream has a bucket no longer.
    pub fn leave(&mut self, stream: u64, name: &Arc<[u8]>, now: Timestamp) {
        self.pairs = self.pairs.saturating_sub(1);
        let Some(kept) = self.buckets.get_mut(name) else { return };
        kept.bucket.leave(stream, now);
        if kept.bucket.is_forgettable(now) {
            self.remove(name);
        } else if let (None, Some(free_from)) = (kept.free_from, kept.bucket.free_from()) {
            kept.free_from = Some(free_from);
            self.without_stream.insert((free_from, Arc::clone(name)));
        }
    }

    /// A bucket.
    pub fn get(&mut self, name: &[u8]) -> Option<&mut BucketAssignments> {
        self.buckets.get_mut(name).map(|kept| &mut kept.bucket)
    }

    /// A bucket counts in the window that ends then. Returns the permits to charge there whatever is left.
    pub fn enter(&mut self, name: &Arc<[u8]>, ends: Timestamp, now: Timestamp) -> u64 {
        let Some(KeptBucket { bucket, .. }) = self.buckets.get_mut(name) else { return 0 };
        if bucket.ends() != Some(ends) {
            self.ends.insert((ends, Arc::clone(name)));
        }
        bucket.enter(ends, now)
    }

    /// Ends windows that are over, at most `most` of them. Returns their buckets with the permits that may be
    /// spent in the next window all the same; those that none may be spent of are left out.
    pub fn turn(&mut self, now: Timestamp, most: usize) -> Vec<(Arc<[u8]>, u64)> {
        let mut forced = Vec::new();
        for _ in 0..most {
            let Some((at, name)) = self.ends.first().filter(|(at, _)| *at <= now).cloned() else { break };
            self.ends.remove(&(at, Arc::clone(&name)));
            let Some(KeptBucket { bucket, .. }) = self.buckets.get_mut(&name) else { continue };
            let permits = bucket.turn(now);
            if bucket.is_forgettable(now) {
                self.remove(&name);
            } else if permits > 0 {
                forced.push((name, permits));
            }
        }
        forced
    }

    /// When the next window ends.
    #[must_use]
    pub fn next_end(&self) -> Option<Timestamp> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Buckets that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// True if none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}
