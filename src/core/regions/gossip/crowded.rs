//! Rules with buckets in use that find no room in a bucket table: in this daemon's, and in those of other
//! regions.
//!
//! Who has no room cannot tell of all that it admits, so it keeps to its share and says so in each frame. Who
//! hears that leaves it its share.

use super::replica::Replica;
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};
use crate::wire::{CROWDED_MAX, CrowdedRules, RuleName};

/// A rule stays crowded for so long after a bucket of it last found no room.
pub(super) const CROWDED_FOR: Span = Span::from_secs(10);
/// Most bytes of names of crowded rules in one frame: where they are longer, all rules count as crowded.
pub(super) const NAMES_BYTES_MAX: usize = 400;
/// What the lengths of one name take in a frame at most, in bytes.
const LENGTHS_BYTES: usize = 4;

impl Replica {
    /// The rules whose buckets are to be held to this region's share, because some in use find no room to be
    /// followed, or all because this daemon has just begun; `None` where they are the same as when this was
    /// last asked. Regions then admit no more than the limit together, although they cannot tell each other
    /// what they admitted.
    pub fn poll_crowded(&mut self) -> Option<Vec<RuleName>> {
        let all = self.waits.is_some();
        let held = || match all {
            true => self.rules.keys().cloned().collect(),
            false if !self.config.care.keeps_to_shares => Vec::new(),
            false => self.crowded.keys().cloned().collect(),
        };
        std::mem::take(&mut self.crowd_changed).then(held)
    }

    /// A bucket of this rule is in use and found no room, or nearly none.
    pub(super) fn crowd(&mut self, now: Timestamp, rule: RuleName) {
        self.crowd_changed |= self.crowded.insert(rule, now + CROWDED_FOR).is_none();
    }

    /// Rules of which all buckets in use found room for long enough are crowded no longer.
    pub(super) fn end_crowds(&mut self, now: Timestamp) {
        let crowded = self.crowded.len();
        self.crowded.retain(|_, until| now < *until);
        self.crowd_changed |= self.crowded.len() != crowded;
    }

    /// What others are told of this daemon's crowded rules.
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
            let region = link.region;
            self.leave_shares_to(now, region);
        }
    }

    /// Works out anew which rules the live daemons of a region have no room for.
    pub(super) fn leave_shares_to(&mut self, now: Timestamp, region: RegionId) {
        if region == Regions::OWN || !self.config.care.leaves_shares {
            return;
        }
        let mut named = Vec::new();
        let mut all = false;
        for link in self.links.iter().filter(|link| link.live && link.region == region) {
            match &link.crowded {
                CrowdedRules::Named(names) => named.extend_from_slice(names),
                CrowdedRules::All => all = true,
            }
        }
        named.sort_unstable();
        named.dedup();
        let crowded = if all { CrowdedRules::All } else { CrowdedRules::Named(named) };
        let before = self.regions.set_crowded(region, crowded.clone());
        if before == crowded {
            return;
        }
        // The others may have heard of it before, or hear of it later.
        self.unsettle(now);
        for id in self.keys.ids() {
            let Some(bucket) = self.keys.get_mut(id) else { continue };
            if before.contains(&bucket.key.rule) != crowded.contains(&bucket.key.rule) {
                bucket.unsettle();
                self.recompute(now, id);
            }
        }
    }
}
