//! The demand for one bucket: a smoothed rate that jumps when the demand does.
//!
//! A slow average is told to others; a fast one beside it notices when the two differ by more than chance,
//! and then the slow one takes the fast one's value. Without the jump every onset would be believed seconds
//! too late. A third one between the two notices smaller changes, less soon: a demand that rises and falls
//! all the time is followed by it.

use super::super::time::{Span, Timestamp};

/// Millionths in a whole, and microseconds in a second.
const MILLION: u128 = 1_000_000;

/// Requests are told of in batches as far apart as this.
const TOLD_EVERY: Span = Span::from_millis(20);

/// After this long without any request a demand is taken to have ended.
const ENDED: Span = Span::from_secs(1);

/// Estimates permits asked for, per second, in millionths.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    slow: u64,
    middle: u64,
    fast: u64,
    slow_span: Span,
    middle_span: Span,
    fast_span: Span,
    /// After this long without any request nothing is asked for any more.
    silence_max: Span,
    /// Permits that the dearest request of late asked for: chance keeps whole requests back.
    cost: u64,
    at: Timestamp,
    last: Option<Timestamp>,
}

impl Demand {
    pub(super) fn new(window: Span, permits: u32) -> Self {
        let cautious = 20 * window.0.min(u64::MAX / 20) / u64::from(permits.max(1));
        let slow_span = Span((window.0 / 2).clamp(200_000, cautious.max(2_000_000)));
        let fast_span = Span((slow_span.0 / 10).max(20_000));
        let middle_span = Span((slow_span.0 / 10 * 3).max(60_000));
        let silence_max = Span(window.0.saturating_mul(2));
        let at = Timestamp::default();
        Self {
            slow: 0,
            middle: 0,
            fast: 0,
            slow_span,
            middle_span,
            fast_span,
            silence_max,
            cost: 1,
            at,
            last: None,
        }
    }

    /// `permits` were asked for since the last call, at most `largest` by one request.
    pub(super) fn offered(&mut self, now: Timestamp, permits: u64, largest: u64) {
        let step = now.since(self.at);
        self.at = self.at.max(now);
        let average = |rate, span| faded(rate, step, span).saturating_add(part(permits, span));
        self.slow = average(self.slow, self.slow_span);
        self.middle = average(self.middle, self.middle_span);
        self.fast = average(self.fast, self.fast_span);
        if permits > 0 {
            self.last = Some(now);
            self.cost = largest.max(self.cost - self.cost.div_ceil(8)).max(1);
        }
        if self.differs(self.fast, self.fast_span, 30) {
            (self.slow, self.middle) = (self.fast, self.fast);
        } else if self.differs(self.middle, self.middle_span, 25) {
            self.slow = self.middle;
        }
    }

    /// True if an average over `span` is more than so many tenths of a standard deviation away from the slow
    /// one.
    fn differs(&self, average: u64, span: Span, tenths: u64) -> bool {
        let larger = self.slow.max(average).max(part(self.cost, span));
        average.abs_diff(self.slow) > noise(larger, self.cost, span).saturating_mul(tenths) / 10
    }

    /// The rate at `now`.
    pub(super) fn at(&self, now: Timestamp) -> u64 {
        let Some(last) = self.last else { return 0 };
        let silent = now.since(last);
        if silent > self.silence_max.max(Span::from_millis(400)) {
            return 0;
        }
        let rate = faded(self.slow, now.since(self.at), self.slow_span);
        let unheard = silent.0.saturating_sub(TOLD_EVERY.0);
        if unheard == 0 {
            return rate;
        }
        // Were it faster than this, chance would hardly (5 %) have kept three requests back.
        let at_most = 3 * u128::from(self.cost) * MILLION * MILLION / u128::from(unheard);
        rate.min(u64::try_from(at_most).unwrap_or(u64::MAX))
    }

    /// Returns when its last request is so long ago that it is taken to have ended; `None` before the first.
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        self.last.map(|last| last + ENDED)
    }

    /// By how much chance alone moves an estimate of `rate` (one standard deviation).
    pub(super) fn noise(&self, rate: u64) -> u64 {
        noise(rate, self.cost, self.slow_span)
    }
}

/// One permit's part of the average.
fn part(permits: u64, span: Span) -> u64 {
    u64::try_from(u128::from(permits) * MILLION * MILLION / u128::from(span.0.max(1))).unwrap_or(u64::MAX)
}

