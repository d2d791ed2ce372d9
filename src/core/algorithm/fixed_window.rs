//! `fixed_window`: one count for each window aligned to the epoch.
//!
//! Bound: in any aligned window at most `limit` permits are admitted. An interval of a window's length that straddles an
//! edge may see up to twice that: half before the edge and half after it.

use super::aligned::{Place, Share};
use super::{Limit, Verdict, View};
use crate::core::time::{Span, Timestamp};

/// The count of one window, and the newest instant seen, which says which window that is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FixedWindow {
    at: Timestamp,
    count: u32,
}

impl FixedWindow {
    /// Holds what another process wrote down.
    pub(super) const fn from_parts(at: Timestamp, count: u32) -> Self {
        Self { at, count }
    }

    fn place(&self, limit: &Limit, now: Timestamp) -> (Place, u32) {
        let place = Place::of(limit.window, now.max(self.at));
        let used = if place.windows_since(self.at.0) == 0 { self.count } else { 0 };
        (place, used)
    }

    pub(super) fn check(&self, limit: &Limit, view: Option<&View>, now: Timestamp, cost: u64) -> Verdict {
        let (place, used) = self.place(limit, now);
        let free = u64::from(Share::of(limit, view, place.index).budget.saturating_sub(used));
        let asked = cost.max(1);
        let admitted = asked <= free;
        let left = Span(place.left());
        Verdict {
            admitted,
            remaining: if admitted { free - cost } else { free },
            reset: left,
            retry: (!admitted && asked <= u64::from(limit.permits)).then_some(left),
            delay: Span::ZERO,
        }
    }

    pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        if cost > 0 {
            let (_, used) = self.place(limit, now);
            self.count = used.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
            self.at = self.at.max(now);
        }
    }

    pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        let (_, used) = self.place(limit, now);
        let returned = used.min(u32::try_from(cost).unwrap_or(u32::MAX));
        if returned > 0 {
            self.count = used - returned;
            self.at = self.at.max(now);
        }
        u64::from(returned)
    }

    pub(super) fn window_at(&self, limit: &Limit, now: Timestamp) -> u64 {
        self.place(limit, now).0.index
    }

    pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        u64::from(self.place(limit, now).1)
    }

    pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
        if self.count == 0 {
            return self.at;
        }
        Timestamp(Place::of(limit.window, self.at).start) + limit.window
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{START, admissions, histories, limits};
    use super::super::{Algorithm, State};
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
    fn a_budget_denies_until_its_window_ends() {
        let limit = Limit { permits: 10, window: Span::from_secs(1), burst: 0, queue: 0 };
        let view = View { window: 3, budget: 2, next_budget: 4, ..View::default() };
        let state = State::new(Algorithm::FixedWindow);
        let denied = state.check(&limit, Some(&view), Timestamp(3_250_000), 3);
        assert!(!denied.admitted);
        assert_eq!((denied.remaining, denied.retry), (2, Some(Span(750_000))));
        assert_eq!(state.check(&limit, Some(&view), Timestamp(4_000_000), 0).remaining, 4);
        assert_eq!(state.check(&limit, Some(&view), Timestamp(5_000_000), 0).remaining, 10);
        assert_eq!(state.check(&limit, Some(&view), Timestamp(3_250_000), 11).retry, None);
    }
}
