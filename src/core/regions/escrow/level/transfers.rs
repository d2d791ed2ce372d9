//! How many permits of a bucket without windows to forward to whom: a pure function of what is believed of
//! each region.
//!
//! A region keeps what it will need beyond its own refill until news of it can come back, and forwards the
//! rest to those whose refill and level will not last so long. Everybody with too many gives in proportion,
//! so that nobody is asked twice. Nothing here matters to exactness: the store forwards only what is free.

use smallvec::SmallVec;

use super::super::part::{WholePermits, given};
use super::super::window::need;
use crate::time::Span;

/// Millionths in a permit.
const UNIT: i128 = 1_000_000;

/// A permit that refills within this is not waited for.
const SOON: Span = Span::from_millis(5);

/// What is believed of one region; permits in millionths, rates in millionths of a permit a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct LevelEstimate {
    /// The most that its level can hold.
    pub(in super::super) capacity: i128,
    /// By how much it refills by itself.
    pub(in super::super) refill: u64,
    /// What it is asked for.
    pub(in super::super) demand: u64,
    /// What it can admit at once, what is on its way to it included.
    pub(in super::super) free: i128,
    /// The largest cost that it had to refuse.
    pub(in super::super) wanted: i128,
    /// The most that may be forwarded to it now; zero where nothing would arrive.
    pub(in super::super) room: i128,
    /// Its place among all, as everybody counts, and for how long it has lacked what it wants.
    pub(in super::super) order: usize,
    pub(in super::super) since: Span,
}

impl LevelEstimate {
    /// What should lie there so that its demand finds enough for as long as `ahead`, and the largest cost
    /// what it needs.
    fn target(&self, ahead: Span) -> i128 {
        let chance = need(self.demand, ahead) - need_mean(self.demand, ahead);
        let beyond = need_mean(self.demand.saturating_sub(self.refill), ahead);
        // For who may come: no more than refills until others hear of them, and not a single permit. What is
        // small has refilled before anyone could wait for it.
        let until = if self.is_brief() { SOON } else { ahead };
        let spare = (self.capacity / 10).min(need_mean(self.refill, until)) / UNIT * UNIT;
        (beyond + chance + spare).min(self.capacity).max(self.wanted)
    }

    /// Whether all of it refills within half a second: then it is soon gone again, wherever it lies.
    pub(in super::super) fn is_brief(&self) -> bool {
        self.capacity * 2 < i128::from(self.refill)
    }

    /// Whether its own refill does not serve it.
    fn is_short(&self) -> bool {
        self.demand > self.refill || self.missing() > 0
    }

    /// What it lacks of the largest cost that it refused. A permit that was there is not gone for what may
    /// have been asked since.
    fn missing(&self) -> i128 {
        let missing = self.wanted - self.free;
        if missing > UNIT / 10 { missing } else { 0 }
    }

    /// Whole permits that it can spare, or lacks. A permit that it will hardly need is one to spare.
    fn part(&self, ahead: Span) -> WholePermits {
        let target = self.target(ahead);
        // A permit that was there is there still, if hardly more was asked for than refills, and one that
        // refills is not yet.
        let there = if self.demand > self.refill { UNIT / 2 } else { 0 };
        let keeps = (target + UNIT / 2) / UNIT * UNIT;
        let spare = (self.free + there - keeps).max(0) / UNIT;
        // A cost that was refused needs whole permits.
        let refused = self.missing() + UNIT - 1;
        let lacks = if self.is_short() { (target - self.free + UNIT / 2).max(refused) / UNIT } else { 0 };
        let whole = |permits: i128| u64::try_from(permits).unwrap_or(0);
        WholePermits { order: self.order, spare: whole(spare), lacks: whole(lacks), since: self.since }
    }

    /// What will find no room here: better anywhere else. Twice what refills, since what is under way takes
    /// up room too.
    fn overflow(&self, ahead: Span) -> i128 {
        let refilled = need_mean(self.refill.saturating_sub(self.demand), ahead);
        (self.free + 2 * refilled - self.capacity).max(0)
    }

    /// What is there after `time`, if nothing else comes.
    pub(in super::super) fn after(&self, free: i128, time: Span) -> i128 {
        let flow = i128::from(self.refill) - i128::from(self.demand);
        (free + flow * i128::from(time.0) / UNIT).clamp(0, self.capacity.max(free))
    }
}

fn need_mean(rate: u64, time: Span) -> i128 {
    i128::from(rate) * i128::from(time.0) / UNIT
}

