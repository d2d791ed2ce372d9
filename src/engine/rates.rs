//! Requests by time, lately: readings of what decisions count anyway. Nothing is kept of single requests.

use std::sync::{Mutex, PoisonError};

use super::Engine;
use crate::core::rates::{RateSeries, RateSpan, Rates};
use crate::core::time::Timestamp;

/// The sums by step of one engine.
#[derive(Debug)]
pub(super) struct RateReadings(Mutex<Rates>);

impl RateReadings {
    /// None yet; nothing was decided before `began`.
    pub(super) fn new(began: Timestamp) -> Self {
        Self(Mutex::new(Rates::new(began)))
    }
}

impl Engine {
    /// Reads the sums of requests. Called about once a second.
    pub fn read_rates(&self) {
        let (now, sums) = (self.now(), self.hot.requests());
        self.rates.0.lock().unwrap_or_else(PoisonError::into_inner).read(now, sums);
    }

    /// Sums by step of a span up to now, as this daemon decided.
    #[must_use]
    pub fn rates(&self, span: RateSpan) -> RateSeries {
        let now = self.now();
        self.rates.0.lock().unwrap_or_else(PoisonError::into_inner).series(span, now)
    }
}
