//! `sliding_window`: the running window's count plus the part of the one before that has not yet slid out,
//! taken as spread evenly, weighted by the time left, and rounded down to whole permits:
//! `floor(previous * (W - elapsed) / W) + current <= limit`, exact.
//!
//! Rounding down lets small limits be used in full: a limit of one admits one request in each window. It
//! costs less than one permit: the estimate before it is rounded stays below `limit + 1`. No aligned window
//! admits more than `limit`, and no interval shorter than W more than twice `limit`, however unevenly the
//! window before was used. A report is charged beyond the limit; what exceeds it is owed, and the windows
//! after it begin with that already used.

use super::aligned::{
    WindowAccount, WindowPlace, WindowShare, carried, faded, paid_by_a_window, windows_to_pay,
};
use super::{Limit, RegionUse, Verdict, WindowAllowance};
use crate::request::ReportedCost;
use crate::time::{Span, Timestamp};

/// The counts of two neighbouring windows, what is owed beyond them, and the newest instant seen, which says
/// which windows they are. Bytes rather than a wide integer: the state beside its tag must fit 24 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SlidingWindow {
    at: [u8; 8],
    current: u32,
    previous: u32,
    debt: u32,
}

/// Where an instant lies, what is counted and owed there, and the count of the window before.
struct Placed {
    place: WindowPlace,
    account: WindowAccount,
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
        let free = u64::from(permits).saturating_sub(faded(self.before, left, length));
        if self.budget == permits {
            return free;
        }
        // The share of a limit that the past already fills is gone for every region alike. Neither factor
        // exceeds 32 bits.
        (u64::from(self.budget) * free).checked_div(u64::from(permits)).unwrap_or(0)
    }

    /// How far into the window `asked` permits fit at last, if they do before it ends.
    fn first_fit(&self, permits: u32, asked: u64, length: u64) -> Option<u64> {
        let needed = self.current.checked_add(asked)?;
        if needed > u64::from(self.budget) {
            return None;
        }
        if self.before == 0 {
            return Some(0);
        }
        let free = u128::from(needed) * u128::from(permits);
        let faded_max = u128::from(permits).checked_sub(free.div_ceil(u128::from(self.budget.max(1))))?;
        // Rounded down, the past is that much until it has faded by one permit less.
        let left_max = ((faded_max + 1) * u128::from(length) - 1) / self.before;
        let left_max = u64::try_from(left_max).unwrap_or(u64::MAX);
        // At its end it is no longer this window.
        (left_max > 0).then(|| length.saturating_sub(left_max))
    }
}

impl SlidingWindow {
    /// Holds what another process wrote down.
    pub(super) const fn from_parts(at: Timestamp, current: u32, previous: u32, debt: u32) -> Self {
        Self { at: at.0.to_ne_bytes(), current, previous, debt }
    }

    const fn at(&self) -> Timestamp {
        Timestamp(u64::from_ne_bytes(self.at))
    }

    pub(super) const fn newest(&self) -> Timestamp {
        self.at()
    }

    /// As used up at `now`, and owing as much.
    pub(super) fn used_up(&self, limit: &Limit, now: Timestamp) -> Self {
        Self::from_parts(now, self.current.max(limit.permits), 0, self.debt)
    }

    /// Returns where `now` lies. `view` says how fast a debt is paid.
    fn place(&self, limit: &Limit, view: Option<&WindowAllowance>, now: Timestamp) -> Placed {
        let at = self.at();
        let place = WindowPlace::every(limit.window, now.max(at));
        let account = WindowAccount { count: self.current, debt: self.debt };
        let (account, previous) = match place.windows_since(at.0) {
            0 => (account, self.previous),
            1 => {
                let debt = carried(limit, view, account, 1);
                (WindowAccount { count: 0, debt }, account.count + (account.debt - debt))
            }
            _ if account.debt == 0 => (WindowAccount { count: 0, debt: 0 }, 0),
            _ => {
                let windows = place.index - at.window_index(limit.window);
                // The window before this one has paid what it could.
                let owed = carried(limit, view, account, windows - 1);
                let debt = carried(limit, view, account, windows);
                (WindowAccount { count: 0, debt }, owed - debt)
            }
        };
        Placed { place, account, previous }
    }

    fn load(limit: &Limit, view: Option<&WindowAllowance>, placed: &Placed) -> (Load, u64) {
        let Placed { place, account, previous } = placed;
        let share = WindowShare::of(limit, view, place.index);
        let load = Load {
            budget: share.budget,
            current: account.used(),
            before: u128::from(*previous) + u128::from(share.others_before),
        };
        let room = load.room(limit.permits, place.left(), place.length);
        (load, room)
    }

