//! The part of a `gossip` limit that a region has for certain: what it may admit before the others have heard
//! that more is asked for there. A refusal of more than that is told to come back in a second, and nobody can
//! know sooner. Any other refusal while more than a tenth of the limit is free is a fault.

use std::collections::{BTreeSet, VecDeque};

use tidegate::core::time::{Span, Timestamp};

/// A way is measured so much too long, and rounded up, before reports count everywhere.
const MARGIN: Span = Span::from_millis(100);
/// Regions tell of a bucket so often.
const INTERVAL: Span = Span::from_millis(50);
/// What was asked for this long is claimed for as long again.
const CLAIMED: Span = Span::from_secs(1);
/// A cost that was refused is claimed for so long.
const UNMET: Span = Span::from_secs(3);
/// Every region keeps one in so many permits of what is free, in equal parts.
const SLICES: u64 = 10;
/// One in so many permits of a bucket without windows is too little to tell a store of.
const LITTLE: u64 = 200;

/// The news of all regions: after so long what happened in one of them is in force in all.
pub(super) fn news(longest_way: Span, jitter: f64) -> Span {
    let horizon = crate::number::part(longest_way, 1.0 + jitter) + MARGIN;
    horizon + horizon + INTERVAL
}

/// A request of the past.
#[derive(Debug, Clone, Copy)]
struct PastRequest {
    at: Timestamp,
    region: usize,
    cost: u64,
    admitted: bool,
}

/// The requests to one bucket.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Those that may still matter.
    recent: VecDeque<PastRequest>,
    /// Regions that were ever asked.
    regions: BTreeSet<usize>,
}

/// A request that was refused, as the judge knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedRequest {
    pub(super) now: Timestamp,
    pub(super) region: usize,
    pub(super) cost: u64,
    /// Permits that were free worldwide.
    pub(super) free: u64,
    pub(super) capacity: u64,
    /// True if it counts by windows.
    pub(super) windowed: bool,
}

impl Requests {
    pub(super) fn note(&mut self, at: Timestamp, region: usize, (cost, admitted): (u64, bool), news: Span) {
        self.regions.insert(region);
        self.recent.retain(|past| at.since(past.at) <= news + UNMET);
        self.recent.push_back(PastRequest { at, region, cost, admitted });
    }

    /// True if a refused request asks for more than its region has for certain: with what it admitted since
    /// the others last heard of it, more than its part and what it had asked for in the second before.
    pub(super) fn exceeds_its_part(&self, refused: RefusedRequest, news: Span, regions: u64) -> bool {
        let age = |past: &PastRequest| refused.now.since(past.at);
        let sum = |counts: &dyn Fn(&PastRequest) -> bool| -> u64 {
            self.recent.iter().filter(|past| counts(past)).map(|past| past.cost).sum()
        };
        let unheard = |past: &PastRequest| past.admitted && age(past) < news;
        let own = sum(&|past| past.region == refused.region && unheard(past));
        let asked =
            sum(&|past| past.region == refused.region && age(past) >= news && age(past) < news + CLAIMED);
        let elsewhere = |past: &&PastRequest| past.region != refused.region;
        let claimed =
            self.recent.iter().filter(elsewhere).filter(|past| age(past) < news + CLAIMED + CLAIMED);
        let claimed: u64 = claimed.map(|past| past.cost).sum();
        let unmet = self.recent.iter().filter(elsewhere).filter(|past| !past.admitted);
        let unmet = unmet.map(|past| past.cost).max().unwrap_or(0);
        // As the others knew it.
        let free = refused.free + sum(&unheard);
        let first = refused.capacity.saturating_sub(regions) / regions.max(1) + 1;
        // A cost that was refused elsewhere may take all. Without windows a slice is a part of what nobody
        // will soon need.
        let (shared, little) = match refused.windowed {
            true => (free, 0),
            false => (free.saturating_sub(claimed), refused.capacity / LITTLE),
        };
        let whole = (shared / SLICES).min(free.saturating_sub(unmet)) / regions.max(1);
        let part = match free {
            // Nobody else is at home there: a share by weight.
            free if free >= refused.capacity && self.regions.iter().all(|of| *of == refused.region) => {
                first.saturating_sub(little)
            }
            // A permit for each region beside what the others are about to use.
            free if whole <= little => {
                u64::from(free.saturating_sub(claimed) >= regions.saturating_mul(little + 1))
            }
            _ => whole - little,
        };
        own + refused.cost > part.saturating_add(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: Timestamp = Timestamp(1_700_002_800_000_000);
    const NEWS: Span = Span::from_millis(300);

    fn refused(after: u64, cost: u64, free: u64) -> RefusedRequest {
        let now = BEGUN + Span::from_millis(after);
        RefusedRequest { now, region: 1, cost, free, capacity: 1_000, windowed: true }
    }

    #[test]
    fn a_first_request_has_a_slice_and_a_burst_its_share_of_a_bucket_that_nobody_used() {
        let none = Requests::default();
        let exceeds = |cost, free| none.exceeds_its_part(refused(0, cost, free), NEWS, 4);
        assert_eq!([exceeds(250, 1_000), exceeds(251, 1_000)], [false, true]);
        assert_eq!([exceeds(10, 400), exceeds(11, 400)], [false, true], "a tenth of 400 by four");
        assert_eq!([exceeds(1, 39), exceeds(2, 39)], [false, true], "a permit each");
        assert!(exceeds(1, 3), "not a permit for each");
    }

    #[test]
    fn what_was_admitted_unheard_is_out_of_the_part_and_what_was_asked_for_before_is_in_it() {
        let mut asked = Requests::default();
        asked.note(BEGUN, 1, (100, true), NEWS);
        let exceeds = |asked: &Requests, after, (free, cost)| {
            asked.exceeds_its_part(refused(after, cost, free), NEWS, 4)
        };
        assert_eq!([exceeds(&asked, 100, (900, 150)), exceeds(&asked, 100, (900, 151))], [false, true]);
        assert_eq!([exceeds(&asked, 400, (900, 122)), exceeds(&asked, 400, (900, 123))], [false, true]);
        assert!(exceeds(&asked, 1_400, (900, 23)), "a demand that has ended");
        asked.note(BEGUN, 0, (100, true), NEWS);
        assert!(exceeds(&asked, 100, (800, 1)), "another region may be at home there");
    }
}
