//! `sliding_log`: the time and cost of every admission that still lies in the window, so that nothing is
//! estimated.
//!
//! Bound: no interval `(t - W, t]` of the window's length ever holds more than `limit` admitted permits. Its
//! memory is at most 32 bytes for each permit of the limit and of the largest debt, and is given back as the
//! log empties.

use std::collections::VecDeque;

use super::aligned::{WindowPlace, WindowShare, weighted};
use super::{Limit, RegionUse, Verdict, WindowAllowance};
use crate::request::ReportedCost;
use crate::time::{Span, Timestamp};

/// Entries that a log may hold room for without having them.
const SPARE_MAX: usize = 16;

/// The admissions of the last window, and the newest instant seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SlidingLog {
    at: Timestamp,
    entries: Option<Box<Entries>>,
}

/// Admissions, oldest first. Never empty while it exists.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
struct Entries {
    queue: VecDeque<LogEntry>,
    /// The running total before the first entry.
    base: u64,
}

/// All that was admitted at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct LogEntry {
    at: u64,
    /// The running total up to and with this entry; it wraps, and only differences mean anything. What lies
    /// between two instants is then found by halving, however long the log.
    total: u64,
}

impl Entries {
    fn newest(&self) -> u64 {
        self.queue.back().map_or(0, |entry| entry.at)
    }

    fn total(&self) -> u64 {
        self.queue.back().map_or(self.base, |entry| entry.total)
    }

    fn total_before(&self, index: usize) -> u64 {
        index.checked_sub(1).and_then(|before| self.queue.get(before)).map_or(self.base, |entry| entry.total)
    }

    /// How many entries at the front have left the window by `now`.
    fn gone(&self, window: u64, now: u64) -> usize {
        let gone = |entry: &LogEntry| now.saturating_sub(entry.at) >= window;
        match self.queue.front() {
            Some(first) if gone(first) => self.queue.partition_point(gone),
            _ => 0,
        }
    }

    fn used(&self, window: u64, now: u64) -> u64 {
        self.total().wrapping_sub(self.total_before(self.gone(window, now)))
    }

    fn forget(&mut self, count: usize) {
        self.base = self.total_before(count);
        self.queue.drain(..count);
        if self.queue.capacity() / 4 > self.queue.len() + SPARE_MAX {
            self.queue.shrink_to(self.queue.len() * 2);
        }
    }

    /// When usage is down to `left` permits, if that is still to come.
    fn down_to(&self, left: u64, window: u64) -> Option<u64> {
        let total = self.total();
        let above = |entry: &LogEntry| total.wrapping_sub(entry.total) > left;
        self.queue.get(self.queue.partition_point(above)).map(|entry| entry.at.saturating_add(window))
    }
}

impl SlidingLog {
    pub(super) const fn newest(&self) -> Timestamp {
        self.at
    }

    /// As used up at `now`, and owing as much.
    pub(super) fn used_up(&self, limit: &Limit, now: Timestamp) -> Self {
        let mut log = Self::default();
        log.take(limit, now, self.used_at(limit, self.at.0).max(u64::from(limit.permits)));
        log
    }

    fn used_at(&self, limit: &Limit, now: u64) -> u64 {
        self.entries.as_ref().map_or(0, |entries| entries.used(limit.window.0, now))
    }

    /// What the world is believed to use beside this region.
    fn others_at(limit: &Limit, view: Option<&WindowAllowance>, now: u64) -> u64 {
        let Some(view) = view else { return 0 };
        let place = WindowPlace::every(limit.window, Timestamp(now));
        let share = WindowShare::of(limit, Some(view), place.index);
        share.others.saturating_add(weighted(share.others_before, place.left(), place.length))
    }

    /// What the world leaves of the limit at `now`.
    fn left_at(&self, limit: &Limit, view: Option<&WindowAllowance>, now: u64) -> u64 {
        let used = self.used_at(limit, now).saturating_add(Self::others_at(limit, view, now));
        u64::from(limit.permits).saturating_sub(used)
    }

    /// What the region's budget leaves at `now`: what it may use while others use theirs unheard. Budgets add
    /// up to the limit, so while each region keeps to its own in the whole interval that ends now, all of
    /// them keep to the limit in it.
    fn budgeted_at(&self, limit: &Limit, view: Option<&WindowAllowance>, now: u64) -> u64 {
        if view.is_none() {
            return u64::from(limit.permits);
        }
        let place = WindowPlace::every(limit.window, Timestamp(now));
        let budget = WindowShare::of(limit, view, place.index).budget;
        u64::from(budget).saturating_sub(self.used_at(limit, now))
    }

    /// From when on `left` permits are the most that is in use here, not before `now`.
    fn down_to(&self, limit: &Limit, now: u64, left: u64) -> u64 {
        if self.used_at(limit, now) <= left {
            return now;
        }
        let down = self.entries.as_ref().and_then(|entries| entries.down_to(left, limit.window.0));
        down.map_or(now, |down| down.max(now))
    }

