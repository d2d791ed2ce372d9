//! What a run was like: admitted against the limit, window by window.

use std::collections::BTreeMap;

/// Counts what was asked and admitted in each window of true time.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    windows: BTreeMap<u64, Window>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    asked: u64,
    admitted: u64,
    wrongly_refused: u64,
}

/// The figures of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Figures {
    /// Worst window above the limit, in percent.
    pub(crate) over_max: f64,
    /// Mean over all windows, clipped at zero.
    pub(crate) over_mean: f64,
    /// What was admitted of what could have been.
    pub(crate) used: f64,
    /// The same in the worst window.
    pub(crate) used_min: f64,
    /// Requests refused although the world had permits left, in percent of all requests.
    pub(crate) wrongly_refused: f64,
}

/// One bucket for all the world, which a perfect limiter would have kept: what was admitted is held against it.
#[derive(Debug)]
pub(crate) struct Bucket {
    burst: f64,
    per_ms: f64,
    /// What is left of it; below zero is debt.
    level: f64,
    /// What a bucket that may refuse would have left.
    kept: f64,
    at: u64,
    deepest: f64,
    admitted: f64,
    possible: f64,
}

impl Bucket {
    pub(crate) fn full(permits: u32, window_ms: f64) -> Self {
        let burst = f64::from(permits);
        let (level, kept) = (burst, burst);
        let per_ms = burst / window_ms;
        Self { burst, per_ms, level, kept, at: 0, deepest: 0.0, admitted: 0.0, possible: 0.0 }
    }

    #[expect(clippy::cast_precision_loss, reason = "runs are short")]
    pub(crate) fn note(&mut self, at_ms: u64, admitted: bool) {
        let refilled = (at_ms - self.at) as f64 * self.per_ms;
        self.at = at_ms;
        self.level = (self.level + refilled).min(self.burst);
        self.kept = (self.kept + refilled).min(self.burst);
        if admitted {
            self.level -= 1.0;
            self.admitted += 1.0;
            // The first two windows are not measured: the daemons still get to know each other.
            if at_ms as f64 > 2.0 * self.burst / self.per_ms {
                self.deepest = self.deepest.max(-self.level);
            }
        }
        if self.kept >= 1.0 {
            self.kept -= 1.0;
            self.possible += 1.0;
        }
    }

    /// The deepest debt in percent of the burst, how far the run exceeded the rate, and what was used of what a central
    /// bucket would have admitted.
    #[expect(clippy::cast_precision_loss, reason = "runs are short")]
    pub(crate) fn figures(&self, until_ms: u64) -> Figures {
        let most = self.burst + until_ms as f64 * self.per_ms;
        let used =
            if self.possible > 0.0 { (self.admitted / self.possible * 100.0).min(100.0) } else { 100.0 };
        Figures {
            over_max: self.deepest / self.burst * 100.0,
            over_mean: (self.admitted / most - 1.0).max(0.0) * 100.0,
            used,
            used_min: used,
            wrongly_refused: 0.0,
        }
    }
}

impl Measure {
    pub(crate) fn note(&mut self, window: u64, limit: u32, admitted: bool) {
        let counts = self.windows.entry(window).or_default();
        counts.asked += 1;
        counts.admitted += u64::from(admitted);
        counts.wrongly_refused += u64::from(!admitted && counts.admitted < u64::from(limit));
    }

    /// The figures from window `first` until before window `end`.
    #[expect(clippy::cast_precision_loss, reason = "counts of a simulation are far below 2^52")]
    pub(crate) fn figures(&self, first: u64, end: u64, limit: u32) -> Figures {
        let mut figures = Figures { used_min: 100.0, ..Figures::default() };
        let limit = f64::from(limit);
        let (mut could, mut did, mut asked, mut wrong) = (0.0, 0.0, 0.0, 0.0);
        let mut windows = 0.0_f64;
        for index in first..end {
            let window = self.windows.get(&index).copied().unwrap_or_default();
            let over = (window.admitted as f64 / limit - 1.0).max(0.0) * 100.0;
            figures.over_max = figures.over_max.max(over);
            figures.over_mean += over;
            let possible = (window.asked as f64).min(limit);
            let done = (window.admitted as f64).min(possible);
            if possible > 0.0 {
                figures.used_min = figures.used_min.min(done / possible * 100.0);
            }
            (could, did) = (could + possible, did + done);
            (asked, wrong) = (asked + window.asked as f64, wrong + window.wrongly_refused as f64);
            windows += 1.0;
        }
        figures.over_mean /= windows.max(1.0);
        figures.used = if could > 0.0 { did / could * 100.0 } else { 100.0 };
        figures.wrongly_refused = if asked > 0.0 { wrong / asked * 100.0 } else { 0.0 };
        figures
    }
}
