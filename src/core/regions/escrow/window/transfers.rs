//! How many rights to push to whom: a pure function of what is believed of each region.
//!
//! Everybody with too many gives in proportion, so that no two coordinate and nobody is asked twice. A region
//! is short when it will run dry soon, not when it is dry. While more than a tenth of the limit is free every
//! region keeps a slice of that, whoever is short, so that a first request finds something wherever it comes.
//! Nothing here matters to exactness: the store gives only what is free.

use smallvec::SmallVec;

use super::super::part::{WholePermits, given};
use crate::time::Span;

/// Millionths in a permit, and microseconds in a second.
const UNIT: i128 = 1_000_000;
/// For so long after a window begins something is kept for a surprise even where somebody is refused.
const SURPRISE: Span = Span::from_secs(1);
/// For so long a demand counts that has not lasted: rights are on their way for less.
const SOON: Span = Span::from_secs(1);
/// A region may want as much again as it has used, if it is asked for that within so long: its demand has
/// lasted.
const LASTED: Span = Span::from_secs(10);
/// All regions together keep one in so many free permits, while more than one in so many of the limit is
/// free.
const SLICES: i128 = 10;
/// Whoever has been refused for so long, for a cost that fits only where slices are given too, gets them.
const STARVES: Span = Span::from_millis(500);
/// Whoever has been refused for so long although others have enough beyond their slices is refused by a
/// wrong belief.
const MISTAKEN: Span = Span::from_secs(4);

/// The estimate of one region, permits in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct RegionEstimate {
    pub(in super::super) weight: u64,
    /// Rights that it can spend, those on their way to it included.
    pub(in super::super) free: i128,
    /// Rights that it gave, less those that came to it: of all regions together what is on its way and in
    /// nobody's `free`.
    pub(in super::super) moving: i128,
    /// Permits that it will want soon, see [`lasting_need`].
    pub(in super::super) need: i128,
    /// The largest cost that it had to refuse.
    pub(in super::super) wanted: i128,
    /// True if rights sent now would still arrive in time, and nothing was given to it just now.
    pub(in super::super) reachable: bool,
    /// Its place among all, as everybody counts, and for how long it has lacked what it wants.
    pub(in super::super) order: usize,
    pub(in super::super) since: Span,
}

/// The window that rights are spent in.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct SpendingTime {
    /// Permits.
    pub(in super::super) limit: u64,
    pub(in super::super) length: Span,
    pub(in super::super) elapsed: Span,
    /// The longest way to another region.
    pub(in super::super) owd_max: Span,
}

/// Returns what a demand of so many millionths of a permit a second will ask for in `time`, with one standard
/// deviation of chance.
pub(in super::super) fn need(demand: u64, time: Span) -> i128 {
    let mean = i128::from(demand) * i128::from(time.0) / UNIT;
    mean + (mean * UNIT).isqrt()
}

/// The same in the rest of a window, in which so many millionths of a permit are `used`: no more than is
/// asked for soon, or as much again as is used. Ten requests in a second are no demand until midnight.
pub(in super::super) fn lasting_need(demand: u64, left: Span, used: i128) -> i128 {
    need(demand, left.min(SOON)).max(need(demand, left.min(LASTED)).min(used))
}

/// Whole permits to give to each region, in the order of `holdings`; the first is the own one.
pub(in super::super) fn window_transfers(
    spending: SpendingTime,
    estimates: &[RegionEstimate],
) -> SmallVec<[u64; 8]> {
    let mut gifts: SmallVec<[u64; 8]> = SmallVec::from_elem(0, estimates.len());
    let targets = targets(estimates);
    let Some((own, own_target)) = estimates.first().zip(targets.first()) else { return gifts };
    let reserve = |until: Span| reserve(spending, until, estimates.len());
    let idle = reserve(spending.length);
    // Somebody who was refused is worth more than one who may come.
    let hasty = reserve(spending.length.min(SURPRISE));
    let slice = slice(spending, estimates);
    let deficits: SmallVec<[i128; 8]> = estimates
        .iter()
        .zip(&targets)
        .map(|(estimate, target)| {
            if estimate.free < estimate.need.max(estimate.wanted) {
                (target - estimate.free).max(0)
            } else {
                0
            }
        })
        .collect();
    let missing: i128 = deficits.iter().sum();
    let spare: i128 =
        estimates.iter().zip(&targets).map(|(estimate, target)| (estimate.free - target).max(0)).sum();
    let whole = missing.max(spare).max(1);
    let left = i128::from(spending.length.0.saturating_sub(spending.elapsed.0));
    let least =
        UNIT.max(i128::from(spending.limit) * UNIT / 100 * left / i128::from(spending.length.0.max(1)));
    let keeps = hasty.max(slice);
    let parts: SmallVec<[WholePermits; 8]> =
        estimates.iter().zip(&targets).map(|(estimate, target)| estimate.part(*target, keeps)).collect();
    let taking = gifts.iter_mut().zip(given(&parts)).zip(&deficits).zip(estimates).skip(1);
    for (((gift, part), deficit), estimate) in taking.filter(|(_, estimate)| estimate.reachable) {
        let starving = estimate.wanted > estimate.free;
        let excess = own.free - (*own_target).max(slice).max(if starving { hasty } else { idle });
        // To the nearest: less than half a right must not strand a whole one. Of two halves neither moves.
        let exact = excess * deficit / whole;
        let permits = (exact + UNIT / 2) / UNIT;
        if exact > UNIT / 2 && (starving || permits * UNIT >= least) {
            *gift = u64::try_from(permits).unwrap_or(0);
        }
        *gift = part.max(*gift);
    }
    gifts
}

