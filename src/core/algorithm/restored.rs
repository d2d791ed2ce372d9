//! A bucket of a store that forgot a part of it, once the store is told what its region had used.
//!
//! A bucket is only ever raised, so it does not matter how often the store is told, nor by whom.

use super::{Limit, State};
use crate::time::Timestamp;

/// Permits that one region used of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegionUse {
    /// The window that they were used in; zero of a level.
    pub window: u64,
    /// Permits used in that window; of a log and of a level, those in use now.
    pub used: u64,
    /// Permits used in the window before: of a `sliding_window`.
    pub before: u64,
}

impl State {
    /// Counts as at least so much used. A window that is over, or has not begun by the store's clock, is left
    /// as it is.
    pub fn restore(&mut self, limit: &Limit, now: Timestamp, known: &RegionUse) {
        match self {
            Self::FixedWindow(one) => one.restore(limit, now, known),
            Self::SlidingWindow(one) => one.restore(limit, now, known),
            Self::SlidingLog(one) => one.restore(limit, now, known),
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::Gcra(_) => self.raise(limit, now, known.used),
            Self::Concurrency(_) => {}
        }
    }

    /// What is used of it, as another store can be told.
    #[must_use]
    pub fn region_use(&self, limit: &Limit, now: Timestamp) -> RegionUse {
        match self {
            Self::SlidingWindow(one) => one.region_use(limit, now),
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::Gcra(_) | Self::Concurrency(_) => {
                RegionUse { used: self.used(limit, now), ..RegionUse::default() }
            }
            Self::FixedWindow(_) | Self::SlidingLog(_) => {
                RegionUse { window: self.window_at(limit, now), used: self.used(limit, now), before: 0 }
            }
        }
    }

    /// The newest instant that the bucket has seen. It never goes back, so a store that shows an older one
    /// has forgotten something. Places keep none.
    #[must_use]
    pub fn newest(&self) -> Option<Timestamp> {
        match self {
            Self::FixedWindow(one) => Some(one.newest()),
            Self::SlidingWindow(one) => Some(one.newest()),
            Self::SlidingLog(one) => Some(one.newest()),
            Self::TokenBucket(one) => Some(one.newest()),
            Self::LeakyBucket(one) => Some(one.newest()),
            Self::Gcra(one) => Some(one.newest()),
            Self::Concurrency(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::time::Span;

    const LIMIT: Limit =
        Limit { calendar: None, permits: 100, window: Span::from_secs(60), burst: 100, queue: 0 };
    const NOW: Timestamp = Timestamp(1_700_000_040_000_000);

    #[test]
    fn a_store_that_forgot_counts_what_its_region_had_used_and_never_less_than_it_counts_itself() {
        for algorithm in Algorithm::OF_COSTS {
            let mut before = State::new(algorithm);
            before.take(&LIMIT, NOW, 70);
            let known = before.region_use(&LIMIT, NOW);
            let mut fresh = State::new(algorithm);
            fresh.take(&LIMIT, NOW, 5);
            fresh.restore(&LIMIT, NOW, &known);
            assert_eq!(fresh.used(&LIMIT, NOW), 70, "{algorithm:?}");
            fresh.restore(&LIMIT, NOW, &known);
            assert_eq!(fresh.used(&LIMIT, NOW), 70, "{algorithm:?}: once more");
            fresh.take(&LIMIT, NOW, 20);
            fresh.restore(&LIMIT, NOW, &known);
            assert_eq!(fresh.used(&LIMIT, NOW), 90, "{algorithm:?}: it counts more itself");
        }
    }

    #[test]
    fn a_window_that_is_over_uses_nothing_of_the_next_one() {
        let later = NOW + LIMIT.window + LIMIT.window;
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
            let mut before = State::new(algorithm);
            before.take(&LIMIT, NOW, 70);
            let known = before.region_use(&LIMIT, NOW);
            let mut fresh = State::new(algorithm);
            fresh.restore(&LIMIT, later, &known);
            assert_eq!(fresh.used(&LIMIT, later), 0, "{algorithm:?}");
        }
    }

    #[test]
    fn the_window_before_fades_as_if_it_had_never_been_forgotten() {
        let (later, end) = (NOW + Span::from_secs(45), NOW + LIMIT.window);
        let mut before = State::new(Algorithm::SlidingWindow);
        before.take(&LIMIT, NOW, 70);
        before.take(&LIMIT, later, 10);
        for (told, shown) in [(NOW, later), (later, later), (later, end)] {
            let mut fresh = State::new(Algorithm::SlidingWindow);
            let mut whole = State::new(Algorithm::SlidingWindow);
            whole.take(&LIMIT, NOW, 70);
            if told == later {
                whole.take(&LIMIT, later, 10);
            }
            fresh.restore(&LIMIT, shown, &whole.region_use(&LIMIT, told));
            assert_eq!(fresh.used(&LIMIT, shown), whole.used(&LIMIT, shown), "{told:?} {shown:?}");
        }
    }
}
