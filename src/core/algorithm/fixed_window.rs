//! `fixed_window`: one count for each window aligned to the epoch.
//!
//! Bound: in any aligned window at most `limit` permits are admitted. An interval of a window's length that
//! straddles an edge may see up to twice that: half before the edge and half after it. A report is charged
//! beyond the limit; what exceeds it is owed, and the windows after it begin with that already used.

use std::cmp::Ordering;

use super::aligned::{WindowAccount, WindowPlace, WindowShare, carried, windows_to_pay};
use super::{Limit, RegionUse, Verdict, WindowAllowance};
use crate::request::ReportedCost;
use crate::time::{Span, Timestamp};

/// The count of one window, what is owed beyond it, and the newest instant seen, which says which window that
/// is.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct FixedWindow {
    at: Timestamp,
    count: u32,
    debt: u32,
}

impl FixedWindow {
    /// Holds what another process wrote down.
    pub(super) const fn from_parts(at: Timestamp, count: u32, debt: u32) -> Self {
        Self { at, count, debt }
    }

    pub(super) const fn newest(&self) -> Timestamp {
        self.at
    }

    /// As used up at `now`, and owing as much.
    pub(super) fn used_up(&self, limit: &Limit, now: Timestamp) -> Self {
        Self { at: now, count: self.count.max(limit.permits), debt: self.debt }
    }

    /// Returns where `now` lies, and what is counted and owed there. `view` says how fast a debt is paid.
    fn place(
        &self,
        limit: &Limit,
        view: Option<&WindowAllowance>,
        now: Timestamp,
    ) -> (WindowPlace, WindowAccount) {
        let place = WindowPlace::of(limit, now.max(self.at));
        let Self { count, debt, .. } = *self;
        if place.windows_since(self.at.0) == 0 {
            return (place, WindowAccount { count, debt });
        }
        let debt = if debt == 0 {
            0
        } else {
            carried(limit, view, WindowAccount { count, debt }, place.index - limit.windows().index(self.at))
        };
        (place, WindowAccount { count: 0, debt })
    }

    fn budget(limit: &Limit, view: Option<&WindowAllowance>, place: &WindowPlace) -> u64 {
        u64::from(WindowShare::of(limit, view, place.index).budget)
    }

    pub(super) fn check(
        &self,
        limit: &Limit,
        view: Option<&WindowAllowance>,
        now: Timestamp,
        cost: u64,
    ) -> Verdict {
        let (place, account) = self.place(limit, view, now);
        let free = Self::budget(limit, view, &place).saturating_sub(account.used());
        let asked = cost.max(1);
        let admitted = asked <= free;
        let until = |asked: u64| {
            let left = place.left();
            if account.debt == 0 || limit.permits == 0 {
                return Span(left);
            }
            let owed = carried(limit, view, account, 1);
            let more = windows_to_pay(limit, view, owed, asked);
            place.until(limit, more)
        };
        let retry = (!admitted && asked <= u64::from(limit.permits)).then(|| until(asked));
        // A client that waits for the reset may ask for as much again, or for one permit where that much
        // never fits.
        let reset = match retry {
            Some(retry) => retry,
            None if free == 0 => until(1),
            None => Span(place.left()),
        };
        let remaining = if admitted { free - cost } else { free };
        Verdict { admitted, remaining, reset, retry, delay: Span::ZERO }
    }

    fn hold(&mut self, now: Timestamp, account: WindowAccount) {
        WindowAccount { count: self.count, debt: self.debt } = account;
        self.at = self.at.max(now);
    }

    pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        if cost > 0 {
            let (_, mut account) = self.place(limit, None, now);
            account.settle(u64::from(limit.permits.saturating_sub(account.count)));
            account.count = account.count.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
            self.hold(now, account);
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
        let (place, mut account) = self.place(limit, view, now);
        let room = Self::budget(limit, view, &place).saturating_sub(u64::from(account.count));
        if report.debt_max == ReportedCost::COUNTED_BEYOND {
            // What other terms left to be paid is paid first, as ever.
            account.settle(room);
            let before = account.count;
            account.count = before.saturating_add(u32::try_from(report.permits).unwrap_or(u32::MAX));
            self.hold(now, account);
            return u64::from(account.count - before);
        }
        let charged = account.report(room, report.permits, report.debt_max);
        self.hold(now, account);
        charged
    }

    /// Counts what is owed, as far as there is room. Returns what the window counts more for it.
    pub(super) fn settle(&mut self, limit: &Limit, view: Option<&WindowAllowance>, now: Timestamp) -> u64 {
        let before = self.place(limit, view, now).1.count;
        self.report(limit, view, now, &ReportedCost { permits: 0, debt_max: 0 });
        u64::from(self.count.saturating_sub(before))
    }

    pub(super) const fn debt(&self) -> u32 {
        self.debt
    }