    pub(super) fn check(
        &self,
        limit: &Limit,
        view: Option<&WindowAllowance>,
        now: Timestamp,
        cost: u64,
    ) -> Verdict {
        let now = now.max(self.at).0;
        let free = self.left_at(limit, view, now).min(self.budgeted_at(limit, view, now));
        let asked = cost.max(1);
        let admitted = asked <= free;
        let newest = match &self.entries {
            _ if admitted && cost > 0 => Some(now),
            Some(entries) => Some(entries.newest()),
            None => None,
        };
        let leaves = newest.map_or(0, |newest| newest.saturating_add(limit.window.0));
        Verdict {
            admitted,
            remaining: if admitted { free - cost } else { free },
            reset: Span(leaves.saturating_sub(now)),
            retry: if admitted { None } else { self.retry(limit, view, now, asked) },
            delay: Span::ZERO,
        }
    }

    fn retry(&self, limit: &Limit, view: Option<&WindowAllowance>, now: u64, asked: u64) -> Option<Span> {
        let left = u64::from(limit.permits).checked_sub(asked)?;
        let own =
            self.entries.as_ref().and_then(|entries| entries.down_to(left, limit.window.0)).unwrap_or(now);
        let Some(view) = view else { return Some(Span(own.saturating_sub(now))) };
        let place = WindowPlace::every(limit.window, Timestamp(now));
        // Two windows on, neither the others' use nor a budget is known.
        let end = own.max(place.start.saturating_add(place.length.saturating_mul(3)));
        let is_left = |at: u64| asked <= self.left_at(limit, Some(view), at);
        let from = if view.window > place.index {
            // What fits now may not fit in the window that the view speaks of: any instant that fits after
            // one that does not.
            halved(now, end, |at| is_left(at) && asked <= self.budgeted_at(limit, Some(view), at))
        } else {
            // Own use falls in steps and the others' fades, so the instant is halved upon.
            let from = if is_left(now) { now } else { halved(now, end, is_left) };
            self.budgeted_from(limit, view, now, from, asked)
        };
        Some(Span(from - now))
    }

    /// From when on a budget has room for `asked`, not before `from`: in this window, the next, or the one of
    /// which no budget is known.
    fn budgeted_from(&self, limit: &Limit, view: &WindowAllowance, now: u64, from: u64, asked: u64) -> u64 {
        let place = WindowPlace::every(limit.window, Timestamp(now));
        let next = place.start.saturating_add(place.length);
        let after = next.saturating_add(place.length);
        let fits_from = |index: u64, from: u64| {
            let budget = WindowShare::of(limit, Some(view), index).budget;
            Some(self.down_to(limit, from, u64::from(budget).checked_sub(asked)?))
        };
        let here = fits_from(place.index, from).filter(|at| *at < next);
        let there = || fits_from(place.index.saturating_add(1), from.max(next)).filter(|at| *at < after);
        here.or_else(there).unwrap_or(from.max(after))
    }

    /// Moves to `now`, forgets what has left the window and says what is still used.
    fn advance(&mut self, limit: &Limit, now: Timestamp) -> u64 {
        self.at = self.at.max(now);
        let Some(entries) = &mut self.entries else { return 0 };
        let gone = entries.gone(limit.window.0, self.at.0);
        if gone == entries.queue.len() {
            self.entries = None;
            return 0;
        }
        if gone > 0 {
            entries.forget(gone);
        }
        entries.total().wrapping_sub(entries.base)
    }

    pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        if cost == 0 {
            return;
        }
        self.advance(limit, now);
        let entries = self.entries.get_or_insert_default();
        let total = entries.total().wrapping_add(cost);
        match entries.queue.back_mut() {
            Some(last) if last.at == self.at.0 => last.total = total,
            _ => entries.queue.push_back(LogEntry { at: self.at.0, total }),
        }
    }

    /// Charges `cost` whatever is left. What exceeds the limit is an entry like any other, and leaves the
    /// window as usual. Returns the permits charged.
    pub(super) fn report(&mut self, limit: &Limit, now: Timestamp, report: &ReportedCost) -> u64 {
        let most = u64::from(limit.permits) + u64::from(report.debt_max);
        let charged = report.permits.min(most.saturating_sub(self.used(limit, now)));
        self.take(limit, now, charged);
        charged
    }

    /// See [`super::State::restore`]. Nobody knows any more when it was used, so all of it counts from now
    /// on.
    pub(super) fn restore(&mut self, limit: &Limit, now: Timestamp, known: &RegionUse) {
        let at = now.max(self.at);
        if WindowPlace::every(limit.window, at).index == known.window {
            self.take(limit, now, known.used.saturating_sub(self.used_at(limit, at.0)));
        }
    }

    /// Takes from the newest admissions first: they would have mattered longest.
    pub(super) fn refund(&mut self, limit: &Limit, now: Timestamp, cost: u64) -> u64 {
        if cost == 0 {
            return 0;
        }
        let used = self.advance(limit, now);
        let returned = cost.min(used);
        if returned == used {
            self.entries = None;
            return returned;
        }
        if let Some(entries) = &mut self.entries {
            let total = entries.total().wrapping_sub(returned);
            let base = entries.base;
            // How far above the base tells the order, since totals wrap.
            let kept = entries
                .queue
                .partition_point(|entry| entry.total.wrapping_sub(base) < total.wrapping_sub(base));
            entries.queue.truncate(kept + 1);
            if let Some(last) = entries.queue.back_mut() {
                last.total = total;
            }
        }
        returned
    }

    /// Takes out of the entry at `at` so much of what was charged then, if it is still in the window.
    pub(super) fn give_back(&mut self, limit: &Limit, now: Timestamp, at: Timestamp, cost: u64) -> u64 {
        self.advance(limit, now);
        let Some(entries) = &mut self.entries else { return 0 };
        let Ok(index) = entries.queue.binary_search_by_key(&at.0, |entry| entry.at) else { return 0 };
        let before = entries.total_before(index);
        let Some(own) = entries.queue.get(index).map(|entry| entry.total.wrapping_sub(before)) else {
            return 0;
        };
        let returned = cost.min(own);
        for entry in entries.queue.range_mut(index..) {
            entry.total = entry.total.wrapping_sub(returned);
        }
        if returned == own {
            entries.queue.remove(index);
        }
        if entries.queue.is_empty() {
            self.entries = None;
        }
        returned
    }

    /// The instant that a charge at `now` counts at.
    pub(super) fn instant(&self, now: Timestamp) -> Timestamp {
        now.max(self.at)
    }

    pub(super) fn used(&self, limit: &Limit, now: Timestamp) -> u64 {
        self.used_at(limit, now.max(self.at).0)
    }

    pub(super) fn expiry(&self, limit: &Limit) -> Timestamp {
        self.entries.as_ref().map_or(self.at, |entries| Timestamp(entries.newest()) + limit.window)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.entries
            .as_ref()
            .map_or(0, |entries| size_of::<Entries>() + entries.queue.capacity() * size_of::<LogEntry>())
    }
}

