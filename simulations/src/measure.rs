//! The figures of a run: admitted against the limit, window by window, or against one bucket for the whole
//! world.

use std::collections::{BTreeMap, HashMap};

use tidegate::core::algorithm::{Algorithm, Limit, State};
use tidegate::core::regions::escrow::slides;
use tidegate::core::time::{Span, Timestamp};

use crate::model::shell::{limit, windowed};
use crate::model::{Ask, START};
use crate::number::{float, index, seconds};
use crate::plan::Plan;

/// Windows at the beginning that are not measured.
const SKIPPED: u64 = 2;
/// Points of a plot, at most.
const POINTS_MAX: u64 = 240;

/// The figures of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Figures {
    /// Worst window above the limit, in percent. Without windows: the deepest debt of one bucket for the
    /// whole world, in percent of its burst.
    pub(crate) over_max: f64,
    /// Mean over all windows, clipped at zero. Without windows: admitted above burst and rate over the whole
    /// run.
    pub(crate) over_mean: f64,
    /// Percentage that was admitted of what a perfect limiter would have admitted.
    pub(crate) used: f64,
    /// The same in the worst window that was asked for half the limit or more.
    pub(crate) used_min: f64,
    /// False denials: requests refused although the world had room, in percent of all requests.
    pub(crate) falsely_denied: f64,
    /// Mean delay added to an admitted request, in ms.
    pub(crate) delay: f64,
    /// Permits admitted above the limit of their window, in all.
    pub(crate) over_permits: u64,
}

/// The counts of one span of time, for plots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Point {
    /// Permits admitted, by region.
    pub(crate) admitted: Vec<u64>,
    pub(crate) asked: u64,
    /// The oldest newest knowledge of any region of any other, in seconds.
    pub(crate) lag: f64,
}

/// Counts what was asked and admitted.
#[derive(Debug)]
pub(crate) struct Measure {
    limit: Limit,
    algorithm: Algorithm,
    end: Timestamp,
    /// The limits that were in force, each since when.
    limits: Vec<(Timestamp, u32)>,
    /// By user and window.
    windows: HashMap<(u64, u64), Window>,
    levels: BTreeMap<u64, Level>,
    /// Logs of the users, if a log counts.
    logs: BTreeMap<u64, Log>,
    asked: u64,
    falsely_denied: u64,
    admitted: u64,
    delays: f64,
    point: Span,
    points: Vec<Point>,
    regions: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    asked: u64,
    /// By the clocks of those who decided.
    admitted: u64,
    /// By the true time.
    admitted_then: u64,
}

/// Debts are measured from here on: daemons that have not met do not know how long their words take.
const MET: Span = Span::from_secs(1);

/// Permits that the whole world admitted of a bucket that slides, and one for the whole world.
#[derive(Debug)]
struct Log {
    /// When each permit was admitted.
    admitted: Vec<(Timestamp, u64)>,
    /// One store that decides every request of the world, and how much it has admitted since the first
    /// windows were over.
    perfect: State,
    perfect_admitted: u64,
}

/// One bucket for the whole world, for algorithms without windows.
#[derive(Debug)]
struct Level {
    tokens: f64,
    at: Timestamp,
    debt: f64,
    admitted: u64,
    /// State of one store that would serve everybody.
    perfect: State,
    perfect_admitted: u64,
}

impl Measure {
    pub(crate) fn new(plan: &Plan) -> Self {
        let limit = limit(&plan.rule);
        let windows = plan.length.0 / limit.window.0.max(1);
        let point = if (8..=POINTS_MAX * 2).contains(&windows) {
            limit.window
        } else {
            Span((plan.length.0 / POINTS_MAX).max(plan.step.0).max(1))
        };
        Self {
            limit,
            algorithm: plan.rule.algorithm,
            end: START + plan.length,
            limits: vec![(START, limit.permits)],
            windows: HashMap::new(),
            levels: BTreeMap::new(),
            logs: BTreeMap::new(),
            asked: 0,
            falsely_denied: 0,
            admitted: 0,
            delays: 0.0,
            point,
            points: Vec::new(),
            regions: plan.regions.len(),
        }
    }

    /// The limit is another one from now on.
    pub(crate) fn limit_changed(&mut self, now: Timestamp, permits: u32) {
        self.limits.push((now, permits));
    }