impl RegionEstimate {
    /// Whole permits that it can spare for those who were refused, or lacks for the largest cost that it
    /// refused: where it is to have that at all.
    fn part(&self, target: i128, reserve: i128) -> WholePermits {
        let keeps = target.min(self.need.max(self.wanted)).max(reserve);
        let spare = (self.free - keeps + UNIT / 2).max(0) / UNIT;
        let lacks =
            if target >= self.wanted { (self.wanted - self.free + UNIT - 1).max(0) / UNIT } else { 0 };
        let whole = |permits: i128| u64::try_from(permits).unwrap_or(0);
        WholePermits { order: self.order, spare: whole(spare), lacks: whole(lacks), since: self.since }
    }
}

/// Returns what each region keeps for a first request: nothing where few permits are left, or little time,
/// and nothing once a cost that fits only without slices has been refused for a while, or any that would fit
/// for long.
fn slice(spending: SpendingTime, estimates: &[RegionEstimate]) -> i128 {
    let regions = i128::try_from(estimates.len()).unwrap_or(i128::MAX).max(1);
    let free: i128 = estimates.iter().map(|estimate| estimate.free).sum();
    let few = (i128::from(spending.limit) * UNIT / SLICES).max(regions * UNIT);
    // Rights must still get to where they are wanted before the window ends.
    let ways = Span(spending.owd_max.0.saturating_mul(4));
    let left = Span(spending.length.0.saturating_sub(spending.elapsed.0));
    // What is on its way between others is free as well: while many give at once it is most of what is left.
    let everywhere = free + estimates.iter().map(|estimate| estimate.moving).sum::<i128>();
    let slice = (everywhere / SLICES / regions).max(UNIT);
    let lacks = |estimate: &&RegionEstimate| estimate.wanted > estimate.free;
    let kept: i128 =
        estimates.iter().filter(|one| !lacks(one)).map(|estimate| estimate.free.min(slice)).sum();
    let starves = |estimate: &RegionEstimate| {
        let patience = if estimate.wanted > free - kept { STARVES } else { MISTAKEN };
        estimate.wanted <= free && estimate.since > patience.max(ways)
    };
    if everywhere <= few || left <= SOON + ways || estimates.iter().filter(lacks).any(starves) {
        return 0;
    }
    slice
}

/// Returns what each region keeps for a surprise; released until shortly before so much of the window has
/// passed.
fn reserve(spending: SpendingTime, until: Span, regions: usize) -> i128 {
    let until =
        i128::from(until.0).min(i128::from(spending.length.0) * 8 / 10 - 2 * i128::from(spending.owd_max.0));
    let left = until - i128::from(spending.elapsed.0);
    if left <= 0 {
        return 0;
    }
    let most = i128::from(spending.limit) * UNIT * 3 / 10 / i128::try_from(regions.max(1)).unwrap_or(1);
    most * left / until
}