/// The first instant that fits after the last one before it that does not, where `now` does not and `end`
/// does.
fn halved(now: u64, end: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut too_early, mut enough) = (now, end);
    while enough - too_early > 1 {
        let middle = too_early + (enough - too_early) / 2;
        if fits(middle) {
            enough = middle;
        } else {
            too_early = middle;
        }
    }
    enough
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{START, admissions, histories, limits, runs};
    use super::super::{Algorithm, Allowance, State};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_interval_of_the_window_s_length_admits_more_than_the_limit(limit in limits(), history in histories()) {
            let admitted = admissions(Algorithm::SlidingLog, &limit, START, &history);
            for (lasted, sum) in runs(&admitted) {
                prop_assert!(lasted >= limit.window.0 || sum <= u128::from(limit.permits));
            }
        }
    }

    proptest! {
        /// Whatever else the world leaves: the budgets of all regions add up to the limit only if each is
        /// kept.
        #[test]
        fn no_window_admits_more_than_its_budget_and_a_retry_is_admitted(
            permits in 1_u32..50,
            budgets in (0_u32..60, 0_u32..60),
            others in (0_u64..60, 0_u64..60),
            asks in proptest::collection::vec((0_u64..40_000, 1_u64..9), 1..80),
        ) {
            let limit = Limit { calendar: None, permits, window: Span::from_secs(1), burst: 0, queue: 0 };
            let begin = Timestamp(START).window_index(limit.window) + 1;
            let (budget, next_budget) = budgets;
            let view =
                WindowAllowance { window: begin, budget, next_budget, others: others.0, others_before: others.1 };
            let mut state = State::new(Algorithm::SlidingLog);
            let mut now = Timestamp::window_start(begin, limit.window);
            let mut admitted = [0; 4];
            for (pause, cost) in asks {
                now = now + Span(pause);
                let verdict = state.check(&limit, Some(&Allowance::Window(view)), now, cost);
                if verdict.admitted {
                    state.take(&limit, now, cost);
                    let window = usize::try_from(now.window_index(limit.window) - begin).unwrap();
                    admitted[window] += cost;
                } else if let Some(retry) = verdict.retry {
                    prop_assert!(state.check(&limit, Some(&Allowance::Window(view)), now + retry, cost).admitted);
                }
            }
            prop_assert!(admitted[0] <= u64::from(budget) && admitted[1] <= u64::from(next_budget));
        }
    }

    #[test]
    fn a_log_s_memory_is_bounded_by_its_limit_and_given_back() {
        let limit = Limit { calendar: None, permits: 1_000, window: Span::from_secs(1), burst: 0, queue: 0 };
        let mut state = State::new(Algorithm::SlidingLog);
        let mut highest = 0;
        for now in (0..5_000_000).step_by(100) {
            if state.check(&limit, None, Timestamp(now), 1).admitted {
                state.take(&limit, Timestamp(now), 1);
            }
            highest = highest.max(state.heap_bytes());
        }
        assert!(highest <= 32 * 1_000 + 64, "{highest} bytes");
        state.take(&limit, Timestamp(5_098_000), 1);
        assert!(state.heap_bytes() <= 1_200, "{} bytes", state.heap_bytes());
        assert_eq!(state.refund(&limit, Timestamp(5_098_000), 5_000), 20);
        assert_eq!(state.heap_bytes(), 0);
    }
}