    /// Returns how much of time one point of a plot stands for.
    pub(crate) const fn point_len(&self) -> Span {
        self.point
    }

    pub(crate) fn points(&self) -> &[Point] {
        // An answer may come when nobody asks any more.
        let asked = index(self.end.since(START).0.div_ceil(self.point.0.max(1)));
        self.points.get(..asked).unwrap_or(&self.points)
    }

    /// The limits that were in force, each with the seconds since the start from which on.
    pub(crate) fn limits(&self) -> Vec<(f64, u32)> {
        self.limits.iter().map(|(since, permits)| (seconds(since.since(START)), *permits)).collect()
    }

    fn point_at(&mut self, now: Timestamp) -> &mut Point {
        let at = index(now.since(START).0 / self.point.0);
        let empty = Point { admitted: vec![0; self.regions], ..Point::default() };
        if self.points.len() <= at {
            self.points.resize(at + 1, empty);
        }
        &mut self.points[at]
    }

    /// The network's lag now.
    pub(crate) fn lag(&mut self, now: Timestamp, lag: Span) {
        let point = self.point_at(now);
        point.lag = point.lag.max(seconds(lag));
    }

    /// A request came.
    pub(crate) fn asked(&mut self, now: Timestamp, ask: Ask) {
        self.point_at(now).asked += ask.cost;
        self.asked += 1;
        if windowed(self.algorithm) {
            let window = now.window_index(self.limit.window);
            self.windows.entry((ask.user, window)).or_default().asked += ask.cost;
            if slides(self.algorithm) {
                let (limit, begun, algorithm) = (self.limit, self.begun(), self.algorithm);
                let log = self.logs.entry(ask.user).or_insert_with(|| Log::new(algorithm));
                if log.perfect.check(&limit, None, now, ask.cost).admitted {
                    log.perfect.take(&limit, now, ask.cost);
                    log.perfect_admitted += if now >= begun { ask.cost } else { 0 };
                }
            }
            return;
        }
        let (limit, algorithm) = (self.limit, self.algorithm);
        let level = self.levels.entry(ask.user).or_insert_with(|| Level::new(&limit, algorithm, now));
        if level.perfect.check(&limit, None, now, ask.cost).admitted {
            level.perfect.take(&limit, now, ask.cost);
            level.perfect_admitted += ask.cost;
        }
    }

    /// It was admitted, in `window` by the clock of whoever decided, after `delay`.
    pub(crate) fn admitted(&mut self, now: Timestamp, ask: Ask, window: u64, delay: Span) {
        // A point that is a window holds what was charged to it.
        let charged = Timestamp::window_start(window, self.limit.window);
        let in_window = windowed(self.algorithm) && self.point == self.limit.window && charged >= START;
        let at = if in_window { charged } else { now };
        if let Some(count) = self.point_at(at).admitted.get_mut(ask.region) {
            *count += ask.cost;
        }
        self.admitted += ask.cost;
        self.delays += seconds(delay) * 1e3;
        if windowed(self.algorithm) {
            self.windows.entry((ask.user, window)).or_default().admitted += ask.cost;
            // A late answer was decided earlier: then the window that it was counted in tells best.
            let then = if delay == Span::ZERO { now.window_index(self.limit.window) } else { window };
            self.windows.entry((ask.user, then)).or_default().admitted_then += ask.cost;
            if slides(self.algorithm) {
                let algorithm = self.algorithm;
                let log = self.logs.entry(ask.user).or_insert_with(|| Log::new(algorithm));
                log.admitted.push((now, ask.cost));
            }
            return;
        }
        let (limit, algorithm) = (self.limit, self.algorithm);
        let level = self.levels.entry(ask.user).or_insert_with(|| Level::new(&limit, algorithm, now));
        level.refill(&limit, now);
        level.tokens -= float(ask.cost);
        if now >= START + MET {
            level.debt = level.debt.max(-level.tokens);
        }
        level.admitted += ask.cost;
    }

    /// It was refused.
    pub(crate) fn refused(&mut self, now: Timestamp, ask: Ask) {
        let free = if windowed(self.algorithm) {
            let window = now.window_index(self.limit.window);
            self.in_use(now, ask.user).saturating_add(ask.cost) <= u64::from(self.limit_of(window))
        } else {
            let limit = self.limit;
            self.levels.get_mut(&ask.user).is_none_or(|level| {
                level.refill(&limit, now);
                level.tokens >= float(ask.cost)
            })
        };
        self.falsely_denied += u64::from(free);
    }