/// Returns what each region should hold: its need and a part of what is left over, or the weighted max-min
/// division of what there is.
fn targets(estimates: &[RegionEstimate]) -> SmallVec<[i128; 8]> {
    let total: i128 = estimates.iter().map(|estimate| estimate.free).sum();
    let mut needs: SmallVec<[i128; 8]> =
        estimates.iter().map(|estimate| estimate.need.max(estimate.wanted)).collect();
    let weight = |estimate: &RegionEstimate| i128::from(estimate.weight);
    let weights: i128 = estimates.iter().map(weight).sum();
    let rest = total - needs.iter().sum::<i128>();
    if rest >= 0 {
        for (need, estimate) in needs.iter_mut().zip(estimates) {
            *need += rest * weight(estimate) / weights.max(1);
        }
        return needs;
    }
    let mut targets = levelled(total, &needs, estimates);
    // A cost that nobody's part can pay would be refused everywhere: one region after the other gets the
    // whole of it. Everyone agrees on who comes first: whoever lacks least, so that nobody gives away what it
    // was given.
    let (mut left, mut served) = (total, SmallVec::<[usize; 8]>::new());
    loop {
        let starving = |(place, target): &(usize, &i128)| {
            estimates.get(*place).is_some_and(|estimate| {
                !served.contains(place) && estimate.wanted > **target && estimate.wanted <= left
            })
        };
        let nearest = targets.iter().enumerate().filter(starving).min_by_key(|(place, _)| {
            estimates.get(*place).map(|one| ((one.wanted - one.free).max(0), one.wanted, one.order))
        });
        let Some((place, _)) = nearest else { return targets };
        served.push(place);
        left -= estimates.get(place).map_or(0, |estimate| estimate.wanted);
        if let Some(need) = needs.get_mut(place) {
            *need = 0;
        }
        targets = levelled(left, &needs, estimates);
        for &place in &served {
            if let Some((target, estimate)) = targets.get_mut(place).zip(estimates.get(place)) {
                *target = estimate.wanted;
            }
        }
    }
}

