//! Decisions of a client while no daemon answers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::answer::Decision;
use crate::error::{Away, BuildError};

/// The decision while no daemon answers within the deadline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenAway {
    /// Every request passes.
    #[default]
    Open,
    /// None passes; the status is 503.
    Closed,
    /// This client lets `limit` of cost pass in each `window`, all that ask it together: its process's own
    /// share.
    LocalShare {
        /// The cost that passes at once, and in each window.
        limit: u64,
        /// The time in which as much comes back.
        window: Duration,
    },
    /// The call fails with [`Error::Away`](crate::Error::Away).
    Fail,
}

/// The same, with the state of the share.
#[derive(Debug)]
pub(crate) enum Policy {
    Open,
    Closed,
    Share(Mutex<Share>),
    Fail,
}

impl Policy {
    pub(crate) fn new(when_away: WhenAway) -> Result<Self, BuildError> {
        Ok(match when_away {
            WhenAway::Open => Self::Open,
            WhenAway::Closed => Self::Closed,
            WhenAway::Fail => Self::Fail,
            WhenAway::LocalShare { limit, window } if limit == 0 || window.is_zero() => {
                return Err(BuildError::LocalShare { limit, window });
            }
            WhenAway::LocalShare { limit, window } => Self::Share(Mutex::new(Share::new(limit, window))),
        })
    }

    /// Returns what is answered in the daemon's place, or the reason why nobody answers.
    pub(crate) fn decide(&self, cost: i64, away: &Away) -> Result<Decision, Away> {
        Ok(match self {
            Self::Open => Decision::passed_here(cost),
            Self::Closed => {
                Decision::refused_here(cost, 503, "no rate limiter answers", Some(Duration::from_secs(1)))
            }
            Self::Share(share) => {
                let mut share = share.lock().unwrap_or_else(PoisonError::into_inner);
                match share.take(Instant::now(), cost) {
                    Ok(()) => Decision::passed_here(cost),
                    Err(wait) => Decision::refused_here(cost, 429, SHARE_USED, wait),
                }
            }
            Self::Fail => return Err(away.clone()),
        })
    }
}

const SHARE_USED: &str = "no rate limiter answers, and the local share is used up";

/// One bucket for all that a client asks: a few numbers, however many users there are.
#[derive(Debug)]
pub(crate) struct Share {
    limit: f64,
    per_second: f64,
    left: f64,
    seen: Option<Instant>,
}

impl Share {
    fn new(limit: u64, window: Duration) -> Self {
        let limit = limit as f64;
        Self { limit, per_second: limit / window.as_secs_f64(), left: limit, seen: None }
    }

    /// Takes a cost, or says after which time it can be taken; `None` where it never can.
    fn take(&mut self, now: Instant, cost: i64) -> Result<(), Option<Duration>> {
        let passed = self.seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
        self.seen = Some(now);
        self.left = (self.left + passed.as_secs_f64() * self.per_second).min(self.limit);
        let cost = cost as f64;
        if cost <= self.left {
            self.left = (self.left - cost).min(self.limit);
            return Ok(());
        }
        if cost > self.limit {
            return Err(None);
        }
        let wait = (cost - self.left) / self.per_second;
        // A millisecond more, so that who waits is not early by what a rounding lost.
        let wait = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
        Err(Some(wait.saturating_add(Duration::from_millis(1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_share_is_held_and_refills() {
        let (mut share, mut now) = (Share::new(2, Duration::from_secs(10)), Instant::now());
        assert_eq!((share.take(now, 1), share.take(now, 1)), (Ok(()), Ok(())));
        let wait = share.take(now, 1).unwrap_err().unwrap();
        assert!(wait > Duration::from_secs(4) && wait < Duration::from_secs(6), "{wait:?}");
        now += wait;
        assert_eq!(share.take(now, 1), Ok(()));
        assert_eq!(share.take(now, 3), Err(None), "more than the share is never to be had");
        now += Duration::from_secs(1000);
        assert_eq!((share.take(now, -5), share.take(now, 2)), (Ok(()), Ok(())));
        assert!(share.take(now, 1).is_err(), "what is given back does not raise the share");
    }

    #[test]
    fn a_share_of_nothing_is_refused() {
        let none = WhenAway::LocalShare { limit: 0, window: Duration::from_secs(1) };
        assert!(Policy::new(none).unwrap_err().to_string().contains("more than 0"));
    }
}