    /// Permits that all regions together have in use of a user's windows now.
    fn in_use(&self, now: Timestamp, user: u64) -> u64 {
        let length = self.limit.window;
        let window = now.window_index(length);
        let of = |window: u64| self.windows.get(&(user, window)).map_or(0, |window| window.admitted_then);
        match self.algorithm {
            Algorithm::SlidingLog => {
                let log = self.logs.get(&user).map_or(&[][..], |log| &log.admitted);
                let counts = log.iter().rev().take_while(|(at, _)| now.since(*at) < length);
                counts.map(|(_, cost)| cost).sum()
            }
            Algorithm::SlidingWindow => {
                let left = length.0.saturating_sub(now.since(Timestamp::window_start(window, length)).0);
                let before = u128::from(of(window.saturating_sub(1))) * u128::from(left);
                let fading = u64::try_from(before / u128::from(length.0.max(1))).unwrap_or(u64::MAX);
                of(window).saturating_add(fading)
            }
            _ => of(window),
        }
    }

    /// The largest limit in force at any instant of a window.
    pub(crate) fn limit_of(&self, window: u64) -> u32 {
        let start = Timestamp::window_start(window, self.limit.window);
        let end = start + self.limit.window;
        let in_force = self.limits.iter().enumerate().filter(|(at, (since, _))| {
            *since < end && self.limits.get(at + 1).is_none_or(|(until, _)| *until > start)
        });
        in_force.map(|(_, (_, permits))| *permits).max().unwrap_or(self.limit.permits)
    }

    /// The figures of the whole run but its first windows.
    pub(crate) fn figures(&self) -> Figures {
        let mut figures = if windowed(self.algorithm) { self.of_windows() } else { self.of_levels() };
        match self.algorithm {
            Algorithm::SlidingLog => {
                (figures.over_max, figures.over_mean, figures.used) = self.of_logs();
            }
            // Of a window that slides the most that it may admit in one is what any window may.
            Algorithm::SlidingWindow => figures.used = self.of_logs().2,
            _ => {}
        }
        figures.falsely_denied = percent(float(self.falsely_denied), float(self.asked), 0.0);
        figures.delay = if self.admitted > 0 { self.delays / float(self.admitted) } else { 0.0 };
        figures
    }

    fn of_windows(&self) -> Figures {
        let mut figures = Figures { used_min: 100.0, ..Figures::default() };
        let first = START.window_index(self.limit.window) + SKIPPED;
        let end = self.end.window_index(self.limit.window);
        let (mut could, mut did, mut windows) = (0.0, 0.0, 0.0);
        // In order: sums of floats depend on it.
        let mut all: Vec<_> =
            self.windows.iter().filter(|((_, window), _)| (first..end).contains(window)).collect();
        all.sort_unstable_by_key(|(name, _)| **name);
        for ((_, index), window) in all {
            let permits = u64::from(self.limit_of(*index));
            let limit = float(permits);
            let over = (float(window.admitted) / limit - 1.0).max(0.0) * 100.0;
            figures.over_max = figures.over_max.max(over);
            figures.over_mean += over;
            figures.over_permits += window.admitted.saturating_sub(permits);
            let possible = float(window.asked).min(limit);
            let done = float(window.admitted_then).min(possible);
            if window.asked * 2 >= permits {
                figures.used_min = figures.used_min.min(percent(done, possible, 100.0));
            }
            (could, did) = (could + possible, did + done);
            windows += 1.0;
        }
        figures.over_mean /= f64::max(windows, 1.0);
        figures.used = percent(did, could, 100.0);
        figures
    }

    /// From here on it is measured.
    fn begun(&self) -> Timestamp {
        START + Span(self.limit.window.0 * SKIPPED)
    }