/// Whole permits to forward to each region, in the order of `estimates`; the first is the own one. `ahead` is
/// how long it takes until what is told now has had its effect.
pub(in super::super) fn level_transfers(ahead: Span, estimates: &[LevelEstimate]) -> SmallVec<[u64; 8]> {
    let mut streams: SmallVec<[u64; 8]> = SmallVec::from_elem(0, estimates.len());
    let Some(own) = estimates.first() else { return streams };
    let parts: SmallVec<[WholePermits; 8]> = estimates.iter().map(|estimate| estimate.part(ahead)).collect();
    let excess = own.free - own.target(ahead);
    let room =
        |estimate: &LevelEstimate| (estimate.capacity - estimate.free.max(estimate.target(ahead))).max(0);
    let short = || estimates.iter().skip(1).filter(|estimate| estimate.is_short());
    let missing: i128 = short().map(|estimate| (estimate.target(ahead) - estimate.free).max(0)).sum();
    let spare: i128 = estimates.iter().map(|estimate| (estimate.free - estimate.target(ahead)).max(0)).sum();
    let whole = missing.max(spare).max(1);
    let overflow = (own.overflow(ahead).min(excess) - excess * missing / whole).max(0);
    let rooms = short().map(room).sum::<i128>().max(1);
    for ((stream, part), estimate) in streams.iter_mut().zip(given(&parts)).zip(estimates).skip(1) {
        if estimate.is_short() {
            let beyond = (overflow * room(estimate) / rooms).min(room(estimate));
            let permits = i128::from(part) + beyond / UNIT;
            *stream = u64::try_from(permits.min(estimate.room / UNIT)).unwrap_or(0);
        }
    }
    streams
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AHEAD: Span = Span::from_millis(200);

    fn estimate(capacity: u64, refill: u64, demand: u64, free: u64) -> LevelEstimate {
        let millionths = |permits: u64| i128::from(permits) * UNIT;
        LevelEstimate {
            capacity: millionths(capacity),
            refill: refill * 1_000_000,
            demand: demand * 1_000_000,
            free: millionths(free),
            room: millionths(capacity),
            ..LevelEstimate::default()
        }
    }

    #[test]
    fn what_lies_idle_goes_where_more_is_asked_for_than_refills() {
        let estimates = [estimate(300, 100, 0, 300), estimate(300, 100, 900, 0), estimate(300, 100, 50, 300)];
        // The other idle region gives its part too.
        let streams = level_transfers(AHEAD, &estimates);
        assert_eq!((streams[0], streams[2]), (0, 0));
        assert!((95..=120).contains(&streams[1]), "{streams:?}");
    }

    #[test]
    fn what_would_overflow_goes_to_a_region_that_will_need_it() {
        // It has enough for now, and room.
        let estimates = [estimate(3_000, 100, 0, 3_000), estimate(3_000, 100, 900, 2_000)];
        assert_eq!(level_transfers(AHEAD, &estimates).as_slice(), [0, 40]);
        let estimates = [estimate(3_000, 100, 0, 2_900), estimate(3_000, 100, 900, 2_000)];
        assert_eq!(level_transfers(AHEAD, &estimates).as_slice(), [0, 0]);
        let estimates = [estimate(3_000, 100, 0, 3_000), estimate(3_000, 100, 50, 2_000)];
        assert_eq!(level_transfers(AHEAD, &estimates).as_slice(), [0, 0]);
    }

    #[test]
    fn nobody_gives_where_all_are_short() {
        let estimates =
            [estimate(300, 100, 900, 40), estimate(300, 100, 900, 0), estimate(300, 100, 900, 10)];
        assert_eq!(level_transfers(AHEAD, &estimates).as_slice(), [0, 0, 0]);
    }

    #[test]
    fn a_region_whose_refill_serves_it_is_given_nothing() {
        let estimates = [estimate(300, 100, 0, 300), estimate(300, 100, 90, 0)];
        assert_eq!(level_transfers(AHEAD, &estimates).as_slice(), [0, 0]);
    }

    #[test]
    fn a_cost_that_was_refused_gathers_its_permits() {
        let mut estimates = [estimate(300, 1, 0, 300), estimate(300, 1, 0, 10)];
        estimates[1].wanted = 250 * UNIT;
        assert_eq!(level_transfers(AHEAD, &estimates).as_slice(), [0, 240]);
    }

    proptest! {
        #[test]
        fn no_more_is_forwarded_than_lies_there_and_than_there_is_room_for(
            regions in proptest::collection::vec((1_u64..500, 0_u64..500, 0_u64..5_000, 0_u64..500), 2..6),
        ) {
            let estimates: Vec<LevelEstimate> = regions
                .iter()
                .map(|(capacity, refill, demand, free)| estimate(*capacity, *refill, *demand, (*free).min(*capacity)))
                .collect();
            let streams = level_transfers(AHEAD, &estimates);
            // Each is rounded to the nearest; the store refuses what is not there.
            let most = estimates[0].free / UNIT + i128::try_from(estimates.len()).unwrap();
            prop_assert!(streams.iter().map(|stream| i128::from(*stream)).sum::<i128>() <= most);
            for (stream, estimate) in streams.iter().zip(&estimates) {
                prop_assert!(i128::from(*stream) * UNIT <= estimate.capacity);
            }
        }
    }
}
