//! Clocks that are off.

use tidegate_core::time::Timestamp;

/// A region's clock, which may be off true time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    /// Microseconds.
    pub(crate) ahead: i64,
    /// Millionths by which it runs fast, from `runs_since` on.
    drift_ppm: i64,
    runs_since: Timestamp,
}

impl Clock {
    /// One that is `ahead` microseconds at `runs_since`, and runs so many millionths fast from then on.
    pub(crate) const fn new(ahead: i64, drift_ppm: i64, runs_since: Timestamp) -> Self {
        Self { ahead, drift_ppm, runs_since }
    }

    /// The time that it shows.
    pub(crate) fn read(self, now: Timestamp) -> Timestamp {
        let run = i64::try_from(now.since(self.runs_since).0).unwrap_or(i64::MAX);
        let off = self.ahead.saturating_add(run.saturating_mul(self.drift_ppm) / 1_000_000);
        Timestamp(now.0.saturating_add_signed(off))
    }
}