    /// Returns the worst and the mean above the limit, in percent, of all intervals as long as the window
    /// that end with an admission. And how much of what one bucket for the whole world would have admitted
    /// was.
    fn of_logs(&self) -> (f64, f64, f64) {
        let begun = self.begun();
        let (mut worst, mut sum, mut intervals) = (0.0_f64, 0.0, 0.0);
        let (mut did, mut could) = (0, 0);
        for log in self.logs.values() {
            let (mut first, mut held) = (0, 0);
            let measured = log.admitted.iter().filter(|(at, _)| *at >= begun).map(|(_, cost)| cost);
            did += measured.sum::<u64>().min(log.perfect_admitted);
            could += log.perfect_admitted;
            let log = &log.admitted;
            for (at, cost) in log {
                held += cost;
                while let Some((_, gone)) =
                    log.get(first).filter(|(then, _)| at.since(*then) >= self.limit.window)
                {
                    held -= gone;
                    first += 1;
                }
                if *at < begun {
                    continue;
                }
                let over = (float(held) / f64::from(self.limit.permits) - 1.0).max(0.0) * 100.0;
                worst = worst.max(over);
                (sum, intervals) = (sum + over, intervals + 1.0);
            }
        }
        (worst, sum / f64::max(intervals, 1.0), percent(float(did), float(could), 100.0))
    }

    fn of_levels(&self) -> Figures {
        let mut figures = Figures::default();
        let (mut did, mut could) = (0.0, 0.0);
        let capacity = float(u64::from(self.limit.burst));
        for level in self.levels.values() {
            // A thousandth of a permit is the reference bucket's own rounding.
            let debt = if level.debt < 1e-3 { 0.0 } else { level.debt };
            figures.over_max = figures.over_max.max(debt / capacity.max(1.0) * 100.0);
            let allowed = capacity + rate(&self.limit) * seconds(self.end.since(START));
            let over = (float(level.admitted) / allowed - 1.0).max(0.0) * 100.0;
            figures.over_mean = figures.over_mean.max(over);
            did += float(level.admitted.min(level.perfect_admitted));
            could += float(level.perfect_admitted);
        }
        figures.used = percent(did, could, 100.0);
        figures.used_min = figures.used;
        figures
    }
}

impl Log {
    fn new(algorithm: Algorithm) -> Self {
        Self { admitted: Vec::new(), perfect: State::new(algorithm), perfect_admitted: 0 }
    }
}

impl Level {
    fn new(limit: &Limit, algorithm: Algorithm, now: Timestamp) -> Self {
        Self {
            tokens: float(u64::from(limit.burst)),
            at: now,
            debt: 0.0,
            admitted: 0,
            perfect: State::new(algorithm),
            perfect_admitted: 0,
        }
    }

    fn refill(&mut self, limit: &Limit, now: Timestamp) {
        let gained = rate(limit) * seconds(now.since(self.at));
        self.at = self.at.max(now);
        self.tokens = (self.tokens + gained).min(float(u64::from(limit.burst)));
    }
}

fn rate(limit: &Limit) -> f64 {
    float(u64::from(limit.permits)) / seconds(limit.window).max(1e-6)
}

fn percent(part: f64, whole: f64, of_nothing: f64) -> f64 {
    if whole > 0.0 { part / whole * 100.0 } else { of_nothing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let text = "length = \"10s\"\n[rule]\nlimit = 10\nwindow = \"1s\"\n[demand]\npattern = \"bal2\"\n";
        crate::plan::read("s.toml", text).unwrap()
    }

    #[test]
    fn a_point_of_a_plot_holds_what_was_charged_to_its_window() {
        let mut measure = Measure::new(&plan());
        let first = START.window_index(Span::from_secs(1));
        let ask = Ask { region: 0, user: 0, cost: 1, id: 0 };
        // Asked in the second window, and counted in the first by a clock that is behind.
        let now = START + Span::from_millis(1_001);
        measure.asked(now, ask);
        measure.admitted(now, ask, first, Span::ZERO);
        let admitted: Vec<u64> = measure.points().iter().map(|point| point.admitted[0]).collect();
        assert_eq!(admitted, [1, 0]);
        assert_eq!(measure.points().iter().map(|point| point.asked).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn plots_end_when_nobody_asks_any_more_and_know_every_limit() {
        let mut measure = Measure::new(&plan());
        let ask = Ask { region: 1, user: 0, cost: 1, id: 0 };
        measure.limit_changed(START + Span::from_secs(4), 20);
        let late = START + Span::from_millis(10_001);
        measure.admitted(late, ask, late.window_index(Span::from_secs(1)), Span::ZERO);
        assert_eq!(measure.points().len(), 10);
        assert_eq!(measure.limits(), [(0.0, 10), (4.0, 20)]);
    }
}
