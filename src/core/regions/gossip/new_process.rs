//! The border between one life of a daemon and the next: the last one tells the others what it admitted, and
//! they tell the next.
//!
//! A store in memory forgets with its daemon, and the others have counted what it used. A daemon that has
//! just begun keeps to its region's share until they had the time to say so, and to count with this region
//! again.
//!
//! A store that outlives its daemon goes on with what the last one told it: the others divided with that one,
//! and cannot know yet that there is another. So until they have answered, the new one tells it nothing else.

use std::cmp::Reverse;

use super::bucket_table::BucketId;
use super::link::GossipLink;
use super::replica::Replica;
use crate::regions::membership::Regions;
use crate::time::{Span, Timestamp};
use crate::wire::RuleName;

/// So long at most a daemon that begins waits for the others: then they count as cut off.
const WORD_MAX: Span = Span::from_secs(3);

/// Most buckets that are told of at the end, those nearest to their limits first: what a link carries in the
/// moment that is left.
const LAST_WORDS_MAX: usize = 10_000;

impl Replica {
    /// This daemon has just begun. Alone it has nothing to wait for.
    pub(super) fn begin_to_wait(&mut self, now: Timestamp) {
        self.waits = (self.regions.len() > 1).then_some(now + WORD_MAX);
    }

    /// The first other region was heard of: without a list of regions that is after this daemon began.
    pub(super) fn meet_first(&mut self, now: Timestamp) {
        let began = Timestamp(self.config.incarnation.saturating_mul(1_000));
        if now < began + WORD_MAX {
            self.begin_to_wait(now);
            self.crowd_changed |= self.is_beginning();
        }
    }

    /// True while it waits for the others' word and keeps to its region's share: its store began with it.
    #[must_use]
    pub const fn is_beginning(&self) -> bool {
        self.waits.is_some() && !self.config.shared_store
    }

    /// True while it waits for the others' word and leaves its store what the last daemon told it.
    pub(super) const fn leaves_allowances(&self) -> bool {
        self.waits.is_some() && self.config.shared_store && self.config.safety.leaves_allowances
    }

    /// Looks whether all others have told this daemon what its former life admitted: each does as soon as it
    /// has heard of this one, and so in the frames that acknowledge one of this life, or right behind them.
    pub(super) fn wait_for_word(&mut self, now: Timestamp) {
        let Some(until) = self.waits else { return };
        let others = || self.regions.iter().skip(1);
        let of = |id| self.links.iter().filter(move |link| link.region == id && link.live);
        let answered = |id| of(id).next().is_some() && of(id).all(|link| link.answered);
        let shared = self.config.shared_store;
        let told = others().all(|(id, region)| region.left || answered(id) || (shared && region.cut_off));
        // Regions that took this one for cut off divide without it for as long as it takes to mend that.
        let until = match told {
            true if shared => now,
            true => until.min(now + self.mending()),
            false => until,
        };
        if now < until {
            self.waits = Some(until);
            return;
        }
        self.waits = None;
        self.crowd_changed |= !shared;
        if shared {
            self.tell_store_all();
        }
    }

    /// A daemon knows nothing of these rules, as it has just begun or has just got them: owes it everything
    /// that it should know.
    pub(super) fn tell_everything_to(&mut self, link: usize, of: impl Fn(&RuleName) -> bool) {
        let Some((region, node)) = self.links.get(link).map(|link| (link.region, link.name.node.clone()))
        else {
            return;
        };
        for id in self.keys.ids() {
            let Some(bucket) = self.keys.get(id).filter(|bucket| of(&bucket.key.rule)) else { continue };
            let owner = self.regions.get(region).and_then(|region| region.ring.owner(&bucket.key));
            let owes = if owner == Some(&node) {
                region == Regions::OWN || self.owns(bucket)
            } else {
                region == Regions::OWN
                    && self.owns(bucket)
                    && bucket.siblings.iter().any(|one| one.node == node)
            };
            if owes {
                self.owe_everything(id, Some(link));
            }
        }
    }

    /// This daemon ends: whatever the others do not know yet is told at once, also what is too little to be
    /// told otherwise.
    pub fn handle_end(&mut self, now: Timestamp) {
        let untold = |id: &BucketId| self.keys.get(*id).is_some_and(|bucket| bucket.has_untold(now));
        let mut ids: Vec<BucketId> = self.keys.ids().into_iter().filter(untold).collect();
        ids.sort_by_cached_key(|id| Reverse(self.keys.get(*id).map(|bucket| bucket.in_use(now))));
        for id in ids.into_iter().take(LAST_WORDS_MAX) {
            self.tell(now, id, true);
        }
    }

    /// True if the others have said that they have all that they were to be told.
    #[must_use]
    pub fn has_told_all(&self) -> bool {
        self.links.iter().all(GossipLink::has_all)
    }
}
