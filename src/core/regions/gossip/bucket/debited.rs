//! The charges of the own store for another region of a bucket without windows, and what of them went back.

use crate::algorithm::Limit;
use crate::regions::fair_share::UNIT;
use crate::regions::gossip::plausibility::PlausibilityLimit;
use crate::regions::gossip::refill::refill;
use crate::time::Timestamp;

/// The charges of the store for one region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Debited {
    /// Permits of its count that are dealt with.
    pub(super) counted: u64,
    /// Bound on how much more of it is believed.
    pub(super) plausible: PlausibilityLimit,
    /// Millionths that went back there and that the store held as used at an instant: they pay for what the
    /// region admits next, as far as they have not refilled.
    back: u64,
    back_at: Timestamp,
}

impl Debited {
    pub(super) const fn new(since: Timestamp) -> Self {
        Self { counted: 0, plausible: PlausibilityLimit::since(since), back: 0, back_at: since }
    }

    /// The region's count has come to `total`, while the store holds `left` as used for it: notes what went
    /// back. A region gives back only what has not refilled by then.
    pub(super) fn note_back(&mut self, now: Timestamp, total: u64, left: u64, limit: Limit) {
        let fallen = self.counted.saturating_sub(total);
        self.counted -= fallen;
        if fallen == 0 && self.back == 0 {
            return;
        }
        let back = (i128::from(self.back) - refill(limit, now.since(self.back_at))).max(0);
        let back = (back + i128::from(fallen) * UNIT).min(i128::from(left) * UNIT);
        (self.back, self.back_at) = (u64::try_from(back).unwrap_or(u64::MAX), now);
    }

    /// Returns what must be charged of `permits`: less what went back before.
    pub(super) fn pay(&mut self, permits: u64) -> u64 {
        let paid = (i128::from(self.back) / UNIT).min(i128::from(permits));
        let paid = u64::try_from(paid).unwrap_or(0);
        self.back -= u64::try_from(i128::from(paid) * UNIT).unwrap_or(self.back);
        permits - paid
    }
}
