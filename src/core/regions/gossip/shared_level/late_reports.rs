//! Reports of a time in which they could not be heard: what they tell has refilled since, nobody here knows
//! how much of it.

use crate::regions::gossip::partition::bit;
use crate::regions::membership::RegionId;
use crate::time::{Span, Timestamp};

/// For so long after a cut something may be told of it: it was said twice, or on its way.
const TOLD_LATE: Span = Span::from_secs(1);

/// The part of late reports that does not lower the level, in millionths.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LateReports {
    /// So much refilled into a full bucket during a cut, and nobody used it: reports of that time that come
    /// later come out of it first.
    spare: i128,
    /// Regions that the last cut set apart: a bit for each.
    regions: u64,
    /// End of the last cut; `None` while it lasts.
    healed: Option<Timestamp>,
    /// The level may be so much higher: other regions told of more than had refilled as far as is known
    /// here, and it was assumed that they left nothing.
    assumed: i128,
}

impl LateReports {
    /// These regions are cut off from now on.
    pub(super) const fn cut(&mut self, regions: u64) {
        (self.spare, self.regions, self.healed) = (0, regions, None);
    }

    /// All are heard again.
    pub(super) const fn healed(&mut self, at: Timestamp) {
        self.healed = Some(at);
    }

    /// So much refilled in vain during a cut.
    pub(super) fn overflowed(&mut self, permits: i128) {
        self.spare += permits.max(0);
    }

    /// Pays a debt of the other side out of what refilled in vain; returns what it has left, or still owes.
    pub(super) fn settle(&mut self, level: i128) -> i128 {
        let spared = self.spare.min((-level).max(0));
        self.spare -= spared;
        level + spared
    }

    /// Time has passed: of `room` in the bucket the level is `level`.
    pub(super) fn pass(&mut self, now: Timestamp, room: i128, level: i128) {
        self.assumed = self.assumed.min((room - level).max(0));
        if self.healed.is_some_and(|healed| healed + TOLD_LATE < now) {
            self.spare = 0;
        }
    }

    /// True if what a region tells of `stamp` may be of the last cut.
    pub(super) fn may_tell_of_a_cut(&self, region: RegionId, stamp: Timestamp) -> bool {
        self.regions & bit(region) != 0 && self.healed.is_none_or(|healed| stamp <= healed + TOLD_LATE)
    }

    /// Returns how much of what is told of a cut the level falls by.
    pub(super) fn spare(&mut self, taken: i128) -> i128 {
        let spared = self.spare.min(taken.max(0));
        self.spare -= spared;
        taken - spared
    }

    /// Returns no more of `taken` than the level holds, as most of it was refilled before it was told. They
    /// may have left as much as the bucket has room for.
    pub(super) fn assume(&mut self, taken: i128, level: i128, room: i128) -> i128 {
        let taken = taken.min(level.max(0));
        self.assumed = self.assumed.max(room - (level - taken));
        taken
    }

    /// Another region admitted `taken`, which it can only where the level held as much: what is missing here
    /// was there, as far as that was only assumed to be used. Returns how much is taken of what is known.
    pub(super) fn correct(&mut self, taken: i128, level: i128) -> i128 {
        let missing = (taken - level.max(0)).clamp(0, self.assumed);
        self.assumed -= missing;
        taken - missing
    }

    /// True if something that was heard, or is heard now, may be of a time in which it could not be heard.
    pub(super) const fn may_come(&self) -> bool {
        self.spare > 0 || self.assumed > 0
    }
}
