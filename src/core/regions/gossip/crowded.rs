//! Rules with buckets in use that find no room in a bucket table, or with a bucket in which not all counts
//! find room: in this daemon's, and in those of other regions.
//!
//! A daemon without room cannot tell of all that it admits, so it keeps to its region's share and says so in
//! each frame. The daemons that hear it leave that region its share.

use super::bucket_table::BucketId;
use super::replica::Replica;
use crate::regions::membership::RegionId;
use crate::time::{Span, Timestamp};
use crate::wire::{CROWDED_MAX, CrowdedRules, RuleName};

/// A rule stays crowded for so long after a bucket of it last found no room.
const CROWDED_FOR: Span = Span::from_secs(10);
/// Between two looks at what other regions have no room for.
const PAUSE: Span = Span::from_millis(500);
/// Most bytes of names of crowded rules in one frame: where they are longer, all rules count as crowded.
pub(super) const NAMES_BYTES_MAX: usize = 400;
/// The lengths of one name take at most so many bytes of a frame.
const LENGTHS_BYTES: usize = 4;

impl Replica {
    /// The rules whose buckets are to be held to this region's share, because some in use find no room to be
    /// followed, or because they came here late, or all because this daemon has just begun; `None` where they
    /// are the same as when this was last asked. Regions then admit no more than the limit together, although
    /// they cannot tell each other what they admitted.
    pub fn poll_crowded(&mut self) -> Option<Vec<RuleName>> {
        let all = self.is_beginning();
        let held = || {
            let crowded = self.crowded.keys().filter(|_| self.config.safety.keeps_to_shares);
            match all {
                true => self.rules.keys().cloned().collect(),
                false => crowded.chain(self.late_rules.held()).cloned().collect(),
            }
        };
        std::mem::take(&mut self.crowd_changed).then(held)
    }

    /// A bucket of this rule is in use and found no room, or nearly none.
    pub(super) fn crowd(&mut self, now: Timestamp, rule: RuleName) {
        self.crowd_changed |= self.crowded.insert(rule, now + CROWDED_FOR).is_none();
    }

    /// Counts of a bucket found no room in it, or all did: the rule stays crowded until they do, or count no
    /// more.
    pub(super) fn note_room(&mut self, now: Timestamp, id: BucketId, full: bool) {
        self.tally.uncounted = self.tally.uncounted.saturating_add(u64::from(full));
        self.crowd_for(now, id, full);
    }

    /// The rule of a bucket is crowded if the bucket is `full`.
    pub(super) fn crowd_for(&mut self, now: Timestamp, id: BucketId, full: bool) {
        if let Some(bucket) = self.keys.get(id).filter(|_| full) {
            let rule = bucket.key.rule.clone();
            self.crowd(now, rule);
        }
    }

    /// Rules of which all buckets in use found room for long enough are crowded no longer.
    pub(super) fn end_crowds(&mut self, now: Timestamp) {
        let crowded = self.crowded.len();
        self.crowded.retain(|_, until| now < *until);
        self.crowd_changed |= self.crowded.len() != crowded;
        self.crowd_changed |= self.late_rules.end(now);
    }

    /// The clock went back to `now`: nothing is crowded for longer than if it were found so now.
    pub(super) fn shorten_crowds(&mut self, now: Timestamp) {
        self.crowded.values_mut().for_each(|until| *until = (*until).min(now + CROWDED_FOR));
        self.shares_left = self.shares_left.min(now);
        self.late_rules.clock_went_back(now);
    }

    /// The crowded rules of this daemon, as its frames name them.
    pub(super) fn crowded_here(&self) -> CrowdedRules {
        let bytes = |rule: &RuleName| rule.domain.len() + rule.name.len() + LENGTHS_BYTES;
        let fit = self.crowded.len() <= CROWDED_MAX
            && self.crowded.keys().map(bytes).sum::<usize>() <= NAMES_BYTES_MAX;
        if fit { CrowdedRules::Named(self.crowded.keys().cloned().collect()) } else { CrowdedRules::All }
    }

    /// The daemon at this place among the links says of which rules it has no room.
    pub(super) fn hear_crowded(&mut self, now: Timestamp, place: usize, crowded: CrowdedRules) {
        let Some(link) = self.links.get_mut(place) else { return };
        if link.crowded != crowded {
            link.crowded = crowded;
            self.crowds_heard = true;
            self.leave_shares(now);
        }
    }

    /// Works out anew which rules the live daemons of other regions have no room for, if any of them may have
    /// changed. All buckets are looked at then, so a daemon that says another thing in each frame costs no
    /// more than one look in each pause.
    pub(super) fn leave_shares(&mut self, now: Timestamp) {
        if !self.crowds_heard || now < self.shares_left + PAUSE || !self.config.safety.leaves_shares {
            return;
        }
        self.crowds_heard = false;
        let mut changed: Vec<[CrowdedRules; 2]> = Vec::new();
        for region in 1..self.regions.len() {
            let crowded = self.crowded_in(region);
            let before = self.regions.set_crowded(region, crowded.clone());
            if before != crowded {
                changed.push([before, crowded]);
            }
        }
        if changed.is_empty() {
            return;
        }
        self.shares_left = now;
        // The others may have heard of it before, or hear of it later.
        self.unsettle(now);
        for id in self.keys.ids() {
            let Some(bucket) = self.keys.get_mut(id) else { continue };
            let rule = &bucket.key.rule;
            if changed.iter().any(|[before, after]| before.contains(rule) != after.contains(rule)) {
                bucket.unsettle();
                self.recompute(now, id);
            }
        }
    }

    /// The next instant at which [`Self::leave_shares`] has something to do.
    pub(super) fn leaves_shares_at(&self) -> Option<Timestamp> {
        self.crowds_heard.then_some(self.shares_left + PAUSE)
    }

    /// The rules for which any live daemon of a region says that it has no room.
    fn crowded_in(&self, region: RegionId) -> CrowdedRules {
        let mut named = Vec::new();
        for link in self.links.iter().filter(|link| link.live && link.region == region) {
            match &link.crowded {
                CrowdedRules::Named(names) => named.extend_from_slice(names),
                CrowdedRules::All => return CrowdedRules::All,
            }
        }
        named.sort_unstable();
        named.dedup();
        CrowdedRules::Named(named)
    }
}