/// `rate` after `step` without requests: an exponential, by steps of at most a quarter of the span.
fn faded(rate: u64, step: Span, span: Span) -> u64 {
    if step.0 > span.0.saturating_mul(32) {
        return 0;
    }
    let quarter = (span.0 / 4).max(1);
    let (mut left, mut rate) = (step.0, u128::from(rate));
    while left > 0 && rate > 0 {
        let part = u128::from(left.min(quarter));
        let span = u128::from(span.0.max(1));
        // 1 - x + x²/2 is within 0.3 % of the exponential up to a quarter.
        rate = rate * (2 * span * span - 2 * part * span + part * part) / (2 * span * span);
        left -= left.min(quarter);
    }
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Standard deviation of an average over `span` of Poisson arrivals at `rate`, each of which asks for `cost`
/// permits.
fn noise(rate: u64, cost: u64, span: Span) -> u64 {
    let squared = u128::from(rate).saturating_mul(u128::from(cost)).saturating_mul(MILLION * MILLION);
    let variance = squared / (2 * u128::from(span.0.max(1)));
    u64::try_from(variance.isqrt()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    /// Feeds `per_tick` requests every 10 ms for `ticks`; returns the time after it.
    fn feed(demand: &mut Demand, mut now: Timestamp, ticks: u64, per_tick: u64) -> Timestamp {
        for _ in 0..ticks {
            now = now + Span::from_millis(10);
            demand.offered(now, per_tick, 1);
        }
        now
    }

    #[test]
    fn of_requests_that_cost_much_no_more_silence_is_believed_than_of_those_that_cost_one() {
        let mut demand = Demand::new(SECOND, 10_000);
        let mut now = Timestamp(1_000_000_000);
        // 25 requests a second, of 1,000 permits each.
        for _ in 0..100 {
            now = now + Span::from_millis(40);
            demand.offered(now, 1_000, 1_000);
        }
        for silent in [0, 25, 39] {
            let rate = demand.at(now + Span::from_millis(silent)) / 1_000_000;
            assert!((20_000..32_000).contains(&rate), "{rate} a second after {silent} ms");
        }
        assert!(demand.at(now + Span::from_millis(400)) < 8_000_000_000, "three requests would have come");
    }

    #[test]
    fn a_demand_of_millions_is_told_whole() {
        let mut demand = Demand::new(SECOND, 1_000_000);
        let now = feed(&mut demand, Timestamp(1_000_000_000), 500, 50_000);
        let rate = demand.at(now) / 1_000_000;
        assert!((4_900_000..5_600_000).contains(&rate), "{rate} a second");
    }

    #[test]
    fn a_steady_demand_is_found() {
        let mut demand = Demand::new(SECOND, 100);
        let now = feed(&mut demand, Timestamp(1_000_000_000), 500, 3);
        let rate = demand.at(now);
        assert!((290_000_000..320_000_000).contains(&rate), "{rate}");
    }

    #[test]
    fn an_onset_is_half_believed_within_fifty_milliseconds() {
        let mut demand = Demand::new(SECOND, 100);
        let now = feed(&mut demand, Timestamp(1_000_000_000), 5, 10);
        assert!(demand.at(now) > 500_000_000, "{}", demand.at(now));
    }

    #[test]
    fn between_two_batches_nothing_is_silent() {
        let mut demand = Demand::new(SECOND, 100);
        let now = feed(&mut demand, Timestamp(1_000_000_000), 500, 30);
        assert!(demand.at(now + Span::from_millis(10)) > 2_500_000_000);
    }

    #[test]
    fn a_fall_by_a_third_is_believed_within_a_quarter_of_a_second() {
        let mut demand = Demand::new(SECOND, 1_000);
        let now = feed(&mut demand, Timestamp(1_000_000_000), 500, 20);
        let now = feed(&mut demand, now, 25, 13);
        assert!(demand.at(now) < 1_650_000_000, "{}", demand.at(now));
    }

    #[test]
    fn silence_is_believed_too() {
        let mut demand = Demand::new(SECOND, 100);
        let now = feed(&mut demand, Timestamp(1_000_000_000), 500, 3);
        assert!(demand.at(now + SECOND) <= 5_000_000);
        assert_eq!(demand.at(now + Span::from_secs(3)), 0);
    }

    #[test]
    fn no_amount_overflows() {
        let mut demand = Demand::new(Span(10_000), u32::MAX);
        for step in [0, 1, 10, u64::MAX / 2] {
            demand.offered(Timestamp(step), u64::MAX, u64::MAX);
            let _ = demand.at(Timestamp(u64::MAX));
        }
    }
}
