//! The part of a limit that is used while nothing is broken.

use std::time::Duration;

use tidegate::core::algorithm::Algorithm;

use super::{Evidence, Promise, Seen, USED, Verdict};
use crate::number::{float, index, len};
use crate::plan::Way;

/// Windows at the beginning that are not judged: regions learn where demand is.
const SKIPPED: u64 = 2;
/// Fewer windows than this show nothing.
const ENOUGH: usize = 8;
/// The longest way for which the manual gives figures.
const FARTHEST: Duration = Duration::from_millis(125);
/// The part of a window's answers that may at most take longer than that; else its daemons had too little
/// time.
const SLOW_PART: f64 = 0.02;
const SLOW: Duration = Duration::from_millis(25);

/// The permits that were asked for and admitted in a window, and how many of its answers were slow.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Use {
    pub(super) asked: u64,
    pub(super) admitted: u64,
    answers: usize,
    slow: usize,
}

impl Evidence<'_> {
    pub(super) fn limit_is_used(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "In health 95 % of the limit are used",
            manual: "In health 95 % of the limit and more are used, also where demand moves smoothly (docs/concepts/gossip.md)",
        };
        let rule = &self.plan.rule;
        let farther = Duration::from_micros(self.plan.weather.longest().0) > FARTHEST;
        let others = self.plan.demand.users > 1 || self.plan.demand.retry || self.plan.demand.pattern.jumps();
        let known = rule.algorithm == Algorithm::FixedWindow
            && self.window() >= Duration::from_secs(1)
            && !farther
            && !others;
        if self.way == Way::Split || !known || !self.told.faults.is_empty() {
            return Verdict::new(PROMISE, None);
        }
        let windows = self.windows(|_| true);
        let limit = u64::from(rule.limit);
        let (mut could, mut did, mut judged) = (0, 0, 0_usize);
        for (at, window) in windows.iter().enumerate().skip(index(SKIPPED)) {
            let from = self.window() * u32::try_from(at).unwrap_or(u32::MAX);
            // Permits that a region could not tell in time before this window are missing in it.
            let before = at.checked_sub(1).and_then(|before| windows.get(before));
            let starved = before.is_some_and(Use::is_starved)
                || window.is_starved()
                || self.stalled(Duration::ZERO, (from.saturating_sub(self.window()), from + self.window()));
            if starved || window.asked == 0 {
                continue;
            }
            judged += 1;
            could += window.asked.min(limit);
            did += window.admitted.min(limit);
        }
        let part = float(did) / float(could.max(1));
        let all = windows.len().saturating_sub(index(SKIPPED));
        let found = format!(
            "{:.2} % in {judged} of {all} windows; in the others the machine had too little time",
            part * 100.0
        );
        Verdict::new(PROMISE, (judged >= ENOUGH).then_some((part >= USED, found)))
    }

    /// Returns whether daemons had too little of the machine between two instants since the first request.
    pub(super) fn is_starved(&self, (from, until): (Duration, Duration)) -> bool {
        let mut all = Use::default();
        for seen in self.seen.iter().filter(|seen| (from..=until).contains(&self.since(seen.sent))) {
            all.count(seen);
        }
        all.is_starved()
    }

    /// The whole windows of the run, by when they were asked, of what `is_meant`.
    pub(super) fn windows(&self, is_meant: impl Fn(&Seen) -> bool) -> Vec<Use> {
        let length = Duration::from_micros(self.plan.length.0);
        let whole = usize::try_from(length.as_micros() / self.window().as_micros()).unwrap_or_default();
        let mut windows = vec![Use::default(); whole];
        let first = self.index(self.begun);
        for seen in self.seen.iter().filter(|seen| is_meant(seen)) {
            let at = self.index(seen.sent).checked_sub(first).map(index);
            if let Some(window) = at.and_then(|at| windows.get_mut(at)) {
                window.count(seen);
            }
        }
        windows
    }
}

impl Use {
    fn count(&mut self, seen: &Seen) {
        self.asked += seen.ask.cost;
        self.admitted += if seen.answer.admitted() { seen.ask.cost } else { 0 };
        self.answers += 1;
        self.slow += usize::from(seen.answered.saturating_sub(seen.sent) > SLOW);
    }

    /// Returns whether its daemons had too little of the machine.
    pub(super) fn is_starved(&self) -> bool {
        len(self.slow) > SLOW_PART * len(self.answers)
    }
}
