//! The demand of the demo: nearly all of it is in one region, and after a while in the next.
//!
//! Demand that is the same everywhere would make all ways of holding a limit look alike: fixed shares are the
//! right ones then.

use crate::core::time::{Span, Timestamp};

/// The part of the demand that comes to the busy region; the others have the rest in equal parts.
const BUSY: f64 = 0.95;
/// Windows for which one region is the busy one, within these bounds: a change is to be seen, and to be
/// waited for.
const STAY_WINDOWS: u64 = 5;
const STAY_MIN: Span = Span::from_secs(2);
const STAY_MAX: Span = Span::from_secs(20);

/// The demand on all regions. All that it says follows from the clock, so that regions agree on it without
/// being told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    rate: f64,
    regions: u64,
    stay: Span,
}

impl Demand {
    /// `load` times `limit` in every `window` over so many regions.
    pub(super) fn new(limit: u32, window: Span, load: f64, regions: u8) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a rate is a float")]
        let rate = f64::from(limit) * load * 1e6 / window.micros().max(1) as f64;
        let stay = Span(window.micros().saturating_mul(STAY_WINDOWS)).clamp(STAY_MIN, STAY_MAX);
        Self { rate, regions: u64::from(regions.max(1)), stay }
    }

    /// For how long a region is the busy one.
    pub(super) const fn stay(&self) -> Span {
        self.stay
    }

    /// Requests per second on the region at this place at an instant.
    pub(super) fn rate(&self, place: u64, now: Timestamp) -> f64 {
        if now.window_index(self.stay) % self.regions == place {
            return self.rate * BUSY;
        }
        #[expect(clippy::cast_precision_loss, reason = "at most 255 regions")]
        let others = self.regions.saturating_sub(1).max(1) as f64;
        self.rate * (1.0 - BUSY) / others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(demand: &Demand, at: Span) -> Vec<f64> {
        (0..demand.regions).map(|place| demand.rate(place, Timestamp(at.0))).collect()
    }

    #[test]
    fn every_region_is_the_busy_one_in_its_turn_and_the_sum_stays() {
        let demand = Demand::new(100, Span::from_secs(1), 3.0, 3);
        assert_eq!(demand.stay(), Span::from_secs(5));
        for (seconds, busy) in [(0, 0), (4, 0), (5, 1), (10, 2), (15, 0)] {
            let rates = rates(&demand, Span::from_secs(seconds));
            for (place, rate) in rates.iter().enumerate() {
                let expected = if place == busy { 285.0 } else { 7.5 };
                assert!((rate - expected).abs() < 1e-6, "{seconds} s, {place}: {rate}");
            }
        }
    }

    #[test]
    fn short_and_long_windows_move_at_a_pace_for_people() {
        for (window, stay) in [(100, 2_000), (400, 2_000), (1_000, 5_000), (60_000, 20_000)] {
            let demand = Demand::new(100, Span::from_millis(window), 3.0, 3);
            assert_eq!(demand.stay(), Span::from_millis(stay), "{window} ms");
        }
    }
}