    pub(super) fn check(
        &self,
        limit: &Limit,
        view: Option<&WindowAllowance>,
        now: Timestamp,
        cost: u64,
    ) -> Verdict {
        let placed = self.place(limit, view, now);
        let (load, room) = Self::load(limit, view, &placed);
        let Placed { place, account, .. } = placed;
        let free = room.saturating_sub(load.current);
        let asked = cost.max(1);
        let admitted = asked <= free;
        let remaining = if admitted { free - cost } else { free };
        let retry = if admitted { None } else { until_fits(limit, view, &place, &load, account, asked) };
        // A client that waits for the reset may ask for as much again, or for one permit where that much
        // never fits.
        let again = if asked > u64::from(limit.permits) { 1 } else { asked };
        let reset = match retry {
            Some(retry) => retry,
            None if again <= remaining => Span(place.left()),
            None => {
                let taken = if admitted { cost } else { 0 };
                let after = Load { current: load.current.saturating_add(taken), ..load };
                let counted = u32::try_from(taken).unwrap_or(u32::MAX);
                let mut account = account;
                // A charge counts first what is owed and has room.
                if taken > 0 {
                    account.settle(room.saturating_sub(u64::from(account.count)));
                }
                account.count = account.count.saturating_add(counted);
                until_fits(limit, view, &place, &after, account, again).unwrap_or(Span(place.left()))
            }
        };
        Verdict { admitted, remaining, reset, retry, delay: Span::ZERO }
    }

    fn hold(&mut self, now: Timestamp, account: WindowAccount, previous: u32) {
        let at = self.at().max(now);
        *self = Self::from_parts(at, account.count, previous, account.debt);
    }

    pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        if cost > 0 {
            let Placed { mut account, previous, .. } = self.place(limit, None, now);
            account.settle(u64::from(limit.permits.saturating_sub(account.count)));
            account.count = account.count.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
            self.hold(now, account, previous);
        }
    }

    /// Charges `cost` whatever is left. Returns the permits charged.
    pub(super) fn report(
        &mut self,
        limit: &Limit,
        view: Option<&WindowAllowance>,
        now: Timestamp,
        report: &ReportedCost,
    ) -> u64 {
        let placed = self.place(limit, view, now);
        let (_, room) = Self::load(limit, view, &placed);
        let Placed { mut account, previous, .. } = placed;
        let room = room.saturating_sub(u64::from(account.count));
        let charged = account.report(room, report.permits, report.debt_max);
        self.hold(now, account, previous);
        charged
    }

    /// Counts what is owed, as far as there is room. Returns what the window counts more for it.
    pub(super) fn settle(&mut self, limit: &Limit, view: Option<&WindowAllowance>, now: Timestamp) -> u64 {
        let before = self.place(limit, view, now).account.count;
        self.report(limit, view, now, &ReportedCost { permits: 0, debt_max: 0 });
        u64::from(self.current.saturating_sub(before))
    }

    pub(super) const fn debt(&self) -> u32 {
        self.debt
    }

    /// Takes from what is owed first, then from the running window and the rest from the one before.
    pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        let Placed { account: WindowAccount { count, debt }, previous, .. } = self.place(limit, None, now);
        let part = |of: u32, left: u64| of.min(u32::try_from(left).unwrap_or(u32::MAX));
        let owed = part(debt, cost);
        let newer = part(count, cost - u64::from(owed));
        let older = part(previous, cost - u64::from(owed) - u64::from(newer));
        if owed > 0 || newer > 0 || older > 0 {
            self.hold(now, WindowAccount { count: count - newer, debt: debt - owed }, previous - older);
        }
        u64::from(owed) + u64::from(newer) + u64::from(older)
    }

    /// See [`super::State::restore`].
    pub(super) fn restore(&mut self, limit: &Limit, now: Timestamp, known: &RegionUse) {
        let Placed { place, account: WindowAccount { count, debt }, previous } = self.place(limit, None, now);
        let (used, before) = match place.index.checked_sub(known.window) {
            Some(0) => (known.used, known.before),
            Some(1) => (0, known.used),
            _ => return,
        };
        let whole = |permits: u64| u32::try_from(permits).unwrap_or(u32::MAX);
        let (least, before) = (whole(used).saturating_sub(debt), whole(before));
        if count < least || previous < before {
            self.hold(now, WindowAccount { count: count.max(least), debt }, previous.max(before));
        }
    }

    /// See [`super::State::returnable`].
    pub(super) fn returnable(&self, limit: &Limit, view: Option<&WindowAllowance>, now: Timestamp) -> u64 {
        let Placed { account, previous, .. } = self.place(limit, view, now);
        account.used() + u64::from(previous)
    }

    /// See [`super::State::region_use`].
    pub(super) fn region_use(&self, limit: &Limit, now: Timestamp) -> RegionUse {
        let Placed { place, account, previous } = self.place(limit, None, now);
        RegionUse { window: place.index, used: account.used(), before: u64::from(previous) }
    }

    /// The instant that a charge at `now` counts at.
    pub(super) fn instant(&self, now: Timestamp) -> Timestamp {
        now.max(self.at())
    }

    pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        let Placed { place, account, previous } = self.place(limit, None, now);
        account.used() + faded(u128::from(previous), place.left(), place.length)
    }

    pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
        let end = Timestamp(WindowPlace::every(limit.window, self.at()).start) + limit.window;
        match (self.current, self.previous, self.debt) {
            (0, 0, 0) => self.at(),
            (0, _, 0) => end,
            (.., 0) => end + limit.window,
            (.., debt) => {
                let windows = u64::from(debt).div_ceil(u64::from(limit.permits.max(1)));
                let windows = if limit.permits == 0 { 1 } else { windows + 1 };
                end + Span(limit.window.0.saturating_mul(windows))
            }
        }
    }
}