/// The weighted max-min division of `total` among `needs` that exceed it.
fn levelled(total: i128, needs: &[i128], estimates: &[RegionEstimate]) -> SmallVec<[i128; 8]> {
    let mut targets: SmallVec<[i128; 8]> = SmallVec::from_elem(0, needs.len());
    let mut served: SmallVec<[bool; 8]> = SmallVec::from_elem(false, needs.len());
    let mut rest = total.max(0);
    // Every round serves a region or is the last.
    for _ in 0..=needs.len() {
        let open = |(place, _): &(usize, &RegionEstimate)| !served.get(*place).copied().unwrap_or(true);
        // A region without a share still competes, as the least of all.
        let weight = |estimate: &RegionEstimate| i128::from(estimate.weight.max(1));
        let weights: i128 =
            estimates.iter().enumerate().filter(open).map(|(_, estimate)| weight(estimate)).sum();
        if weights == 0 {
            break;
        }
        let fits: SmallVec<[usize; 8]> = estimates
            .iter()
            .enumerate()
            .filter(open)
            .filter(|(place, estimate)| {
                needs.get(*place).is_some_and(|need| need * weights <= rest * weight(estimate))
            })
            .map(|(place, _)| place)
            .collect();
        if fits.is_empty() {
            for (place, estimate) in estimates.iter().enumerate().filter(open) {
                if let Some(target) = targets.get_mut(place) {
                    *target = rest * weight(estimate) / weights;
                }
            }
            break;
        }
        for place in fits {
            let need = needs.get(place).copied().unwrap_or(0);
            if let (Some(target), Some(served)) = (targets.get_mut(place), served.get_mut(place)) {
                (*target, *served) = (need, true);
                rest -= need;
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spending(limit: u64, elapsed_ms: u64) -> SpendingTime {
        SpendingTime {
            limit,
            length: Span::from_secs(1),
            elapsed: Span::from_millis(elapsed_ms),
            owd_max: Span::from_millis(40),
        }
    }

    fn estimate(free: u64, need: u64) -> RegionEstimate {
        RegionEstimate {
            weight: 1,
            free: i128::from(free) * UNIT,
            moving: 0,
            need: i128::from(need) * UNIT,
            wanted: 0,
            reachable: true,
            order: 0,
            since: Span::ZERO,
        }
    }

    #[test]
    fn an_idle_region_gives_all_but_its_reserve_to_the_one_that_is_short() {
        let estimates = [estimate(333, 0), estimate(333, 5_000), estimate(333, 0)];
        // Three tenths of a third of the limit, of which an eighth has been released.
        let gifts = window_transfers(spending(1_000, 90), &estimates);
        assert_eq!(gifts.as_slice(), [0, 246, 0]);
    }

    #[test]
    fn late_in_the_window_nothing_is_kept_back() {
        let estimates = [estimate(333, 0), estimate(0, 5_000), estimate(0, 0)];
        assert_eq!(window_transfers(spending(1_000, 750), &estimates).as_slice(), [0, 333, 0]);
    }

    /// A long time before its window ends.
    const DAY: Span = Span::from_secs(86_400);

    fn of_a_day(limit: u64) -> SpendingTime {
        SpendingTime { length: DAY, elapsed: Span::from_secs(3_600), ..spending(limit, 0) }
    }

    #[test]
    fn ten_requests_in_a_second_are_no_demand_until_midnight() {
        let ten_a_second = 10 * 1_000_000;
        let permits = |used: i128, left| lasting_need(ten_a_second, left, used * UNIT) / UNIT;
        assert_eq!(permits(0, DAY), 13, "of a second, and chance");
        assert_eq!(permits(40, DAY), 40, "as much again as it has used");
        assert_eq!(permits(5_000, DAY), 110, "of ten seconds, and chance");
        assert_eq!(permits(5_000, Span::from_millis(400)), 6, "until the window ends");
    }

    #[test]
    fn a_slice_stays_where_nobody_asks_while_more_than_a_tenth_is_free() {
        // The second region used half of the limit, wants more, and what it will want is more than there is.
        let of_cost = |cost: i128, limit: u64, free: u64, since: Span| {
            let mut estimates = [estimate(free, 0), estimate(0, 10 * limit), estimate(free, 0)];
            (estimates[1].wanted, estimates[1].since) = (cost * UNIT, since);
            window_transfers(of_a_day(limit), &estimates)[1]
        };
        let of = |limit: u64, free: u64, since: Span| of_cost(1, limit, free, since);
        assert_eq!(of(40, 10, Span::ZERO), 9);
        assert_eq!(of(10, 3, Span::ZERO), 2);
        assert_eq!(of(10_000, 2_500, Span::ZERO), 2_333, "a third of a tenth of five thousand");
        assert_eq!(of(10_000, 500, Span::ZERO), 500, "the last tenth goes to whoever asks");
        assert_eq!(of(10, 1, Span::ZERO), 1, "as do the last few");
        assert_eq!(of(40, 10, Span::from_secs(1)), 9, "others have enough beside it");
        assert_eq!(of(40, 10, Span::from_secs(5)), 10, "nobody is refused for its sake for long");
        assert_eq!(of_cost(19, 40, 10, Span::ZERO), 9);
        assert_eq!(of_cost(19, 40, 10, Span::from_secs(1)), 10, "this fits only where all is given");
    }

    #[test]
    fn a_slice_stays_while_what_is_free_is_on_its_way_between_others() {
        // Of eight free permits five are on their way from the third region to the second.
        let of = |moving: i128| {
            let mut estimates = [estimate(1, 0), estimate(0, 40), estimate(2, 0)];
            (estimates[1].wanted, estimates[2].moving) = (UNIT, moving * UNIT);
            window_transfers(of_a_day(12), &estimates)[1]
        };
        assert_eq!((of(5), of(0)), (0, 1));
    }

    #[test]
    fn nobody_gives_where_all_are_short() {
        let estimates = [estimate(30, 500), estimate(30, 500), estimate(30, 500)];
        assert_eq!(window_transfers(spending(1_000, 500), &estimates).as_slice(), [0, 0, 0]);
    }

    #[test]
    fn a_region_that_can_not_be_reached_gets_nothing() {
        let mut estimates = [estimate(333, 0), estimate(0, 5_000)];
        estimates[1].reachable = false;
        assert_eq!(window_transfers(spending(1_000, 750), &estimates).as_slice(), [0, 0]);
    }

    #[test]
    fn the_last_right_goes_where_it_is_wanted() {
        let mut estimates = [estimate(1, 0), estimate(0, 0), estimate(1, 0)];
        estimates[1].wanted = UNIT;
        assert_eq!(window_transfers(spending(2, 500), &estimates).as_slice(), [0, 1, 0]);
    }

    #[test]
    fn a_large_cost_gathers_what_it_needs_in_one_region_where_two_want_it() {
        let mut estimates = [estimate(34, 0), estimate(33, 80), estimate(33, 80)];
        estimates[2].order = 1;
        estimates[1].wanted = 80 * UNIT;
        estimates[2].wanted = 80 * UNIT;
        let targets = targets(&estimates);
        assert_eq!(targets.iter().filter(|target| **target >= 80 * UNIT).count(), 1);
    }

    proptest! {
        #[test]
        fn no_more_is_given_than_is_free(
            frees in proptest::collection::vec((0_u64..5_000, 0_u64..50_000, 0_u64..200, 0_u64..5), 1..6),
            elapsed in 0_u64..1_000,
        ) {
            let estimates: Vec<RegionEstimate> = frees
                .iter()
                .map(|(free, need, wanted, weight)| RegionEstimate {
                    weight: *weight,
                    wanted: i128::from(*wanted) * UNIT,
                    ..estimate(*free, *need)
                })
                .collect();
            let gifts = window_transfers(spending(1_000, elapsed), &estimates);
            // Each is rounded to the nearest, so a right more than there is may be asked of the store, which
            // refuses it.
            prop_assert!(gifts.iter().sum::<u64>() <= frees[0].0 + u64::try_from(estimates.len()).unwrap());
        }
    }
}
