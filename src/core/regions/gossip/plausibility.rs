//! The part of what a region tells of a bucket without windows that is believed: twice what the bucket holds,
//! and twice what refills meanwhile.
//!
//! An honest region whose store was lost again and again may have admitted more, and somebody who holds its
//! key may claim anything. Either way the others hear of all of it, and hold back for no more than this.

use super::refill::refill;
use crate::algorithm::Limit;
use crate::regions::fair_share::UNIT;
use crate::time::Timestamp;

/// Times over that a region is believed to have admitted what a bucket holds and refills: a reload may just
/// have halved the limit.
pub(super) const BELIEVED_TIMES: u64 = 2;

/// The use that one region may still be believed.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlausibilityLimit {
    /// Part of what is believed at once that was used up lately, in millionths.
    used: i128,
    at: Timestamp,
}

impl PlausibilityLimit {
    /// The credit of a region of which nothing was heard before `at`: what it can have admitted since counts.
    pub(super) const fn since(at: Timestamp) -> Self {
        Self { used: 0, at }
    }

    /// Returns how many are believed of `more` permits that the region tells to have admitted since it told
    /// last.
    pub(super) fn believe(&mut self, now: Timestamp, more: u64, limit: Limit, capacity: u64) -> u64 {
        let times = i128::from(BELIEVED_TIMES);
        let refilled = times * refill(limit, now.since(self.at));
        let most = (times * i128::from(capacity) * UNIT + refilled - self.used).max(0);
        let believed = more.min(u64::try_from(most / UNIT).unwrap_or(u64::MAX));
        self.used = (self.used + i128::from(believed) * UNIT - refilled).max(0);
        self.at = self.at.max(now);
        believed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    const START: Timestamp = Timestamp(1_700_000_000_000_000);
    const LIMIT: Limit =
        Limit { calendar: None, permits: 100, window: Span::from_secs(1), burst: 50, queue: 0 };

    const fn fresh() -> PlausibilityLimit {
        PlausibilityLimit::since(START)
    }

    #[test]
    fn what_a_region_can_have_admitted_is_believed_whole() {
        let mut plausible = fresh();
        let told = (0..100).map(|tenth| {
            plausible.believe(
                START + Span::from_millis(tenth * 100),
                if tenth == 0 { 50 } else { 10 },
                LIMIT,
                50,
            )
        });
        assert_eq!(told.sum::<u64>(), 50 + 99 * 10);
    }

    #[test]
    fn a_claim_without_end_is_believed_as_twice_the_limit() {
        let mut plausible = fresh();
        let claims = (0..=1_000)
            .map(|tick| plausible.believe(START + Span::from_millis(tick * 10), u64::MAX / 2, LIMIT, 50));
        assert_eq!(claims.sum::<u64>(), 2 * 50 + 2 * 100 * 10);
    }

    #[test]
    fn silence_is_no_more_than_what_refilled_in_it() {
        let mut plausible = fresh();
        assert_eq!(plausible.believe(START + Span::from_secs(3), 1_000_000, LIMIT, 50), 2 * 50 + 2 * 300);
        assert_eq!(plausible.believe(START + Span::from_secs(3), 1, LIMIT, 50), 0);
    }

    #[test]
    fn no_amount_overflows() {
        let mut plausible = PlausibilityLimit::since(Timestamp(0));
        let limit = Limit { permits: u32::MAX, window: Span(1), ..LIMIT };
        for now in [0, 1, u64::MAX] {
            let _ = plausible.believe(Timestamp(now), u64::MAX, limit, u64::MAX);
        }
    }
}
