//! A circuit breaker: asks nothing of a node that does not answer, and finds out with few probes when it does
//! again.
//!
//! A pure state machine: time is an argument, counted from any fixed start.

use std::time::Duration;

/// Outcomes remembered.
const REMEMBERED: u32 = 20;
/// Failures among them that open it.
const FAILURES_MAX: u32 = 10;
/// Failures in a row that open it.
const IN_A_ROW_MAX: u32 = 4;
/// Probes under way at once while half open.
const PROBES_MAX: u32 = 2;
/// Successes in a row that close it.
const SUCCESSES_MIN: u32 = 3;
/// Time for which it stays open at least; doubled each time a probe fails.
const OPEN_MIN: Duration = Duration::from_millis(50);
/// Time for which it stays open at most before the next probe.
const OPEN_MAX: Duration = Duration::from_millis(500);

/// The state of the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Phase {
    /// Asks.
    Closed,
    /// Asks a little.
    HalfOpen,
    /// Does not ask.
    Open,
}

/// One node's breaker.
#[derive(Debug)]
pub(in crate::store::redis) struct Breaker {
    phase: Phase,
    /// One bit an outcome, newest lowest; set: failed.
    history: u32,
    until: Duration,
    wait: Duration,
    probes: u32,
    successes: u32,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            phase: Phase::Closed,
            history: 0,
            until: Duration::ZERO,
            wait: OPEN_MIN,
            probes: 0,
            successes: 0,
        }
    }
}

impl Breaker {
    /// Returns where it stands at `now`.
    pub(in crate::store::redis) fn phase(&self, now: Duration) -> Phase {
        match self.phase {
            Phase::Open if now >= self.until => Phase::HalfOpen,
            phase => phase,
        }
    }

    /// True if one more call may be made. Each that is let through must be told of with [`Self::ended`].
    pub(in crate::store::redis) fn admit(&mut self, now: Duration) -> bool {
        if self.phase == Phase::Open && now >= self.until {
            self.phase = Phase::HalfOpen;
            self.probes = 0;
            self.successes = 0;
        }
        match self.phase {
            Phase::Closed => true,
            Phase::Open => false,
            Phase::HalfOpen if self.probes < PROBES_MAX => {
                self.probes += 1;
                true
            }
            Phase::HalfOpen => false,
        }
    }

    /// Takes in how a call ended; `None` if nobody waited for that. Says whether this opened it.
    pub(in crate::store::redis) fn ended(&mut self, success: Option<bool>, now: Duration) -> bool {
        self.probes = self.probes.saturating_sub(1);
        let Some(success) = success else { return false };
        match (self.phase, success) {
            (Phase::HalfOpen, true) => {
                self.successes += 1;
                if self.successes >= SUCCESSES_MIN {
                    *self = Self::default();
                }
                false
            }
            (Phase::HalfOpen, false) => {
                self.wait = (self.wait * 2).min(OPEN_MAX);
                self.open(now);
                true
            }
            (Phase::Closed, _) => {
                self.history = (self.history << 1 | u32::from(!success)) & ((1 << REMEMBERED) - 1);
                let in_a_row = self.history.trailing_ones() >= IN_A_ROW_MAX;
                let opens = in_a_row || self.history.count_ones() >= FAILURES_MAX;
                if opens {
                    self.open(now);
                }
                opens
            }
            // A straggler from before it opened.
            (Phase::Open, _) => false,
        }
    }

    /// Opens it at once: the connection is gone.
    pub(in crate::store::redis) fn open(&mut self, now: Duration) {
        self.phase = Phase::Open;
        self.until = now + self.wait;
        self.history = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..IN_A_ROW_MAX {
            assert!(breaker.admit(ms(0)));
            breaker.ended(Some(false), ms(0));
        }
        breaker
    }

    #[test]
    fn a_few_failures_in_a_row_open_it() {
        let mut breaker = opened();
        assert_eq!(breaker.phase(ms(1)), Phase::Open);
        assert!(!breaker.admit(ms(1)));
    }

    #[test]
    fn half_of_the_calls_failing_open_it() {
        let mut breaker = Breaker::default();
        let opened = (0..40).any(|turn| breaker.ended(Some(turn % 2 == 0), ms(turn)));
        assert!(opened);
    }

    #[test]
    fn single_failures_do_not_open_it() {
        let mut breaker = Breaker::default();
        assert!(!(0..1_000).any(|turn| breaker.ended(Some(turn % 5 != 0), ms(turn))));
    }

    #[test]
    fn half_open_it_lets_only_few_probes_through() {
        let mut breaker = opened();
        let let_through = (0..100).filter(|_| breaker.admit(ms(100))).count();
        assert_eq!(let_through, 2);
        assert_eq!(breaker.phase(ms(100)), Phase::HalfOpen);
    }

    #[test]
    fn successful_probes_close_it() {
        let mut breaker = opened();
        for _ in 0..SUCCESSES_MIN {
            assert!(breaker.admit(ms(100)));
            breaker.ended(Some(true), ms(100));
        }
        assert_eq!(breaker.phase(ms(100)), Phase::Closed);
    }

    #[test]
    fn a_failed_probe_opens_it_for_longer_up_to_a_bound() {
        let mut breaker = opened();
        let mut now = ms(50);
        let mut waits = Vec::new();
        for _ in 0..6 {
            assert!(breaker.admit(now));
            assert!(breaker.ended(Some(false), now));
            let until =
                (1..2_000).map(|more| now + ms(more)).find(|at| breaker.phase(*at) == Phase::HalfOpen);
            let until = until.expect("it opens some time");
            waits.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(waits, [100, 200, 400, 500, 500, 500]);
    }

    #[test]
    fn a_probe_that_nobody_waited_for_gives_its_place_back() {
        let mut breaker = opened();
        assert!(breaker.admit(ms(100)) && breaker.admit(ms(100)) && !breaker.admit(ms(100)));
        breaker.ended(None, ms(100));
        assert!(breaker.admit(ms(100)));
    }
}
