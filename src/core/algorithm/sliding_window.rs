//! `sliding_window`: the running window's count plus the part of the one before that has not yet slid out, taken as spread
//! evenly: `previous * (W - elapsed) / W + current <= limit`, compared exactly.
//!
//! Bound: that estimate never exceeds `limit`; no aligned window admits more than `limit`; and any interval of length W
//! admits less than twice `limit`, however unevenly the window before was used.

use super::aligned::{Place, Share, faded};
use super::{Limit, Verdict, View};
use crate::core::time::{Span, Timestamp};

/// The counts of two neighbouring windows, and the newest instant seen, which says which windows they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlidingWindow {
    at: Timestamp,
    current: u32,
    previous: u32,
}

/// What weighs on one window: all that decides how much of it may still be used.
struct Load {
    budget: u32,
    current: u64,
    /// This region's count of the window before, and what the others admitted in it.
    before: u128,
}

impl Load {
    /// Permits that may be used in the window in all, once only `left` of `length` is still to come.
    fn room(&self, permits: u32, left: u64, length: u64) -> u64 {
        if self.budget == permits
            && let Ok(before) = u64::try_from(self.before)
        {
            return u64::from(permits).saturating_sub(faded(before, left, length));
        }
        let all = u128::from(permits) * u128::from(length);
        let weight = self.before * u128::from(left);
        // The share of a limit that the past already fills is gone for every region alike.
        let free = all.saturating_sub(weight);
        let room = (u128::from(self.budget) * free).checked_div(all).unwrap_or(0);
        u64::try_from(room).unwrap_or(u64::MAX)
    }

    /// How far into the window `asked` permits fit at last, if they do before it ends.
    fn first_fit(&self, permits: u32, asked: u64, length: u64) -> Option<u64> {
        let spare = u64::from(self.budget).checked_sub(self.current.checked_add(asked)?)?;
        let weight = u128::from(self.budget) * self.before;
        if weight == 0 {
            return Some(0);
        }
        let left_max = u128::from(spare) * u128::from(permits) * u128::from(length) / weight;
        let left_max = u64::try_from(left_max).unwrap_or(u64::MAX);
        // At its end it is no longer this window.
        (left_max > 0).then(|| length.saturating_sub(left_max))
    }
}

impl SlidingWindow {
    /// Holds what another process wrote down.
    pub(super) const fn from_parts(at: Timestamp, current: u32, previous: u32) -> Self {
        Self { at, current, previous }
    }

    fn place(&self, limit: &Limit, now: Timestamp) -> (Place, u32, u32) {
        let place = Place::of(limit.window, now.max(self.at));
        match place.windows_since(self.at.0) {
            0 => (place, self.current, self.previous),
            1 => (place, 0, self.current),
            _ => (place, 0, 0),
        }
    }

    pub(super) fn check(&self, limit: &Limit, view: Option<&View>, now: Timestamp, cost: u64) -> Verdict {
        let (place, current, previous) = self.place(limit, now);
        let share = Share::of(limit, view, place.index);
        let load = Load {
            budget: share.budget,
            current: u64::from(current),
            before: u128::from(previous) + u128::from(share.others_before),
        };
        let room = load.room(limit.permits, place.left(), place.length);
        let free = room.saturating_sub(load.current);
        let asked = cost.max(1);
        let admitted = asked <= free;
        Verdict {
            admitted,
            remaining: if admitted { free - cost } else { free },
            reset: Span(place.left()),
            retry: if admitted { None } else { retry(limit, view, &place, &load, asked) },
            delay: Span::ZERO,
        }
    }

    pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        if cost > 0 {
            let (_, current, previous) = self.place(limit, now);
            self.current = current.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
            self.previous = previous;
            self.at = self.at.max(now);
        }
    }

    /// Takes from the running window first and the rest from the one before.
    pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        let (_, current, previous) = self.place(limit, now);
        let newer = current.min(u32::try_from(cost).unwrap_or(u32::MAX));
        let older = previous.min(u32::try_from(cost - u64::from(newer)).unwrap_or(u32::MAX));
        if newer > 0 || older > 0 {
            self.current = current - newer;
            self.previous = previous - older;
            self.at = self.at.max(now);
        }
        u64::from(newer) + u64::from(older)
    }

    pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        let (place, current, previous) = self.place(limit, now);
        u64::from(current) + faded(u64::from(previous), place.left(), place.length)
    }

    pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
        let end = Timestamp(Place::of(limit.window, self.at).start) + limit.window;
        match (self.current, self.previous) {
            (0, 0) => self.at,
            (0, _) => end,
            _ => end + limit.window,
        }
    }
}

/// Until `asked` permits fit if nothing else comes: in this window, in the next, or at the end of that at the latest.
fn retry(limit: &Limit, view: Option<&View>, place: &Place, load: &Load, asked: u64) -> Option<Span> {
    if asked > u64::from(limit.permits) {
        return None;
    }
    let length = place.length;
    if let Some(into) = load.first_fit(limit.permits, asked, length) {
        return Some(Span(into.saturating_sub(place.elapsed)));
    }
    let next_index = place.index.saturating_add(1);
    let share = Share::of(limit, view, next_index);
    let before = u128::from(load.current) + u128::from(share.others_before);
    let next = Load { budget: share.budget, current: 0, before };
    let into = next.first_fit(limit.permits, asked, length).unwrap_or(length);
    Some(Span(place.left().saturating_add(into)))
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{START, admissions, histories, limits, runs};
    use super::super::{Algorithm, State};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_aligned_window_admits_more_than_the_limit_and_none_of_its_length_twice_that(
            limit in limits(), history in histories(),
        ) {
            let admitted = admissions(Algorithm::SlidingWindow, &limit, START, &history);
            let permits = u128::from(limit.permits);
            let index = |at: u64| at / limit.window.0;
            for (at, ..) in &admitted {
                let sum: u128 =
                    admitted.iter().filter(|other| index(other.0) == index(*at)).map(|other| u128::from(other.1)).sum();
                prop_assert!(sum <= permits);
            }
            for (lasted, sum) in runs(&admitted) {
                prop_assert!(lasted >= limit.window.0 || sum < 2 * permits);
            }
        }
    }

    #[test]
    fn half_way_through_a_window_half_of_the_one_before_still_counts() {
        let limit = Limit { permits: 10, window: Span::from_secs(60), burst: 0, queue: 0 };
        let mut state = State::new(Algorithm::SlidingWindow);
        state.take(&limit, Timestamp(0), 10);
        let half = Timestamp(90_000_000);
        let verdict = state.check(&limit, None, half, 6);
        assert!(!verdict.admitted);
        assert_eq!((verdict.remaining, verdict.retry), (5, Some(Span::from_secs(6))));
        assert!(state.check(&limit, None, half, 5).admitted);
    }
}
