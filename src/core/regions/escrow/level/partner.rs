//! What another region said of its level, and how far that is believed.

use super::super::Share;
use crate::time::Timestamp;
use crate::wire::rights::LevelTotals;

/// What refills in so many seconds may come sooner than it was sent apart: words overtake each other.
const OVERTAKING_S: u128 = 1;

/// One other region.
#[derive(Debug, Clone)]
pub(in super::super) struct LevelPartner {
    /// What it said last.
    pub(in super::super) totals: LevelTotals,
    /// What may still be forwarded from it now, in millionths, as of when.
    credit: Option<(Timestamp, u128)>,
    /// What was taken off its credit in its session.
    credited: (u64, u64),
}

impl LevelPartner {
    /// One that has said nothing yet.
    pub(in super::super) const fn new() -> Self {
        let totals = LevelTotals { settled: Vec::new(), kept: Vec::new() };
        Self { totals, credit: None, credited: (0, 0) }
    }

    /// Whether it can honestly have forwarded `permits` in all in `session`, of which `taken` are here: a
    /// region has no more to forward than its part of the burst and of the rate.
    pub(super) fn believes(
        &mut self,
        now: Timestamp,
        share: Share,
        session: u64,
        permits: u64,
        taken: u64,
    ) -> bool {
        let known = if self.credited.0 == session { self.credited.1.max(taken) } else { taken };
        let most = u128::from(share.minted_most) * 1_000_000 + u128::from(share.refill_most) * OVERTAKING_S;
        let (at, left) = self.credit.unwrap_or((now, most));
        // A thousandth more, as its clock may be faster.
        let refilled = u128::from(share.refill_most) * u128::from(now.since(at).0) / 999_000;
        let left = left.saturating_add(refilled).min(most);
        let asked = u128::from(permits.saturating_sub(known)) * 1_000_000;
        let honest = asked <= left;
        if honest {
            self.credited = (session, permits.max(known));
        }
        self.credit = Some((at.max(now), if honest { left - asked } else { left }));
        honest
    }
}