    /// Takes from what is owed first: it would have mattered longest.
    pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        let (_, WindowAccount { count, debt }) = self.place(limit, None, now);
        let owed = debt.min(u32::try_from(cost).unwrap_or(u32::MAX));
        let counted = count.min(u32::try_from(cost - u64::from(owed)).unwrap_or(u32::MAX));
        if owed > 0 || counted > 0 {
            self.hold(now, WindowAccount { count: count - counted, debt: debt - owed });
        }
        u64::from(owed) + u64::from(counted)
    }

    /// Returns what of the `budget` of a window is used, what is owed included.
    pub(super) fn used_of(
        &self,
        limit: &Limit,
        view: Option<&WindowAllowance>,
        window: u64,
        budget: u64,
    ) -> u64 {
        let (own, account) =
            (limit.windows().index(self.at), WindowAccount { count: self.count, debt: self.debt });
        match own.cmp(&window) {
            Ordering::Equal => {
                let count = u64::from(account.count);
                count + u64::from(account.debt).min(budget.saturating_sub(count))
            }
            Ordering::Less if account.debt > 0 => {
                u64::from(carried(limit, view, account, window - own)).min(budget)
            }
            _ => 0,
        }
    }

    pub(super) fn window_at(&self, limit: &Limit, now: Timestamp) -> u64 {
        WindowPlace::of(limit, now.max(self.at)).index
    }

    /// See [`super::State::returnable`].
    pub(super) fn returnable(&self, limit: &Limit, view: Option<&WindowAllowance>, now: Timestamp) -> u64 {
        self.place(limit, view, now).1.used()
    }

    /// See [`super::State::restore`].
    pub(super) fn restore(&mut self, limit: &Limit, now: Timestamp, known: &RegionUse) {
        let (place, WindowAccount { count, debt }) = self.place(limit, None, now);
        let least = u32::try_from(known.used).unwrap_or(u32::MAX).saturating_sub(debt);
        if place.index == known.window && count < least {
            self.hold(now, WindowAccount { count: least, debt });
        }
    }

    /// The instant that a charge at `now` counts at.
    pub(super) fn instant(&self, now: Timestamp) -> Timestamp {
        now.max(self.at)
    }

    pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        self.place(limit, None, now).1.used()
    }

    pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
        if self.count == 0 && self.debt == 0 {
            return self.at;
        }
        let windows = u64::from(self.debt).div_ceil(u64::from(limit.permits.max(1)));
        let windows = if limit.permits == 0 { 1 } else { windows + 1 };
        let place = WindowPlace::of(limit, self.at);
        match limit.calendar {
            None => Timestamp(place.start) + Span(limit.window.0.saturating_mul(windows)),
            Some(_) if windows == 1 => Timestamp(place.start.saturating_add(place.length)),
            Some(_) => limit.windows().start(place.index.saturating_add(windows)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{START, admissions, histories, limits};
    use super::super::{Algorithm, Allowance, State};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_aligned_window_admits_more_than_the_limit(limit in limits(), history in histories()) {
            let admitted = admissions(Algorithm::FixedWindow, &limit, START, &history);
            let index = |at: u64| at / limit.window.0;
            for (at, ..) in &admitted {
                let sum: u128 =
                    admitted.iter().filter(|other| index(other.0) == index(*at)).map(|other| u128::from(other.1)).sum();
                prop_assert!(sum <= u128::from(limit.permits));
            }
        }
    }

    #[test]
    fn after_the_reset_of_a_denial_as_much_is_admitted() {
        let limit = Limit { calendar: None, permits: 4, window: Span::from_secs(2), burst: 0, queue: 0 };
        let now = Timestamp(500_000);
        let mut state = State::new(Algorithm::FixedWindow);
        state.report(&limit, None, now, &ReportedCost { permits: 11, debt_max: 10 });
        let waits = |cost| {
            let denied = state.check(&limit, None, now, cost);
            (denied.reset, denied.retry)
        };
        assert_eq!(waits(3), (Span(5_500_000), Some(Span(5_500_000))));
        assert_eq!(waits(1), (Span(3_500_000), Some(Span(3_500_000))));
        assert_eq!(waits(5), (Span(3_500_000), None), "never, so it says when one permit is free");
        assert!(state.check(&limit, None, Timestamp(6_000_000), 3).admitted);
        assert!(!state.check(&limit, None, Timestamp(5_999_999), 3).admitted);
    }

    #[test]
    fn a_budget_denies_until_its_window_ends() {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(1), burst: 0, queue: 0 };
        let view = WindowAllowance { window: 3, budget: 2, next_budget: 4, ..WindowAllowance::default() };
        let view = Allowance::Window(view);
        let state = State::new(Algorithm::FixedWindow);
        let denied = state.check(&limit, Some(&view), Timestamp(3_250_000), 3);
        assert!(!denied.admitted);
        assert_eq!((denied.remaining, denied.retry), (2, Some(Span(750_000))));
        assert_eq!(state.check(&limit, Some(&view), Timestamp(4_000_000), 0).remaining, 4);
        assert_eq!(state.check(&limit, Some(&view), Timestamp(5_000_000), 0).remaining, 10);
        assert_eq!(state.check(&limit, Some(&view), Timestamp(3_250_000), 11).retry, None);
    }
}
