//! The permits that all regions together have truly used of one bucket, and what is wrong with an answer
//! about it.

use std::collections::VecDeque;

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::time::{Span, Timestamp};

use crate::model::shell::windowed;
use crate::number::{float, seconds};

/// A refusal while the world has room may say so long: a way there and back, and a moment.
pub(super) const ROUND_TRIP: Span = Span::from_secs(1);

/// So long before a window ends the last rights go to whoever asks.
const LAST_RIGHTS: Span = Span::from_secs(5);

/// Admissions to one bucket, wherever they were.
#[derive(Debug)]
pub(super) struct TrueUse {
    algorithm: Algorithm,
    limit: Limit,
    /// Admissions that may still count.
    admitted: VecDeque<(Timestamp, u64)>,
    /// Level of a bucket without windows, and when it held that.
    level: (f64, Timestamp),
}

impl TrueUse {
    pub(super) const fn new(algorithm: Algorithm, limit: Limit) -> Self {
        Self { algorithm, limit, admitted: VecDeque::new(), level: (0.0, Timestamp(0)) }
    }

    /// Permits that the bucket holds.
    pub(super) fn capacity(&self) -> u64 {
        self.limit.capacity(self.algorithm)
    }

    pub(super) fn admit(&mut self, now: Timestamp, cost: u64) {
        let window = self.limit.window;
        self.admitted.retain(|(at, _)| now.window_index(window) - at.window_index(window) < 2);
        if windowed(self.algorithm) {
            self.admitted.push_back((now, cost));
        } else {
            self.level = (self.level_at(now) + float(cost), now);
        }
    }

    fn level_at(&self, now: Timestamp) -> f64 {
        let (held, since) = self.level;
        let rate = f64::from(self.limit.permits) / seconds(self.limit.window);
        (held - rate * seconds(now.since(since))).max(0.0)
    }

    /// Permits in use now, a started one counted.
    pub(super) fn used(&self, now: Timestamp) -> u64 {
        let window = self.limit.window;
        let (index, begun) =
            (now.window_index(window), Timestamp::window_start(now.window_index(window), window));
        let sum = |counts: &dyn Fn(Timestamp) -> bool| -> u64 {
            self.admitted.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| *cost).sum()
        };
        let of_window = |wanted: u64| sum(&|at: Timestamp| at.window_index(window) == wanted);
        match self.algorithm {
            Algorithm::FixedWindow => of_window(index),
            Algorithm::SlidingWindow => {
                let left = window.0.saturating_sub(now.since(begun).0);
                let before = u128::from(of_window(index.saturating_sub(1))) * u128::from(left);
                let fading = u64::try_from(before / u128::from(window.0.max(1))).unwrap_or(u64::MAX);
                of_window(index) + fading
            }
            Algorithm::SlidingLog => sum(&|at: Timestamp| now.since(at) < window),
            _ => crate::number::whole(self.level_at(now).ceil()),
        }
    }

    /// Permits above the limit. Each region rounds a fading part down by itself.
    pub(super) fn above(&self, now: Timestamp, regions: u64) -> u64 {
        let rounding = if self.algorithm == Algorithm::SlidingWindow { regions.saturating_sub(1) } else { 0 };
        // A level that has just risen to its capacity by whole permits may lie a breath above it.
        let used = match windowed(self.algorithm) {
            true => self.used(now),
            false => crate::number::whole((self.level_at(now) - 1e-3).max(0.0).ceil()),
        };
        used.saturating_sub(self.capacity().saturating_add(rounding))
    }

    /// Returns whether the world had room for a cost that was refused.
    pub(super) fn has_room(&self, now: Timestamp, cost: u64) -> bool {
        self.used(now).saturating_add(cost) <= self.capacity()
    }

    /// Returns whether more than a tenth of the limit was free when it was refused.
    pub(super) fn has_a_tenth(&self, now: Timestamp, cost: u64) -> bool {
        let free = self.capacity().saturating_sub(self.used(now));
        self.has_room(now, cost) && free.saturating_sub(cost) > self.capacity() / 10
    }

    /// Returns whether the first request of a region finds its cost there under `escrow`: a part of the slice
    /// that each keeps of a fixed window.
    pub(super) fn leaves_a_slice(&self, now: Timestamp, cost: u64, regions: u64) -> bool {
        let free = self.capacity().saturating_sub(self.used(now));
        let window = self.limit.window;
        let ends = Timestamp::window_start(now.window_index(window).saturating_add(1), window);
        self.algorithm == Algorithm::FixedWindow
            && ends.since(now) > LAST_RIGHTS
            && free.saturating_sub(cost) > (self.capacity() / 10).max(regions)
            && cost <= (free / 20 / regions.max(1)).max(1)
    }
}