/// Until `asked` permits fit if nothing else comes: in this window, in the next, or at the end of that at the
/// latest, unless a debt has to be paid before.
fn until_fits(
    limit: &Limit,
    view: Option<&WindowAllowance>,
    place: &WindowPlace,
    load: &Load,
    account: WindowAccount,
    asked: u64,
) -> Option<Span> {
    if asked > u64::from(limit.permits) {
        return None;
    }
    let length = place.length;
    if let Some(into) = load.first_fit(limit.permits, asked, length) {
        return Some(Span(into.saturating_sub(place.elapsed)));
    }
    let owed = carried(limit, view, account, 1);
    let paid = account.used() - u64::from(owed);
    let more = windows_to_pay(limit, view, owed, asked);
    let next_index = place.index.saturating_add(1);
    let next = if more == 0 {
        let share = WindowShare::of(limit, view, next_index);
        let before = u128::from(paid) + u128::from(share.others_before);
        Load { budget: share.budget, current: u64::from(owed), before }
    } else {
        // The windows until then pay as much as they can, and so does the one before it.
        let each = paid_by_a_window(limit, view).max(1);
        let left = |windows: u64| u64::from(owed).saturating_sub(each.saturating_mul(windows));
        let share = WindowShare::of(limit, view, next_index.saturating_add(more));
        Load { budget: share.budget, current: left(more), before: u128::from(left(more - 1) - left(more)) }
    };
    let into = next.first_fit(limit.permits, asked, length).unwrap_or(length);
    Some(Span(place.left().saturating_add(length.saturating_mul(more)).saturating_add(into)))
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{START, admissions, histories, limits, runs};
    use super::super::{Algorithm, State};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_aligned_window_admits_more_than_the_limit_and_none_of_its_length_more_than_twice_that(
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
                prop_assert!(lasted >= limit.window.0 || sum <= 2 * permits);
            }
        }
    }

    /// Asks for one permit again and again. Returns how many were admitted in `windows` windows.
    fn admitted_of_a_flood(limit: &Limit, windows: u64) -> u64 {
        let mut state = State::new(Algorithm::SlidingWindow);
        let mut admitted = 0;
        for step in 0..windows * 97 {
            let now = Timestamp(
                1_790_000_000_000_000 / limit.window.0 * limit.window.0 + step * limit.window.0 / 97,
            );
            if state.check(limit, None, now, 1).admitted {
                state.take(limit, now, 1);
                admitted += 1;
            }
        }
        admitted
    }

    #[test]
    fn small_limits_are_used_in_full() {
        for (permits, window) in (1..=10).flat_map(|permits| [(permits, 2), (permits, 86_400)]) {
            let window = Span::from_secs(window);
            let limit = Limit { calendar: None, permits, window, burst: 0, queue: 0 };
            assert_eq!(admitted_of_a_flood(&limit, 200), u64::from(permits) * 200, "{limit:?}");
        }
    }

    #[test]
    fn half_way_through_a_window_half_of_the_one_before_still_counts() {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(60), burst: 0, queue: 0 };
        let mut state = State::new(Algorithm::SlidingWindow);
        state.take(&limit, Timestamp(0), 10);
        let half = Timestamp(90_000_000);
        let verdict = state.check(&limit, None, half, 6);
        assert!(!verdict.admitted);
        // A microsecond later a part of the five is gone, and four whole ones count.
        assert_eq!((verdict.remaining, verdict.retry), (5, Some(Span(1))));
        assert_eq!(verdict.reset, Span(1), "who waits for the reset is admitted");
        let last = state.check(&limit, None, half, 5);
        assert!(last.admitted);
        // Five more pass once less than one is left of the ten before: in the last six seconds.
        assert_eq!((last.remaining, last.reset), (0, Span(24_000_001)));
        assert_eq!(state.check(&limit, None, half, 2).reset, Span::from_secs(30), "two more pass at once");
    }
}