/// Returns whether what a refusal says of when to come back cannot be true, as far as that is seen at once.
pub(super) fn says_too_long(truth: &TrueUse, now: Timestamp, cost: u64, retry: Option<Span>) -> bool {
    truth.has_room(now, cost) && retry.is_none_or(|retry| retry > ROUND_TRIP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth(algorithm: Algorithm) -> TrueUse {
        let limit = Limit { calendar: None, permits: 10, window: Span::from_secs(60), burst: 10, queue: 0 };
        TrueUse::new(algorithm, limit)
    }

    const BEGUN: Timestamp = Timestamp(1_700_002_800_000_000);

    fn after(seconds: u64) -> Timestamp {
        BEGUN + Span::from_secs(seconds)
    }

    #[test]
    fn a_refusal_is_false_while_the_world_has_room_and_true_when_it_has_none() {
        for algorithm in Algorithm::OF_COSTS {
            let mut truth = truth(algorithm);
            truth.admit(after(1), 9);
            assert!(truth.has_room(after(1), 1) && !truth.has_a_tenth(after(1), 1), "{algorithm:?}");
            assert!(!truth.has_room(after(1), 2), "{algorithm:?}");
            truth.admit(after(1), 1);
            assert!(!truth.has_room(after(1), 1), "{algorithm:?}");
            assert_eq!(truth.above(after(1), 3), 0, "{algorithm:?}");
            truth.admit(after(1), 4);
            assert!(truth.above(after(1), 1) > 0, "{algorithm:?}");
        }
        assert!(!truth(Algorithm::FixedWindow).has_room(BEGUN, 11), "more than can ever pass");
    }

    #[test]
    fn a_slice_is_left_of_a_fixed_window_that_lasts_while_more_than_a_tenth_is_free() {
        let leaves = |algorithm: Algorithm, used: u64, seconds: u64, cost: u64| {
            let mut truth = truth(algorithm);
            truth.admit(after(1), used);
            truth.leaves_a_slice(after(seconds), cost, 3)
        };
        let fixed = Algorithm::FixedWindow;
        assert!(leaves(fixed, 5, 2, 1));
        assert!(!leaves(fixed, 5, 2, 2) && !leaves(fixed, 6, 2, 1) && !leaves(fixed, 5, 56, 1));
        assert!(!leaves(Algorithm::SlidingLog, 5, 2, 1));
    }

    #[test]
    fn use_ends_as_each_algorithm_says() {
        let used = |algorithm: Algorithm, seconds: u64| {
            let mut truth = truth(algorithm);
            truth.admit(after(30), 10);
            truth.used(after(seconds))
        };
        assert_eq!([59, 60].map(|at| used(Algorithm::FixedWindow, at)), [10, 0]);
        assert_eq!([60, 90, 119].map(|at| used(Algorithm::SlidingWindow, at)), [10, 5, 0]);
        assert_eq!([89, 90].map(|at| used(Algorithm::SlidingLog, at)), [10, 0]);
        assert_eq!([36, 89, 90].map(|at| used(Algorithm::Gcra, at)), [9, 1, 0]);
    }

    #[test]
    fn a_long_wait_is_untrue_only_while_the_world_has_room() {
        let mut truth = truth(Algorithm::FixedWindow);
        truth.admit(after(1), 5);
        let long =
            |cost: u64, retry: Option<u64>| says_too_long(&truth, after(2), cost, retry.map(Span::from_secs));
        assert_eq!(
            [long(5, Some(58)), long(5, None), long(5, Some(1)), long(6, Some(58))],
            [true, true, false, false]
        );
    }
}
